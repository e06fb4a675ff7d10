"""Duplicate windows with RocketMQ's clients: a client that gets no answer sends its message again by itself.

A proxy stands before the broker, which advertises the proxy's address. It loses the first answer to each send: the broker
has stored the message, and the connection of the client ends. The topic without a window shows that each client did
send everything twice.
"""

import asyncio
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


ONCE = {"sync": 1, "async": 1, "batch-0": 1, "batch-1": 1, "batch-2": 1, "transaction": 1}


@pytest.mark.java
def test_java_sends_again_and_the_topic_has_each_message_once(cluster: Cluster) -> None:
    make_topic(cluster, "JavaWindow", has_window=True)
    lost = cluster.proxy.lost
    sent = {line["how"]: line for line in foreign.java_client("repeat", cluster.namesrv, "JavaWindow") if "how" in line}
    assert cluster.proxy.lost == lost + 4, "the answers to a message, an asynchronous one, a batch and a transaction"
    assert {how: line["status"] for how, line in sent.items()} == dict.fromkeys(
        ("sync", "async", "batch", "transaction"), "SEND_OK"
    )
    messages = stored(cluster, "JavaWindow")
    assert counts(messages) == ONCE
    places = {message.body.decode(): message for message in messages}
    for how, body in (("sync", "sync"), ("async", "async"), ("batch", "batch-0")):
        message = places[body]
        assert (sent[how]["queue_id"], sent[how]["queue_offset"]) == (message.queue_id, message.queue_offset), how
        assert sent[how]["stored_id"].partition(",")[0] == message.stored_id, how
    assert sent["batch"]["message_id"] == ",".join(places[f"batch-{number}"].message_id for number in range(3))


@pytest.mark.java
def test_without_a_window_java_stores_twice_what_it_sends_again(cluster: Cluster) -> None:
    make_topic(cluster, "JavaPlain", has_window=False)
    foreign.java_client("repeat", cluster.namesrv, "JavaPlain")
    # The first half message of the transaction was never decided.
    assert counts(stored(cluster, "JavaPlain")) == {**dict.fromkeys(ONCE, 2), "transaction": 1}


@pytest.mark.java
@pytest.mark.parametrize(("topic", "copies"), [("ToolWindow", 1), ("ToolPlain", 2)])
def test_mqadmin_sends_again_and_two_commands_are_two_messages(cluster: Cluster, topic: str, copies: int) -> None:
    make_topic(cluster, topic, has_window=copies == 1)
    lost = cluster.proxy.lost
    send = ("sendMessage", "-n", cluster.namesrv, "-t", topic, "-k", "order-42", "-c", "TagA", "-p")
    # One process each: within a process, the command keeps the producer that it has shut down.
    first, second, same = (foreign.mqadmin((*send, body))[0] for body in ("one", "two", "two"))
    assert cluster.proxy.lost == lost + 2, "the proxy loses the first answer to each body"
    for printed in (first, second, same):
        assert "SEND_OK" in printed, printed
    messages = stored(cluster, topic)
    assert counts(messages) == {"one": copies, "two": copies + 1}
    if copies == 1:
        printed = first + second + same
        assert [message.message_id for message in messages if message.message_id not in printed] == []


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
