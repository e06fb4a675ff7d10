"""Cron expressions with the meaning of crontab, and the times that are due after a pause."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from gantry.cron import (
    CRON_LENGTH_MAX,
    DueTimes,
    check_cron,
    check_timezone,
    decide_due,
    last_before,
    next_after,
    parse_cron,
)
from gantry.model.errors import InvalidValueError

# A Saturday.
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def following(text: str, count: int = 3, *, start: datetime = NOON, timezone: str = "UTC") -> list[str]:
    cron = parse_cron(text, timezone)
    found: list[str] = []
    moment = start
    for _ in range(count):
        after = next_after(cron, moment)
        assert after is not None
        moment = after
        found.append(f"{moment.astimezone(UTC):%a %d %H:%M}")
    return found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("*/15 * * * *", ["Sat 21 12:15", "Sat 21 12:30", "Sat 21 12:45"]),
        ("0 3 * * *", ["Sun 22 03:00", "Mon 23 03:00", "Tue 24 03:00"]),
        ("0 3 * * 0", ["Sun 22 03:00", "Sun 29 03:00", "Sun 06 03:00"]),
        ("0 3 * * 7", ["Sun 22 03:00", "Sun 29 03:00", "Sun 06 03:00"]),
        ("0 3 * * 1-5", ["Mon 23 03:00", "Tue 24 03:00", "Wed 25 03:00"]),
        ("0 3 * * 5-7", ["Sun 22 03:00", "Fri 27 03:00", "Sat 28 03:00"]),
        ("0 3 * * 0-2", ["Sun 22 03:00", "Mon 23 03:00", "Tue 24 03:00"]),
        ("0 3 * * */3", ["Sun 22 03:00", "Wed 25 03:00", "Sat 28 03:00"]),
        ("0 3 * * 2,4", ["Tue 24 03:00", "Thu 26 03:00", "Tue 01 03:00"]),
        ("0 3 * * mon", ["Mon 23 03:00", "Mon 30 03:00", "Mon 07 03:00"]),
        ("0 3 * * MON-fri/2", ["Mon 23 03:00", "Wed 25 03:00", "Fri 27 03:00"]),
        ("0 3 * * sun-tue", ["Sun 22 03:00", "Mon 23 03:00", "Tue 24 03:00"]),
        ("0 3 * * sat-sun", ["Sun 22 03:00", "Sat 28 03:00", "Sun 29 03:00"]),
        ("0 3 9 jan-jun/2 *", ["Sat 09 03:00", "Tue 09 03:00", "Sun 09 03:00"]),
        ("0 3 25 * 0", ["Sun 22 03:00", "Wed 25 03:00", "Sun 29 03:00"]),
        ("0 3 */20 * 0", ["Sun 21 03:00", "Sun 21 03:00", "Sun 01 03:00"]),
        ("0 3 1 * *", ["Tue 01 03:00", "Fri 01 03:00", "Mon 01 03:00"]),
    ],
)
def test_fields_have_the_meaning_of_crontab(text: str, expected: list[str]) -> None:
    assert following(text) == expected


def test_hours_are_those_of_the_zone() -> None:
    assert following("0 3 * * *", 1, timezone="Asia/Shanghai") == ["Sat 21 19:00"]


def test_a_night_without_the_scheduled_hour_delays_nothing() -> None:
    # Clocks go from 02:00 to 03:00 on 28 March 2027 in Berlin.
    start = datetime(2027, 3, 27, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    assert following("30 2 * * *", 2, start=start, timezone="Europe/Berlin")[1].startswith("Mon 29")


@pytest.mark.parametrize(
    "text",
    [
        *("", "* * * *", "* * * * * *", "61 * * * *", "x * * * *", "0 3 * * 8", "0 3 * * 5-2"),
        *("0 3 * * mon#2", "0 3 * * mon-", "0 3 * * 1L", "0 3 * jan# *", "0 3 * jan- *", "\u0663 * * * *"),
    ],
)
def test_an_invalid_cron_expression_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"^lag_report_cron: "):
        check_cron(text, "lag_report_cron")


def test_a_schedule_that_never_fires_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="never comes"):
        check_cron("0 0 31 2 *", "lag_report_cron")


def test_a_schedule_that_is_too_long_is_refused() -> None:
    text = ",".join(["0"] * 96) + " * * * *"
    check_cron(text + " " * (CRON_LENGTH_MAX - len(text)), "/cron")
    with pytest.raises(InvalidValueError, match="the limit is 200"):
        check_cron(text + " " * (CRON_LENGTH_MAX + 1 - len(text)), "/cron")


@pytest.mark.parametrize("text", ["", "Nowhere/City", "../etc/passwd"])
def test_an_invalid_time_zone_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidValueError, match=r"^timezone: "):
        check_timezone(text, "timezone")
    check_timezone("Europe/Berlin", "timezone")


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("* * * * *", NOON - timedelta(minutes=1)),
        ("0 * * * *", NOON - timedelta(hours=1)),
        ("0 3 * * *", NOON - timedelta(hours=9)),
        ("0 3 * * 5", NOON - timedelta(days=1, hours=9)),
        ("0 12 21 * *", datetime(2026, 10, 21, 12, tzinfo=UTC)),
        ("0 0 29 2 *", datetime(2024, 2, 29, tzinfo=UTC)),
    ],
)
def test_the_previous_time(text: str, before: datetime) -> None:
    assert last_before(parse_cron(text, "UTC"), NOON) == before


def test_nothing_is_due_before_its_time() -> None:
    cron = parse_cron("*/15 * * * *", "UTC")
    quarter = NOON + timedelta(minutes=15)
    assert decide_due(cron, next_at=quarter, now=NOON) == DueTimes(None, quarter)
    assert decide_due(cron, next_at=None, now=NOON) == DueTimes(None, quarter)


def test_a_time_is_due_once() -> None:
    cron = parse_cron("*/15 * * * *", "UTC")
    due = decide_due(cron, next_at=NOON, now=NOON + timedelta(seconds=1))
    assert due == DueTimes(NOON, NOON + timedelta(minutes=15))
    assert decide_due(cron, next_at=due.next_at, now=NOON + timedelta(seconds=2)).fire_at is None


def test_missed_times_are_due_once_at_their_last_time() -> None:
    cron = parse_cron("*/15 * * * *", "UTC")
    due = decide_due(cron, next_at=NOON - timedelta(days=3), now=NOON + timedelta(minutes=5))
    assert due == DueTimes(NOON, NOON + timedelta(minutes=15))


def test_a_stored_time_stays_due_after_a_change_of_the_zone() -> None:
    cron = parse_cron("30 3 * * *", "UTC")
    written = NOON - timedelta(hours=1)
    assert decide_due(cron, next_at=written, now=NOON).fire_at == written
