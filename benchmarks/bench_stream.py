"""Benchmarks the gateway over WebSocket: the rate of push to one client, and the latency from send to receive.

The client does only what the check needs. It decodes MessagePack frames, checks that queue offsets have no gap, and
acknowledges each batch by its receipt.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import uvloop
from websockets.asyncio.client import ClientConnection, connect

from benchmarks import frames
from benchmarks.bench_http import address_and_key, create_topic
from benchmarks.load import http_closed_loop
from benchmarks.report import Row
from tests.support.stack import Stack

PUSHED_PER_S_MIN = 60_000
LATENCY_RATE = 1_000
P99_MS_MAX = 25.0
BATCH = 100


class Pushed(msgspec.Struct):
    """The fields of a message that the client reads."""

    broker: str
    queue_id: int
    queue_offset: int
    body: bytes


class Frame(msgspec.Struct):
    """The fields of a frame that the client reads."""

    type: str
    subscription: str | None = None
    receipt: Any = None
    messages: list[Pushed] = []
    problem: Any = None


decode = msgspec.msgpack.Decoder(Frame).decode
encode = msgspec.msgpack.Encoder().encode


def opened(stack: Stack) -> Any:
    """Return the context manager of a stream's connection."""
    (host, port), key = address_and_key(stack)
    return connect(
        f"ws://{host}:{port}/v1/stream",
        subprotocols=["gantry.v1.msgpack"],  # type: ignore[list-item]
        additional_headers={"Authorization": f"Bearer {key}"},
        compression=None,
        max_size=None,
        max_queue=64,
    )


async def subscribe(stream: ClientConnection, topic: str, group: str, start: str) -> None:
    """Subscribe and wait until queues are assigned."""
    credit = {"messages": 20_000, "bytes": 128 << 20}
    wanted = {"type": "subscribe", "group": group, "topic": topic, "from": start, "credit": credit, "batch": 32}
    await stream.send(encode(wanted))
    while (frame := decode(await stream.recv(decode=False))).type != "assigned":
        assert frame.problem is None, frame.problem


async def pushed(stack: Stack, topic: str, count: int) -> float:
    """Receive `count` messages from the topic's start; return messages per second, counted from the first message on."""
    received, began = 0, 0.0
    expected: dict[tuple[str, int], int] = {}
    async with opened(stack) as stream:
        await subscribe(stream, topic, "GID_push", "first")
        while received < count:
            frame = decode(await stream.recv(decode=False))
            assert frame.problem is None, frame.problem
            if frame.type != "messages":
                continue
            began = began or time.perf_counter()
            received += len(frame.messages)
            await stream.send(encode({"type": "ack", "subscription": frame.subscription, "receipts": [frame.receipt]}))
            first = frame.messages[0]
            queue = (first.broker, first.queue_id)
            assert first.queue_offset == expected.get(queue, 0), f"{queue}: a gap before {first.queue_offset}"
            expected[queue] = frame.messages[-1].queue_offset + 1
    return received / (time.perf_counter() - began)


async def send_to_receive(stack: Stack, topic: str, count: int) -> list[float]:
    """Send at a fixed rate over HTTP and receive over the stream; return the latencies in seconds, sorted.

    A latency counts from the moment at which the message was due.
    """
    (host, port), key = address_and_key(stack)
    latencies: list[float] = []
    due_at: list[float] = []

    async def receive(stream: ClientConnection) -> None:
        while len(latencies) < count:
            frame = decode(await stream.recv(decode=False))
            if frame.type == "messages":
                now = time.perf_counter()
                latencies.extend(now - due_at[int(message.body)] for message in frame.messages)
                ack = {"type": "ack", "subscription": frame.subscription, "receipts": [frame.receipt]}
                await stream.send(encode(ack))

    async with opened(stack) as stream:
        await subscribe(stream, topic, "GID_latency", "last")
        receiver = asyncio.create_task(receive(stream))
        writers = [(await asyncio.open_connection(host, port)) for _ in range(8)]
        readers = [asyncio.create_task(reader.read(-1)) for reader, _ in writers]
        began = time.perf_counter() + 0.1
        for number in range(count):
            due = began + number / LATENCY_RATE
            due_at.append(due)
            if (delay := due - time.perf_counter()) > 0:
                await asyncio.sleep(delay)
            body = json.dumps({"body": str(number)}).encode()
            writers[number % 8][1].write(frames.http_request(f"/v1/topics/{topic}/messages", key, body))
        await asyncio.wait_for(receiver, 60)
        for _, writer in writers:
            writer.close()
        await asyncio.gather(*readers, return_exceptions=True)
    return sorted(latencies)


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    with Stack(brokers=1) as stack:
        create_topic(stack, "PushTopic")
        create_topic(stack, "LatencyTopic")
        address, key = address_and_key(stack)
        text = frames.BODY.decode()
        batch = json.dumps({"messages": [{"body": text, "tag": "TagA"} for _ in range(BATCH)]}).encode()
        request = frames.http_request("/v1/topics/PushTopic/messages:batch", key, batch)
        batches = 20 if tiny else 3_000
        filled = uvloop.run(
            http_closed_loop(address, lambda _: request, connections=8, requests=batches, success=b"HTTP/1.1 200")
        )
        assert filled.failures == 0
        rate = uvloop.run(pushed(stack, "PushTopic", batches * BATCH))
        aim = f"≥ {PUSHED_PER_S_MIN:,}/s"
        yield Row("push, WebSocket, MessagePack", rate, "messages/s", "", None, aim, rate >= PUSHED_PER_S_MIN)

        latencies = uvloop.run(send_to_receive(stack, "LatencyTopic", 200 if tiny else 10_000))
        p50, p99 = (latencies[int(len(latencies) * share)] * 1000 for share in (0.5, 0.99))
        name = f"send to receive, p99 at {LATENCY_RATE:,}/s, open loop"
        yield Row(name, p99, "ms", "median", p50, f"≤ {P99_MS_MAX:.0f} ms", p99 <= P99_MS_MAX)
