"""Messages that a change of a topic's queues would hide: they stay on the disk, and no consumer reads them.

Consumers read the queues below `read_queues`, producers write those below `write_queues`. So fewer queues to read than to
write hide what will be sent, and a shrink of `read_queues` hides what lies in the queues above.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gantry.client.backlog import Backlog
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.topic import TopicConfig
from gantry.remoting.bodies.queuestates import QueueState
from services.gateway.errors import BROKER_UNAVAILABLE, HIDES_MESSAGES, ProblemError
from services.gateway.schemas.configs import TopicChange, TopicSettings
from services.gateway.usecases.brokers import Asked

# An error names so many of the queues that hold messages, and counts the others.
_QUEUES_NAMED_MAX: Final = 10


def find_hidden(states: Mapping[str, Iterable[QueueState]], read_queues: int) -> list[str]:
    """Return the queues of each broker that hold messages and are not among the first `read_queues`; pure."""
    return [
        f"{broker}/{state.queue_id} ({state.max_offset - state.min_offset} messages)"
        for broker, queues in states.items()
        for state in queues
        if state.queue_id >= read_queues and state.max_offset > state.min_offset
    ]


class Hiding:
    """Looks at queues before they are taken from consumers."""

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine
        self._backlog = Backlog(engine)

    async def refuse(
        self, topic: str, change: TopicChange, base: TopicSettings | None, asked: Asked[TopicConfig]
    ) -> None:
        """Refuse a change that hides messages.

        Raises:
            ProblemError: 409: it does; 503: a broker that may have queues above can't be asked.
        """
        wanted = change.over(base)
        if change.hides(base):
            raise ProblemError(
                HIDES_MESSAGES,
                f"/read_queues: {wanted.read_queues} is below write_queues, {wanted.write_queues}: what goes to queues"
                f' {wanted.read_queues} to {wanted.write_queues - 1} is read by nobody; "allow_hiding": true permits it',
                field="/read_queues",
            )
        if base is not None and wanted.read_queues < base.read_queues and asked.failures:
            raise asked.problem()
        states: dict[str, list[QueueState]] = {}
        for broker, present in asked.answers.items():
            if wanted.read_queues < present.read_queue_nums:
                try:
                    states[broker] = await self._states(broker, topic)
                except ClientError as error:
                    raise ProblemError(BROKER_UNAVAILABLE, f"broker {broker}: {error}") from None
        hidden = find_hidden(states, wanted.read_queues)
        if hidden:
            named = ", ".join(hidden[:_QUEUES_NAMED_MAX])
            more = f" and {len(hidden) - _QUEUES_NAMED_MAX} more" if len(hidden) > _QUEUES_NAMED_MAX else ""
            raise ProblemError(
                HIDES_MESSAGES,
                f"/read_queues: {wanted.read_queues} would hide messages in {named}{more};"
                ' "allow_hiding": true permits it',
                field="/read_queues",
            )

    async def _states(self, broker: str, topic: str) -> list[QueueState]:
        registered = (await self._engine.cluster_info()).broker_addr_table.get(broker)
        address = None if registered is None else registered.master_address
        if address is None:
            raise ProblemError(BROKER_UNAVAILABLE, f"broker {broker}: no master of it is registered just now")
        return await self._backlog.queue_states_at(address, topic)
