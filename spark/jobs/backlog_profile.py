"""`python -m spark.jobs.backlog_profile`: ages, tags, keys, sizes and queues of unconsumed messages."""

import sys
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from spark.datasource.options import SQL_CHARACTERS_MAX, SQL_FILTERS_MAX, sql_error
from spark.jobs.job import Job, JobContext
from spark.jobs.ledger import utc_of
from spark.jobs.running import main
from spark.page import BACKLOG_PAGE
from spark.pagerows import PAIR, RankedPairs, Ranking, Subject
from spark.results import Row, Table, columns_of
from spark.runs import Run
from spark.transforms.backlog_profile import backlog_extent, backlog_profile
from spark.transforms.backlogfilters import SqlFilters, plan_filters

TOPICS_APART_MAX: Final = 32
"""Up to this number of topics, each topic is read from its own first unconsumed message. If there are more, all topics
are read from the earliest first unconsumed message."""


def compute(work: JobContext) -> DataFrame:
    """Return a row for each bucket of each section of each group and topic."""
    limits = limits_of(work.run)
    # The extent is used twice: to find the start of each topic, and for the profile. Without persist, the second use
    # would survey the brokers again and see another backlog.
    extent = backlog_extent(work.read("backlog", **limits), as_of=work.now).persist()
    work.step(30, "looking at the backlog")
    # collect would convert times to the time zone of this machine.
    begins = (
        extent.groupBy("topic", "sql_filter")
        .agg(fn.min("first_stored_at").alias("first"), fn.sum("units").alias("units"))
        .toArrow()
        .to_pylist()
    )
    first: dict[str, datetime] = {}
    for row in begins:
        if row["first"] is not None:
            begin = row["first"].astimezone(UTC)
            first[row["topic"]] = min(begin, first.get(row["topic"], begin))
    filters = plan_filters(
        {(row["topic"], row["sql_filter"]): row["units"] for row in begins if row["sql_filter"] is not None},
        filters_max=SQL_FILTERS_MAX,
        characters_max=SQL_CHARACTERS_MAX,
        error_of=sql_error,
    )
    work.step(50, "reading its messages")
    return backlog_profile(extent, _messages(work, first, limits, filters), as_of=work.now, filters=filters)


def limits_of(run: Run) -> dict[str, str]:
    """Return the options of the data source that select messages stored in a run's window; none without a window."""
    return {} if run.window_start is None else {"from": utc_of(run.window_start), "to": utc_of(run.window_end)}


def _messages(
    work: JobContext, first: dict[str, datetime], limits: dict[str, str], filters: SqlFilters
) -> DataFrame | None:
    """Return the messages of the backlog, and possibly older messages; None if there are none."""
    if not first:
        return None
    if len(first) > TOPICS_APART_MAX:
        parts = [(sorted(first), min(first.values()))]
    else:
        parts = [([topic], since) for topic, since in sorted(first.items())]
    # Retention removes messages while the report is made, so missing messages are no error.
    limits = {**limits, "failOnDataLoss": "false"}

    def options(topics: list[str], since: datetime) -> dict[str, str]:
        decided = {"sqlFilters": filters.option(topics)} if filters.applied else {}
        return {**limits, **decided, "topics": ",".join(topics), "from": utc_of(since)}

    frames = [work.read("messages", **options(topics, since)) for topics, since in parts]
    union = frames[0]
    for frame in frames[1:]:
        union = union.unionByName(frame)
    return union


def rank(rows: Iterable[Row]) -> RankedPairs:
    """Rank groups and topics: the largest backlog first."""
    found = RankedPairs()
    waiting: Counter[Subject] = Counter()
    for row in rows:
        pair = row["group"], row["topic"]
        found.sizes[pair] += 1
        # Each message is in one queue.
        waiting[pair] += (row["messages"] or 0) if row["section"] == "queue" else 0
    found.ranks = {pair: (-messages, *pair) for pair, messages in waiting.items()}
    found.summary = f"{len(waiting):,} groups and topics ({waiting.total():,} messages wait), the largest first"
    return found


TABLE: Final = Table(
    "report_backlog_rows",
    columns_of("topic", "section", "bucket", "lower_bound", "upper_bound", "messages", "bytes", group_name="group"),
)

JOB = Job(
    "backlog_profile",
    "Say how old, of which tags and keys, how large and where unconsumed messages are.",
    compute,
    table=TABLE,
    page=BACKLOG_PAGE,
    ranking=Ranking(PAIR, ("section", "messages"), rank),
    window_help="only messages that were stored in it count",
)

if __name__ == "__main__":
    sys.exit(main(JOB))
