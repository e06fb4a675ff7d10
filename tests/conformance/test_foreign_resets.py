"""Resets under load: a Java push consumer and a stream of one group commit all the time, and each reset holds.

Both consume slowly through long queues, so an offset from before a reset is far from every offset that is possible after
it. `GANTRY_RESET_ROUNDS=100` makes the long form; a Java client pauses for ten seconds after each reset.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from gantry.http import AsyncGantryClient, StreamClient
from gantry.runtime.rng import Rng
from tests.support import foreign
from tests.support.stack import Stack

TOPIC, GROUP, BROKER = "UnderLoad", "GID_under_load", "broker-a"
QUEUES, COUNT = 4, 20_000
ROUNDS = int(os.environ.get("GANTRY_RESET_ROUNDS", "2"))
# Both consumers take at most 100 messages of a queue in a second. A round lasts 20 s, so a reset moves further than that.
PACE_S = 0.01
DISTANCE = 4_000
REACH = 3_500

Offsets = dict[int, int]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=1) as running:
        with running.http() as http:
            body = {"read_queues": QUEUES, "write_queues": QUEUES, "brokers": [BROKER]}
            assert http.put(f"/v1/topics/{TOPIC}", json=body).status_code == 201
            for queue_id in range(QUEUES):
                for _ in range(COUNT // 1_000):
                    messages = [{"body": "m", "queue": {"broker": BROKER, "id": queue_id}}] * 1_000
                    sent = http.post(f"/v1/topics/{TOPIC}/messages:batch", json={"messages": messages})
                    assert sent.json()["stored"] == 1_000
        yield running


@pytest.fixture
async def streamed(stack: Stack) -> AsyncIterator[set[int]]:
    """Consume with a stream; yield the queues that it has."""
    queues: set[int] = set()
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(GROUP, TOPIC, start="first", batch=10)

        async def consume() -> None:
            while True:
                batch = await subscription.next(timeout_ms=60_000)
                if batch is not None:
                    queues.add(batch.messages[0].queue_id)
                    await asyncio.sleep(PACE_S * len(batch.messages) / 2)
                    await subscription.ack(batch)

        task = asyncio.create_task(consume())
        yield queues
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def committed(client: AsyncGantryClient) -> Offsets:
    found = await client.get_offsets(GROUP, topic=TOPIC)
    return {one.queue_id: one.committed_offset for one in found if one.committed_offset is not None}


def received(log: Path) -> dict[int, int]:
    """Return the last offset of each queue that the Java consumer has printed."""
    last: dict[int, int] = {}
    for line in log.read_text(errors="replace").splitlines()[-2_000:]:
        if line.startswith("{") and line.endswith("}"):
            message = json.loads(line)
            last[message["queue_id"]] = message["queue_offset"]
    return last


async def wait_until_all_move(client: AsyncGantryClient, starts: Offsets) -> None:
    """Watch the committed offsets until each queue has moved on. They must never leave the reach of the reset."""
    deadline = time.monotonic() + 60
    while True:
        now = await committed(client)
        for queue_id, start in starts.items():
            assert start <= now[queue_id] <= start + REACH, (
                f"queue {queue_id}: {now[queue_id]} after a reset to {start}"
            )
        if all(now[queue_id] > start for queue_id, start in starts.items()):
            return
        assert time.monotonic() < deadline, f"queues do not move on from {starts}: {now}"
        await asyncio.sleep(0.05)


def next_target(rng: Rng, offset: int) -> int:
    """Return an offset that is further away than the consumers come until the next reset."""
    while True:
        target = rng.below(COUNT - REACH - 1)
        if abs(target - offset) > DISTANCE:
            return target


@pytest.mark.java
@pytest.mark.timeout(120 + 60 * ROUNDS)
async def test_the_group_is_where_it_was_put_every_time(stack: Stack, streamed: set[int], tmp_path: Path) -> None:
    seed = int(time.time())
    print(f"seed {seed}, {ROUNDS} rounds")
    rng, log = Rng(seed), tmp_path / "java.log"
    namesrv = stack.facts["namesrv"][0]
    async with AsyncGantryClient.from_stack(stack.directory) as client, httpx.AsyncClient() as http:
        http.base_url = httpx.URL(stack.facts["http"])
        http.headers["authorization"] = f"Bearer {stack.facts['api_key']}"
        with foreign.java_push_consumer(namesrv, TOPIC, GROUP, log):
            async with asyncio.timeout(60):
                while True:
                    if len(await committed(client)) == QUEUES and len(received(log)) >= 2 and len(streamed) >= 2:
                        break
                    await asyncio.sleep(0.2)
            for number in range(ROUNDS):
                began = time.monotonic()
                before = await committed(client)
                starts = {queue_id: next_target(rng, offset) for queue_id, offset in before.items()}
                to = [
                    {"broker": BROKER, "queue_id": queue_id, "offset": str(offset)}
                    for queue_id, offset in starts.items()
                ]
                answer = await http.post(
                    f"/v1/groups/{GROUP}/offsets:reset", json={"topic": TOPIC, "to": to}, timeout=30
                )
                outcomes = {item["outcome"] for item in answer.json()["items"]}
                assert outcomes == {"reset"}, f"round {number}: {answer.text}"
                await wait_until_all_move(client, starts)
                print(f"round {number}: {time.monotonic() - began:.1f} s", flush=True)
