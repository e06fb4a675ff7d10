"""Benchmarks a consumer with a listener against plain pulls of the same messages, by the client's processor time.

One client process drains a topic of messages of 256 bytes, with four queues: by pulls that decode each message and do
nothing more, and with a `PushConsumer` whose listener does nothing. The rounds alternate, and each has a group of its
own. The figures are messages per second of the client's processor time, so that other load changes them little.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import uvloop

from benchmarks import frames
from benchmarks.load import frames_closed_loop
from benchmarks.report import Row
from benchmarks.stack import SMALL_FILES, Service, address_of, process, scratch
from gantry.client import ClientEngine, ClientSettings, PushConsumer, StartPosition
from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.model.group import ConsumeFromWhere
from gantry.model.message import MessageQueue, StoredMessage
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng

TOPIC = "ListenedTopic"
ROUNDS = 5
FIRST = StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
TIMEOUT_S = 120


async def pull_all(engine: ClientEngine, count: int) -> float:
    """Pull and decode all messages; return the rate."""
    consumer = PullConsumer(engine, "GID_pulled")

    async def drain(queue: MessageQueue) -> int:
        offset = seen = 0
        while True:
            found = await consumer.pull(queue, offset, wide_messages=256)
            if found.status is PullStatus.NO_NEW_MSG:
                return seen
            seen += sum(1 for _ in found.messages())
            offset = found.next_offset

    queues = await engine.subscribe_queues(TOPIC)
    began_s = time.process_time()
    seen = sum(await asyncio.gather(*map(drain, queues)))
    assert seen == count, f"{seen} of {count} messages"
    return count / (time.process_time() - began_s)


async def listen_to_all(engine: ClientEngine, count: int, group: str, *, is_orderly: bool) -> float:
    """Consume all messages with a listener; return the rate."""
    done = asyncio.Event()
    seen = 0

    async def listen(message: StoredMessage) -> None:
        nonlocal seen
        seen += 1
        if seen == count:
            done.set()

    began_s = time.process_time()
    async with (
        PushConsumer(engine, group, [TOPIC], listen, start=FIRST, is_orderly=is_orderly),
        asyncio.timeout(TIMEOUT_S),
    ):
        await done.wait()
        used_s = time.process_time() - began_s
    return count / used_s


async def measure(namesrv: str, count: int, rounds: int) -> dict[str, list[float]]:
    """Return the rates of each kind."""
    rates: dict[str, list[float]] = {"pulled": [], "concurrent": [], "in order": []}
    engine = ClientEngine(ClientSettings(namesrv=(namesrv,)), clock=SystemClock(), rng=Rng())
    await engine.start()
    try:
        for number in range(rounds):
            rates["pulled"].append(await pull_all(engine, count))
            for name in ("concurrent", "in order"):
                group = f"GID_{name.replace(' ', '_')}_{number}"
                rate = await listen_to_all(engine, count, group, is_orderly=name == "in order")
                rates[name].append(rate)
    finally:
        await engine.stop()
    return rates


def fill(broker: Service, count: int) -> None:
    """Send the messages."""
    made = [frames.send_frame(TOPIC, number) for number in range(count)]
    sent = uvloop.run(frames_closed_loop(address_of(broker.facts), made.__getitem__, in_flight=64, requests=count))
    assert sent.failures == 0, f"{sent.failures} of {count} sends failed"


def start_broker(folder: Path, namesrv: str) -> Service:
    """Start a broker that a name server knows."""
    options = (
        "--name", "broker-a", "--cluster", "bench", "--listen", "127.0.0.1:0", "--store", str(folder / "store"),
        "--fast-port", "off", "--metrics-port", "off", "--ready-file", "READY", "--namesrv", namesrv,
    )  # fmt: skip
    environment = {**SMALL_FILES, "GANTRY_BROKER_FLUSH_DISK_TYPE": "ASYNC_FLUSH"}
    broker = Service(folder, "broker", "services.broker", *options, environment=environment)
    broker.start()
    return broker


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    count = 400 if tiny else 20_000
    with scratch("listener") as folder:
        arguments = ("--listen", "127.0.0.1:0", "--data", str(folder / "ns"), "--metrics-port", "off")
        with process(folder, "namesrv", "services.namesrv", *arguments, "--ready-file", "READY") as facts:
            broker = start_broker(folder, str(facts["address"]))
            try:
                fill(broker, count)
                rates = uvloop.run(measure(str(facts["address"]), count, 1 if tiny else ROUNDS))
            finally:
                broker.kill()
    pulled = median(rates["pulled"])
    for name in ("concurrent", "in order"):
        yield Row(f"listener, {name}", median(rates[name]), "messages/s", "pull and decode", pulled)
