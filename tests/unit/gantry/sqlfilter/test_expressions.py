"""The table of docs/filters.md: each operator with values, null and values that can't be converted."""

import pytest

from gantry.model.message import decode_properties, encode_properties
from gantry.sqlfilter import SqlFilter, compiled

MESSAGE = {
    "five": "5", "six": "6", "text": "abc", "quote": "it's", "half": "5.5", "yes": "TRUE", "no": "no", "big": "3000000000",
    "signed": "+7", "minus": "-7", "nan": "NaN", "zero": "0", "minuszero": "-0.0", "hex": "0x1p3", "spaced": " 5 ",
    "arabic": "\u0665", "TAGS": "AA", "KEYS": "k1 k2", "$odd_1": "x",
}  # fmt: skip
ENCODED = encode_properties(MESSAGE)

TRUE = """
five = 5; 5 = five; five = '5'; five = 5L; five > 4; five >= 5; five < 6; five <= 5; five <> 6; 6 > five; 4 < five
five > 4.5; five = 5.0; half > 5.0; half < 6.0; half > 5.4e0; 5.4 < half; big > 2147483648; big = 3000000000; big < 3e10
five < six; six > five; five <= spaced; five >= spaced; signed = 7; minus = -7; minus < -6; minus > -8L; minus > - + 8
five BETWEEN 5 AND 5; five between 4 and 6; five BETWEEN 4.5 AND 6; five NOT BETWEEN 6 AND 7; five NOT BETWEEN 9 AND 7
text = 'abc'; text <> 'abd'; quote = 'it''s'; text IN ('x', 'abc'); text NOT IN ('x'); five IN ('5')
five IN ('1','2','3','4','5','6'); text CONTAINS 'b'; text STARTSWITH 'ab'; text ENDSWITH 'bc'; text contains 'abc'
text NOT CONTAINS 'x'; text NOT STARTSWITH 'b'; text NOT ENDSWITH 'b'; five CONTAINS '5'
yes = TRUE; no = FALSE; text = FALSE; TRUE = TRUE; TRUE <> FALSE; NOT yes = TRUE; 'a' = FALSE
none IS NULL; text IS NOT NULL; none IS NULL AND text IS NOT NULL; NULL IS NULL; 1 IS NOT NULL; none = gone
(none > 1) IS NULL; (five > 1) = TRUE; (five > 1) IS NOT NULL; -text IS NULL; (five > 1 OR none > 1) = (TRUE)
TRUE; NOT FALSE; NOT (five > 6); NOT NOT TRUE; none > 1 OR five = 5; five = 5 OR text > 1; NOT (none > 1 AND FALSE)
TAGS = 'AA'; KEYS CONTAINS 'k2'; $odd_1 = 'x'; hex = 8.0; hex > 7.9; nan > 1.5; nan = nan; minuszero < zero
arabic = 5; text <> none; five <> gone; TRUE OR text > 1; NOT (FALSE AND text > 1); five>4AND six>5
"""
NOT_TRUE = """
five = 6; five <> 5; five > 5; five < 5; text = 'ABC'; none = 5; none <> 5; none > 1; none BETWEEN 1 AND 2
none NOT BETWEEN 1 AND 2; none IN ('a'); none NOT IN ('a'); none CONTAINS 'a'; none NOT CONTAINS 'a'; text CONTAINS ''
none NOT STARTSWITH 'a'; none NOT ENDSWITH 'a'; text NOT CONTAINS ''; five = gone; none = 'x' OR none = 'y'
NOT (none > 1); NOT none = 'x'; none > 1 AND TRUE; NULL; NOT NULL; NULL AND TRUE; NULL OR FALSE; text; yes; NOT no = five OR TRUE
FALSE; text IS NULL; none IS NOT NULL; half > 3; half = 5; text > 1; text = 1; text <> 1; big > 3; big = 3
text > 1 OR TRUE; NOT (text > 1); text > none; five < text; spaced = 5; TRUE = yes; TRUE <> no; hex = 8; nan < 9.5
1 = TRUE; (five > 1) = 5; (five > 1) CONTAINS 't'; NOT five CONTAINS '5'; -five = 5; five > -text; minuszero = zero
five NOT BETWEEN 5 AND 6; text NOT IN ('abc'); five BETWEEN 6 AND 7; text BETWEEN 1 AND 2; (five > 1) = yes; none
"""


def table(text: str) -> list[str]:
    return [expression.strip() for line in text.strip().splitlines() for expression in line.split(";")]


@pytest.mark.parametrize("sql", table(TRUE))
def test_it_is_true(sql: str) -> None:
    assert SqlFilter(sql).matches(ENCODED)


@pytest.mark.parametrize("sql", table(NOT_TRUE))
def test_it_is_false_unknown_or_fails_so_the_message_is_not_delivered(sql: str) -> None:
    assert not SqlFilter(sql).matches(ENCODED)


@pytest.mark.parametrize(
    "sql",
    [
        "five > 4 -- a comment\n AND six > 5",
        "/* a * comment **/ five = 5",
        "five > --4\n4",
        "five\t>\r\n4",
        "five > - -4",
    ],
)
def test_comments_and_white_space(sql: str) -> None:
    assert SqlFilter(sql).matches(ENCODED)


def test_precedence_is_or_and_equality_order_sign() -> None:
    assert SqlFilter("TRUE OR FALSE AND FALSE").matches(b"")
    assert not SqlFilter("(TRUE OR FALSE) AND FALSE").matches(b"")
    assert SqlFilter("FALSE = five > 6").matches(ENCODED)
    assert not SqlFilter("NOT five = 5").matches(ENCODED)  # (NOT five) = 5, and a boolean is never equal to a number.
    assert SqlFilter("five BETWEEN 1 AND 9 AND six BETWEEN 1 AND 9 OR FALSE").matches(ENCODED)


def test_only_the_named_properties_count() -> None:
    assert SqlFilter("a > 1 AND (b = 'x' OR a < 9) AND NOT c IS NULL").names == ("a", "b", "c")
    last = b"a\x011\x02b\x01x\x02a\x012"  # As in RocketMQ, the last of two values counts.
    assert SqlFilter("a = 2 AND b = 'x'").matches(last)
    assert not SqlFilter("b = 'x'").matches(b"ab\x01x\x02bb\x01x\x02body\x01\x02b\x01")
    assert SqlFilter("A = '1' AND a IS NULL").matches(b"A\x011")


def test_empty_values_are_ignored_at_the_cost_of_one_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []

    def decode(properties: bytes) -> dict[str, str]:
        decoded.append(properties)
        return decode_properties(properties)

    monkeypatch.setattr(compiled, "decode_properties", decode)
    assert SqlFilter("a = 'x' AND b IS NULL AND c = 'z'").matches(b"a\x01x\x02c\x01z\x02a\x01\x02b\x01\x02")
    names = [f"p{number}" for number in range(200)]
    empty = "".join(f"{name}\x01\x02" for name in names).encode()
    assert SqlFilter(" AND ".join(f"{name} IS NULL" for name in names)).matches(empty)
    assert len(decoded) == 2


def test_a_chain_of_a_thousand_tokens_takes_no_deep_stack() -> None:
    chain = " OR ".join(f"five = {number}" for number in range(100, 349)) + " OR five = 5"
    assert SqlFilter(chain).matches(ENCODED)
    assert SqlFilter(" AND ".join(["five = 5"] * 250)).matches(ENCODED)
    assert SqlFilter("(" * 498 + "five = 5" + ")" * 498).matches(ENCODED)
