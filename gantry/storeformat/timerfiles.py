"""The files of messages that wait for a set time: wheel, timer log, check point and metrics (big-endian).

Timer wheel (`timerwheel`, docs/formats/timer.md): 1,209,600 slots of 32 bytes, one for each second of 14 days. The slot
of a second is `seconds mod 1,209,600`. A slot belongs to the second that it names; the slot of a second that has passed
stays as it is until a later second needs its place.
    0  8  second (ms / 1000)
    8  8  position of the slot's first unit in the timer log
    16 8  position of its last unit
    24 4  number of units that wait, less the deletions    28 4  magic, 0

Timer log (`timerlog/`, files of 100 MiB, named by their first position): units of 52 bytes. The units of a slot are a
list from the last one backward.
    0  4  size, 52             4  8  position of the slot's unit before, or -1
    12 4  flags: 1 always, 2 rolled, 4 deletion
    16 8  write time in ms     24 4  delay in ms; write time + delay is the second of the slot
    28 8  physical offset of the record in the CommitLog    36 4  size of the record
    40 4  hash of the real topic (`String.hashCode`)        44 8  0
A file ends with a blank, a size of all bytes that are left, 8 zero bytes and the magic of blanks, when fewer than a
unit and 16 bytes are left.

Check point (`config/timercheck`, 4096 bytes): the seven fields of `TimerCheck`, then zeros. At 256, Gantry adds the
progress within the second that fires (`SlotProgress`): second 8, position 8, CRC-32 of both 4. RocketMQ keeps these bytes.

Metrics (`config/timermetrics`): JSON without white space, the number of waiting messages by real topic.

Source: RocketMQ 5.3 store/timer: TimerWheel, Slot, TimerLog, TimerCheckpoint, TimerMetrics.
"""

import struct
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from gantry.model.errors import CorruptRecordError
from gantry.model.record import BLANK_MAGIC, RecordData
from gantry.model.topic import DataVersion

TIMER_WHEEL_FILE: Final = "timerwheel"
TIMER_LOG_DIR: Final = "timerlog"
TIMER_CHECK_FILE: Final = "config/timercheck"
TIMER_METRICS_FILE: Final = "config/timermetrics"
TIMER_LOG_FILE_BYTES: Final = 100 << 20

SECOND_MS: Final = 1000
WHEEL_SLOTS: Final = 2 * 7 * 86_400
"""Twice the seven days for which the wheel is made. A second is written at most seven days ahead, so a slot that waits
is not overwritten for another seven days."""

SLOT: Final = struct.Struct(">qqqii")
SLOT_BYTES: Final = 32
UNIT: Final = struct.Struct(">iqiqiqiiq")
UNIT_BYTES: Final = 52
BLANK: Final = struct.Struct(">iqI")
BLANK_BYTES: Final = 16
CHECK: Final = struct.Struct(">qqqqqqq")
CHECK_BYTES: Final = 56
CHECK_FILE_BYTES: Final = 4096
PROGRESS: Final = struct.Struct(">qqI")
PROGRESS_AT: Final = 256
assert SLOT.size == SLOT_BYTES
assert UNIT.size == UNIT_BYTES
assert BLANK.size == BLANK_BYTES
assert CHECK.size == CHECK_BYTES  # The tables in the module's docstring describe the bytes on disk.

NO_UNIT: Final = -1
FLAG_DEFAULT: Final = 1
FLAG_ROLL: Final = 2
FLAG_DELETE: Final = 4
_FLAGS_MASK = 0xF  # RocketMQ accepts every combination of four bits.


class Slot(NamedTuple):
    """The messages that wait for one second."""

    second: int
    first: int
    last: int
    waiting: int
    magic: int = 0


class TimerUnit(NamedTuple):
    """One waiting message in the timer log."""

    previous: int
    """The position of the unit before it in the same slot, or `NO_UNIT`."""
    flags: int
    written_at_ms: int
    delay_ms: int
    physical_offset: int
    size_bytes: int
    topic_hash: int

    @property
    def slot_ms(self) -> int:
        """The time of the unit's slot: when the message is due or, if it is rolled, when it is put back."""
        return self.written_at_ms + self.delay_ms

    @property
    def is_rolled(self) -> bool:
        """Whether the message is due later than the slot, and is put back at the slot's time."""
        return bool(self.flags & FLAG_ROLL)

    @property
    def is_deletion(self) -> bool:
        """Whether the message says that another message of the slot is recalled."""
        return bool(self.flags & FLAG_DELETE)


class TimerCheck(NamedTuple):
    """The progress that is known to be on the disk.

    A master writes the same queue offset twice.
    """

    read_ms: int
    """All seconds before this time have fired."""
    log_flushed: int
    """The timer log is on the disk up to this position."""
    queue_offset: int
    """All messages of the timer topic's queue before this offset are in the timer log."""
    master_queue_offset: int
    state_version: int
    timestamp: int
    counter: int


class SlotProgress(NamedTuple):
    """The progress within the second that fires."""

    second: int
    position: int
    """All messages of the second whose units are at or before this position have fired."""


class TopicCount(msgspec.Struct, rename={"at_ms": "timeStamp"}):
    """The number of waiting messages of a topic, and the time of its last change."""

    count: int
    at_ms: int


class _Version(msgspec.Struct, rename="camel"):
    counter: int = 0
    state_version: int = 0
    timestamp: int = 0


class _Metrics(msgspec.Struct, rename="camel"):
    data_version: _Version
    timing_count: dict[str, TopicCount]


def slot_index(second: int, *, slots: int = WHEEL_SLOTS) -> int:
    """Return the index of a second's slot in the wheel."""
    return second % slots


def encode_slot(slot: Slot) -> bytes:
    """Return the bytes of a slot."""
    return SLOT.pack(*slot)


def decode_slot(data: RecordData, at: int = 0) -> Slot:
    """Return the slot that starts at position `at`."""
    return Slot(*SLOT.unpack_from(data, at))


def encode_timer_unit(unit: TimerUnit) -> bytes:
    """Return the bytes of a unit."""
    return UNIT.pack(UNIT_BYTES, *unit, 0)


def find_timer_unit(data: RecordData, at: int = 0) -> TimerUnit | None:
    """Return the unit that starts at position `at`, or None if the bytes there are no unit."""
    size, previous, flags, written_at_ms, delay_ms, offset, record_bytes, topic_hash, _ = UNIT.unpack_from(data, at)
    if size != UNIT_BYTES or flags | _FLAGS_MASK != _FLAGS_MASK or not flags & FLAG_DEFAULT:
        return None
    if offset < 0 or record_bytes <= 0 or previous < NO_UNIT:
        return None
    return TimerUnit(previous, flags, written_at_ms, delay_ms, offset, record_bytes, topic_hash)


def encode_timer_blank(left_bytes: int) -> bytes:
    """Return the blank at the end of a file that has this number of bytes left."""
    return BLANK.pack(left_bytes, 0, BLANK_MAGIC)


def is_timer_blank(data: RecordData, at: int = 0) -> bool:
    """Return whether a blank starts at position `at`: nothing follows in this file."""
    return bool(BLANK.unpack_from(data, at)[2] == BLANK_MAGIC)


def encode_timer_check(check: TimerCheck) -> bytes:
    """Return the 56 bytes of a check point, as the file and the reply to request 60 have them."""
    return CHECK.pack(*check)


def decode_timer_check(data: RecordData) -> TimerCheck:
    """Return the check point in the bytes.

    Raises:
        CorruptRecordError: There are too few bytes.
    """
    if len(data) < CHECK_BYTES:
        raise CorruptRecordError(f"a check point of {len(data)} bytes; it has {CHECK_BYTES}", 0)
    return TimerCheck(*CHECK.unpack_from(data))


def encode_slot_progress(progress: SlotProgress) -> bytes:
    """Return the bytes that follow at `PROGRESS_AT`."""
    return PROGRESS.pack(*progress, _checksum(progress))


def find_slot_progress(data: RecordData) -> SlotProgress | None:
    """Return the progress in the bytes of a check point's file; None if there is none, or if it is damaged."""
    second, position, checksum = PROGRESS.unpack_from(data, PROGRESS_AT)
    progress = SlotProgress(second, position)
    return progress if second > 0 and checksum == _checksum(progress) else None


def encode_timer_metrics(version: DataVersion, counts: Mapping[str, TopicCount]) -> bytes:
    """Return the metrics, as the file and the reply to request 61 have them."""
    stamp = _Version(version.counter, version.state_version, version.timestamp)
    return msgspec.json.encode(_Metrics(stamp, dict(counts)))


def decode_timer_metrics(data: bytes) -> tuple[DataVersion, dict[str, TopicCount]]:
    """Return the version and the counts in the bytes.

    Raises:
        CorruptRecordError: The bytes are not such JSON.
    """
    try:
        read: Any = msgspec.json.decode(data, type=_Metrics)
    except (msgspec.DecodeError, RecursionError) as error:
        raise CorruptRecordError(f"timer metrics: {error}", 0) from None
    stamp = read.data_version
    version = DataVersion(state_version=stamp.state_version, timestamp=stamp.timestamp, counter=stamp.counter)
    return version, read.timing_count


def _checksum(progress: SlotProgress) -> int:
    return crc32(b"%d %d" % progress)
