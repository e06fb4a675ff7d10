"""Recognizes records in the bytes of a CommitLog, and decides where a scan goes on after damaged bytes.

Recovery (services/broker/store/log/logscan.py) and `gantry store verify` (gantry/storeformat/commitlog.py) read the log
in different ways. Both take these decisions from here, so that they agree about every byte.

A record is valid if its magic, its lengths, its checksum and its own physical offset agree. The physical offset tells a
record from a copy of another record inside a body. If the manifest requires the whole-record checksum, no other
checksum is accepted. Bytes that are not a valid record are damage if a valid record follows them. Otherwise they are the end of the
log.

Source: ADR-0004. RocketMQ stops at the first invalid record and loses everything after it.
"""

import enum
from typing import Final, NamedTuple

from gantry.model.errors import RecordError
from gantry.model.message import CrcState, StoredMessage
from gantry.model.record import (
    BLANK_BYTES_MIN,
    BLANK_MAGIC,
    RecordHead,
    check_head,
    decode_head,
    is_body_right,
    parse_head,
    peek,
)
from gantry.runtime.files import Memory
from gantry.storeformat.manifest import StoreManifest

# The magics of both versions begin with the same bytes.
_MAGIC_START: Final = bytes.fromhex("DAA320")
_MAGIC_ENDS: Final = (0xA7, 0xAB)
_BLANK_MAGIC_BYTES: Final = BLANK_MAGIC.to_bytes(4)
# The search copies chunks of this size: in Python 3.11 a map's own find compares byte by byte, that of bytes does not.
_CHUNK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK_BYTES)

NO_MANIFEST: Final = StoreManifest()


class LogRecord(NamedTuple):
    """A record in the CommitLog, not yet decoded."""

    offset: int
    """The record's physical offset."""
    head: RecordHead
    crc: CrcState
    memory: Memory
    at: int
    """The position of the record in `memory`."""

    @property
    def end(self) -> int:
        """Return the physical offset after the record's last byte."""
        return self.offset + self.head.size_bytes

    def message(self) -> StoredMessage:
        """Decode the record. Raises CorruptRecordError if the topic is not UTF-8 (never for a valid record)."""
        return decode_head(self.memory, self.at, self.head, self.crc)


class ExaminedRecord(NamedTuple):
    """The result of examining one position of a CommitLog file."""

    head: RecordHead | None
    """The record's head; also present if the checksum is wrong but the lengths and the own offset agree."""
    crc: CrcState
    problem: str | None
    """Why the record is invalid; None if it is valid."""


class ResumeKind(enum.Enum):
    """The bytes at which a scan goes on."""

    RECORD = "record"
    FILLER = "filler"
    NONE = "nothing"
    """The readable bytes of the file end."""


class ResumePoint(NamedTuple):
    """The position at which a scan goes on after damaged bytes."""

    kind: ResumeKind
    at: int
    """The position in the file."""
    is_past_stale: bool
    """Whether stale records lie between the damage and `at`: the log was once cut where the damage begins."""


def examine(memory: Memory, at: int, *, end: int, base: int, manifest: StoreManifest = NO_MANIFEST) -> ExaminedRecord:
    """Examine whether a valid record starts `at` bytes into a file.

    Args:
        memory: The file.
        at: The position of the record in the file.
        end: The end of the bytes that may be read.
        base: The physical offset of the file's first byte.
        manifest: The store's manifest; it says where the whole-record checksum is required.
    """
    try:
        head = parse_head(memory, at, limit=end)
    except RecordError as error:
        return ExaminedRecord(None, CrcState.UNCHECKED, error.reason)
    if head.physical_offset != base + at:
        return ExaminedRecord(None, CrcState.UNCHECKED, f"the record says that it lies at {head.physical_offset}")
    if not head.topic.isascii():
        try:
            head.topic.decode()
        except UnicodeDecodeError:
            return ExaminedRecord(None, CrcState.UNCHECKED, f"the topic {head.topic!r} is no UTF-8")
    crc = check_head(memory, at, head)
    if crc is CrcState.OK:
        return ExaminedRecord(head, crc, None)
    if crc is CrcState.RECORD_MISMATCH and manifest.may_be_copied_crc(base + at) and is_body_right(memory, head):
        return ExaminedRecord(head, CrcState.BODY_ONLY, None)
    if crc is CrcState.RECORD_MISMATCH:
        return ExaminedRecord(head, crc, "the checksum over the whole record is wrong")
    if crc is CrcState.BODY_MISMATCH:
        return ExaminedRecord(head, crc, "the checksum of the body is wrong")
    if manifest.demands_record_crc(base + at):
        return ExaminedRecord(head, CrcState.RECORD_MISMATCH, "the checksum over the whole record is missing")
    return ExaminedRecord(head, crc, None)


def find_next_record(
    memory: Memory, at: int, *, end: int, base: int, manifest: StoreManifest = NO_MANIFEST
) -> int | None:
    """Return the position of the first valid record at or after `at`, or None."""
    position = at + 4
    while (found := _find(memory, _MAGIC_START, position, end)) is not None:
        start = found - 4
        is_candidate = found + 3 < end and memory[found + 3] in _MAGIC_ENDS
        if is_candidate and examine(memory, start, end=end, base=base, manifest=manifest).problem is None:
            return start
        position = found + 1
    return None


def resume_after_damage(
    memory: Memory,
    at: int,
    *,
    end: int,
    data_end: int,
    base: int,
    manifest: StoreManifest = NO_MANIFEST,
    stored_at_ms: int,
) -> ResumePoint:
    """Decide where a scan goes on after damaged bytes: at the next record that is not stale, else at the file's filler.

    A stale record is valid, but the log no longer has it: Apache RocketMQ truncates its log without erasing the cut
    bytes, so old records may follow the end. A record is stale if it was stored before the last valid one, with two
    exceptions. In the part of the log that the manifest covers, nothing follows the end, because recovery erases it: a
    store time that goes back does no harm there. And if exactly one record is damaged, the next one belongs to the log.

    Args:
        memory: The file.
        at: The position where the damage begins.
        end: The end of the bytes that may be read.
        data_end: The position after which there are only zeros.
        base: The physical offset of the file's first byte.
        manifest: The store's manifest.
        stored_at_ms: The store time of the last valid record before the damage.
    """
    size, _ = peek(memory, at) if end - at >= BLANK_BYTES_MIN else (0, 0)
    position, is_past_stale = at, False
    while True:
        following = find_next_record(memory, position + 1, end=min(end, data_end), base=base, manifest=manifest)
        if following is None:
            break
        head = examine(memory, following, end=end, base=base, manifest=manifest).head
        assert head is not None, "the record is valid"
        is_older = head.stored_at_ms < stored_at_ms and not manifest.demands_record_crc(base + following)
        if not is_older or at + size == following:
            return ResumePoint(ResumeKind.RECORD, following, is_past_stale)
        position, is_past_stale = following, True
    filler = find_filler(memory, position + 1, end=end, data_end=data_end) if end == len(memory) else None
    if filler is None:
        return ResumePoint(ResumeKind.NONE, end, is_past_stale)
    return ResumePoint(ResumeKind.FILLER, filler, is_past_stale)


def is_filler(memory: Memory, at: int, *, end: int) -> bool:
    """Return whether the filler that ends a file starts here; it holds the number of remaining bytes and its magic."""
    remaining = end - at
    if remaining < BLANK_BYTES_MIN:
        return False
    return peek(memory, at) == (remaining, BLANK_MAGIC)


def find_filler(memory: Memory, at: int, *, end: int, data_end: int | None = None) -> int | None:
    """Return the position of the filler that ends the file, at or after `at`, or None.

    Args:
        memory: The file.
        at: The position where the search begins.
        end: The end of the file.
        data_end: The position after which there are only zeros; by default the end of the file. The filler begins
            before it.
    """
    position = at + 4
    while (found := _find(memory, _BLANK_MAGIC_BYTES, position, end if data_end is None else data_end)) is not None:
        if is_filler(memory, found - 4, end=end):
            return found - 4
        position = found + 1
    return None


def find_used_end(memory: Memory, at: int, *, end: int) -> int:
    """Return the position after the last byte that is not zero; `at` if all bytes are zero."""
    while end > at:
        start = max(at, end - _CHUNK_BYTES)
        chunk = bytes(memory[start:end])
        if chunk != _ZEROS[: len(chunk)]:
            return start + len(chunk.rstrip(b"\0"))
        end = start
    return at


def _find(memory: Memory, wanted: bytes, at: int, end: int) -> int | None:
    overlap = len(wanted) - 1
    while at + overlap < end:
        # The chunks overlap, so a match across the border of two chunks is found.
        chunk = bytes(memory[at : min(at + _CHUNK_BYTES + overlap, end)])
        found = chunk.find(wanted)
        if found >= 0:
            return at + found
        at += _CHUNK_BYTES
    return None
