"""Gantry's own manifest in a store: `config/gantry.json` (docs/formats/config.md).

The manifest says which format the store has. It also holds the physical offset from which every record carries the
checksum over the whole record. From there on, a record without this checksum is damaged. Records before that offset came from
Apache RocketMQ, which by default writes no such checksum.

A store may go back to Apache RocketMQ for a while. The manifest therefore also holds the end of the CommitLog at
Gantry's last orderly stop. Another program wrote the bytes after that end, and the offset from which checksums are required
moves past them.

While Gantry starts or stops, the store has both the clean stop's offset and the `abort` file. A crash of Apache
RocketMQ leaves the same state. To tell the two apart, the manifest names the process that the `abort` file belongs to
(`StoreFolder.is_ours`).

    {"format_version": 1, "record_checksum_from": 1269493, "clean_stop_offset": null, "clean_stop_derived": null,
     "abort_process_id": null, "opened_offset": 1269493, "opened_derived": {"queues": 1, "units": 9, "index_end": 0,
     "files": 1}}
"""

import json
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Self

from gantry.runtime.files import FileSystem, write_atomically
from gantry.storeformat.errors import BrokenFileError, NewerFormatError
from gantry.storeformat.layout import CONFIG_DIR, MANIFEST_FILE

FORMAT_VERSION: Final = 1


class DerivedState(NamedTuple):
    """The size of everything derived from the CommitLog; a start compares it to notice changes since the stop."""

    queues: int
    """The number of ConsumeQueues that have or had a unit."""
    units: int
    """The sum of the queues' max offsets."""
    index_end: int
    """The physical offset of the last message in the index."""
    files: int = 0
    """The number of files of those queues; 0 in marks of releases that did not count them."""


@dataclass(frozen=True, slots=True)
class StoreManifest:
    """The content of the manifest.

    Attributes:
        format_version: The store's format; a version greater than FORMAT_VERSION is rejected.
        record_checksum_from: The physical offset from which every record has the whole-record checksum; None if such
            records can't be told from others, because the checksum is switched off.
        clean_stop_offset: The end of the CommitLog at the last orderly stop; None while a broker runs, and after a
            crash.
        clean_stop_derived: The state of queues and index at that stop; None if the offset is None, and in marks of
            releases that did not write it.
        abort_process_id: The id of a Gantry process that is starting or stopping: an `abort` file with this process id
            belongs to it; None at all other times.
        opened_offset: The end of the CommitLog when the last start was complete; None after an orderly stop, and in
            marks of releases that did not write it.
        opened_derived: The state of queues and index when the last start was complete; None if `opened_offset` is None.
    """

    format_version: int = FORMAT_VERSION
    record_checksum_from: int | None = None
    clean_stop_offset: int | None = None
    clean_stop_derived: DerivedState | None = None
    abort_process_id: int | None = None
    opened_offset: int | None = None
    opened_derived: DerivedState | None = None

    def demands_record_crc(self, physical_offset: int) -> bool:
        """Return whether a record at this offset must carry the whole-record checksum."""
        start, end = self.record_checksum_from, self.clean_stop_offset
        return start is not None and physical_offset >= start and (end is None or physical_offset < end)

    def may_be_copied_crc(self, physical_offset: int) -> bool:
        """Return whether a record at this offset may have the whole-record checksum of another record.

        RocketMQ's broker stores a popped message again with all its properties, also with the checksum of a record that
        Gantry wrote.
        """
        return self.record_checksum_from is not None and not self.demands_record_crc(physical_offset)

    def encode(self) -> bytes:
        """Return the file's content."""
        content = {
            "format_version": self.format_version,
            "record_checksum_from": self.record_checksum_from,
            "clean_stop_offset": self.clean_stop_offset,
            "clean_stop_derived": self.clean_stop_derived and self.clean_stop_derived._asdict(),
            "abort_process_id": self.abort_process_id,
            "opened_offset": self.opened_offset,
            "opened_derived": self.opened_derived and self.opened_derived._asdict(),
        }
        return json.dumps(content, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes, path: str = MANIFEST_FILE) -> Self:
        """Parse the file's content and ignore unknown members.

        Raises:
            NewerFormatError: The version is greater than this release's.
            BrokenFileError: The content is not the manifest's JSON.
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
        offsets: dict[str, int | None] = {}
        for name in ("record_checksum_from", "clean_stop_offset"):
            value = content.get(name)
            if value is not None and not _is_count(value):
                raise BrokenFileError(path, f"{name} is {value!r}, neither null nor an offset")
            offsets[name] = value
        return cls(
            version,
            offsets["record_checksum_from"],
            offsets["clean_stop_offset"],
            _derived(content.get("clean_stop_derived")),
            _count(content.get("abort_process_id")),
            _count(content.get("opened_offset")),
            _derived(content.get("opened_derived")),
        )

    @classmethod
    def load(cls, files: FileSystem, root: str) -> Self | None:
        """Return the manifest of the store in `root`, or None if another program made the store.

        Raises:
            NewerFormatError: A broker must not start on this store.
            BrokenFileError: The file exists but can't be parsed.
        """
        path = f"{root}/{MANIFEST_FILE}"
        if not files.exists(path):
            return None
        return cls.decode(files.read(path), path)

    def dump(self, files: FileSystem, root: str) -> None:
        """Write the manifest atomically and durably."""
        files.make_dirs(f"{root}/{CONFIG_DIR}")
        write_atomically(files, f"{root}/{MANIFEST_FILE}", self.encode())

    def stopped(self, log_end: int, derived: DerivedState | None = None) -> Self:
        """Return the manifest for an orderly stop, to be written after the last flush."""
        return type(self)(self.format_version, self.record_checksum_from, log_end, derived)


def trusted_manifest(found: StoreManifest | None, *, has_abort: bool) -> StoreManifest | None:
    """Return the part of a store's manifest that is still valid; every reader of the manifest calls this function.

    If the manifest has no clean stop and the `abort` file is missing, there is only one explanation: after Gantry
    crashed, another program recovered the store, ran on it and stopped in order. The offset at which that program's records
    begin is unknown.
    """
    if found is None or has_abort or found.clean_stop_offset is not None:
        return found
    return StoreManifest(found.format_version)


def opened_manifest(previous: StoreManifest | None, *, log_end: int, record_checksum: bool) -> StoreManifest:
    """Return the manifest to write at start, before the first record is appended.

    Args:
        previous: The store's manifest, as `trusted_manifest` returns it; None for a new store and for one of Apache
            RocketMQ.
        log_end: The end of the CommitLog after recovery, which is the offset of the next record.
        record_checksum: Whether new records will carry the whole-record checksum.
    """
    if not record_checksum:
        return StoreManifest()
    if previous is None or previous.record_checksum_from is None:
        return StoreManifest(record_checksum_from=log_end)
    if previous.clean_stop_offset is not None and log_end > previous.clean_stop_offset:
        # Another program has appended records since.
        return StoreManifest(record_checksum_from=log_end)
    return StoreManifest(record_checksum_from=min(previous.record_checksum_from, log_end))


def _derived(content: Any) -> DerivedState | None:
    """Return the derived state in the manifest, or None if it is unusable; None only costs time."""
    if not isinstance(content, dict):
        return None
    values = {**DerivedState._field_defaults, **content}
    if not all(_is_count(values.get(name)) for name in DerivedState._fields):
        return None
    return DerivedState(*(values[name] for name in DerivedState._fields))


def _count(content: Any) -> int | None:
    return content if _is_count(content) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
