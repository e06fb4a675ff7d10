"""`python -m spark.jobs.lag_report`: how far behind each group is, since when, why, and when it will be over."""

import sys
from datetime import timedelta

from pyspark.sql import DataFrame

from spark.jobs.running import Job, Work, main
from spark.transforms.lag import lag_report
from spark.transforms.lagsettings import LagSettings


def compute(work: Work) -> DataFrame:
    """Return a row for each group, topic and queue, and one for each group and topic."""
    settings = LagSettings()
    since = work.now - timedelta(seconds=settings.window_s)
    samples = work.samples(since, work.now)
    # Read twice by the transform: without this brokers would be asked twice, and say two things.
    offsets = work.read("offsets").persist()
    return lag_report(offsets, work.read("heads"), work.read("groups"), samples, as_of=work.now, settings=settings)


JOB = Job(
    "lag_report", "Say how far behind each consumer group is, since when, why, and when it will be over.", compute
)

if __name__ == "__main__":
    sys.exit(main(JOB))
