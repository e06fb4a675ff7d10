"""A group's filter on a topic: tags, which ConsumeQueue units can decide by hashes, or an SQL92 expression."""

from dataclasses import dataclass
from typing import Final, Self

from gantry.model.errors import InvalidExpressionError
from gantry.model.group import SQL92_EXPRESSION, SUB_ALL, TAG_EXPRESSION, SubscriptionData, parse_tag_expression


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """The filter of a subscription."""

    expression: str
    codes: tuple[int, ...] | None = None
    """The Java hashes of the accepted tags, signed; None if all messages pass."""
    tags: frozenset[str] = frozenset()
    sql: str | None = None
    """The SQL92 expression, which only the properties of messages can decide; None for tags."""
    error: str | None = None
    """The reason why nobody can show which messages pass; None if brokers can."""

    @classmethod
    def of_expression(cls, kind: str, expression: str) -> Self:
        """Return the filter of an expression that Postgres stores."""
        if kind == SQL92_EXPRESSION:
            return cls(expression, sql=expression)
        if kind != TAG_EXPRESSION:
            return cls(expression, error=f"a filter of type {kind} can't be applied: {expression}")
        try:
            subscription = parse_tag_expression("", expression)
        except InvalidExpressionError as error:
            return cls(expression, error=f"the group's filter can't be read: {error}")
        return cls.of_subscription(subscription)

    @classmethod
    def of_subscription(cls, subscription: SubscriptionData) -> Self:
        """Return the filter of a subscription that a broker reports."""
        expression = subscription.sub_string or SUB_ALL
        if subscription.is_sql and not subscription.class_filter_mode:
            return cls(expression, sql=subscription.sub_string)
        if subscription.expression_type != TAG_EXPRESSION or subscription.class_filter_mode:
            kind = "class" if subscription.class_filter_mode else subscription.expression_type
            return cls(expression, error=f"a filter of type {kind} can't be applied: {expression}")
        # Brokers do the same: without hashes, everything passes.
        if subscription.is_all or not subscription.code_set:
            return cls(expression)
        return cls(expression, tuple(sorted(subscription.code_set)), subscription.tags_set)

    @property
    def units_error(self) -> str | None:
        """The reason why ConsumeQueue units can't show which messages pass; None if they can."""
        if self.sql is not None:
            return f"an SQL92 filter can't be applied to ConsumeQueue units: {self.sql}"
        return self.error

    def passes(self, tags_code: int) -> bool:
        """Return whether the message of a unit with this tags code passes."""
        return self.codes is None or tags_code in self.codes


ALL: Final = GroupFilter(SUB_ALL)
