"""Benchmarks consuming by receipt over HTTP: pulls of 32 messages and their acks.

Each worker pulls 32 messages of 256 bytes and acks them, again and again, over one connection. The baseline is a bare
ASGI application that reads the body and answers 201, with the same number of requests: one for each pull and each ack.
The broker flushes synchronously: an ack is on the disk when it is answered. The second line has the processor time for
each message, which says more than the rate on a machine that other programs use.
"""

import asyncio
import zlib
from collections.abc import Iterator
from statistics import median
from typing import Final

import httpx
import msgspec
import uvloop

from benchmarks import frames
from benchmarks.bench_http import address_and_key, closed_loop
from benchmarks.report import Row
from benchmarks.stack import address_of, cpu_s, process, scratch
from tests.support.stack import Stack

WORKERS: Final = 8
AT_ONCE: Final = 32
ROUNDS: Final = 5
MESSAGES: Final = 32_000
BATCH: Final = 1_000
TOPIC: Final = "BenchReceipts"
PER_S_MIN: Final = 20_000
BODY: Final = "x" * 256
CREATED: Final = b"HTTP/1.1 201"


class _Message(msgspec.Struct):
    message_id: str
    receipt: str


class _Pulled(msgspec.Struct):
    messages: list[_Message]


class _Result(msgspec.Struct):
    outcome: str


class _Settled(msgspec.Struct):
    results: list[_Result]


_pulled = msgspec.json.Decoder(_Pulled)
_settled = msgspec.json.Decoder(_Settled)


def fill(http: httpx.Client, count: int) -> int:
    """Send messages, and return the checksum of their ids."""
    checksum = 0
    for start in range(0, count, BATCH):
        messages = [{"body": BODY} for _ in range(min(BATCH, count - start))]
        answer = http.post(f"/v1/topics/{TOPIC}/messages:batch", json={"messages": messages}).json()
        assert answer["stored"] == len(messages), answer
        for result in answer["results"]:
            checksum ^= zlib.crc32(result["message_id"].encode())
    return checksum


async def consume(address: tuple[str, int], key: str, group: str, count: int) -> tuple[float, int]:
    """Consume `count` messages; return the messages per second and the checksum of their ids."""
    loop = asyncio.get_running_loop()
    left, checksum, ended = count, 0, 0.0
    pull = frames.http_request(
        f"/v1/groups/{group}/messages:pull", key, msgspec.json.encode({"topic": TOPIC, "max": AT_ONCE, "wait": "1s"})
    )

    async def work() -> None:
        nonlocal left, checksum, ended
        reader, writer = await asyncio.open_connection(*address, limit=2**22)

        async def ask(request: bytes) -> bytes:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            at = head.lower().index(b"content-length:") + 15
            return await reader.readexactly(int(head[at : head.index(b"\r", at)]))

        while left > 0:
            messages = _pulled.decode(await ask(pull)).messages
            if not messages:
                continue
            body = msgspec.json.encode({"receipts": [message.receipt for message in messages]})
            answer = _settled.decode(await ask(frames.http_request(f"/v1/groups/{group}/messages:ack", key, body)))
            assert all(result.outcome == "acked" for result in answer.results)
            left -= len(messages)
            # The last ack ends the measurement: other workers may still wait for a message that does not come.
            ended = loop.time()
            for message in messages:
                checksum ^= zlib.crc32(message.message_id.encode())
        writer.close()

    began = loop.time()
    await asyncio.gather(*(work() for _ in range(WORKERS)))
    assert left == 0, f"{-left} messages came twice"
    return count / (ended - began), checksum


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    count = 320 if tiny else MESSAGES
    with (
        Stack(brokers=1) as stack,
        scratch("receipts") as folder,
        process(folder, "noop", "benchmarks.noop_asgi", "READY") as facts,
        stack.http() as http,
    ):
        http.put(f"/v1/topics/{TOPIC}", json={"read_queues": 8, "write_queues": 8}).raise_for_status()
        sent = fill(http, count)
        address, key = address_and_key(stack)
        request = frames.http_request("/", key, msgspec.json.encode({"topic": TOPIC, "max": AT_ONCE, "wait": "1s"}))
        processes = stack.pid_of("gateway-0"), stack.pid_of("broker-a")
        baselines, rates, costs = [], [], []
        for number in range(2 if tiny else ROUNDS + 1):
            requests = 2 * count // AT_ONCE
            baselines.append(
                closed_loop(address_of(facts), lambda _: request, requests, CREATED, WORKERS) * AT_ONCE / 2
            )
            # A new group begins with the oldest message.
            before = [cpu_s(pid) for pid in processes]
            rate, consumed = uvloop.run(consume(address, key, f"G{number}", count))
            assert consumed == sent, "not the messages that were sent"
            rates.append(rate)
            costs.append([(cpu_s(pid) - began) / count * 1e6 for pid, began in zip(processes, before, strict=True)])
    # The first round warms up.
    rate, baseline = median(rates[1:]), median(baselines[1:])
    of_gateway, of_broker = (median(cost) for cost in zip(*costs[1:], strict=True))
    aim = f"≥ {PER_S_MIN:,}/s"
    yield Row("pull and ack of 32, HTTP", rate, "messages/s", "bare ASGI", baseline, aim, rate >= PER_S_MIN)
    yield Row("the same, gateway for each message", of_gateway, "µs CPU", "broker", of_broker)
