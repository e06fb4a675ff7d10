"""Reads the CommitLog record by record and skips damaged bytes.

After an invalid record, the scan continues where `gantry.storeformat.resync` decides, and reports the skipped bytes as
a lost range. `gantry store verify` follows the same decisions.
"""

from collections.abc import Callable, Iterator
from typing import Final

from gantry.model.record import BLANK_BYTES_MIN, RECORD_BYTES_MIN, RecordHead, peek
from gantry.storeformat.manifest import StoreManifest
from gantry.storeformat.resync import examine, is_filler, resume_after_damage
from services.broker.store.files.mappedfile import MappedFile
from services.broker.store.files.mappedfilequeue import MappedFileQueue

OnLost = Callable[[int, int], None]
_GUESSED_BYTES: Final = 4 << 10


class LogScan:
    """One pass over the log.

    Args:
        files: The CommitLog's files.
        manifest: The store's manifest; it says where a record must have the whole-record checksum.
        on_lost: Called with the start and end of every range without a valid record.

    Attributes:
        end: The end of the last record or filler that was read.
    """

    def __init__(self, files: MappedFileQueue, *, manifest: StoreManifest, on_lost: OnLost) -> None:
        self._files = files
        self._manifest = manifest
        self._on_lost = on_lost
        self._stored_at_ms = 0
        self.end = 0

    def records(self, start: int, stop: int) -> Iterator[tuple[int, RecordHead, MappedFile]]:
        """Yield (physical offset, head, file) of every record in a range that begins at a record or at a file."""
        position = self.end = start
        while position < stop:
            file = self._files.find(position)
            if file is None:
                following = self._files.following(position)
                end = stop if following is None else min(following.start, stop)
                self._on_lost(position, end)
                position = end
                continue
            limit = min(file.end, stop)
            yield from self._in_file(file, position, limit)
            position = limit

    def _in_file(self, file: MappedFile, position: int, limit: int) -> Iterator[tuple[int, RecordHead, MappedFile]]:
        memory, base, end = file.memory, file.start, limit - file.start
        while limit - position >= BLANK_BYTES_MIN:
            at = position - base
            head, _, problem = examine(memory, at, end=end, base=base, manifest=self._manifest)
            if problem is None and head is not None:
                self._stored_at_ms = head.stored_at_ms
                self.end = position + head.size_bytes
                yield position, head, file
                position = self.end
            elif is_filler(memory, at, end=len(memory)):
                self.end = file.end
                return
            else:
                # Space that was allocated and never written need not be read.
                data_end = min(end, file.file.data_end(at))
                found = resume_after_damage(
                    memory,
                    at,
                    end=end,
                    data_end=data_end,
                    base=base,
                    manifest=self._manifest,
                    stored_at_ms=self._stored_at_ms,
                )
                self._on_lost(position, base + found.at)
                position = base + found.at
        # No filler, and too few bytes for one: but the last record of a full file always leaves at least 8 bytes.
        if position < limit:
            self._on_lost(position, limit)


def find_head(file: MappedFile, at: int, manifest: StoreManifest) -> RecordHead | None:
    """Return the head of the record at a position in a file; None if there is no valid record.

    This reads by position, because a start calls it for positions that the disk may not be able to read.

    Raises:
        OSError: The operating system rejected the read.
    """
    end = file.end - file.start
    data = file.try_read(at, min(_GUESSED_BYTES, end - at))
    if data is None or len(data) < RECORD_BYTES_MIN:
        return None
    size, _ = peek(data, 0)
    if len(data) < size <= end - at:
        data = file.try_read(at, size)
        if data is None:
            return None
    examined = examine(bytearray(data), 0, end=len(data), base=file.start + at, manifest=manifest)
    return examined.head if examined.problem is None else None
