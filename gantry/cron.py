"""Decides when a job is due by its cron expression; pure, with APScheduler's cron trigger.

An expression has five fields, as in crontab(5): minute, hour, day of month, month, day of week. Sunday is 0 and 7.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from apscheduler.triggers.cron import CronTrigger

from gantry.model.errors import InvalidValueError

CRON_LENGTH_MAX = 200
"""The limit for the length of a cron expression, in characters."""
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_WEEKDAYS = re.compile(r"(?P<first>\*|[0-7])(-(?P<last>[0-7]))?(/(?P<step>[1-9]\d*))?")
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


def parse_cron(text: str, timezone: str) -> Cron:
    """Parse a cron expression. Raises ValueError if it is invalid."""
    fields = text.split()
    if len(fields) != 5:
        raise ValueError(f"it has {len(fields)} fields, a cron expression has 5")
    fields[4] = ",".join(_named_weekdays(part) for part in fields[4].split(","))
    cron: Cron = CronTrigger.from_crontab(" ".join(fields), timezone=ZoneInfo(timezone))
    return cron


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


def _named_weekdays(part: str) -> str:
    # APScheduler counts days from Monday, crontab from Sunday. Names mean the same in both.
    match = _WEEKDAYS.fullmatch(part)
    if match is None or part == "*":
        return part
    first, last, step = match["first"], match["last"], int(match["step"] or 1)
    if first == "*":
        days = range(0, 7, step)
    else:
        low = int(first)
        # crontab's `3/2` is APScheduler's `3-6/2`.
        high = int(last) if last else (6 if match["step"] else low)
        if high < low:
            raise ValueError(f"day of week {part!r} ends before it begins")
        days = range(low, high + 1, step)
    return ",".join(dict.fromkeys(_DAYS[day % 7] for day in days))
