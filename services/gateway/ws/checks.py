"""The checks of a `subscribe` frame. Pure."""

from collections.abc import Collection
from typing import NoReturn

from gantry.model.errors import InvalidValueError
from gantry.model.group import ConsumeFromWhere, SubscriptionData
from gantry.model.names import check_group, check_topic, is_system_group
from services.gateway.errors import (
    CONFLICT,
    INVALID_FIELD,
    TOO_MANY,
    ProblemError,
    invalid,
    not_implemented,
    reserved_name,
)
from services.gateway.schemas.filters import subscription_of
from services.gateway.schemas.times import parse_time_ms
from services.gateway.ws import frames
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.subscription import Subscription


def raise_unsupported(field: str, what: str) -> NoReturn:
    """Reject a request for a feature that is not built yet."""
    raise not_implemented(field, f"{what} is not supported yet")


def check_supported(frame: frames.Subscribe) -> None:
    """Reject a subscription that asks for features that are not built yet."""
    for field, value, built in (
        ("/mode", frame.mode, "clustering"),
        ("/strategy", frame.strategy, "AVG"),
    ):
        if value != built:
            raise not_implemented(field, f"{value!r} is not supported yet; {built!r} is")


def parse_names(frame: frames.Subscribe, version_ms: int) -> SubscriptionData:
    """Return the group's subscription. Raises ProblemError (400, 403) if a name or the filter is not valid."""
    if is_system_group(frame.group):
        raise reserved_name("/group", frame.group)
    try:
        check_group(frame.group)
        check_topic(frame.topic)
        return subscription_of(frame.filter, frame.topic, version_ms, field="filter")
    except InvalidValueError as error:
        raise ProblemError(INVALID_FIELD, str(error), field=f"/{error.field}") from None


def require_room(frame: frames.Subscribe, present: Collection[Subscription], limits: StreamLimits) -> None:
    """Reject a subscription above a limit of the connection, or to a (group, topic) that it already has."""
    if len(present) >= limits.subscriptions_max:
        raise ProblemError(
            TOO_MANY, f"subscriptions: the connection has {limits.subscriptions_max} already, which is the limit"
        )
    if frame.batch > limits.batch_max:
        raise invalid("/batch", frame.batch, f"is more than {limits.batch_max}")
    if any(each.group == frame.group and each.topic == frame.topic for each in present):
        raise ProblemError(
            CONFLICT,
            f"topic: group {frame.group} has subscribed to {frame.topic} on this connection already",
            field="/topic",
        )


def parse_start(text: str) -> tuple[ConsumeFromWhere, int | None]:
    """Return the start for a group without an offset, and the time in wall ms if the start is a time."""
    if text == "first":
        return ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, None
    if text == "last":
        return ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, None
    try:
        return ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, parse_time_ms(text, "from")
    except InvalidValueError:
        raise invalid("/from", text, "is neither first, last nor a time such as 2026-11-21T09:30:00.000Z") from None
