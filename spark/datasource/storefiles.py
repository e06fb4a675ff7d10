"""Opening a store's folder, or an archive of one, for several processes that read it at the same time.

A broker locks its store for itself alone. Readers share a lock that keeps brokers out and each other not, since
Spark's workers are processes: no broker starts on what a task reads, and none may run when a task begins.

An archive is unpacked once a machine and user, into a folder named after the archive's path, size and time; what
nobody has opened for a day is removed when the next one is unpacked.
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
"""What unpacking leaves free."""

_WANTED: Final = (COMMIT_LOG_DIR, CONSUME_QUEUE_DIR, CONFIG_DIR, ABORT_FILE, CHECKPOINT_FILE)
_DONE: Final = ".unpacked"
"""Made last, and touched whenever the folder is used."""


class SharedFileSystem(OsFileSystem):
    """The real one, whose locks are shared with other readers and exclude brokers."""

    __slots__ = ()

    def lock(self, path: str) -> FileLock:
        """Lock byte 0 of a file against those that lock it for themselves. Raises AlreadyLockedError, OSError."""
        return lock_file(path, shared=True)

    def lock_dir(self, path: str) -> FileLock:
        """Lock a folder against those that lock it for themselves. Raises AlreadyLockedError, OSError."""
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
    """Return what a store is called after its path, where nothing in it says so: `broker-a` of `…/broker-a/store`."""
    place = Path(path.removeprefix("file://").rstrip("/")).absolute()
    name = place.parent.name if place.name == "store" and place.parent.name else place.name
    for ending in sorted(ARCHIVE_ENDINGS, key=len, reverse=True):
        if name.lower().endswith(ending):
            return name[: -len(ending)]
    return name


def unpacked(archive: Path) -> Path:
    """Return the folder an archive is unpacked to; what reading needs of it. Raises StoreFileError."""
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
        # The filter refuses what would land, or point, outside of the folder.
        tar.extractall(target, members, filter="data")


def _bytes_of(member: tarfile.TarInfo) -> int:
    """Return what a member takes on the disk: files of a store are preallocated, and mostly holes."""
    chunks: Iterable[tuple[int, int]] | None = getattr(member, "sparse", None)
    return member.size if chunks is None else sum(size for _, size in chunks)


def _check_room(archive: Path, target: Path, needed: int) -> None:
    usable = OsFileSystem().disk_usage(str(target)).usable
    if needed + FREE_BYTES_MIN > usable:
        raise StoreFileError(f"{archive}: unpacked it takes {needed} bytes, {target.parent} has {usable} left")


def _is_wanted(name: str) -> bool:
    return any(part in _WANTED for part in name.split("/"))


def _store_in(folder: Path) -> str:
    """Return the store in a folder: itself, or a folder in it or in one of those, where it is the only one."""
    if (folder / COMMIT_LOG_DIR).is_dir() or not folder.is_dir():
        return str(folder)
    found = [place.parent for pattern in ("*", "*/*") for place in folder.glob(f"{pattern}/{COMMIT_LOG_DIR}")]
    if len(found) > 1:
        names = ", ".join(sorted(str(place.relative_to(folder)) for place in found)[:8])
        raise NotAStoreError(f"{folder}: holds several stores, name one of them: {names}")
    return str(found[0] if found else folder)


def _cache_folder() -> Path:
    """Return a folder of this user's alone; others could put another store in our way."""
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
            f"{folder}: belongs to somebody else, or is open to others: archives can't be unpacked there"
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
