"""The parser: lark splits the text into tokens and calls `_Builder` from the inside out, without recursion.

The grammar is RocketMQ's, with one difference: the whole text must be an expression. RocketMQ ignores everything after
an expression, so it takes `a + 1 > 5` for `a` (ADR-0034).
"""

import re
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedToken, v_args

from gantry.sqlfilter import expressions
from gantry.sqlfilter.errors import SqlError
from gantry.sqlfilter.expressions import ORDERS, TESTS, Expression
from gantry.sqlfilter.javavalues import INT32_MAX, INT64_MAX, Long
from gantry.sqlfilter.limits import CONTAINS_MAX, SQL_LENGTH_MAX, TOKENS_MAX

# A line comment ends with its line. Without that, it is two minus signs. A terminal with a higher number is tried first.
GRAMMAR: Final = r"""
?start: either
?either: both
    | either OR both -> disjunction
?both: equality
    | both AND equality -> conjunction
?equality: comparison
    | equality EQUAL comparison -> equal
    | equality UNEQUAL comparison -> unequal
    | equality IS NULL -> is_null
    | equality IS NOT NULL -> is_not_null
?comparison: sign
    | comparison ORDER sign -> ordered
    | comparison BETWEEN sign AND sign -> between
    | comparison NOT BETWEEN sign AND sign -> not_between
    | comparison IN texts -> member
    | comparison NOT IN texts -> not_member
    | comparison TEST TEXT -> matched
    | comparison NOT TEST TEXT -> not_matched
?sign: primary
    | PLUS sign -> positive
    | MINUS sign -> negative
    | NOT sign -> negation
?primary: INTEGER -> integer
    | FLOAT -> double
    | TEXT -> text
    | TRUE -> true
    | FALSE -> false
    | NULL -> null
    | NAME -> named
    | OPEN either CLOSE -> nested
texts: OPEN TEXT (COMMA TEXT)* CLOSE

%declare NOT AND OR BETWEEN IN TRUE FALSE NULL IS TEST
EQUAL: "="
UNEQUAL.1: "<>"
ORDER: ">=" | "<=" | ">" | "<"
PLUS: "+"
MINUS: "-"
OPEN: "("
CLOSE: ")"
COMMA: ","
FLOAT.1: /\d+\.\d*(E[+-]?\d+)?|\.\d+(E[+-]?\d+)?|\d+E[+-]?\d+/
INTEGER: /0|[1-9]\d*L?/
TEXT: /'(''|[^'])*'/
NAME: /[A-Z_$][A-Z0-9_$]*/
SPACE: /[ \t\n\r\f]+/
LINE_COMMENT.1: /--[^\n\r]*(\r\n|\n|\r)/
BLOCK_COMMENT.1: /\/\*[^*]*\*(\*|[^*\/][^*]*\*)*\//
%ignore SPACE
%ignore LINE_COMMENT
%ignore BLOCK_COMMENT
"""
_WORDS: Final = {
    **{word: word for word in ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS")},
    **dict.fromkeys(TESTS, "TEST"),
}
_SHOWN: Final = {
    "EQUAL": "=", "UNEQUAL": "<>", "ORDER": ">, >=, <, <=", "PLUS": "+", "MINUS": "-", "OPEN": "(", "CLOSE": ")",
    "COMMA": ",", "FLOAT": "a number", "INTEGER": "a number", "TEXT": "a 'text'", "NAME": "a property",
    "TEST": ", ".join(TESTS), "$END": "the end",
}  # fmt: skip
# Words and signs of other SQL dialects, which people try first.
_FOREIGN: Final = {
    "LIKE": "LIKE is not supported; use CONTAINS, STARTSWITH or ENDSWITH",
    "!=": "!= is not supported; use <>",
    "==": "== is not supported; use =",
    "&&": "&& is not supported; use AND",
    "||": "|| is not supported; use OR",
    '"': "a text stands in single quotes: 'text'",
    "'": "the text has no closing quote",
} | {sign: f"arithmetic ({sign}) is not supported" for sign in "+-*/%"}
_FOUND: Final = re.compile(r"[\w$.]+|'(?:''|[^'])*'|!=|==|&&|\|\||.", re.DOTALL)
_CALLED: Final = re.compile(r"[A-Za-z_$][\w$]*(?=\s*$)")
_SHOWN_LENGTH_MAX: Final = 40


@v_args(inline=True)
class _Builder(Transformer[Token, Any]):
    """Makes the parts of expressions. It has no state, so one serves all parses."""

    def disjunction(self, left: Expression, _: Token, right: Expression) -> Expression:
        return expressions.chain(left, right, ends_at=True)

    def conjunction(self, left: Expression, _: Token, right: Expression) -> Expression:
        return expressions.chain(left, right, ends_at=False)

    def equal(self, left: Expression, sign: Token, right: Expression) -> Expression:
        return expressions.equal(left, right, is_wanted=True, at=_at(sign))

    def unequal(self, left: Expression, sign: Token, right: Expression) -> Expression:
        return expressions.equal(left, right, is_wanted=False, at=_at(sign))

    def is_null(self, part: Expression, *_: Token) -> Expression:
        return expressions.is_null(part, is_wanted=True)

    def is_not_null(self, part: Expression, *_: Token) -> Expression:
        return expressions.is_null(part, is_wanted=False)

    def ordered(self, left: Expression, sign: Token, right: Expression) -> Expression:
        return expressions.ordered(left, right, ORDERS[sign])

    def between(self, part: Expression, _: Token, low: Expression, __: Token, high: Expression) -> Expression:
        return expressions.between(part, low, high, is_wanted=True)

    def not_between(
        self, part: Expression, _: Token, __: Token, low: Expression, ___: Token, high: Expression
    ) -> Expression:
        return expressions.between(part, low, high, is_wanted=False)

    def member(self, part: Expression, _: Token, texts: list[str]) -> Expression:
        return expressions.member(part, texts, is_wanted=True)

    def not_member(self, part: Expression, _: Token, __: Token, texts: list[str]) -> Expression:
        return expressions.member(part, texts, is_wanted=False)

    def matched(self, part: Expression, test: Token, text: Token) -> Expression:
        return expressions.matched(part, TESTS[test.upper()], _text_of(text), is_wanted=True)

    def not_matched(self, part: Expression, _: Token, test: Token, text: Token) -> Expression:
        return expressions.matched(part, TESTS[test.upper()], _text_of(text), is_wanted=False)

    def positive(self, _: Token, part: Expression) -> Expression:
        return part

    def negative(self, sign: Token, part: Expression) -> Expression:
        return expressions.negate(part, _at(sign))

    def negation(self, word: Token, part: Expression) -> Expression:
        return expressions.negation(part, _at(word))

    def integer(self, token: Token) -> Expression:
        value = int(token.rstrip("lL")[:20])
        if value > INT64_MAX:
            raise SqlError(_at(token) + 1, f"{_shorten(token)} is more than {INT64_MAX}")
        return expressions.constant(value if value <= INT32_MAX else Long(value), _at(token))

    def double(self, token: Token) -> Expression:
        value = float(token)
        if not 0.0 < value < float("inf"):
            reason = f"{_shorten(token)} is not above 0 and within the range of a 64-bit number"
            raise SqlError(_at(token) + 1, reason, ("an integer",) if value == 0 else ())
        return expressions.constant(value, _at(token))

    def text(self, token: Token) -> Expression:
        return expressions.constant(_text_of(token), _at(token))

    def true(self, token: Token) -> Expression:
        return expressions.constant(value=True, at=_at(token))

    def false(self, token: Token) -> Expression:
        return expressions.constant(value=False, at=_at(token))

    def null(self, token: Token) -> Expression:
        return expressions.constant(None, _at(token))

    def named(self, token: Token) -> Expression:
        return expressions.property_value(str(token), _at(token))

    def nested(self, _: Token, part: Expression, __: Token) -> Expression:
        return part

    def texts(self, *tokens: Token) -> list[str]:
        return [_text_of(token) for token in tokens if token.type == "TEXT"]


_LARK: Final = Lark(
    GRAMMAR, parser="lalr", lexer="basic", transformer=_Builder(), g_regex_flags=re.IGNORECASE | re.ASCII
)


class Parsed(NamedTuple):
    """A parsed expression.

    Attributes:
        evaluate: Function of the values of the named properties.
        names: Names of the properties.
        tokens_count: Number of words, literals and operators.
    """

    evaluate: expressions.Truth
    names: tuple[str, ...]
    tokens_count: int


def parse(text: str) -> Parsed:
    """Return the function of an expression.

    Raises:
        SqlError: The expression is not valid, or is above a limit.
    """
    if len(text) > SQL_LENGTH_MAX:
        raise SqlError(
            SQL_LENGTH_MAX + 1, f"the expression has {len(text)} characters, at most {SQL_LENGTH_MAX} may be"
        )
    parser: Any = _LARK.parse_interactive(text)  # Some of its methods have no types.
    names: dict[str, None] = {}
    token, count, contains_count = None, 0, 0
    try:
        for count, token in enumerate(parser.lexer_thread.lex(parser.parser_state), 1):
            if count > TOKENS_MAX:
                raise SqlError(_at(token) + 1, f"more than {TOKENS_MAX} words, literals and operators")
            if token.type == "NAME":
                token.type = _WORDS.get(token.upper(), "NAME")
                if token.type == "NAME":
                    names[str(token)] = None
                elif token.upper() == "CONTAINS":
                    contains_count += 1
                    if contains_count > CONTAINS_MAX:
                        raise SqlError(_at(token) + 1, f"more than {CONTAINS_MAX} CONTAINS")
            parser.feed_token(token)
        found: Expression = parser.feed_eof(token)
    except UnexpectedCharacters as error:
        position: Any = error.pos_in_stream  # Always an integer, but declared as None.
        raise _error_at(text, position, parser.accepts()) from None
    except UnexpectedToken as error:
        at = len(text) if error.token.type == "$END" else _at(error.token)
        raise _error_at(text, at, parser.accepts()) from None
    return Parsed(expressions.condition(found).evaluate, tuple(names), count)  # type: ignore[arg-type]


def _error_at(text: str, at: int, accepted: Collection[str]) -> SqlError:
    """Return the error of something that can't stand at a position."""
    expected = tuple(sorted({_SHOWN.get(name, name) for name in accepted}))
    if at == len(text):
        return SqlError(
            at + 1, "the expression ends too early" if text.strip() else "the expression is empty", expected
        )
    found = _FOUND.match(text, at)
    assert found is not None, "every character is found"
    called = _CALLED.search(text, 0, at) if found[0] == "(" else None
    if called is not None:
        return SqlError(at + 1, f"functions ({_shorten(called[0])}) are not supported", expected)
    return SqlError(at + 1, _FOREIGN.get(found[0].upper()) or f"{_shorten(found[0])} is unexpected", expected)


def _at(token: Token) -> int:
    assert token.start_pos is not None, "the lexer knows where each token starts"
    return token.start_pos


def _text_of(token: Token) -> str:
    return token[1:-1].replace("''", "'")


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[:_SHOWN_LENGTH_MAX]}…"
