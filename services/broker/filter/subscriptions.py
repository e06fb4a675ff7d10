"""The filters of subscriptions: by tags, or by an SQL92 expression.

Consumers send a filter with each heart-beat or pull, so compiled expressions are cached.
"""

from typing import NamedTuple

from gantry.model.errors import InvalidExpressionError
from gantry.model.group import TAG_EXPRESSION, SubscriptionData
from gantry.sqlfilter import FilterCache, SqlFilter
from services.broker.filter.tags import UnitFilter, unit_filter


class MessageFilter(NamedTuple):
    """The filter of one subscription; it lets everything through by default."""

    unit: UnitFilter | None = None
    """Decides by the ConsumeQueue unit alone."""
    sql: SqlFilter | None = None
    """Decides by the properties of the message."""


class SubscriptionFilters:
    """Makes the filters of subscriptions.

    Concurrency: the loop's thread. An expression that is not cached takes up to 10 ms.
    """

    def __init__(self) -> None:
        self._cache = FilterCache()

    def filter_of(self, subscription: SubscriptionData) -> MessageFilter:
        """Return the filter of a subscription. Raises InvalidExpressionError."""
        if subscription.is_sql:
            return MessageFilter(sql=self._cache.get(subscription.sub_string))
        if subscription.expression_type not in {TAG_EXPRESSION, ""}:
            raise InvalidExpressionError("expressionType", subscription.expression_type, "is neither TAG nor SQL92")
        return MessageFilter(unit_filter(subscription))

    def is_ready(self, subscription: SubscriptionData) -> bool:
        """Return whether the filter can be made without parsing an expression."""
        return not subscription.is_sql or subscription.sub_string in self._cache
