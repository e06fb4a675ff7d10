"""Data that a stream should have read and can't, of real brokers: each case fails by name, or is passed and counted once."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gantry.client.errors import ClientError
from gantry.remoting.codes import RequestCode, ResponseCode
from spark.datasource.brokers import live, queuepull
from spark.datasource.dataloss import DataLossError
from spark.datasource.kinds.messages import MessagesReader
from spark.datasource.options import read_options
from spark.datasource.schema import MESSAGES
from tests.support.brokerprocess import WAIT_TIMEOUT_S, Peer, properties_text
from tests.support.datasource import LiveCluster, Stream

# Files of the CommitLog that hold some messages, and a broker that looks for old ones all the time.
TRIMMING = {
    "GANTRY_BROKER_MAPPED_FILE_SIZE_COMMIT_LOG": "65536",
    "GANTRY_BROKER_DELETE_WHEN": ";".join(f"{hour:02}" for hour in range(24)),
    "GANTRY_BROKER_CLEAN_RESOURCE_INTERVAL": "100",
}
BODY = b"x" * 5_000


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveCluster]:
    monkeypatch.setattr(live, "REQUEST_TIMEOUT_MS", 1_500)
    monkeypatch.setattr(queuepull, "RETRY_AFTER_S", 0.05)
    cluster = LiveCluster(tmp_path, "broker-a", environment=TRIMMING)
    try:
        cluster.start()
        make(cluster)
        yield cluster
    finally:
        cluster.stop()


def stream(cluster: LiveCluster, **options: Any) -> Stream:
    return Stream(namesrv=cluster.namesrv.address, topics="T", **options)


def make(cluster: LiveCluster, queues: int = 1) -> None:
    cluster.put(lambda peers: peers["broker-a"].make_topic("T", queues))


def put(cluster: LiveCluster, *numbers: int, queue_id: int = 0, body: bytes = b"x") -> None:
    async def send(peers: dict[str, Peer]) -> None:
        for number in numbers:
            answer = await peers["broker-a"].send(
                "T", body, queue_id=queue_id, properties=properties_text(n=str(number))
            )
            assert answer.code == ResponseCode.SUCCESS, answer.remark

    cluster.put(send)


def delete(cluster: LiveCluster) -> None:
    async def ask(peers: dict[str, Peer]) -> None:
        answer = await peers["broker-a"].ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    cluster.put(ask)


def trim(cluster: LiveCluster) -> int:
    """Let the first file of the CommitLog be so old that retention removes it; return where queue 0 begins then."""
    folder = cluster.brokers["broker-a"].store / "commitlog"
    os.utime(min(folder.iterdir()), (1, 1))
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    found: list[int] = [0]

    async def look(peers: dict[str, Peer]) -> None:
        answer = await peers["broker-a"].ask(RequestCode.GET_MIN_OFFSET, ext={"topic": "T", "queueId": "0"})
        found.append(int(answer.ext_fields["offset"]))

    while found[-1] == 0:
        assert time.monotonic() < deadline, "nothing is removed"
        cluster.put(look)
    return found[-1]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(dict(row["properties"])["n"]) for row in rows)


def refused(work: Callable[[], Any], *parts: str) -> None:
    """The work fails, each time anew, with an error that says all this and how to go on."""
    for _ in range(2):
        with pytest.raises(DataLossError) as caught:
            work()
        for part in (*parts, "failOnDataLoss"):
            assert part in str(caught.value)


@pytest.mark.parametrize("count", [2, 5, 9])
def test_a_topic_made_again_is_told_however_long_it_is(cluster: LiveCluster, count: int) -> None:
    query = stream(cluster)
    put(cluster, *range(5))
    assert numbers(query.run()) == list(range(5))
    put(cluster, 5, 6)
    delete(cluster)
    make(cluster)
    put(cluster, *range(100, 100 + count))
    refused(
        query.run,
        "topic T, broker broker-a, queue 0",
        "expected offset 5",
        f"[0, {count})",
        "made again",
        "from offset 5",
    )
    with capture_logs() as lines:
        assert numbers(query.run(failOnDataLoss="false")) == list(range(100, 100 + count))
    assert [line["broker"] for line in lines if "data is lost" in line["event"]] == ["broker-a"]
    # From here on there is nothing to tell.
    put(cluster, 200)
    assert numbers(query.run()) == [200]


def test_a_batch_that_was_planned_before_its_topic_was_made_again_reads_nothing_of_the_new_one(
    cluster: LiveCluster,
) -> None:
    query = stream(cluster)
    put(cluster, 0, 1)
    assert numbers(query.run()) == [0, 1]
    put(cluster, 2, 3, 4)
    assert query.plan(query.reader())
    delete(cluster)
    make(cluster)
    put(cluster, *range(100, 108))
    refused(lambda: query.read_last(query.reader()), "queue 0", "expected offset 2", "made again", "[2, 5)")
    query.options["failOnDataLoss"] = "false"
    assert query.read_last(query.reader()) == []
    assert numbers(query.run()) == list(range(100, 108))


def test_a_deleted_topic_is_told_and_begins_anew(cluster: LiveCluster) -> None:
    query = stream(cluster)
    put(cluster, *range(3))
    query.run()
    delete(cluster)
    refused(query.run, "topic T, broker broker-a, queue 0", "expected offset 3", "no such topic")
    assert query.run(failOnDataLoss="false") == []
    make(cluster)
    put(cluster, 7, 8)
    assert numbers(query.run()) == [7, 8]


def test_messages_that_were_removed_unread_are_told_as_a_range(cluster: LiveCluster) -> None:
    query = stream(cluster)
    put(cluster, *range(3), body=BODY)
    assert numbers(query.run()) == [0, 1, 2]
    put(cluster, *range(3, 40), body=BODY)
    planned = stream(cluster)
    assert planned.plan(planned.reader())
    first = trim(cluster)
    assert 3 < first < 40
    refused(query.run, "queue 0", "expected offset 3", f"found offset {first}", f"[3, {first})")
    assert numbers(query.run(failOnDataLoss="false")) == list(range(first, 40))
    assert query.run() == []
    # A batch that was planned before.
    refused(lambda: planned.read_last(planned.reader()), "queue 0", "expected offset 0", f"[0, {first})")
    planned.options["failOnDataLoss"] = "false"
    assert numbers(planned.read_last(planned.reader())) == list(range(first, 40))
    # A new query, and a read of what is there, from an offset that is gone.
    refused(stream(cluster, start=1).run, "queue 0", "expected offset 1", f"[1, {first})")
    assert numbers(stream(cluster, start=1, failOnDataLoss="false").run()) == list(range(first, 40))
    assert numbers(stream(cluster).run()) == list(range(first, 40))
    given = {"kind": "messages", "namesrv": cluster.namesrv.address, "topics": "T", "from": "1"}
    refused(MessagesReader(read_options(given), MESSAGES).partitions, "expected offset 1", f"[1, {first})")
    made = MessagesReader(read_options({**given, "failOnDataLoss": "false"}), MESSAGES)
    rows = [row for task in made.partitions() for batch in made.read(task) for row in batch.to_pylist()]  # type: ignore[arg-type]
    assert numbers(rows) == list(range(first, 40))
    # An offset that no queue has come to yet is none that is gone.
    assert stream(cluster, start=1_000).run() == []


def test_a_queue_that_is_shorter_than_from_is_read_from_there_on(cluster: LiveCluster) -> None:
    make(cluster, 2)
    put(cluster, *range(4))
    put(cluster, 100, queue_id=1)
    query = stream(cluster, start=3)
    assert numbers(query.run()) == [3]
    put(cluster, 101, queue_id=1)
    assert query.run() == []
    put(cluster, *range(102, 106), queue_id=1)
    assert numbers(query.run()) == [103, 104, 105]
    put(cluster, 106, queue_id=1)
    assert numbers(query.run()) == [106]


@pytest.mark.parametrize("later", [2, 6])
def test_an_older_copy_of_a_store_is_told_and_what_came_later_is_counted_once(cluster: LiveCluster, later: int) -> None:
    broker, query = cluster.brokers["broker-a"], stream(cluster)
    put(cluster, *range(5))
    broker.terminate()
    copy = broker.store.with_name("copy")
    shutil.copytree(broker.store, copy)
    restart(cluster)
    put(cluster, *range(5, 9))
    assert numbers(query.run()) == list(range(9))
    broker.terminate()
    shutil.rmtree(broker.store)
    copy.rename(broker.store)
    restart(cluster)
    put(cluster, *range(100, 100 + later))
    refused(query.run, "queue 0", "expected offset 9", "older copy", f"[0, {5 + later})")
    assert numbers(query.run(failOnDataLoss="false")) == list(range(100, 100 + later))
    assert query.run() == []


def restart(cluster: LiveCluster) -> None:
    """Start the broker again, and wait until name servers know its topic."""
    broker = cluster.brokers["broker-a"]
    broker.start()
    deadline = time.monotonic() + WAIT_TIMEOUT_S
    known: list[str] = []

    async def look(peers: dict[str, Peer]) -> None:
        known.extend(await peers["broker-a"].route("T", cluster.namesrv.address))

    while broker.address not in known:
        assert time.monotonic() < deadline, "it does not register"
        known.clear()
        cluster.put(look)


def test_a_queue_that_left_its_topic_is_told_and_read_on_once_it_is_back(cluster: LiveCluster) -> None:
    query = stream(cluster)
    make(cluster, 3)
    put(cluster, 0)
    put(cluster, 1, 2, queue_id=1)
    put(cluster, 3, queue_id=2)
    assert numbers(query.run()) == [0, 1, 2, 3]
    put(cluster, 4, queue_id=1)
    make(cluster, 1)
    put(cluster, 5)
    refused(query.run, "queue 1", "expected offset 2", "[2, 3)", "fewer queues")
    assert numbers(query.run(failOnDataLoss="false")) == [5]
    # Told once; and queue 2, which was read to its end, is not missed.
    assert query.run() == []
    make(cluster, 3)
    assert numbers(query.run()) == [4]


def test_a_broker_that_is_away_or_hangs_has_lost_nothing(cluster: LiveCluster) -> None:
    query = stream(cluster)
    put(cluster, *range(3))
    assert numbers(query.run()) == [0, 1, 2]
    put(cluster, 3)
    assert query.plan(query.reader())
    broker = cluster.brokers["broker-a"]
    os.kill(broker.process_id, signal.SIGSTOP)
    try:
        with pytest.raises(ClientError):
            query.read_last(query.reader())
        assert query.run() == []
    finally:
        os.kill(broker.process_id, signal.SIGCONT)
    # Once name servers have forgotten it, nobody knows the topic either.
    broker.terminate()
    with pytest.raises(ClientError):
        query.read_last(query.reader())
    assert query.run() == []
    restart(cluster)
    assert numbers(query.read_last(query.reader())) == [3]
    assert query.run() == []
