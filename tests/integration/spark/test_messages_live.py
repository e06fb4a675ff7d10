"""Kind messages, read from real brokers: all of it, parts of it, and while things go away."""

import asyncio
import os
import pickle
import signal
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThanOrEqual, In, LessThan
from structlog.testing import capture_logs

from gantry.client.errors import ClientError
from gantry.model.batch import encode_batch
from gantry.model.compression import Compression, compress
from gantry.model.message import encode_properties
from gantry.remoting.codes import RequestCode, ResponseCode
from spark.datasource.brokers import live, queuepull
from spark.datasource.brokers.topicqueues import MissingMessagesError
from spark.datasource.dataloss import DataLossError
from spark.datasource.kinds.messages import MessagesReader
from spark.datasource.options import read_options
from spark.datasource.schema import MESSAGES
from tests.support.brokerprocess import Peer
from tests.support.brokerunit import send_header
from tests.support.datasource import LiveCluster, send

BIG = b"0123456789abcdef" * 1_000


def reader(**options: Any) -> MessagesReader:
    texts = {"from" if name == "start" else name: str(value) for name, value in options.items()}
    return MessagesReader(read_options({"kind": "messages", **texts}), MESSAGES)


def read(made: MessagesReader, filters: Sequence[Filter] = ()) -> list[dict[str, Any]]:
    """As Spark does it: push down, plan, and hand reader and tasks to other processes."""
    made.narrow(filters)
    tasks = pickle.loads(pickle.dumps(made.partitions()))
    return [row for task in tasks for row in read_task(made, task)]


def read_task(made: MessagesReader, task: Any) -> list[dict[str, Any]]:
    return [row for batch in pickle.loads(pickle.dumps(made)).read(task) for row in batch.to_pylist()]


def places(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return sorted((row["broker"], row["queue_id"], row["queue_offset"]) for row in rows)


async def fill(peers: dict[str, Peer]) -> None:
    for peer in peers.values():
        await peer.make_topic("Orders", 2)
        await send(peer, "Orders", 0, "A", "B", None, "A")
    peer = peers["broker-a"]
    await peer.make_topic("Mixed", 1)
    await peer.send("Mixed", compress(BIG, Compression.ZLIB), sys_flag=Compression.ZLIB.sys_flag)
    await peer.send("Mixed", compress(BIG, Compression.LZ4), sys_flag=Compression.LZ4.sys_flag)
    await peer.send("Mixed", compress(BIG, Compression.ZSTD), sys_flag=Compression.ZSTD.sys_flag)
    items = [(0, b"item %d" % n, encode_properties({"KEYS": f"k{n}", "origin": "EWR"})) for n in range(3)]
    answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, send_header("Mixed", batch=True), body=encode_batch(items))
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def fill_many(peers: dict[str, Peer]) -> None:
    """Messages of very different sizes, so that an answer holds few or many."""
    peer = peers["broker-a"]
    await peer.make_topic("Many", 1)
    for first in range(0, 3_000, 500):
        items = [
            (0, b"x" * (3_000 if 1_000 <= n < 1_500 else 10), encode_properties({"TAGS": "AB"[n % 2], "n": str(n)}))
            for n in range(first, first + 500)
        ]
        answer = await peer.ask(
            RequestCode.SEND_BATCH_MESSAGE, send_header("Many", batch=True), body=encode_batch(items)
        )
        assert answer.code == ResponseCode.SUCCESS, answer.remark


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path_factory.mktemp("messages"), "broker-a", "broker-b")
    try:
        cluster.start()
        cluster.put(fill)
        cluster.put(fill_many)
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def namesrv(shared: LiveCluster) -> str:
    return shared.namesrv.address


@pytest.fixture
def own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveCluster]:
    monkeypatch.setattr(live, "REQUEST_TIMEOUT_MS", 1_000)
    monkeypatch.setattr(queuepull, "RETRY_AFTER_S", 0.05)
    cluster = LiveCluster(tmp_path, "broker-a", "broker-b")
    try:
        cluster.start()
        cluster.put(fill)
        yield cluster
    finally:
        cluster.stop()


ALL = [(broker, 0, offset) for broker in ("broker-a", "broker-b") for offset in range(4)]


def test_all_messages_of_a_topic(namesrv: str) -> None:
    rows = read(reader(namesrv=namesrv, topics="Orders"))
    assert places(rows) == ALL
    assert {row["tag"] for row in rows} == {"A", "B", None}
    assert {row["topic"] for row in read(reader(namesrv=namesrv))} == {"Orders", "Mixed", "Many"}


def test_compressed_bodies_and_batches(namesrv: str) -> None:
    rows = read(reader(namesrv=namesrv, topics="Mixed"))
    assert [row["body"] for row in rows] == [BIG, BIG, BIG, b"item 0", b"item 1", b"item 2"]
    assert [row["keys"] for row in rows[3:]] == [["k0"], ["k1"], ["k2"]]
    assert [row["properties"] for row in rows[3:]] == [[("origin", "EWR")]] * 3


@pytest.mark.parametrize("rows_max", [250_000, 700, 37])
def test_a_queue_in_however_many_parts_is_read_once(namesrv: str, rows_max: int) -> None:
    rows = read(reader(namesrv=namesrv, topics="Many", maxRowsPerPartition=rows_max))
    assert sorted(int(dict(row["properties"])["n"]) for row in rows) == list(range(3_000))
    assert [len(row["body"]) for row in sorted(rows, key=lambda row: row["queue_offset"])[998:1_002]] == [
        10,
        10,
        3_000,
        3_000,
    ]


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([EqualTo(("topic",), "Orders"), EqualTo(("broker",), "broker-b")], ALL[4:]),
        ([EqualTo(("topic",), "Orders"), EqualTo(("queue_id",), 1)], []),
        ([EqualTo(("topic",), "Orders"), In(("tag",), ("B", "C"))], [ALL[1], ALL[5]]),
        ([EqualTo(("topic",), "Orders"), LessThan(("queue_offset",), 2)], [*ALL[:2], *ALL[4:6]]),
        ([EqualTo(("topic",), "Orders"), LessThan(("stored_at",), datetime(2020, 1, 1, tzinfo=UTC))], []),
        ([EqualTo(("topic",), "Orders"), GreaterThanOrEqual(("stored_at",), datetime(2020, 1, 1, tzinfo=UTC))], ALL),
    ],
)
def test_what_is_asked_for_is_all_that_is_read(namesrv: str, filters: list[Filter], wanted: list[Any]) -> None:
    assert places(read(reader(namesrv=namesrv), filters)) == wanted


def test_a_tag_is_looked_for_by_the_broker_over_a_whole_queue(namesrv: str) -> None:
    rows = read(reader(namesrv=namesrv, topics="Many"), [EqualTo(("tag",), "B")])
    assert sorted(row["queue_offset"] for row in rows) == list(range(1, 3_000, 2))


def test_from_and_to(namesrv: str) -> None:
    def offsets(**options: Any) -> list[int]:
        rows = read(reader(namesrv=namesrv, topics="Mixed", **options))
        return sorted(row["queue_offset"] for row in rows)

    assert offsets(start=4) == [4, 5]
    assert offsets(start=1, to=3) == [1, 2]
    assert offsets(start="latest") == []
    assert offsets(start="2020-01-01T00:00:00Z", to="2100-01-01T00:00:00Z") == list(range(6))
    times = [row["stored_at"] for row in read(reader(namesrv=namesrv, topics="Mixed"))]
    assert offsets(start=times[3].isoformat()) == [number for number, at in enumerate(times) if at >= times[3]]
    assert offsets(to=times[3].isoformat()) == [number for number, at in enumerate(times) if at < times[3]]


def test_an_end_that_was_planned_stays(own: LiveCluster) -> None:
    made = reader(namesrv=own.namesrv.address, topics="Orders")
    tasks = made.partitions()

    async def more(peers: dict[str, Peer]) -> None:
        await send(peers["broker-a"], "Orders", 0, "C", "C")

    own.put(more)
    first = [row for task in tasks for row in read_task(made, task)]
    assert places(first) == ALL
    assert [row for task in tasks for row in read_task(made, task)] == first


def test_a_topic_that_is_deleted_meanwhile_is_a_loss(own: LiveCluster) -> None:
    made = reader(namesrv=own.namesrv.address, topics="Orders")
    lenient = reader(namesrv=own.namesrv.address, topics="Orders", failOnDataLoss="false")
    tasks = made.partitions()

    async def delete(peers: dict[str, Peer]) -> None:
        answer = await peers["broker-b"].ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "Orders"})
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    own.put(delete)
    with pytest.raises(
        DataLossError, match=r"topic Orders, broker broker-b, queue 0: expected offset 0.*failOnDataLoss"
    ):
        [row for task in tasks for row in read_task(made, task)]
    with capture_logs() as lines:
        assert places([row for task in tasks for row in read_task(lenient, task)]) == ALL[:4]
    assert {line["broker"] for line in lines if "data is lost" in line["event"]} == {"broker-b"}


def test_a_broker_that_does_not_answer_fails_the_read_instead_of_shortening_it(own: LiveCluster) -> None:
    made = reader(namesrv=own.namesrv.address, topics="Orders")
    tasks = made.partitions()
    process = own.brokers["broker-b"].facts["pid"]
    os.kill(process, signal.SIGSTOP)
    try:
        with pytest.raises(MissingMessagesError, match="Orders"):
            reader(namesrv=own.namesrv.address, topics="Orders").partitions()
        with pytest.raises(ClientError):
            [row for task in tasks for row in read_task(made, task)]
    finally:
        os.kill(process, signal.SIGCONT)
    assert places([row for task in tasks for row in read_task(made, task)]) == ALL


def test_a_topic_that_nobody_knows_is_refused(namesrv: str) -> None:
    with pytest.raises(MissingMessagesError, match="Nobody"):
        reader(namesrv=namesrv, topics="Nobody").partitions()


def test_spark_reads_them(spark: SparkSession, namesrv: str) -> None:
    options = {"kind": "messages", "namesrv": namesrv, "maxRowsPerPartition": "1000"}
    frame = spark.read.format("gantry").options(**options).load()
    counts = {row["topic"]: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert counts == {"Orders": 8, "Mixed": 6, "Many": 3_000}
    found = frame.where("topic = 'Many' and tag = 'A' and properties['n'] = '42'").toArrow().to_pylist()
    assert [(row["queue_offset"], row["body"], row["broker"]) for row in found] == [(42, b"x" * 10, "broker-a")]


def test_a_task_that_is_given_up_leaves_nothing_behind(namesrv: str) -> None:
    made = reader(namesrv=namesrv, topics="Many")
    (task,) = made.partitions()
    batches = made.read(task)
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
