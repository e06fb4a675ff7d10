"""Each form of a message against each consumer: batches, the three compressions, and messages that don't wait for the disk.

The table has a row for each kind of consumer. Every one gets every message once, with the body that its producer gave. The
producers are Apache's Java and Go clients, Gantry's own and the HTTP API.
"""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.client.settings import ClientSettings
from gantry.http.stream import StreamClient
from gantry.model.compression import Compression
from gantry.model.message import Message
from gantry.remoting.bodies import MessageRequestMode
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support import datasource, foreign
from tests.support.brokerprocess import peer_of
from tests.support.stack import Stack

TOPIC = "Forms"
GO_TOPIC = "GoForms"
COMPRESSED = "z" * 9000
OURS = {
    *(f"ours-batch-{number}" for number in range(3)),
    *(f"ours-{kind.name}-{COMPRESSED}" for kind in Compression),
    *("ours-no-wait", "ours-http"),
    *(f"ours-http-batch-{number}" for number in range(3)),
}
JAVA = {
    *(f"java-batch-{number}" for number in range(3)),
    *(f"java-{kind}-{COMPRESSED}" for kind in ("ZLIB", "LZ4", "ZSTD")),
    "java-no-wait",
}
ALL = OURS | JAVA
GO = {*(f"go-batch-{number}" for number in range(3)), f"go-ZLIB-{COMPRESSED}", "go-no-wait"}
# Some clients know zlib only, and stop at a message with another compression. The broker filters these by tag.
ZLIB = {body for body in ALL if "LZ4" not in body and "ZSTD" not in body}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    foreign.java_classpath()
    with Stack(brokers=1) as running:
        with running.http() as http:
            for topic in (TOPIC, GO_TOPIC):
                assert http.put(f"/v1/topics/{topic}", json={"read_queues": 2, "write_queues": 2}).is_success
                assert http.put(f"/v1/groups/{group(topic, 'pop')}", json={}).is_success
            answer = http.post(f"/v1/topics/{TOPIC}/messages", json={"body": "ours-http", "tag": "plain"})
            assert answer.status_code == 201, answer.text
            batch = [{"body": f"ours-http-batch-{number}", "tag": "plain"} for number in range(3)]
            assert http.post(f"/v1/topics/{TOPIC}/messages:batch", json={"messages": batch}).json()["stored"] == 3
        asyncio.run(send_ours(namesrv_of(running)))
        for topic in (TOPIC, GO_TOPIC):
            asyncio.run(set_pop_mode(running.facts["brokers"][0]["address"], topic))
        sent = foreign.java_client("forms", namesrv_of(running), TOPIC)
        assert [line["how"] for line in sent if line["status"] == "SEND_OK"].count("compressed") == 3
        assert {line["how"] for line in sent} == {"batch", "compressed", "no-wait"}
        yield running


@pytest.fixture(scope="module")
def go_forms(stack: Stack) -> set[str]:
    """Send with the Go client, and return the bodies that consumers of GO_TOPIC get."""
    sent = foreign.go_client("forms", namesrv_of(stack), GO_TOPIC)
    assert sorted((line["how"], line["status"]) for line in sent) == [("batch", 0), ("compressed", 0), ("no-wait", 0)]
    return GO


def group(topic: str, consumer: str) -> str:
    return f"GID_{topic}_{consumer}"


def namesrv_of(stack: Stack) -> str:
    return str(stack.facts["namesrv"][0])


async def send_ours(namesrv: str) -> None:
    for kind in Compression:
        settings = ClientSettings(namesrv=(namesrv,), compress_over_bytes=1_000, compression=kind)
        engine = ClientEngine(settings, clock=SystemClock(), rng=Rng())
        await engine.start()
        try:
            producer = Producer(engine, "PID_forms")
            tag = "plain" if kind is Compression.ZLIB else "modern"
            await producer.send(Message(TOPIC, f"ours-{kind.name}-{COMPRESSED}".encode(), {"TAGS": tag}))
            if kind is Compression.ZLIB:
                batch = [Message(TOPIC, b"ours-batch-%d" % number, {"TAGS": "plain"}) for number in range(3)]
                await producer.send_batch(TOPIC, batch)
                await producer.send(Message(TOPIC, b"ours-no-wait", {"TAGS": "plain", "WAIT": "false"}))
        finally:
            await engine.stop()


async def set_pop_mode(broker: str, topic: str) -> None:
    async with peer_of(broker) as peer:
        mode = MessageRequestMode(consumer_group=group(topic, "pop"), mode="POP", topic=topic)
        assert (await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode.encode())).code == ResponseCode.SUCCESS


def java_push(stack: Stack, topic: str, count: int) -> list[str]:
    return java_bodies("push", namesrv_of(stack), topic, group(topic, "push"), "*", str(count))


def java_pop(stack: Stack, topic: str, count: int) -> list[str]:
    return java_bodies("pop", namesrv_of(stack), topic, group(topic, "pop"), "*", str(count))


def java_lite_pull(stack: Stack, topic: str, count: int) -> list[str]:
    return java_bodies("litepull", namesrv_of(stack), topic, group(topic, "lite"), str(count))


def java_pull(stack: Stack, topic: str, count: int) -> list[str]:
    return java_bodies("pull", namesrv_of(stack), topic, group(topic, "pull"))


def java_bodies(*arguments: str) -> list[str]:
    return [str(line["body"]) for line in foreign.java_client(*arguments) if "body" in line]


def rest_read(stack: Stack, topic: str, count: int) -> list[str]:
    bodies: list[str] = []
    with stack.http() as http:
        for queue_id in range(2):
            answer = http.get(f"/v1/topics/{topic}/queues/broker-a/{queue_id}/messages", params={"limit": 1_000})
            assert answer.status_code == 200, answer.text
            bodies += [message["body"] for message in answer.json()["messages"]]
    return bodies


def rest_pull(stack: Stack, topic: str, count: int) -> list[str]:
    bodies: list[str] = []
    path = f"/v1/groups/{group(topic, 'rest')}/messages"
    with stack.http() as http:
        while len(bodies) < count:
            messages = http.post(f"{path}:pull", json={"topic": topic, "max": 32, "wait": "10s"}).json()["messages"]
            if not messages:
                break
            receipts = [message["receipt"] for message in messages]
            assert http.post(f"{path}:ack", json={"receipts": receipts}).is_success
            bodies += [message["body"] for message in messages]
    return bodies


def websocket(stack: Stack, topic: str, count: int) -> list[str]:
    async def consume() -> list[str]:
        bodies: list[str] = []
        async with StreamClient.from_stack(stack.directory) as stream:
            subscription = await stream.subscribe(group(topic, "stream"), topic, start="first")
            while len(bodies) < count:
                batch = await subscription.next(timeout_ms=30_000)
                if batch is None:
                    break
                bodies += [message.text for message in batch.messages]
                await subscription.ack(batch)
        return bodies

    return asyncio.run(consume())


def spark(stack: Stack, topic: str, count: int) -> list[str]:
    rows = datasource.Stream(namesrv=namesrv_of(stack), topics=topic, start="earliest").run()
    return [row["body"].decode() for row in rows]


Consumer = Callable[[Stack, str, int], list[str]]
CONSUMERS: list[Consumer] = [
    java_push, java_pop, java_lite_pull, java_pull, rest_read, rest_pull, websocket, spark,
]  # fmt: skip


@pytest.mark.java
@pytest.mark.parametrize("consume", CONSUMERS, ids=lambda consume: consume.__name__)
def test_every_consumer_gets_every_form_once(stack: Stack, consume: Consumer) -> None:
    assert sorted(consume(stack, TOPIC, len(ALL))) == sorted(ALL)


@pytest.mark.java
@pytest.mark.go
@pytest.mark.parametrize("consume", CONSUMERS, ids=lambda consume: consume.__name__)
def test_every_consumer_gets_the_forms_of_the_go_client_once(
    stack: Stack, go_forms: set[str], consume: Consumer
) -> None:
    assert sorted(consume(stack, GO_TOPIC, len(go_forms))) == sorted(go_forms)


@pytest.mark.java
def test_ali_ons_gets_every_form_that_it_can_decompress(stack: Stack) -> None:
    lines = foreign.ali_ons_consume(namesrv_of(stack), TOPIC, "GID_forms_ali", "plain", len(ZLIB))
    assert sorted(str(line["body"]) for line in lines if "body" in line) == sorted(ZLIB)


@pytest.mark.java
@pytest.mark.go
def test_the_go_client_gets_every_form_that_it_can_decompress(stack: Stack) -> None:
    lines = foreign.go_client("push", namesrv_of(stack), TOPIC, group(TOPIC, "go"), "plain", str(len(ZLIB)))
    assert sorted(str(line["body"]) for line in lines if "body" in line) == sorted(ZLIB)
