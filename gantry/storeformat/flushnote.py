"""The note that a broker writes when it can't flush its store: `config/gantry-flush` (docs/formats/config.md).

The file is one block of 4,096 bytes: a line of JSON, then line ends. A broker creates the file at start and overwrites
it in place when a flush fails. The note therefore needs no free disk space:

    {"flush_failed": "the CommitLog can't be flushed: …", "flushed_offset": 4096, "acknowledged_offset": 4096,
     "crc32": 3735928559}

Before a failure, and after the recovery that follows it, the file holds an empty object. The CRC-32 covers the JSON
text of the other members. If the CRC-32 is wrong, only the failed flush and its reason are reported. Notes of earlier
releases have no CRC-32.
"""

import json
from typing import Any, Final, NamedTuple
from zlib import crc32

FLUSH_NOTE_BYTES: Final = 4096
_REASON_CHARS_MAX: Final = 500


class FailedFlush(NamedTuple):
    """The note of a broker whose disk failed to flush."""

    reason: str
    flushed_offset: int | None
    """The end of the part of the CommitLog that was on the disk; None if the note is damaged."""
    acknowledged_offset: int | None
    """The end of the part of the CommitLog that was acknowledged to senders; with ASYNC_FLUSH it can be greater."""


def encode_flush_note(failed: FailedFlush | None) -> bytes:
    """Return the file's content, which always has the same size."""
    content: dict[str, Any] = {}
    if failed is not None:
        content = {"flush_failed": failed.reason[:_REASON_CHARS_MAX], **failed._asdict()}
        del content["reason"]
        content["crc32"] = _checksum(content)
    return json.dumps(content).encode().ljust(FLUSH_NOTE_BYTES, b"\n")


def decode_flush_note(data: bytes) -> FailedFlush | None:
    """Return the note; None if no flush failed, or if the disk kept only a part of the note."""
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
