"""Formats values for people. An unknown value says so, and never looks like a number."""

import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

from gantry.model.lag import brief_duration
from spark.page.markup import Html, el

EMPTY_CELL: Final = "\N{EN DASH}"
"""The text if a number has no meaning, for example the time behind if nothing waits."""

_BYTES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def number(value: Any) -> float | int | None:
    """Return a count or a length as a number; None if it is unknown.

    A negative number, NaN and infinity count as unknown: they are placeholders, not values.
    """
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, (str, Decimal)):
        try:
            value = float(value) if "." in str(value) or "e" in str(value).lower() else int(value)
        except (ValueError, OverflowError):
            return None
    if not isinstance(value, (int, float)) or not math.isfinite(value) or value < 0:
        return None
    return value


def moment(value: Any) -> datetime | None:
    """Return a moment in UTC, from ISO-8601 text or from a datetime (UTC if it has no zone); None if there is none."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if not isinstance(value, datetime):
        return None
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def count(value: float) -> str:
    """Return a count as text, such as `1,204,332`."""
    return f"{round(value):,}"


def rate(per_second: float) -> str:
    """Return messages per second as text. Small rates have a fraction."""
    if per_second == 0:
        return "0/s"
    if per_second < 0.01:
        return "< 0.01/s"
    return (
        f"{per_second:.2g}/s"
        if per_second < 1
        else f"{per_second:,.1f}/s"
        if per_second < 100
        else f"{per_second:,.0f}/s"
    )


def size(octets: float) -> str:
    """Return a size in bytes as text, such as `1.2 GiB`."""
    for unit in _BYTES[:-1]:
        if octets < 1_024:
            return f"{octets:.0f} {unit}" if unit == "B" or octets >= 100 else f"{round(octets, 1):g} {unit}"
        octets /= 1_024
    return f"{octets:,.1f} {_BYTES[-1]}"


def plural(number_of: int, one: str, many: str = "") -> str:
    """Return a number with its noun, such as `1 group` or `12 groups`."""
    return f"{number_of:,} {one if number_of == 1 else many or one + 's'}"


def at(value: datetime) -> Html:
    """Return a moment as an element that people and programs can read."""
    text = value.strftime("%Y-%m-%d %H:%M:%S")
    return el("time", f"{text} UTC", datetime=value.isoformat(timespec="milliseconds").replace("+00:00", "Z"))


def unknown(reason: str) -> Html:
    """Return the word "unknown" and the reason."""
    return el("span", el("span", "unknown", class_="unknown"), el("span", f": {reason}", class_="why"))


def duration(seconds: float) -> str:
    """Return a duration as text, such as `2 d 3 h`."""
    return brief_duration(seconds)


def time_left(seconds: float) -> str:
    """Return the time until something may happen at any moment: a duration, or `now`."""
    return duration(seconds) if seconds else "now"
