"""Small files that only their owner may read: keys and what is derived from them."""

import os
from typing import Final

PRIVATE_MODE: Final = 0o600


def write_private(path: str, data: bytes) -> None:
    """Replace a file so that a crash leaves the old or the new content; mode 0600 from its first byte on.

    Raises:
        OSError: It can't be written; the old content is still there.
    """
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_MODE)
    try:
        with open(fd, "wb") as file:
            # A file that was left behind may have had another mode.
            os.fchmod(fd, PRIVATE_MODE)
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_private(path: str) -> bytes | None:
    """Return a file's content, or None where there is no such file. Raises OSError where it can't be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
