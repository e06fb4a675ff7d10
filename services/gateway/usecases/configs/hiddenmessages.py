"""Messages that a change of a topic would hide: they stay on disk, but no consumer reads them.

Consumers read the queues below `read_queues`; producers write to the queues below `write_queues`. A change hides
messages in these cases:

- It leaves fewer queues to read than to write, or makes the topic write-only: future messages are hidden.
- It shrinks `read_queues`: the messages in the queues above are hidden.
- It takes the read permission away: all messages are hidden.
- It removes the topic from a broker: the messages there are hidden. The broker still serves the topic while it is up,
  but the gateway no longer counts it as a home of the topic, and does not report it as missing while it is down.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from gantry.client.backlog import Backlog
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.topic import Perm, TopicConfig
from gantry.remoting.bodies.queuestates import QueueState
from services.gateway.errors import BROKER_UNAVAILABLE, HIDES_MESSAGES, ProblemError
from services.gateway.schemas.configs import TopicChange, TopicSettings
from services.gateway.usecases.cluster.brokers import BrokerAnswers

# An error names at most this many queues that hold messages, and counts the rest.
_QUEUES_NAMED_MAX: Final = 10
_PERMITTED: Final = '"allow_hiding": true permits it'
_SHRINK: Final = "queues:shrink (gantry topic shrink) closes queues once all groups have consumed them"


def find_hidden(states: Mapping[str, Iterable[QueueState]], first_hidden: int) -> list[str]:
    """Return the queues with messages, of each broker, from queue `first_hidden` on; pure."""
    return [
        f"{broker}/{state.queue_id} ({count} message{'s' if count > 1 else ''})"
        for broker, queues in states.items()
        for state in queues
        if state.queue_id >= first_hidden and (count := state.max_offset - state.min_offset) > 0
    ]


def find_lost_queues(
    base: TopicSettings | None, desired: TopicSettings, present: Mapping[str, TopicConfig]
) -> dict[str, dict[str, int]]:
    """Return the queues that a change takes from consumers; pure.

    Returns:
        JSON pointer of the setting → broker → the first queue that is taken.
    """
    losses: dict[str, dict[str, int]] = {}
    for broker, there in present.items():
        if not desired.is_for(broker):
            # A broker that the old settings did not name either keeps what it has.
            if base is not None and base.is_for(broker):
                losses.setdefault("/brokers", {})[broker] = 0
        elif not desired.is_readable:
            if there.perm & Perm.READ:
                losses.setdefault("/perm", {})[broker] = 0
        elif desired.read_queues < there.read_queue_nums:
            losses.setdefault("/read_queues", {})[broker] = desired.read_queues
    return losses


def may_lose_queues(base: TopicSettings | None, desired: TopicSettings, broker: str) -> bool:
    """Return whether a change may take queues of an unreachable broker from consumers; pure."""
    if base is None or not base.is_for(broker):
        return False
    is_taken = not desired.is_for(broker) or (base.is_readable and not desired.is_readable)
    return is_taken or desired.read_queues < base.read_queues


class HiddenMessageCheck:
    """Checks queues for messages before a change takes the queues from consumers."""

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine
        self._backlog = Backlog(engine)

    async def check(
        self,
        topic: str,
        change: TopicChange,
        base: TopicSettings | None,
        asked: BrokerAnswers[TopicConfig],
        *,
        held: Collection[str],
    ) -> None:
        """Reject a change that hides messages.

        Args:
            topic: Name of the topic.
            change: The change.
            base: Settings before the change; None if there are none.
            asked: Configurations that brokers have now.
            held: Brokers that had the topic when they were last observed.

        Raises:
            ProblemError: 409: the change hides messages; 503: a broker that may hold messages does not answer.
        """
        desired = change.over(base)
        _check_unread(change, base, desired)
        for broker in sorted({*asked.failures, *held} - set(asked.answered)):
            if may_lose_queues(base, desired, broker):
                reason = asked.failures.get(broker, f"broker {broker}: it is not registered at the moment")
                detail = f"{reason}; it is unknown whether this change hides messages there; {_PERMITTED}"
                raise ProblemError(BROKER_UNAVAILABLE, detail)
        for field, firsts in find_lost_queues(base, desired, asked.answers).items():
            hidden: list[str] = []
            for broker, first in firsts.items():
                try:
                    hidden += find_hidden({broker: await self._states(broker, topic)}, first)
                except ClientError as error:
                    raise ProblemError(BROKER_UNAVAILABLE, f"broker {broker}: {error}") from None
            if hidden:
                named = ", ".join(hidden[:_QUEUES_NAMED_MAX])
                more = f" and {len(hidden) - _QUEUES_NAMED_MAX} more" if len(hidden) > _QUEUES_NAMED_MAX else ""
                ways = f"{_SHRINK}; {_PERMITTED}" if field == "/read_queues" else _PERMITTED
                raise ProblemError(
                    HIDES_MESSAGES,
                    f"{field}: {_describe_change(field, desired)} would hide messages in {named}{more}; {ways}",
                    field=field,
                )

    async def _states(self, broker: str, topic: str) -> list[QueueState]:
        registered = (await self._engine.cluster_info()).broker_addr_table.get(broker)
        address = None if registered is None else registered.master_address
        if address is None:
            raise ProblemError(BROKER_UNAVAILABLE, f"broker {broker}: its master is not registered at the moment")
        return await self._backlog.queue_states_at(address, topic)


def _check_unread(change: TopicChange, base: TopicSettings | None, desired: TopicSettings) -> None:
    """Raise ProblemError (409) if producers would write messages after the change that no consumer reads."""
    if change.makes_write_only(base):
        raise ProblemError(
            HIDES_MESSAGES, f'/perm: "w": no consumer may read what producers send; {_PERMITTED}', field="/perm"
        )
    if change.leaves_unread_queues(base):
        raise ProblemError(
            HIDES_MESSAGES,
            f"/read_queues: {desired.read_queues} is below write_queues, {desired.write_queues}: no consumer reads queues"
            f" {desired.read_queues} to {desired.write_queues - 1}; {_PERMITTED}",
            field="/read_queues",
        )


def _describe_change(field: str, desired: TopicSettings) -> str:
    if field == "/brokers":
        return "taking the topic from a broker"
    return f'"{desired.perm}"' if field == "/perm" else str(desired.read_queues)
