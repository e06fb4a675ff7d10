"""Reads the facts about groups: retries, dead letters, committed offsets, filters, redrives, offsets set by hand."""

from collections.abc import Sequence
from typing import Any, Final

from gantry.client.consumer.pop import PopConsumer
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError
from gantry.model.errors import InvalidExpressionError
from gantry.model.group import TAG_EXPRESSION, MessageModel, SubscriptionData, parse_tag_expression
from gantry.model.message import MessageQueue
from gantry.model.names import dlq_topic, pop_retry_topic, retry_topic
from gantry.model.propertyname import PropertyName
from gantry.remoting.bodies.queuestates import QueueState
from gantry.remoting.codes import ResponseCode
from services.gateway.db.redrives import RedriveRepository
from services.gateway.db.repositories import AuditRepository
from services.gateway.db.subscriptions import SubscriptionRepository
from services.gateway.errors import ProblemError
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.consuming.consumers import Consumers
from services.gateway.usecases.lives.events import topic_of
from services.gateway.usecases.lives.facts import Copy, Facts, GroupFacts, Taken
from services.gateway.usecases.lives.missing import Missing
from services.gateway.usecases.metadata import Metadata, is_metadata_unavailable
from services.gateway.usecases.reading.lookup import Lookup
from services.gateway.usecases.reading.read import Caller, QueueReader

CHANGES_MAX: Final = 100
"""Limit of changes of a group in the audit trail that are read."""
_SET_BY_HAND: Final = "group.offsets"


class GroupReader:
    """Reads facts about groups."""

    def __init__(
        self,
        brokers: Brokers,
        lookup: Lookup,
        reader: QueueReader,
        consumers: Consumers,
        metadata: Metadata,
        *,
        engine: ClientEngine,
    ) -> None:
        self._engine = engine
        self._brokers = brokers
        self._lookup = lookup
        self._reader = reader
        self._consumers = consumers
        self._metadata = metadata

    async def read(self, group: str, facts: Facts, missing: Missing, caller: Caller) -> GroupFacts:
        """Return the facts about a group. Raises ProblemError (503)."""

        async def copies(topic: str) -> list[Copy]:
            asked = await self._lookup.copies(caller, topic, facts.message_id, unique=True, without=missing.silent)
            return [copy for copy in missing.copies(asked, topic) if topic_of(copy.record) == facts.topic]

        retries = await copies(retry_topic(group))
        for is_v2 in (False, True):
            retries += filter(_was_popped, await copies(pop_retry_topic(group, facts.topic, is_v2=is_v2)))
        letters = await copies(dlq_topic(group))
        queues = {
            **await self._states(group, facts.stored, missing),
            **await self._states(group, retries, missing),
        }
        taken = await self._taken(group, [*facts.stored, *retries], missing)
        sets = await self._brokers.sets()
        asked = await self._consumers.connections(group, [name for name in sets if name not in missing.silent])
        missing.failures(asked.failures)
        connected = [one for one in asked.answers.values() if one.connections]
        subscription = next(
            (one.subscriptions[facts.topic] for one in connected if facts.topic in one.subscriptions), None
        )
        redriven, moved_at_ms, remembered = await self._recorded(group, facts, letters, missing)
        subscription = subscription or remembered
        return GroupFacts(
            group,
            retries,
            letters,
            redriven,
            queues,
            is_connected=True if connected else (None if missing.silent else False),
            accepts=_accepts(subscription, facts),
            filter=None if subscription is None else subscription.sub_string,
            is_broadcasting=any(one.message_model is MessageModel.BROADCASTING for one in connected),
            moved_at_ms=moved_at_ms,
            taken=taken,
        )

    async def _states(self, group: str, copies: Sequence[Copy], missing: Missing) -> dict[MessageQueue, QueueState]:
        """Return the states of the queues that hold records."""
        found: dict[MessageQueue, QueueState] = {}
        for topic in sorted({copy.record.topic for copy in copies}):
            brokers = {copy.broker for copy in copies if copy.record.topic == topic} - missing.silent
            asked = await self._reader.queue_states(topic, sorted(brokers), group)
            missing.failures(asked.failures)
            found |= {
                MessageQueue(topic, broker, state.queue_id): state
                for broker, states in asked.answers.items()
                for state in states
            }
        return found

    async def _taken(
        self, group: str, copies: Sequence[Copy], missing: Missing
    ) -> dict[tuple[MessageQueue, int], Taken]:
        """Return which records the group has taken with receipts and not acknowledged."""
        consumer = PopConsumer(self._engine, group)
        places: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for copy in copies:
            if copy.broker not in missing.silent:
                place = (copy.record.queue_id, copy.record.queue_offset)
                places.setdefault((copy.record.topic, copy.broker), []).append(place)
        found: dict[tuple[MessageQueue, int], Taken] = {}
        for (topic, broker), wanted in places.items():
            try:
                messages = await consumer.taken(topic, broker, wanted)
            except BrokerError as error:
                # Brokers of RocketMQ don't know the request: a message that such a group has taken is told as consumed.
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    missing.add(f"broker {broker} does not tell what group {group} has taken: {error}")
                continue
            except ClientError as error:
                missing.failures({broker: f"broker {broker} does not answer: {error}"})
                continue
            for (queue_id, offset), one in messages.items():
                found[MessageQueue(topic, broker, queue_id), offset] = Taken(one.taken_at, one.visible_at)
        return found

    async def _recorded(
        self, group: str, facts: Facts, letters: Sequence[Copy], missing: Missing
    ) -> tuple[dict[str, int], int | None, SubscriptionData | None]:
        """Return the redrives of letters, when offsets were set by hand, and the last filter of a group that has left."""
        try:
            async with self._metadata.transaction() as session:
                stored_ids = [letter.record.stored_id for letter in letters]
                sent = await RedriveRepository(session).sent(group, stored_ids) if stored_ids else {}
                changes = await AuditRepository(session).page(kind="group", name=group, limit=CHANGES_MAX)
                rows = await SubscriptionRepository(session).page(group=group, topic=facts.topic)
        except ProblemError as error:
            if not is_metadata_unavailable(error):
                raise
            missing.add("Postgres is unavailable: redrives, offsets set by hand and earlier filters are not known")
            return {}, None, None
        moved = [
            int(change.at.timestamp() * 1_000)
            for change in changes
            if change.action.startswith(_SET_BY_HAND) and facts.topic in _topics_of(change.after)
        ]
        last = max(rows, key=lambda row: row.last_seen_at, default=None)
        return (
            {stored_id: int(at.timestamp() * 1_000) for stored_id, at in sent.items()},
            max(moved, default=None),
            None if last is None else _parsed(facts.topic, last.expression, last.expression_type),
        )


def _was_popped(copy: Copy) -> bool:
    """Return whether a record of a pop retry topic comes from a group that takes messages with receipts.

    The pop retry topic of a group may have the name of the retry topic of another one: `%RETRY%a_T`.
    """
    return bool({PropertyName.FIRST_POP_TIME, PropertyName.REDRIVEN_FROM} & copy.record.properties.keys())


def _accepts(subscription: SubscriptionData | None, facts: Facts) -> bool | None:
    """Return whether a filter lets the message through; None if this gateway can't decide it."""
    if subscription is None or not facts.stored:
        return None
    if subscription.expression_type != TAG_EXPRESSION:
        return None
    return any(subscription.matches_tag(copy.record.tag) for copy in facts.stored)


def _parsed(topic: str, expression: str, expression_type: str) -> SubscriptionData | None:
    if expression_type != TAG_EXPRESSION:
        return SubscriptionData(topic, expression, expression_type=expression_type)
    try:
        return parse_tag_expression(topic, expression)
    except InvalidExpressionError:
        return None


def _topics_of(after: Any) -> set[str]:
    """Return the topics that a change of offsets names."""
    changed = after if isinstance(after, dict) else {}
    return {one["topic"] for one in (changed, *changed.get("offsets", ())) if "topic" in one}
