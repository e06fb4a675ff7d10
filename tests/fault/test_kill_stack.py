"""kill -9 in a whole stack under load over HTTP: one process after the other, and all at once."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from functools import partial

import httpx
import pytest

from gantry.cli.stack.processes import family, kill_all, wait_until_gone
from gantry.client.errors import Outcome
from gantry.model.message import MessageQueue
from gantry.runtime.rng import Rng
from tests.fault.brokers import IN_A_HURRY, NEVER_FULL, SMALL_FILES, as_environment, assert_verifies
from tests.fault.history import History, assert_kept
from tests.fault.httpload import GROUP, HttpLoad, assert_commits, read_all
from tests.support.stack import Stack

TOPIC = "FAULT"
BROKERS = ("broker-a", "broker-b")
QUEUES = [MessageQueue(TOPIC, name, number) for name in BROKERS for number in range(2)]
ONE_BY_ONE = ("gateway-0", "broker-a", "namesrv-0", "postgres")
KILLED_AT_ONCE = 2
GONE_WITHIN_S = 10.0


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack(brokers=len(BROKERS), environment=as_environment(**SMALL_FILES, **IN_A_HURRY, **NEVER_FULL)) as stack:
        yield stack


@contextlib.asynccontextmanager
async def connected(stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {stack.facts['api_key']}"}
    async with httpx.AsyncClient(base_url=stack.facts["http"], headers=headers, timeout=20, trust_env=False) as http:
        yield http


async def check(stack: Stack, history: History) -> None:
    async with connected(stack) as http:
        assert_kept(history, await read_all(http, QUEUES), gapless=True)
        await assert_commits(http, history, TOPIC)


@pytest.mark.timeout(400)
async def test_nothing_stored_is_lost_and_nothing_refused_appears(stack: Stack, rng: Rng) -> None:
    history = History()
    async with connected(stack) as http:
        (await http.put(f"/v1/topics/{TOPIC}", json={"read_queues": 2, "write_queues": 2})).raise_for_status()
        (await http.put(f"/v1/groups/{GROUP}", json={})).raise_for_status()
        load = HttpLoad(http, history, rng, QUEUES)
        load.start()
        for name in ONE_BY_ONE:
            await load.reach(1 + rng.below(100))
            killed = stack.pid_of(name)
            os.kill(killed, signal.SIGKILL)
            replaced = partial(is_replaced, stack, name, killed)
            await asyncio.to_thread(stack.wait_for, replaced, f"to start {name} again")
            await load.reach(20)
        await load.stop()
    await check(stack, history)

    for _ in range(KILLED_AT_ONCE):
        await kill_all_under_load(stack, history, rng)
        await asyncio.to_thread(stack.start)
        await check(stack, history)

    print(history.summary())
    assert history.count(Outcome.STORED) > 100
    assert await asyncio.to_thread(stack.terminate) == 0
    for name in BROKERS:
        store = stack.directory / name
        assert not (store / "abort").exists()
        assert_verifies(store)


def is_replaced(stack: Stack, name: str, killed: int) -> bool:
    pids = {process["name"]: process["pid"] for process in stack.facts["processes"]}
    return pids.get(name, killed) != killed


async def kill_all_under_load(stack: Stack, history: History, rng: Rng) -> None:
    """Kill every process of the stack, the supervisor too, in random order."""
    async with connected(stack) as http:
        load = HttpLoad(http, history, rng, QUEUES)
        load.start()
        await load.reach(1 + rng.below(100))
        pids = family(stack.pid)
        rng.shuffle(pids)
        kill_all(pids)
        await asyncio.to_thread(stack.kill)
        await load.stop()
    assert wait_until_gone(pids, timeout_s=GONE_WITHIN_S)
