"""Reading: messages of a queue, offsets by time, messages by key.

The reader returns copies, and it checks the copy. The result of a read therefore keeps no file mapped, and the bytes
that are sent are the bytes that were checked.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gantry.model.javahash import index_key_hash
from gantry.model.record import CRC_MASK, CRC_PROPERTY_BYTES, crc32, find_properties
from gantry.runtime.clock import Clock
from gantry.storeformat.layout import UNIT, UNIT_SIZE_BYTES
from gantry.storeformat.tagcodes import TagCodes
from services.broker.store.files.pages import NotInMemoryError
from services.broker.store.index.indexservice import IndexService
from services.broker.store.index.keysearch import ENTRIES_MAX, KeySearch
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.log.logreader import RECORD_READ_MAX, LogReader
from services.broker.store.propertyfilter import (
    FILTER_BYTES_MAX,
    FILTER_TIME_MAX_MS,
    FILTER_WORK_BYTES,
    FILTER_WORK_MAX,
    MISSING_RECORDS_MAX,
    PropertyFilter,
)
from services.broker.store.queues.consumequeue import ConsumeQueue, is_message_unit
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore
from services.broker.store.recordcheck import (
    CRC_PROPERTY_STOP,
    CRC_PROPERTY_TURNED,
    IDENTITY,
    IDENTITY_BYTES,
    is_valid_record,
)
from services.broker.store.results import Boundary, GetResult, GetStatus, QueryResult
from services.broker.store.settings import StoreSettings

PULL_BYTES_MIN = 100
PULL_BYTES_MAX = 128 << 20

UnitFilter = Callable[[int], bool]


class Reader:
    """The reading side of a store.

    Concurrency: the store's thread only; it changes nothing but its counter.

    Attributes:
        damaged_reads: The number of invalid records that reads have met.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        log_reader: LogReader,
        queues: ConsumeQueueStore,
        index: IndexService | None,
        settings: StoreSettings,
        *,
        clock: Clock,
        memory_bytes: int,
    ) -> None:
        self._clock = clock
        self._log = commit_log
        self._log_reader = log_reader
        self._queues = queues
        self._index = index
        self._memory_bytes = memory_bytes * settings.access_message_in_memory_max_ratio // 100
        self._bytes_in_memory = settings.max_transfer_bytes_on_message_in_memory
        self._count_in_memory = settings.max_transfer_count_on_message_in_memory
        self._bytes_on_disk = settings.max_transfer_bytes_on_message_in_disk
        self._count_on_disk = settings.max_transfer_count_on_message_in_disk
        self._filter_units_max = settings.max_filter_message_size // UNIT_SIZE_BYTES
        self._query_max = settings.max_msgs_num_batch
        self.damaged_reads = 0

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_messages: int,
        *,
        max_bytes: int = PULL_BYTES_MAX,
        unit_filter: UnitFilter | None = None,
        property_filter: PropertyFilter | None = None,
        wide_messages: int = 0,
    ) -> GetResult:
        """Return messages of a queue from an offset on; the first one that fits is always returned.

        Args:
            topic: The queue's topic.
            queue_id: The queue's id within the topic.
            offset: The first queue offset to read.
            max_messages: The limit for messages; the settings' limits by count also apply.
            max_bytes: The limit for the size of all records, within 100 bytes and 128 MiB; the settings' limits also
                apply.
            unit_filter: Takes a tags code; returns whether the message may match. One of type TagCodes is fast.
            property_filter: Decides by the properties of the message.
            wide_messages: The number of messages that may be returned even if the settings' limits by count are lower.

        Returns:
            The messages, and always the offset at which to continue: it skips units without a message and filtered
            messages.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0)
        low, high = queue.min_offset, queue.max_offset
        if high == 0:
            return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE, 0, low, high)
        if offset < low:
            return GetResult(GetStatus.OFFSET_TOO_SMALL, low, low, high)
        if offset == high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, offset, low, high)
        if offset > high:
            return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, high, low, high)
        if queue.files.find(offset * UNIT_SIZE_BYTES) is None:
            following = queue.files.following(offset * UNIT_SIZE_BYTES)
            index = high if following is None else min(following.start // UNIT_SIZE_BYTES, high)
            return GetResult(GetStatus.OFFSET_FOUND_NULL, index, low, high)
        max_messages = max(max_messages, wide_messages)
        counts = max(self._count_in_memory, wide_messages), max(self._count_on_disk, wide_messages)
        # Without a filter, nearly every unit is taken; one more unit shows whether there are more messages.
        is_filtered = unit_filter is not None or property_filter is not None
        count = max(self._filter_units_max, max_messages)
        data = queue.units(offset, count if is_filtered else min(count, max_messages + 1))
        return self._take(queue, offset, data, max_messages, counts, max_bytes, unit_filter, property_filter)

    def _take(  # noqa: PLR0917 - the hot path; keywords cost.
        self,
        queue: ConsumeQueue,
        offset: int,
        units: bytes,
        max_messages: int,
        counts: tuple[int, int],
        max_bytes: int,
        unit_filter: UnitFilter | None,
        property_filter: PropertyFilter | None,
    ) -> GetResult:
        """Read the records of units until a limit is reached."""
        log, log_reader, queue_id, topic_field = self._log, self._log_reader, queue.queue_id, queue.topic_field
        log_min, log_max = log.min_offset, log.confirm_offset
        memory_from, near, far = self._limits(max_messages, counts, max_bytes)
        records: list[bytes] = []
        total = work = passed = missing = last = base = low = high = 0
        memory: Any = b""  # Its slices are bytes.
        identity, append, began_ms = IDENTITY.unpack_from, records.append, self._clock.monotonic_ms()
        for index, (at, size, _) in _chosen(units, offset, unit_filter):
            end = at + size
            if not 0 < size <= RECORD_READ_MAX or at < log_min or end > log_max:
                continue  # Filler, blank, removed with its file, or invalid.
            if records:
                count_max, bytes_max = near if at >= memory_from else far
                if len(records) >= count_max or total + size > bytes_max:
                    break
            if (work or passed) and self._has_filtered_enough(work, passed, missing, began_ms):
                break
            last = at
            if at < low or end > high:
                try:
                    window = log_reader.window(at, size)
                except NotInMemoryError as error:
                    log_reader.pages.note(error)  # Continue as if they were there, so that all are read at once.
                    if property_filter is None:
                        append(b"")
                        total += size
                    else:
                        missing += 1
                        passed += size
                    continue
                if window is None:
                    continue
                memory, base, low, high = window
            if property_filter is not None:
                # The whole record is read and checked only if it matches.
                properties = find_properties(memory, at - base, end - base)
                if properties is not None:
                    work += property_filter.cost * (FILTER_WORK_BYTES + len(properties))
                    if not property_filter.matches(properties):
                        passed += size
                        continue
            record = memory[at - base : end - base]
            if not (
                # Like `is_valid_record`, but without a call for each of the many valid records.
                len(record) == size > IDENTITY_BYTES
                and identity(record) == (size, queue_id, index, at)
                and record.rfind(topic_field) > 0
                and record[:CRC_PROPERTY_STOP:-1]
                == CRC_PROPERTY_TURNED % (crc32(record[:-CRC_PROPERTY_BYTES]) & CRC_MASK)
            ) and not is_valid_record(record, at, queue_id, index, queue.topic_bytes, log.manifest):
                self.damaged_reads += 1
                continue
            append(record)
            total += size
        else:
            index = offset + len(units) // UNIT_SIZE_BYTES
        is_filtered = passed > 0 or (not records and unit_filter is not None and _has_message(units, unit_filter))
        return self._result(queue, index, records, is_filtered, last)

    def _has_filtered_enough(self, work: int, passed: int, missing: int, began_ms: int) -> bool:
        """Return whether a read with a property filter has reached a limit."""
        if work > FILTER_WORK_MAX or passed > FILTER_BYTES_MAX or missing >= MISSING_RECORDS_MAX:
            return True
        return work > 0 and self._clock.monotonic_ms() - began_ms >= FILTER_TIME_MAX_MS

    def _limits(
        self, max_messages: int, counts: tuple[int, int], max_bytes: int
    ) -> tuple[int, tuple[int, int], tuple[int, int]]:
        """Return where the log is still in memory, and the limits by count and bytes there and before."""
        max_bytes = min(max(max_bytes, PULL_BYTES_MIN), PULL_BYTES_MAX)
        near = min(max_messages, counts[0]), min(max_bytes, self._bytes_in_memory)
        far = min(max_messages, counts[1]), min(max_bytes, self._bytes_on_disk)
        return self._log.wrote_offset - self._memory_bytes, near, far

    def _result(
        self, queue: ConsumeQueue, next_offset: int, records: list[bytes], is_filtered: bool, last: int
    ) -> GetResult:
        status = GetStatus.FOUND
        if not records:
            status = GetStatus.NO_MATCHED_MESSAGE if is_filtered else GetStatus.MESSAGE_WAS_REMOVING
        suggest_slave = self._log.wrote_offset - last > self._memory_bytes if last else False
        low, high = queue.min_offset, queue.max_offset
        return GetResult(status, next_offset, low, high, tuple(records), len(records), suggest_slave)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first readable offset of a queue; 0 for a queue that does not exist."""
        queue = self._queues.find(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset of the next message of a queue; 0 for a queue that does not exist."""
        queue = self._queues.find(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset that the next put into a queue gets; above `max_offset` if messages are not readable yet."""
        queue = self._queues.find(topic, queue_id)
        return queue.next_offset if queue is not None else 0

    def stored_at(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the store time of the message at an offset, or None if there is none.

        In a guarded attempt, the result is also None if bytes are not in memory. A caller that asks for many store
        times thus learns at the attempt's end about all missing bytes.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return None
        try:
            unit = queue.unit(offset)
            return self._time_of(unit.physical_offset, unit.size_bytes)
        except NotInMemoryError as error:
            self._log_reader.pages.note(error)
            return None

    def _time_of(self, physical_offset: int, size: int) -> int | None:
        if not is_message_unit(physical_offset, size) or physical_offset < self._log.min_offset:
            return None
        return self._log_reader.stored_at(physical_offset, size)

    def offset_by_time(self, topic: str, queue_id: int, at_ms: int, boundary: Boundary = Boundary.LOWER) -> int:
        """Return the offset of the message for a time; unreadable messages are skipped.

        LOWER: the first message stored at the time or later; the max offset if there is none. UPPER: the last message
        stored at the time or earlier; the min offset if there is none.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.min_offset >= queue.max_offset:
            return 0 if queue is None else queue.min_offset
        if boundary is Boundary.LOWER:
            return self._first_offset_reaching(queue, lambda stored_at_ms: stored_at_ms >= at_ms)
        # The last message that is not later. If all are later, it is the first readable one.
        return max(self._first_offset_reaching(queue, lambda stored_at_ms: stored_at_ms > at_ms) - 1, queue.min_offset)

    def _first_offset_reaching(self, queue: ConsumeQueue, is_reached: Callable[[int], bool]) -> int:
        """Return the first offset whose message satisfies a condition that then stays true; otherwise the end."""
        low, high = queue.min_offset, queue.max_offset
        while low < high:
            middle = (low + high) // 2
            found = self._next_time(queue, middle, high)
            if found is None or is_reached(found[1]):
                high = middle
            else:
                low = found[0] + 1
        return low

    def _next_time(self, queue: ConsumeQueue, index: int, end: int) -> tuple[int, int] | None:
        """Return offset and store time of the first readable message from `index` on, or None."""
        while index < end:
            found = queue.first_message_unit(index, end)
            if found is None:
                return None
            index, unit = found
            stored_at_ms = self._time_of(unit.physical_offset, unit.size_bytes)
            if stored_at_ms is not None:
                return index, stored_at_ms
            index += 1
        return None

    def search(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> KeySearch | None:
        """Return a search for the newest messages by unique key or key and store time; None without an index."""
        if self._index is None:
            return None
        count_max = min(max_count, self._query_max)
        key_hash = index_key_hash(topic, key)
        return KeySearch(self._index, self._log_reader.pages, key_hash, count_max, begin_ms=begin_ms, end_ms=end_ms)

    def records(self, physical_offsets: Sequence[int], max_bytes: int) -> list[bytes | None]:
        """Return the records at offsets, None for an unreadable one; stop when they have `max_bytes` or more.

        Raises:
            NotInMemoryError: At the end of a guarded attempt, with all missing ranges.
        """
        found: list[bytes | None] = []
        total = 0
        for physical_offset in physical_offsets:
            try:
                record = self._log_reader.record(physical_offset)
            except NotInMemoryError as error:
                self._log_reader.pages.note(error)
                record = None
                total += sum(part.size for part in error.missing)
            total += len(record) if record is not None else 0
            found.append(record)
            if total >= max_bytes:
                break
        return found

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Return messages by unique key or key and store time: the newest `max_count`, oldest first.

        This does everything at once; a caller with an event loop uses `search` and `records`.
        """
        search = self.search(topic, key, max_count, begin_ms, end_ms)
        if search is None:
            return QueryResult((), 0, 0)
        while not search.is_done:
            search.step(ENTRIES_MAX)
        records = (self._log_reader.record(offset) for offset in sorted(search.found))
        return QueryResult(tuple(record for record in records if record is not None), *self.index_last_update())

    def index_last_update(self) -> tuple[int, int]:
        """Return store time and physical offset of the last indexed message; zeros without an index."""
        return self._index.last_update if self._index is not None else (0, 0)


def _chosen(units: bytes, offset: int, unit_filter: UnitFilter | None) -> Iterable[tuple[int, tuple[int, int, int]]]:
    """Return the queue offset and the fields of each unit that the filter lets through."""
    if unit_filter is None:
        return zip(range(offset, offset + len(units) // UNIT_SIZE_BYTES), UNIT.iter_unpack(units), strict=True)
    if isinstance(unit_filter, TagCodes):
        found = unit_filter.find(units)
    else:
        found = [index for index, (_, _, code) in enumerate(UNIT.iter_unpack(units)) if unit_filter(code)]
    return [(offset + index, UNIT.unpack_from(units, index * UNIT_SIZE_BYTES)) for index in found]


def _has_message(units: bytes, unit_filter: UnitFilter) -> bool:
    """Return whether a unit stands for a message that the filter does not let through."""
    return any(is_message_unit(at, size) and not unit_filter(code) for at, size, code in UNIT.iter_unpack(units))
