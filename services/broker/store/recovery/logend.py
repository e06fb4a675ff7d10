"""The missing parts of the CommitLog, and how far it once reached.

The end of the log is after the last record, unless something shows that more was stored: the manifest of an orderly
stop, or a Gantry unit whose record was on the disk when the unit was written. A record that they promise and that the
log does not have is lost, not torn: its physical offsets and queue offsets are not used again. There are four cases:

- The bytes are not a valid record: the record is damaged.
- The pages can't be read: the record is damaged. The disk may read the pages again later, so they are not changed.
- The file is missing: somebody removed it, because a file's name is on the disk before anything is written to the file.
- The bytes are zeros: a power cut took the record before it was on the disk, unless the checkpoint says that it was.

Units and checkpoint have no checksum, so neither is trusted if it points far beyond the existing files.
"""

from typing import Final

from gantry.runtime.telemetry import logger
from services.broker.store.errors import CorruptStoreError
from services.broker.store.log.commitlog import CommitLog

UNREADABLE_RANGES_MAX: Final = 1024
"""With more bad blocks than this, the disk must be replaced before a store is rebuilt from its content."""
_FILES_BEYOND_MAX: Final = 2

log = logger("broker.store")


class LogEnd:
    """Says which parts of the log are missing.

    Args:
        checkpoint_offset: The checkpoint's confirm offset, in a Gantry store: the disk had everything before it.

    Attributes:
        unreadable: The unreadable ranges in the part of the log that was checked.
    """

    def __init__(self, commit_log: CommitLog, *, checkpoint_offset: int) -> None:
        self._log = commit_log
        self._checkpoint_offset = checkpoint_offset
        self._read_from: int | None = None
        self.unreadable: list[tuple[int, int]] = []

    @property
    def files_end(self) -> int:
        """Return the end of the last file."""
        last = self._log.files.last
        return last.end if last is not None else 0

    def read_from(self, start: int) -> None:
        """Read all files from an offset on; later accesses through the map then meet no page that the disk can't read.

        Raises:
            CorruptStoreError: Too many ranges are unreadable.
        """
        stop = self.files_end if self._read_from is None else self._read_from
        self._read_from = start
        for file in self._log.files:
            low, high = max(start, file.start), min(stop, file.end)
            if low >= high:
                continue
            high = min(high, file.start + file.file.data_end(low - file.start))
            for first, last in file.file.blank_unreadable(low - file.start, high - file.start):
                log.error("the disk can't read a part of the CommitLog", path=file.path, offset=first, end=last)
                self.unreadable.append((file.start + first, file.start + last))
            if len(self.unreadable) > UNREADABLE_RANGES_MAX:
                raise CorruptStoreError(
                    file.path,
                    f"the disk can't read {len(self.unreadable)} ranges of the CommitLog, more than "
                    f"{UNREADABLE_RANGES_MAX}. Copy what can be read of the store to another disk (ddrescue), and run "
                    "`gantry store repair` on the copy",
                )

    def is_unreadable(self, start: int, end: int) -> bool:
        """Return whether the disk can't read some byte of a range."""
        return any(first < end and last > start for first, last in self.unreadable)

    def is_plausible(self, offset: int) -> bool:
        """Return whether a store with these files may have had data up to an offset."""
        files = self._log.files
        return (
            offset <= files.start_of(max(self.files_end, self._checkpoint_offset)) + _FILES_BEYOND_MAX * files.file_size
        )

    def was_written(self, offset: int, size: int) -> bool:
        """Return whether a record that a unit promises was on the disk.

        Return False in the part that Apache RocketMQ wrote, because it leaves the units of records that it has cut.
        """
        if not self._log.manifest.demands_record_crc(offset):
            return False
        end = offset + size
        file = self._log.files.find(offset)
        if file is None:
            return self.is_plausible(end)
        if end > file.end:
            return False
        at = offset - file.start
        if file.memory[at : at + 8] != bytes(8) and file.memory[at + size - 8 : at + size] != bytes(8):
            return True
        return end <= self._checkpoint_offset or self.is_unreadable(offset, end)

    def behind(self, end: int) -> int:
        """Return where the log continues if it reached up to `end`: not in a missing file, and not among bad pages."""
        for _, last in self.unreadable:
            end = max(end, last)
        if self._log.files.find(end) is None:
            size = self._log.files.file_size
            end = -(-end // size) * size
        return end

    def needs_new_file(self, end: int) -> bool:
        """Return whether the disk can't read a part of the file in which the log would continue."""
        file = self._log.files.find(end)
        return file is not None and self.is_unreadable(file.start, file.end)

    def missing(self, end: int) -> tuple[tuple[int, int], ...]:
        """Return the ranges before the log's end whose files are missing."""
        found = []
        position = self._log.min_offset
        for file in self._log.files:
            if file.start > position:
                found.append((position, file.start))
            position = file.end
        if position < end:
            found.append((position, end))
        return tuple(found)
