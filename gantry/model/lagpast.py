"""How a lag went: what was seen of brokers apart, as points of all together; and since when a group is behind.

Pure: the gateway makes a history of it, Spark jobs the lines of a page.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

POINTS_MAX: Final = 288
STEPS: Final = tuple(timedelta(seconds=seconds) for seconds in (15, 30, 60, 120, 300, 600, 1_800, 3_600))
"""Of a line; the smallest is how often the gateway looks."""
WRITTEN_EVERY: Final = timedelta(minutes=5)
"""A group's last sample before a stretch of time is at most that old, while samples are taken at all."""
HELD_FOR: Final = WRITTEN_EVERY + timedelta(minutes=1)
"""After so long without a sample nobody looked."""
KEEPS_UP_S: Final = 10.0
"""Whose oldest message has waited no longer keeps up: of messages that flow, some are always on their way."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Seen(NamedTuple):
    """What a sample says of a group and topic on one broker.

    Attributes:
        sampled_at: When the broker gave the numbers.
        broker: Which one.
        lag: None where it was not known of a queue.
        first_at: When the oldest unconsumed message was stored; None where there is none, or it is not known.
    """

    sampled_at: datetime
    broker: str
    lag: int | None
    first_at: datetime | None = None


class LagPoint(NamedTuple):
    """What all brokers together had: messages, and for how many seconds the oldest had waited.

    Both are None where they are not known; behind_s is 0 where nothing is unconsumed.
    """

    at: datetime
    lag: int | None
    behind_s: float | None


def choose_step(span: timedelta) -> timedelta:
    """Return the smallest step in which a stretch of time has at most POINTS_MAX points."""
    return next((step for step in STEPS if span <= step * POINTS_MAX), STEPS[-1])


def add_up(seen: Iterable[Seen], *, step: timedelta, until: datetime) -> Iterator[LagPoint]:
    """Yield a moment and the lag of all brokers then, for each step from the first sample to `until`.

    Args:
        seen: Samples by time; of several in a step the last one of each broker counts.
        step: Steps begin at its multiples since 1970.
        until: Where to end.
    """
    of_steps: dict[int, list[Seen]] = {}
    for one in seen:
        of_steps.setdefault((one.sampled_at - _EPOCH) // step, []).append(one)
    state: Mapping[str, Seen] = {}
    for number in range(min(of_steps, default=0), (until - _EPOCH) // step + 1 if of_steps else 0):
        new = of_steps.get(number, [])
        at = max([one.sampled_at for one in new], default=min(_EPOCH + (number + 1) * step, until))
        state = {**state, **{one.broker: one for one in new}}
        state = {broker: one for broker, one in state.items() if at - one.sampled_at <= HELD_FOR}
        if state:
            yield _point(at, list(state.values()))


def _point(at: datetime, seen: Sequence[Seen]) -> LagPoint:
    lags = [one.lag for one in seen]
    known = [lag for lag in lags if lag is not None]
    lag = sum(known) if len(known) == len(lags) else None
    if lag == 0:
        return LagPoint(at, 0, 0.0)
    # A broker with messages of which nobody knows the oldest may have the one that waits longest.
    is_known = all(one.first_at is not None or one.lag == 0 for one in seen)
    waiting = [(at - one.first_at).total_seconds() for one in seen if one.first_at is not None and one.lag != 0]
    return LagPoint(at, lag, max(0.0, *waiting) if is_known and waiting else None)


class BehindSince(NamedTuple):
    """Since when a group is behind.

    Attributes:
        at: The moment; None where it is not known, or the group keeps up.
        at_latest: It was behind already then, and ever since; None where it keeps up, or that is not known.
    """

    at: datetime | None
    at_latest: datetime | None


def behind_since(points: Sequence[LagPoint]) -> BehindSince:
    """Return since when a group is behind, at the last point.

    Args:
        points: By time. Across a point that is not known, or a time without points, nobody knows whether it kept up.

    Returns:
        `at` is when the message was stored that waited longest at the first look that found the group behind, but not before
        the one that waited longest at the look that found it keeping up.
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
