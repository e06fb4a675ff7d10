"""Gantry's own mark in a store: `config/gantry.json` (docs/formats/config.md).

It says which format the store has and from which physical offset on every record carries the checksum over the
whole record. Beyond that offset a record without one is damaged; before it, records came from Apache RocketMQ, which
writes none by default.

Since a store may go back to Apache RocketMQ for a while, the mark also holds where the CommitLog ended when Gantry
stopped in order. What lies beyond that end was written by somebody else, and the boundary moves past it.

    {"format_version": 1, "record_checksum_from": 1269493, "clean_stop_offset": null}
"""

import json
from dataclasses import dataclass
from typing import Any, Final, Self

from gantry.runtime.files import FileSystem, write_atomically
from gantry.storeformat.errors import BrokenFileError, NewerFormatError
from gantry.storeformat.layout import CONFIG_DIR, MARK_FILE

FORMAT_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class GantryMark:
    """What the mark says.

    Attributes:
        format_version: Of the store; a greater one than FORMAT_VERSION is refused.
        record_checksum_from: Physical offset from which every record has the whole-record checksum; None if such
            records can't be told from others, because the checksum is switched off.
        clean_stop_offset: Where the CommitLog ended at the last orderly stop; None while a broker runs, and after
            a crash.
    """

    format_version: int = FORMAT_VERSION
    record_checksum_from: int | None = None
    clean_stop_offset: int | None = None

    def demands_record_crc(self, physical_offset: int) -> bool:
        """Say whether a record at this offset must carry the whole-record checksum."""
        start, end = self.record_checksum_from, self.clean_stop_offset
        return start is not None and physical_offset >= start and (end is None or physical_offset < end)

    def encode(self) -> bytes:
        """Return the file's content."""
        content = {
            "format_version": self.format_version,
            "record_checksum_from": self.record_checksum_from,
            "clean_stop_offset": self.clean_stop_offset,
        }
        return json.dumps(content, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, path: str = MARK_FILE) -> Self:
        """Read the file's content.

        Raises:
            NewerFormatError: The version is greater than this release's.
            BrokenFileError: The content is not the mark's JSON. Members that are not known are ignored.
        """
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise BrokenFileError(path, f"is not JSON: {error}") from None
        if not isinstance(content, dict):
            raise BrokenFileError(path, "is not a JSON object")
        version: Any = content.get("format_version")
        if not _is_count(version) or version < 1:
            raise BrokenFileError(path, f"format_version is {version!r}, not a positive number")
        if version > FORMAT_VERSION:
            raise NewerFormatError(
                f"{path}: the store has format {version}, this release knows formats up to {FORMAT_VERSION}: "
                "use the release that wrote it, or a later one"
            )
        offsets: list[int | None] = []
        for name in ("record_checksum_from", "clean_stop_offset"):
            value = content.get(name)
            if value is not None and not _is_count(value):
                raise BrokenFileError(path, f"{name} is {value!r}, neither null nor an offset")
            offsets.append(value)
        return cls(version, *offsets)

    @classmethod
    def load(cls, files: FileSystem, root: str) -> Self | None:
        """Return the mark of the store in `root`, or None where there is none (the store came from elsewhere).

        Raises:
            NewerFormatError: A broker must not start on this store.
            BrokenFileError: The file is there and can't be understood.
        """
        path = f"{root}/{MARK_FILE}"
        if not files.exists(path):
            return None
        return cls.decode(files.read(path), path)

    def dump(self, files: FileSystem, root: str) -> None:
        """Write the mark; atomic and durable."""
        files.make_dirs(f"{root}/{CONFIG_DIR}")
        write_atomically(files, f"{root}/{MARK_FILE}", self.encode())

    def stopped(self, log_end: int) -> Self:
        """Return the mark to leave behind at an orderly stop, after the last flush."""
        return type(self)(self.format_version, self.record_checksum_from, log_end)


def trusted_mark(found: GantryMark | None, *, has_abort: bool) -> GantryMark | None:
    """Return what a store's mark still vouches for; everything that reads the mark goes through here.

    A mark without a clean stop beside a missing `abort` file can only mean that somebody else recovered the store
    after our crash, ran on it and stopped in order: from where on the records are theirs is not known.
    """
    if found is None or has_abort or found.clean_stop_offset is not None:
        return found
    return GantryMark(found.format_version)


def opened_mark(previous: GantryMark | None, *, log_end: int, record_checksum: bool) -> GantryMark:
    """Return the mark to write at start, before the first record is appended.

    Args:
        previous: What the store had (`trusted_mark`); None for a new store and one of Apache RocketMQ.
        log_end: Where the CommitLog ends after recovery, that is where the first record will lie.
        record_checksum: Whether records are going to carry the whole-record checksum.
    """
    if not record_checksum:
        return GantryMark()
    if previous is None or previous.record_checksum_from is None:
        return GantryMark(record_checksum_from=log_end)
    if previous.clean_stop_offset is not None and log_end > previous.clean_stop_offset:
        # Somebody else has appended since.
        return GantryMark(record_checksum_from=log_end)
    return GantryMark(record_checksum_from=min(previous.record_checksum_from, log_end))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
