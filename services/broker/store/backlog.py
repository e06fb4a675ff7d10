"""Reads the backlog of a group: many units with their store times, and the first message that the group waits for.

Every call reads at most as many units as the caller says, so a caller with an event loop can do other work in between.

The store times of many units come from the records' heads: size, magic, queue and both offsets must agree with the
unit. This costs 0.5 µs. The record's checksum would cost ten times as much, and touch every page of the log. The check
does not notice a flipped bit in the time itself. The one message that a group waits for is checked completely.
"""

import struct
from collections.abc import Sequence
from typing import Any, Final

from gantry.model.errors import CorruptRecordError, TornRecordError
from gantry.model.record import (
    RECORD_BYTES_MIN,
    RECORD_MAGIC_V1,
    RECORD_MAGIC_V2,
    RecordHead,
    find_properties,
    parse_head,
)
from gantry.model.sysflag import BORN_HOST_V6
from gantry.model.unitrow import NO_MESSAGE_ROW, UNIT_ROW, UNIT_ROW_BYTES, UNKNOWN_STORED_AT
from gantry.runtime.clock import Clock
from gantry.storeformat.layout import FILLER_SIZE, UNIT, UNIT_SIZE_BYTES, ConsumeQueueUnit
from services.broker.store.files.pages import MissingRange, NotInMemoryError
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.log.logreader import LogReader
from services.broker.store.propertyfilter import (
    FILTER_BYTES_MAX,
    FILTER_WORK_BYTES,
    MISSING_RECORDS_MAX,
    PropertyFilter,
)
from services.broker.store.queues.consumequeue import ConsumeQueue, is_message_unit
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore
from services.broker.store.results import FilteredSearch, FirstMessage, UnitRows, Units

# Size, magic, queue id, queue offset, physical offset, sysFlag and stored at, at their positions in a record whose born
# host has 4 bytes (message record); with 16 bytes the time stands 12 bytes further on.
_HEAD = struct.Struct(">iI4xi4xqqi16xq")
_STORED_AT = struct.Struct(">q")
_STORED_AT_AT_V6 = 68
assert max(_HEAD.size, _STORED_AT_AT_V6 + _STORED_AT.size) <= RECORD_BYTES_MIN
_MAGICS = (RECORD_MAGIC_V1, RECORD_MAGIC_V2)

# The first unit is usually the right one; copying a thousand would touch pages for nothing.
_UNITS_AT_FIRST = 64
_UNITS_AT_ONCE = 1_024
_MESSAGE_WORK: Final = 8_192
"""The work of a message in a search with a property filter, besides the evaluation: its record is looked up."""


class BacklogReader:
    """Reads messages that are not consumed yet.

    Concurrency: the store's thread only; it changes nothing.
    """

    def __init__(self, commit_log: CommitLog, log_reader: LogReader, queues: ConsumeQueueStore, clock: Clock) -> None:
        self._clock = clock
        self._log = commit_log
        self._log_reader = log_reader
        self._queues = queues

    def units(self, topic: str, queue_id: int, offset: int, count: int) -> Units:
        """Return up to `count` units from an offset on; all of them lie in one file.

        There are none before the queue's first one, at its end and after it. A queue that does not exist begins and
        ends at 0.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return Units(0, 0, b"")
        low, high = queue.min_offset, queue.max_offset
        return Units(low, high, queue.units(offset, count) if low <= offset < high else b"")

    def unit_rows(self, topic: str, queue_id: int, offset: int, count: int) -> UnitRows:
        """Return up to `count` units from an offset on as rows; all of them lie in one file.

        An offset before the queue's first one means the first one. At the queue's end and after it, there are no units.
        A queue that does not exist begins and ends at 0.
        """
        queue = self._queues.find(topic, queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        first = max(offset, low)
        if queue is None or first >= high:
            return UnitRows(low, high, first, first, b"")
        rows = self._rows(queue, first, queue.units(first, count))
        return UnitRows(low, high, first, first + len(rows) // UNIT_ROW_BYTES, rows)

    def _rows(self, queue: ConsumeQueue, first: int, units: bytes) -> bytes:
        log_reader, log_end, queue_id = self._log_reader, self._log.confirm_offset, queue.queue_id
        base = low = 0
        last = -1  # The last position at which a whole head may be read.
        memory: Any = b""
        rows: list[bytes] = []
        append, pack, read = rows.append, UNIT_ROW.pack, _HEAD.unpack_from
        for index, (at, size, tags_code) in enumerate(UNIT.iter_unpack(units), first):
            if not 0 < size < FILLER_SIZE or at < 0:
                append(NO_MESSAGE_ROW)
                continue
            is_within = size >= RECORD_BYTES_MIN and at + size <= log_end
            if is_within and not low <= at <= last:
                try:
                    window = log_reader.window(at, RECORD_BYTES_MIN)
                except NotInMemoryError as error:
                    log_reader.pages.note(error)  # Continue, so that all heads of these units are read at once.
                    continue
                if window is not None:
                    memory, base, low, high = window
                    last = high - RECORD_BYTES_MIN
            stored_at_ms = UNKNOWN_STORED_AT
            if is_within and low <= at <= last:
                head_size, magic, head_queue_id, queue_offset, physical_offset, sys_flag, found_ms = read(
                    memory, at - base
                )
                if (
                    physical_offset == at
                    and queue_offset == index
                    and head_size == size
                    and head_queue_id == queue_id
                    and magic in _MAGICS
                ):
                    if sys_flag & BORN_HOST_V6:
                        (found_ms,) = _STORED_AT.unpack_from(memory, at - base + _STORED_AT_AT_V6)
                    if found_ms >= 0:
                        stored_at_ms = found_ms
            append(pack(at, size, tags_code, stored_at_ms))
        return b"".join(rows)

    def heads(self, places: Sequence[tuple[int, int]]) -> list[RecordHead | None]:
        """Return the heads of the records with these starts and sizes; None for a record that is missing or not valid.

        The checksums are not checked.

        Raises:
            NotInMemoryError: At the end of a guarded attempt, with all missing ranges.
        """
        log_reader, log_end = self._log_reader, self._log.confirm_offset
        heads: list[RecordHead | None] = []
        for at, size in places:
            heads.append(None)
            if at < 0 or not RECORD_BYTES_MIN <= size < FILLER_SIZE or at + size > log_end:
                continue
            try:
                window = log_reader.window(at, size)
            except NotInMemoryError as error:
                log_reader.pages.note(error)
                continue
            if window is None:
                continue
            memory, origin, _, high = window
            try:
                head = parse_head(memory, at - origin, limit=min(at + size, high) - origin)
            except (CorruptRecordError, TornRecordError):
                continue
            if head.physical_offset == at and head.size_bytes == size:
                heads[-1] = head
        return heads

    def find_message(
        self, topic: str, queue_id: int, offset: int, tags_codes: frozenset[int] | None, limit: int
    ) -> FirstMessage:
        """Return the first unit at or after an offset that stands for a message with one of these tags codes.

        Args:
            topic: The queue's topic.
            queue_id: The queue's id within the topic.
            offset: The first queue offset to check.
            tags_codes: The tags codes; None for any.
            limit: The limit for checked units.
        """
        queue = self._queues.find(topic, queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        index = max(offset, low)
        if queue is None:
            return FirstMessage(low, high, index, None)
        end = min(index + limit, high)
        count = _UNITS_AT_FIRST
        while index < end:
            units = queue.units(index, min(count, end - index))
            for at, (physical_offset, size, tags_code) in enumerate(UNIT.iter_unpack(units), index):
                if (tags_codes is None or tags_code in tags_codes) and is_message_unit(physical_offset, size):
                    return FirstMessage(low, high, at, ConsumeQueueUnit(physical_offset, size, tags_code))
            index += len(units) // UNIT_SIZE_BYTES
            count = _UNITS_AT_ONCE
        return FirstMessage(low, high, index, None)

    def find_accepted(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        property_filter: PropertyFilter,
        *,
        units_max: int,
        work_max: int,
        until_ms: int,
    ) -> FilteredSearch:
        """Search for the first message at or after an offset that a property filter accepts.

        A record that can't be read ends the search: it is unknown whether the filter accepts its message.

        Args:
            topic: The queue's topic.
            queue_id: The queue's id within the topic.
            offset: The first queue offset to check.
            property_filter: The filter.
            units_max: The limit for checked units; at 0, nothing is checked.
            work_max: The search ends with the message that reaches this limit for the work.
            until_ms: The search ends with the message that is decided at this monotonic time or later.

        Raises:
            NotInMemoryError: At the end of a guarded attempt, with all missing ranges.
        """
        queue = self._queues.find(topic, queue_id)
        low, high = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        index = max(offset, low)
        if queue is None or index >= high or units_max <= 0:
            return FilteredSearch(FirstMessage(low, high, index, None), 0, 0)
        log_reader, log_end = self._log_reader, self._log.confirm_offset
        work = size_bytes = base = begin = last = 0
        memory: Any = b""
        missing: list[MissingRange] = []
        missing_count = 0
        unit: ConsumeQueueUnit | None = None
        for at, size, tags_code in UNIT.iter_unpack(queue.units(index, min(units_max, high - index))):
            if work >= work_max or size_bytes >= FILTER_BYTES_MAX or missing_count >= MISSING_RECORDS_MAX:
                break
            work += _MESSAGE_WORK
            if is_message_unit(at, size):
                unit = ConsumeQueueUnit(at, size, tags_code)
                size_bytes += size
                end = at + size
                if (at < begin or end > last) and size >= RECORD_BYTES_MIN and end <= log_end:
                    try:
                        window = log_reader.window(at, size)
                    except NotInMemoryError as error:
                        missing += error.missing  # Continue, so that many records are read at once.
                        missing_count += 1
                        index += 1
                        continue
                    if window is not None:
                        memory, base, begin, last = window
                properties = find_properties(memory, at - base, end - base) if begin <= at and end <= last else None
                if properties is None:
                    break
                work += property_filter.cost * (FILTER_WORK_BYTES + len(properties))
                if property_filter.matches(properties):
                    break
                unit = None
            index += 1
            if self._clock.monotonic_ms() >= until_ms:
                break
        if missing:
            raise NotInMemoryError(missing)
        return FilteredSearch(FirstMessage(low, high, index, unit), work, size_bytes)

    def stored_at(self, topic: str, queue_id: int, offset: int, unit: ConsumeQueueUnit) -> int | None:
        """Return the store time of a unit's record; None unless the record is valid and belongs to the unit."""
        head = self._log_reader.valid_head(unit.physical_offset, unit.size_bytes)
        if head is None:
            return None
        promised = (unit.size_bytes, queue_id, offset, topic.encode())
        return (
            head.stored_at_ms if (head.size_bytes, head.queue_id, head.queue_offset, head.topic) == promised else None
        )
