"""Backlog: what of many queues is not consumed yet, asked in few requests.

Three of our brokers' own requests (docs/formats/remoting.md) and one of everybody's. A broker that does not know one
of ours, which any broker but Gantry's does not, is told apart by NotServedError.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from gantry.client.answers import read_body, read_header
from gantry.client.consumer.offsets import Offsets
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, BrokerUnavailableError, InvalidArgumentError, NotServedError
from gantry.model.message import MessageQueue
from gantry.model.unitrow import UNIT_ROW, UNIT_ROW_BYTES
from gantry.remoting.bodies.backlog import (
    HEAD_QUERIES_MAX,
    TAGS_CODES_MAX,
    HeadQueries,
    QueueHead,
    QueueHeads,
)
from gantry.remoting.bodies.backlog import HeadQuery as HeadQueryBean
from gantry.remoting.bodies.offsets import ConsumerOffsetWrapper
from gantry.remoting.bodies.queuestates import QueueState, QueueStates
from gantry.remoting.bodies.stats import TopicStatsTable
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import EncodableHeader, RemotingCommand
from gantry.remoting.headers.backlog import UNITS_DEFAULT, UNITS_MAX, UnitsHeader, UnitsResponseHeader
from gantry.remoting.headers.queuestates import QueueStatesHeader
from gantry.remoting.headers.topic import GetTopicStatsHeader

__all__ = ["UNITS_MAX", "UNIT_ROW", "UNIT_ROW_BYTES", "Backlog", "Head", "HeadQuery", "Units"]

# 16,384 units each: a filter that lets nothing pass is given up after 67 million, some ten seconds of a broker's.
HEAD_ROUNDS_MAX = 4_096
_OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Units:
    """Units of a queue, as rows (gantry/model/unitrow.py) one behind the other."""

    min_offset: int
    max_offset: int
    first_offset: int
    """Of the first row; later than asked for where the queue begins later by now."""
    next_offset: int
    """Where to go on; there are no rows only where this is the end, or beyond it."""
    rows: bytes


@dataclass(frozen=True, slots=True)
class HeadQuery:
    """Which queue, where its group is in it, and the hashes of the tags it wants; None for everything."""

    topic: str
    queue_id: int
    offset: int
    tags_codes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The first message at an offset or later that a filter lets through. What is not known is None."""

    min_offset: int | None
    max_offset: int | None
    queue_offset: int | None
    """Of that message; None without an error: there is none."""
    physical_offset: int | None
    size: int | None
    """Of the whole record in bytes."""
    tags_code: int | None
    stored_at_ms: int | None
    expires_at_ms: int | None
    """The earliest moment at which retention removes it by age and hour; None: by these never, or not known."""
    expires_at_is_earliest: bool
    """Its file is still written to, so that the moment can only become later."""
    error: str | None
    """What could not be read, and why."""
    now_ms: int
    """The broker's clock as it answered."""


class Backlog:
    """Calls over an engine.

    Every call raises BrokerError, NoAnswerError or BrokerUnavailableError, NotServedError where a broker does not know
    the request, and InvalidArgumentError for a value that can't be.
    """

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine
        self._offsets = Offsets(engine)

    async def units(self, queue: MessageQueue, offset: int, *, count: int = UNITS_DEFAULT) -> Units:
        """Return units of a queue from an offset on, from the master or, while it is away, a slave.

        Args:
            queue: The queue.
            offset: Where to begin; before the queue's first offset means there.
            count: At most so many, up to 4,096. Fewer are no sign of the end.

        Raises:
            NoRouteError: No name server knows the topic; else as all calls.
        """
        _check("offset", offset, 0, _OFFSET_MAX)
        _check("count", count, 1, UNITS_MAX)
        address = await self._engine.queue_address(queue, broker_id=0)
        header = UnitsHeader(topic=queue.topic, queue_id=queue.queue_id, offset=offset, max_units=count)
        response = await self._ask(address, RequestCode.GANTRY_UNITS, header)
        answer = read_header(UnitsResponseHeader, response, address)
        rows = response.body_bytes
        if len(rows) != (answer.next_offset - answer.first_offset) * UNIT_ROW_BYTES or answer.first_offset < offset:
            raise _unreadable(
                address, f"{len(rows)} bytes are no units from {answer.first_offset} up to {answer.next_offset}"
            )
        return Units(answer.min_offset, answer.max_offset, answer.first_offset, answer.next_offset, rows)

    async def heads(self, broker: str, queries: Sequence[HeadQuery]) -> list[Head]:
        """Return for each query the first message that it means, in their order; any number of queries.

        What one query can't be answered for (no such topic, a damaged record) is in its head's `error`.
        """
        for query in queries:
            _check("offset", query.offset, 0, _OFFSET_MAX)
            _check("queue_id", query.queue_id, 0, 2**31 - 1)
            if query.tags_codes is not None:
                _check("tags_codes", len(query.tags_codes), 0, TAGS_CODES_MAX)
        address = await self._master(broker)
        heads: list[Head] = []
        for part in _parts(queries):
            heads += await self._heads(address, part)
        return heads

    async def committed_offsets(self, broker: str) -> dict[str, dict[str, dict[int, int]]]:
        """Return what groups have committed: group → topic → queue id → offset."""
        address = await self._master(broker)
        response = await self._ask(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        groups: dict[str, dict[str, dict[int, int]]] = {}
        for key, queues in read_body(ConsumerOffsetWrapper.decode, response, address).offset_table.items():
            topic, _, group = key.partition("@")
            if group:
                groups.setdefault(group, {})[topic] = dict(queues)
        return groups

    async def queue_states(self, topic: str, broker: str) -> list[QueueState]:
        """Return the state of all queues of a topic on a broker, as `queue_states_at`."""
        return await self.queue_states_at(await self._master(broker), topic)

    async def queue_states_at(self, address: str, topic: str, group: str | None = None) -> list[QueueState]:
        """Return the state of all queues of a topic at an address; with a group, also what it has committed.

        Our own brokers answer this in one request. Others are asked what they can answer: without times of committed
        messages, and whether a queue can be read and written is not known, so both are true.
        """
        try:
            header = QueueStatesHeader(topic=topic, consumer_group=group)
            response = await self._ask(address, RequestCode.GANTRY_QUEUE_STATES, header)
        except NotServedError:
            return await self._foreign_states(address, topic, group)
        return read_body(QueueStates.decode, response, address).queues

    # Inside

    async def _foreign_states(self, address: str, topic: str, group: str | None) -> list[QueueState]:
        response = await self._ask(address, RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsHeader(topic=topic))
        table = read_body(TopicStatsTable.decode, response, address).offset_table
        return [
            QueueState(
                queue_id=queue.queue_id,
                min_offset=found.min_offset,
                max_offset=found.max_offset,
                last_stored_at=found.last_update_timestamp or None,
                committed_offset=None if group is None else await self._offsets.committed_offset(group, queue),
            )
            for queue, found in sorted(table.items())
        ]

    async def _heads(self, address: str, queries: Sequence[HeadQuery]) -> list[Head]:
        """Ask until every query is answered; a request looks at a limited number of units."""
        heads: list[Head | None] = [None] * len(queries)
        waiting = list(enumerate(queries))
        for _ in range(HEAD_ROUNDS_MAX):
            answer = await self._ask_heads(address, [query for _, query in waiting])
            again: list[tuple[int, HeadQuery]] = []
            for (index, query), bean in zip(waiting, answer.heads, strict=True):
                heads[index] = _head(bean, answer.now_ms)
                if (resumed := _unfinished(bean)) is not None:
                    again.append((index, replace(query, offset=resumed)))
            waiting = again
            if not waiting:
                break
        for index, query in waiting:
            head, begun = heads[index], queries[index].offset
            assert head is not None, "it was answered at least once"
            heads[index] = replace(
                head,
                error=f"no message that the filter lets through from offset {begun} up to {query.offset}; given up",
            )
        return [head for head in heads if head is not None]

    async def _ask_heads(self, address: str, queries: Sequence[HeadQuery]) -> QueueHeads:
        beans = [
            HeadQueryBean(
                topic=query.topic,
                queue_id=query.queue_id,
                offset=query.offset,
                tags_codes=None if query.tags_codes is None else list(query.tags_codes),
            )
            for query in queries
        ]
        response = await self._ask(address, RequestCode.GANTRY_HEADS, body=HeadQueries(queries=beans).encode())
        answer = read_body(QueueHeads.decode, response, address)
        if len(answer.heads) != len(queries):
            raise _unreadable(address, f"{len(answer.heads)} heads for {len(queries)} queries")
        return answer

    async def _ask(
        self, address: str, code: int, header: EncodableHeader | None = None, *, body: bytes | None = None
    ) -> RemotingCommand:
        try:
            return await self._engine.call(address, code, header, body=body)
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise NotServedError(code, address) from None
            raise

    async def _master(self, broker: str) -> str:
        """Return the address of a set's master: of the routes in use, else as name servers have it."""
        try:
            return self._engine.master_address(broker)
        except BrokerUnavailableError:
            registered = (await self._engine.cluster_info()).broker_addr_table.get(broker)
        address = None if registered is None else registered.master_address
        if address is None:
            raise BrokerUnavailableError(broker)
        return address


def _parts(queries: Sequence[HeadQuery]) -> Iterator[list[HeadQuery]]:
    """Split queries into what fits a request each."""
    part: list[HeadQuery] = []
    codes = 0
    for query in queries:
        count = len(query.tags_codes or ())
        if part and (len(part) == HEAD_QUERIES_MAX or codes + count > TAGS_CODES_MAX):
            yield part
            part, codes = [], 0
        part.append(query)
        codes += count
    if part:
        yield part


def _unfinished(bean: QueueHead) -> int | None:
    """Return where to ask again, or None where the answer is whole."""
    if bean.error is not None or bean.queue_offset is not None or bean.scanned_to is None or bean.max_offset is None:
        return None
    return bean.scanned_to if bean.scanned_to < bean.max_offset else None


def _head(bean: QueueHead, now_ms: int) -> Head:
    return Head(
        min_offset=bean.min_offset,
        max_offset=bean.max_offset,
        queue_offset=bean.queue_offset,
        physical_offset=bean.physical_offset,
        size=bean.size,
        tags_code=bean.tags_code,
        stored_at_ms=bean.stored_at,
        expires_at_ms=bean.expires_at,
        expires_at_is_earliest=bean.expires_at_is_earliest,
        error=bean.error,
        now_ms=now_ms,
    )


def _check(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgumentError(field, value, f"is not within {least} and {most}")


def _unreadable(address: str, reason: str) -> BrokerError:
    return BrokerError(ResponseCode.SYSTEM_ERROR, f"its answer can't be read: {reason}", address)
