"""Benchmarks a broker with 1,000 topics of 4 queues and 500 groups: its start, and its work while nothing is sent.

- *Start*: from the creation of the process until it answers, with a message in each queue and 500 groups. Without: the
  same broker on its empty store.
- *Rest*: each group has one client, which subscribes to two topics and sends a heart-beat every 30 s, as Java's client
  does. The broker registers all topics with a name server every 30 s. The processor time is that of broker and name
  server together. Without: the same processes with an empty store and no client.
"""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from benchmarks import frames
from benchmarks.load import frames_closed_loop
from benchmarks.report import Row
from benchmarks.stack import SMALL_FILES, Service, address_of, cpu_s, scratch
from gantry.model.group import ConsumeFromWhere, parse_tag_expression
from gantry.model.topic import TopicConfig
from gantry.remoting.bodies.config import encode_topic_configs
from gantry.remoting.bodies.heartbeat import ConsumerData, HeartbeatData
from gantry.remoting.codes import RequestCode

TOPICS, QUEUES, GROUPS = 1_000, 4, 500
TOPICS_A_REQUEST = 100
HEARTBEAT_S = 30.0
REST_S = 2 * HEARTBEAT_S
START_S_MAX = 5.0
REST_PERCENT_MAX = 3.0

Address = tuple[str, int]


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    topics, groups, rest_s = (8, 4, 1.0) if tiny else (TOPICS, GROUPS, REST_S)
    with scratch("groups") as folder:
        namesrv = Service(
            folder, "namesrv", "services.namesrv", "--listen", "127.0.0.1:0", "--data", str(folder / "namesrv"),
            "--metrics-port", "off", "--ready-file", "READY",
        )  # fmt: skip
        try:
            namesrv.start()
            broker = _broker(folder, namesrv.facts["address"])
            try:
                yield from _measure(broker, namesrv, topics, groups, rest_s)
            finally:
                broker.kill()
        finally:
            namesrv.kill()


def _broker(folder: Path, namesrv: str) -> Service:
    return Service(
        folder, "broker", "services.broker", "--name", "broker-a", "--cluster", "bench", "--listen", "127.0.0.1:0",
        "--store", str(folder / "store"), "--namesrv", namesrv, "--fast-port", "off", "--metrics-port", "off",
        "--ready-file", "READY", environment=SMALL_FILES,
    )  # fmt: skip


def _measure(broker: Service, namesrv: Service, topics: int, groups: int, rest_s: float) -> Iterator[Row]:
    broker.start()
    empty_start_s = broker.start_s
    empty_rest = _rest_percent((broker, namesrv), rest_s)
    _fill(address_of(broker.facts), topics)
    uvloop.run(_heartbeats(address_of(broker.facts), topics, groups, 0.1))  # The broker creates the groups.
    assert broker.stop(), "the broker does not stop in order"
    broker.start()
    what = f"{topics:,} topics of {QUEUES} queues, {groups} groups"
    yield Row(
        f"start with {what}", broker.start_s, "s", "empty", empty_start_s, f"≤ {START_S_MAX:.0f} s",
        broker.start_s <= START_S_MAX,
    )  # fmt: skip
    before = [cpu_s(service.pid) for service in (broker, namesrv)]
    uvloop.run(_heartbeats(address_of(broker.facts), topics, groups, rest_s))
    used_s = sum(cpu_s(service.pid) - began for service, began in zip((broker, namesrv), before, strict=True))
    percent = 100 * used_s / rest_s
    yield Row(
        f"of a core for heart-beats and registration, {what}", percent, "%", "empty", empty_rest,
        f"≤ {REST_PERCENT_MAX:.0f} %", percent <= REST_PERCENT_MAX,
    )  # fmt: skip


def _rest_percent(services: tuple[Service, ...], rest_s: float) -> float:
    before = sum(cpu_s(service.pid) for service in services)
    time.sleep(rest_s)
    return 100 * (sum(cpu_s(service.pid) for service in services) - before) / rest_s


def _fill(address: Address, topics: int) -> None:
    """Create the topics, and send one message to each queue."""
    names = [_topic(number) for number in range(topics)]
    creations = [
        frames.frame(
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, start,
            encode_topic_configs(
                TopicConfig(name, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
                for name in names[start : start + TOPICS_A_REQUEST]
            ),
        )
        for start in range(0, topics, TOPICS_A_REQUEST)
    ]  # fmt: skip
    sends = [
        frames.send_frame(name, number * QUEUES + queue_id, queue_id=queue_id, body=b"x")
        for number, name in enumerate(names)
        for queue_id in range(QUEUES)
    ]
    for made, in_flight in ((creations, 1), (sends, 64)):
        result = uvloop.run(frames_closed_loop(address, made.__getitem__, in_flight=in_flight, requests=len(made)))
        assert result.failures == 0, f"{result.failures} of {result.requests} requests failed"


async def _heartbeats(address: Address, topics: int, groups: int, seconds: float) -> None:
    """Send the heart-beats of all groups for some time, evenly spread; each group sends at least one."""
    await asyncio.gather(*(_group(address, number, groups, topics, seconds) for number in range(groups)))


async def _group(address: Address, number: int, groups: int, topics: int, seconds: float) -> None:
    group = f"GID_bench_{number}"
    subscribed = [f"%RETRY%{group}", *(_topic((2 * number + one) % topics) for one in range(2))]
    data = HeartbeatData(
        client_id=f"127.0.0.1@{number}",
        consumers=(
            ConsumerData(
                group,
                consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                subscriptions=tuple(parse_tag_expression(topic, "*") for topic in subscribed),
            ),
        ),
    )
    heartbeat = frames.frame(RequestCode.HEART_BEAT, {}, number, data.encode())
    loop = asyncio.get_running_loop()
    due = loop.time() + min(HEARTBEAT_S, seconds) * number / groups
    end = loop.time() + seconds
    reader, writer = await asyncio.open_connection(*address)
    while True:
        await asyncio.sleep(due - loop.time())
        writer.write(heartbeat)
        reply = b""
        while b'"flag":1' not in reply:  # The broker also tells each group about its members.
            reply = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
        assert b'"code":0' in reply, reply
        due += HEARTBEAT_S
        if due >= end:
            break
    await asyncio.sleep(end - loop.time())
    writer.close()


def _topic(number: int) -> str:
    return f"BenchTopic{number}"
