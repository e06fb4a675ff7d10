"""Samples read from a real Postgres: a row a queue, thinned where there are many, and the past of a page."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark import lagsamples
from spark.laghistory import read_history
from spark.lagsamples import SCHEMA, last_looked_at, read_samples, remove_samples, samples_frame
from spark.postgres import Connection, connect
from tests.support.postgres import PostgresServer
from tests.support.sampleblocks import SampleTable, millis, sample_of_one

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[Connection]:
    with connect(postgres.url, application="gantry-test") as connected:
        connected.execute("TRUNCATE lag_sample_blocks, lag_sample_rounds")
        yield connected
        connected.execute("TRUNCATE lag_sample_blocks, lag_sample_rounds")


@pytest.fixture
def table(connection: Connection) -> SampleTable:
    return SampleTable(connection)


def sample(
    table: SampleTable,
    seconds: float,
    committed: list[int | None],
    *,
    group: str | None = "G",
    broker: str = "broker-a",
    low: int = 0,
    high: int = 100,
    first_s: float | None = None,
) -> None:
    first = None if first_s is None else millis(NOON + timedelta(seconds=first_s))
    queues = [(low, high, number, first) for number in committed]
    table.put(sample_of_one(group, "T", broker, *queues), NOON + timedelta(seconds=seconds))


def test_a_row_for_each_queue_in_arrow_and_in_spark(
    connection: Connection, table: SampleTable, spark: SparkSession
) -> None:
    sample(table, 0, [5, None])
    sample(table, 15, [7, 8], group="H")
    read = read_samples(connection, since=NOON, until=NOON + timedelta(minutes=1))
    assert read.schema == SCHEMA
    rows = sorted(read.to_pylist(), key=lambda row: (row["group"], row["queue_id"]))
    assert [(row["group"], row["queue_id"], row["committed_offset"]) for row in rows] == [
        ("G", 0, 5), ("G", 1, None), ("H", 0, 7), ("H", 1, 8),
    ]  # fmt: skip
    assert rows[0]["sampled_at"] == NOON
    assert samples_frame(spark, read).toArrow().select(SCHEMA.names).sort_by("committed_offset").num_rows == 4
    assert samples_frame(spark, SCHEMA.empty_table()).count() == 0


def test_a_row_says_whether_somebody_was_connected(connection: Connection, table: SampleTable) -> None:
    for group, is_served in (("G", True), ("H", False), ("I", None)):
        table.put(replace(sample_of_one(group, "T", "broker-a", *[(0, 9, 5, None)] * 2), is_served=is_served), NOON)
    read = read_samples(connection, since=NOON, until=NOON)
    assert sorted((row["group"], row["queue_id"], row["is_served"]) for row in read.to_pylist()) == [
        ("G", 0, True), ("G", 1, True), ("H", 0, False), ("H", 1, False), ("I", 0, None), ("I", 1, None),
    ]  # fmt: skip


def test_only_the_stretch_and_the_groups_that_are_wanted(connection: Connection, table: SampleTable) -> None:
    for seconds in (-301, -299, 0, 60, 61):
        sample(table, seconds, [seconds + 1_000])
        sample(table, seconds, [0], group="H")
    read = read_samples(connection, since=NOON, until=NOON + timedelta(seconds=60), groups=["G"])
    # From five minutes before on: that old may the last row be before nothing changed.
    assert sorted(read.column("committed_offset").to_pylist()) == [701, 1_000, 1_060]
    nothing = read_samples(connection, since=NOON, until=NOON, groups=["nobody"])
    assert nothing == SCHEMA.empty_table()


def test_samples_of_topics_by_themselves_come_only_where_they_are_wanted(
    connection: Connection, table: SampleTable
) -> None:
    sample(table, 0, [5])
    sample(table, 0, [None], group=None)
    stretch = {"since": NOON, "until": NOON}
    assert read_samples(connection, **stretch).column("group").to_pylist() == ["G"]
    assert read_samples(connection, **stretch, groups=["G"], with_topics=True).column("group").to_pylist() == ["G"]
    both = read_samples(connection, **stretch, with_topics=True).sort_by("committed_offset").to_pylist()
    assert [(row["group"], row["max_offset"], row["committed_offset"]) for row in both] == [
        ("G", 100, 5), (None, 100, None),
    ]  # fmt: skip
    pairs = [("G", "T")]
    assert [point["lag"] for point in read_history(connection, **stretch, pairs=pairs)] == [95]


def test_a_row_says_when_its_broker_was_looked_at_before(
    connection: Connection, table: SampleTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, missing in ((0, []), (15, []), (30, ["broker-b"]), (45, [])):
        connection.execute(
            "INSERT INTO lag_sample_rounds VALUES (%s, 5, %s)", (NOON + timedelta(seconds=seconds), missing)
        )
    for broker, late_s in (("broker-a", 0), ("broker-b", 0.004)):
        # A row has the moment of its broker's answer, somewhere within the round.
        sample(table, late_s, [1], broker=broker)
        sample(table, 45 + late_s, [2], broker=broker)
    # The round before one that did not end is unknown.
    sample(table, 60, [3])

    def looked() -> dict[tuple[str, int], int | None]:
        rows = read_samples(connection, since=NOON, until=NOON + timedelta(minutes=2)).to_pylist()
        return {
            (row["broker"], row["committed_offset"]): row["looked_at"]
            and (row["looked_at"] - NOON) // timedelta(seconds=1)
            for row in rows
        }

    first, second = "broker-a", "broker-b"
    assert looked() == {(first, 1): None, (first, 2): 30, (first, 3): None, (second, 1): None, (second, 2): None}
    # If rows are left out, offsets may have moved in between.
    monkeypatch.setattr(lagsamples, "ROWS_MAX", 3)
    assert set(looked().values()) == {None}


def test_a_report_knows_when_its_brokers_were_looked_at_last(connection: Connection, table: SampleTable) -> None:
    for seconds, missing in ((0, []), (15, []), (30, ["broker-b"]), (45, [])):
        connection.execute(
            "INSERT INTO lag_sample_rounds VALUES (%s, 5, %s)", (NOON + timedelta(seconds=seconds), missing)
        )
    for seconds in (0, 15):
        sample(table, seconds, [seconds])
    samples = read_samples(connection, since=NOON, until=NOON + timedelta(minutes=1))
    read_at = dict.fromkeys(("broker-a", "broker-b"), NOON + timedelta(seconds=50))
    gap = timedelta(seconds=10)
    # The round of 45 s is too close, and broker-b did not answer in the one before.
    assert last_looked_at(connection, read_at, samples=samples, gap=gap) == {
        "broker-a": NOON + timedelta(seconds=30),
        "broker-b": NOON + timedelta(seconds=15),
    }
    unknown = samples.set_column(8, SCHEMA.field("looked_at"), pa.nulls(samples.num_rows, SCHEMA.field(8).type))
    assert last_looked_at(connection, read_at, samples=unknown, gap=gap) == {}


def test_of_too_many_the_last_of_each_step_is_read(
    connection: Connection, table: SampleTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lagsamples, "ROWS_MAX", 20)
    for number in range(40):
        sample(table, 15 * number, [number])
    read = read_samples(connection, since=NOON, until=NOON + timedelta(minutes=10))
    numbers = sorted(read.column("committed_offset").to_pylist())
    assert len(numbers) <= 20
    assert numbers[-1] == 39
    assert all(number % 2 == 1 for number in numbers), "of two samples in 30 s the later one"


def test_the_past_of_a_group_adds_up_its_queues_and_brokers(connection: Connection, table: SampleTable) -> None:
    for broker in ("broker-a", "broker-b"):
        sample(table, 0, [10, 20], broker=broker)
        # Trimmed messages can't be consumed any more, and an offset beyond the end is no negative lag.
        sample(table, 30, [0, 500], broker=broker, low=40)
    sample(table, 40, [90, 100], broker="broker-b")
    pairs = [("G", "T"), ("nobody", "T")]
    points = list(read_history(connection, since=NOON, until=NOON + timedelta(seconds=45), pairs=pairs))
    assert {(point["group"], point["topic"]) for point in points} == {("G", "T")}
    assert [((point["sampled_at"] - NOON).total_seconds(), point["lag"]) for point in points] == [
        (0, 340), (30, 340), (40, 70), (45, 70),
    ]  # fmt: skip
    assert list(read_history(connection, since=NOON, until=NOON, pairs=[])) == []


def test_a_past_that_is_not_known_is_no_number(connection: Connection, table: SampleTable) -> None:
    sample(table, 0, [10, None])
    sample(table, 600, [None, None], low=100)
    points = list(read_history(connection, since=NOON, until=NOON + timedelta(minutes=10), pairs=[("G", "T")]))
    assert (points[0]["lag"], points[-1]["lag"]) == (None, 0)


def test_a_past_says_where_offsets_were_moved(connection: Connection, table: SampleTable) -> None:
    for seconds, committed in ((0, 10), (15, 90), (30, 20), (45, 60)):
        sample(table, seconds, [committed])
        sample(table, seconds + 1, [committed], broker="broker-b")
    pairs = [("G", "T")]
    points = list(read_history(connection, since=NOON, until=NOON + timedelta(seconds=46), pairs=pairs))
    assert [point["is_moved"] for point in points] == [False, False, True, False]


@pytest.fixture
def old_rows(connection: Connection) -> Iterator[Connection]:
    """The table of gateways before migration 0016, with a day."""
    connection.execute(
        "CREATE TABLE lag_samples_20261121 PARTITION OF lag_samples FOR VALUES FROM ('2026-11-21') TO ('2026-11-22')"
    )
    yield connection
    connection.execute("DROP TABLE lag_samples_20261121")


def put_old(connection: Connection, seconds: float, committed: list[int | None], *, group: str | None = "G") -> None:
    ids = list(range(len(committed)))
    moment = NOON + timedelta(seconds=seconds)
    columns = (ids, [0] * len(ids), [100] * len(ids), committed, [None] * len(ids))
    connection.execute(
        "INSERT INTO lag_samples VALUES (%s, %s, 'T', 'broker-a', %s, %s, %s, %s, %s)", (moment, group, *columns)
    )


def test_what_older_gateways_wrote_is_read_as_well(
    old_rows: Connection, table: SampleTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_old(old_rows, -400, [4])
    put_old(old_rows, -30, [5, None])
    put_old(old_rows, -15, [6, 40])
    put_old(old_rows, -15, [None], group=None)
    put_old(old_rows, -15, [60], group="H")
    sample(table, 0, [7, 50])
    stretch = {"since": NOON, "until": NOON + timedelta(seconds=15)}

    def read(**options: Any) -> list[tuple[Any, ...]]:
        rows = read_samples(old_rows, **stretch, **options).to_pylist()
        return sorted((row["group"] or "", row["queue_id"], row["committed_offset"] or -1) for row in rows)

    of_g = [("G", 0, 5), ("G", 0, 6), ("G", 0, 7), ("G", 1, -1), ("G", 1, 40), ("G", 1, 50)]
    assert read(groups=["G"]) == of_g
    assert read() == [*of_g, ("H", 0, 60)]
    assert read(with_topics=True) == [("", 0, -1), *of_g, ("H", 0, 60)]
    pairs = [("G", "T"), ("H", "T")]
    points = list(read_history(old_rows, since=NOON - timedelta(hours=1), until=NOON, pairs=pairs))
    lags = {(point["group"], (point["sampled_at"] - NOON).total_seconds()): point["lag"] for point in points}
    assert lags["G", -400] == 96
    assert (lags["G", -30], lags["G", -15], lags["G", 0]) == (None, 154, 143)
    assert lags["H", -15] == 40
    monkeypatch.setattr(lagsamples, "ROWS_MAX", 7)
    assert read() == [("G", 0, 6), ("G", 0, 7), ("G", 1, 40), ("G", 1, 50), ("H", 0, 60)]


def test_a_past_says_how_long_the_oldest_message_had_waited(connection: Connection, table: SampleTable) -> None:
    pairs = [("G", "T")]
    for seconds, committed, first_s in ((0, 100, None), (15, 50, -20), (30, 60, None), (45, 90, 40)):
        sample(table, seconds, [committed], first_s=first_s)
    # Behind on both, and one is behind for longer; then only the other one.
    sample(table, 45, [0], broker="broker-b", first_s=5)
    sample(table, 60, [100], broker="broker-b")
    points = list(read_history(connection, since=NOON, until=NOON + timedelta(seconds=60), pairs=pairs))
    assert [(point["lag"], point["behind_s"]) for point in points] == [
        (0, 0.0), (50, 35.0), (40, None), (110, 40.0), (10, 20.0),
    ]  # fmt: skip


def test_samples_are_no_part_of_the_plan_and_go_with_the_run(spark: SparkSession) -> None:
    """Rows in a plan are in the heap once for each use: a rollup of 2,000 groups exceeded it."""
    frame = samples_frame(spark, SCHEMA.empty_table())
    (file,) = frame.inputFiles()
    assert frame.count() == 0
    remove_samples()
    assert not Path(file.removeprefix("file://")).exists()
