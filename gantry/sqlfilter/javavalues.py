"""Java's values and their conversions, because an expression must give the same answer on both brokers.

A value is None (null), str, bool, int (Java's Integer), Long or float (Double). Properties are texts, and only literals
have other types. If two types differ, the text is converted to the type of the other side.

Source: java.lang.Integer, Long, Double and Boolean (`valueOf`, `compareTo`); RocketMQ 5.3 ComparisonExpression.
"""

import re
from collections.abc import Callable, Mapping
from math import copysign, inf
from typing import Final

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
# The longest text that is surely within 32 bits.
_SHORT_DIGITS = 9
# Java takes any decimal digit of Unicode that is one UTF-16 unit, as `\d` does.
# Possessive repetitions: a text of 32,000 digits that is no number takes a fraction of a millisecond, not a minute.
_INTEGER = re.compile(r"[+-]?(?:0++\d{0,19}|\d{1,19})")
_DECIMAL = re.compile(r"[+-]?(\d++(\.\d*+)?|\.\d++)([eE][+-]?\d++)?[fFdD]?", re.ASCII)
_HEX = re.compile(r"([+-]?0[xX]([0-9a-fA-F]++(\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?\d++)[fFdD]?", re.ASCII)
_NAMED = {sign + name: float(sign + name) for sign in ("", "+", "-") for name in ("NaN", "Infinity")}
# Java trims the characters up to the space from a text before it reads a Double.
_TRIMMED = "".join(map(chr, range(33)))


class Long(int):
    """Java's Long; a plain int is an Integer."""

    __slots__ = ()

    def __neg__(self) -> "Long":
        return Long(-int(self))


Value = str | bool | int | float | None


class EvaluationError(ValueError):
    """An expression has no value for a message, so the message does not match."""


def to_integer(text: str) -> int:
    """Return Java's `Integer.valueOf`. Raises EvaluationError."""
    if len(text) <= _SHORT_DIGITS and text.isdecimal() and text.isascii():
        return int(text)
    value = to_long(text)
    if not -INT32_MAX - 1 <= value <= INT32_MAX:
        raise EvaluationError("beyond 32 bits")
    return int(value)


def to_long(text: str) -> Long:
    """Return Java's `Long.valueOf`. Raises EvaluationError."""
    if _INTEGER.fullmatch(text) is None or (not text.isascii() and max(text) > "\uffff"):
        raise EvaluationError("not an integer")
    # Only the last 19 digits can be other than zero. Python refuses to read thousands of digits.
    value = int(text.lstrip("+-")[-19:])
    if text[0] == "-":
        value = -value
    if not -INT64_MAX - 1 <= value <= INT64_MAX:
        raise EvaluationError("beyond 64 bits")
    return Long(value)


def to_double(text: str) -> float:
    """Return Java's `Double.valueOf`. Raises EvaluationError."""
    text = text.strip(_TRIMMED)
    if _DECIMAL.fullmatch(text) is not None:
        return float(text.rstrip("fFdD"))
    named = _NAMED.get(text)
    if named is not None:
        return named
    found = _HEX.fullmatch(text)
    if found is None:
        raise EvaluationError("not a number")
    try:
        return float.fromhex(found[1])
    except OverflowError:
        return -inf if text[0] == "-" else inf


def to_boolean(text: str) -> bool:
    """Return Java's `Boolean.valueOf`: every text but "true" is false."""
    return text.lower() == "true"


_CONVERSIONS: Final[Mapping[type, Callable[[str], Value]]] = {
    int: to_integer,
    Long: to_long,
    float: to_double,
    bool: to_boolean,
}


def compare_doubles(left: float, right: float) -> int:
    """Return Java's `Double.compareTo`: NaN is the greatest value, and -0.0 is less than 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return 0 if left != 0.0 else int(copysign(1, left) - copysign(1, right)) // 2
    return (left != left) - (right != right)  # noqa: PLR0124 - the test for NaN.


def compare(left: Value, right: Value) -> int:
    """Return the order of two values that are not null: below, at or above 0.

    Types that can't be compared give -1, as in RocketMQ: they are not equal, and the left one counts as less.

    Raises:
        EvaluationError: The text can't be converted to the type of the other value.
    """
    left_type, right_type = type(left), type(right)
    if left_type is not right_type:
        if left_type is bool:
            if right_type is str:
                raise EvaluationError("RocketMQ can't convert a text on the right of a boolean")
            return -1
        if right_type is bool and left_type is not str:
            return -1
        if isinstance(left, str):
            left = _CONVERSIONS[right_type](left)
        elif isinstance(right, str):
            right = _CONVERSIONS[left_type](right)
    if isinstance(left, float) or isinstance(right, float):
        return compare_doubles(float(left), float(right))  # type: ignore[arg-type]
    return (left > right) - (left < right)  # type: ignore[operator]
