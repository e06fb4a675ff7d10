"""The data source in Spark itself: registered by its name, planned, pushed down, and read in Python workers."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark.datasource.columns.batches import arrow_schema
from spark.datasource.schema import BY_KIND
from tests.support.datasource import LiveCluster, commit, make_group, send


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    async def fill(peers):
        peer = peers["broker-a"]
        await peer.make_topic("Orders", 2)
        await make_group(peer, "half")
        await send(peer, "Orders", 0, "A", "B", "A", "B", None)
        await commit(peer, "half", "Orders", 0, 2)

    cluster = LiveCluster(tmp_path_factory.mktemp("spark-cluster"), "broker-a")
    try:
        cluster.start()
        cluster.put(fill)
        yield cluster
    finally:
        cluster.stop()


def load(spark: SparkSession, cluster: LiveCluster, kind: str, **options: str) -> DataFrame:
    return spark.read.format("gantry").options(kind=kind, namesrv=cluster.namesrv.address, **options).load()


@pytest.mark.parametrize("kind", ["offsets", "heads", "groups", "survey", "backlog"])
def test_every_kind_has_its_schema_and_rows(spark: SparkSession, cluster: LiveCluster, kind: str):
    frame = load(spark, cluster, kind)
    assert [(field.name, field.dataType) for field in frame.schema] == [
        (field.name, field.dataType) for field in BY_KIND[kind]
    ]
    table: pa.Table = frame.toArrow()
    assert table.schema.names == arrow_schema(BY_KIND[kind]).names
    assert table.num_rows > 0
    assert set(table.column("group").to_pylist()) == {"half"}


def test_spark_sees_what_brokers_say(spark: SparkSession, cluster: LiveCluster):
    (row,) = load(spark, cluster, "offsets").where("lag > 0").collect()
    assert (row.group, row.topic, row.broker, row.queue_id) == ("half", "Orders", "broker-a", 0)
    assert (row.min_offset, row.max_offset, row.committed_offset, row.lag) == (0, 5, 2, 3)
    (head,) = load(spark, cluster, "heads").where("first_offset is not null").collect()
    assert (head.first_offset, {tag.tag: tag.messages for tag in head.tags}) == (2, {"A": 1, "B": 1, None: 1})


def test_filters_are_pushed_down_and_the_rest_is_sparks(spark: SparkSession, cluster: LiveCluster):
    frame = load(spark, cluster, "backlog", pushdown="true").where(
        (sf.col("group") == "half")
        & sf.col("queue_id").isin(0, 1)
        & (sf.col("queue_offset") >= 3)
        & (sf.col("stored_at") > sf.lit("2020-01-01T00:00:00Z").cast("timestamp"))
        & (sf.col("size") > 0)
    )
    assert sorted(row.queue_offset for row in frame.collect()) == [3, 4]
    plan = frame._jdf.queryExecution().executedPlan().toString()
    # Spark does not evaluate the filters again that the source applies exactly.
    (filtered,) = [line for line in plan.splitlines() if "Filter " in line]
    assert "size#" in filtered
    assert not [name for name in ("group#", "queue_id#", "queue_offset#", "stored_at#") if name in filtered], plan


def test_a_frame_may_be_asked_different_things(spark: SparkSession, cluster: LiveCluster):
    frame = load(spark, cluster, "backlog")
    count = frame.count()
    first, second = frame.where("queue_offset < 3"), frame.where("queue_offset >= 3")
    assert 0 < first.count() < count
    assert frame.count() == count
    assert (first.count(), second.count()) == (first.count(), count - first.count())
    assert first.join(second, "queue_id").select(first.queue_offset).distinct().count() == first.count()


def test_an_empty_answer_is_an_empty_frame(spark: SparkSession, cluster: LiveCluster):
    assert load(spark, cluster, "offsets").where("group = 'nobody'").count() == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kind": "offset"}, "kind: 'offset' is not one of"),
        ({"kind": "offsets", "nameserver": "x:1"}, "nameserver: 'x:1' is no option"),
        ({"kind": "offsets"}, "namesrv: None is missing"),
    ],
)
def test_a_bad_option_is_refused_by_name(spark: SparkSession, options: dict[str, str], reason: str):
    with pytest.raises(PySparkException, match=reason):
        spark.read.format("gantry").options(**options).load()


def test_a_schema_of_ones_own_is_refused(spark: SparkSession, cluster: LiveCluster):
    frame = spark.read.format("gantry").schema("group string")
    with pytest.raises(PySparkException, match="kind offsets has its own"):
        frame.options(kind="offsets", namesrv=cluster.namesrv.address).load().collect()
