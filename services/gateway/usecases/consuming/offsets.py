"""Committed offsets of consumer groups. They can be set while no member of the group is connected."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from gantry.client.consumer.offsets import BY_HAND, Offsets
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.errors import InvalidValueError
from gantry.model.message import MessageQueue
from gantry.model.names import is_system_group
from gantry.remoting.bodies.offsets import ConsumerOffsetWrapper
from gantry.remoting.bodies.queuestates import QueueState
from gantry.remoting.codes import RequestCode
from services.gateway.auth.principal import Principal
from services.gateway.db.repositories import Actor, AuditRepository
from services.gateway.errors import MEMBERS_CONNECTED, ProblemError, problem_of, reserved_name
from services.gateway.schemas.offsets import Commit
from services.gateway.schemas.reading import DuplicateError
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.consuming.consumers import Consumers, connected_clients
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.reading.read import QueueReader

_COMMITS_AT_ONCE_MAX: Final = 32
# An error names at most this many connected members; GET …/clients lists all.
_MEMBERS_NAMED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """A group's offset in one queue.

    Attributes:
        queue: The queue.
        state: State of the queue; None if its broker does not answer.
    """

    queue: MessageQueue
    state: QueueState | None

    @property
    def committed_offset(self) -> int | None:
        """The group's committed offset; None if it never committed one, or if it is unknown."""
        return None if self.state is None else self.state.committed_offset

    @property
    def lag(self) -> int | None:
        """The number of messages that the group has not consumed; None if it is unknown, as without a commit."""
        if self.state is None or self.state.committed_offset is None:
            return None
        return max(0, self.state.max_offset - self.state.committed_offset)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of one commit; `problem` is the reason for which it was rejected, else None."""

    commit: Commit
    problem: ProblemError | None


def check_repeated_queues(commits: Sequence[Commit]) -> None:
    """Raise DuplicateError if two of the commits name the same queue."""
    first: dict[MessageQueue, int] = {}
    for index, commit in enumerate(commits):
        if first.setdefault(commit.queue, index) != index:
            shown = f"{commit.topic}/{commit.broker}/{commit.queue_id}"
            raise DuplicateError(f"/offsets/{index}", shown, f"names the same queue as /offsets/{first[commit.queue]}")


class GroupOffsets:
    """Reads and writes offsets of groups. The caller checks the right to the group."""

    def __init__(
        self, engine: ClientEngine, brokers: Brokers, reader: QueueReader, consumers: Consumers, metadata: Metadata
    ) -> None:
        self._engine = engine
        self._brokers = brokers
        self._reader = reader
        self._consumers = consumers
        self._metadata = metadata
        self._offsets = Offsets(engine)

    async def of_topic(self, group: str, topic: str) -> list[GroupOffset]:
        """Return the group's offsets in all queues of a topic, committed or not. Raises ProblemError."""
        return [
            GroupOffset(queue, state)
            for queue, state in await self._reader.states(topic, group)
            if state is None or state.readable or state.committed_offset is not None
        ]

    async def of_group(self, group: str) -> list[GroupOffset]:
        """Return the group's offsets in all queues that it has committed.

        Raises:
            ProblemError: 404: no broker knows the group, or it has committed nothing; 503: a broker that may know it
                does not answer.
        """
        asked = await self._brokers.ask(self._table)
        asked.require_any()
        suffix = "@" + group
        topics: dict[str, set[tuple[str, int]]] = {}
        for broker, table in asked.answers.items():
            for key, queues in table.items():
                if key.endswith(suffix):
                    topics.setdefault(key.removesuffix(suffix), set()).update((broker, number) for number in queues)
        committed: list[GroupOffset] = []
        for topic in sorted(topics):
            try:
                found = await self.of_topic(group, topic)
            except ProblemError as error:
                if error.status != 404:
                    raise
                continue  # The topic was deleted, so its offsets are meaningless.
            committed += [
                one
                for one in found
                # The commits on a broker that did not answer are unknown, and all its queues are listed as unknown.
                if one.queue.broker_name not in asked.answered
                or (one.queue.broker_name, one.queue.queue_id) in topics[topic]
            ]
        return committed

    async def commit(
        self, group: str, commits: Sequence[Commit], principal: Principal, actor: Actor
    ) -> list[CommitResult]:
        """Set offsets and return a result for each, in order; a rejected offset does not affect the others.

        A connected member of the group would commit its own position over them, so nothing is changed while members are
        connected. A member that connects between this check and the change may still do so.

        Raises:
            DuplicateError: A queue is named twice.
            ProblemError: 403: the group is reserved for the system; 409: members are connected; 503: a broker cannot
                say whether members are connected, or Postgres is unavailable, so that the change cannot be recorded in
                the audit trail. Nothing was changed.
        """
        if is_system_group(group):
            raise reserved_name("group", group)
        check_repeated_queues(commits)
        problems: dict[int, ProblemError] = {}
        room = asyncio.Semaphore(_COMMITS_AT_ONCE_MAX)

        async def each(work: Callable[[int], Awaitable[None]], indexes: Iterable[int]) -> None:
            async def one(index: int) -> None:
                try:
                    async with room:
                        await work(index)
                except (ProblemError, ClientError, InvalidValueError) as error:
                    problems[index] = problem_of(error)

            await asyncio.gather(*(one(index) for index in indexes))

        before: dict[int, int | None] = {}

        async def look(index: int) -> None:
            before[index] = await self._check(group, commits[index], principal, f"/offsets/{index}")

        async def write(index: int) -> None:
            async with self._reader.explained(commits[index].topic):
                await self._offsets.commit_offset(
                    group, commits[index].queue, commits[index].queue_offset, epoch=BY_HAND
                )

        await each(look, range(len(commits)))
        await self._require_no_members(group)
        await self._record(group, {index: (commits[index], before[index]) for index in sorted(before)}, actor)
        await each(write, sorted(before))
        return [CommitResult(commit, problems.get(index)) for index, commit in enumerate(commits)]

    async def _check(self, group: str, commit: Commit, principal: Principal, at: str) -> int | None:
        """Return the group's committed offset of a queue, after checking that the new one is allowed."""
        if not principal.is_operator:
            principal.require_consume(commit.topic, group)
        queue = commit.queue
        await self._reader.check_queue(queue)
        async with self._reader.explained(commit.topic):
            end = await self._offsets.max_offset(queue)
            if commit.queue_offset > end:
                # The group would never consume the messages up to this offset.
                raise InvalidValueError(f"{at}/offset", commit.offset, f"is beyond the end of the queue, {end}")
            return await self._offsets.committed_offset(group, queue)

    async def _require_no_members(self, group: str) -> None:
        asked = await self._consumers.connections(group)
        if not asked.is_complete:
            raise asked.problem()
        members = [client.client_id for client in connected_clients(asked.answers)]
        if members:
            named = ", ".join(members[:_MEMBERS_NAMED_MAX])
            more = f" and {len(members) - _MEMBERS_NAMED_MAX} more" if len(members) > _MEMBERS_NAMED_MAX else ""
            raise ProblemError(
                MEMBERS_CONNECTED,
                f"group: {group!r} has connected members, which would overwrite these offsets: {named}{more}",
                field="group",
            )

    async def _record(self, group: str, changes: Mapping[int, tuple[Commit, int | None]], actor: Actor) -> None:
        """Record in the audit trail which offsets are about to change, and their old values."""
        changed = [(commit, old) for commit, old in changes.values() if old != commit.queue_offset]
        if not changed:
            return
        after = {"offsets": [msgspec.to_builtins(commit) for commit, _ in changed]}
        before = {
            "offsets": [
                {**msgspec.to_builtins(commit), "offset": None if old is None else str(old)} for commit, old in changed
            ]
        }
        async with self._metadata.transaction() as session:
            AuditRepository(session).record(actor, "group.offsets", "group", group, before=before, after=after)

    async def _table(self, address: str) -> dict[str, dict[int, int]]:
        response = await self._engine.call(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        table = ConsumerOffsetWrapper.decode(response.body_bytes).offset_table
        return {key: dict(queues) for key, queues in table.items()}
