"""Reports as requests name them: windows, runs and schedules."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from gantry.cron import check_cron, check_timezone
from gantry.model.errors import InvalidValueError
from services.gateway.schemas.times import format_moment, format_time, parse_time_ms

LATEST: Final = "latest"


class RequestedWindow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"start": "from", "end": "to"}):
    """The time range of a requested report."""

    start: str
    end: str


class NewRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request for a run."""

    window: RequestedWindow | None = None


class NewSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A requested schedule; without a cron expression (`null`), the job runs on demand only."""

    cron: str | None
    time_zone: str = "UTC"


def check_schedule(schedule: NewSchedule) -> None:
    """Raise InvalidValueError if a schedule's cron expression or time zone is not valid."""
    if schedule.cron is not None:
        check_cron(schedule.cron, "/cron")
    check_timezone(schedule.time_zone, "/time_zone")


def read_window(window: RequestedWindow, *, now_ms: int) -> tuple[datetime, datetime]:
    """Return the two times of a window.

    Raises:
        InvalidValueError: A time is not valid or before 1970, the first is not before the second, or the second is in
            the future: its data does not exist yet.
    """
    start_ms, end_ms = parse_time_ms(window.start, "/window/from"), parse_time_ms(window.end, "/window/to")
    if start_ms < 0:
        raise InvalidValueError("/window/from", window.start, "is before 1970, and no data is older")
    if start_ms >= end_ms:
        raise InvalidValueError("/window/to", window.end, f"is not after /window/from, {window.start}")
    if end_ms > now_ms:
        raise InvalidValueError("/window/to", window.end, "is in the future: a report covers the past only")
    return moment_of(start_ms), moment_of(end_ms)


def read_period(start_ms: int | None, end_ms: int | None, *, now_ms: int, span: timedelta) -> tuple[datetime, datetime]:
    """Return the start and the end of a period of the past, as `from` and `to` of a query give it.

    Args:
        start_ms: Wall time in ms; None: `span` before the end.
        end_ms: Wall time in ms; None: now.
        now_ms: Wall time in ms.
        span: Length of a period without a start.

    Raises:
        InvalidValueError: The end is in the future, or the start is not before the end.
    """
    end = moment_of(now_ms if end_ms is None else end_ms)
    if end_ms is not None and end_ms > now_ms:
        raise InvalidValueError("to", format_moment(end), f"is in the future: it is {format_time(now_ms)} now")
    start = end - span if start_ms is None else moment_of(start_ms)
    if start >= end:
        raise InvalidValueError("from", format_moment(start), f"is not before `to`, {format_moment(end)}")
    return start, end


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
