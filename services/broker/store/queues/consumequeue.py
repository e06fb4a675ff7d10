"""The ConsumeQueue: one queue of one topic, with a unit of 20 bytes for each message (docs/formats/consumequeue.md).

The index of a unit is the queue offset. `(0, 2³¹-1, 0)` is filler: there is no message at this offset. Filler stands
before the first message of a queue whose first file does not begin with it. Filler also replaces a message that was
lost to damage, so later messages keep their offsets. Zeros are space that was never written.

A queue has two ends: `next_offset` is the offset of the next message to be put, `max_offset` is the offset of the next
unit. The messages in between are in the CommitLog and not dispatched yet.
"""

from collections.abc import Callable, Iterator
from errno import EIO, ENOENT
from typing import Final

from gantry.model.names import check_topic
from gantry.model.record import TOPIC_BYTES_MAX_V1
from gantry.runtime.openfiles import OpenFiles
from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import (
    CONSUME_QUEUE_DIR,
    FILLER_SIZE,
    FILLER_UNIT,
    UNIT,
    UNIT_SIZE_BYTES,
    ConsumeQueueUnit,
    decode_unit,
)
from services.broker.store.errors import StoreReadError
from services.broker.store.files.pages import Pages
from services.broker.store.queues.blanks import BLANK_UNIT, end_of_units, find_blank, first_blank
from services.broker.store.queues.queuefile import QueueFile
from services.broker.store.queues.queuefiles import QueueFiles

TOPIC_LENGTH_MAX: Final = 255
# The first unit is usually the right one; copying thousands would read for nothing.
_SOUGHT_AT_FIRST: Final = 4
_SOUGHT_AT_ONCE: Final = 4096
# Recovery compares units one by one, and often switches between queues.
_READ_AHEAD: Final = 64

log = logger("broker.store")


class ConsumeQueue:
    """One ConsumeQueue: the units of one queue of one topic, in a sequence of files.

    Attributes:
        topic: The queue's topic; `topic_bytes` is the encoded name, `topic_field` has the length in front, as in
            records.
        queue_id: The queue's id within the topic.
        min_offset: The first unit whose record the CommitLog still has, if the log begins at `corrected_to`.
        min_record: The physical offset of that unit's record; -1 if it is not known.
        max_offset: The offset of the next unit.
        next_offset: The offset of the next message to be put.
        pending: The units of this round of dispatch, which are written together.
    """

    __slots__ = (
        "_ahead",
        "_ahead_at",
        "corrected_to",
        "files",
        "max_offset",
        "min_offset",
        "min_record",
        "next_offset",
        "pages",
        "pending",
        "pending_from",
        "queue_id",
        "skipped",
        "topic",
        "topic_bytes",
        "topic_field",
        "version",
    )

    def __init__(  # noqa: PLR0917 - the parts of a queue, in the order of its path.
        self, pool: OpenFiles, root: str, topic: str, queue_id: int, file_size: int, pages: Pages | None = None
    ) -> None:
        # The topic becomes the name of a folder, and it may come from a damaged record.
        check_topic(topic, length_max=TOPIC_LENGTH_MAX)
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.version = 1 if len(self.topic_bytes) <= TOPIC_BYTES_MAX_V1 else 2
        self.topic_field = len(self.topic_bytes).to_bytes(self.version) + self.topic_bytes
        self.queue_id = queue_id
        self.pages = pages or Pages()
        self.files = QueueFiles(pool, f"{root}/{CONSUME_QUEUE_DIR}/{topic}/{queue_id}", file_size)
        self.min_offset = 0
        self.corrected_to = 0
        self.min_record = -1
        self.max_offset = 0
        self.next_offset = 0
        self.skipped = 0
        # Units that recovery read ahead, from a position on; all of them lie before the end.
        self._ahead = b""
        self._ahead_at = 0
        self.pending: list[bytes] = []
        self.pending_from = 0

    def load(self, *, thorough: bool, on_repair: Callable[[], None] | None = None) -> None:
        """Open the files and find the end.

        Args:
            thorough: Whether the end is after the last unit that is not blank; otherwise it is before the first blank
                unit.
            on_repair: Called before files are changed because of a wrong size or unreadable bytes; may raise to prevent
                it.
        """
        gone = self.files.load(is_derived=True, on_repair=on_repair)
        first, last = self.files.first, self.files.last
        if first is None or last is None:
            return
        # An empty file that a crash left is a hole, which recovery will fill.
        self.min_offset = min([first.start, *gone]) // UNIT_SIZE_BYTES
        self.max_offset = self.next_offset = self._find_end(last, on_repair, thorough=thorough) // UNIT_SIZE_BYTES

    def _find_end(self, last: QueueFile, on_repair: Callable[[], None] | None, *, thorough: bool) -> int:
        if not thorough:
            try:
                # Readers and `correct_min` need the first unit of all.
                self.unit(self.min_offset)
                return first_blank(last)
            except OSError as error:
                if error.errno != EIO:
                    raise
        self.files.rescue(on_repair)
        return max(map(end_of_units, self.files))

    @property
    def is_blank(self) -> bool:
        """Return whether the queue has no unit and, as far as its files show, never had one."""
        return self.max_offset == 0

    def prepare(self) -> None:
        """Create the first file with its first block, so that there is space for the first message.

        Raises:
            StoreFullError: The file can't be created; nothing has changed.
        """
        if len(self.files) == 0:
            self.files.add_file(self.files.start_of(self.next_offset * UNIT_SIZE_BYTES))

    def find_blank(self) -> int | None:
        """Return the first unit before the end that was never written, or whose file is missing, or None."""
        start = self.min_offset * UNIT_SIZE_BYTES
        end = self.max_offset * UNIT_SIZE_BYTES
        while start < end:
            file = self.files.find(start)
            if file is None:
                return start // UNIT_SIZE_BYTES
            found = find_blank(file, start - file.start, min(end, file.end) - file.start)
            if found is not None:
                return (file.start + found) // UNIT_SIZE_BYTES
            start = file.end
        return None

    def unit(self, index: int) -> ConsumeQueueUnit:
        """Return a unit; a unit that was never written, or whose file is missing, is not valid."""
        position = index * UNIT_SIZE_BYTES
        file = self.files.find(position)
        if file is None:
            return ConsumeQueueUnit(0, 0, 0)
        return decode_unit(self.pages.read(file, position, UNIT_SIZE_BYTES), 0)

    def units(self, index: int, count: int) -> bytes:
        """Return up to `count` units from `index` on that lie in one file and before the end."""
        position = index * UNIT_SIZE_BYTES
        file = self.files.find(position)
        if file is None:
            # A hole reads as blank units, up to its end.
            following = self.files.following(position)
            end = self.max_offset if following is None else min(following.start // UNIT_SIZE_BYTES, self.max_offset)
            return BLANK_UNIT * min(count, end - index)
        end = min(position + count * UNIT_SIZE_BYTES, self.max_offset * UNIT_SIZE_BYTES, file.end)
        return self.pages.read(file, position, end - position) if end > position else b""

    def first_message_unit(self, index: int, end: int) -> tuple[int, ConsumeQueueUnit] | None:
        """Return index and content of the first unit that stands for a message, from `index` to `end`, or None."""
        count = _SOUGHT_AT_FIRST
        while (index := self.next_present(index)) < end:
            data = self.units(index, min(end - index, count))
            for position, (physical_offset, size, tags_code) in enumerate(UNIT.iter_unpack(data)):
                if is_message_unit(physical_offset, size):
                    return index + position, ConsumeQueueUnit(physical_offset, size, tags_code)
            index += len(data) // UNIT_SIZE_BYTES
            count = _SOUGHT_AT_ONCE
        return None

    def next_present(self, index: int) -> int:
        """Return the first unit at or after `index` whose file exists; the end if there is none.

        This skips a hole in one step. A file that was placed far ahead leaves a hole that would take hours unit by
        unit.
        """
        position = index * UNIT_SIZE_BYTES
        if self.files.find(position) is not None:
            return index
        following = self.files.following(position)
        return self.max_offset if following is None else following.start // UNIT_SIZE_BYTES

    def present_before(self, end: int) -> Iterator[int]:
        """Iterate backwards over the units before `end` whose file exists, down to the min offset."""
        for file in reversed(list(self.files)):
            start = max(file.start // UNIT_SIZE_BYTES, self.min_offset)
            yield from range(min(file.end // UNIT_SIZE_BYTES, end) - 1, start - 1, -1)

    def append(self, index: int, units: bytes) -> None:
        """Write consecutive units; positions between the end and `index` become filler.

        Raises:
            StoreFullError: A file can't be created; nothing was written.
        """
        if index > self.max_offset:
            index = self._fill_to(index)
        count = len(units) // UNIT_SIZE_BYTES
        position = index * UNIT_SIZE_BYTES
        last = self.files.last
        if last is not None and last.start <= position and position + len(units) <= last.end:
            last.write(position - last.start, units)
        else:
            self._make_files(index, index + count)
            self.files.write(position, units)
        if self.min_record < 0 and index == self.min_offset:
            self.min_record = decode_unit(units).physical_offset
        if index + count > self.max_offset:
            self.max_offset = index + count
            self.next_offset = max(self.next_offset, self.max_offset)

    def _fill_to(self, index: int) -> int:
        if len(self.files) == 0:
            # A queue that begins late has filler up to its first message, in the file of that message, as in RocketMQ.
            start = self.files.start_of(index * UNIT_SIZE_BYTES) // UNIT_SIZE_BYTES
            self.min_offset = index
        else:
            start = self.max_offset
            self.skipped += index - start
        self._make_files(start, index)
        self.files.write(start * UNIT_SIZE_BYTES, FILLER_UNIT * (index - start))
        self.max_offset = index
        return index

    def _make_files(self, index: int, end: int) -> None:
        size = self.files.file_size
        start = self.files.start_of(index * UNIT_SIZE_BYTES)
        last = self.files.last
        if last is not None and last.end >= end * UNIT_SIZE_BYTES:
            return
        start = start if last is None else last.end
        while start < end * UNIT_SIZE_BYTES:
            self.files.add_file(start)
            start += size

    def repair_unit(self, index: int, unit: bytes) -> bool:
        """Make a unit agree with the CommitLog; return True if it was different."""
        if index >= self.max_offset:
            self.append(index, unit)
            return True
        position = index * UNIT_SIZE_BYTES
        file = self.files.find(position)
        if file is None:
            file = self.files.add_file(self.files.start_of(position))
            # The earlier messages in this file are gone. Blank units would look like missing ones, so filler takes
            # their places.
            file.write(0, FILLER_UNIT * ((position - file.start) // UNIT_SIZE_BYTES))
            self.min_offset = min(self.min_offset, index)
        at = position - self._ahead_at
        if not 0 <= at < len(self._ahead):
            self._ahead, self._ahead_at, at = self.units(index, _READ_AHEAD), position, 0
        if self._ahead[at : at + UNIT_SIZE_BYTES] == unit:
            return False
        self._ahead = b""
        file.write(position - file.start, unit)
        return True

    def truncate(self, index: int) -> list[QueueFile]:
        """Make `index` the end: set the units from there on to zero; return the files that are no longer needed."""
        dropped = self.files.drop_from(-(-index * UNIT_SIZE_BYTES // self.files.file_size) * self.files.file_size)
        last = self.files.last
        if last is not None and last.end > index * UNIT_SIZE_BYTES >= last.start:
            last.zero_from(index * UNIT_SIZE_BYTES - last.start)
        self.max_offset = self.next_offset = index
        self.min_offset = min(self.min_offset, index)
        self.min_record = -1
        self._ahead = b""
        return dropped

    def first_from(self, physical_offset: int) -> int:
        """Return the first index whose message lies at or after a physical offset; the end if there is none."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            found = self.first_message_unit(middle, high)
            if found is None or found[1].physical_offset >= physical_offset:
                high = middle
            else:
                low = found[0] + 1
        return low

    def correct_min(self, log_min_offset: int) -> None:
        """Make the queue begin with the first unit whose record the CommitLog still has.

        If the disk can't read a unit that is needed for this, the queue begins with its first file. Readers then skip
        the messages that are gone.

        Raises:
            NotInMemoryError: A unit is not in memory, and the pages are guarded; nothing has changed.
        """
        self._ahead = b""
        first = self.files.first
        if self.min_record < log_min_offset and first is not None:
            start = max(self.min_offset, first.start // UNIT_SIZE_BYTES)
            try:
                self._begin_at(self._first_kept(log_min_offset, start))
            except (StoreReadError, OSError) as error:
                _check_unreadable(error)
                log.warning("the disk can't read where a queue begins", path=self.files.folder, reason=str(error))
                self.min_offset, self.min_record = start, -1
        self.corrected_to = log_min_offset

    def _first_kept(self, log_min_offset: int, start: int) -> tuple[int, ConsumeQueueUnit] | None:
        found = self.first_message_unit(start, self.max_offset)
        if found is not None and found[1].physical_offset < log_min_offset:
            found = self.first_message_unit(self.first_from(log_min_offset), self.max_offset)
        return found

    def _begin_at(self, found: tuple[int, ConsumeQueueUnit] | None) -> None:
        if found is not None:
            self.min_offset, self.min_record = found[0], found[1].physical_offset
        else:
            self.min_offset, self.min_record = self.max_offset, -1

    def expired(self, log_min_offset: int) -> list[QueueFile]:
        """Drop and return the files whose messages are all gone, except for the last file."""
        keep_from = 0
        for file in self.files:
            if file is self.files.last:
                break
            try:
                newest = self._newest_offset(file.start // UNIT_SIZE_BYTES, file.end // UNIT_SIZE_BYTES - 1)
            except OSError as error:
                _check_unreadable(error)
                log.warning("a file stays, since the disk can't read what is in it", path=file.path, reason=str(error))
                break
            if newest >= log_min_offset:
                break
            keep_from = file.end
        return self.files.drop_before(keep_from, count_max=len(self.files))

    def _newest_offset(self, first: int, last: int) -> int:
        for index in range(last, first - 1, -1):
            unit = self.unit(index)
            if is_message_unit(unit.physical_offset, unit.size_bytes):
                return unit.physical_offset
        return 0

    def newest_message(self) -> tuple[int, ConsumeQueueUnit] | None:
        """Return the index and unit of the last message in the queue, or None."""
        for index in self.present_before(self.max_offset):
            unit = self.unit(index)
            if is_message_unit(unit.physical_offset, unit.size_bytes):
                return index, unit
        return None

    def indexes(self) -> Iterator[int]:
        """Iterate over the readable offsets."""
        return iter(range(self.min_offset, self.max_offset))


def _check_unreadable(error: Exception) -> None:
    """Raise an OSError again, unless the disk can't read the bytes or the file was removed."""
    if isinstance(error, OSError) and error.errno not in {EIO, ENOENT}:
        raise error


def is_message_unit(physical_offset: int, size: int) -> bool:
    """Return whether a unit stands for a message: it is not blank, not filler and not invalid."""
    return 0 < size < FILLER_SIZE and physical_offset >= 0
