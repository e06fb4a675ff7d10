"""The filters of pulls and pops, and the refusals that they share with heart-beats and checks of clients."""

from functools import lru_cache

from gantry.model.errors import InvalidExpressionError
from gantry.model.group import (
    SQL92_EXPRESSION,
    TAG_EXPRESSION,
    SubscriptionData,
    parse_tag_expression,
    sql_subscription,
)
from gantry.remoting.codes import ResponseCode
from services.broker.refusal import RefusalError
from services.broker.settings import LiveSettings

_SHOWN_CHARACTERS = 200
_SUBSCRIPTIONS_CACHED_MAX = 1024


def require_sql_enabled(live_settings: LiveSettings, group: str, subscription: SubscriptionData) -> None:
    """Raise RefusalError (1) if the broker does not evaluate SQL92 expressions. The code is RocketMQ's."""
    if not live_settings.current.enable_property_filter:
        raise RefusalError(
            ResponseCode.SYSTEM_ERROR,
            f"expressionType=SQL92: the broker does not support consumer to filter message by SQL92: "
            f"enablePropertyFilter=false (group {group}, topic {subscription.topic}, "
            f"expression {subscription.sub_string[:_SHOWN_CHARACTERS]!r})",
        )


def unparsable(error: InvalidExpressionError) -> RefusalError:
    """Return the refusal of a filter that can't be parsed."""
    return RefusalError(ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}")


def inline_subscription(topic: str, kind: str | None, expression: str | None) -> SubscriptionData:
    """Return the subscription of a pull or pop that brings its own. Raises InvalidExpressionError."""
    if kind == SQL92_EXPRESSION:
        return sql_subscription(topic, expression or "")
    if kind and kind != TAG_EXPRESSION:
        raise InvalidExpressionError("expressionType", kind, "is neither TAG nor SQL92")
    return _tag_subscription(topic, expression)


@lru_cache(maxsize=_SUBSCRIPTIONS_CACHED_MAX)
def _tag_subscription(topic: str, expression: str | None) -> SubscriptionData:
    return parse_tag_expression(topic, expression)
