"""Errors show values, and cut long ones."""

from gantry.model.errors import NO_VALUE, InvalidValueError, shorten_value


class Counted(str):
    """A text that counts how much of it is escaped."""

    __slots__ = ()

    def __repr__(self) -> str:
        raise AssertionError("all of a long text was escaped")


def test_a_short_value_is_shown_whole():
    assert shorten_value("a'b") == '"a\'b"'
    assert shorten_value("a" * 78) == "'" + "a" * 78 + "'"
    assert str(InvalidValueError("/tag", ["a"], "is bad")) == "/tag: ['a'] is bad"


def test_a_long_value_is_cut_before_it_is_escaped():
    assert shorten_value(Counted("a" * 8_000_000)) == "'" + "a" * 79 + "…"
    assert shorten_value(b"a" * 8_000_000) == "'" + "a" * 79 + "…"


def test_bytes_are_shown_as_text():
    assert shorten_value(b"a b") == "'a b'"
    assert str(InvalidValueError("X-Request-Id", b"a b", "is bad")) == "X-Request-Id: 'a b' is bad"
    assert shorten_value("é".encode() + b"\xff") == "'é\\\\xff'"


def test_a_reason_is_shown_whole():
    assert str(InvalidValueError("at", NO_VALUE, "is missing")) == "at: is missing"


def test_a_long_field_is_cut():
    error = InvalidValueError("/properties/" + "n" * 8_000_000, "v", "is bad")
    assert (len(error.field), len(str(error))) == (257, 257 + len(": 'v' is bad"))
