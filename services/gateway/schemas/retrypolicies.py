"""The retry policy of a group as requests, answers and Postgres have it: one of three kinds."""

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta, Struct

from gantry.model.retrypolicy import (
    DELAY_MS_MAX,
    ExponentialDelays,
    ListedDelays,
    read_retry_policy,
    write_retry_policy,
)

DelayMs = Annotated[int, Meta(ge=1, le=DELAY_MS_MAX)]


class LevelRetries(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="levels"):
    """Failed messages wait by the delay levels of the broker."""


class ListedRetries(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="delays"):
    """A delay for each failure; the last one also counts for all later failures."""

    delays_ms: Annotated[list[DelayMs], Meta(min_length=1, max_length=100)]


class ExponentialRetries(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="exponential"):
    """Each delay is the one before, times `multiplier`, and at most `max_ms`."""

    initial_ms: DelayMs = 5_000
    multiplier: Annotated[int, Meta(ge=1, le=100)] = 2
    max_ms: DelayMs = 7_200_000


RetryPolicy = LevelRetries | ListedRetries | ExponentialRetries


def observed_policy(policy: Mapping[str, Any]) -> RetryPolicy:
    """Return the policy of a group on a broker, `groupRetryPolicy`."""
    delays = read_retry_policy(policy)
    if delays is None:
        return LevelRetries()
    if isinstance(delays, ListedDelays):
        return ListedRetries(list(delays.delays_ms))
    return ExponentialRetries(delays.initial_ms, delays.multiplier, delays.max_ms)


def applied_policy(wanted: RetryPolicy, present: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the `groupRetryPolicy` with the wanted delays; it is `present` if that has them already."""
    if observed_policy(present) == wanted:
        return present
    if isinstance(wanted, LevelRetries):
        return write_retry_policy(None)
    if isinstance(wanted, ListedRetries):
        return write_retry_policy(ListedDelays(wanted.delays_ms))
    return write_retry_policy(ExponentialDelays(wanted.initial_ms, wanted.max_ms, wanted.multiplier))
