"""`python -m spark.jobs.throughput_rollup`: messages into each topic and messages consumed, by minute, hour and day.

It reads samples of offsets, so it is no work for the brokers. A run covers a period of time, and computes again all
buckets that overlap with that period: also the hour and the day around it.
"""

import sys
from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import reduce
from itertools import pairwise
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from gantry.model.laghistory import WRITTEN_EVERY
from spark.jobs.arguments import Window
from spark.jobs.job import Job, JobContext
from spark.jobs.running import main
from spark.page import THROUGHPUT_PAGE
from spark.pagerows import RankedPairs, Ranking, Subject
from spark.results import Row, Table, columns_of
from spark.transforms.rates import GAP_MAX_S
from spark.transforms.throughput_rollup import throughput_rollup

WINDOW_DEFAULT = timedelta(hours=1)


def compute(work: JobContext) -> DataFrame:
    """Return a row for each bucket and topic, and one for each of its groups."""
    window = window_of(work)
    # Messages after the last sample before the window are known only now. They belong to the bucket before the window.
    pieces = pieces_of(Window(window.start - WRITTEN_EVERY, window.end))
    frames = (_piece(work, piece) for piece in pieces)
    if len(pieces) == 1:
        return next(frames)
    # A checkpoint computes the rows of a piece and lets go of its samples, before the next piece is read.
    rows = [frame.localCheckpoint(eager=True) for frame in frames]
    return reduce(DataFrame.unionByName, rows)


def pieces_of(window: Window) -> list[Window]:
    """Split a period at the ends of days in UTC, so that no bucket belongs to two pieces.

    The samples of one piece are in memory at once.
    """
    borders = [window.start]
    while (border := day_of(borders[-1]) + timedelta(days=1)) < window.end:
        borders.append(border)
    return [Window(*ends) for ends in pairwise([*borders, window.end])]


def _piece(work: JobContext, piece: Window) -> DataFrame:
    """Return the rows of a piece that lies within one day."""
    hour, day = hour_of(piece.start), day_of(piece.start)
    minutes_and_hours = _rollup(work, hour, piece.end).where(fn.col("unit") != "day")
    # Days are computed separately: a day of a large cluster has too many samples for memory, and needs fewer of them.
    return minutes_and_hours.unionByName(_rollup(work, day, piece.end).where(fn.col("unit") == "day"))


def window_of(work: JobContext) -> Window:
    """Return the period that a run covers: its window, or the hour before the run."""
    if work.run.window_start is not None:
        return Window(work.run.window_start, work.run.window_end)
    return Window(work.now - WINDOW_DEFAULT, work.now)


def hour_of(moment: datetime) -> datetime:
    """Return the start of the hour of a moment."""
    return moment.replace(minute=0, second=0, microsecond=0)


def day_of(moment: datetime) -> datetime:
    """Return the start of the day of a moment in UTC. Buckets are in UTC."""
    return hour_of(moment).replace(hour=0)


def _rollup(work: JobContext, start: datetime, end: datetime) -> DataFrame:
    # One sample beyond each end is needed, because offsets between two samples are interpolated.
    beyond = timedelta(seconds=GAP_MAX_S)
    samples = work.samples(start - beyond, end + beyond, with_topics=True)
    outages = work.outages(start, end + beyond)
    return throughput_rollup(samples, start=start, end=end, outages=outages, homes=work.homes() if outages else None)


def rank(rows: Iterable[Row]) -> RankedPairs:
    """Rank topics: the busiest first."""
    found = RankedPairs()
    came: Counter[Subject] = Counter()
    for row in rows:
        topic = (row["topic"],)
        found.sizes[topic] += 1
        # The buckets of each unit count the same messages, so one unit is enough.
        came[topic] += (row["messages"] or 0) if row["group"] is None and row["unit"] == "hour" else 0
    found.ranks = {topic: (-messages, *topic) for topic, messages in came.items()}
    found.summary = f"{len(came):,} topics, the busiest first"
    return found


TABLE: Final = Table(
    "report_throughput",
    columns_of(
        *("unit", "bucket_at", "topic", "messages", "rate_max", "lag_messages", "covered_s"), group_name="group"
    ),
    key=("unit", "bucket_at", "topic", "group_name"),
)

JOB = Job(
    "throughput_rollup",
    "Sum up what came into topics and what groups consumed, by minute, hour and day.",
    compute,
    table=TABLE,
    page=THROUGHPUT_PAGE,
    ranking=Ranking(("topic",), ("group", "unit", "messages"), rank),
    window_help="messages that were stored or consumed in it are summed up",
    needs_database=True,
    settled_after=WRITTEN_EVERY,
    is_repeatable=True,
)

if __name__ == "__main__":
    sys.exit(main(JOB))
