"""What the store answers: plain values, without a hold on any file."""

import enum
from dataclasses import dataclass
from typing import NamedTuple

from gantry.storeformat.layout import ConsumeQueueUnit


class PutStatus(enum.Enum):
    """What became of a put."""

    OK = "ok"
    """Appended, at a place in its queue; `put` says when that survives what."""
    NOT_WRITABLE = "not_writable"
    """SERVICE_NOT_AVAILABLE: the store takes nothing now, `reason` says why."""
    MESSAGE_ILLEGAL = "message_illegal"
    """Topic, body or record are too long, or a field does not fit."""
    PROPERTIES_SIZE_EXCEEDED = "properties_size_exceeded"
    CREATE_FILE_FAILED = "create_file_failed"
    """CREATE_MAPPED_FILE_FAILED: the next file could not be made."""


class PutResult(NamedTuple):
    """Where a message went, or why it went nowhere. Nothing of a message that was refused is stored."""

    status: PutStatus
    physical_offset: int = -1
    queue_offset: int = -1
    stored_at_ms: int = 0
    next_offset: int = -1
    """The physical offset behind the record."""
    reason: str = ""


# A message of a batch: flag, body, properties; tag, keys and unique key as Writer describes them, None where they are to
# be looked up. A plain tuple, as one is made for every message.
BatchMessage = tuple[int, bytes | memoryview, bytes, str | None, str | None, str | None]


class BatchPutResult(NamedTuple):
    """As PutResult, for messages with consecutive queue offsets, stored all or none."""

    status: PutStatus
    physical_offsets: tuple[int, ...] = ()
    queue_offset: int = -1
    """Of the first message."""
    stored_at_ms: int = 0
    next_offset: int = -1
    reason: str = ""


class GetStatus(enum.Enum):
    """What became of a get, in RocketMQ's words."""

    FOUND = "found"
    NO_MATCHED_MESSAGE = "no_matched_message"
    """The filter took nothing of what was looked at; go on at `next_offset`."""
    MESSAGE_WAS_REMOVING = "message_was_removing"
    """What was looked at is gone or damaged; go on at `next_offset`."""
    OFFSET_FOUND_NULL = "offset_found_null"
    """The ConsumeQueue lacks a file here; go on at `next_offset`."""
    OFFSET_OVERFLOW_BADLY = "offset_overflow_badly"
    OFFSET_OVERFLOW_ONE = "offset_overflow_one"
    """Nothing yet: the offset is the next one to be written."""
    OFFSET_TOO_SMALL = "offset_too_small"
    NO_MATCHED_LOGIC_QUEUE = "no_matched_logic_queue"
    NO_MESSAGE_IN_QUEUE = "no_message_in_queue"


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
    """The reader is further behind than memory is large: a slave should serve it."""

    @property
    def body(self) -> bytes:
        """Return all records as one piece, the body of a pull reply."""
        return b"".join(self.records)


class Boundary(enum.StrEnum):
    """Which of several messages a search by time means."""

    LOWER = "LOWER"
    """The first one stored at the time or later."""
    UPPER = "UPPER"
    """The last one stored at the time or earlier."""


class QueryResult(NamedTuple):
    """Messages found by key, oldest first. Keys with the same hash are found together: compare the keys."""

    records: tuple[bytes, ...]
    index_last_update_timestamp: int
    index_last_update_phyoffset: int


class UnitRows(NamedTuple):
    """Units of a queue that follow each other."""

    min_offset: int
    max_offset: int
    first_offset: int
    """Of the first row."""
    next_offset: int
    """Behind the last one."""
    rows: bytes
    """See gantry/model/unitrow.py."""


class FirstMessage(NamedTuple):
    """Where the first message lies that is wanted, as far as the queue was looked at."""

    min_offset: int
    max_offset: int
    scanned_to: int
    """The message's offset, or the first one that was not looked at."""
    unit: ConsumeQueueUnit | None


class Expiry(NamedTuple):
    """When retention removes a file by age and hour."""

    at_ms: int
    """Not before this moment; what the disk's state may force is left out."""
    is_earliest: bool
    """The file is still written to: as if nothing were written from now on."""


class RecoveryReport(NamedTuple):
    """What a start found and mended."""

    was_clean: bool
    """The last stop was orderly."""
    log_min_offset: int
    log_end_offset: int
    scanned_from: int
    records: int
    """Records that proved themselves in what was scanned."""
    lost: tuple[tuple[int, int], ...]
    """Ranges of the log that hold no record that proves itself, followed by ones that do: damage. Kept as they are."""
    torn_bytes: int
    """What a crash left behind the last record; wiped."""
    units_mended: int
    """ConsumeQueue units that were missing or wrong and were built from the log."""
    units_skipped: int
    """Queue offsets whose message is lost; readers go over them."""
    units_cut: int
    """Units that promised records the log does not have."""
    index_entries_mended: int
    files_removed: int
    index_missing: tuple[int, int] | None
    """A range of the log whose messages are not all found by their keys, since to index them again takes too long for a
    start; None where there is none."""
    missing: tuple[tuple[int, int], ...] = ()
    """Ranges of the log whose files are not there: somebody took them away."""
    unreadable: tuple[tuple[int, int], ...] = ()
    """Ranges of the log that the disk can't read, among those that were looked at."""
    flush_failed: str = ""
    """Why the last broker on the store could not flush it; empty where it could."""
    acknowledged_lost: tuple[int, int] | None = None
    """The end of the log that had been acknowledged and that the disk does not have."""

    @property
    def lost_bytes(self) -> int:
        """Return how many bytes the lost ranges have."""
        return sum(end - start for start, end in self.lost)


class StoreState(NamedTuple):
    """How the store does."""

    writable: bool
    reason: str
    """Why it is not writable; empty if it is."""
    full_reason: str
    """Why the next file of the CommitLog can't be made; empty if it can, or is being made."""
    disk_percent: int
    min_physical_offset: int
    max_physical_offset: int
    flushed_offset: int
    confirm_offset: int
    dispatched_offset: int
    dispatch_behind_bytes: int
    lost_bytes: int
    """Found damaged at start."""
    damaged_reads: int
    """Records that a reader met since and that did not prove themselves."""
    skipped_units: int
    """Queue offsets without a message, by damage."""
    hanged_files: int
    """Files that are removed and still mapped, since somebody reads them."""
    recovery: RecoveryReport | None
