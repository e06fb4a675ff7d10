"""The files config/*.json on disk: each file, its backup, and the order in which they are replaced.

Durability: a write first copies NAME to NAME.bak, then replaces NAME. After a crash, each of them is complete. A write
copies only content that this process has read or written. It keeps a file that could not be read as NAME.broken, and
leaves the backup, which may be the only good copy.

If a file is missing, empty or broken, the broker reads its .bak and logs a warning. If that is broken too, the broker
does not start: topics and offsets that silently become empty are worse. A file without its table, or with one wrong
entry, is broken as a whole (gantry.storeformat.configtables). A file that can't be opened now (no descriptors, no
permission) may be good, so the start or the save fails and changes nothing.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import TypeVar

import msgspec

from gantry.runtime.errors import StartupError
from gantry.runtime.files import FileSystem, write_atomically
from gantry.runtime.telemetry import logger
from gantry.storeformat.configjson import (
    BACKUP_SUFFIX,
    BROKEN_SUFFIX,
    CONTENT_IS_LOST,
    UnreadableConfigError,
    read_config,
)
from gantry.storeformat.configtables import parse_table

log = logger("broker.config")

T = TypeVar("T")


class ConfigFile:
    """One file of config/ and its backup.

    Concurrency: one thread at a time.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        self._files = files
        self.path = path
        self._name = path.rpartition("/")[2]
        # The CRC-32 of the content that is known to be good. A checksum is cheap, and zlib releases the GIL while it
        # works.
        self._good_crc: int | None = None
        self._was_read = False

    def read(self, kind: type[T]) -> T | None:
        """Read the file, or its backup, as `kind`, a msgspec type.

        Returns:
            The value, or None if both files are missing or empty.

        Raises:
            StartupError: The files have content, but none of it can be read.
        """
        self._was_read = True

        def decode(data: bytes) -> T:
            return msgspec.convert(parse_table(self._name, data), type=kind, strict=False, str_keys=True)

        try:
            found = read_config(self._files, self.path, decode)
        except UnreadableConfigError as error:
            if error.is_empty:
                log.warning("config file is empty, and so is its table", path=self.path)
                return None
            raise StartupError(self._advice(error)) from None
        if found is None:
            return None
        if found.problem is None:
            self._good_crc = zlib.crc32(found.data)
        else:
            log.warning(
                "config file can't be read, the broker uses its backup, which lacks the latest changes",
                path=self.path,
                reason=found.problem,
                used=found.path,
            )
        return found.content

    def _advice(self, error: UnreadableConfigError) -> str:
        reasons = "; ".join(f"{path} {reason}" for path, reason in error.reasons.items())
        if error.may_be_valid:
            return (
                f"{reasons}. Nothing was changed. Let the broker read that file (see its owner and mode, and the limits "
                "of open files and memory), and start again"
            )
        has_backup = self.path + BACKUP_SUFFIX in error.reasons
        return (
            f"{reasons}{'' if has_backup else '; there is no backup of it (.bak)'}. The broker does not start, because it "
            f"would forget what the file held; nothing was changed. Correct {self.path} or put a good copy in its place; "
            f"to go on without its content, move {'both it and its .bak' if has_backup else 'it'} away. Then start again"
        )

    def write(self, pieces: Iterable[bytes]) -> None:
        """Replace the file, and keep its old content as the backup if that was good. Durable on return.

        Raises:
            OSError: The disk failed. Both files are still complete.
        """
        self._back_up()
        checksum = 0

        def counted() -> Iterator[bytes]:
            nonlocal checksum
            for piece in pieces:
                checksum = zlib.crc32(piece, checksum)
                yield piece

        write_atomically(self._files, self.path, counted())
        self._good_crc, self._was_read = checksum, True

    def _back_up(self) -> None:
        try:
            old = self._files.read(self.path)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in CONTENT_IS_LOST:
                raise  # For example no descriptors or no memory, which says nothing about the file.
            old = b""
        if self._is_good(old):
            write_atomically(self._files, self.path + BACKUP_SUFFIX, old)
            return
        log.warning(
            "the broker did not read or write this content of a config file; it keeps the file aside and leaves the "
            "backup as it is",
            path=self.path,
            kept=self.path + BROKEN_SUFFIX,
        )
        self._files.replace(self.path, self.path + BROKEN_SUFFIX)

    def _is_good(self, data: bytes) -> bool:
        if self._was_read:
            return zlib.crc32(data) == self._good_crc
        try:
            parse_table(self._name, data)
        except ValueError:
            return False
        return True
