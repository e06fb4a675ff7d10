"""A disk with bad blocks: an ext4 file system in an image whose last block can't be read.

The image file ends in front of its last block, so that reading that block is an error of the block device (EIO from
`read`, SIGBUS through a map). mkfs is told that the block is bad, so that no file gets it by itself; `debugfs` puts it
in the place of any page of a file. Files have block tables instead of extents, since only tables can be changed entry
by entry.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tests.support.mounts import make_image, mounted, run, skip_without_mounts

IMAGE_BYTES: Final = 64 << 20
PAGE_BYTES: Final = 4096
_BAD_BLOCK: Final = IMAGE_BYTES // PAGE_BYTES - 1
_FEATURES: Final = "^extent,^64bit,^metadata_csum,^has_journal"
# Later blocks are listed in indirect tables.
_DIRECT_BLOCKS: Final = 12


class BadDisk:
    """The disk. All its pages can be read until `mark_bad` names some."""

    def __init__(self, folder: Path, *, copied_from: "BadDisk | None" = None) -> None:
        """Make a new disk, or a copy of a disk that is not mounted."""
        skip_without_mounts("tests of pages that can't be read", "debugfs")
        self.path = folder / "disk"
        self._image = folder / "disk.img"
        if copied_from is not None:
            run("cp", "--sparse=always", str(copied_from._image), str(self._image))
            return
        bad_blocks = folder / "bad-blocks"
        bad_blocks.write_text(f"{_BAD_BLOCK}\n")
        block = ("-b", str(PAGE_BYTES))
        make_image(
            self._image, IMAGE_BYTES, "mkfs.ext4", "-q", "-m", "0", *block, "-O", _FEATURES, "-l", str(bad_blocks)
        )

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        """Mount the disk with an empty page cache."""
        skip = "tests of pages that can't be read need ext4 on a loop device"
        os.truncate(self._image, IMAGE_BYTES)
        with mounted(self._image, self.path, else_skip=skip) as path:
            os.truncate(self._image, _BAD_BLOCK * PAGE_BYTES)
            yield path

    def mark_bad(self, pages: Iterable[tuple[str, int]]) -> None:
        """Make pages unreadable while the disk is not mounted: paths relative to its folder, and page numbers."""
        for name, page in pages:
            assert 0 <= page < _DIRECT_BLOCKS, f"page {page} of {name} has no entry in its inode"
            run("debugfs", "-w", "-R", f"sif /{name} block[{page}] {_BAD_BLOCK}", str(self._image))
