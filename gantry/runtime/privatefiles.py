"""Small files that only their owner may read: keys, and data derived from keys."""

import os
from typing import Final

PRIVATE_MODE: Final = 0o600


def write_private(path: str, data: bytes) -> None:
    """Replace a file and make it durable. A crash leaves the old or the new content. The file always has mode 0600.

    Raises:
        OSError: The file can't be written. The old content is kept.
    """
    folder = os.path.dirname(path) or "."
    os.makedirs(folder, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_MODE)
    try:
        with open(fd, "wb") as file:
            # The temporary file may exist from an earlier crash and have another mode.
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
    """Return the content of a file, or None if it does not exist. Raises OSError if the file can't be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
