"""Cold reads: what a guarded operation found missing (pages.py), read from the disk by a thread that may wait.

Ranges that lie close together are read with one call, since the disk needs longer to go to the next one than to read
over the gap. If such a read fails, each range is read alone, so that one unreadable page costs no other record.

Read-ahead follows the pattern. Ranges of the CommitLog that follow each other belong to a consumer that works off a
backlog: the kernel is asked for the next AHEAD_BYTES, so that the following pulls find them in memory. Ranges with
gaps between them belong to a queue that shares the log with many others, or to a search: nothing is read ahead, and
what the kernel reads by itself for a lone `pread` is just its pages (a page fault reads 128 KiB around).

A reader thread opens each file by its path, and has one open at a time: reads that wait hold no descriptor. If the
file was removed meanwhile, its ranges count as unreadable. After the removal of an expired file the next attempt finds
no such file anyway; where somebody took the file away by hand, readers go over its messages.

Concurrency: `ColdRead` is made by the store's thread, `run` is called by a reader thread.
"""

import errno
from collections.abc import Iterable
from itertools import groupby
from typing import Final, NamedTuple

from gantry.runtime.files import File, FileSystem
from services.broker.store.pages import Blocks, Missing, ReadableFile

GAP_BYTES_MAX: Final = 16 << 10
"""Ranges with at most so much between them are read together."""
AHEAD_BYTES: Final = 1 << 20
"""Read-ahead for a consumer that reads the log in order: 16 pulls of 64 KiB."""
# Errors that disks and file systems report for a lost range; any other error is not the range's fault.
_UNREADABLE: Final = frozenset({errno.EIO, errno.EUCLEAN, errno.EBADMSG, errno.ENODATA})
_DENSE_RANGES_MIN: Final = 4


class Piece(NamedTuple):
    """One read: a stretch of a file with the ranges that are wanted of it."""

    file: ReadableFile
    at: int
    end: int
    wanted: tuple[Missing, ...]


def plan(missing: Iterable[Missing]) -> list[Piece]:
    """Return the reads that bring all ranges; each range once, in the order of files and positions."""
    pieces: list[Piece] = []
    for part in sorted(set(missing), key=lambda part: (part.file.path, part.at, part.size)):
        last = pieces[-1] if pieces else None
        end = part.at + part.size
        if last is not None and last.file is part.file and part.at - last.end <= GAP_BYTES_MAX:
            pieces[-1] = Piece(last.file, last.at, max(last.end, end), (*last.wanted, part))
        else:
            pieces.append(Piece(part.file, part.at, end, (part,)))
    return pieces


def ahead_of(pieces: list[Piece]) -> Missing | None:
    """Return what a reader of these pieces is going to need next, or None where nothing says so.

    That is the stretch behind the last range if all ranges are one dense run: a single piece of several ranges, more
    than half of whose bytes are wanted.
    """
    if len(pieces) != 1 or len(pieces[0].wanted) < _DENSE_RANGES_MIN:
        return None
    file, at, end, wanted = pieces[0]
    size = min(AHEAD_BYTES, file.end - end)
    is_dense = 2 * sum(part.size for part in wanted) >= end - at
    return Missing(file, end, size) if is_dense and size > 0 else None


class ColdRead:
    """One round of reading for one operation.

    Attributes:
        size_bytes: Total of all reads.
        unreadable: Ranges that the disk could not read; known after `run`.
    """

    __slots__ = ("_ahead", "_found", "_pieces", "size_bytes", "unreadable")

    def __init__(self, missing: Iterable[Missing]) -> None:
        self._pieces = plan(missing)
        self._ahead = ahead_of(self._pieces)
        self._found: list[tuple[Missing, bytes | None]] = []
        self.size_bytes = sum(piece.end - piece.at for piece in self._pieces)
        self.unreadable: list[Missing] = []

    def run(self, files: FileSystem) -> None:
        """Read everything; waits for the disk.

        Raises:
            OSError: Something else than an unreadable range.
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
                    file.will_need(self._ahead.at - self._ahead.file.start, self._ahead.size)
            finally:
                file.close()

    def _read_piece(self, file: File, piece: Piece) -> None:
        whole = Missing(piece.file, piece.at, piece.end - piece.at)
        data = _read(file, whole)
        if data is not None:
            self._found.append((whole, data))
            return
        for part in piece.wanted:
            data = _read(file, part)
            self._found.append((part, data))
            if data is None:
                self.unreadable.append(part)

    def give_to(self, blocks: Blocks) -> None:
        """Add what was read to an operation's blocks."""
        for part, data in self._found:
            blocks.add(part, data)


def _read(file: File, part: Missing) -> bytes | None:
    try:
        return file.read(part.at - part.file.start, part.size)
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        return None
