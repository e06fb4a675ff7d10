"""The definition of a job, and the data that its computation reads.

A new job is one module in this folder with a `JOB`, and one entry in spark/scheduler/jobs.py if it has a schedule.
"""

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from gantry.model.laghistory import Outage
from spark.datasource.options import SURVEY
from spark.jobs.arguments import Arguments, source_options
from spark.jobs.surveying import Survey, start_survey
from spark.laghistory import read_homes, read_outages
from spark.lagsamples import SCHEMA, last_looked_at, read_samples, samples_frame
from spark.objectives import Objectives, read_objectives
from spark.offsetresets import mark_survey, read_resets
from spark.page import Page
from spark.pagerows import Ranking
from spark.postgres import connect
from spark.results import Table
from spark.runs import Run, Runs
from spark.session import register_data_source
from spark.storedrows import Finished, StoredRows

RESETS_SINCE: Final = timedelta(hours=2)
"""The period of the resets that are compared with those of a survey, which are at most an hour old."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """The input of a job's computation.

    Attributes:
        spark: The Spark session.
        arguments: The arguments of the job.
        run: The run.
        now: The time of the report.
        step: Reports the progress: the percentage, and the name of the next step.
        surveyed: The survey that began before there was a session, for a job that `surveys`.
    """

    spark: SparkSession
    arguments: Arguments
    run: Run
    now: datetime
    step: Callable[[int, str], None]
    surveyed: Future[Survey] | None = None

    def read(self, kind: str, **options: str) -> DataFrame:
        """Return the rows of a kind of the data source, for the stack and the groups in the arguments."""
        register_data_source(self.spark)
        shared = source_options(self.arguments, kind)
        return self.spark.read.format("gantry").option("kind", kind).options(**shared, **options).load()

    def survey(self) -> pa.Table:
        """Return the rows of kind `survey`. The survey began with the job, or else begins now.

        Raises:
            NotSurveyedError: No name server or no broker answered, or the survey took too long.
        """
        surveyed = self.surveyed or start_survey(source_options(self.arguments, SURVEY))
        return surveyed.result().table(self.spark)

    def before(self) -> datetime | None:
        """Return when the job's last successful run before this one began; None if no such run is known."""
        if self.arguments.database is None:
            return None
        with connect(self.arguments.database, application="gantry-samples") as connection:
            return Runs(connection).last_began(self.run.job)

    def objectives(self) -> Objectives:
        """Return the objectives of groups; none without a database."""
        if self.arguments.database is None:
            return {}
        with connect(self.arguments.database, application="gantry-objectives") as connection:
            return read_objectives(connection)

    def samples(self, since: datetime, until: datetime, *, with_topics: bool = False) -> DataFrame:
        """Return the samples of a period as a frame; see samples_table."""
        return samples_frame(self.spark, self.samples_table(since, until, with_topics=with_topics))

    def samples_table(self, since: datetime, until: datetime, *, with_topics: bool = False) -> pa.Table:
        """Return the samples of a period; none without a database. See read_samples."""
        if self.arguments.database is None:
            return SCHEMA.empty_table()
        with connect(self.arguments.database, application="gantry-samples") as connection:
            groups = list(self.arguments.groups) or None
            return read_samples(connection, since=since, until=until, groups=groups, with_topics=with_topics)

    def outages(self, since: datetime, until: datetime) -> Sequence[Outage]:
        """Return the times in which brokers gave no numbers; none without a database."""
        if self.arguments.database is None:
            return ()
        with connect(self.arguments.database, application="gantry-samples") as connection:
            return read_outages(connection, since, until)

    def homes(self) -> Mapping[str, Collection[str]]:
        """Return topic → the brokers that were seen to hold it; none without a database."""
        if self.arguments.database is None:
            return {}
        with connect(self.arguments.database, application="gantry-samples") as connection:
            return read_homes(connection)

    def with_resets(self, survey: pa.Table) -> pa.Table:
        """Set `reset_messages` of a survey to null for resets that samples show; see mark_survey."""
        if self.arguments.database is None:
            return survey
        with connect(self.arguments.database, application="gantry-samples") as connection:
            until = pc.max(survey["read_at"]).as_py() or self.now
            return mark_survey(survey, read_resets(connection, until - RESETS_SINCE, until))

    def with_last_looked_at(self, survey: pa.Table, samples: pa.Table, *, gap: timedelta) -> pa.Table:
        """Add the column `looked_at` to the result of `survey`: see last_looked_at; null without a database."""
        found: Mapping[str, datetime] = {}
        if self.arguments.database is not None:
            read_at = zip(survey["broker"].to_pylist(), survey["read_at"].to_pylist(), strict=True)
            with connect(self.arguments.database, application="gantry-samples") as connection:
                known = {broker: at for broker, at in read_at if at is not None}
                found = last_looked_at(connection, known, samples=samples, gap=gap)
        looked = [found.get(broker) for broker in survey["broker"].to_pylist()]
        return survey.append_column(SCHEMA.field("looked_at"), [pa.array(looked, SCHEMA.field("looked_at").type)])


@dataclass(frozen=True, slots=True)
class Job:
    """A job, with everything that differs between jobs.

    Attributes:
        name: The name, which is that of its module.
        description: The sentence at the top of `--help`.
        compute: Returns the rows.
        table: The table of Postgres for the rows.
        page: The page.
        ranking: Selects the rows of the page in a large report.
        window_help: The meaning of `--from` and `--to`, for `--help`.
        needs_database: Whether it can't run without a database.
        settled_after: The time after the end of a window from which all of its data is there.
        is_repeatable: Whether a window can be done again, because its rows replace those of the run before.
        surveys: Whether it begins with a survey of all brokers (JobContext.survey), which starts before Spark does.
        rehearse: Returns the job's frame of no rows. Then the next run finds it planned, and the JVM's classes loaded.
        finish: Returns columns that need the computed rows, and the history for the page.
        add_arguments: Adds the job's own arguments to the parser of its command line.
    """

    name: str
    description: str
    compute: Callable[[JobContext], DataFrame]
    table: Table
    page: Page
    ranking: Ranking
    window_help: str
    needs_database: bool = False
    settled_after: timedelta = timedelta(0)
    is_repeatable: bool = False
    surveys: bool = False
    rehearse: Callable[[SparkSession], DataFrame] | None = None
    finish: Callable[[Arguments, StoredRows, datetime], Finished] | None = None
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None
