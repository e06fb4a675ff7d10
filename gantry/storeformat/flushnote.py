"""The note that a broker leaves when it can't flush its store: `config/gantry-flush` (docs/formats/config.md).

The file has one block of 4,096 bytes, a line of JSON and line ends. It is made when a broker starts and overwritten in
place when a flush fails, so that the note needs no space of a disk that has none left:

    {"flush_failed": "the CommitLog can't be flushed: …", "flushed_offset": 4096, "acknowledged_offset": 4096}

Before that, and after the recovery that follows, it holds an empty object.
"""

import json
from typing import Any, Final, NamedTuple

FLUSH_NOTE_BYTES: Final = 4096
_REASON_CHARS_MAX: Final = 500


class FailedFlush(NamedTuple):
    """The note of a broker whose disk refused to flush."""

    reason: str
    flushed_offset: int
    """Up to here the CommitLog was on the disk."""
    acknowledged_offset: int
    """Up to here senders had been told that their messages are stored; later than the other one with ASYNC_FLUSH."""


def encode_flush_note(failed: FailedFlush | None) -> bytes:
    """Return the file's content, always of the same size."""
    content: dict[str, Any] = {}
    if failed is not None:
        content = {"flush_failed": failed.reason[:_REASON_CHARS_MAX], **failed._asdict()}
        del content["reason"]
    return json.dumps(content).encode().ljust(FLUSH_NOTE_BYTES, b"\n")


def decode_flush_note(data: bytes) -> FailedFlush | None:
    """Return what is noted; None where no flush failed, or the disk kept a part of the note only."""
    try:
        content: Any = json.loads(data)
        return FailedFlush(
            str(content["flush_failed"]), int(content["flushed_offset"]), int(content["acknowledged_offset"])
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
