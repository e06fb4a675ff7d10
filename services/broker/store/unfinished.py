"""Files that a crash left unfinished, or that have another size: put right before a folder's files are opened.

A file is made under a temporary name, or, by earlier releases and where it can be built again, under its own. A power
cut leaves the temporary file, or a file of any size up to its full one: ext4 lets it grow while it allocates.

- A temporary file goes.
- A file that is too short and holds nothing goes, if it is of the CommitLog, whose files are complete before anything is
  written to them. One that can be built again is made empty: its name says that something is missing there.
- A file of a queue that has another size gets its full one: it is filled up with zeros, or cut. One that begins where
  none can begin goes. Recovery builds what is missing. (If all files of queues have another size, the setting was
  changed: the start is refused, see consumequeuestore.py.)
- A file of the CommitLog that is too short and holds something is the work of a person, or of a copy that was cut off.
  It is left as it is, and the start is refused (MappedFileQueue.load).
"""

from collections.abc import Iterable
from errno import EIO
from typing import Final

from gantry.runtime.files import FileSystem
from gantry.runtime.telemetry import logger
from gantry.storeformat.blankfile import is_blank_file
from gantry.storeformat.layout import parse_file_name
from services.broker.store.mappedfile import remove_file

TEMPORARY_SUFFIX = ".new"
_PAGE_BYTES: Final = 4096
_MENDED: Final = "a file of a queue has another size than it should; recovery builds what is missing"

log = logger("broker.store")


def find_unfinished(listed: Iterable[tuple[str, int]], file_size: int, *, is_derived: bool = False) -> list[str]:
    """Return the names of files to be put right among names and sizes of files.

    Args:
        listed: Files of a folder whose files are named by their first byte's offset.
        file_size: Size of a finished file.
        is_derived: They can be built again from the CommitLog; otherwise files that are too long are left out.
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
    """Clear unfinished files away, or give them their full size.

    Args:
        files: The file system.
        paths: Paths of the unfinished files.
        file_size: Size of a finished file.
        is_derived: They can be built again from the CommitLog.

    Returns:
        Whether a file went, or was filled up or cut, so that units may be missing.
    """
    has_mended = False
    # Temporary files go first: the mending of a file makes a new one under the same name.
    for path in sorted(paths, key=lambda path: not path.endswith(TEMPORARY_SUFFIX)):
        size = files.size_bytes(path)
        if path.endswith(TEMPORARY_SUFFIX):
            files.remove(path)
        elif not is_blank_file(files, path):
            if is_derived:
                _mend(files, path, file_size)
                has_mended = True
                log.warning(_MENDED, path=path, bytes=size, expected_bytes=file_size)
        elif not is_derived:
            remove_file(files, path)
            log.warning("an unfinished file without records was removed", path=path, bytes=size)
        elif size > 0:
            files.write(path, b"")
    return has_mended


def _mend(files: FileSystem, path: str, file_size: int) -> None:
    start = parse_file_name(path.rpartition("/")[2])
    if start is None or start % file_size:
        remove_file(files, path)
    else:
        complete(files, path, file_size)


def complete(files: FileSystem, path: str, file_size: int) -> int:
    """Replace a file by one of the full size with the same content, as far as it fits, and zeros for unreadable pages.

    Returns:
        How many bytes the disk can't read, in whole pages.

    Raises:
        OSError: The new file can't be made.
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
