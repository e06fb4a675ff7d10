"""Expressions that are refused: where, and what was expected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.sqlfilter import SQL_LENGTH_MAX, FilterCache, SqlError, SqlFilter
from gantry.sqlfilter.limits import CONTAINS_MAX, DEPTH_MAX, TOKENS_MAX


def refusal(sql: str) -> SqlError:
    with pytest.raises(SqlError) as caught:
        SqlFilter(sql)
    return caught.value


@pytest.mark.parametrize(
    ("sql", "position", "reason", "expected"),
    [
        ("a LIKE 'x%'", 3, "LIKE is not supported; use CONTAINS", "="),
        ("a + 1 > 5", 3, "arithmetic (+) is not supported", "BETWEEN"),
        ("a > 5 % 2", 7, "arithmetic (%) is not supported", "the end"),
        ("a != 3", 3, "!= is not supported; use <>", "<>"),
        ("a = 1 && b = 2", 7, "&& is not supported; use AND", "AND"),
        ("length(a) > 3", 7, "functions (length) are not supported", "IS"),
        ('a = "x"', 5, "a text stands in single quotes", "a 'text'"),
        ("a = 'x", 5, "the text has no closing quote", "a 'text'"),
        ("a >", 4, "the expression ends too early", "a number"),
        ("", 1, "the expression is empty", "a property"),
        (" \n", 3, "the expression is empty", "a property"),
        ("a IS", 5, "the expression ends too early", "NULL"),
        ("a IN ()", 7, ") is unexpected", "a 'text'"),
        ("a IN (1)", 7, "1 is unexpected", "a 'text'"),
        ("a CONTAINS b", 12, "b is unexpected", "a 'text'"),
        ("(a > 1", 7, "the expression ends too early", ")"),
        ("a > 1) OR b", 6, ") is unexpected", "OR"),
        ("a b", 3, "b is unexpected", "="),
        ("a > 0L", 6, "L is unexpected", "AND"),
        ("a > 007", 6, "07 is unexpected", "AND"),
        ("a = 1 -- no line end", 7, "arithmetic (-) is not supported", "OR"),
        ("ä = 1", 1, "ä is unexpected", "a property"),
        ("a = 'x'\u00a0", 8, "\u00a0 is unexpected", "the end"),
    ],
)  # fmt: skip
def test_it_names_the_position_and_what_was_expected(sql: str, position: int, reason: str, expected: str) -> None:
    error = refusal(sql)
    assert error.position == position
    assert error.fault.startswith(reason)
    assert expected in error.expected
    assert str(error).startswith(f"sql: at character {position}: {reason}")


@pytest.mark.parametrize(
    ("sql", "position", "reason"),
    [
        ("a = NULL", 5, "NULL can't be compared"),
        ("NULL <> a", 1, "NULL can't be compared"),
        ("a > 'x'", 5, "a text can't be compared by order"),
        ("TRUE < a", 1, "a condition, TRUE, FALSE or NULL can't be compared by order"),
        ("a > NULL", 5, "a condition, TRUE, FALSE or NULL can't be compared by order"),
        ("NOT a > 5", 1, "a condition, TRUE, FALSE or NULL can't be compared by order"),
        ("(a > 5) > 5", 2, "a condition, TRUE, FALSE or NULL can't be compared by order"),
        ("a BETWEEN 5 AND 3", 11, "BETWEEN 5 AND 3 matches nothing"),
        ("a BETWEEN 5.5 AND 3", 11, "BETWEEN 5.5 AND 3 matches nothing"),
        ("a BETWEEN 'x' AND 'y'", 11, "a text can't be compared by order"),
        ("a BETWEEN NULL AND 1", 11, "a condition, TRUE, FALSE or NULL can't be compared by order"),
        ("TRUE = 1", 6, "a boolean can't be compared with a number or a text"),
        ("'x' IN ('x')", 1, "the left side of IN is not a property"),
        ("5", 1, "a value stands where a condition is needed"),
        ("a = 1 AND 'x'", 11, "a value stands where a condition is needed"),
        ("NOT -a", 5, "a value stands where a condition is needed"),
        ("a > 9223372036854775808", 5, "9223372036854775808 is more than 9223372036854775807"),
        (f"a > {'9' * 5_000}", 5, "9999999999999999999999999999999999999999… is more than"),
        ("a > 0.0", 5, "0.0 is not above 0"),
        ("a > 1e999", 5, "1e999 is not above 0 and within the range"),
    ],
)
def test_what_means_nothing_is_refused_as_in_rocketmq(sql: str, position: int, reason: str) -> None:
    error = refusal(sql)
    assert (error.position, error.fault[: len(reason)]) == (position, reason)


def test_the_limits() -> None:
    fits = "a = 'x'" + " " * (SQL_LENGTH_MAX - 7)
    assert SqlFilter(fits).matches(b"a\x01x")
    assert "16385 characters, at most 16384" in refusal(fits + " ").fault
    members = ",".join(["'x'"] * ((TOKENS_MAX - 4) // 2))
    assert SqlFilter(f"a IN ({members} )").matches(b"a\x01x")
    assert f"more than {TOKENS_MAX} words" in refusal(f"a IN ({members},'y','z')").fault


def test_too_many_searches_are_refused_because_one_message_would_hold_the_event_loop() -> None:
    allowed = " OR ".join(["a contains 'x'"] * CONTAINS_MAX)
    SqlFilter(allowed)
    found = refusal(f"{allowed} OR a CONTAINS 'y'")
    assert found.fault == f"more than {CONTAINS_MAX} CONTAINS"
    assert found.position == len(allowed) + len(" OR a ") + 1
    assert refusal(f"{'NOT ' * 900}a = 1 {'OR a ' * 900}").position > 1
    assert SqlFilter("NOT " * (DEPTH_MAX - 1) + "TRUE").names == ()
    assert f"more than {DEPTH_MAX} operators" in refusal("NOT " * DEPTH_MAX + "TRUE").fault
    assert f"more than {DEPTH_MAX} operators" in refusal("a" + " = b" * DEPTH_MAX).fault
    deep = "a" + "".join(f" {('AND', 'OR')[level % 2]} (b" for level in range(DEPTH_MAX)) + ")" * DEPTH_MAX
    assert f"more than {DEPTH_MAX} operators" in refusal(deep).fault


_WORDS = "a b NULL TRUE FALSE 'x' 1 2.5 5L ( ) , = <> < <= > >= + - NOT AND OR BETWEEN IN IS CONTAINS -- /* */ * ' \n é"


@given(st.lists(st.sampled_from(_WORDS.split(" ")), max_size=12).map(" ".join) | st.text(max_size=40))
def test_a_text_is_compiled_or_refused_with_a_position_within_it(sql: str) -> None:
    try:
        assert SqlFilter(sql).matches(b"a\x015\x02b\x01x") in (True, False)
    except SqlError as error:
        assert 1 <= error.position <= len(sql) + 1


def test_the_cache_keeps_what_was_used_last_valid_or_not() -> None:
    cache = FilterCache(characters_max=4 * 72)
    first = cache.get("a = '01'")
    for _ in range(2):
        with pytest.raises(SqlError, match="at character 5: the expression ends too early"):
            cache.get("a = ")
    others = [cache.get(f"a = '{number:02}'") for number in range(2, 4)]
    assert cache.get("a = '01'") is first
    cache.get("a = '04'")  # It takes the place of the error, the least recently used.
    cache.get("a = '05'")
    assert cache.get("a = '03'") is others[1]
    assert cache.get("a = '02'") is not others[0]
    assert FilterCache(characters_max=1).get("a = 'x'").matches(b"a\x01x"), "the newest expression always has room"
