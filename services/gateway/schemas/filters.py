"""The filter of a read, a pull or a subscription: `"*"`, tags separated by `||`, or `{"sql": "…"}`."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gantry.model.errors import NO_VALUE, InvalidExpressionError
from gantry.model.group import SubscriptionData, parse_tag_expression, sql_subscription
from gantry.sqlfilter import SQL_LENGTH_MAX, FilterCache, SqlError

TAGS_LENGTH_MAX: Final = 4_096

TagFilter = Annotated[str, Meta(min_length=1, max_length=TAGS_LENGTH_MAX)]


class SqlFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An SQL92 expression over the properties of a message (docs/filters.md)."""

    sql: Annotated[str, Meta(min_length=1, max_length=SQL_LENGTH_MAX)]


Filter = TagFilter | SqlFilter
"""The JSON of a filter."""

# Callers repeat their expressions with each request.
_cache = FilterCache()


def subscription_of(wanted: Filter, topic: str, version_ms: int, *, field: str = "/filter") -> SubscriptionData:
    """Return the subscription for a filter. An SQL expression is parsed, so that the error says what is wrong in it.

    Args:
        wanted: The filter, as the caller gave it.
        topic: The topic of the subscription.
        version_ms: The version of the subscription, usually the wall time.
        field: The path of the filter, for the error.

    Raises:
        InvalidExpressionError: The tags or the expression are not valid.
    """
    if isinstance(wanted, SqlFilter):
        check_sql(wanted.sql, field=f"{field}/sql")
        return sql_subscription(topic, wanted.sql, version_ms)
    try:
        return parse_tag_expression(topic, wanted, version_ms)
    except InvalidExpressionError as error:
        raise InvalidExpressionError(field, error.value, error.reason) from None


def check_sql(sql: str, *, field: str) -> None:
    """Raise InvalidExpressionError, with the position in it, for an expression that is not valid."""
    try:
        _cache.get(sql)
    except SqlError as error:
        raise InvalidExpressionError(field, NO_VALUE, error.reason) from None
