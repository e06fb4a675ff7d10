"""Gathers the facts about one message from brokers and Postgres. All searches have limits; what they leave out is named."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from gantry.client.consumer.offsets import Offsets
from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.errors import CorruptRecordError, InvalidIdError, RecordError
from gantry.model.message import MessageQueue, StoredMessage
from gantry.model.names import (
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    TRACE_TOPIC,
    TRANS_CHECK_MAX_TIME_TOPIC,
    TRANS_HALF_TOPIC,
    TRANS_OP_HALF_TOPIC,
    check_topic,
    is_system_group,
)
from gantry.model.tracedata import SubAfter, SubBefore, Trace, decode_traces
from gantry.remoting.bodies import GroupList
from gantry.remoting.codes import RequestCode
from gantry.remoting.headers.topic import QueryTopicConsumeByWhoHeader
from gantry.runtime.digits import parse_digits
from services.gateway.errors import UNKNOWN_MESSAGE, ProblemError
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.lives.events import is_committed, retry_group, topic_of
from services.gateway.usecases.lives.facts import ClientTrace, Copy, Facts, Life
from services.gateway.usecases.lives.groupfacts import GroupReader
from services.gateway.usecases.lives.life import tell
from services.gateway.usecases.lives.missing import Missing
from services.gateway.usecases.reading.lookup import SAME_KEY_MAX, Lookup, no_stored_id
from services.gateway.usecases.reading.read import READER_GROUP, Caller

GROUPS_MAX: Final = 50
"""Limit of groups that are asked about; each costs up to nine requests to each broker."""
OPS_MAX: Final = 2_000
"""Limit of op messages that are read to find the one that ends a transaction."""
_INT64_MAX: Final = 2**63 - 1


class Lives:
    """Tells the lives of messages. The caller has checked the right to read the topic."""

    def __init__(self, engine: ClientEngine, brokers: Brokers, lookup: Lookup, groups: GroupReader) -> None:
        self._engine = engine
        self._brokers = brokers
        self._lookup = lookup
        self._groups = groups
        self._offsets = Offsets(engine)
        self._puller = PullConsumer(engine, READER_GROUP)

    async def find(self, wanted_id: str, topic: str | None, caller: Caller) -> tuple[Facts, Missing]:
        """Return the facts about a message, without those about groups.

        Args:
            wanted_id: Stored id; with a topic, first taken as a message id.
            topic: Topic of the message.
            caller: The caller, for its turns.

        Raises:
            InvalidNameError: The topic's name is not valid.
            ProblemError: 404: no record and no trace data were found; 503: a broker that may have some does not answer.
        """
        failed: ProblemError | None = None
        if topic is not None:
            check_topic(topic)
            facts, missing = await self._search(wanted_id, topic, caller)
            if not facts.is_empty:
                return facts, missing
            failed = missing.problem
        try:
            record, broker = await self._lookup.by_stored_id(wanted_id)
        except InvalidIdError:
            raise failed or _unknown(wanted_id, no_stored_id(topic)) from None
        except ProblemError as error:
            raise (failed if failed is not None and error.kind is UNKNOWN_MESSAGE else error) from None
        own_topic = topic_of(record)
        if topic is not None and own_topic != topic:
            raise _unknown(wanted_id, f" in topic {topic}")
        facts, missing = await self._search(record.message_id, own_topic, caller)
        if record.topic == own_topic and not facts.stored:
            # A message without UNIQ_KEY, or one that is not in the index.
            missing.add("the message is not in the index by its id, so its copies can't be found")
            facts = Facts(own_topic, record.message_id, stored=[_copy(record, broker)], traces=facts.traces)
        return facts, missing

    async def tell(self, facts: Facts, missing: Missing, caller: Caller, *, may_see: Callable[[str], bool]) -> Life:
        """Return the life of a message, with the groups that the caller may see. Raises ProblemError (503)."""
        names = await self._group_names(facts, missing)
        seen = [name for name in names if may_see(name)]
        if len(seen) < len(names):
            missing.add(f"{len(names) - len(seen)} groups are left out: the key may not see them")
        if len(seen) > GROUPS_MAX:
            missing.add(f"{len(seen) - GROUPS_MAX} groups were not asked about: {', '.join(seen[GROUPS_MAX:][:20])}")
            seen = seen[:GROUPS_MAX]
        groups = [await self._groups.read(name, facts, missing, caller) for name in seen]
        shown = replace(
            facts,
            waiting=[copy for copy in facts.waiting if retry_group(copy) in (None, *seen)],
            traces=[one for one in facts.traces if _group_of(one.trace, facts.traces) in (None, *seen)],
            groups=groups,
            missing=missing.texts,
        )
        return tell(shown)

    async def _search(self, message_id: str, topic: str, caller: Caller) -> tuple[Facts, Missing]:
        missing = Missing()

        async def copies(searched: str) -> list[Copy]:
            asked = await self._lookup.copies(caller, searched, message_id, unique=True, without=missing.silent)
            return missing.copies(asked, searched)

        stored = await copies(topic)
        hidden = [copy for name in (SCHEDULE_TOPIC, TIMER_TOPIC) for copy in await copies(name)]
        halves = [copy for copy in await copies(TRANS_HALF_TOPIC) if topic_of(copy.record) == topic]
        given_up = [copy for copy in await copies(TRANS_CHECK_MAX_TIME_TOPIC) if topic_of(copy.record) == topic]
        waiting = [copy for copy in hidden if topic_of(copy.record) == topic]
        traces = await self._traces(message_id, topic, missing, caller)
        ended: dict[str, int] = {}
        if halves and not any(is_committed(copy) for copy in (*stored, *waiting)):
            ended = await self._ended(halves, missing)
        return Facts(topic, message_id, stored, waiting, halves, given_up, ended, traces), missing

    async def _traces(self, message_id: str, topic: str, missing: Missing, caller: Caller) -> list[ClientTrace]:
        asked = await self._lookup.copies(
            caller, TRACE_TOPIC, message_id, unique=False, bodies=True, without=missing.silent
        )
        found: list[ClientTrace] = []
        for broker, records in asked.answers.items():
            if len(records) >= SAME_KEY_MAX:
                missing.add(f"only the newest {SAME_KEY_MAX} trace messages on {broker} were read")
            for record in records:
                try:
                    traces, unreadable = decode_traces(record.inflated_body())
                except CorruptRecordError as error:
                    missing.add(f"the trace message {record.stored_id} can't be read: {error.reason}")
                    continue
                if unreadable:
                    missing.add(f"{unreadable} records of the trace message {record.stored_id} can't be read")
                client = str(record.born_host)
                found += [ClientTrace(trace, client) for trace in traces if _is_about(trace, message_id, topic)]
        missing.failures(asked.failures)
        if not found:
            missing.add(f"no trace data in {TRACE_TOPIC}: tracing is off, or the trace data has expired")
        return found

    async def _ended(self, halves: Sequence[Copy], missing: Missing) -> dict[str, int]:
        """Return the time at which the newest copy of the half message on each broker was marked as decided."""
        newest: dict[str, StoredMessage] = {}
        for copy in halves:
            known = newest.get(copy.broker)
            if known is None or copy.record.queue_offset > known.queue_offset:
                newest[copy.broker] = copy.record
        found: dict[str, int] = {}
        for broker, half in newest.items():
            if broker in missing.silent:
                continue
            try:
                at_ms = await self._ended_at(broker, half, missing)
            except (ClientError, RecordError) as error:
                missing.add(f"broker {broker}: its op messages can't be read, so a rollback is not known: {error}")
                continue
            if at_ms is not None:
                found[broker] = at_ms
        return found

    async def _ended_at(self, broker: str, half: StoredMessage, missing: Missing) -> int | None:
        queue = MessageQueue(TRANS_OP_HALF_TOPIC, broker, 0)
        offset = await self._offsets.search_offset(queue, half.stored_at_ms)
        begin = offset
        while True:
            result = await self._puller.pull(queue, offset)
            if result.status is PullStatus.FOUND:
                for op in result.messages():
                    parts = op.body.decode("utf-8", "replace").split(",")
                    if half.queue_offset in (parse_digits(part, _INT64_MAX) for part in parts):
                        return op.stored_at_ms
            if result.next_offset <= offset or result.next_offset >= result.max_offset:
                return None
            offset = result.next_offset
            if offset - begin >= OPS_MAX:
                missing.add(f"broker {broker}: only {OPS_MAX} op messages were read; a later rollback is not known")
                return None

    async def _group_names(self, facts: Facts, missing: Missing) -> list[str]:
        """Return the groups that consume the topic or have had the message; system groups are left out."""
        header = QueryTopicConsumeByWhoHeader(topic=facts.topic)

        async def ask(address: str) -> list[str]:
            response = await self._engine.call(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, header)
            return list(GroupList.decode(response.body_bytes).group_list)

        sets = {*await self._brokers.sets()} | self._engine.known_broker_sets(facts.topic)
        asked = await self._brokers.ask(ask, sets - missing.silent)
        missing.failures(asked.failures)
        names = {name for groups in asked.answers.values() for name in groups}
        names |= {group for copy in facts.waiting if (group := retry_group(copy)) is not None}
        names |= {group for one in facts.traces if (group := _group_of(one.trace, facts.traces)) is not None}
        return sorted(name for name in names if not is_system_group(name))


def _is_about(trace: Trace, message_id: str, topic: str) -> bool:
    """Return whether trace data is about a message. Records of consumers don't name the topic."""
    own_topic = None if isinstance(trace, SubBefore | SubAfter) else trace.topic
    return message_id in trace.message_id.split(",") and own_topic in (None, topic)


def _group_of(trace: Trace, traces: Iterable[ClientTrace]) -> str | None:
    """Return the consumer group of trace data."""
    if isinstance(trace, SubBefore):
        return trace.group
    if not isinstance(trace, SubAfter):
        return None
    if trace.group is not None:
        return trace.group
    begun = (one.trace for one in traces if isinstance(one.trace, SubBefore))
    return next((begin.group for begin in begun if begin.request_id == trace.request_id), None)


def _copy(record: StoredMessage, broker: str) -> Copy:
    return Copy(record._replace(body=b""), broker)


def _unknown(message_id: str, why: str) -> ProblemError:
    return ProblemError(UNKNOWN_MESSAGE, f"id: there is no message {message_id!r}{why}", field="id")
