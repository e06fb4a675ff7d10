"""The parts of an expression: functions that compute a value from the properties of a message.

The parser calls the functions of this module from the inside out. They refuse what RocketMQ refuses when it parses, and
return an `Expression`, whose `evaluate` takes the texts of the named properties. A boolean expression gives True, False or None (unknown). EvaluationError ends the evaluation of the whole expression, as an
exception does in RocketMQ, unless AND or OR need no further part.

Source: RocketMQ 5.3 ComparisonExpression, UnaryExpression, LogicExpression, ConstantExpression; the table of
docs/filters.md.
"""

import enum
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from gantry.sqlfilter.errors import SqlError
from gantry.sqlfilter.javavalues import Long, Value, compare, to_double, to_integer, to_long
from gantry.sqlfilter.limits import DEPTH_MAX

Values = Mapping[str, str | None]
Evaluate = Callable[[Values], Value]
Truth = Callable[[Values], bool | None]
ORDERS: Final = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
Order = Callable[[int, int], bool]
Test = Callable[[str, str], bool]
TESTS: Final[dict[str, Test]] = {
    "CONTAINS": lambda text, part: part in text,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


class Kind(enum.Enum):
    """The kind of an expression. RocketMQ decides by it where the expression may stand."""

    CONSTANT = "constant"
    PROPERTY = "property"
    BOOLEAN = "boolean"
    NEGATED = "negated"
    """A value with a sign. RocketMQ does not count it as a constant."""


@dataclass(slots=True)
class Expression:
    """A part of an expression.

    Attributes:
        kind: Its kind.
        at: Position of its first character in the text, counted from 0.
        evaluate: Function that computes its value.
        value: Value of a constant.
        name: Name of a property.
        depth: Number of operators within each other.
        parts: Parts of a chain of AND or of OR, which may still grow.
    """

    kind: Kind
    at: int
    evaluate: Evaluate
    value: Value = None
    name: str = ""
    depth: int = 1
    parts: list[Truth] = field(default_factory=list)

    @property
    def is_boolean(self) -> bool:
        """Whether RocketMQ treats the expression as a condition: NULL, TRUE and FALSE are constants, too."""
        return self.kind is Kind.BOOLEAN or (self.kind is Kind.CONSTANT and isinstance(self.value, bool | None))


def constant(value: Value, at: int) -> Expression:
    """Return a literal."""
    return Expression(Kind.CONSTANT, at, lambda values: value, value=value)


def property_value(name: str, at: int) -> Expression:
    """Return the text of a property; null if the message does not have it."""
    return Expression(Kind.PROPERTY, at, operator.itemgetter(name), name=name)


def negate(part: Expression, at: int) -> Expression:
    """Return a value with a minus sign: null unless the value is a number. Properties are texts."""
    evaluate = part.evaluate

    def negated(values: Values) -> Value:
        value = evaluate(values)
        return -value if isinstance(value, int | float) and not isinstance(value, bool) else None

    return _operator(Kind.NEGATED, at, negated, part)


def condition(part: Expression) -> Expression:
    """Return a part of AND, OR or NOT as a condition. A property is one: false, because it is a text; or unknown.

    Raises:
        SqlError: The part is a number or a text.
    """
    if part.is_boolean:
        return part
    if part.kind is not Kind.PROPERTY:
        raise SqlError(part.at + 1, "a value stands where a condition is needed", ("a comparison",))
    evaluate = part.evaluate
    cast: Truth = lambda values: None if evaluate(values) is None else False  # noqa: E731 - one of many small parts.
    return Expression(Kind.BOOLEAN, part.at, cast, depth=part.depth)


def negation(part: Expression, at: int) -> Expression:
    """Return NOT of a condition; unknown stays unknown."""
    evaluate = condition(part).evaluate

    def negated(values: Values) -> bool | None:
        truth = evaluate(values)
        return None if truth is None else not truth

    return _operator(Kind.BOOLEAN, at, negated, part)


def chain(left: Expression, right: Expression, *, ends_at: bool) -> Expression:
    """Return AND (`ends_at` False) or OR (`ends_at` True) of two conditions.

    A chain is one part with many members: nesting it would take a frame of the stack for each member.
    """
    left, right = condition(left), condition(right)
    if left.parts and left.value is ends_at:
        left.parts.append(right.evaluate)  # type: ignore[arg-type]
        left.depth = max(left.depth, right.depth + 1)
        _check_depth(left)
        return left
    parts: list[Truth] = [left.evaluate, right.evaluate]  # type: ignore[list-item]

    def evaluate(values: Values) -> bool | None:
        result: bool | None = not ends_at
        for part in parts:
            truth = part(values)
            if truth is ends_at:
                return ends_at
            if truth is None:
                result = None
        return result

    made = _operator(Kind.BOOLEAN, left.at, evaluate, left, right)
    made.parts, made.value = parts, ends_at
    return made


def is_null(part: Expression, *, is_wanted: bool) -> Expression:
    """Return IS NULL or IS NOT NULL; it is never unknown."""
    evaluate = part.evaluate
    return _operator(Kind.BOOLEAN, part.at, lambda values: (evaluate(values) is None) is is_wanted, part)


def equal(left: Expression, right: Expression, *, is_wanted: bool, at: int) -> Expression:
    """Return `=` or `<>`.

    Null on the left gives unknown. Null on the right gives not equal. Two nulls are equal.

    Raises:
        SqlError: A side is NULL, or a boolean literal is compared with another literal.
    """
    for part in (left, right):
        if part.kind is Kind.CONSTANT and part.value is None:
            raise SqlError(part.at + 1, "NULL can't be compared", ("IS NULL", "IS NOT NULL"))
    if left.kind is right.kind is Kind.CONSTANT and left.is_boolean and not right.is_boolean:
        raise SqlError(at + 1, "a boolean can't be compared with a number or a text")
    first, second = left.evaluate, right.evaluate
    if left.kind is Kind.PROPERTY and right.kind is Kind.CONSTANT:
        return _operator(Kind.BOOLEAN, left.at, _equal_constant(left.name, right.value, is_wanted=is_wanted), left)

    def evaluate(values: Values) -> bool | None:
        one, other = first(values), second(values)
        if one is None:
            return is_wanted if other is None else None
        if other is None:
            return not is_wanted
        return (compare(one, other) == 0) is is_wanted

    return _operator(Kind.BOOLEAN, left.at, evaluate, left, right)


def _equal_constant(name: str, value: Value, *, is_wanted: bool) -> Truth:
    if isinstance(value, str):

        def same_text(values: Values) -> bool | None:
            text = values[name]
            return None if text is None else (text == value) is is_wanted

        return same_text
    if isinstance(value, int) and not isinstance(value, bool):
        convert = to_long if isinstance(value, Long) else to_integer

        def same_number(values: Values) -> bool | None:
            text = values[name]
            return None if text is None else (convert(text) == value) is is_wanted

        return same_number

    def same_value(values: Values) -> bool | None:
        text = values[name]
        return None if text is None else (compare(text, value) == 0) is is_wanted

    return same_value


def ordered(left: Expression, right: Expression, order: Order) -> Expression:
    """Return `<`, `<=`, `>` or `>=`; unknown if a side is null. Two texts are compared as numbers of Java's type Double.

    Raises:
        SqlError: A side is a condition, or a literal that is not a number.
    """
    for part in (left, right):
        _check_orderable(part)
    first, second = left.evaluate, right.evaluate
    value = right.value
    if left.kind is Kind.PROPERTY and right.kind is Kind.CONSTANT and isinstance(value, int):
        return _operator(Kind.BOOLEAN, left.at, _ordered_constant(left.name, value, order), left)

    def evaluate(values: Values) -> bool | None:
        one = first(values)
        if one is None:
            return None
        other = second(values)
        if other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            return order(compare(to_double(one), to_double(other)), 0)
        return order(compare(one, other), 0)

    return _operator(Kind.BOOLEAN, left.at, evaluate, left, right)


def _ordered_constant(name: str, value: int, order: Order) -> Truth:
    convert = to_long if isinstance(value, Long) else to_integer

    def evaluate(values: Values) -> bool | None:
        text = values[name]
        return None if text is None else order(convert(text), value)

    return evaluate


def _check_orderable(part: Expression) -> None:
    if part.is_boolean or (part.kind is Kind.CONSTANT and isinstance(part.value, str)):
        what = "a text" if isinstance(part.value, str) else "a condition, TRUE, FALSE or NULL"
        raise SqlError(part.at + 1, f"{what} can't be compared by order", ("a property", "a number"))


def between(part: Expression, low: Expression, high: Expression, *, is_wanted: bool) -> Expression:
    """Return BETWEEN, which is `part >= low AND part <= high`, or NOT BETWEEN: `part < low OR part > high`.

    Raises:
        SqlError: A part can't be compared by order, or BETWEEN has literals that no number lies between.
    """
    for each in (part, low, high):
        _check_orderable(each)
    if is_wanted and low.kind is high.kind is Kind.CONSTANT and compare(low.value, high.value) > 0:
        raise SqlError(low.at + 1, f"BETWEEN {low.value} AND {high.value} matches nothing: the first bound is greater")
    if is_wanted:
        return chain(ordered(part, low, operator.ge), ordered(part, high, operator.le), ends_at=False)
    return chain(ordered(part, low, operator.lt), ordered(part, high, operator.gt), ends_at=True)


def member(part: Expression, texts: Collection[str], *, is_wanted: bool) -> Expression:
    """Return IN or NOT IN a list of texts; unknown if the property is null.

    Raises:
        SqlError: The left side is not a property.
    """
    if part.kind is not Kind.PROPERTY:
        raise SqlError(part.at + 1, "the left side of IN is not a property", ("a property",))
    name, wanted = part.name, frozenset(texts)

    def evaluate(values: Values) -> bool | None:
        text = values[name]
        return None if text is None else (text in wanted) is is_wanted

    return _operator(Kind.BOOLEAN, part.at, evaluate, part)


def matched(part: Expression, test: Test, text: str, *, is_wanted: bool) -> Expression:
    """Return CONTAINS, STARTSWITH or ENDSWITH, or NOT of it: false for null and with an empty text, both plain and NOT.

    A condition on the left is not a text, so it gives false, too.
    """
    if not text:
        return Expression(Kind.BOOLEAN, part.at, lambda values: False)
    evaluate = part.evaluate

    def match(values: Values) -> bool:
        value = evaluate(values)
        return isinstance(value, str) and test(value, text) is is_wanted

    return _operator(Kind.BOOLEAN, part.at, match, part)


def _operator(kind: Kind, at: int, evaluate: Evaluate, *parts: Expression) -> Expression:
    made = Expression(kind, at, evaluate, depth=1 + max(part.depth for part in parts))
    _check_depth(made)
    return made


def _check_depth(made: Expression) -> None:
    if made.depth > DEPTH_MAX:
        raise SqlError(made.at + 1, f"more than {DEPTH_MAX} operators stand within each other")
