"""Digits of a peer or a file become a number within a limit, or nothing."""

import pytest

from gantry.runtime.digits import parse_digits


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("7", 7), ("007", 7), ("65535", 65_535), ("0" * 5_000 + "9", 9)],
)
def test_digits_up_to_the_limit_are_a_number(text: str, number: int) -> None:
    assert parse_digits(text, 65_535) == number


@pytest.mark.parametrize("text", ["", " 7", "7 ", "-1", "+1", "1_000", "1.0", "x", "٣", "²", "65536", "9" * 5_000])
def test_anything_else_is_none(text: str) -> None:
    assert parse_digits(text, 65_535) is None
