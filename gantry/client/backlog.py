"""Backlog: reads how much of many queues is not consumed yet, in few requests.

The calls use four requests that only Gantry's brokers know (docs/formats/remoting.md) and one that every RocketMQ
broker knows. A broker that does not know one of Gantry's requests causes NotServedError.
"""

from collections.abc import Iterable, Iterator, Sequence
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
    FirstUnconsumedQueries,
    FirstUnconsumedResult,
    FirstUnconsumedResults,
)
from gantry.remoting.bodies.backlog import FirstUnconsumedQuery as FirstUnconsumedQueryBean
from gantry.remoting.bodies.offsets import ConsumerOffsetWrapper
from gantry.remoting.bodies.queuestates import QueueState, QueueStates
from gantry.remoting.bodies.resets import MadeReset, MadeResets
from gantry.remoting.bodies.stats import TopicStatsTable
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import EncodableHeader, RemotingCommand
from gantry.remoting.headers.backlog import UNITS_DEFAULT, UNITS_MAX, UnitsHeader, UnitsResponseHeader
from gantry.remoting.headers.queuestates import QueueStatesHeader
from gantry.remoting.headers.reset import AllOffsetsResponseHeader, ResetsHeader
from gantry.remoting.headers.topic import GetTopicStatsHeader

__all__ = ["UNITS_MAX", "UNIT_ROW", "UNIT_ROW_BYTES", "Backlog", "FirstUnconsumed", "FirstUnconsumedQuery", "Units"]

SQL_BYTES_MAX = 128 << 10
"""The maximum size of the SQL expressions in one request, so that its body is below the broker's limit of 1 MiB."""
# A request scans 16,384 units. So the client gives up a filter that matches nothing after 67 million units. A broker
# needs about ten seconds for them.
HEAD_ROUNDS_MAX = 4_096
_OFFSET_MAX = 2**63 - 1
_FIRST_UNCONSUMED = RequestCode.GANTRY_FIRST_UNCONSUMED


@dataclass(frozen=True, slots=True)
class Units:
    """Units of a queue, as consecutive rows (gantry/model/unitrow.py)."""

    min_offset: int
    max_offset: int
    first_offset: int
    """Offset of the first row. It is later than the requested offset if the queue begins later by now."""
    next_offset: int
    """Offset for the next request. There are no rows only if this offset is the end of the queue, or beyond the end."""
    rows: bytes


@dataclass(frozen=True, slots=True)
class FirstUnconsumedQuery:
    """A queue, the offset of its group, and the filter of the group.

    Attributes:
        topic: The queue's topic.
        queue_id: The queue's id.
        offset: The offset to begin at.
        tags_codes: Hashes of the tags that the group wants; None for all messages.
        sql: SQL92 expression of the group, instead of tags.
    """

    topic: str
    queue_id: int
    offset: int
    tags_codes: tuple[int, ...] | None = None
    sql: str | None = None


@dataclass(frozen=True, slots=True)
class FirstUnconsumed:
    """The first message at an offset or later that passes a filter. Unknown values are None."""

    min_offset: int | None
    max_offset: int | None
    queue_offset: int | None
    """Queue offset of the message. None without an error means that there is no such message."""
    physical_offset: int | None
    size: int | None
    """Size of the whole record in bytes."""
    tags_code: int | None
    stored_at_ms: int | None
    expires_at_ms: int | None
    """Earliest moment at which retention by age and hour removes the message; None if retention by these rules never
    removes it, or if the moment is unknown.
    """
    expires_at_is_earliest: bool
    """Whether the broker still writes to the message's file, so that the moment can only become later."""
    error: str | None
    """Description of what could not be read, and why."""
    now_ms: int
    """Broker's time when it answered."""
    scanned_to: int | None = None
    """Offset of the message, or the first offset that was not searched."""


@dataclass(frozen=True, slots=True)
class OffsetsOfBroker:
    """The committed offsets of all groups on a broker.

    Attributes:
        offsets: Group → topic → queue id → offset.
        reset_epoch: The offsets contain all resets up to this epoch; None if the broker has no epochs.
        reset_epoch_end: The offsets contain no resets after this epoch; None if the broker has no epochs.
    """

    offsets: dict[str, dict[str, dict[int, int]]]
    reset_epoch: int | None = None
    reset_epoch_end: int | None = None


class Backlog:
    """Calls over an engine.

    Every call raises BrokerError, NoAnswerError or BrokerUnavailableError. A call raises NotServedError if a broker
    does not know the request, and InvalidArgumentError for a value that is not valid.
    """

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine
        self._offsets = Offsets(engine)

    async def units(self, queue: MessageQueue, offset: int, *, count: int = UNITS_DEFAULT) -> Units:
        """Return units of a queue from an offset on. The master answers, or a slave while no master is known.

        Args:
            queue: The queue.
            offset: Offset to begin at. If it is before the queue's first offset, the units begin at the first offset.
            count: Largest number of units to return, at most 4,096. Fewer units do not mean that the queue ends.

        Raises:
            NoRouteError: No name server knows the topic. The other errors are those of all calls.
        """
        _check("offset", offset, 0, _OFFSET_MAX)
        _check("count", count, 1, UNITS_MAX)
        address = await self._engine.queue_address(queue, broker_id=0)
        header = UnitsHeader(topic=queue.topic, queue_id=queue.queue_id, offset=offset, max_units=count)
        response = await self._call(address, RequestCode.GANTRY_UNITS, header)
        answer = read_header(UnitsResponseHeader, response, address)
        rows = response.body_bytes
        if len(rows) != (answer.next_offset - answer.first_offset) * UNIT_ROW_BYTES or answer.first_offset < offset:
            raise _unreadable(
                address, f"{len(rows)} bytes are no units from {answer.first_offset} up to {answer.next_offset}"
            )
        return Units(answer.min_offset, answer.max_offset, answer.first_offset, answer.next_offset, rows)

    async def first_unconsumed(
        self, broker: str, queries: Sequence[FirstUnconsumedQuery], *, within_ms: int | None = None
    ) -> list[FirstUnconsumed]:
        """Return the first message for each query, in the order of the queries. The number of queries has no limit.

        If a query can't be answered (no such topic, a damaged record), `error` of its result gives the reason.

        Args:
            broker: The broker's name.
            queries: The queries.
            within_ms: Time after which no further request is sent. A search that has not ended then has an error. None:
                no limit.
        """
        _check_queries(queries)
        address = await self._master(broker)
        until_ms = None if within_ms is None else self._engine.clock.monotonic_ms() + within_ms
        found: list[FirstUnconsumed] = []
        for part in query_parts(queries):
            found += await self._find_part(address, part, until_ms)
        return found

    async def search_part(self, broker: str, queries: Sequence[FirstUnconsumedQuery]) -> list[FirstUnconsumed]:
        """Send one request with some queries, and return its results, in the order of the queries.

        A result without a message and without an error is complete if its `scanned_to` is not before `max_offset`.
        Otherwise the search can be continued at `scanned_to`.

        Args:
            broker: The broker's name.
            queries: One part of `query_parts`.
        """
        _check_queries(queries)
        answer = await self._query_first_unconsumed(await self._master(broker), queries)
        return [_to_head(bean, answer.now_ms) for bean in answer.heads]

    async def committed_offsets(self, broker: str) -> dict[str, dict[str, dict[int, int]]]:
        """Return the committed offsets of all groups: group → topic → queue id → offset."""
        return (await self.offset_table(broker)).offsets

    async def offset_table(self, broker: str) -> OffsetsOfBroker:
        """Return the committed offsets of all groups, and which resets they contain."""
        address = await self._master(broker)
        response = await self._call(address, RequestCode.GET_ALL_CONSUMER_OFFSET)
        epochs = read_header(AllOffsetsResponseHeader, response, address)
        groups: dict[str, dict[str, dict[int, int]]] = {}
        for key, queues in read_body(ConsumerOffsetWrapper.decode, response, address).offset_table.items():
            topic, _, group = key.partition("@")
            if group:
                groups.setdefault(group, {})[topic] = dict(queues)
        return OffsetsOfBroker(groups, epochs.gantry_reset_epoch, epochs.gantry_reset_epoch_end)

    async def resets(self, broker: str, *, after: int, until: int) -> list[MadeReset]:
        """Return the resets of offsets with an epoch above `after`, up to `until`, by epoch.

        A broker keeps the latest reset of each queue for at least an hour.
        """
        address = await self._master(broker)
        found: list[MadeReset] = []
        while after < until:
            response = await self._call(address, RequestCode.GANTRY_RESETS, ResetsHeader(after_epoch=after))
            answer = read_body(MadeResets.decode, response, address)
            found += [reset for reset in answer.resets if after < reset.epoch <= until]
            if not answer.more or not answer.resets or answer.resets[-1].epoch <= after:
                break
            after = answer.resets[-1].epoch
        return found

    async def queue_states(self, topic: str, broker: str) -> list[QueueState]:
        """Return the state of all queues of a topic on a broker. See `queue_states_at`."""
        return await self.queue_states_at(await self._master(broker), topic)

    async def queue_states_at(self, address: str, topic: str, group: str | None = None) -> list[QueueState]:
        """Return the state of all queues of a topic at an address; with a group, also the group's committed offsets.

        Gantry's brokers answer this in one request. For other brokers, the client uses RocketMQ's own requests. Then
        the store times of committed messages are missing. It is also unknown whether a queue can be read and written,
        so both values are true.
        """
        try:
            header = QueueStatesHeader(topic=topic, consumer_group=group)
            response = await self._call(address, RequestCode.GANTRY_QUEUE_STATES, header)
        except NotServedError:
            return await self._foreign_states(address, topic, group)
        return read_body(QueueStates.decode, response, address).queues

    async def _foreign_states(self, address: str, topic: str, group: str | None) -> list[QueueState]:
        response = await self._call(address, RequestCode.GET_TOPIC_STATS_INFO, GetTopicStatsHeader(topic=topic))
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

    async def _find_part(
        self, address: str, queries: Sequence[FirstUnconsumedQuery], until_ms: int | None
    ) -> list[FirstUnconsumed]:
        """Ask until every query is answered, because the broker scans a limited number of units in one request.

        The first query is always asked for. After `until_ms` (monotonic), unfinished searches are given up.
        """
        found: list[FirstUnconsumed | None] = [None] * len(queries)
        waiting = list(enumerate(queries))
        for _ in range(HEAD_ROUNDS_MAX):
            answer = await self._query_first_unconsumed(address, [query for _, query in waiting])
            # The broker searches in the order of the queries until its limit. So those without progress come first.
            stuck: list[tuple[int, FirstUnconsumedQuery]] = []
            again: list[tuple[int, FirstUnconsumedQuery]] = []
            for (index, query), bean in zip(waiting, answer.heads, strict=True):
                found[index] = _to_head(bean, answer.now_ms)
                if (resumed := _unfinished(bean)) is not None:
                    (stuck if resumed <= query.offset else again).append((index, replace(query, offset=resumed)))
            waiting = stuck + again
            if not waiting or (until_ms is not None and self._engine.clock.monotonic_ms() >= until_ms):
                break
        for index, query in waiting:
            last, begun = found[index], queries[index].offset
            assert last is not None, "it was answered at least once"
            found[index] = replace(
                last,
                error=f"no message that the filter lets through from offset {begun} up to {query.offset}; given up",
            )
        return [one for one in found if one is not None]

    async def _query_first_unconsumed(
        self, address: str, queries: Sequence[FirstUnconsumedQuery]
    ) -> FirstUnconsumedResults:
        beans = [
            FirstUnconsumedQueryBean(
                topic=query.topic,
                queue_id=query.queue_id,
                offset=query.offset,
                tags_codes=None if query.tags_codes is None else list(query.tags_codes),
                sql=query.sql,
            )
            for query in queries
        ]
        response = await self._call(
            address, RequestCode.GANTRY_FIRST_UNCONSUMED, body=FirstUnconsumedQueries(queries=beans).encode()
        )
        answer = read_body(FirstUnconsumedResults.decode, response, address)
        if len(answer.heads) != len(queries):
            raise _unreadable(address, f"{len(answer.heads)} results for {len(queries)} queries")
        if not answer.applies_sql:
            # The broker ignored the expression, so its result is the first message of all.
            reason = f"the broker at {address} does not apply SQL filters to request {_FIRST_UNCONSUMED:d}"
            answer.heads = [
                head if query.sql is None else FirstUnconsumedResult(error=reason)
                for query, head in zip(queries, answer.heads, strict=True)
            ]
        return answer

    async def _call(
        self, address: str, code: int, header: EncodableHeader | None = None, *, body: bytes | None = None
    ) -> RemotingCommand:
        try:
            return await self._engine.call(address, code, header, body=body)
        except BrokerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise NotServedError(code, address) from None
            raise

    async def _master(self, broker: str) -> str:
        """Return the address of a set's master, from the routes in use or else from the name servers."""
        try:
            return self._engine.master_address(broker)
        except BrokerUnavailableError:
            registered = (await self._engine.cluster_info()).broker_addr_table.get(broker)
        address = None if registered is None else registered.master_address
        if address is None:
            raise BrokerUnavailableError(broker)
        return address


def query_parts(queries: Iterable[FirstUnconsumedQuery]) -> Iterator[list[FirstUnconsumedQuery]]:
    """Split queries into parts that fit into one request each."""
    part: list[FirstUnconsumedQuery] = []
    codes = size_bytes = 0
    for query in queries:
        count, more_bytes = len(query.tags_codes or ()), len((query.sql or "").encode())
        is_full = codes + count > TAGS_CODES_MAX or size_bytes + more_bytes > SQL_BYTES_MAX
        if part and (len(part) == HEAD_QUERIES_MAX or is_full):
            yield part
            part, codes, size_bytes = [], 0, 0
        part.append(query)
        codes += count
        size_bytes += more_bytes
    if part:
        yield part


def _unfinished(bean: FirstUnconsumedResult) -> int | None:
    """Return the offset at which to ask again, or None if the answer is complete."""
    if bean.error is not None or bean.queue_offset is not None or bean.scanned_to is None or bean.max_offset is None:
        return None
    return bean.scanned_to if bean.scanned_to < bean.max_offset else None


def _to_head(bean: FirstUnconsumedResult, now_ms: int) -> FirstUnconsumed:
    return FirstUnconsumed(
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
        scanned_to=bean.scanned_to,
    )


def _check_queries(queries: Sequence[FirstUnconsumedQuery]) -> None:
    for query in queries:
        _check("offset", query.offset, 0, _OFFSET_MAX)
        _check("queue_id", query.queue_id, 0, 2**31 - 1)
        if query.tags_codes is not None:
            _check("tags_codes", len(query.tags_codes), 0, TAGS_CODES_MAX)
        if query.sql is not None:
            _check("sql", len(query.sql.encode()), 0, SQL_BYTES_MAX)


def _check(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise InvalidArgumentError(field, value, f"is not within {least} and {most}")


def _unreadable(address: str, reason: str) -> BrokerError:
    return BrokerError(ResponseCode.SYSTEM_ERROR, f"its answer can't be read: {reason}", address)
