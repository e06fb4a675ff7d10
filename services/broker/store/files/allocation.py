"""Allocation of disk blocks ahead of the write end of a sparse file.

A file that allocates all its blocks at creation always takes its full size: 6 MB for a queue, 420 MB for an index file.
A file that allocates its blocks one by one becomes fragmented, and a full disk is noticed only in the middle of a
write. The store therefore allocates blocks in steps, and each step is as large as the part before it, up to a limit. A
full disk is then an error before anything is written, and a file takes at most about twice the space that it needs.

The files of the CommitLog, of ConsumeQueues and of the index call `allocate_ahead` before a write that passes the end
of their blocks.
"""

from typing import Final, Protocol

from services.broker.store.errors import StoreFullError

BLOCK_BYTES: Final = 4096
MAPPED_UNIT_BYTES: Final = 2 << 20
"""The unit for files that are written through a map. Linux makes a whole folio of the page cache writable at once, up to
this size, and needs blocks for all of it. On a full disk, a write next to a hole in the same folio ends the process
(SIGBUS; seen with ext4 of Linux 6.18)."""


class Allocatable(Protocol):
    """A file that can allocate blocks."""

    path: str
    size_bytes: int

    def allocate(self, at: int, size: int) -> None:
        """Allocate the blocks of a range. Raises OSError."""
        ...


def allocate_ahead(file: Allocatable, at: int, needed: int, *, step_max: int, unit: int = BLOCK_BYTES) -> int:
    """Allocate blocks from `at` to at least `needed`, in a step as large as the file before `at`.

    All positions are in bytes from the start of the file.

    Args:
        file: The file.
        at: The start of the step: the end of the part that has blocks, or the caller's next write if that is after it.
        needed: The end of the caller's next write.
        step_max: The largest step in bytes; a step to `needed` may be larger. The caller gives at least a block.
        unit: The unit of allocation in bytes: a step ends at a multiple of it, or at the end of the file.

    Returns:
        The end of the step: everything between `at` and this position has blocks now.

    Raises:
        StoreFullError: The file system could not allocate the blocks up to `needed`. Nothing was written.
    """
    ahead = _in_units(file, max(needed, at + min(max(at, BLOCK_BYTES), step_max)), unit)
    try:
        file.allocate(at, ahead - at)
    except OSError:
        # Perhaps there are enough blocks for the next write.
        return _allocate_needed(file, at, _in_units(file, needed, unit))
    return ahead


def _in_units(file: Allocatable, end: int, unit: int) -> int:
    """Return `end`, rounded up to a multiple of the unit, or the end of the file if that is before it."""
    return min(-(-end // unit) * unit, file.size_bytes)


def _allocate_needed(file: Allocatable, at: int, end: int) -> int:
    try:
        file.allocate(at, end - at)
    except OSError as error:
        raise StoreFullError(file.path, error, action="extended") from error
    return end
