"""Cold reads: a thread that may wait reads the ranges that a guarded operation found missing (pages.py).

One call reads ranges that lie close together, because a seek on the disk takes longer than reading the gap. If such a
read fails, each range is read alone, so one unreadable page affects no other record.

Read-ahead follows the pattern. Consecutive ranges of the CommitLog belong to a consumer that works through a backlog.
The kernel is then asked for the next AHEAD_BYTES, so the following pulls find them in memory. Ranges with gaps between
them belong to a queue that shares the log with many others, or to a search. Then nothing is read ahead, and for a
single `pread` the kernel reads just its pages (a page fault would read 128 KiB around it).

A reader thread opens each file by its path and has one file open at a time, so waiting reads hold no descriptor. If the
file was removed meanwhile, its ranges count as unreadable. After the removal of an expired file, the next attempt finds
no such file anyway. After a removal by hand, readers skip the file's messages.

Concurrency: the store's thread creates a `ColdRead`; a reader thread calls `run`.
"""

import errno
from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

from gantry.runtime.files import File, FileSystem
from services.broker.store.files.pages import MissingRange, ReadableFile, ReadBlocks

GAP_BYTES_MAX: Final = 16 << 10
"""The largest gap between two ranges that are read together."""
AHEAD_BYTES: Final = 1 << 20
"""Read-ahead for a consumer that reads the log in order: 16 pulls of 64 KiB."""
# Errors that disks and file systems report for a lost range; for any other error the range is not the cause.
_UNREADABLE: Final = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA})
_DENSE_RANGES_MIN: Final = 4


class Piece(NamedTuple):
    """One read: a part of a file, and the ranges that are wanted from it."""

    file: ReadableFile
    at: int
    end: int
    wanted: tuple[MissingRange, ...]


def plan(missing: Iterable[MissingRange]) -> list[Piece]:
    """Return the reads for all ranges, each range once, ordered by file and position."""
    pieces: list[Piece] = []
    for part in sorted(set(missing), key=lambda part: (part.file.path, part.at, part.size)):
        last = pieces[-1] if pieces else None
        end = part.at + part.size
        if last is not None and last.file is part.file and part.at - last.end <= GAP_BYTES_MAX:
            pieces[-1] = Piece(last.file, last.at, max(last.end, end), (*last.wanted, part))
        else:
            pieces.append(Piece(part.file, part.at, end, (part,)))
    return pieces


def ahead_of(pieces: list[Piece]) -> MissingRange | None:
    """Return the range that a reader of these pieces will probably need next, or None if it is not predictable.

    This is the range after the last one if all ranges form one dense run: a single piece of several ranges, at least
    half of whose bytes are wanted.
    """
    if len(pieces) != 1 or len(pieces[0].wanted) < _DENSE_RANGES_MIN:
        return None
    file, at, end, wanted = pieces[0]
    size = min(AHEAD_BYTES, file.end - end)
    is_dense = 2 * sum(part.size for part in wanted) >= end - at
    return MissingRange(file, end, size) if is_dense and size > 0 else None


class ColdRead:
    """One round of reading for one operation.

    Attributes:
        size_bytes: The total size of all reads.
        unreadable: The ranges that the disk could not read; known after `run`.
    """

    __slots__ = ("_ahead", "_found", "_pieces", "size_bytes", "unreadable")

    def __init__(self, missing: Iterable[MissingRange]) -> None:
        self._pieces = plan(missing)
        self._ahead = ahead_of(self._pieces)
        self._found: list[tuple[MissingRange, bytes | None]] = []
        self.size_bytes = sum(piece.end - piece.at for piece in self._pieces)
        self.unreadable: list[MissingRange] = []

    def run(self, files: FileSystem) -> None:
        """Read everything; waits for the disk.

        Raises:
            OSError: An error other than an unreadable range.
        """
        for path, pieces in groupby(self._pieces, key=lambda piece: piece.file.path):
            try:
                file = files.open(path, writable=False)
            except FileNotFoundError:
                self._found += [(part, None) for piece in pieces for part in piece.wanted]
                continue
            try:
                for piece in pieces:
                    self._read_piece(file, piece)
                if self._ahead is not None and not self.unreadable:
                    file.prefetch(self._ahead.at - self._ahead.file.start, self._ahead.size)
            finally:
                file.close()

    def _read_piece(self, file: File, piece: Piece) -> None:
        whole = MissingRange(piece.file, piece.at, piece.end - piece.at)
        data = _read(file, whole)
        if data is not None:
            self._found.append((whole, data))
            return
        for part in piece.wanted:
            data = _read(file, part)
            self._found.append((part, data))
            if data is None:
                self.unreadable.append(part)

    def add_to(self, blocks: ReadBlocks) -> None:
        """Add the bytes that were read to an operation's blocks."""
        for part, data in self._found:
            blocks.add(part, data)


def _read(file: File, part: MissingRange) -> bytes | None:
    try:
        return file.read(part.at - part.file.start, part.size)
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        return None
