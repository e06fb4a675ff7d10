"""kill -9 of gateways and brokers while clients pull, ack, nack and extend by receipt over three gateways.

Every message is acked exactly once in the end, none is lost, none comes again after its ack, and none is given to two
clients within its invisible time. The messages are sent to a topic with a duplicate window, each until it is stored.

GANTRY_TEST_KILLS=<n> kills n processes instead of the few that every test run can afford.
"""

import asyncio
import contextlib
import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from gantry.runtime.rng import Rng
from tests.fault.brokers import NEVER_FULL, SMALL_FILES, as_environment
from tests.support.gatewayprocess import GatewayProcess
from tests.support.stack import Stack

KILLS = int(os.environ.get("GANTRY_TEST_KILLS") or 4)
CLIENTS = 8
SENT_A_ROUND = 60
INVISIBLE_MS = 10_000
CALM_MS_MAX = 1_500
PAUSE_S = 0.05
DRAIN_S = 150
RESTARTED_S = 90
"""The supervisor waits up to 30 s before it restarts a process that has died often."""
TOPIC, GROUP = "RECEIPTS", "workers"
PULL, ACK, NACK, EXTEND = (f"/v1/groups/{GROUP}/messages:{verb}" for verb in ("pull", "ack", "nack", "extend"))
ACKED, EXTENDED, NACKED = 0.6, 0.75, 0.85
BROKERS = ("broker-a", "broker-b")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Ledger:
    """The knowledge of the clients, by body.

    Attributes:
        sent: Messages that are stored.
        hidden_until_ms: Time before which nobody may get the message.
        acked: Messages whose ack was answered, or whose second ack says that the first one worked.
        doubtful: Messages that may be acked: the answer was lost, and the time was over before the second ack.
        violations: Broken promises.
        gone: Number of receipts that were gone.
        failures: Number of requests without an answer.
    """

    sent: set[str] = field(default_factory=set)
    hidden_until_ms: dict[str, int] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    gone: int = 0
    failures: int = 0

    def came(self, body: str, asked_ms: int) -> None:
        """Note a delivery. It was hidden from others at the earliest when the pull was sent."""
        at_ms = now_ms()
        if body in self.acked:
            self.violations.append(f"{body} came again after its ack")
        if at_ms < self.hidden_until_ms.get(body, 0):
            self.violations.append(f"{body} came {self.hidden_until_ms[body] - at_ms} ms before its time was over")
        self.hidden_until_ms[body] = asked_ms + INVISIBLE_MS
        self.doubtful.discard(body)


class Gateways:
    """The three gateways; each request takes any of them."""

    def __init__(self, clients: Sequence[httpx.AsyncClient], rng: Rng, ledger: Ledger) -> None:
        self._clients = clients
        self._rng = rng
        self._ledger = ledger

    async def once(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """Send a request once; None if it has no answer, or a problem."""
        try:
            answer = await self._rng.choice(self._clients).post(path, json=body)
        except httpx.HTTPError:
            answer = None
        if answer is not None and answer.is_success:
            content: dict[str, Any] = answer.json()
            return content
        assert answer is None or answer.status_code >= 500 or answer.status_code == 404, answer.text
        self._ledger.failures += 1
        await asyncio.sleep(PAUSE_S)
        return None

    async def until_answered(self, path: str, body: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Send a request until it is answered. Return the answer, and whether it is that of the first one."""
        is_first = True
        while (answer := await self.once(path, body)) is None:
            is_first = False
        return answer, is_first


class Client:
    """A consumer of the group."""

    def __init__(self, gateways: Gateways, ledger: Ledger, rng: Rng) -> None:
        self._gateways = gateways
        self._ledger = ledger
        self._rng = rng
        self.is_draining = False
        self.is_done = False

    async def run(self) -> None:
        while not self.is_done:
            await self._work()

    async def _work(self) -> None:
        wanted = {"topic": TOPIC, "max": 1 + self._rng.below(8), "wait": "500ms", "invisible": f"{INVISIBLE_MS}ms"}
        if self._rng.chance(0.5):
            # A lost answer is asked for again, perhaps at another gateway.
            wanted["attempt_id"] = uuid.uuid4().hex
            asked_ms = now_ms()
            pulled, _ = await self._gateways.until_answered(PULL, wanted)
        else:
            asked_ms = now_ms()
            answer = await self._gateways.once(PULL, wanted)
            if answer is None:
                return
            pulled = answer
        assert "damaged" not in pulled, pulled
        for message in pulled["messages"]:
            self._ledger.came(message["body"], asked_ms)
        for message in pulled["messages"]:
            await self._settle(message["body"], message["receipt"])

    async def _settle(self, body: str, receipt: str) -> None:
        share = 0.0 if self.is_draining else self._rng.below(1_000) / 1_000
        if share < ACKED:
            await self._ack(body, receipt)
        elif share < EXTENDED:
            await self._extend(body, receipt)
        elif share < NACKED:
            await self._nack(body, receipt)
        # The others are forgotten: they come again when their time is over.

    async def _ack(self, body: str, receipt: str) -> None:
        is_sure = True
        while True:
            answer, is_first = await self._gateways.until_answered(ACK, {"receipts": [receipt]})
            (result,) = answer["results"]
            is_sure = is_sure and is_first
            if result["outcome"] != "refused":
                break
            assert result["problem"]["retryable"], result
            is_sure = False
            await asyncio.sleep(PAUSE_S)
        if result["outcome"] == "acked":
            self._ledger.acked.add(body)
            return
        assert result["outcome"] == "gone", result
        self._ledger.gone += 1
        if now_ms() < self._ledger.hidden_until_ms[body]:
            if is_sure:
                self._ledger.violations.append(f"{body}: the receipt was gone before its time was over")
            self._ledger.acked.add(body)
        elif not is_sure:
            self._ledger.doubtful.add(body)

    async def _extend(self, body: str, receipt: str) -> None:
        asked_ms = now_ms()
        answer = await self._gateways.once(EXTEND, {"receipts": [receipt], "invisible": f"{INVISIBLE_MS}ms"})
        if answer is not None and answer["results"][0]["outcome"] == "extended":
            self._ledger.hidden_until_ms[body] = asked_ms + INVISIBLE_MS
            await self._ack(body, answer["receipts"][0])

    async def _nack(self, body: str, receipt: str) -> None:
        self._ledger.hidden_until_ms[body] = 0
        await self._gateways.once(NACK, {"receipts": [receipt], "delay": "1s"})


async def send(gateways: Gateways, ledger: Ledger, first: int) -> None:
    """Send messages until all are stored."""
    left = {f"m{number}" for number in range(first, first + SENT_A_ROUND)}
    while left:
        bodies = sorted(left)
        messages = [{"body": body, "idempotency_key": body} for body in bodies]
        answer = await gateways.once(f"/v1/topics/{TOPIC}/messages:batch", {"messages": messages})
        if answer is not None:
            stored = {
                body
                for body, result in zip(bodies, answer["results"], strict=True)
                if result.get("outcome") == "stored"
            }
            left -= stored
            ledger.sent |= stored


@pytest.fixture
def stack() -> Iterator[Stack]:
    settings = as_environment(**SMALL_FILES, **NEVER_FULL) | {"GANTRY_BROKER_FLUSH_DISK_TYPE": "SYNC_FLUSH"}
    with Stack(brokers=len(BROKERS), environment=settings) as stack:
        yield stack


@pytest.fixture
def gateways(stack: Stack, tmp_path: Path) -> Iterator[list[GatewayProcess]]:
    with contextlib.ExitStack() as started:
        yield [started.enter_context(GatewayProcess(stack, tmp_path / f"gateway-{number}")) for number in (1, 2)]


@contextlib.asynccontextmanager
async def connected(stack: Stack, urls: Sequence[str]) -> AsyncIterator[list[httpx.AsyncClient]]:
    headers = {"Authorization": f"Bearer {stack.facts['api_key']}"}
    async with contextlib.AsyncExitStack() as opened:
        yield [
            await opened.enter_async_context(
                httpx.AsyncClient(base_url=url, headers=headers, timeout=20, trust_env=False)
            )
            for url in urls
        ]


def is_replaced(stack: Stack, name: str, killed: int) -> bool:
    pids = {process["name"]: process["pid"] for process in stack.facts["processes"]}
    return bool(pids.get(name, killed) != killed)


async def kill_one(stack: Stack, others: Sequence[GatewayProcess], rng: Rng) -> None:
    """Kill a gateway or a broker, and wait until it is there again."""
    victim = rng.below(len(others) + 1 + len(BROKERS))
    if victim < len(others):
        await asyncio.to_thread(others[victim].kill)
        await asyncio.to_thread(others[victim].start)
        return
    name = ("gateway-0", *BROKERS)[victim - len(others)]
    killed = stack.pid_of(name)
    os.kill(killed, signal.SIGKILL)
    replaced = partial(is_replaced, stack, name, killed)
    await asyncio.to_thread(stack.wait_for, replaced, f"to start {name} again", timeout_s=RESTARTED_S)


@pytest.mark.timeout(300 + 30 * KILLS)
async def test_processes_are_killed_while_clients_consume_by_receipt(
    stack: Stack, gateways: list[GatewayProcess], rng: Rng
) -> None:
    ledger = Ledger()
    async with connected(stack, [stack.facts["http"], *(each.url for each in gateways)]) as https:
        settings = {"read_queues": 2, "write_queues": 2, "duplicate_window": "1h"}
        (await https[0].put(f"/v1/topics/{TOPIC}", json=settings)).raise_for_status()
        (await https[0].put(f"/v1/groups/{GROUP}", json={"retry_max_times": 1_000})).raise_for_status()
        any_gateway = Gateways(https, rng, ledger)
        clients = [Client(any_gateway, ledger, Rng(rng.below(1 << 60))) for _ in range(CLIENTS)]
        running = asyncio.gather(*(client.run() for client in clients))
        try:
            for number in range(KILLS):
                sending = asyncio.ensure_future(send(any_gateway, ledger, number * SENT_A_ROUND))
                await asyncio.sleep((100 + rng.below(CALM_MS_MAX)) / 1_000)
                await kill_one(stack, gateways, rng)
                await sending
                assert not running.done()
            for client in clients:
                client.is_draining = True
            deadline = time.monotonic() + DRAIN_S
            while ledger.sent - ledger.acked - ledger.doubtful:
                left = len(ledger.sent - ledger.acked - ledger.doubtful)
                assert time.monotonic() < deadline, f"{left} of {len(ledger.sent)} are not acked: {ledger.violations}"
                assert not running.done()
                await asyncio.sleep(0.2)
            # A message that comes again against the promise comes within this time.
            await asyncio.sleep(1.5 * INVISIBLE_MS / 1_000)
        finally:
            for client in clients:
                client.is_done = True
            await running
    assert not ledger.violations
    print(
        f"{len(ledger.sent)} sent, {len(ledger.acked)} acked, {len(ledger.doubtful)} doubtful, {ledger.gone} gone, "
        f"{ledger.failures} requests without an answer"
    )
