"""The past lag of some groups, from samples in Postgres: points for the lines of a page.

A sample is written when something has moved, and every five minutes. Brokers are sampled separately. So a point adds up
the last known lag on each broker, and there is one point for each step, whether something has moved in the step or not.
"""

from collections import deque
from collections.abc import Collection, Container, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

import numpy as np

from gantry.model.laghistory import WRITTEN_EVERY, LagSample, Looks, Outage, add_up, choose_step
from gantry.model.sampleblock import Kind, Pair
from spark.lagblocks import NO_MESSAGE, UNKNOWN, BlockContent, Longs
from spark.lagsamples import read_blocks
from spark.offsetresets import read_resets
from spark.oldsamples import read_old_samples
from spark.postgres import Connection
from spark.transforms.lagsettings import LagSettings

SETTINGS: Final = LagSettings()
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_EVERY_MOVE_BYTES_MAX: Final = 64 * 1024 * 1024
"""The limit for the blocks that are read to draw points in steps below five minutes. Reading more takes too long for a
picture."""
_ROUNDS: Final = "SELECT sampled_at FROM lag_sample_rounds WHERE sampled_at BETWEEN %s AND %s ORDER BY sampled_at"
_OUTAGES: Final = "SELECT broker, began_at, ended_at FROM lag_sample_outages WHERE ended_at >= %s AND began_at <= %s ORDER BY began_at"
_HOMES: Final = (
    "SELECT name, ARRAY(SELECT jsonb_object_keys(observed)) FROM topics"
    " WHERE (%s::text[] IS NULL OR name = ANY(%s)) AND state <> 'deleting'"
)
_BYTES: Final = "SELECT coalesce(sum(octet_length(data)), 0) FROM lag_sample_blocks WHERE sampled_at BETWEEN %s AND %s"


class QueueOffsets(NamedTuple):
    """The offsets of one group on a topic of one broker, at one time; UNKNOWN if there is no commit."""

    at_ms: int
    queue_ids: Longs
    min_offsets: Longs
    max_offsets: Longs
    committed: Longs


def read_history(
    connection: Connection, *, since: datetime, until: datetime, pairs: Sequence[tuple[str, str]]
) -> Iterator[dict[str, Any]]:
    """Yield the past lag of some groups on topics: sampled_at, group, topic, lag, behind_s and is_moved.

    Args:
        connection: A connection to the gateway's database.
        since: The start of the period. If the samples begin later, the steps are smaller.
        until: The end of the period, inclusive.
        pairs: The pairs of a group and a topic.

    Yields:
        At most POINTS_MAX + 1 points for each pair, and none for times without samples. `lag` is None if it was unknown
        for a queue that holds messages. `behind_s` is the time that the oldest unconsumed message had waited: 0 if
        there was none, None if unknown. `is_moved`: whether offsets have moved since the previous point although no
        messages were consumed (were_moved). Then no line leads from that point to this one.

    Raises:
        psycopg.Error: The database can't be reached, or its tables do not exist.
    """
    wanted = frozenset(pairs)
    if not wanted:
        return
    # Most periods are so long that points are as far apart as the blocks of all groups. Then the many blocks in between
    # need not be read, except those after the last block of all groups.
    recent = until - WRITTEN_EVERY
    by_pair, moved = _read(
        connection, [(since, recent - _MICROSECOND, Kind.STATE), (recent, until, Kind.CHANGES)], wanted
    )
    first = min((found[0].sampled_at for found in by_pair.values()), default=until - WRITTEN_EVERY)
    old = _read_old(connection, since, first, wanted)
    step = choose_step(until - min([first, *(found[0].sampled_at for found in old.values())]))
    if step < WRITTEN_EVERY and _are_few(connection, first, until):
        by_pair, moved = _read(connection, [(first, until, Kind.CHANGES)], wanted)
    for pair, found in old.items():
        by_pair[pair] = found + by_pair.get(pair, [])
    rounds, outages = _rounds(connection, first, until), read_outages(connection, first, until)
    homes = read_homes(connection, {topic for _, topic in wanted}) if outages else {}
    for group, topic in sorted(by_pair):
        moves = deque(moved.get((group, topic), ()))
        looks = Looks(rounds, outages, homes.get(topic, ()))
        for point in add_up(by_pair[group, topic], step=step, until=until, looks=looks):
            is_moved = False
            while moves and moves[0] <= point.at:
                moves.popleft()
                is_moved = True
            values = {"lag": point.lag, "behind_s": point.behind_s, "is_moved": is_moved}
            yield {"sampled_at": point.at, "group": group, "topic": topic, **values}


def _rounds(connection: Connection, since: datetime, until: datetime) -> list[datetime]:
    rows = connection.execute(_ROUNDS, (since - WRITTEN_EVERY, until)).fetchall()
    return [row[0] for row in rows]


def read_outages(connection: Connection, since: datetime, until: datetime) -> list[Outage]:
    """Return the outages of brokers in a period; none if the gateway is older than their table.

    Raises:
        psycopg.Error: The database can't be reached.
    """
    exists = connection.execute("SELECT to_regclass('lag_sample_outages') IS NOT NULL").fetchone()
    if exists is None or not exists[0]:
        return []
    return [Outage(*row) for row in connection.execute(_OUTAGES, (since, until)).fetchall()]


def read_homes(connection: Connection, topics: Collection[str] | None = None) -> dict[str, set[str]]:
    """Return topic → the brokers that were seen to hold it, as Postgres knows; None for all topics.

    Raises:
        psycopg.Error: The database can't be reached.
    """
    wanted = None if topics is None else list(topics)
    rows = connection.execute(_HOMES, (wanted, wanted)).fetchall()
    return {topic: set(brokers or ()) for topic, brokers in rows}


def _are_few(connection: Connection, since: datetime, until: datetime) -> bool:
    row = connection.execute(_BYTES, (since, until)).fetchone()
    assert row is not None
    return int(row[0]) <= _EVERY_MOVE_BYTES_MAX


def _read(
    connection: Connection, parts: Sequence[tuple[datetime, datetime, Kind]], wanted: Container[object]
) -> tuple[dict[tuple[str, str], list[LagSample]], dict[tuple[str, str], list[datetime]]]:
    """Return the samples of each pair by time, and the times at which offsets moved without consumption (were_moved).

    Args:
        connection: A connection to the gateway's database.
        parts: Periods, one after the other, each with the lowest kind of the blocks to read.
        wanted: The pairs to read.
    """
    by_pair: dict[tuple[str, str], list[LagSample]] = {}
    moved: dict[tuple[str, str], list[datetime]] = {}
    before: dict[tuple[str, Pair], QueueOffsets] = {}
    listed: dict[str, set[Pair]] = {}
    for broker, kind, content in _blocks(connection, parts, wanted):
        at = _EPOCH + timedelta(milliseconds=content.at_ms)
        here = {content.pairs[place] for place in content.places}
        if kind >= Kind.STATE:
            for group, topic in listed.get(broker, set()) - here:
                assert group is not None
                by_pair[group, topic].append(LagSample(at, broker, None, is_gone=True))
            listed[broker] = here
        else:
            listed.setdefault(broker, set()).update(here)
        for (group, topic), lag, first_ms, now in _lags(content):
            assert group is not None
            is_none = first_ms == NO_MESSAGE
            first_at = None if first_ms == UNKNOWN or is_none else _EPOCH + timedelta(milliseconds=first_ms)
            is_gone = not len(now.queue_ids)
            by_pair.setdefault((group, topic), []).append(LagSample(at, broker, lag, first_at, is_none, is_gone))
            last = before.get((broker, (group, topic)))
            before[broker, (group, topic)] = now
            if last is not None and were_moved(last, now):
                moved.setdefault((group, topic), []).append(at)
    begun, until = parts[0][0], parts[-1][1]
    for reset in read_resets(connection, begun, until):
        if (reset.group, reset.topic) in wanted:
            moved.setdefault((reset.group, reset.topic), []).append(reset.seen_at)
    by_time = {pair: sorted(found, key=lambda one: one.sampled_at) for pair, found in by_pair.items()}
    return by_time, {pair: sorted(found) for pair, found in moved.items()}


def _blocks(
    connection: Connection, parts: Sequence[tuple[datetime, datetime, Kind]], wanted: Container[object]
) -> Iterator[tuple[str, Kind, BlockContent]]:
    for since, until, kind in parts:
        with read_blocks(
            connection, since=since, until=until, kind=kind, is_wanted=lambda pair: pair in wanted
        ) as blocks:
            yield from ((block.broker, block.kind, block.content) for block in blocks)


def were_moved(last: QueueOffsets, now: QueueOffsets) -> bool:
    """Return whether offsets of a pair moved between two samples although no messages were consumed.

    Causes: a queue was deleted and made again; queues were added or removed; the group was rewound or skipped messages;
    or unconsumed messages were removed. The thresholds are those of the report.
    """
    if not np.array_equal(last.queue_ids, now.queue_ids):
        return True
    if ((now.max_offsets < last.max_offsets) | (now.min_offsets < last.min_offsets)).any():
        return True
    known = (last.committed != UNKNOWN) & (now.committed != UNKNOWN)
    place, place_before = np.maximum(now.committed, now.min_offsets), np.maximum(last.committed, last.min_offsets)
    is_back = last.committed - now.committed >= SETTINGS.rewind_messages_min
    is_trimmed = now.min_offsets > place_before
    grown = place - np.maximum(place_before, now.min_offsets)
    most = max(SETTINGS.jump_messages_min - 1.0, SETTINGS.jump_rate_min * (now.at_ms - last.at_ms) / 1_000)
    return bool((known & (is_back | is_trimmed | (grown > most))).any())


def _read_old(
    connection: Connection, since: datetime, until: datetime, wanted: Collection[tuple[str, str]]
) -> dict[tuple[str, str], list[LagSample]]:
    """Return the samples that gateways before migration 0016 wrote, by time."""
    table = read_old_samples(connection, since=since, until=until, groups=[group for group, _ in wanted])
    samples: dict[tuple[datetime, str, str, str], int | None] = {}
    for at, group, topic, broker, _, low, high, committed, _ in zip(
        *(column.to_pylist() for column in table.columns), strict=True
    ):
        if (group, topic) in wanted:
            key = at, group, topic, broker
            before = samples.get(key, 0)
            is_known = before is not None and (committed is not None or low == high)
            samples[key] = before + max(0, high - max(committed or 0, low)) if is_known else None
    by_pair: dict[tuple[str, str], list[LagSample]] = {}
    for at, group, topic, broker in sorted(samples):
        by_pair.setdefault((group, topic), []).append(LagSample(at, broker, samples[at, group, topic, broker]))
    return by_pair


def _lags(content: BlockContent) -> Iterator[tuple[Pair, int | None, int, QueueOffsets]]:
    """Yield each pair, its lag, the store time of its oldest unconsumed message, and the offsets of its queues."""
    is_none = content.committed == UNKNOWN
    from_offset = np.maximum(np.where(is_none, content.max_offsets, content.committed), content.min_offsets)
    lag = np.maximum(0, content.max_offsets - from_offset)
    is_unknown = is_none & (content.min_offsets != content.max_offsets)
    columns = content.queue_ids, content.min_offsets, content.max_offsets, content.committed
    at = 0
    for place, count, first_ms in zip(content.places, content.counts, content.first_ms, strict=True):
        queues = slice(at, at + count)
        at += count
        offsets = QueueOffsets(content.at_ms, *(column[queues] for column in columns))
        known = None if is_unknown[queues].any() else int(lag[queues].sum())
        yield content.pairs[place], known, int(first_ms), offsets
