"""Conversions as Java's classes make them."""

import math
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry.sqlfilter import javavalues
from gantry.sqlfilter.javavalues import (
    EvaluationError,
    Long,
    Value,
    compare,
    compare_doubles,
    to_boolean,
    to_double,
    to_integer,
    to_long,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("+5", 5),
        ("-0", 0),
        ("2147483647", 2**31 - 1),
        ("-2147483648", -(2**31)),
        ("\u0665\u0665", 55),
        ("0" * 5_000 + "7", 7),
    ],
)
def test_integers(text: str, value: int) -> None:
    assert to_integer(text) == value
    assert to_long(text) == value
    assert type(to_integer(text)) is int
    assert type(to_long(text)) is Long


@pytest.mark.parametrize(
    "text", ["", " 5", "5 ", "5L", "5.0", "1_000", "--5", "+", "0x5", "²", "\U0001d7d3", "1" * 20, "9" * 5_000]
)
def test_no_integers(text: str) -> None:
    for convert in (to_integer, to_long):
        with pytest.raises(EvaluationError):
            convert(text)


def test_the_bounds_of_integers() -> None:
    assert to_long("9223372036854775807") == 2**63 - 1
    assert to_long("-9223372036854775808") == -(2**63)
    for text in ("9223372036854775808", "-9223372036854775809"):
        with pytest.raises(EvaluationError, match="64 bits"):
            to_long(text)
    for text in ("2147483648", "-2147483649"):
        with pytest.raises(EvaluationError, match="32 bits"):
            to_integer(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5.0), (" 5.5 ", 5.5), ("\t5\n\x00", 5.0), ("5.", 5.0), (".5", 0.5), ("5e3", 5000.0), ("5d", 5.0), ("5.5F", 5.5),
        ("1e999999999999", math.inf), ("-1e999", -math.inf), ("1e-999", 0.0), ("Infinity", math.inf), ("-Infinity", -math.inf),
        ("0x1p3", 8.0), ("0X.8P1", 1.0), ("-0x1.8p1D", -3.0), ("0x1p99999", math.inf), ("-0x1p99999", -math.inf),
    ],
)  # fmt: skip
def test_doubles(text: str, value: float) -> None:
    assert to_double(text) == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "inf", "nan", "infinity", "NaNf", "1_0", "5L", "0x1", "0x", "\u0665", "1e", "e5", ".", "5 5", "\u00a05"],
)
def test_no_doubles(text: str) -> None:
    with pytest.raises(EvaluationError):
        to_double(text)


def test_nan_is_the_greatest_and_minus_zero_is_below_zero() -> None:
    nan = to_double("-NaN")
    assert [compare_doubles(nan, other) for other in (nan, math.inf, 0.0)] == [0, 1, 1]
    assert compare_doubles(1.0, nan) == -1
    assert [compare_doubles(-0.0, 0.0), compare_doubles(0.0, -0.0), compare_doubles(0.0, 0.0)] == [-1, 1, 0]
    assert [compare_doubles(1.0, 2.0), compare_doubles(2.0, 1.0)] == [-1, 1]


def test_booleans() -> None:
    assert [to_boolean(text) for text in ("true", "TRUE", "tRuE", "yes", "1", "", " true")] == [True] * 3 + [False] * 4


@pytest.mark.parametrize(
    ("left", "right", "order"),
    [
        ("5", 5, 0), (5, "6", -1), ("3000000000", Long(3_000_000_000), 0), (2.5, "2.5", 0), (Long(5), 5, 0), (5, 5.5, -1),
        (5.5, Long(5), 1), (True, False, 1), ("true", True, 0), ("x", True, -1), (True, 1, -1), (1, True, -1), ("b", "a", 1),
        (Long(2**53 + 1), float(2**53), 0), (-Long(5), -5, 0),
    ],
)  # fmt: skip
def test_the_text_takes_the_type_of_the_other_side(left: Value, right: Value, order: int) -> None:
    assert compare(left, right) == order


def test_a_boolean_before_a_text_has_no_order() -> None:
    with pytest.raises(EvaluationError, match="right of a boolean"):
        compare(left=True, right="true")


# The texts that the patterns take, in a form that takes quadratic time for others.
_INTEGER = re.compile(r"[+-]?0*\d{1,19}")
_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[fFdD]?", re.ASCII)
_HEX = re.compile(r"([+-]?0[xX]([0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?\d+)[fFdD]?", re.ASCII)


@settings(max_examples=1_000)
@given(
    st.text("+-0019.eEfFdDxXpPaA\u0665", max_size=12)
    | st.from_regex(_DECIMAL, fullmatch=True)
    | st.from_regex(_HEX, fullmatch=True)
)
def test_numbers_are_the_texts_of_the_plain_patterns(text: str) -> None:
    for pattern, plain in ((javavalues._INTEGER, _INTEGER), (javavalues._DECIMAL, _DECIMAL), (javavalues._HEX, _HEX)):
        assert (pattern.fullmatch(text) is None) == (plain.fullmatch(text) is None)


@pytest.mark.parametrize(
    "text",
    ["1" * 32_000 + "x", "0" * 32_000 + "x", "1." + "1" * 32_000 + "x", "0x" + "f" * 32_000, "1e" + "1" * 32_000 + "x"],
)
@pytest.mark.parametrize("convert", [to_integer, to_long, to_double])
def test_a_long_text_that_is_no_number_is_refused_at_once(text: str, convert: Callable[[str], Value]) -> None:
    began = time.process_time()
    with pytest.raises(EvaluationError):
        convert(text)
    # With backtracking, the longest of these takes 40 s.
    assert time.process_time() - began < 0.02
