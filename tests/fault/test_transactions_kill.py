"""kill -9 of gateways under transactions over HTTP, between half message, decision, delivery and its note.

A second gateway of a stack is killed at random moments, with the broker stopped or killed at times. Its callers go on
at the other gateway, or not at all. In the end Postgres and the broker must agree on every transaction: a committed
message is delivered, once unless the broker was killed, and no other one ever is.

GANTRY_TEST_KILLS=<n> kills n gateways instead of the few that every test run can afford.
"""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from gantry.cli.stack.processes import family, signal_all
from gantry.runtime.rng import Rng
from tests.fault.brokers import NEVER_FULL, SMALL_FILES, as_environment
from tests.support.stack import Stack, environment

KILLS = int(os.environ.get("GANTRY_TEST_KILLS") or 3)
TOPIC = "/v1/topics/ORDERS"
CALLERS = 6
LOAD_MS_MAX = 1_200
PAUSE_MS_MAX = 40
FROZEN_MS_MAX = 600
READY_S = 60.0
DELIVERED_S = 180.0
"""Longer than the lease of a gateway that died, and seven pauses after failed deliveries."""
STATES = {"commit": "committed", "rollback": "rolled_back"}
SETTINGS = {
    **as_environment(**SMALL_FILES, **NEVER_FULL),
    "GANTRY_BROKER_TRANSACTION_TIME_OUT": "500",
    "GANTRY_BROKER_TRANSACTION_CHECK_INTERVAL": "1000",
    # Checks of open transactions get no answer here, and none may be given up.
    "GANTRY_BROKER_TRANSACTION_CHECK_MAX": "100000",
    "GANTRY_GATEWAY_TRANSACTION_MIRROR_INTERVAL_MS": "500",
}


@dataclass
class Call:
    """One transaction of a caller.

    Attributes:
        verb: The caller's decision; None: it makes none.
        transaction: Its id, once it is known.
        is_decided: Whether the decision was answered.
    """

    body: str
    verb: str | None
    transaction: str | None = None
    is_decided: bool = False


@dataclass
class Gateway:
    """A gateway beside those of the stack."""

    process: subprocess.Popen[bytes]
    ready_file: Path
    log: Path

    def is_ready(self) -> bool:
        code = self.process.poll()
        assert code is None, f"it ended with {code}: {self.log.read_text()}"
        return self.ready_file.exists()


class Killer:
    """Starts gateways and kills them under load."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.calls: list[Call] = []
        self.broker_kills = 0
        self.unanswered = 0
        self._folder = folder
        self._count = 0

    @contextlib.contextmanager
    def launched(self) -> Iterator[Gateway]:
        """Start one more gateway, and do not wait."""
        self._count += 1
        data = self._folder / f"gateway-{self._count}"
        data.mkdir()
        command = [sys.executable, "-m", "services.gateway", "--listen", "127.0.0.1:0", "--name", data.name]
        command += ["--namesrv", ";".join(self.stack.facts["namesrv"]), "--data", str(data)]
        command += ["--ready-file", str(data / "ready.json")]
        variables = environment({**SETTINGS, "GANTRY_DATABASE_URL": self.stack.facts["postgres"]})
        with (data / "log").open("wb") as log:
            process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stderr=log)
        try:
            yield Gateway(process, data / "ready.json", data / "log")
        finally:
            process.kill()
            process.wait(20)

    async def load_and_kill(self, gateway: Gateway, rng: Rng) -> None:
        """Send transactions to a gateway until it is killed."""
        await until(gateway.is_ready, "the gateway is ready", READY_S)
        async with client(json.loads(gateway.ready_file.read_bytes())["url"], self.stack) as http:
            await until(partial(answers, http), "the gateway knows the key", READY_S)
            callers = [asyncio.ensure_future(self._call(http, Rng(rng.below(1 << 60)))) for _ in range(CALLERS)]
            await asyncio.sleep(rng.below(LOAD_MS_MAX) / 1000)
            await self._kill(gateway, rng)
            await asyncio.gather(*callers)

    async def go_on(self, http: httpx.AsyncClient, rng: Rng) -> None:
        """Let half of the callers without an answer go on at another gateway."""
        for call in self.calls:
            if call.is_decided or call.verb is None:
                continue
            self.unanswered += 1
            if call.transaction is None:
                call.transaction = (await answered(http, begin, call))["transaction"]
            if rng.chance(0.5):
                await answered(http, decide, call)
                call.is_decided = True
            else:
                call.verb = None

    async def _call(self, http: httpx.AsyncClient, rng: Rng) -> None:
        while True:
            call = Call(rng.bytes(8).hex(), rng.choice(("commit", "commit", "rollback", None)))
            self.calls.append(call)
            try:
                answer = await begin(http, call)
                if answer.status_code == httpx.codes.CREATED:
                    call.transaction = answer.json()["transaction"]
                    await asyncio.sleep(rng.below(PAUSE_MS_MAX) / 1000)
                    if call.verb is not None:
                        decided = await decide(http, call)
                        assert decided.status_code == httpx.codes.OK, decided.text
                        call.is_decided = True
                else:
                    # The broker is away. Whether the half message is stored may be unknown.
                    assert answer.status_code >= httpx.codes.INTERNAL_SERVER_ERROR, answer.text
            except httpx.TransportError:
                return

    async def _kill(self, gateway: Gateway, rng: Rng) -> None:
        broker, way = self.stack.pid_of("broker-a"), rng.below(6)
        if way < 3:
            # Decisions are written meanwhile, and can't be delivered.
            signal_all(family(broker), signal.SIGSTOP)
            await asyncio.sleep(rng.below(FROZEN_MS_MAX) / 1000)
        gateway.process.kill()
        other = self._pid("gateway-0")
        if way == 0 and other is not None:
            os.kill(other, signal.SIGKILL)
        if way == 1:
            self.broker_kills += 1
            signal_all(family(broker), signal.SIGKILL)
            await until(lambda: self._pid("broker-a") not in (None, broker), "the broker is started again", READY_S)
        elif way < 3:
            signal_all(family(broker), signal.SIGCONT)

    def _pid(self, name: str) -> int | None:
        """Return the id of a process of the stack, None while it is started again."""
        return {process["name"]: process["pid"] for process in self.stack.facts["processes"]}.get(name)


@contextlib.asynccontextmanager
async def client(url: str, stack: Stack) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"Authorization": f"Bearer {stack.facts['api_key']}"}
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=20, trust_env=False) as http:
        yield http


async def answers(http: httpx.AsyncClient) -> bool:
    return (await http.get("/v1/transactions")).status_code == httpx.codes.OK


async def begin(http: httpx.AsyncClient, call: Call) -> httpx.Response:
    content = {"body": call.body, "group": "KILLED_TX"}
    return await http.post(f"{TOPIC}/transactions", json=content, headers={"Idempotency-Key": call.body})


async def decide(http: httpx.AsyncClient, call: Call) -> httpx.Response:
    return await http.post(f"/v1/transactions/{call.transaction}:{call.verb}")


async def show(http: httpx.AsyncClient, call: Call) -> httpx.Response:
    return await http.get(f"/v1/transactions/{call.transaction}")


async def answered(http: httpx.AsyncClient, request: Any, call: Call) -> dict[str, Any]:
    """Send a request again until it succeeds: gateway and broker may just be started again."""
    found: dict[str, Any] = {}

    async def succeeds() -> bool:
        with contextlib.suppress(httpx.TransportError):
            answer = await request(http, call)
            assert answer.status_code < httpx.codes.BAD_REQUEST or answer.is_server_error, answer.text
            if answer.is_success:
                found.update(answer.json())
        return bool(found)

    await until(succeeds, f"{request.__name__} of {call} succeeds", READY_S)
    return found


async def until(condition: Any, what: str, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        with contextlib.suppress(httpx.TransportError):
            result = condition()
            if await result if asyncio.iscoroutine(result) else result:
                return
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s in vain until {what}"
        await asyncio.sleep(0.05)


async def read_bodies(http: httpx.AsyncClient) -> Counter[str]:
    """Return all messages of the topic, and how often each is there."""
    bodies: Counter[str] = Counter()
    offset, end = "0", ""
    while offset != end:
        url, params = f"{TOPIC}/queues/broker-a/0/messages", {"offset": offset, "limit": "1000"}
        content = (await http.get(url, params=params)).raise_for_status().json()
        bodies.update(message["body"] for message in content["messages"])
        offset, end = content["next_offset"], offset
    return bodies


@pytest.fixture
def stack() -> Iterator[Stack]:
    with Stack(brokers=1, environment=SETTINGS) as running:
        with running.http() as http:
            assert http.put(TOPIC, json={"read_queues": 1, "write_queues": 1}).status_code == httpx.codes.CREATED
        yield running


async def check(killer: Killer, http: httpx.AsyncClient) -> Counter[str]:
    """Wait until all decisions are delivered, and compare. Return the number of transactions in each state."""
    rows = {call.body: await answered(http, show, call) for call in killer.calls if call.transaction}

    async def undelivered() -> list[dict[str, Any]]:
        for call in killer.calls:
            if call.transaction and rows[call.body]["state"] != "open" and not rows[call.body]["delivered_at"]:
                rows[call.body] = await answered(http, show, call)
        return [row for row in rows.values() if row["state"] != "open" and not row["delivered_at"]]

    deadline = time.monotonic() + DELIVERED_S
    while left := await undelivered():
        assert time.monotonic() < deadline, f"decisions are not delivered within {DELIVERED_S:.0f} s: {left}"
        await asyncio.sleep(0.5)
    bodies = await read_bodies(http)
    assert bodies.keys() <= {call.body for call in killer.calls}
    for call in killer.calls:
        state = "never begun" if call.transaction is None else rows[call.body]["state"]
        assert not call.is_decided or state == STATES[str(call.verb)], f"{call} is {state}"
        assert (bodies[call.body] > 0) == (state == "committed"), (
            f"{call} is {state}, and came {bodies[call.body]} times"
        )
        assert bodies[call.body] <= 1 + killer.broker_kills, f"{call} came {bodies[call.body]} times"
    return Counter(row["state"] for row in rows.values())


@pytest.mark.timeout(240 + 20 * KILLS)
async def test_gateways_killed_under_transactions(stack: Stack, tmp_path: Path, rng: Rng) -> None:
    began, killer = time.monotonic(), Killer(stack, tmp_path)
    async with client(stack.facts["http"], stack) as http:
        with contextlib.ExitStack() as gateways:
            following = gateways.enter_context(killer.launched())
            for number in range(KILLS):
                victim = following
                if number + 1 < KILLS:
                    following = gateways.enter_context(killer.launched())
                await killer.load_and_kill(victim, rng)
                await killer.go_on(http, rng)
        states = await check(killer, http)
    assert killer.unanswered, "no kill came between a request and its answer"
    print(f"{KILLS} gateways killed, {killer.broker_kills} brokers, {killer.unanswered} calls without an answer")
    print(f"{dict(states)}, {time.monotonic() - began:.0f} s")
