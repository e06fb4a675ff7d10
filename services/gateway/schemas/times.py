"""Times and durations as the API writes them.

A time is ISO-8601. Answers have it in UTC with milliseconds, `2026-11-21T09:30:00.123Z`; a request may use another
offset, `2026-11-21T11:30:00+02:00`. A duration in a request is ISO-8601 (`PT1M30S`) or a number with a unit (`500ms`,
`10s`, `2m`, `1h`, `1d`); in answers it is integer milliseconds.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from gantry.model.errors import InvalidValueError

DURATION_MS_MAX: Final = 366 * 86_400_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(?:\.(\d{1,9}))?(?:Z|([+-])(\d{2}):(\d{2}))", re.ASCII)
_BARE_PLUS = re.compile(r" \d{2}:\d{2}\Z", re.ASCII)
_OFFSET_HOURS_MAX = 18
_MINUTES_MAX = 59
_SHORT = re.compile(r"(\d{1,12})(ms|s|m|h|d)", re.ASCII)
_ISO = re.compile(
    r"P(?:(\d{1,9})D)?(?:T(?=\d)(?:(\d{1,9})H)?(?:(\d{1,9})M)?(?:(\d{1,9})(?:\.(\d{1,9}))?S)?)?", re.ASCII
)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# Most messages of an answer were stored in the same few seconds, and formatting a second takes 1 µs.
_SECONDS_CACHED_MAX = 1_024
_seconds: dict[int, str] = {}
_MILLISECONDS = [f".{ms:03d}Z" for ms in range(1_000)]


def format_time(at_ms: int) -> str:
    """Return a time in ms since 1970 as text; one outside the years 1 to 9999 becomes the nearest inside."""
    second, ms = divmod(at_ms, 1_000)
    text = _seconds.get(second)
    if text is None:
        if len(_seconds) >= _SECONDS_CACHED_MAX:
            _seconds.clear()
        text = _seconds[second] = _format_second(second)
    return text + _MILLISECONDS[ms]


def format_moment(moment: datetime) -> str:
    """Return a datetime with a time zone as text."""
    return format_time(int(moment.timestamp() * 1_000))


def parse_time_ms(text: str, field: str) -> int:
    """Return a time in ms since 1970; finer digits are cut off.

    Raises:
        InvalidValueError: It is not ISO-8601 with an offset from UTC, or no such time exists.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        hint = "; in a query + is written %2B" if _BARE_PLUS.search(text) else ""
        reason = f"is not an ISO-8601 time such as 2026-11-21T09:30:00.123Z or 2026-11-21T11:30:00+02:00{hint}"
        raise InvalidValueError(field, text, reason)
    sign, hours, minutes = match[3], int(match[4] or 0), int(match[5] or 0)
    if hours > _OFFSET_HOURS_MAX or minutes > _MINUTES_MAX:
        raise InvalidValueError(field, text, "is not a valid time: no time zone has this offset")
    try:
        moment = datetime.fromisoformat(match[1]).replace(tzinfo=UTC)
    except ValueError as error:
        raise InvalidValueError(field, text, f"is not a valid time: {error}") from None
    ahead = timedelta(hours=hours, minutes=minutes)
    try:
        moment = moment + ahead if sign == "-" else moment - ahead
    except OverflowError:
        raise InvalidValueError(field, text, "is not a valid time: in UTC it is outside the years 1 to 9999") from None
    return int(moment.timestamp()) * 1_000 + int((match[2] or "0").ljust(3, "0")[:3])


def parse_moment(text: str, field: str) -> datetime:
    """Return a time as a datetime in UTC. Raises InvalidValueError like `parse_time_ms`."""
    return _EPOCH + timedelta(milliseconds=parse_time_ms(text, field))


def parse_duration_ms(text: str, field: str, *, max_ms: int = DURATION_MS_MAX) -> int:
    """Return a duration in ms.

    Raises:
        InvalidValueError: It is neither ISO-8601 nor a number with a unit, or longer than `max_ms`.
    """
    duration_ms = _short_ms(text)
    if duration_ms is None:
        duration_ms = _iso_ms(text)
    if duration_ms is None:
        raise InvalidValueError(field, text, "is not a duration such as 10s, 500ms or PT1M30S")
    if duration_ms > max_ms:
        raise InvalidValueError(field, text, f"is longer than the allowed {max_ms} ms")
    return duration_ms


def _short_ms(text: str) -> int | None:
    match = _SHORT.fullmatch(text)
    return int(match[1]) * _UNIT_MS[match[2]] if match else None


def _iso_ms(text: str) -> int | None:
    match = _ISO.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups()[:4])
    ms = int((match[5] or "0").ljust(3, "0")[:3])
    return (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1_000 + ms


def _format_second(second: int) -> str:
    try:
        return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    except (ValueError, OverflowError, OSError):
        return "0001-01-01T00:00:00" if second < 0 else "9999-12-31T23:59:59"
