"""Apache RocketMQ's Go client (rocketmq-client-go v2), unmodified, against our name server and broker."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gantry.model.message import StoredMessage
from gantry.model.record import iter_records
from gantry.remoting.codes import ResponseCode
from tests.support import foreign
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, peer_of
from tests.support.lossyproxy import FirstAnswers, LossyProxy

COUNT = 10
QUEUES = 4
# In every way: one by one, one compressed, a batch of 10, asynchronously, and one-way.
ALL = COUNT + 1 + 10 + COUNT + 1
OK = 0
KEYED, UNKEYED = ([f"{name}-{number}".encode() for number in range(3)] for name in ("keyed", "batch"))
WINDOW = "+gantry.duplicate.window.ms=600000"
TIMEOUT_S = 60.0
QUICK_CHECKS = {
    "GANTRY_BROKER_TRANSACTION_TIME_OUT": "1000",
    "GANTRY_BROKER_TRANSACTION_CHECK_INTERVAL": "1000",
}

pytestmark = pytest.mark.go


class Cluster(NamedTuple):
    namesrv: str
    broker: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("go")
    with (
        NamesrvProcess(folder) as namesrv,
        BrokerProcess(folder / "a", namesrv=namesrv.address, environment=QUICK_CHECKS) as broker,
    ):
        yield Cluster(namesrv.address, broker.address)


def make_topic(broker: str, topic: str, attributes: str = "") -> None:
    async def make() -> None:
        async with peer_of(broker) as peer:
            await peer.make_topic(topic, queues=QUEUES, attributes=attributes)

    asyncio.run(make())


def stored(broker: str, topic: str) -> list[StoredMessage]:
    async def read() -> list[StoredMessage]:
        found: list[StoredMessage] = []
        async with peer_of(broker) as peer:
            for queue_id in range(QUEUES):
                answer = await peer.pull(topic, queue_id=queue_id, max_msg_nums=32)
                if answer.code == ResponseCode.SUCCESS:
                    found += iter_records(answer.body_bytes)
        return found

    return asyncio.run(read())


@pytest.fixture(scope="module")
def sent(cluster: Cluster) -> list[dict[str, Any]]:
    """Send with the Go producer in every way that it has, and return its results."""
    make_topic(cluster.broker, "GoTopic")
    return foreign.go_client("produce", cluster.namesrv, "GoTopic", str(COUNT))


def consumed(cluster: Cluster, how: str, group: str, expression: str, count: int) -> list[dict[str, Any]]:
    lines = foreign.go_client(how, cluster.namesrv, "GoTopic", group, expression, str(count))
    assert lines.pop() == {"all": True}
    return lines


def test_every_way_of_sending_is_acknowledged(cluster: Cluster, sent: list[dict[str, Any]]) -> None:
    assert Counter(line["how"] for line in sent) == {"sync": COUNT, "compressed": 1, "batch": 1, "async": COUNT}
    assert {line["status"] for line in sent} == {OK}
    messages = {message.stored_id: message for message in stored(cluster.broker, "GoTopic")}
    assert len(messages) == ALL
    for line in sent:
        message = messages[line["stored_id"].partition(",")[0]]
        assert (message.queue_id, message.queue_offset) == (line["queue_id"], line["queue_offset"])
        if line["how"] != "batch":
            assert message.message_id == line["message_id"]


def test_a_push_consumer_gets_the_messages_of_its_tags(cluster: Cluster, sent: list[dict[str, Any]]) -> None:
    wanted = COUNT // 2 + 1 + 10 + COUNT + 1  # TagA: half of those one by one, compressed, async, one-way. TagC: batch.
    lines = consumed(cluster, "push", "GID_go_tags", "TagA || TagC", wanted)
    assert {line["tag"] for line in lines} == {"TagA", "TagC"}
    assert len({(line["queue_id"], line["queue_offset"]) for line in lines}) == wanted
    assert max(len(line["body"]) for line in lines) == 20_000  # The client decompresses the compressed message.


def test_a_push_consumer_with_sql_gets_what_its_expression_matches(
    cluster: Cluster, sent: list[dict[str, Any]]
) -> None:
    lines = consumed(cluster, "push", "GID_go_sql", "sql:weight BETWEEN 3 AND 7 AND TAGS = 'TagA'", 2)
    assert sorted(line["weight"] for line in lines) == ["4", "6"]


def test_an_orderly_consumer_gets_each_queue_in_order(cluster: Cluster, sent: list[dict[str, Any]]) -> None:
    lines = consumed(cluster, "orderly", "GID_go_orderly", "*", ALL)
    for queue_id in range(QUEUES):
        offsets = [line["queue_offset"] for line in lines if line["queue_id"] == queue_id]
        assert offsets == list(range(len(offsets)))


def test_a_message_that_the_consumer_refuses_comes_again(cluster: Cluster) -> None:
    make_topic(cluster.broker, "GoRetry")

    async def send() -> None:
        async with peer_of(cluster.broker) as peer:
            for body in (b"plain", b"retried"):
                await peer.send("GoRetry", body, properties={"TAGS": "A"})

    asyncio.run(send())
    lines = foreign.go_client("push", cluster.namesrv, "GoRetry", "GID_go_retry", "*", "2")
    assert lines.pop() == {"all": True}
    assert {line["body"]: line["reconsume_times"] for line in lines} == {"plain": 0, "retried": 1}


def test_transactions_are_committed_rolled_back_and_checked(cluster: Cluster, tmp_path: Path) -> None:
    make_topic(cluster.broker, "GoTransactions")
    log = tmp_path / "go.log"
    with foreign.go_running(log, "transactions", cluster.namesrv, "GoTransactions") as end:
        deadline = time.monotonic() + TIMEOUT_S
        while sorted(message.body for message in stored(cluster.broker, "GoTransactions")) != [
            b"checked",
            b"committed",
        ]:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        end()
    lines = foreign.json_lines(log.read_text())
    assert [line["how"] for line in lines if "how" in line] == ["committed", "rolled back", "checked"]
    assert {"checked": "checked"} in lines
    assert {"checked": "rolled back"} not in lines


def test_a_topic_with_a_duplicate_window_has_once_what_the_client_sends_again(tmp_path: Path) -> None:
    """A proxy loses the first answer to each send: the message is stored, and the connection of the client ends."""
    with (
        NamesrvProcess(tmp_path) as namesrv,
        BrokerProcess(tmp_path / "a", "--advertise", "127.0.0.2", namesrv=namesrv.address) as broker,
    ):
        port = int(broker.address.rpartition(":")[2])
        address = f"127.0.0.1:{port}"
        with LossyProxy(("127.0.0.2", port), ("127.0.0.1", port), FirstAnswers()) as proxy:
            copies = {topic: sent_again(namesrv.address, address, topic) for topic in ("GoWindow", "GoPlain")}
            assert proxy.lost == 6
    # The client gives the messages of a batch no keys, so only those with keys of the program's own are stored once.
    assert {body for body, count in copies["GoWindow"].items() if count == 1} == {b"sync", *KEYED}
    assert {body for body, count in copies["GoWindow"].items() if count > 1} == set(UNKEYED)
    assert {body for body, count in copies["GoPlain"].items() if count > 1} == {b"sync", *KEYED, *UNKEYED}


def sent_again(namesrv: str, broker: str, topic: str) -> Counter[bytes]:
    """Let the client send everything again, and return the number of stored copies of each body."""
    make_topic(broker, topic, WINDOW if topic == "GoWindow" else "")
    sent = foreign.go_client("repeat", namesrv, topic)
    assert {(line["how"], line["status"]) for line in sent} == {("sync", OK), ("batch", OK), ("keyed", OK)}
    return Counter(message.body for message in stored(broker, topic))
