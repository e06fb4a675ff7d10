"""The store's results: plain values that keep no file open."""

import enum
from dataclasses import dataclass
from typing import NamedTuple

from gantry.storeformat.layout import ConsumeQueueUnit


class PutStatus(enum.Enum):
    """The outcome of a put."""

    OK = "ok"
    """Appended, with a place in its queue; `put` says what the record survives, and from when on."""
    NOT_WRITABLE = "not_writable"
    """SERVICE_NOT_AVAILABLE: the store takes no messages now; `reason` says why."""
    MESSAGE_ILLEGAL = "message_illegal"
    """Topic, body or record are too long, or a field is invalid."""
    PROPERTIES_SIZE_EXCEEDED = "properties_size_exceeded"
    CREATE_FILE_FAILED = "create_file_failed"
    """CREATE_MAPPED_FILE_FAILED: the next file could not be created."""


class PutResult(NamedTuple):
    """The place of a stored message, or the reason why it was rejected. Nothing of a rejected message is stored."""

    status: PutStatus
    physical_offset: int = -1
    queue_offset: int = -1
    stored_at_ms: int = 0
    next_offset: int = -1
    """The physical offset after the record."""
    reason: str = ""


# A message of a batch: flag, body, properties, tag, keys and unique key as in Writer; None for the last three means to
# look them up. A plain tuple, because one is made for every message.
BatchMessage = tuple[int, bytes | memoryview, bytes, str | None, str | None, str | None]


class BatchPutResult(NamedTuple):
    """Like PutResult, for messages with consecutive queue offsets; either all of them are stored or none."""

    status: PutStatus
    physical_offsets: tuple[int, ...] = ()
    queue_offset: int = -1
    """The queue offset of the first message."""
    stored_at_ms: int = 0
    next_offset: int = -1
    reason: str = ""


class GetStatus(enum.Enum):
    """The outcome of a get, with RocketMQ's names."""

    FOUND = "found"
    NO_MATCHED_MESSAGE = "no_matched_message"
    """The filter matched none of the messages that were read; continue at `next_offset`."""
    MESSAGE_WAS_REMOVING = "message_was_removing"
    """The messages that were read are gone or damaged; continue at `next_offset`."""
    OFFSET_FOUND_NULL = "offset_found_null"
    """The ConsumeQueue lacks a file here; continue at `next_offset`."""
    OFFSET_OVERFLOW_BADLY = "offset_overflow_badly"
    OFFSET_OVERFLOW_ONE = "offset_overflow_one"
    """No message yet: the offset is the next one to be written."""
    OFFSET_TOO_SMALL = "offset_too_small"
    NO_MATCHED_LOGIC_QUEUE = "no_matched_logic_queue"
    NO_MESSAGE_IN_QUEUE = "no_message_in_queue"
    OFFSET_RESET = "offset_reset"
    """The group's offset was reset after the reader got its own; continue at `next_offset`. The store never returns it."""


@dataclass(frozen=True, slots=True)
class GetResult:
    """Messages of a queue."""

    status: GetStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: tuple[bytes, ...] = ()
    """Whole records in queue order."""
    count: int = 0
    suggest_slave: bool = False
    """Whether the reader is further behind than fits in memory, so a slave should serve it."""

    @property
    def body(self) -> bytes:
        """Return all records as one piece, the body of a pull reply."""
        return b"".join(self.records)


class Boundary(enum.StrEnum):
    """Which of several messages a search by time returns."""

    LOWER = "LOWER"
    """The first message stored at the time or later."""
    UPPER = "UPPER"
    """The last message stored at the time or earlier."""


class QueryResult(NamedTuple):
    """Messages found by key, oldest first. Keys with the same hash are found together, so compare the keys."""

    records: tuple[bytes, ...]
    index_last_update_timestamp: int
    index_last_update_phyoffset: int


class Units(NamedTuple):
    """Consecutive units of a queue, as they are in its files."""

    min_offset: int
    max_offset: int
    data: bytes


class UnitRows(NamedTuple):
    """Consecutive units of a queue."""

    min_offset: int
    max_offset: int
    first_offset: int
    """The queue offset of the first row."""
    next_offset: int
    """The queue offset after the last row."""
    rows: bytes
    """See gantry/model/unitrow.py."""


class FirstMessage(NamedTuple):
    """The first matching message in the part of the queue that was read."""

    min_offset: int
    max_offset: int
    scanned_to: int
    """The message's offset, or the first offset that was not read."""
    unit: ConsumeQueueUnit | None


class FilteredSearch(NamedTuple):
    """A part of a search with a property filter."""

    found: FirstMessage
    """The unit of the message is also returned if its record can't be read, so that it is unknown whether it passes."""
    work: int
    """Sum over the examined messages; the search's time is proportional to it."""
    size_bytes: int
    """Sum of the sizes of the examined records."""


class Expiry(NamedTuple):
    """The time at which retention removes a file by age and hour."""

    at_ms: int
    """The earliest moment; an earlier removal because of a full disk is not considered."""
    is_earliest: bool
    """Whether the file is still written to; the moment then assumes that nothing more is written."""


class RecoveryReport(NamedTuple):
    """The findings and repairs of a start."""

    was_clean: bool
    """Whether the last stop was orderly."""
    log_min_offset: int
    log_end_offset: int
    scanned_from: int
    records: int
    """The number of valid records in the scanned part."""
    lost: tuple[tuple[int, int], ...]
    """Ranges of the log without a valid record, followed by valid records: damage. Kept as they are."""
    torn_bytes: int
    """The number of bytes that a crash left after the last record; set to zero."""
    units_mended: int
    """The number of ConsumeQueue units that were missing or wrong and were rebuilt from the log."""
    units_skipped: int
    """The number of queue offsets whose message is lost; readers skip them."""
    units_cut: int
    """The number of units that promised records the log does not have."""
    index_entries_mended: int
    files_removed: int
    index_missing: tuple[int, int] | None
    """A range of the log with messages that are not found by their keys, because indexing them again takes too long for
    a start; None if there is none."""
    missing: tuple[tuple[int, int], ...] = ()
    """Ranges of the log whose files are missing: somebody removed them."""
    unreadable: tuple[tuple[int, int], ...] = ()
    """The unreadable ranges in the part of the log that was checked."""
    flush_failed: str = ""
    """Why the last broker on the store could not flush it; empty if it could."""
    acknowledged_lost: tuple[int, int] | None = None
    """The range at the log's end that was acknowledged but is not on the disk."""

    @property
    def lost_bytes(self) -> int:
        """Return the size of all lost ranges in bytes."""
        return sum(end - start for start, end in self.lost)


class StoreState(NamedTuple):
    """The store's state."""

    writable: bool
    reason: str
    """Why the store is not writable; empty if it is."""
    full_reason: str
    """Why the next file of the CommitLog can't be created; empty if it can, or is being created."""
    disk_percent: int
    min_physical_offset: int
    max_physical_offset: int
    flushed_offset: int
    confirm_offset: int
    dispatched_offset: int
    dispatch_behind_bytes: int
    lost_bytes: int
    """The number of bytes that were found damaged at start."""
    damaged_reads: int
    """The number of invalid records that readers have met since."""
    skipped_units: int
    """The number of queue offsets that have no message because of damage."""
    removed_files_in_use: int
    """The number of files that are removed and still mapped, because somebody reads them."""
    recovery: RecoveryReport | None
