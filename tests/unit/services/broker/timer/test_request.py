"""When a message is due, and where it waits."""

import json
from pathlib import Path

import pytest

from services.broker.timer.request import (
    drop_requests,
    find_delivery_ms,
    has_delay_level,
    next_stop_ms,
    waiting_second_ms,
)

NOW_MS = 1_700_000_000_000
DAY_MS = 86_400_000
VECTORS = json.loads((Path(__file__).parents[4] / "conformance/golden/vectors.json").read_text())


@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({}, None),
        ({"TIMER_DELAY_SEC": "2"}, NOW_MS + 2000),
        ({"TIMER_DELAY_MS": "2"}, NOW_MS + 2),
        ({"TIMER_DELIVER_MS": "17"}, 17),
        ({"__STARTDELIVERTIME": "18"}, 18),
        ({"TIMER_DELAY_SEC": "-2"}, NOW_MS - 2000),
        ({"TIMER_DELAY_MS": "+3"}, NOW_MS + 3),
        ({"__STARTDELIVERTIME": "18", "TIMER_DELIVER_MS": "17"}, 17),
        ({"TIMER_DELIVER_MS": "17", "TIMER_DELAY_MS": "5"}, NOW_MS + 5),
        ({"TIMER_DELAY_MS": "5", "TIMER_DELAY_SEC": "1"}, NOW_MS + 1000),
    ],
)
def test_the_first_property_in_apaches_order_counts(properties: dict[str, str], expected: int | None) -> None:
    assert find_delivery_ms(properties, NOW_MS) == expected


@pytest.mark.parametrize("text", ["x", "1.5", "", "1" * 19, "٣", " 1"])
def test_a_wrong_number_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="property TIMER_DELAY_MS="):
        find_delivery_ms({"TIMER_DELAY_MS": text}, NOW_MS)


@pytest.mark.parametrize(("text", "expected"), [("3", True), ("0", False), ("-1", False), ("x", False), ("", False)])
def test_only_a_positive_delay_level_comes_first(text: str, expected: bool) -> None:
    assert has_delay_level({"DELAY": text}) is expected


def test_requests_are_dropped_and_nothing_else() -> None:
    properties = dict.fromkeys(
        ("TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "__STARTDELIVERTIME", "a"), "1"
    )
    drop_requests(properties)
    assert properties == {"a": "1"}


@pytest.mark.parametrize("case", VECTORS["timer"]["floor"])
def test_a_time_waits_at_the_second_before_it(case: dict[str, int]) -> None:
    assert waiting_second_ms(case["deliverMs"]) == case["TIMER_OUT_MS"]


@pytest.mark.parametrize(
    ("delay_ms", "stop_ms", "is_rolled"),
    [
        (0, 0, False),
        (2 * DAY_MS - 1000, 2 * DAY_MS - 1000, False),
        (2 * DAY_MS, DAY_MS, True),
        (2 * DAY_MS + 57_599_000, DAY_MS, True),
        (2 * DAY_MS + 57_600_000, 2 * DAY_MS, True),
        (40 * DAY_MS, 2 * DAY_MS, True),
    ],
)
def test_a_message_beyond_the_window_waits_for_a_part_of_its_time(delay_ms: int, stop_ms: int, is_rolled: bool) -> None:
    assert next_stop_ms(NOW_MS + delay_ms, NOW_MS, 2 * DAY_MS) == (NOW_MS + stop_ms, is_rolled)
