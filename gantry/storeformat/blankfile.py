"""Files that hold nothing: what a power cut leaves of a file that was being made.

ext4 lets a file grow while it allocates its blocks, so that such a file may have any size up to its full one.
"""

from errno import EIO
from typing import Final

from gantry.runtime.files import FileSystem

_PIECE_BYTES: Final = 1 << 20


def is_blank_file(files: FileSystem, path: str) -> bool:
    """Say whether a file has no byte but zeros. Space that was allocated and never written is not read.

    A file that the disk can't read was written, so it is not blank.
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
