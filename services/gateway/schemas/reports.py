"""Reports as requests name them: windows and runs."""

import uuid
from datetime import UTC, datetime
from typing import Final

import msgspec

from gantry.model.errors import InvalidValueError
from services.gateway.schemas.times import parse_time_ms

LATEST: Final = "latest"


class RequestedWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}):
    """The time range of a requested report."""

    start: str
    end: str


class NewRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a run."""

    window: RequestedWindow | None = None


def read_window(window: RequestedWindow, *, now_ms: int) -> tuple[datetime, datetime]:
    """Return the two times of a window.

    Raises:
        InvalidValueError: A time is not valid, the first is not before the second, or the second is in the future: data
            after the run would be missing for good, because a window is reported once.
    """
    start_ms, end_ms = parse_time_ms(window.start, "/window/from"), parse_time_ms(window.end, "/window/to")
    if start_ms >= end_ms:
        raise InvalidValueError("/window/to", window.end, f"is not after /window/from, {window.start}")
    if end_ms > now_ms:
        raise InvalidValueError("/window/to", window.end, "is in the future: a report covers the past only")
    return moment_of(start_ms), moment_of(end_ms)


def read_run_id(text: str, field: str) -> uuid.UUID | None:
    """Return a run's id, or None for `latest`.

    Raises:
        InvalidValueError: It is neither.
    """
    if text == LATEST:
        return None
    try:
        run_id = uuid.UUID(text)
    except ValueError:
        run_id = None
    # UUID() also accepts braces, `urn:uuid:`, missing hyphens and capitals; these are rejected here.
    if run_id is None or str(run_id) != text:
        raise InvalidValueError(field, text, "is neither a run's id nor `latest`")
    return run_id


def moment_of(at_ms: int) -> datetime:
    """Return a time in ms since 1970 as a UTC datetime."""
    second, ms = divmod(at_ms, 1_000)
    return datetime.fromtimestamp(second, UTC).replace(microsecond=ms * 1_000)
