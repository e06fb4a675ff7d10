"""Opens a store's folder, or an archive of one, for several processes that read it at the same time.

A broker locks its store exclusively. Spark's workers are processes, so readers share a lock that excludes brokers but
not other readers. So a broker can't start on a store that a task reads, and a task can't begin while a broker runs.

An archive is unpacked once for each machine and user, into a folder named after the archive's path, size and time.
Folders that were not opened for a day are removed before the next archive is unpacked.
"""

import hashlib
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from gantry.runtime.clock import SystemClock
from gantry.runtime.filelock import lock_dir, lock_file
from gantry.runtime.files import FileLock
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.errors import NotAStoreError, StoreFileError
from gantry.storeformat.layout import (
    ABORT_FILE,
    CHECKPOINT_FILE,
    COMMIT_LOG_DIR,
    CONFIG_DIR,
    CONSUME_QUEUE_DIR,
)
from gantry.storeformat.scan import StoreReader

ARCHIVE_ENDINGS: Final = (".tar", ".tar.gz", ".tgz", ".zip")
KEPT_UNUSED_MS: Final = 24 * 3_600_000
FREE_BYTES_MIN: Final = 256 << 20
"""The disk space that unpacking leaves free."""

_WANTED: Final = (COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, CONFIG_DIR, ABORT_FILE, CHECKPOINT_FILE)
_DONE: Final = ".unpacked"
"""The file that is made last, and touched whenever the folder is used."""


class SharedFileSystem(OsFileSystem):
    """The real file system, with locks that readers share and that exclude brokers."""

    __slots__ = ()

    def lock(self, path: str) -> FileLock:
        """Take a shared lock on byte 0 of a file; it excludes exclusive locks. Raises AlreadyLockedError, OSError."""
        return lock_file(path, shared=True)

    def lock_dir(self, path: str) -> FileLock:
        """Take a shared lock on a folder; it excludes exclusive locks. Raises AlreadyLockedError, OSError."""
        return lock_dir(path, shared=True)


def open_store(path: str) -> StoreReader:
    """Open a store's folder, or an archive of one.

    Raises:
        StoreFileError: There is no store, a broker runs on it, a later release wrote it, or the archive can't be
            unpacked.
    """
    name = path.removeprefix("file://")
    if Path(name).is_file():
        if not name.lower().endswith(ARCHIVE_ENDINGS):
            raise NotAStoreError(f"{path}: is neither a folder nor one of {', '.join(ARCHIVE_ENDINGS)}")
        name = str(unpacked(Path(name)))
    return StoreReader(SharedFileSystem(), _store_in(Path(name)))


def store_name(path: str) -> str:
    """Return a store's name from its path, for stores that do not contain one: `broker-a` for `…/broker-a/store`."""
    place = Path(path.removeprefix("file://").rstrip("/")).absolute()
    name = place.parent.name if place.name == "store" and place.parent.name else place.name
    for ending in sorted(ARCHIVE_ENDINGS, key=len, reverse=True):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def unpacked(archive: Path) -> Path:
    """Return the folder with the unpacked archive, limited to the parts that reading needs. Raises StoreFileError."""
    found = archive.stat()
    key = hashlib.sha256(f"{archive.absolute()}|{found.st_size}|{found.st_mtime_ns}".encode()).hexdigest()[:32]
    root = _cache_folder()
    target = root / key
    if not (target / _DONE).exists():
        _remove_unused(root)
        scratch = Path(tempfile.mkdtemp(dir=root))
        try:
            _unpack(archive, scratch)
            (scratch / _DONE).touch()
            with suppress(OSError):  # Another process was faster.
                scratch.rename(target)
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, ValueError) as error:
            raise StoreFileError(f"{archive}: can't be unpacked: {error}") from error
        finally:
            _remove_tree(scratch)
    (target / _DONE).touch()
    return target


def _unpack(archive: Path, target: Path) -> None:
    if archive.name.lower().endswith(".zip"):
        with zipfile.ZipFile(archive) as zipped:
            infos = [info for info in zipped.infolist() if _is_wanted(info.filename)]
            _check_room(archive, target, sum(info.file_size for info in infos))
            for info in infos:
                zipped.extract(info, target)
        return
    with tarfile.open(archive) as tar:
        members = [member for member in tar.getmembers() if _is_wanted(member.name)]
        _check_room(archive, target, sum(map(_bytes_of, members)))
        # The filter rejects members that would be, or point, outside of the folder.
        tar.extractall(target, members, filter="data")


def _bytes_of(member: tarfile.TarInfo) -> int:
    """Return the disk space of a member. The files of a store are preallocated, and consist mostly of holes."""
    chunks: Iterable[tuple[int, int]] | None = getattr(member, "sparse", None)
    return member.size if chunks is None else sum(size for _, size in chunks)


def _check_room(archive: Path, target: Path, needed: int) -> None:
    usable = OsFileSystem().disk_usage(str(target)).usable
    if needed + FREE_BYTES_MIN > usable:
        raise StoreFileError(f"{archive}: unpacked it takes {needed} bytes, {target.parent} has {usable} left")


def _is_wanted(name: str) -> bool:
    return any(part in _WANTED for part in name.split("/"))


def _store_in(folder: Path) -> str:
    """Return the store in a folder: the folder itself, or the only store in the two levels below it."""
    if (folder / COMMIT_LOG_DIR).is_dir() or not folder.is_dir():
        return str(folder)
    found = [place.parent for pattern in ("*", "*/*") for place in folder.glob(f"{pattern}/{COMMIT_LOG_DIR}")]
    if len(found) > 1:
        names = ", ".join(sorted(str(place.relative_to(folder)) for place in found)[:8])
        raise NotAStoreError(f"{folder}: holds several stores, name one of them: {names}")
    return str(found[0] if found else folder)


def _cache_folder() -> Path:
    """Return a folder that only this user can access: in a shared one, other users could plant a store."""
    scratch = Path(tempfile.mkdtemp())
    try:
        user = scratch.stat().st_uid
    finally:
        scratch.rmdir()
    folder = Path(tempfile.gettempdir()) / f"gantry-stores-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != user or found.st_mode & 0o077 or folder.is_symlink():
        raise StoreFileError(
            f"{folder}: belongs to another user, or is open to others: archives can't be unpacked there"
        )
    return folder


def _remove_unused(root: Path) -> None:
    now_ms = SystemClock().now_ms()
    for folder in root.iterdir():
        mark = folder / _DONE if (folder / _DONE).exists() else folder
        with suppress(OSError):
            if now_ms - mark.stat().st_mtime_ns // 1_000_000 > KEPT_UNUSED_MS:
                _remove_tree(folder)


def _remove_tree(folder: Path) -> None:
    if not folder.is_dir() or folder.is_symlink():
        return
    for place in sorted(folder.rglob("*"), reverse=True):
        if place.is_dir() and not place.is_symlink():
            place.rmdir()
        else:
            place.unlink()
    folder.rmdir()
