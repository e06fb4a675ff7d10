"""A disk whose power can be cut: an ext4 image inside a reflink-capable XFS image.

An atomic reflink copy of the ext4 image, taken under load, holds exactly what ext4 had handed to its block device at
that moment, as a power cut would leave it. The copy reveals a missing fsync. It does not reveal a missing device flush,
since the inner device's own cache (the page cache of the XFS file) is part of the copy.

The disk can also break its promises. Both images are sparse, so that filling the outer one (`fill_up`) makes writes to
new blocks of the inner one fail, as a full thin pool does. `fdatasync` fails then. The inner page cache continues to
show bytes that never reached the disk, even after the space is back (`feed`).
"""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mounts import make_image, mounted, skip_without_mounts

FICLONE = 0x40049409  # linux/fs.h: share all blocks of one file with another, atomically.
OUTER_BYTES = 6 << 30
INNER_BYTES = 1 << 30
RESERVE_BYTES = 4 << 20
# Allocate the journal and the inode tables now, so that only writes of new data can find no space.
MKFS_OPTIONS = "lazy_itable_init=0,lazy_journal_init=0,nodiscard"
# Images are sparse: this is the real disk usage of a hundred copies of small stores.
FREE_BYTES_MIN = 3 << 30


class CuttableDisk:
    """A mounted ext4 file system under `path`, and copies of it as power cuts would leave it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._outer = folder / "outer"
        self._image = self._outer / "disk.img"
        self._filler = self._outer / "filler"
        self.path = folder / "disk"

    def fill_up(self) -> None:
        """Leave the disk no space for new blocks, though its file system has free blocks."""
        os.sync()  # Blocks that were written before must not fail.
        free = os.statvfs(self._outer)
        with self._filler.open("wb") as file:
            with contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - RESERVE_BYTES)
            file.seek(0, os.SEEK_END)
            with contextlib.suppress(OSError):
                while os.write(file.fileno(), bytes(4096)):
                    pass
            with contextlib.suppress(OSError):
                os.fsync(file.fileno())

    def feed(self) -> None:
        """Give the disk its space back."""
        self._filler.unlink()
        os.sync()

    def cut(self, number: int) -> Path:
        """Copy the disk as it is at this instant and return the copy's image."""
        copy = self._outer / f"cut-{number}.img"
        with self._image.open("rb") as source, copy.open("wb") as target:
            fcntl.ioctl(target.fileno(), FICLONE, source.fileno())
        return copy

    @contextlib.contextmanager
    def restored(self, copy: Path) -> Iterator[Path]:
        """Mount a copy (ext4 replays its journal, as after power returns), and delete it at the end."""
        with mounted(copy, self._folder / copy.stem) as path:
            yield path
        path.rmdir()
        copy.unlink()


@contextlib.contextmanager
def cuttable_disk(folder: Path) -> Iterator[CuttableDisk]:
    """Make the two images, mount them, and remove both at the end; skips if that is not possible."""
    skip_without_mounts("power cuts", "mkfs.xfs")
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < FREE_BYTES_MIN:
        pytest.skip(f"power cuts need {FREE_BYTES_MIN >> 30} GiB of disk, {free_bytes >> 20} MiB are free in {folder}")
    disk = CuttableDisk(folder)
    outer_image, inner_image = folder / "outer.img", folder / "outer" / "disk.img"
    try:
        make_image(outer_image, OUTER_BYTES, "mkfs.xfs", "-q", "-m", "reflink=1")
        with mounted(outer_image, folder / "outer", else_skip="power cuts need XFS on a loop device"):
            make_image(inner_image, INNER_BYTES, "mkfs.ext4", "-q", "-E", MKFS_OPTIONS)
            with mounted(inner_image, disk.path, by_page=True):
                yield disk
    finally:
        outer_image.unlink(missing_ok=True)
