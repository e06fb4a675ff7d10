"""Small files, folders and names of the real file system, by path. `gantry.runtime.files` documents the interface.

All OSErrors name the path, even those from calls on a descriptor.
"""

import os
import stat
from collections.abc import Iterable

from gantry.runtime.errors import add_path


def find_mode(path: str) -> int | None:
    """Return the mode of a path, or None if the path does not exist. Other errors raise, unlike in `os.path.exists`."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_dir(path: str) -> bool:
    """Return whether a path is a folder."""
    mode = find_mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def make_dirs(path: str) -> None:
    """Create a folder and its parents."""
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError:
        # makedirs also raises this for an existing folder if it can't check the path.
        if not is_dir(path):
            raise


def read(path: str) -> bytes:
    """Return the content of a file."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        add_path(error, path)
        raise


def write(path: str, data: bytes | Iterable[bytes], *, durable: bool) -> None:
    """Write a file in place."""
    try:
        with open(path, "wb") as file:
            file.writelines((data,) if isinstance(data, bytes) else data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
    except OSError as error:
        add_path(error, path)
        raise
    if durable:
        sync_dir(os.path.dirname(path) or ".")


def sync_dir(path: str) -> None:
    """Make the names in a folder durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        add_path(error, path)
        raise
    finally:
        os.close(fd)
