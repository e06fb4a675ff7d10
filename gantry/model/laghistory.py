"""The history of a lag: it adds the samples of single brokers up to points, and finds out since when a group is behind.

Pure functions. The gateway uses them for the lag history, and Spark jobs use them for the lines of a page.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
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
LATE: Final = timedelta(seconds=10)
"""A broker is late in a round if it gives its numbers this long after the round's first broker, as in lag reports."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER: Final = datetime.min.replace(tzinfo=UTC)


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


class Outage(NamedTuple):
    """A time in which a broker gave no numbers: from the first to the last round that missed it."""

    broker: str
    began_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class Looks:
    """The known facts about the rounds in which samples were taken.

    Attributes:
        rounds: The times at which rounds began, sorted; empty if they are unknown.
        outages: Times in which brokers gave no numbers.
        homes: The brokers that have the topic, as far as they are known from elsewhere.
    """

    rounds: Sequence[datetime] = ()
    outages: Sequence[Outage] = ()
    homes: Collection[str] = ()

    def round_of(self, at: datetime) -> datetime:
        """Return the begin of the round of a sample; `at` itself if rounds are unknown."""
        place = bisect_right(self.rounds, at)
        return self.rounds[place - 1] if place else at

    def is_away(self, broker: str, at: datetime, *, seen_at: datetime) -> bool:
        """Return whether a broker gave no numbers in the round of a time. `seen_at`: its last sample until then."""
        return any(
            one.broker == broker and one.began_at <= at <= one.ended_at + STEPS[0] and seen_at <= one.ended_at
            for one in self.outages
        )


NO_LOOKS: Final = Looks()


class LagPoint(NamedTuple):
    """The lag on all brokers at one time.

    Attributes:
        at: The time.
        lag: The number of unconsumed messages; None if it is unknown.
        behind_s: The time (s) for which the oldest unconsumed message has waited; 0 if there is none, None if unknown.
        missing_brokers: The brokers of the topic that gave no numbers. Then `lag` and `behind_s` are None.
        late_brokers: The brokers whose numbers are of a later moment than the others'. Likewise.
    """

    at: datetime
    lag: int | None
    behind_s: float | None
    missing_brokers: tuple[str, ...] = ()
    late_brokers: tuple[str, ...] = ()


def choose_step(span: timedelta) -> timedelta:
    """Return the smallest step that divides a period into at most POINTS_MAX points."""
    return next((step for step in STEPS if span <= step * POINTS_MAX), STEPS[-1])


def add_up(
    samples: Iterable[LagSample], *, step: timedelta, until: datetime, looks: Looks = NO_LOOKS
) -> Iterator[LagPoint]:
    """Yield the lag of all brokers for each step from the first sample to `until`.

    A point is of one look at all brokers, the last one of its step: it adds up no numbers of different rounds. A broker
    without a sample in that round has not changed since its last one.

    Args:
        samples: Samples, sorted by time. If a broker has several samples in a step, the last one is used.
        step: The length of a step. Steps start at multiples of this length since 1970.
        until: The end of the period.
        looks: The known facts about the rounds.
    """
    of_steps: dict[int, list[LagSample]] = {}
    for one in samples:
        # A round may begin in one step and end in the next.
        of_steps.setdefault((looks.round_of(one.sampled_at) - _EPOCH) // step, []).append(one)
    state: dict[str, LagSample] = {}
    seen, last_at = dict.fromkeys(looks.homes, _NEVER), _NEVER
    for number in range(min(of_steps, default=0), (until - _EPOCH) // step + 1 if of_steps else 0):
        new = of_steps.get(number, [])
        at = max([one.sampled_at for one in new], default=min(_EPOCH + (number + 1) * step, until))
        if not new and at <= last_at:
            continue  # The last round began in the step before and ended in this one.
        last_at = at
        state |= {one.broker: one for one in new}
        seen |= {one.broker: one.sampled_at for one in new}
        for broker, one in list(state.items()):
            if one.is_gone:
                del state[broker], seen[broker]
            elif at - one.sampled_at > HELD_FOR:
                del state[broker]
        missing = tuple(sorted(one for one, last in seen.items() if looks.is_away(one, at, seen_at=last)))
        late = _late_brokers(new, looks)
        if missing or late:
            yield LagPoint(at, None, None, missing, late)
        elif state:
            yield _point(at, list(state.values()))


def _late_brokers(new: Sequence[LagSample], looks: Looks) -> tuple[str, ...]:
    """Return the brokers that were late in the last round of a step."""
    if not new or not looks.rounds:
        return ()
    last = max(looks.round_of(one.sampled_at) for one in new)
    of_round = [one for one in new if looks.round_of(one.sampled_at) == last]
    first = min(one.sampled_at for one in of_round) if len(of_round) > 1 else last
    return tuple(sorted(one.broker for one in of_round if one.sampled_at - first > LATE))


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
