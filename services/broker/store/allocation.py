"""Blocks ahead of the write end of a sparse file.

A file that takes all its blocks when it is made costs its whole size, however little is ever written to it: 6 MB a
queue, 420 MB an index. A file that takes them one by one is fragmented, and a full disk shows only in the middle of a
write. So blocks are taken in steps that double with what the file holds: a full disk is an error before anything is
written, and a file takes at most about twice what it needs.
"""

from typing import Final, Protocol

from services.broker.store.errors import StoreFullError

BLOCK_BYTES: Final = 4096
MAPPED_UNIT_BYTES: Final = 2 << 20
"""The unit for files that are written through a map. Linux makes a whole folio of the page cache writable at once, up to
this size, and needs blocks for all of it: a write beside a hole in the same folio ends the process on a full disk
(SIGBUS; seen with ext4 of Linux 6.18)."""


class Allocatable(Protocol):
    """A file that blocks can be taken for."""

    path: str
    size_bytes: int

    def allocate(self, at: int, size: int) -> None:
        """Give a range its blocks. Raises OSError."""
        ...


def allocate_ahead(file: Allocatable, at: int, needed: int, *, step_max: int, unit: int = BLOCK_BYTES) -> int:
    """Take blocks from `at` on, at least up to `needed`, in a step as large as what lies before `at`.

    Args:
        file: The file.
        at: Everything before it has blocks, or is not written.
        needed: Up to where the caller writes next.
        step_max: The step is at most so large, unless `needed` is further; at least a block.
        unit: A step ends at a multiple of this, or at the end of the file.

    Returns:
        Up to where the file has blocks now.

    Raises:
        StoreFullError: There are not enough blocks left.
    """
    ahead = _in_units(file, max(needed, at + min(max(at, BLOCK_BYTES), step_max)), unit)
    try:
        file.allocate(at, ahead - at)
    except OSError:
        return _allocate(file, at, _in_units(file, needed, unit))
    return ahead


def _in_units(file: Allocatable, end: int, unit: int) -> int:
    return min(-(-end // unit) * unit, file.size_bytes)


def _allocate(file: Allocatable, at: int, end: int) -> int:
    """Take only what is needed now: the disk has no more."""
    try:
        file.allocate(at, end - at)
    except OSError as error:
        raise StoreFullError(file.path, error, action="extended") from error
    return end
