"""Decides when a job is due by its cron expression; pure, with APScheduler's cron trigger.

An expression has five fields, as in crontab(5): minute, hour, day of month, month, day of week. Sunday is 0 and 7. If
neither the day of month nor the day of week begins with `*`, a day needs to match only one of the two.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.cron import CronTrigger

from gantry.model.errors import InvalidValueError

CRON_LENGTH_MAX = 200
"""The limit for the length of a cron expression, in characters."""
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = re.compile(r"(\*|(?P<first>[0-7])(-(?P<last>[0-7]))?)(/(?P<step>[1-9]\d*))?")
_NAME = re.compile("[a-z]+")
# A cron trigger only gives the next time, never the previous one. So `last_before` looks back in growing steps.
_LOOK_BACK = (timedelta(minutes=10), timedelta(hours=3), timedelta(days=2), timedelta(days=40), timedelta(days=1_500))


class Cron(Protocol):
    """A parsed cron expression: APScheduler's CronTrigger."""

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        """Return the first time at or after `now`."""
        ...


@dataclass(frozen=True, slots=True)
class DueTimes:
    """The time that is due now, and the next time; None if there is none."""

    fire_at: datetime | None
    next_at: datetime | None


@dataclass(frozen=True, slots=True)
class _EitherDay:
    """Fires on days of the month, and on days of the week."""

    crons: tuple[Cron, Cron]

    def get_next_fire_time(self, previous_fire_time: datetime | None, now: datetime) -> datetime | None:
        """Return the first time at or after `now`."""
        times = (cron.get_next_fire_time(previous_fire_time, now) for cron in self.crons)
        return min((time for time in times if time is not None), default=None)


def parse_cron(text: str, timezone: str) -> Cron:
    """Parse a cron expression. Raises ValueError if it is invalid."""
    if not text.isascii():
        raise ValueError("it has characters other than ASCII")
    fields = text.lower().split()
    if len(fields) != 5:
        raise ValueError(f"it has {len(fields)} fields, a cron expression has 5")
    # APScheduler ignores what follows a name, such as a step.
    *times, day = fields[:3]
    month, weekday = _numbered(fields[3], _MONTHS, "month"), _numbered(fields[4], _DAYS, "day of week")
    if _NAME.search(day) and day != "last":
        raise ValueError(f"day of month {day!r} is not valid")
    weekday = ",".join(_named_weekdays(part) for part in weekday.split(","))
    zone = ZoneInfo(timezone)

    def cron_of(day: str, weekday: str) -> Cron:
        cron: Cron = CronTrigger.from_crontab(" ".join([*times, day, month, weekday]), timezone=zone)
        return cron

    if day.startswith("*") or fields[4].startswith("*"):
        return cron_of(day, weekday)
    return _EitherDay((cron_of(day, "*"), cron_of("*", weekday)))


def check_cron(text: str, name: str) -> None:
    """Raise InvalidValueError, with the name of the setting, if a cron expression is invalid or never comes."""
    if len(text) > CRON_LENGTH_MAX:
        raise InvalidValueError(name, text, f"has {len(text)} characters, the limit is {CRON_LENGTH_MAX}")
    try:
        cron = parse_cron(text, "UTC")
    except ValueError as error:
        raise InvalidValueError(name, text, f"is no cron expression: {error}") from None
    if cron.get_next_fire_time(None, datetime(2024, 1, 1, tzinfo=UTC)) is None:
        raise InvalidValueError(name, text, "never comes")


def check_timezone(text: str, name: str) -> None:
    """Raise InvalidValueError, with the name of the setting, if a time zone is unknown."""
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidValueError(name, text, "is no time zone; examples are UTC and Europe/Berlin") from None


def next_after(cron: Cron, moment: datetime) -> datetime | None:
    """Return the first time after a moment."""
    return cron.get_next_fire_time(None, moment + timedelta(microseconds=1))


def last_before(cron: Cron, moment: datetime) -> datetime | None:
    """Return the last time before a moment; None if there was none in the last 1,500 days."""
    for span in _LOOK_BACK:
        found = None
        fire_at = cron.get_next_fire_time(None, moment - span)
        while fire_at is not None and fire_at < moment:
            found = fire_at
            fire_at = next_after(cron, fire_at)
        if found is not None:
            return found
    return None


def decide_due(cron: Cron, *, next_at: datetime | None, now: datetime) -> DueTimes:
    """Decide whether a job is due. If several times passed without a check, only the last of them counts."""
    if next_at is None or next_at > now:
        return DueTimes(None, next_at if next_at is not None else next_after(cron, now))
    fire_at = last_before(cron, now + timedelta(microseconds=1))
    # If the clock was set back or the time zone has changed, the stored time is due all the same.
    return DueTimes(max(next_at, fire_at) if fire_at is not None else next_at, next_after(cron, now))


def _numbered(field: str, names: Sequence[str], of: str) -> str:
    """Return a field with numbers instead of names. Raises ValueError for other words."""

    def number(found: re.Match[str]) -> str:
        name = found[0]
        if name not in names:
            raise ValueError(f"{of} {name!r} is not one of {', '.join(filter(None, names))}")
        # A range of days may end with Sunday.
        return "7" if name == "sun" and field[: found.start()].endswith("-") else str(names.index(name))

    return _NAME.sub(number, field)


def _named_weekdays(part: str) -> str:
    # APScheduler counts days from Monday, crontab from Sunday. Names mean the same in both.
    match = _WEEKDAYS.fullmatch(part)
    if match is None:
        raise ValueError(f"day of week {part!r} is not valid")
    if part == "*":
        return part
    first, last, step = match["first"], match["last"], int(match["step"] or 1)
    if first is None:
        days = range(0, 7, step)
    else:
        low = int(first)
        # crontab's `3/2` is APScheduler's `3-6/2`.
        high = int(last) if last else (6 if match["step"] else low)
        if high < low:
            raise ValueError(f"day of week {part!r} ends before it begins")
        days = range(low, high + 1, step)
    return ",".join(dict.fromkeys(_DAYS[day % 7] for day in days))
