"""`python -m spark.jobs.lag_report`: how far behind each group is, since when, why, and when it will have caught up."""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from gantry.model.lag import severity
from spark.datasource.columns.batches import arrow_schema
from spark.datasource.schema import SURVEY
from spark.fedframes import fed_frame
from spark.jobs.arguments import add_alert_arguments
from spark.jobs.job import Job, JobContext
from spark.jobs.lagfinish import finish_lag
from spark.jobs.running import main
from spark.lagsamples import SCHEMA
from spark.objectives import Objectives, with_objectives
from spark.page import LAG_PAGE
from spark.pagerows import PAIR, RankedPairs, Ranking
from spark.results import Row, Table, columns_of
from spark.transforms.lag import lag_report
from spark.transforms.lagsettings import LagSettings

SETTINGS: Final = LagSettings()
AS_OF, SINCE = "report_as_of", "report_since"
"""The columns of the input that hold the run's own moments: its start, and the time from which on events count."""
SINCE_MAX: Final = timedelta(hours=1)
"""The limit for how far a report looks back to the previous report, because a large cluster has many samples. An older
rewind still shows in the lag."""


def compute(work: JobContext) -> DataFrame:
    """Return a row for each group, topic and queue, and one for each group and topic."""
    survey = work.survey()
    # Samples are read after the survey, so that they include those that were taken during the survey.
    until = pc.max(survey["read_at"]).as_py() or work.now
    since = since_of(work.before(), work.now, SETTINGS)
    samples = work.samples_table(since, until)
    # With a shorter gap, messages between two commits would look like a burst.
    gap = timedelta(seconds=SETTINGS.reading_gap_min_s)
    survey = work.with_resets(work.with_last_looked_at(survey, samples, gap=gap))
    tables = tables_of(survey, samples, work.objectives(), now=work.now, since=since)
    return fed_frame(work.spark, "lag_report", tables, build, feed=f"{work.run.id}-{work.run.attempt}")


def rehearse(spark: SparkSession) -> DataFrame:
    """Return the report of no rows. Its frame is kept, and the next run feeds it."""
    long_ago = datetime.fromtimestamp(0, UTC)
    survey = pa.schema([*arrow_schema(SURVEY), SCHEMA.field("looked_at")]).empty_table()
    tables = tables_of(survey, SCHEMA.empty_table(), {}, now=long_ago, since=long_ago)
    return fed_frame(spark, "lag_report", tables, build, feed="rehearsal")


def tables_of(
    survey: pa.Table, samples: pa.Table, objectives: Objectives, *, now: datetime, since: datetime
) -> dict[str, pa.Table]:
    """Return the rows that feed the frame. Each run has the same columns, because the plan is kept.

    Args:
        survey: The rows of the survey, with the column `looked_at`.
        samples: The samples of the report's window.
        objectives: The objectives of groups.
        now: The time of the report.
        since: The time from which on events count.
    """
    tables = {"survey": with_objectives(survey, objectives, now), "samples": samples}
    return {name: with_moments(table, {AS_OF: now, SINCE: since}) for name, table in tables.items()}


def build(frames: Mapping[str, DataFrame]) -> DataFrame:
    """Return the report of the frames `survey` and `samples`. The plan contains no data of a run."""
    return lag_report(frames["survey"], frames["samples"], as_of=fn.col(AS_OF), since=fn.col(SINCE), settings=SETTINGS)


def with_moments(table: pa.Table, moments: Mapping[str, datetime]) -> pa.Table:
    """Add the run's moments to each row as columns, because other runs use the same frame."""
    for name, moment in moments.items():
        value = pa.scalar(moment, pa.timestamp("us", tz="UTC"))
        table = table.append_column(name, pa.repeat(value, table.num_rows))
    return table


def since_of(before: datetime | None, now: datetime, settings: LagSettings) -> datetime:
    """Return the time from which changes of offsets count: that of the previous report, so that none is missed."""
    least = now - timedelta(seconds=max(settings.events_s, settings.window_s))
    return least if before is None else max(min(before, least), now - SINCE_MAX)


def rank(rows: Iterable[Row]) -> RankedPairs:
    """Rank groups and topics: the worst verdict first, then the longest and the largest lag."""
    found = RankedPairs()
    verdicts: Counter[str] = Counter()
    messages = 0
    for row in rows:
        pair = row["group"], row["topic"]
        found.sizes[pair] += 1
        if row["level"] == "topic":
            rank = severity(row["verdict"]), -(row["lag_seconds"] or 0), -(row["lag_messages"] or 0)
            found.ranks[pair] = *rank, *pair
            verdicts[row["verdict"]] += 1
            messages += row["lag_messages"] or 0
    judged = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(verdicts.items(), key=_by_severity))
    count = len(found.ranks)
    found.summary = f"{count:,} groups and topics ({judged}; {messages:,} messages behind), the worst first"
    return found


def _by_severity(item: tuple[str, int]) -> int:
    return severity(item[0])


TABLE: Final = Table(
    "report_lag_rows",
    columns_of(
        *("level", "topic", "broker", "queue_id", "as_of", "lag_messages", "lag_seconds", "oldest_unconsumed_at"),
        *("in_rate", "out_rate", "drain_eta_s", "drain_eta_low_s", "drain_eta_high_s", "retention_left_s", "skew"),
        *("top_tags", "clients", "verdict", "cause", "next_step", "evidence", "behind_since", "owners"),
        group_name="group",
    ),
    json=frozenset({"top_tags", "evidence", "owners"}),
)

JOB = Job(
    "lag_report",
    "Say how far behind each consumer group is, since when, why, and when it will be over.",
    compute,
    table=TABLE,
    page=LAG_PAGE,
    ranking=Ranking(PAIR, ("level", "verdict", "lag_seconds", "lag_messages"), rank),
    window_help="it only names the run, since a lag report is always about the moment when it runs",
    surveys=True,
    rehearse=rehearse,
    finish=finish_lag,
    add_arguments=add_alert_arguments,
)

if __name__ == "__main__":
    sys.exit(main(JOB))
