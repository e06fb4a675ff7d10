"""Repairs files that a crash left unfinished, or that have a wrong size, before a folder's files are opened.

A file is created under a temporary name. Earlier releases, and files that can be rebuilt, use the final name at once. A
power cut leaves the temporary file, or a file of any size up to its full one: ext4 lets a file grow while it allocates
blocks.

- A temporary file is removed.
- A blank file that is too short is removed if it belongs to the CommitLog, whose files are complete before anything is
  written to them. A blank file that can be rebuilt is made empty: its name says that something is missing there.
- A queue file of another size gets its full size: it is filled up with zeros, or cut. A queue file that begins at an
  impossible offset is removed. Recovery rebuilds the missing units. (If all queue files have another size, the setting
  was changed, and the start is rejected: consumequeuestore.py.)
- A file of the CommitLog that is too short and has data was changed by a person, or is an incomplete copy. It is not
  changed, and the start is rejected (MappedFileQueue.load).
"""

from collections.abc import Iterable
from errno import EIO
from typing import Final

from gantry.runtime.files import FileSystem
from gantry.runtime.telemetry import logger
from gantry.storeformat.blankfile import is_blank_file
from gantry.storeformat.layout import parse_file_name
from services.broker.store.files.mappedfile import remove_file

TEMPORARY_SUFFIX = ".new"
_PAGE_BYTES: Final = 4096
_REPAIRED: Final = "a file of a queue has another size than it should; recovery builds what is missing"

log = logger("broker.store")


def find_unfinished(listed: Iterable[tuple[str, int]], file_size: int, *, is_derived: bool = False) -> list[str]:
    """Return the names of the files to be repaired.

    Args:
        listed: The names and sizes of the files in a folder whose files are named by their first byte's offset.
        file_size: The size of a finished file.
        is_derived: Whether the files can be rebuilt from the CommitLog; otherwise files that are too long are left out.
    """
    found = []
    for name, size in listed:
        start = parse_file_name(name.removesuffix(TEMPORARY_SUFFIX))
        if start is None:
            continue
        is_odd = is_derived and (size > file_size or start % file_size != 0)
        if size < file_size or name.endswith(TEMPORARY_SUFFIX) or is_odd:
            found.append(name)
    return found


def clear_unfinished(files: FileSystem, paths: Iterable[str], file_size: int, *, is_derived: bool) -> bool:
    """Remove unfinished files, or give them their full size.

    Args:
        files: The file system.
        paths: The paths of the unfinished files.
        file_size: The size of a finished file.
        is_derived: Whether the files can be rebuilt from the CommitLog.

    Returns:
        Whether a file with data was removed, filled up or cut, so that units may be missing.
    """
    has_repaired = False
    # Temporary files first, because the repair of a file creates a new one with the same name.
    for path in sorted(paths, key=lambda path: not path.endswith(TEMPORARY_SUFFIX)):
        size = files.size_bytes(path)
        if path.endswith(TEMPORARY_SUFFIX):
            files.remove(path)
        elif not is_blank_file(files, path):
            if is_derived:
                _repair(files, path, file_size)
                has_repaired = True
                log.warning(_REPAIRED, path=path, bytes=size, expected_bytes=file_size)
        elif not is_derived:
            remove_file(files, path)
            log.warning("an unfinished file without records was removed", path=path, bytes=size)
        elif size > 0:
            files.write(path, b"")
    return has_repaired


def _repair(files: FileSystem, path: str, file_size: int) -> None:
    start = parse_file_name(path.rpartition("/")[2])
    if start is None or start % file_size:
        remove_file(files, path)
    else:
        complete(files, path, file_size)


def complete(files: FileSystem, path: str, file_size: int) -> int:
    """Replace a file with one of the full size: the same content, as far as it fits, and zeros for unreadable pages.

    Returns:
        The number of bytes that the disk can't read, in whole pages.

    Raises:
        OSError: The new file can't be created.
    """
    unreadable, temporary = 0, f"{path}{TEMPORARY_SUFFIX}"
    source = files.open(path, writable=False)
    try:
        file = files.create(temporary, file_size, sparse=True)
        try:
            end = min(source.data_end(0), file_size)
            for at in range(0, end, _PAGE_BYTES):
                size = min(_PAGE_BYTES, end - at)
                try:
                    file.write(at, [source.read(at, size)])
                except OSError as error:
                    if error.errno != EIO:
                        raise
                    unreadable += size
            file.sync()
        finally:
            file.close()
    finally:
        source.close()
    files.replace(temporary, path)
    files.sync_dir(path.rpartition("/")[0])
    return unreadable
