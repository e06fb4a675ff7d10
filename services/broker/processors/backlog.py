"""What reports ask: units with their store times (900001), and the first messages that groups wait for (900002).

A report asks for millions of units while others send and pull, so what it asks for is done in slices of at most half a
millisecond, with a pause whenever so much has been done, for whoever it was. The pause is time asleep and not a turn of the loop:
a thread that waits for the interpreter, as the one that flushes does, gets it from a loop that is always busy only
every 5 ms, and every send would wait for that.
"""

import asyncio
from collections.abc import Iterator

from gantry.remoting.aio.channel import Channel
from gantry.remoting.bodies.backlog import (
    HEAD_QUERIES_MAX,
    TAGS_CODES_MAX,
    HeadQueries,
    HeadQuery,
    QueueHead,
    QueueHeads,
)
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.backlog import UNITS_DEFAULT, UNITS_MAX, UnitsHeader, UnitsResponseHeader
from gantry.runtime.clock import Clock
from services.broker.identity import BrokerIdentity
from services.broker.processors.refusal import RefusalError
from services.broker.registry.topics import TopicTable
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import FirstMessage, UnitRows

SCANNED_UNITS_MAX = 16_384
"""A request for heads looks at so many units over all its queries."""
BODY_BYTES_MAX = 1 << 20

# About 0.5 ms each: rows of units take 0.5 µs, looking for tags codes 0.1 µs a unit.
_SLICE_UNITS = 1_024
_SLICE_SCANNED = 4_096
# The shortest sleep of the event loop.
_PAUSE_S = 0.001
# What a head costs in units looked at: its record is proved, which takes the longer the larger it is.
_HEAD_COST = 100
_BYTES_A_UNIT = 512
_INT64_MAX = 2**63 - 1


class BacklogProcessor:
    """Answers what reports ask about messages that are not consumed."""

    def __init__(self, *, topics: TopicTable, store: MessageStore, identity: BrokerIdentity, clock: Clock) -> None:
        self._topics = topics
        self._store = store
        self._identity = identity
        self._clock = clock
        self._turns = asyncio.Lock()
        self._rests_until_s = 0.0
        # Since the last pause, in whole slices.
        self._done = 0.0

    async def units(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900001: units of a queue as rows with their store times (docs/formats/remoting.md)."""
        header = UnitsHeader.from_ext(request.ext_fields)
        count = UNITS_DEFAULT if header.max_units is None else header.max_units
        _check("queueId", header.queue_id, 0, _INT64_MAX)
        _check("offset", header.offset, 0, _INT64_MAX)
        _check("maxUnits", count, 1, UNITS_MAX)
        parts: list[UnitRows] = []
        await self._in_turns(self._read(header, count, parts))
        answer = UnitsResponseHeader(
            min_offset=parts[-1].min_offset,
            max_offset=parts[-1].max_offset,
            first_offset=parts[0].first_offset,
            next_offset=parts[-1].next_offset,
        )
        rows = b"".join(part.rows for part in parts)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, answer, body=rows)

    async def heads(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900002: the first message at an offset or later that a filter lets through, of many queues."""
        _check("body bytes", len(request.body_bytes), 0, BODY_BYTES_MAX)
        queries = HeadQueries.decode(request.body_bytes).queries
        _check("queries", len(queries), 0, HEAD_QUERIES_MAX)
        for number, query in enumerate(queries):
            _check(f"queries[{number}].queueId", query.queue_id, 0, _INT64_MAX)
            _check(f"queries[{number}].offset", query.offset, 0, _INT64_MAX)
        _check("tagsCodes", sum(len(query.tags_codes or ()) for query in queries), 0, TAGS_CODES_MAX)
        heads: list[QueueHead] = []
        await self._in_turns(self._look(queries, heads))
        body = QueueHeads(broker_name=self._identity.name, heads=heads, now_ms=self._clock.now_ms()).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    async def _in_turns(self, slices: Iterator[float]) -> None:
        """Do work slice by slice, each of which says how much of a whole one it was, with pauses."""
        loop = asyncio.get_running_loop()
        while True:
            async with self._turns:
                rest_s = self._rests_until_s - loop.time()
                if rest_s > 0:
                    await asyncio.sleep(rest_s)
                share = next(slices, None)
                if share is None:
                    return
                self._done += share
                if self._done >= 1:
                    self._done = 0.0
                    self._rests_until_s = loop.time() + _PAUSE_S

    def _read(self, header: UnitsHeader, count: int, parts: list[UnitRows]) -> Iterator[float]:
        topic, queue_id, offset, end = header.topic, header.queue_id, header.offset, None
        while True:
            # Each time anew: while the loop turned, the topic may have been deleted.
            self._require_queue(topic, queue_id)
            part = self._store.unit_rows(topic, queue_id, offset, min(count, _SLICE_UNITS))
            if parts and part.first_offset != offset:
                return  # Removed meanwhile: what there is so far follows each other.
            parts.append(part)
            count -= part.next_offset - part.first_offset
            offset = part.next_offset
            # The end as it was at first: an answer need not run after those who send.
            end = part.max_offset if end is None else end
            yield (part.next_offset - part.first_offset) / _SLICE_UNITS
            if count <= 0 or offset >= end:
                return

    def _look(self, queries: list[HeadQuery], heads: list[QueueHead]) -> Iterator[float]:
        left, cost = SCANNED_UNITS_MAX, 0
        for query in queries:
            codes = None if query.tags_codes is None else frozenset(query.tags_codes)
            offset = query.offset
            while True:
                try:
                    self._require_queue(query.topic, query.queue_id)
                except RefusalError as error:
                    heads.append(QueueHead(error=error.remark))
                    break
                limit = min(left, _SLICE_SCANNED - cost)
                found = self._store.find_message(query.topic, query.queue_id, offset, codes, limit)
                scanned = found.scanned_to - max(offset, found.min_offset) + (found.unit is not None)
                left -= scanned
                cost += scanned
                if found.unit is not None or found.scanned_to >= found.max_offset or left <= 0:
                    heads.append(self._head(query, found))
                    break
                offset = found.scanned_to
                yield cost / _SLICE_SCANNED
                cost = 0
            cost += _HEAD_COST + (heads[-1].size or 0) // _BYTES_A_UNIT
            if cost >= _SLICE_SCANNED:
                yield cost / _SLICE_SCANNED
                cost = 0
        yield cost / _SLICE_SCANNED

    def _head(self, query: HeadQuery, found: FirstMessage) -> QueueHead:
        head = QueueHead(min_offset=found.min_offset, max_offset=found.max_offset, scanned_to=found.scanned_to)
        unit = found.unit
        if unit is None:
            return head
        head.queue_offset = found.scanned_to
        head.physical_offset, head.size, head.tags_code = unit
        head.stored_at = self._store.proven_stored_at(query.topic, query.queue_id, found.scanned_to, unit)
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
        """Raise RefusalError unless the topic is known and has the queue, or messages in it from when it had."""
        config = self._topics.find(topic)
        if config is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        count = max(config.read_queue_nums, config.write_queue_nums)
        if queue_id >= count and self._store.max_offset(topic, queue_id) == 0:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"queueId={queue_id}: topic {topic} has {count} queues")


def _check(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise RefusalError(ResponseCode.INVALID_PARAMETER, f"{field}={value}: is not within {least} and {most}")
