"""Each form of a message against each consumer: batches, the three compressions, and messages that don't wait for the disk.

The table has a row for each kind of consumer. Every one gets every message once, with the body that its producer gave. The
producers are Apache's Java client, Gantry's own and the HTTP API.
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
POP_GROUP = "GID_forms_pop"
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


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    foreign.java_classpath()
    with Stack(brokers=1) as running:
        with running.http() as http:
            assert http.put(f"/v1/topics/{TOPIC}", json={"read_queues": 2, "write_queues": 2}).is_success
            assert http.put(f"/v1/groups/{POP_GROUP}", json={}).is_success
            answer = http.post(f"/v1/topics/{TOPIC}/messages", json={"body": "ours-http", "tag": "plain"})
            assert answer.status_code == 201, answer.text
            batch = [{"body": f"ours-http-batch-{number}", "tag": "plain"} for number in range(3)]
            assert http.post(f"/v1/topics/{TOPIC}/messages:batch", json={"messages": batch}).json()["stored"] == 3
        asyncio.run(send_ours(namesrv_of(running)))
        asyncio.run(set_pop_mode(running.facts["brokers"][0]["address"]))
        sent = foreign.java_client("forms", namesrv_of(running), TOPIC)
        assert [line["how"] for line in sent if line["status"] == "SEND_OK"].count("compressed") == 3
        assert {line["how"] for line in sent} == {"batch", "compressed", "no-wait"}
        yield running


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


async def set_pop_mode(broker: str) -> None:
    async with peer_of(broker) as peer:
        mode = MessageRequestMode(consumer_group=POP_GROUP, mode="POP", topic=TOPIC)
        assert (await peer.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, body=mode.encode())).code == ResponseCode.SUCCESS


def java_push(stack: Stack) -> list[str]:
    return java_bodies("push", namesrv_of(stack), TOPIC, "GID_forms_push", "*", str(len(ALL)))


def java_pop(stack: Stack) -> list[str]:
    return java_bodies("pop", namesrv_of(stack), TOPIC, POP_GROUP, "*", str(len(ALL)))


def java_lite_pull(stack: Stack) -> list[str]:
    return java_bodies("litepull", namesrv_of(stack), TOPIC, "GID_forms_lite", str(len(ALL)))


def java_pull(stack: Stack) -> list[str]:
    return java_bodies("pull", namesrv_of(stack), TOPIC, "GID_forms_pull")


def java_bodies(*arguments: str) -> list[str]:
    return [str(line["body"]) for line in foreign.java_client(*arguments) if "body" in line]


def rest_read(stack: Stack) -> list[str]:
    bodies: list[str] = []
    with stack.http() as http:
        for queue_id in range(2):
            answer = http.get(f"/v1/topics/{TOPIC}/queues/broker-a/{queue_id}/messages", params={"limit": 1_000})
            assert answer.status_code == 200, answer.text
            bodies += [message["body"] for message in answer.json()["messages"]]
    return bodies


def rest_pull(stack: Stack) -> list[str]:
    bodies: list[str] = []
    with stack.http() as http:
        while len(bodies) < len(ALL):
            wanted = {"topic": TOPIC, "max": 32, "wait": "10s"}
            messages = http.post("/v1/groups/GID_forms_rest/messages:pull", json=wanted).json()["messages"]
            if not messages:
                break
            receipts = [message["receipt"] for message in messages]
            assert http.post("/v1/groups/GID_forms_rest/messages:ack", json={"receipts": receipts}).is_success
            bodies += [message["body"] for message in messages]
    return bodies


def websocket(stack: Stack) -> list[str]:
    async def consume() -> list[str]:
        bodies: list[str] = []
        async with StreamClient.from_stack(stack.directory) as stream:
            subscription = await stream.subscribe("GID_forms_stream", TOPIC, start="first")
            while len(bodies) < len(ALL):
                batch = await subscription.next(timeout_ms=30_000)
                if batch is None:
                    break
                bodies += [message.text for message in batch.messages]
                await subscription.ack(batch)
        return bodies

    return asyncio.run(consume())


def spark(stack: Stack) -> list[str]:
    rows = datasource.Stream(namesrv=namesrv_of(stack), topics=TOPIC, start="earliest").run()
    return [row["body"].decode() for row in rows]


Consumer = Callable[[Stack], list[str]]
CONSUMERS: list[Consumer] = [
    java_push, java_pop, java_lite_pull, java_pull, rest_read, rest_pull, websocket, spark,
]  # fmt: skip


@pytest.mark.java
@pytest.mark.parametrize("consume", CONSUMERS, ids=lambda consume: consume.__name__)
def test_every_consumer_gets_every_form_once(stack: Stack, consume: Consumer) -> None:
    bodies = consume(stack)
    assert sorted(bodies) == sorted(ALL)


@pytest.mark.java
def test_ali_ons_gets_every_form_that_it_can_decompress(stack: Stack) -> None:
    """Its client knows zlib only, and stops at a message with another compression. The broker filters these by tag."""
    wanted = {body for body in ALL if "LZ4" not in body and "ZSTD" not in body}
    lines = foreign.ali_ons_consume(namesrv_of(stack), TOPIC, "GID_forms_ali", "plain", len(wanted))
    assert sorted(str(line["body"]) for line in lines if "body" in line) == sorted(wanted)
