"""The layout of a store: folders, file names and the fixed binary structures (big-endian).

ConsumeQueue unit (20 bytes, docs/formats/consumequeue.md):
    0  8  physical offset of the record
    8  4  size of the whole record
    12 8  tags code; a deliver time in ms for delayed messages

IndexFile (docs/formats/indexfile.md): 40-byte header, slots of 4 bytes, entries of 20 bytes.
    header: begin and end time 8 + 8, begin and end physical offset 8 + 8, slots in use 4, next entry number 4
    slot:   number of the newest entry of this slot, 0 for none; entry 0 is never used
    entry:  key hash 4, physical offset 8, seconds since begin time 4, number of the slot's entry before 4

Checkpoint (4096 bytes, docs/formats/checkpoint.md):
    0  8  store time of the last record flushed        8  8  … of the last record whose ConsumeQueue is flushed
    16 8  … of the last record in a full, flushed IndexFile
    24 8  master flushed offset    32 8  confirm offset
    256 44  Gantry's: confirm offset again, count of the queues (units, files, log's first offset, deletions), CRC-32
    all other bytes zero

Source: RocketMQ 5.3 store/ConsumeQueue, index/IndexFile, StoreCheckpoint.
"""

import struct
from datetime import UTC, datetime, tzinfo
from typing import Final, NamedTuple
from zlib import crc32

from gantry.model.record import RecordData

# Folders and files in a store's root.
COMMIT_LOG_DIR: Final = "commitlog"
CONSUME_QUEUE_DIR: Final = "consumequeue"
INDEX_DIR: Final = "index"
CONFIG_DIR: Final = "config"
CHECKPOINT_FILE: Final = "checkpoint"
ABORT_FILE: Final = "abort"
LOCK_FILE: Final = "lock"
LOCK_CONTENT: Final = b"lock"
MANIFEST_FILE: Final = "config/gantry.json"
DELETIONS_FILE: Final = "config/gantry-deletions.json"
FLUSH_NOTE_FILE: Final = "config/gantry-flush"

FILE_NAME_DIGITS: Final = 20
INDEX_NAME_DIGITS: Final = 17
COMMIT_LOG_FILE_BYTES: Final = 1 << 30
CONSUME_QUEUE_FILE_BYTES: Final = 6_000_000
HASH_SLOTS: Final = 5_000_000
INDEX_ENTRIES: Final = 20_000_000
ENTRIES_PER_SLOT: Final = 4
"""The ratio of RocketMQ's default settings; a file's size alone does not tell how many slots and entries it has."""

UNIT: Final = struct.Struct(">qiq")
UNIT_SIZE_BYTES: Final = 20
INDEX_HEADER: Final = struct.Struct(">qqqqii")
INDEX_HEADER_BYTES: Final = 40
INDEX_SLOT: Final = struct.Struct(">i")
INDEX_SLOT_BYTES: Final = 4
INDEX_ENTRY: Final = struct.Struct(">iqii")
INDEX_ENTRY_BYTES: Final = 20
CHECKPOINT: Final = struct.Struct(">qqqqq")
CHECKPOINT_BYTES: Final = 4096
QUEUE_COUNT: Final = struct.Struct(">qqqqq")
_QUEUE_COUNT_EARLIER: Final = struct.Struct(">qqqq")  # The layout before deletions were counted.
QUEUE_COUNT_AT: Final = 256
"""RocketMQ keeps the bytes that it does not know; the bytes before this offset are left for its later fields."""
QUEUE_COUNT_END: Final = QUEUE_COUNT_AT + QUEUE_COUNT.size + 4
assert UNIT.size == UNIT_SIZE_BYTES
assert INDEX_HEADER.size == INDEX_HEADER_BYTES
assert INDEX_SLOT.size == INDEX_SLOT_BYTES
assert INDEX_ENTRY.size == INDEX_ENTRY_BYTES  # The tables in the module's docstring describe the bytes on disk.

FILLER_SIZE: Final = 0x7FFF_FFFF
FILLER_UNIT: Final = UNIT.pack(0, FILLER_SIZE, 0)
"""Stands in the place of units before the first message of a queue that does not begin at offset 0."""

_CHECKPOINT_SLACK_MS = 3000
_TIME_DIFF_MAX = 0x7FFF_FFFF


class ConsumeQueueUnit(NamedTuple):
    """The position of one message of a queue in the CommitLog."""

    physical_offset: int
    size_bytes: int
    tags_code: int

    @property
    def is_filler(self) -> bool:
        """Return whether the unit only fills the space before the queue's first message."""
        return self.physical_offset == 0 and self.size_bytes == FILLER_SIZE

    @property
    def is_valid(self) -> bool:
        """Return whether this is a unit (fillers are units) and not preallocated space."""
        return self.physical_offset >= 0 and self.size_bytes > 0


class IndexHeader(NamedTuple):
    """The header of an IndexFile."""

    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    hash_slot_count: int
    index_count: int
    """The number of the next entry; 0 or less means 1: the file is empty."""


class IndexEntry(NamedTuple):
    """One key of one message."""

    key_hash: int
    physical_offset: int
    time_diff_s: int
    previous: int


class Checkpoint(NamedTuple):
    """The checkpoint: times (ms) and offsets (bytes) up to which the store's files are known to be flushed."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0

    @property
    def min_timestamp(self) -> int:
        """Return the time up to which CommitLog and ConsumeQueues surely agree."""
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _CHECKPOINT_SLACK_MS, 0)

    @property
    def min_timestamp_index(self) -> int:
        """Return the time up to which CommitLog, ConsumeQueues and index files surely agree."""
        return min(self.min_timestamp, self.index_msg_timestamp)


class ConfirmOffset(NamedTuple):
    """The offset up to which the disk has everything, according to a checkpoint's two copies of its confirm offset."""

    offset: int
    is_checksummed: bool
    """Whether a checksum covers one of the copies; `offset` is then not greater than that copy."""


class QueueCount(NamedTuple):
    """The size of the ConsumeQueues at the confirm offset, when all of it was on the disk."""

    confirm_physical_offset: int
    """The confirm offset of the checkpoint that the count was written with."""
    units: int
    """The sum of the queues' max offsets."""
    files: int
    """The number of files of queues that have or had a unit."""
    log_min_offset: int
    """The CommitLog's first offset, if no queue had a file with only expired messages; -1 if one may have had."""
    deletions: int = -1
    """The number of the last deletion of a topic that was counted; -1 if it is not known."""


def file_name(offset: int) -> str:
    """Return the name of the file that starts at this offset: 20 digits."""
    return f"{offset:020d}"


def parse_file_name(name: str) -> int | None:
    """Return the offset at which a file starts, or None if its name is not such a name."""
    if len(name) == FILE_NAME_DIGITS and name.isascii() and name.isdigit():
        return int(name)
    return None


def index_file_name(at_ms: int, tz: tzinfo | None = None) -> str:
    """Return the name of an IndexFile created at this moment: local time as yyyyMMddHHmmssSSS."""
    local = datetime.fromtimestamp(at_ms // 1000, UTC).astimezone(tz)
    return f"{local:%Y%m%d%H%M%S}{at_ms % 1000:03d}"


def is_index_file_name(name: str) -> bool:
    """Return whether a name is the name of an IndexFile."""
    return len(name) == INDEX_NAME_DIGITS and name.isascii() and name.isdigit()


def encode_unit(physical_offset: int, size_bytes: int, tags_code: int) -> bytes:
    """Return the 20 bytes of a unit."""
    return UNIT.pack(physical_offset, size_bytes, tags_code)


def decode_unit(data: RecordData, at: int = 0) -> ConsumeQueueUnit:
    """Return the unit `at` bytes into `data`; its `is_valid` tells it from preallocated space."""
    return ConsumeQueueUnit._make(UNIT.unpack_from(data, at))


def index_file_bytes(slots: int, entries: int) -> int:
    """Return the size of an IndexFile in bytes."""
    return INDEX_HEADER_BYTES + slots * INDEX_SLOT_BYTES + entries * INDEX_ENTRY_BYTES


def index_slot_position(slot: int) -> int:
    """Return the position of a slot in the file, in bytes."""
    return INDEX_HEADER_BYTES + slot * INDEX_SLOT_BYTES


def index_entry_position(slots: int, number: int) -> int:
    """Return the position of an entry in a file with `slots` slots, in bytes."""
    return INDEX_HEADER_BYTES + slots * INDEX_SLOT_BYTES + number * INDEX_ENTRY_BYTES


def index_time_diff_s(stored_at_ms: int, begin_timestamp: int) -> int:
    """Return an entry's seconds since the file's begin time; 0 if the begin time is not known or later."""
    if begin_timestamp <= 0 or stored_at_ms < begin_timestamp:
        return 0
    return min((stored_at_ms - begin_timestamp) // 1000, _TIME_DIFF_MAX)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return the content of the whole file."""
    return CHECKPOINT.pack(*checkpoint).ljust(CHECKPOINT_BYTES, b"\0")


def encode_queue_count(count: QueueCount | None, confirm_offset: int) -> bytes:
    """Return the bytes at QUEUE_COUNT_AT; without a count, they still repeat the confirm offset."""
    packed = QUEUE_COUNT.pack(*(count or QueueCount(confirm_offset, -1, -1, -1)))
    return packed + crc32(packed).to_bytes(4)


def decode_queue_count(data: bytes | bytearray) -> QueueCount | None:
    """Return the count in a checkpoint file, or None if there is none.

    The count names its own confirm offset. It is therefore usable even if the checkpoint's confirm offset differs.
    """
    count = _decode_own(data)
    return count if count is not None and count.units >= 0 else None


def decode_confirm_offset(data: bytes | bytearray, *, log_end: int) -> ConfirmOffset:
    """Return the offset up to which the disk has everything, in a store that Gantry wrote.

    No checksum covers the field itself. If the field differs from its copy, one of its bits may have flipped, or
    RocketMQ has written it later. The smaller offset is right in both cases.

    Args:
        data: The content of the checkpoint file.
        log_end: The end of the CommitLog's last file. A field that has no copy and is greater than this counts as 0.
    """
    field, own = max(decode_checkpoint(data).confirm_physical_offset, 0), _decode_own(data)
    if own is not None:
        return ConfirmOffset(min(field, own.confirm_physical_offset), is_checksummed=True)
    return ConfirmOffset(field if field <= log_end else 0, is_checksummed=False)


def _decode_own(data: bytes | bytearray) -> QueueCount | None:
    """Return Gantry's own part of a checkpoint file, in this or the earlier layout; None if no checksum is right."""
    for layout in (QUEUE_COUNT, _QUEUE_COUNT_EARLIER):
        end = QUEUE_COUNT_AT + layout.size
        packed = data[QUEUE_COUNT_AT:end]
        if len(packed) == layout.size and data[end : end + 4] == crc32(packed).to_bytes(4):
            return QueueCount(*layout.unpack(packed))
    return None


def decode_checkpoint(data: bytes | bytearray) -> Checkpoint:
    """Return the checkpoint in a file; fields that a short file lacks are 0."""
    return Checkpoint._make(CHECKPOINT.unpack(data[: CHECKPOINT.size].ljust(CHECKPOINT.size, b"\0")))
