"""Messages as a stream: every one is counted exactly once, whatever is killed, and limits are kept."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from gantry.model.batch import encode_batch
from gantry.model.message import encode_properties
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.brokerprocess import Peer, peer_of
from tests.support.brokerunit import send_header
from tests.support.datasource import LiveCluster

QUEUES = 3
TOTAL = 2_400
BATCH = 20
DEADLINE_S = 150.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LiveCluster]:
    cluster = LiveCluster(tmp_path / "cluster", "broker-a")
    try:
        cluster.start()
        cluster.put(lambda peers: peers["broker-a"].make_topic("Stream", QUEUES))
        yield cluster
    finally:
        cluster.stop()


async def send_numbers(peer: Peer, first: int, end: int, *, pause_s: float = 0.0) -> None:
    """Send messages that carry their numbers, spread over the queues."""
    for start in range(first, end, BATCH):
        items = [(0, b"x" * 100, encode_properties({"n": str(n)})) for n in range(start, min(start + BATCH, end))]
        header = send_header("Stream", queue_id=start // BATCH % QUEUES, batch=True)
        answer = await peer.ask(RequestCode.SEND_BATCH_MESSAGE, header, body=encode_batch(items))
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await asyncio.sleep(pause_s)


def produce(address: str, resume: threading.Event) -> None:
    """Send the first half slowly, and the second once the query is on its way again."""

    async def run() -> None:
        async with peer_of(address) as peer:
            await send_numbers(peer, 0, TOTAL // 2, pause_s=0.02)
            await asyncio.to_thread(resume.wait, DEADLINE_S)
            await send_numbers(peer, TOTAL // 2, TOTAL, pause_s=0.005)

    asyncio.run(run())


class Query:
    """The query of streamquery.py, as a process with all that it starts."""

    def __init__(self, namesrv: str, folder: Path) -> None:
        self.output = folder / "counts.json"
        self._log = folder / "query.log"
        self._command = [
            *(sys.executable, "-m", "tests.integration.spark.streamquery"),
            *(namesrv, str(folder / "checkpoint"), str(self.output)),
        ]

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def counts(self) -> dict[str, int]:
        """The running aggregate over all queues."""
        rows = json.loads(self.output.read_text())["rows"] if self.output.exists() else []
        return {name: sum(row[name] for row in rows) for name in ("messages", "sum", "squares")}

    def wait_for(self, messages: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while self.counts()["messages"] < messages:
            assert self._process.poll() is None, self._log.read_text()[-4_000:]
            assert time.monotonic() < deadline, f"{self.counts()} of {messages}: {self._log.read_text()[-4_000:]}"
            time.sleep(0.05)


@pytest.mark.usefixtures("spark")
def test_a_query_killed_in_the_middle_counts_every_message_exactly_once(cluster: LiveCluster, tmp_path: Path) -> None:
    query, resume = Query(cluster.namesrv.address, tmp_path), threading.Event()
    producer = threading.Thread(target=produce, args=(cluster.brokers["broker-a"].address, resume))
    producer.start()
    try:
        query.start()
        query.wait_for(400)
        query.kill()
        killed_at = query.counts()["messages"]
        assert 400 <= killed_at < TOTAL
        query.start()
        query.wait_for(killed_at + 1)
        resume.set()
        query.wait_for(TOTAL)
    finally:
        resume.set()
        query.kill()
        producer.join()
    numbers = range(TOTAL)
    wanted = {"messages": TOTAL, "sum": sum(numbers), "squares": sum(n * n for n in numbers)}
    assert query.counts() == wanted


def run_to_the_end(spark: SparkSession, namesrv: str, folder: Path, **options: str) -> list[list[int]]:
    """Run what is there to its end; return the numbers of each batch."""
    batches: list[list[int]] = []

    def keep(batch: DataFrame, batch_id: int) -> None:
        rows = batch.selectExpr("cast(properties['n'] as int) n").collect()
        batches.append(sorted(row["n"] for row in rows))

    frame = spark.readStream.format("gantry").options(kind="messages", namesrv=namesrv, topics="Stream", **options)
    writer = frame.load().writeStream.foreachBatch(keep).trigger(availableNow=True)
    query: Any = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    assert query.awaitTermination(240)
    return [batch for batch in batches if batch]


def test_what_is_there_is_read_in_batches_and_the_next_run_goes_on_behind_it(
    spark: SparkSession, cluster: LiveCluster, tmp_path: Path
) -> None:
    namesrv = cluster.namesrv.address
    cluster.put(lambda peers: send_numbers(peers["broker-a"], 0, 100))
    first = run_to_the_end(spark, namesrv, tmp_path, maxMessagesPerTrigger="45")
    assert sorted(n for batch in first for n in batch) == list(range(100))
    assert [len(batch) for batch in first] == [45, 45, 10]
    # A topic's new queues are found, and read from their beginning.
    cluster.put(lambda peers: peers["broker-a"].make_topic("Stream", QUEUES + 1))

    async def more(peers: dict[str, Peer]) -> None:
        header = send_header("Stream", queue_id=QUEUES, properties=encode_properties({"n": "100"}).decode())
        answer = await peers["broker-a"].ask(RequestCode.SEND_MESSAGE_V2, header, body=b"x")
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await send_numbers(peers["broker-a"], 101, 121)

    cluster.put(more)
    second = run_to_the_end(spark, namesrv, tmp_path)
    assert second == [list(range(100, 121))]


def test_a_topic_made_again_fails_the_query_until_it_is_told_to_go_on(
    spark: SparkSession, cluster: LiveCluster, tmp_path: Path
) -> None:
    namesrv = cluster.namesrv.address
    cluster.put(lambda peers: send_numbers(peers["broker-a"], 0, 60))
    assert run_to_the_end(spark, namesrv, tmp_path) == [list(range(60))]

    async def make_again(peers: dict[str, Peer]) -> None:
        peer = peers["broker-a"]
        answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "Stream"})
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await peer.make_topic("Stream", QUEUES)
        # Queues 0 and 2 grow beyond what was read of them, queue 1 stays below.
        for start in (60, 120, 180):
            await send_numbers(peer, start, start + BATCH)
        for start in (100, 160):
            await send_numbers(peer, start, start + BATCH)

    cluster.put(make_again)
    with pytest.raises(StreamingQueryException) as caught:
        run_to_the_end(spark, namesrv, tmp_path)
    said = str(caught.value)
    for part in ("DataLossError", "topic Stream, broker broker-a, queue 0: expected offset 20", "queue 1", "queue 2"):
        assert part in said
    assert "made again" in said
    assert "set the option failOnDataLoss to false" in said
    after = run_to_the_end(spark, namesrv, tmp_path, failOnDataLoss="false", maxMessagesPerTrigger="45")
    assert sorted(n for batch in after for n in batch) == sorted(
        n for start in (60, 120, 180, 100, 160) for n in range(start, start + BATCH)
    )
    assert run_to_the_end(spark, namesrv, tmp_path) == []
