"""`python -m spark.jobs.backlog_profile`: how old, of which tags and keys, how large and where what is unconsumed is."""

import sys
from datetime import UTC, datetime
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from spark.jobs.ledger import utc_of
from spark.jobs.running import Job, Work, main
from spark.runs import Run
from spark.transforms.backlog_profile import COLUMNS, backlog_profile

TOPICS_APART_MAX: Final = 32
"""Topics that are read each from its own first unconsumed message on; with more of them, all from the earliest on."""


def compute(work: Work) -> DataFrame:
    """Return a row for each bucket of each section of each group and topic."""
    # Read twice: for its extent, and to be profiled; the second look would see another backlog.
    backlog = work.read("backlog", **limits_of(work.run)).select(*COLUMNS).persist()
    work.step(30, "looking at the backlog")
    # toArrow and not collect, which would turn times into those of this machine's zone.
    extent = backlog.where(fn.col("stored_at").isNotNull()).groupBy("topic").agg(fn.min("stored_at").alias("first"))
    first: dict[str, datetime] = {row["topic"]: row["first"].astimezone(UTC) for row in extent.toArrow().to_pylist()}
    work.step(50, "reading its messages")
    return backlog_profile(backlog, _messages(work, first), as_of=work.now)


def limits_of(run: Run) -> dict[str, str]:
    """Return the options of the data source that leave what was stored in a run's window; none without a window."""
    return {} if run.window_start is None else {"from": utc_of(run.window_start), "to": utc_of(run.window_end)}


def _messages(work: Work, first: dict[str, datetime]) -> DataFrame | None:
    """Return the messages of the backlog, and perhaps more; None where there are none."""
    if not first:
        return None
    if len(first) > TOPICS_APART_MAX:
        parts = [(",".join(sorted(first)), min(first.values()))]
    else:
        parts = sorted(first.items())
    frames = [work.read("messages", topics=topics, **{"from": utc_of(since)}) for topics, since in parts]
    union = frames[0]
    for frame in frames[1:]:
        union = union.unionByName(frame)
    return union


JOB = Job(
    "backlog_profile", "Say how old, of which tags and keys, how large and where unconsumed messages are.", compute
)

if __name__ == "__main__":
    sys.exit(main(JOB))
