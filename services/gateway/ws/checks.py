"""The checks of a `subscribe` frame. Pure."""

from collections.abc import Collection
from typing import NoReturn

from msgspec import UNSET

from gantry.model.errors import NO_VALUE, InvalidValueError
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
from services.gateway.ws.limits import DEFAULT_TAIL_RATE, StreamLimits
from services.gateway.ws.subscription import Subscription


def raise_unsupported(field: str, what: str) -> NoReturn:
    """Reject a request for a feature that is not built yet."""
    raise not_implemented(field, f"{what} is not supported yet")


def check_supported(frame: frames.Subscribe) -> None:
    """Reject a subscription that asks for features that are not built yet."""
    for field, value, built in (
        ("/mode", frame.mode, ("clustering", "tail")),
        ("/strategy", frame.strategy, ("AVG",)),
    ):
        if value not in built:
            raise not_implemented(field, f"{value!r} is not supported yet; {' or '.join(map(repr, built))} is")


def check_group_mode(frame: frames.Subscribe) -> str:
    """Return the group of a subscription that is no tail. Raises ProblemError (400): a field is missing or not allowed."""
    if frame.group is UNSET:
        raise invalid("/group", NO_VALUE, "is missing; only the mode `tail` has no group")
    if frame.rate_per_s is not None:
        raise invalid("/rate_per_s", frame.rate_per_s, "is only allowed with the mode `tail`")
    return frame.group


def check_tail_mode(frame: frames.Subscribe, limits: StreamLimits) -> int:
    """Return the rate of a tail. Raises ProblemError (400): a field is not allowed, or the rate is above the limit."""
    for field, value, allowed in (
        ("/group", frame.group, UNSET),
        ("/order", frame.order, "concurrent"),
        ("/max_reconsume_times", frame.max_reconsume_times, None),
    ):
        if value != allowed:
            raise invalid(field, value, "is not allowed with the mode `tail`, which has no group")
    rate_per_s = DEFAULT_TAIL_RATE if frame.rate_per_s is None else frame.rate_per_s
    if rate_per_s > limits.tail_rate_max:
        raise invalid("/rate_per_s", rate_per_s, f"is more than {limits.tail_rate_max}")
    return rate_per_s


def group_member(subscription: Subscription) -> Subscription:
    """Return the subscription of a frame with receipts. Raises ProblemError (409) if it is a tail."""
    if subscription.is_tail:
        detail = f"subscription: {subscription.name} is a tail, whose messages are neither acknowledged nor returned"
        raise ProblemError(CONFLICT, detail, field="/subscription")
    return subscription


def parse_names(frame: frames.Subscribe, version_ms: int) -> SubscriptionData:
    """Return the group's subscription. Raises ProblemError (400, 403) if a name or the filter is not valid."""
    try:
        if frame.group is not UNSET:
            if is_system_group(frame.group):
                raise reserved_name("/group", frame.group)
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
