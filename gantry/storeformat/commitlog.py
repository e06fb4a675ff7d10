"""Reads a CommitLog from end to end, damaged or not.

The scan yields each valid record. It also yields a record whose only fault is a wrong checksum, and marks it as such.
The scan counts the bytes that it can't read: `damages` are bytes between records, `tail` is the part after the last
record.

There are three kinds of tail:
- Zeros: preallocated space. Nothing happened.
- A torn record: a crash interrupted the last append.
- Older records: a store that was truncated once keeps the bytes after the cut, and the records appended since then end
  in the middle of these bytes. The scan recognizes older records by their store times, which go back where the newer
  records end.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gantry.model.record import RECORD_MAGIC_V1, RECORD_MAGIC_V2, peek
from gantry.runtime.files import Memory
from gantry.storeformat.manifest import StoreManifest
from gantry.storeformat.resync import (
    NO_MANIFEST,
    LogRecord,
    ResumeKind,
    examine,
    find_next_record,
    find_used_end,
    is_filler,
    resume_after_damage,
)


class LogFile(NamedTuple):
    """One file of the CommitLog."""

    path: str
    start: int
    """The physical offset of the file's first byte."""
    size_bytes: int

    @property
    def end(self) -> int:
        """Return the physical offset after the file's last byte."""
        return self.start + self.size_bytes


class Damage(NamedTuple):
    """Bytes of the CommitLog that are neither a record nor filler."""

    path: str
    start: int
    end: int
    reason: str

    @property
    def size_bytes(self) -> int:
        """Return how many bytes are lost."""
        return self.end - self.start


class Tail(NamedTuple):
    """The bytes after the last record, in the same file."""

    path: str
    start: int
    """The end of the log: the physical offset of the next record to be appended."""
    used_end: int
    """The physical offset after the last byte that is not zero; `start` if all bytes are zero."""
    reason: str
    """Why the bytes at `start` are not a valid record."""
    is_record_like: bool
    """Whether the tail begins as a record does; such a tail is more than leftover bytes."""
    is_older: bool
    """Whether records follow that are older than the last one, because the log was once cut here."""

    @property
    def size_bytes(self) -> int:
        """Return the number of bytes up to the last byte that is not zero, gaps included."""
        return self.used_end - self.start


class LogScan:
    """One pass over a CommitLog. Iterate it once, then read `damages`, `tail` and `end`."""

    def __init__(
        self,
        log_files: Sequence[LogFile],
        open_memory: Callable[[str], Memory],
        *,
        manifest: StoreManifest | None = None,
        start: int | None = None,
    ) -> None:
        """Prepare a scan.

        Args:
            log_files: The log's files in the order of their offsets, none of them empty.
            open_memory: Returns the memory map of a file, given its path.
            manifest: The store's manifest; None for a store that never had one.
            start: The physical offset of a record, where reading begins; the log's first byte by default.
        """
        self._files = log_files
        self._open = open_memory
        self._manifest = manifest or NO_MANIFEST
        self._start = log_files[0].start if start is None and log_files else start or 0
        self._stored_at_ms = 0
        self._last_used: int | None = None
        self.damages: list[Damage] = []
        self.tail: Tail | None = None
        self.records_count = 0
        self.end = self._start

    @property
    def last_stored_at_ms(self) -> int:
        """Return the store time of the last valid record, or 0 before the first one."""
        return self._stored_at_ms

    def __iter__(self) -> Iterator[LogRecord]:
        position = self._start
        for number, file in enumerate(self._files):
            if file.end <= position:
                continue
            if file.start > position:
                self.damages.append(
                    Damage(file.path, position, file.start, "the file that held these bytes is missing")
                )
            yield from self._scan_file(number, file, max(position - file.start, 0))
            if self.tail is not None:
                return
            position = self.end = file.end

    def _scan_file(self, number: int, file: LogFile, at: int) -> Iterator[LogRecord]:
        memory = self._open(file.path)
        base, end = file.start, file.size_bytes
        while True:
            head, crc, problem = examine(memory, at, end=end, base=base, manifest=self._manifest)
            if problem is None:
                assert head is not None, "a valid record has a head"
                self._stored_at_ms = head.stored_at_ms
                self.records_count += 1
                yield LogRecord(base + at, head, crc, memory, at)
                at += head.size_bytes
                self.end = base + at
                continue
            if at == end or is_filler(memory, at, end=end):
                return
            following = self._after_damage(number, file, memory, at, problem)
            if following is None:
                return
            if head is not None and at + head.size_bytes <= following:
                following = at + head.size_bytes
                yield LogRecord(base + at, head, crc, memory, at)
            self.damages.append(Damage(file.path, base + at, base + following, problem))
            at = following

    def _after_damage(self, number: int, file: LogFile, memory: Memory, at: int, problem: str) -> int | None:
        """Return where reading continues in this file, or None if it does not; set the tail if the log ends here."""
        base, end = file.start, file.size_bytes
        found = resume_after_damage(
            memory, at, end=end, data_end=end, base=base, manifest=self._manifest, stored_at_ms=self._stored_at_ms
        )
        if number >= self._last_file_with_records():
            if found.kind is not ResumeKind.RECORD or found.is_past_stale:
                self._set_tail(file, memory, at, problem, is_older=found.is_past_stale)
                return None
        elif found.kind is ResumeKind.NONE:
            self.damages.append(Damage(file.path, base + at, base + end, problem))
            return None
        return found.at

    def _set_tail(self, file: LogFile, memory: Memory, at: int, reason: str, *, is_older: bool) -> None:
        self.end = file.start + at
        used_end = find_used_end(memory, at, end=file.size_bytes)
        is_record_like = False
        if file.size_bytes - at >= 36:
            _, magic = peek(memory, at)
            own = int.from_bytes(bytes(memory[at + 28 : at + 36]))
            is_record_like = magic in (RECORD_MAGIC_V1, RECORD_MAGIC_V2) or own == self.end != 0
        self.tail = Tail(file.path, self.end, file.start + used_end, reason, is_record_like, is_older)

    def _last_file_with_records(self) -> int:
        """Return the number of the last file that holds a record; files after it were only preallocated."""
        if self._last_used is None:
            self._last_used = -1
            for number in reversed(range(len(self._files))):
                file = self._files[number]
                memory = self._open(file.path)
                if (
                    find_next_record(memory, 0, end=file.size_bytes, base=file.start, manifest=self._manifest)
                    is not None
                ):
                    self._last_used = number
                    break
        return self._last_used
