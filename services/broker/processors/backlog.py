"""Requests of reports: units with their store times (900001), and the first unconsumed messages of groups (900002).

A report asks for millions of units while other clients send and pull. So the work runs in slices of at most half a
millisecond, which take turns with all other long work (turns.py). A slice that needs bytes from the disk is repeated
when they have been read. The results of the earlier slices stay.
"""

from collections.abc import Mapping

from gantry.model.errors import InvalidExpressionError
from gantry.model.group import sql_subscription
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.bodies.backlog import (
    HEAD_QUERIES_MAX,
    TAGS_CODES_MAX,
    FirstUnconsumedQueries,
    FirstUnconsumedQuery,
    FirstUnconsumedResult,
    FirstUnconsumedResults,
)
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.backlog import UNITS_DEFAULT, UNITS_MAX, UnitsHeader, UnitsResponseHeader
from gantry.runtime.clock import Clock
from services.broker.assembly import Broker
from services.broker.coldreader import ColdReader
from services.broker.filter.subscriptions import SubscriptionFilters
from services.broker.identity import BrokerIdentity
from services.broker.processors.reading import read_cold
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.registry.topics import TopicTable
from services.broker.settings import LiveSettings
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import FirstMessage, UnitRows
from services.broker.turns import Turns

SCANNED_UNITS_MAX = 16_384
"""Number of units that one request for heads may examine, over all its queries."""
FILTERED_BYTES_MAX = 64 << 20
"""Size of the records to which one request for heads may apply SQL filters, over all its queries."""
FILTER_WORK_MAX = 256 << 20
"""Work of the SQL filters of one request for heads, about 0.1 s (ADR 0052)."""
SLICE_WORK = 4 << 20
"""Work of the SQL filters in one slice, about 1 ms."""
SLICE_MS_MAX = 5
"""The time after which a slice ends. Some expressions and values take ten times as long as their work says, and a busy
machine takes longer for everything."""
BODY_BYTES_MAX = 1 << 20

# About 0.5 ms each: a row of units takes 0.5 µs, and a comparison of tags codes takes 0.1 µs a unit.
_SLICE_UNITS = 1_024
_SLICE_SCANNED = 4_096
# An expression that is not cached takes up to 10 ms.
_PARSE_WORK = 32 << 20
# The cost of a head in examined units. The broker verifies the record of the head, which takes longer for a larger
# record.
_HEAD_COST = 100
_BYTES_A_UNIT = 512
_INT64_MAX = 2**63 - 1


class _HeadSearch:
    """The progress of a request for heads.

    Attributes:
        heads: Results of the finished queries.
        offset: Queue offset at which the next query continues; None if it has not begun.
        left: Number of units that may still be examined.
        bytes_left: Size of the records to which SQL filters may still be applied.
        work_left: Work that SQL filters may still do.
        until_ms: Monotonic time at which the present slice ends.
    """

    __slots__ = ("bytes_left", "heads", "left", "offset", "queries", "until_ms", "work_left")

    def __init__(self, queries: list[FirstUnconsumedQuery]) -> None:
        self.queries = queries
        self.heads: list[FirstUnconsumedResult] = []
        self.offset: int | None = None
        self.left = SCANNED_UNITS_MAX
        self.bytes_left = FILTERED_BYTES_MAX
        self.work_left = FILTER_WORK_MAX
        self.until_ms = 0

    @property
    def may_filter(self) -> bool:
        """Whether SQL filters may still be applied."""
        return min(self.left, self.bytes_left, self.work_left) > 0

    def add(self, head: FirstUnconsumedResult) -> None:
        """Finish a query with its result."""
        self.heads.append(head)
        self.offset = None


class BacklogProcessor:
    """Answers requests of reports about messages that are not consumed yet."""

    def __init__(
        self,
        *,
        topics: TopicTable,
        store: MessageStore,
        identity: BrokerIdentity,
        clock: Clock,
        cold: ColdReader,
        turns: Turns,
        filters: SubscriptionFilters,
        live_settings: LiveSettings,
    ) -> None:
        self._filters = filters
        self._live_settings = live_settings
        self._topics = topics
        self._store = store
        self._identity = identity
        self._clock = clock
        self._cold = cold
        self._turns = turns

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.GANTRY_UNITS: self.units,
                code.GANTRY_FIRST_UNCONSUMED: self.heads,
            }
        )

    async def units(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900001: return units of a queue as rows with their store times (docs/formats/remoting.md)."""
        header = UnitsHeader.from_ext(request.ext_fields)
        count = UNITS_DEFAULT if header.max_units is None else header.max_units
        _check("queueId", header.queue_id, 0, _INT64_MAX)
        _check("offset", header.offset, 0, _INT64_MAX)
        _check("maxUnits", count, 1, UNITS_MAX)
        parts: list[UnitRows] = []

        def read() -> UnitRows | None:
            return self._next_units(header, count, parts)

        # An attempt with missing bytes may return fewer units than the queue has, so only a complete attempt adds a
        # part.
        while (part := await read_cold(self._cold, channel, read, turns=self._turns)) is not None:
            parts.append(part)
        answer = UnitsResponseHeader(
            min_offset=parts[-1].min_offset,
            max_offset=parts[-1].max_offset,
            first_offset=parts[0].first_offset,
            next_offset=parts[-1].next_offset,
        )
        rows = b"".join(part.rows for part in parts)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, answer, body=rows)

    async def heads(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900002: return the first message at or after an offset that passes a filter, for each of many queues."""
        _check("body bytes", len(request.body_bytes), 0, BODY_BYTES_MAX)
        queries = FirstUnconsumedQueries.decode(request.body_bytes).queries
        _check("queries", len(queries), 0, HEAD_QUERIES_MAX)
        for number, query in enumerate(queries):
            _check(f"queries[{number}].queueId", query.queue_id, 0, _INT64_MAX)
            _check(f"queries[{number}].offset", query.offset, 0, _INT64_MAX)
            if query.sql is not None and query.tags_codes is not None:
                raise RefusalError(
                    ResponseCode.INVALID_PARAMETER, f"queries[{number}]: it has both tagsCodes and sql; one is allowed"
                )
        _check("tagsCodes", sum(len(query.tags_codes or ()) for query in queries), 0, TAGS_CODES_MAX)
        search = _HeadSearch(queries)
        while not await read_cold(self._cold, channel, lambda: self._search_slice(search), turns=self._turns):
            pass
        body = FirstUnconsumedResults(
            applies_sql=True, broker_name=self._identity.name, heads=search.heads, now_ms=self._clock.now_ms()
        ).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    def _next_units(self, header: UnitsHeader, count: int, parts: list[UnitRows]) -> UnitRows | None:
        """Return the units of the next slice, or None if the reply is complete. Change nothing."""
        topic, queue_id = header.topic, header.queue_id
        # Check again in every slice: the topic may have been deleted between two slices.
        self._require_queue(topic, queue_id)
        offset, left = header.offset, count
        if parts:
            first, last = parts[0], parts[-1]
            offset, left = last.next_offset, count - (last.next_offset - first.first_offset)
            # The reply ends at the max offset of the first slice: it does not follow the producers.
            if left <= 0 or offset >= first.max_offset:
                return None
        part = self._store.unit_rows(topic, queue_id, offset, min(left, _SLICE_UNITS))
        self._turns.spend((part.next_offset - part.first_offset) / _SLICE_UNITS)
        if parts and part.first_offset != offset:
            return None  # Units were removed meanwhile: the reply ends here, so that its rows have no gap.
        return part

    def _search_slice(self, search: _HeadSearch) -> bool:
        """Process one slice. Return whether it was the last one."""
        cost, began_ms = 0, self._clock.monotonic_ms()
        search.until_ms = began_ms + SLICE_MS_MAX
        try:
            while len(search.heads) < len(search.queries) and cost < _SLICE_SCANNED:
                cost += self._examine(search, search.queries[len(search.heads)], _SLICE_SCANNED - cost)
                if self._clock.monotonic_ms() >= search.until_ms:
                    cost = max(cost, _SLICE_SCANNED)
        finally:
            self._turns.spend(cost / _SLICE_SCANNED)
        return len(search.heads) == len(search.queries)

    def _examine(self, search: _HeadSearch, query: FirstUnconsumedQuery, limit: int) -> int:
        """Examine up to `limit` units of a query. Return the cost in units."""
        try:
            self._require_queue(query.topic, query.queue_id)
        except RefusalError as error:
            search.add(FirstUnconsumedResult(error=error.remark))
            return _HEAD_COST
        if query.sql is not None:
            return self._examine_sql(search, query, query.sql, limit)
        codes = None if query.tags_codes is None else frozenset(query.tags_codes)
        offset = query.offset if search.offset is None else search.offset
        found = self._store.find_message(query.topic, query.queue_id, offset, codes, min(search.left, limit))
        scanned = found.scanned_to - max(offset, found.min_offset) + (found.unit is not None)
        if found.unit is None and found.scanned_to < found.max_offset and search.left > scanned:
            search.offset = found.scanned_to
            cost = scanned
        else:
            head = self._head(query, found)
            search.add(head)
            cost = scanned + _HEAD_COST + (head.size or 0) // _BYTES_A_UNIT
        search.left -= scanned
        return cost

    def _examine_sql(self, search: _HeadSearch, query: FirstUnconsumedQuery, sql: str, limit: int) -> int:
        """Apply an SQL filter to some messages of a query. Return the cost in units."""
        if not self._live_settings.current.enable_property_filter:
            search.add(
                FirstUnconsumedResult(error="sql: the broker applies no SQL filters (enablePropertyFilter=false)")
            )
            return _HEAD_COST
        offset = query.offset if search.offset is None else search.offset
        if not search.may_filter:
            search.add(self._head(query, self._store.find_message(query.topic, query.queue_id, offset, None, 0)))
            return _HEAD_COST
        subscription = sql_subscription(query.topic, sql)
        is_ready = self._filters.is_ready(subscription)
        try:
            wanted = self._filters.filter_of(subscription).sql
        except InvalidExpressionError as error:
            search.add(FirstUnconsumedResult(error=str(error)))
            return _HEAD_COST if is_ready else _SLICE_SCANNED
        if wanted is None or not is_ready:
            search.work_left -= _PARSE_WORK
            return _SLICE_SCANNED
        found, work, size_bytes = self._store.find_accepted(
            query.topic,
            query.queue_id,
            offset,
            wanted,
            units_max=search.left,
            work_max=min(search.work_left, SLICE_WORK * limit // _SLICE_SCANNED),
            until_ms=search.until_ms,
        )
        # Both may need bytes that are not in memory. Then the slice is repeated, so nothing is changed before.
        head = self._head(query, found)
        search.left -= found.scanned_to - max(offset, found.min_offset) + (found.unit is not None)
        search.bytes_left -= size_bytes
        search.work_left -= work
        cost = work * _SLICE_SCANNED // SLICE_WORK + 1
        if found.unit is None and found.scanned_to < found.max_offset and search.may_filter:
            search.offset = found.scanned_to
            return cost
        search.add(head)
        return cost + _HEAD_COST + (head.size or 0) // _BYTES_A_UNIT

    def _head(self, query: FirstUnconsumedQuery, found: FirstMessage) -> FirstUnconsumedResult:
        head = FirstUnconsumedResult(
            min_offset=found.min_offset, max_offset=found.max_offset, scanned_to=found.scanned_to
        )
        unit = found.unit
        if unit is None:
            return head
        head.queue_offset = found.scanned_to
        head.physical_offset, head.size, head.tags_code = unit
        head.stored_at = self._store.verified_stored_at(query.topic, query.queue_id, found.scanned_to, unit)
        if head.stored_at is None:
            head.error = (
                f"offset {found.scanned_to}: the record of {unit.size_bytes} bytes at {unit.physical_offset} of the "
                "CommitLog is removed or damaged"
            )
        expiry = self._store.expires_at(unit.physical_offset)
        if expiry is not None:
            head.expires_at, head.expires_at_is_earliest = expiry
        return head

    def _require_queue(self, topic: str, queue_id: int) -> None:
        """Raise RefusalError if the topic is unknown or has no such queue.

        A queue that the topic had before it was made smaller counts as long as it holds messages.
        """
        config = self._topics.find(topic)
        if config is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        count = max(config.read_queue_nums, config.write_queue_nums)
        if queue_id >= count and self._store.max_offset(topic, queue_id) == 0:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"queueId={queue_id}: topic {topic} has {count} queues")


def _check(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise RefusalError(ResponseCode.INVALID_PARAMETER, f"{field}={value}: is not within {least} and {most}")


def build(broker: Broker) -> BacklogProcessor:
    """Build the processor from the broker's parts."""
    core = broker.core
    return BacklogProcessor(
        topics=broker.tables.topics,
        store=broker.store,
        identity=broker.identity,
        clock=broker.clock,
        cold=core.cold,
        turns=core.turns,
        filters=core.filters,
        live_settings=core.live_settings,
    )
