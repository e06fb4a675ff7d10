"""Blank files: files with no data, which a power cut can leave while the broker creates them.

ext4 lets a file grow while it allocates the file's blocks. Such a file can therefore have any size up to its full size.
"""

from errno import EIO
from typing import Final

from gantry.runtime.files import FileSystem

_PIECE_BYTES: Final = 1 << 20


def is_blank_file(files: FileSystem, path: str) -> bool:
    """Return whether a file has no byte other than zero.

    Allocated space that was never written is not read. A file that the disk can't read has been written, so it is not
    blank.
    """
    if files.size_bytes(path) == 0:
        return True
    file = files.open(path, writable=False)
    try:
        end = file.data_end(0)
        return all(not file.read(at, min(_PIECE_BYTES, end - at)).strip(b"\0") for at in range(0, end, _PIECE_BYTES))
    except OSError as error:
        if error.errno != EIO:
            raise
        return False
    finally:
        file.close()
