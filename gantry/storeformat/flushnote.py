"""The note that a broker leaves when it can't flush its store: `config/gantry-flush` (docs/formats/config.md).

The file has one block of 4,096 bytes, a line of JSON and line ends. It is made when a broker starts and overwritten in
place when a flush fails, so that the note needs no space of a disk that has none left:

    {"flush_failed": "the CommitLog can't be flushed: …", "flushed_offset": 4096, "acknowledged_offset": 4096,
     "crc32": 3735928559}

Before that, and after the recovery that follows, it holds an empty object. The CRC-32 is of the JSON text of the other
members. If it is wrong, the note says only that a flush failed, and why. Notes of earlier releases have none.
"""

import json
from typing import Any, Final, NamedTuple
from zlib import crc32

FLUSH_NOTE_BYTES: Final = 4096
_REASON_CHARS_MAX: Final = 500


class FailedFlush(NamedTuple):
    """The note of a broker whose disk refused to flush."""

    reason: str
    flushed_offset: int | None
    """Up to here the CommitLog was on the disk; None if the note is damaged."""
    acknowledged_offset: int | None
    """Up to here senders had been told that their messages are stored; later than the other one with ASYNC_FLUSH."""


def encode_flush_note(failed: FailedFlush | None) -> bytes:
    """Return the file's content, always of the same size."""
    content: dict[str, Any] = {}
    if failed is not None:
        content = {"flush_failed": failed.reason[:_REASON_CHARS_MAX], **failed._asdict()}
        del content["reason"]
        content["crc32"] = _checksum(content)
    return json.dumps(content).encode().ljust(FLUSH_NOTE_BYTES, b"\n")


def decode_flush_note(data: bytes) -> FailedFlush | None:
    """Return what is noted; None where no flush failed, or the disk kept a part of the note only."""
    try:
        content: Any = json.loads(data)
        reason, flushed, acknowledged = (
            content[name] for name in ("flush_failed", "flushed_offset", "acknowledged_offset")
        )
        checksum = content.pop("crc32", None)
        if checksum is not None and checksum != _checksum(content):
            return FailedFlush(str(reason), None, None)
        return FailedFlush(str(reason), int(flushed), int(acknowledged))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _checksum(content: dict[str, Any]) -> int:
    return crc32(json.dumps(content).encode())
