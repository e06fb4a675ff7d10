"""Which bytes of a CommitLog are a record, and where the next one is after bytes that are none.

A record proves itself: its magic, its lengths, its checksum and its own physical offset agree. The last one is what
tells it from a copy of another record inside a body. Where the mark demands the whole-record checksum, only that one
counts. What does not prove itself is damage, unless nothing that proves itself follows: then it is the end of the log.

Source: ADR-0004. RocketMQ stops at the first record that is wrong, and loses what lies behind it.
"""

from typing import Final, NamedTuple

from gantry.model.errors import RecordError
from gantry.model.message import CrcState, StoredMessage
from gantry.model.record import (
    BLANK_BYTES_MIN,
    BLANK_MAGIC,
    RecordHead,
    check_head,
    decode_head,
    parse_head,
    peek,
)
from gantry.runtime.files import Memory
from gantry.storeformat.mark import GantryMark

# Both versions' magics begin alike.
_MAGIC_START: Final = bytes.fromhex("DAA320")
_MAGIC_ENDS: Final = (0xA7, 0xAB)
_BLANK_MAGIC_BYTES: Final = BLANK_MAGIC.to_bytes(4)
# Searched by copies of this size: in 3.11 a map's own find compares byte by byte, that of bytes does not.
_CHUNK_BYTES: Final = 1 << 20
_ZEROS: Final = bytes(_CHUNK_BYTES)

NO_MARK: Final = GantryMark()


class LogRecord(NamedTuple):
    """A record in the CommitLog, not yet decoded."""

    offset: int
    """Its physical offset."""
    head: RecordHead
    crc: CrcState
    memory: Memory
    at: int
    """Where it starts in `memory`."""

    @property
    def end(self) -> int:
        """Return the physical offset behind its last byte."""
        return self.offset + self.head.size_bytes

    def message(self) -> StoredMessage:
        """Decode it. Raises CorruptRecordError if its topic is no UTF-8 (never for one that proves itself)."""
        return decode_head(self.memory, self.at, self.head, self.crc)


class Examined(NamedTuple):
    """What stands somewhere in a CommitLog file."""

    head: RecordHead | None
    """Also of a record whose checksum is wrong, if its lengths and its own offset agree."""
    crc: CrcState
    problem: str | None
    """Why it does not prove itself; None if it does."""


def examine(memory: Memory, at: int, *, end: int, base: int, mark: GantryMark = NO_MARK) -> Examined:
    """Say whether a record that proves itself starts `at` bytes into a file.

    Args:
        memory: The file.
        at: Where to look.
        end: Where the bytes that may be looked at end.
        base: The physical offset of the file's first byte.
        mark: Says where the whole-record checksum is demanded.
    """
    try:
        head = parse_head(memory, at, limit=end)
    except RecordError as error:
        return Examined(None, CrcState.UNCHECKED, error.reason)
    if head.physical_offset != base + at:
        return Examined(None, CrcState.UNCHECKED, f"the record says that it lies at {head.physical_offset}")
    if not head.topic.isascii():
        try:
            head.topic.decode()
        except UnicodeDecodeError:
            return Examined(None, CrcState.UNCHECKED, f"the topic {head.topic!r} is no UTF-8")
    crc = check_head(memory, at, head)
    if crc is CrcState.OK:
        return Examined(head, crc, None)
    if crc is CrcState.RECORD_MISMATCH:
        return Examined(head, crc, "the checksum over the whole record is wrong")
    if crc is CrcState.BODY_MISMATCH:
        return Examined(head, crc, "the checksum of the body is wrong")
    if mark.demands_record_crc(base + at):
        return Examined(head, CrcState.RECORD_MISMATCH, "the checksum over the whole record is missing")
    return Examined(head, crc, None)


def find_next_record(memory: Memory, at: int, *, end: int, base: int, mark: GantryMark = NO_MARK) -> int | None:
    """Return where the next record that proves itself starts, at `at` or later, or None."""
    position = at + 4
    while (found := _find(memory, _MAGIC_START, position, end)) is not None:
        start = found - 4
        is_candidate = found + 3 < end and memory[found + 3] in _MAGIC_ENDS
        if is_candidate and examine(memory, start, end=end, base=base, mark=mark).problem is None:
            return start
        position = found + 1
    return None


def is_filler(memory: Memory, at: int, *, end: int) -> bool:
    """Say whether the filler that ends a file starts here: it holds the bytes that are left, and its magic."""
    remaining = end - at
    if remaining < BLANK_BYTES_MIN:
        return False
    return peek(memory, at) == (remaining, BLANK_MAGIC)


def find_filler(memory: Memory, at: int, *, end: int) -> int | None:
    """Return where the filler that ends the file starts, at `at` or later, or None."""
    position = at + 4
    while (found := _find(memory, _BLANK_MAGIC_BYTES, position, end)) is not None:
        if is_filler(memory, found - 4, end=end):
            return found - 4
        position = found + 1
    return None


def find_used_end(memory: Memory, at: int, *, end: int) -> int:
    """Return the position behind the last byte that is not zero, `at` if all are."""
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
        # The pieces overlap, so that what lies across their border is seen.
        chunk = bytes(memory[at : min(at + _CHUNK_BYTES + overlap, end)])
        found = chunk.find(wanted)
        if found >= 0:
            return at + found
        at += _CHUNK_BYTES
    return None
