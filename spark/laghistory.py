"""How the lag of some groups went, from samples in Postgres: points for the lines of a page.

A sample is written where something moved, and every five minutes; brokers are sampled apart. So a point adds up what was
last seen of each broker, and there is one for each step, whether something moved in it or not.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final, NamedTuple

from spark.lagsamples import WRITTEN_EVERY
from spark.postgres import Connection

POINTS_MAX: Final = 288
STEPS: Final = tuple(timedelta(seconds=seconds) for seconds in (15, 30, 60, 120, 300, 600, 1_800, 3_600))
"""Of a line; the smallest is how often the gateway looks."""
HELD_FOR: Final = WRITTEN_EVERY + timedelta(minutes=1)
"""After so long without a sample nobody looked."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_FIRST: Final = (
    "SELECT min(sampled_at) FROM lag_samples WHERE sampled_at BETWEEN %(since)s AND %(until)s"
    " AND (group_name, topic) IN (SELECT * FROM unnest(%(groups)s::text[], %(topics)s::text[]))"
)
_LAST_OF_STEPS: Final = (
    "SELECT DISTINCT ON (group_name, topic, step, broker) group_name, topic, sampled_at, broker,"
    "  CASE WHEN known THEN lag END, date_bin(%(step)s, sampled_at, 'epoch') AS step"
    " FROM lag_samples, LATERAL ("
    "  SELECT bool_and(committed IS NOT NULL OR low = high) AS known,"
    "    sum(CASE WHEN committed IS NULL THEN 0 ELSE greatest(0, high - greatest(committed, low)) END)::bigint AS lag"
    "  FROM unnest(min_offsets, max_offsets, committed_offsets) AS queue(low, high, committed)) AS queues"
    " WHERE sampled_at BETWEEN %(since)s AND %(until)s"
    " AND (group_name, topic) IN (SELECT * FROM unnest(%(groups)s::text[], %(topics)s::text[]))"
    " ORDER BY group_name, topic, step, broker, sampled_at DESC"
)


class Seen(NamedTuple):
    """What a sample says of a group and topic on one broker; the lag is None where it was not known of a queue."""

    sampled_at: datetime
    broker: str
    lag: int | None


def read_history(
    connection: Connection, *, since: datetime, until: datetime, pairs: Sequence[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Yield how the lag of some groups on topics went: sampled_at, group, topic, lag; at most POINTS_MAX + 1 of each.

    Args:
        connection: To the gateway's database.
        since: How far to look back; a younger past is shown in smaller steps.
        until: Inclusive.
        pairs: Groups and topics.

    Yields:
        `lag` is None where it was not known for a queue that holds messages; where nobody looked there is no point.

    Raises:
        psycopg.Error: The database is away, or its tables are not there.
    """
    given = {
        "since": since,
        "until": until,
        "groups": [group for group, _ in pairs],
        "topics": [topic for _, topic in pairs],
    }
    row = connection.execute(_FIRST, given).fetchone()
    if row is None or row[0] is None:
        return
    step = choose_step(until - row[0])
    rows = connection.execute(_LAST_OF_STEPS, {**given, "step": step})
    for (group, topic), found in groupby(rows, key=lambda row: (row[0], row[1])):
        seen = (Seen(sampled_at.astimezone(UTC), broker, lag) for _, _, sampled_at, broker, lag, _ in found)
        for at, lag in add_up(seen, step=step, until=until):
            yield {"sampled_at": at, "group": group, "topic": topic, "lag": lag}


def choose_step(span: timedelta) -> timedelta:
    """Return the smallest step in which a stretch of time has at most POINTS_MAX points."""
    return next((step for step in STEPS if span <= step * POINTS_MAX), STEPS[-1])


def add_up(seen: Iterable[Seen], *, step: timedelta, until: datetime) -> Iterator[tuple[datetime, int | None]]:
    """Yield a moment and the lag of all brokers then, for each step from the first sample to `until`.

    Args:
        seen: The last sample of each step and broker, in the order of steps.
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
            lags = [one.lag for one in state.values()]
            known = [lag for lag in lags if lag is not None]
            yield at, sum(known) if len(known) == len(lags) else None
