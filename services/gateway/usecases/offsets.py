"""What consumer groups have committed, and committing for them."""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from gantry.client.consumer.offsets import Offsets
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.errors import InvalidValueError
from gantry.model.message import MessageQueue
from gantry.remoting.bodies.offsets import ConsumerOffsetWrapper
from gantry.remoting.bodies.queuestates import QueueState
from gantry.remoting.codes import RequestCode
from services.gateway.auth.principal import Principal
from services.gateway.errors import ProblemError, problem_of
from services.gateway.schemas.configs import BrokerName
from services.gateway.schemas.outgoing import QueueNumber
from services.gateway.usecases.brokers import Brokers
from services.gateway.usecases.read import QueueReader

COMMITTED: Final = "committed"
REFUSED: Final = "refused"
COMMITS_MAX: Final = 1_000
_COMMITS_AT_ONCE_MAX: Final = 32


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One queue's offset: that of the next message to consume."""

    topic: Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[%|a-zA-Z0-9_-]+\Z")]
    broker: BrokerName
    queue_id: QueueNumber
    offset: Annotated[str, Meta(pattern=r"^(0|[1-9][0-9]{0,17})\Z")]


class Commits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request commits."""

    offsets: Annotated[list[Commit], Meta(min_length=1, max_length=COMMITS_MAX)]


class GroupOffsets:
    """Reads and writes offsets of groups; the right to the group is checked by the caller."""

    def __init__(self, engine: ClientEngine, brokers: Brokers, reader: QueueReader) -> None:
        self._engine = engine
        self._brokers = brokers
        self._reader = reader
        self._offsets = Offsets(engine)

    async def of_topic(self, group: str, topic: str) -> list[dict[str, Any]]:
        """Return the group's offsets in all queues of a topic, committed or not. Raises ProblemError."""
        route = await self._reader.route(topic)
        sets = sorted({data.broker_name for data in route.queue_datas})
        asked = await self._reader.queue_states(topic, sets, group)
        items: list[dict[str, Any]] = []
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name):
            states = asked.answers.get(data.broker_name)
            if states is None:
                unknown = range(data.read_queue_nums)
                items += [_view(topic, data.broker_name, queue_id, None) for queue_id in unknown]
            else:
                items += [
                    _view(topic, data.broker_name, state.queue_id, state)
                    for state in states
                    if state.readable or state.committed_offset is not None
                ]
        return items

    async def of_group(self, group: str) -> list[dict[str, Any]]:
        """Return the group's offsets in all queues that it has committed something for.

        Raises:
            ProblemError: 404: no broker knows the group, or it has committed nothing; 503: nobody can say.
        """
        asked = await self._brokers.ask(self._table)
        asked.require_any()
        suffix = "@" + group
        topics: dict[str, set[tuple[str, int]]] = {}
        for broker, table in asked.answers.items():
            for key, queues in table.items():
                if key.endswith(suffix):
                    topics.setdefault(key.removesuffix(suffix), set()).update((broker, number) for number in queues)
        items: list[dict[str, Any]] = []
        for topic in sorted(topics):
            try:
                found = await self.of_topic(group, topic)
            except ProblemError as error:
                if error.status != 404:
                    raise
                continue  # The topic was deleted; its offsets mean nothing any more.
            items += [
                item
                for item in found
                # What one that could not be asked has is not known, and shown as that.
                if item["broker"] in asked.failures or (item["broker"], item["queue_id"]) in topics[topic]
            ]
        return items

    async def commit(
        self, group: str, commits: Sequence[Commit], principal: Principal, request_id: str
    ) -> dict[str, Any]:
        """Commit offsets and return a result for each, in their order; one that is refused does not cost the others."""
        room = asyncio.Semaphore(_COMMITS_AT_ONCE_MAX)

        async def commit_one(index: int, commit: Commit) -> dict[str, Any]:
            shown: dict[str, Any] = {
                "topic": commit.topic,
                "broker": commit.broker,
                "queue_id": commit.queue_id,
                "offset": commit.offset,
            }
            try:
                async with room:
                    await self._commit(group, commit, principal, f"/offsets/{index}")
            except (ProblemError, ClientError, InvalidValueError) as error:
                return {**shown, "outcome": REFUSED, "problem": problem_of(error).to_dict(request_id)}
            return {**shown, "outcome": COMMITTED}

        results = await asyncio.gather(*(commit_one(index, commit) for index, commit in enumerate(commits)))
        committed = sum(result["outcome"] == COMMITTED for result in results)
        return {"results": list(results), "committed": committed, "refused": len(results) - committed}

    async def _commit(self, group: str, commit: Commit, principal: Principal, at: str) -> None:
        if not principal.is_admin:
            principal.require_consume(commit.topic, group)
        queue = MessageQueue(commit.topic, commit.broker, commit.queue_id)
        await self._reader.check_queue(queue)
        offset, end = int(commit.offset), await self._offsets.max_offset(queue)
        if offset > end:
            # Messages that come later would never be consumed.
            raise InvalidValueError(f"{at}/offset", commit.offset, f"is beyond the end of the queue, {end}")
        await self._offsets.commit_offset(group, queue, offset)

    async def _table(self, address: str) -> dict[str, dict[int, int]]:
        response = await self._engine.call(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        table = ConsumerOffsetWrapper.decode(response.body_bytes).offset_table
        return {key: dict(queues) for key, queues in table.items()}


def _view(topic: str, broker: str, queue_id: int, state: QueueState | None) -> dict[str, Any]:
    committed = None if state is None else state.committed_offset
    return {
        "topic": topic,
        "broker": broker,
        "queue_id": queue_id,
        "committed_offset": None if committed is None else str(committed),
        "min_offset": None if state is None else str(state.min_offset),
        "max_offset": None if state is None else str(state.max_offset),
        # Nobody knows what a group lags behind that has not said where it is.
        "lag": None if state is None or committed is None else str(max(0, state.max_offset - committed)),
    }
