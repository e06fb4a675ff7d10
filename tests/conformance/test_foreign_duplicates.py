"""Duplicate windows with RocketMQ's clients: a client that gets no answer sends its message again.

A proxy stands before the broker, which advertises the proxy's address. It loses the first answer to each send: the broker
has stored the message, and the connection of the client ends. The topic without a window shows that the clients did send
their messages more than once.

A client may send a message more than twice, or give up, because it may not notice the end of the connection. With a
window, each message is stored once in any case.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.client.settings import ClientSettings
from gantry.model.message import Message, StoredMessage
from gantry.model.record import iter_records
from gantry.remoting.codes import ResponseCode
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support import foreign
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess, peer_of
from tests.support.lossyproxy import FirstAnswers, LossyProxy

QUEUES = 4
WINDOW = "+gantry.duplicate.window.ms=600000"
ONCE = {"sync": 1, "async": 1, "batch-0": 1, "batch-1": 1, "batch-2": 1, "transaction": 1}
STORED_TIMEOUT_S = 30
MQADMIN_TRIES = 8


class Cluster(NamedTuple):
    namesrv: str
    broker: str
    """The address that clients do not know."""
    proxy: LossyProxy


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder: Path = tmp_path_factory.mktemp("duplicates")
    with (
        NamesrvProcess(folder) as namesrv,
        BrokerProcess(folder / "a", "--advertise", "127.0.0.2", namesrv=namesrv.address) as broker,
    ):
        port = int(broker.address.rpartition(":")[2])
        with LossyProxy(("127.0.0.2", port), ("127.0.0.1", port), FirstAnswers()) as proxy:
            assert broker.address == f"127.0.0.2:{port}"
            yield Cluster(namesrv.address, f"127.0.0.1:{port}", proxy)


def make_topic(cluster: Cluster, topic: str, *, has_window: bool) -> None:
    """Create a topic with RocketMQ's tool."""
    place = ("-n", cluster.namesrv, "-b", cluster.broker, "-r", str(QUEUES), "-w", str(QUEUES))
    (printed,) = foreign.mqadmin(("updateTopic", *place, "-t", topic, *(("-a", WINDOW) if has_window else ())))
    assert "success" in printed


def stored(cluster: Cluster, topic: str) -> list[StoredMessage]:
    async def read() -> list[StoredMessage]:
        found: list[StoredMessage] = []
        async with peer_of(cluster.broker) as peer:
            for queue_id in range(QUEUES):
                answer = await peer.pull(topic, queue_id=queue_id, max_msg_nums=32)
                if answer.code == ResponseCode.SUCCESS:
                    found += iter_records(answer.body_bytes)
        return found

    return asyncio.run(read())


def counts(messages: list[StoredMessage]) -> dict[str, int]:
    return Counter(message.body.decode() for message in messages)


def stored_with_transaction(cluster: Cluster, topic: str) -> list[StoredMessage]:
    """Return what is stored once the transaction is committed: the client does not wait for that."""
    deadline = time.monotonic() + STORED_TIMEOUT_S
    while "transaction" not in counts(found := stored(cluster, topic)):
        assert time.monotonic() < deadline, f"the transaction was not committed: {counts(found)}"
        time.sleep(0.1)
    return found


@pytest.mark.java
def test_java_sends_again_and_the_topic_has_each_message_once(cluster: Cluster) -> None:
    make_topic(cluster, "JavaWindow", has_window=True)
    lost = cluster.proxy.lost
    printed = foreign.java_client("repeat", cluster.namesrv, "JavaWindow")
    sent = {line["how"]: line for line in printed if "how" in line}
    assert {how: line["status"] for how, line in sent.items()} == dict.fromkeys(
        ("sync", "async", "batch", "transaction"), "SEND_OK"
    ), printed
    assert cluster.proxy.lost == lost + 4, "the answers to a message, an asynchronous one, a batch and a transaction"
    messages = stored_with_transaction(cluster, "JavaWindow")
    assert counts(messages) == ONCE
    places = {message.body.decode(): message for message in messages}
    for how, body in (("sync", "sync"), ("async", "async"), ("batch", "batch-0")):
        message = places[body]
        assert (sent[how]["queue_id"], sent[how]["queue_offset"]) == (message.queue_id, message.queue_offset), how
        assert sent[how]["stored_id"].partition(",")[0] == message.stored_id, how
    assert sent["batch"]["message_id"] == ",".join(places[f"batch-{number}"].message_id for number in range(3))


@pytest.mark.java
def test_without_a_window_java_stores_more_than_once_what_it_sends_again(cluster: Cluster) -> None:
    make_topic(cluster, "JavaPlain", has_window=False)
    foreign.java_client("repeat", cluster.namesrv, "JavaPlain")
    found = counts(stored_with_transaction(cluster, "JavaPlain"))
    assert found.keys() == ONCE.keys()
    # The half messages before the last one were never decided.
    assert found.pop("transaction") == 1
    assert min(found.values()) >= 2, found


def mqadmin_send(cluster: Cluster, topic: str, body: str) -> str:
    # A process of its own: within a process, the command keeps the producer that it has shut down.
    send = ("sendMessage", "-n", cluster.namesrv, "-t", topic, "-k", "order-42", "-c", "TagA", "-p", body)
    return foreign.mqadmin(send)[0]


@pytest.mark.java
def test_mqadmin_sends_again_and_the_topic_has_the_message_once(cluster: Cluster) -> None:
    """The time-outs of mqadmin can't be set. It gives up if it does not notice the end of the connection."""
    make_topic(cluster, "ToolWindow", has_window=True)
    lost, bodies, printed = cluster.proxy.lost, list[str](), ""
    while "SEND_OK" not in printed and len(bodies) < MQADMIN_TRIES:
        bodies.append(f"body-{len(bodies)}")
        printed = mqadmin_send(cluster, "ToolWindow", bodies[-1])
        assert cluster.proxy.lost == lost + len(bodies), "the proxy loses the first answer to each body"
    assert "SEND_OK" in printed, printed
    messages = stored(cluster, "ToolWindow")
    assert counts(messages) == dict.fromkeys(bodies, 1)
    (last,) = (message for message in messages if message.body.decode() == bodies[-1])
    assert last.message_id in printed


@pytest.mark.java
def test_two_commands_of_mqadmin_are_two_messages(cluster: Cluster) -> None:
    make_topic(cluster, "ToolTwice", has_window=True)
    mqadmin_send(cluster, "ToolTwice", "same")
    assert "SEND_OK" in mqadmin_send(cluster, "ToolTwice", "same"), "the proxy loses no answer to a known body"
    assert counts(stored(cluster, "ToolTwice")) == {"same": 2}


@pytest.mark.java
def test_gantrys_own_producer_sends_again_too(cluster: Cluster) -> None:
    make_topic(cluster, "OwnWindow", has_window=True)
    lost = cluster.proxy.lost

    async def send() -> list[bool]:
        engine = ClientEngine(ClientSettings(namesrv=(cluster.namesrv,)), clock=SystemClock(), rng=Rng())
        await engine.start()
        try:
            producer = Producer(engine, "PID_own")
            one = await producer.send(Message("OwnWindow", b"own"))
            batch = await producer.send_batch("OwnWindow", [Message("OwnWindow", b"own-%d" % at) for at in range(3)])
        finally:
            await engine.stop()
        return [result.is_replayed for result in (one, *batch)]

    assert asyncio.run(send()) == [True] * 4
    assert cluster.proxy.lost == lost + 2
    assert counts(stored(cluster, "OwnWindow")) == {"own": 1, "own-0": 1, "own-1": 1, "own-2": 1}
