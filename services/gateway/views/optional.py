"""The JSON form of values that may be unknown."""

from datetime import datetime

from services.gateway.schemas.times import format_moment, format_time


def offset_view(offset: int | None) -> str | None:
    """Return an offset as text, because JSON's numbers are not exact beyond 2^53; None for None."""
    return None if offset is None else str(offset)


def time_view(at_ms: int | None) -> str | None:
    """Return a time in ms since 1970 as text, or None for None."""
    return None if at_ms is None else format_time(at_ms)


def moment_view(moment: datetime | None) -> str | None:
    """Return a datetime as text, or None for None."""
    return None if moment is None else format_moment(moment)
