"""The history of a lag: it adds the samples of single brokers up to points, and finds out since when a group is behind.

Pure functions. The gateway uses them for the lag history, and Spark jobs use them for the lines of a page.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

POINTS_MAX: Final = 288
STEPS: Final = tuple(timedelta(seconds=seconds) for seconds in (15, 30, 60, 120, 300, 600, 1_800, 3_600))
"""The allowed distances between two points of a line. The smallest is the sampling interval of the gateway."""
WRITTEN_EVERY: Final = timedelta(minutes=5)
"""The longest time between two stored samples of a group, while samples are taken."""
HELD_FOR: Final = WRITTEN_EVERY + timedelta(minutes=1)
"""The time for which a sample is valid. Longer gaps mean that no samples were taken."""
KEEPS_UP_S: Final = 10.0
"""The longest wait (s) of the oldest message for a group that keeps up. Some messages are always in transit."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class LagSample(NamedTuple):
    """A sample of a group and topic on one broker.

    Attributes:
        sampled_at: The time when the broker sent the numbers.
        broker: The name of the broker.
        lag: The number of unconsumed messages; None if it is unknown for at least one queue.
        first_at: The store time of the oldest unconsumed message; None if there is none, or if it is unknown.
        is_none_waiting: Whether no unconsumed message passes the group's filter.
        is_gone: Whether the group or the topic ceased to exist on the broker.
    """

    sampled_at: datetime
    broker: str
    lag: int | None
    first_at: datetime | None = None
    is_none_waiting: bool = False
    is_gone: bool = False


class LagPoint(NamedTuple):
    """The lag on all brokers at one time.

    Attributes:
        at: The time.
        lag: The number of unconsumed messages; None if it is unknown.
        behind_s: The time (s) for which the oldest unconsumed message has waited; 0 if there is none, None if unknown.
    """

    at: datetime
    lag: int | None
    behind_s: float | None


def choose_step(span: timedelta) -> timedelta:
    """Return the smallest step that divides a period into at most POINTS_MAX points."""
    return next((step for step in STEPS if span <= step * POINTS_MAX), STEPS[-1])


def add_up(samples: Iterable[LagSample], *, step: timedelta, until: datetime) -> Iterator[LagPoint]:
    """Yield the lag of all brokers for each step from the first sample to `until`.

    Args:
        samples: Samples, sorted by time. If a broker has several samples in a step, the last one is used.
        step: The length of a step. Steps start at multiples of this length since 1970.
        until: The end of the period.
    """
    of_steps: dict[int, list[LagSample]] = {}
    for one in samples:
        of_steps.setdefault((one.sampled_at - _EPOCH) // step, []).append(one)
    state: Mapping[str, LagSample] = {}
    for number in range(min(of_steps, default=0), (until - _EPOCH) // step + 1 if of_steps else 0):
        new = of_steps.get(number, [])
        at = max([one.sampled_at for one in new], default=min(_EPOCH + (number + 1) * step, until))
        state = {**state, **{one.broker: one for one in new}}
        state = {broker: one for broker, one in state.items() if at - one.sampled_at <= HELD_FOR and not one.is_gone}
        if state:
            yield _point(at, list(state.values()))


def _point(at: datetime, samples: Sequence[LagSample]) -> LagPoint:
    lags = [one.lag for one in samples]
    known = [lag for lag in lags if lag is not None]
    lag = sum(known) if len(known) == len(lags) else None
    if lag == 0:
        return LagPoint(at, 0, 0.0)
    # If the oldest message of a broker with a lag is unknown, it may be the oldest message of all.
    is_known = all(one.first_at is not None or one.is_none_waiting or one.lag == 0 for one in samples)
    waiting = [(at - one.first_at).total_seconds() for one in samples if one.first_at is not None and one.lag != 0]
    return LagPoint(at, lag, max([0.0, *waiting]) if is_known else None)


class BehindSince(NamedTuple):
    """The time since which a group is behind.

    Attributes:
        at: This time; None if it is unknown or the group keeps up.
        at_latest: A time at which the group was already behind. It has been behind ever since. None if the group keeps
            up, or if no such time is known.
    """

    at: datetime | None
    at_latest: datetime | None


def behind_since(points: Sequence[LagPoint]) -> BehindSince:
    """Return the time since which a group has been behind, as of the last point.

    Args:
        points: Points, sorted by time. The search backward ends at an unknown point or at a gap between points, because
            the group may have kept up there.

    Returns:
        `at` is the store time of the oldest unconsumed message at the first point where the group was behind. But if
        the oldest message at the point before (where the group kept up) is newer, its store time is used.
    """
    at_latest: datetime | None = None
    after: LagPoint | None = None
    for point in reversed(points):
        if point.behind_s is None or (after is not None and after.at - point.at > HELD_FOR):
            break
        if point.behind_s <= KEEPS_UP_S:
            if after is None or after.behind_s is None:
                return BehindSince(None, None)
            since = max(one.at - timedelta(seconds=one.behind_s or 0.0) for one in (point, after))
            return BehindSince(since, since)
        at_latest, after = point.at, point
    return BehindSince(None, at_latest)
