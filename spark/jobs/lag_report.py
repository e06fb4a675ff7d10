"""`python -m spark.jobs.lag_report`: how far behind each group is, since when, why, and when it will be over."""

import sys
from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from spark.jobs.running import Job, Work, main
from spark.transforms.lag import lag_report
from spark.transforms.lagsettings import LagSettings

SINCE_MAX: Final = timedelta(hours=1)
"""How far a report looks back to the one before. Samples of a large cluster are many; a rewind of an hour ago that nobody
noticed shows in its lag."""


def compute(work: Work) -> DataFrame:
    """Return a row for each group, topic and queue, and one for each group and topic."""
    settings = LagSettings()
    # Read twice by the transform: without this brokers would be asked twice, and say two things.
    survey = work.read("survey").persist()
    # Samples are read after it, so that those are among them that were taken while brokers were asked.
    (read,) = survey.agg(fn.max("read_at").alias("at")).toArrow().to_pylist()
    until = work.now if read["at"] is None else read["at"].astimezone(UTC)
    since = since_of(work.before(), work.now, settings)
    return lag_report(survey, work.samples(since, until), as_of=work.now, since=since, settings=settings)


def since_of(before: datetime | None, now: datetime, settings: LagSettings) -> datetime:
    """Return from when on it matters what happened to offsets: the report before, so that between two nothing is unseen."""
    least = now - timedelta(seconds=max(settings.events_s, settings.window_s))
    return least if before is None else max(min(before, least), now - SINCE_MAX)


JOB = Job(
    "lag_report", "Say how far behind each consumer group is, since when, why, and when it will be over.", compute
)

if __name__ == "__main__":
    sys.exit(main(JOB))
