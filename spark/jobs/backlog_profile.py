"""`python -m spark.jobs.backlog_profile`: how old, of which tags and keys, how large and where what is unconsumed is."""

import sys
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from spark.jobs.ledger import utc_of
from spark.jobs.running import Job, Work, main
from spark.runs import Run
from spark.transforms.backlog_profile import backlog_extent, backlog_profile

TOPICS_APART_MAX: Final = 32
"""Topics that are read each from its own first unconsumed message on; with more of them, all from the earliest on."""


def compute(work: Work) -> DataFrame:
    """Return a row for each bucket of each section of each group and topic."""
    limits = limits_of(work.run)
    # Read twice: for where it begins, and to be profiled; the second look would see another backlog.
    extent = backlog_extent(work.read("backlog", **limits), as_of=work.now).persist()
    work.step(30, "looking at the backlog")
    # toArrow and not collect, which would turn times into those of this machine's zone.
    begins = extent.groupBy("topic").agg(fn.min("first_stored_at").alias("first")).toArrow().to_pylist()
    first = {row["topic"]: row["first"].astimezone(UTC) for row in begins if row["first"] is not None}
    work.step(50, "reading its messages")
    return backlog_profile(extent, _messages(work, first, limits), as_of=work.now)


def limits_of(run: Run) -> dict[str, str]:
    """Return the options of the data source that leave what was stored in a run's window; none without a window."""
    return {} if run.window_start is None else {"from": utc_of(run.window_start), "to": utc_of(run.window_end)}


def _messages(work: Work, first: dict[str, datetime], limits: dict[str, str]) -> DataFrame | None:
    """Return the messages of the backlog, and perhaps older ones; None where there are none."""
    if not first:
        return None
    if len(first) > TOPICS_APART_MAX:
        parts = [(",".join(sorted(first)), min(first.values()))]
    else:
        parts = sorted(first.items())
    # The report is of what is there: retention goes on while it is made.
    limits = {**limits, "failOnDataLoss": "false"}
    frames = [work.read("messages", topics=topics, **{**limits, "from": utc_of(since)}) for topics, since in parts]
    union = frames[0]
    for frame in frames[1:]:
        union = union.unionByName(frame)
    return union


JOB = Job(
    "backlog_profile", "Say how old, of which tags and keys, how large and where unconsumed messages are.", compute
)

if __name__ == "__main__":
    sys.exit(main(JOB))
