"""A frame that is kept for a session reads what it is fed, in every run anew, and nothing of the run before."""

import json
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from spark import fedframes
from spark.fedframes import ADAPTIVE, CODE_FACTORY, PARTITIONS, WHOLE_STAGE, fed_frame, plan_as_usual
from spark.jobs import lag_report as job
from spark.objectives import ALL_TOPICS, Objective
from spark.transforms.lag import lag_report
from tests.integration.spark.transforms.lagworld import AS_OF, SAMPLES, World, steady

SCHEMA = pa.schema([("name", pa.string()), ("count", pa.int64())])


@pytest.fixture
def built(spark: SparkSession, request: pytest.FixtureRequest):
    """A function that feeds a frame and returns its rows; `calls` says which frames were built."""
    calls: list[str] = []
    test = request.node.name

    def feed(name: str, feed: str, left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
        def build(frames: Mapping[str, DataFrame]) -> DataFrame:
            calls.append(name)
            # A join, a shuffle and an aggregate: all that Spark could keep results of.
            both = frames["left"].join(frames["right"].withColumnRenamed("count", "other"), on="name", how="left")
            return both.groupBy("name").agg(fn.sum(fn.col("count") + fn.coalesce("other", fn.lit(0))).alias("sum"))

        tables = {"left": table(left), "right": table(right)}
        rows = fed_frame(spark, name, tables, build, feed=f"{test}-{feed}").toArrow().to_pylist()
        return {row["name"]: row["sum"] for row in rows}

    feed.calls = calls
    yield feed
    plan_as_usual(spark)
    for name in set(calls):
        spark.catalog.dropTempView(name)


@pytest.fixture(scope="module")
def rehearsed(spark: SparkSession) -> Iterator[None]:
    """A session made ready for lag reports, as in a worker before its first run."""
    # Reports of other modules may have left one that was built with rows.
    spark.catalog.dropTempView("lag_report")
    try:
        assert job.rehearse(spark).toArrow().num_rows == 0
        yield
    finally:
        spark.catalog.dropTempView("lag_report")
        plan_as_usual(spark)


def table(counts: dict[str, int]) -> pa.Table:
    return pa.table({"name": list(counts), "count": list(counts.values())}, schema=SCHEMA)


def test_a_kept_frame_reads_what_it_was_fed_last(built) -> None:
    assert built("fed", "1", {"a": 1, "b": 2}, {"a": 10}) == {"a": 11, "b": 2}
    assert built("fed", "2", {"b": 5}, {"b": 50, "a": 10}) == {"b": 55}
    assert built("fed", "3", {}, {}) == {}
    assert built("fed", "4", {"c": 7}, {}) == {"c": 7}
    assert built.calls == ["fed"]


def test_frames_of_different_names_have_nothing_in_common(built) -> None:
    assert built("fed", "1", {"a": 1}, {}) == {"a": 1}
    assert built("other", "1", {"a": 2}, {}) == {"a": 2}
    assert built("fed", "2", {"a": 3}, {}) == {"a": 3}
    assert built.calls == ["fed", "other"]


def test_rows_of_the_run_before_are_not_read_again_even_without_a_refresh(spark: SparkSession, built) -> None:
    built("fed", "1", {"a": 1}, {})
    before = spark.table("fed")
    built("fed", "2", {"a": 2}, {})
    # Same plan, asked again: fresh, for the refresh was of its files.
    assert before.select("*").toArrow().to_pylist() == [{"name": "a", "sum": 2}]


def test_a_feed_that_comes_twice_is_refused(built) -> None:
    built("fed", "1", {"a": 1}, {})
    with pytest.raises(FileExistsError, match="fed before"):
        built("fed", "1", {"a": 2}, {})


def test_a_failed_run_leaves_nothing_to_the_next_one(spark: SparkSession, built) -> None:
    built("fed", "1", {"a": 1}, {})
    tables = {"left": table({"a": 2}), "right": table({})}
    fed_frame(spark, "fed", tables, lambda frames: frames["left"], feed="never executed")
    assert built("fed", "3", {"a": 3}, {}) == {"a": 3}


def test_rows_are_the_same_however_many_spark_plans_for(
    spark: SparkSession, built, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (ADAPTIVE, WHOLE_STAGE, CODE_FACTORY, PARTITIONS)
    partitions = spark.conf.get(PARTITIONS)
    assert partitions != "1"
    usual = [spark.conf.get(name) for name in settings]
    assert built("fed", "1", {"a": 1, "b": 2}, {"a": 10}) == {"a": 11, "b": 2}
    assert [spark.conf.get(name) for name in settings] == ["false", "false", "NO_CODEGEN", "1"]
    monkeypatch.setattr(fedframes, "INTERPRETED_ROWS_MAX", 2)
    assert built("fed", "2", {"a": 1, "b": 2}, {"a": 10}) == {"a": 11, "b": 2}
    assert [spark.conf.get(name) for name in settings] == ["false", "true", "FALLBACK", "1"]
    monkeypatch.setattr(fedframes, "WHOLE_QUERY_ROWS_MAX", 2)
    assert built("fed", "3", {"a": 1, "b": 2}, {"a": 10}) == {"a": 11, "b": 2}
    assert [spark.conf.get(name) for name in settings] == ["true", "true", "FALLBACK", "1"]
    monkeypatch.setattr(fedframes, "ONE_TASK_ROWS_MAX", 2)
    assert built("fed", "4", {"a": 1, "b": 2}, {"a": 10}) == {"a": 11, "b": 2}
    assert [spark.conf.get(name) for name in settings] == ["true", "true", "FALLBACK", partitions]
    monkeypatch.undo()
    assert built("fed", "5", {"a": 1, "b": 2}, {"a": 10}) == {"a": 11, "b": 2}
    plan_as_usual(spark)
    assert [spark.conf.get(name) for name in settings] == usual


@pytest.mark.usefixtures("rehearsed")
def test_a_kept_lag_report_is_the_same_as_one_built_anew(spark: SparkSession) -> None:
    """Two worlds and two moments through one rehearsed frame; at each moment, a report built anew is about both worlds."""
    even = steady(high=10_000, committed=4_000, rate_in=2, rate_out=6)
    first = World().group("g").queue("g", high=10_000, committed=4_000, head={"age": 60}, samples=even)
    first.queue("g", 1, high=None, committed=None, low=None, error="no answer", samples=even)
    rewind = [(1_200, 90, 90), (1_000, 100, 50), (200, 140, 70), (100, 150, 75)]
    second = World().group("h").queue("h", topic="u", high=160, committed=80, head={"age": 60}, samples=rewind)
    second.queue("h", 1, topic="u", high=50, committed=50, head={}, samples=[(100, 50, 50)])
    worlds = {"g": frames_of(spark, first), "h": frames_of(spark, second)}
    both = [frame.unionByName(other) for frame, other in zip(worlds["g"], worlds["h"], strict=True)]
    since = {earlier_s: AS_OF - timedelta(seconds=900 + earlier_s) for earlier_s in (0, 3_000)}
    fresh = {earlier_s: lag_report(*both, as_of=AS_OF, since=since[earlier_s]) for earlier_s in since}
    wanted = {earlier_s: in_order(frame) for earlier_s, frame in fresh.items()}
    for number, (group, earlier_s) in enumerate([("g", 0), ("h", 3_000), ("h", 0), ("g", 3_000)]):
        survey, samples = (frame.toArrow() for frame in worlds[group])
        tables = job.tables_of(survey, samples, {}, now=AS_OF, since=since[earlier_s])
        kept = fed_frame(spark, "lag_report", tables, job.build, feed=f"world-{number}")
        assert kept.columns == fresh[earlier_s].columns
        rows = in_order(kept)
        assert rows == [row for row in wanted[earlier_s] if row["group"] == group]
        assert len(rows) == 3
        assert ("REWOUND" in {row["verdict"] for row in rows}) == (group == "h" and earlier_s > 0)


@pytest.mark.usefixtures("rehearsed")
def test_a_rehearsed_lag_report_knows_up_to_when_nothing_had_moved(spark: SparkSession) -> None:
    """The plan is built of no rows: a column that it was not built with would be unknown in every run."""
    # 600 messages were consumed: before the last sample, or between it and the report.
    before, behind = [(600, 1_000, 0), (300, 1_000, 0), (60, 1_000, 600)], [(600, 1_000, 0), (300, 1_000, 0)]
    found = []
    for number, (samples, looked, last) in enumerate(
        [(before, {}, {}), (before, {60: 75}, {}), (behind, {}, {}), (behind, {}, {"b0": 12}), (before, {}, {})]
    ):
        world = World().group("g")
        world.queue("g", high=1_000, committed=600, head={"age": 60}, samples=samples, looked=looked)
        world.looked |= last
        survey, rows = frames_of(spark, world)
        tables = job.tables_of(survey.toArrow(), rows.toArrow(), {}, now=AS_OF, since=AS_OF)
        kept = fed_frame(spark, "lag_report", tables, job.build, feed=f"looked-{number}")
        found.append(json.loads(in_order(kept)[0]["evidence"])["net_rates"])
    spread, at_once = pytest.approx([0, 0, 1.25, 2.5, 1.25]), pytest.approx([0, 0, 0, 0, 5])
    assert found == [spread, at_once, pytest.approx([0, 0, 1, 2, 2]), at_once, spread]


@pytest.mark.usefixtures("rehearsed")
def test_a_rehearsed_lag_report_knows_objectives_that_come_later(spark: SparkSession) -> None:
    world = World().group("g").queue("g", high=100, committed=40, head={"age": 90})
    survey, samples = (frame.toArrow() for frame in frames_of(spark, world))
    found = []
    for number, objectives in enumerate(
        ({}, {("g", ALL_TOPICS): Objective(max_lag_seconds=60.0)}, {("g", "t"): Objective(ignore=True)})
    ):
        tables = job.tables_of(survey, samples, objectives, now=AS_OF, since=AS_OF)
        rows = in_order(fed_frame(spark, "lag_report", tables, job.build, feed=f"objectives-{number}"))
        found.append({row["verdict"] for row in rows})
    assert found == [{"OK"}, {"OVER_OBJECTIVE"}, {"IGNORED"}]


def frames_of(spark: SparkSession, world: World) -> tuple[DataFrame, DataFrame]:
    return world.survey_frame(spark), spark.createDataFrame(world.samples, SAMPLES)


def in_order(frame: DataFrame) -> list[dict[str, Any]]:
    return sorted(frame.toArrow().to_pylist(), key=lambda row: (row["level"], row["group"], row["queue_id"] or 0))
