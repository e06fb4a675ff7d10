"""Times and durations, parsed and formatted."""

import calendar
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.errors import InvalidValueError
from services.gateway.schemas.times import format_time, parse_duration_ms, parse_time_ms

ROOT = Path(__file__).resolve().parents[5]


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("2026-11-21T09:30:00.123Z", 1_795_253_400_123),
        ("2026-11-21T09:30:00.123999Z", 1_795_253_400_123),
        ("2026-11-21T09:30:00.1+00:00", 1_795_253_400_100),
        ("1969-12-31T23:59:59.999Z", -1),
        ("2026-11-21T11:30:00.123+02:00", 1_795_253_400_123),
        ("2026-11-21T03:45:00.123-05:45", 1_795_253_400_123),
        ("1970-01-01T00:00:00+00:01", -60_000),
    ],
)
def test_times_are_parsed(text, ms):
    assert parse_time_ms(text, "at") == ms


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999))
def test_times_round_trip(ms):
    assert parse_time_ms(format_time(ms), "at") == ms


def test_times_outside_the_calendar_stay_text():
    assert format_time(2**63).startswith("9999-12-31")
    assert format_time(-(2**63)).startswith("0001-01-01")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-11-21",
        "2026-11-21T09:30:00",
        "2026-11-21T09:30:00 01:00",
        "2026-11-21T09:30:00+0100",
        "2026-11-21T09:30:00+01:60",
        "2026-11-21T09:30:00+19:00",
        "2026-02-30T00:00:00Z",
        "0001-01-01T00:00:00+02:00",
        "9999-12-31T23:59:59-05:00",
        "٢026-11-21T09:30:00Z",
    ],
)
def test_invalid_times_are_refused(text):
    with pytest.raises(InvalidValueError) as caught:
        parse_time_ms(text, "at")
    assert caught.value.field == "at"


def test_a_plus_that_became_a_blank_is_explained():
    with pytest.raises(InvalidValueError, match="%2B"):
        parse_time_ms("2026-11-21T09:30:00 01:00", "at")


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0s", 0),
        ("500ms", 500),
        ("10s", 10_000),
        ("2m", 120_000),
        ("1h", 3_600_000),
        ("1d", 86_400_000),
        ("PT10S", 10_000),
        ("PT1M30S", 90_000),
        ("P1DT1H", 90_000_000),
        ("PT0.25S", 250),
        ("P2D", 172_800_000),
    ],
)
def test_durations_are_parsed(text, ms):
    assert parse_duration_ms(text, "wait") == ms


@pytest.mark.parametrize("text", ["", "10", "s", "-1s", "1.5s", "1 s", "P", "PT", "P1M", "P1Y", "1w", "10S", "367d"])
def test_invalid_durations_are_refused(text):
    with pytest.raises(InvalidValueError):
        parse_duration_ms(text, "wait")


def test_the_contract_has_exactly_the_days_of_the_calendar() -> None:
    contract = msgspec.json.decode((ROOT / "openapi" / "openapi.json").read_bytes())
    times = re.compile(contract["components"]["schemas"]["Time"]["pattern"])
    for year in (1000, 1600, 1900, 2000, 2024, 2026, 2096, 2100, 9999):
        days = {f"{year}-{month:02}-{day:02}" for month in range(14) for day in range(33)}
        last = [calendar.monthrange(year, month)[1] for month in range(1, 13)]
        real = {f"{year}-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, last[month - 1] + 1)}
        assert {day for day in days if times.match(f"{day}T09:30:00Z")} == real
