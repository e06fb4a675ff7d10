"""Eight clients pull, ack, nack and extend over three gateways, while gateways and the broker crash.

Every message is acked exactly once in the end, none is lost, and none is given to two clients within its invisible time.
Time is virtual, and a crash of the broker loses what is not on the disk, as a power cut does. The environment variable
GANTRY_RECEIPT_SEEDS sets the number of seeds.
"""

import asyncio
import itertools
import os
from collections import Counter, defaultdict
from dataclasses import dataclass

import pytest

from gantry.client.errors import ClientError
from gantry.runtime.rng import Rng
from services.gateway.errors import ProblemError
from tests.support.pullunit import GatewayUnit, PullUnit

SEED = int(os.environ["GANTRY_TEST_SEED"])  # tests/conftest.py
SEEDS = int(os.environ.get("GANTRY_RECEIPT_SEEDS", "3"))
GATEWAYS, CLIENTS, MESSAGES, CRASHES = 3, 8, 120, 6
INVISIBLE_MS = 10_000
LATE_MS = 1_000
"""A client that the crash of its gateway stopped, or whose request was slow."""
NACKED, EXTENDED, FORGOTTEN = 0.10, 0.15, 0.10


@dataclass(slots=True)
class Delivery:
    """A message that a client got; nobody else may get it from `asked_ms` to `hidden_until_ms`."""

    client: int
    receipt: str
    came_ms: int
    hidden_until_ms: int


class History:
    """Deliveries and acks, as the clients saw them."""

    def __init__(self, sent: list[str]) -> None:
        self.sent = set(sent)
        self.deliveries: dict[str, list[Delivery]] = defaultdict(list)
        self.acked: Counter[str] = Counter()
        self.doubtful: set[str] = set()

    @property
    def open(self) -> set[str]:
        return self.sent - self.acked.keys() - self.doubtful

    def free(self, name: str, receipt: str) -> None:
        for delivery in self.deliveries[name]:
            if delivery.receipt == receipt:
                delivery.hidden_until_ms = 0

    def differences(self) -> list[str]:
        found = [f"{name} was never acked" for name in self.open]
        found += [f"{name} was acked {times} times" for name, times in self.acked.items() if times > 1]
        for name, deliveries in self.deliveries.items():
            deliveries.sort(key=lambda delivery: delivery.came_ms)
            for earlier, later in itertools.pairwise(deliveries):
                if earlier.receipt != later.receipt and later.came_ms < earlier.hidden_until_ms:
                    found.append(f"{name}: {later} came within the time of {earlier}")
        return found


class Client:
    """A client of the group. It takes any gateway for any request."""

    def __init__(self, number: int, home: PullUnit, history: History, rng: Rng) -> None:
        self._number = number
        self._home = home
        self._history = history
        self._rng = rng

    async def run(self) -> None:
        for attempt in itertools.count():
            taken = None
            while taken is None:
                if not self._history.open:
                    return
                taken = await self._pull(f"{self._number}/{attempt}")
            for message, receipt in taken:
                await self._settle(message.body.decode(), receipt)

    async def _ask(self, request):
        """Return the result of a request to any gateway; None if the answer is lost."""
        gateway: GatewayUnit = self._rng.choice(self._home.gateways)
        try:
            return await request(gateway)
        except ProblemError as error:
            assert error.retryable, error
        except ClientError:
            pass
        await asyncio.sleep(0.2)
        return None

    async def _pull(self, attempt: str):
        asked_ms = self._home.clock.monotonic_ms()
        taken = await self._ask(
            lambda gateway: gateway.pull(
                max_messages=1 + self._rng.below(16), wait_ms=1_000, invisible_ms=INVISIBLE_MS, attempt_id=attempt
            )
        )
        now_ms = self._home.clock.monotonic_ms()
        for message, receipt in taken or ():
            delivery = Delivery(self._number, receipt, now_ms, asked_ms + INVISIBLE_MS)
            deliveries = self._history.deliveries[message.body.decode()]
            if not any(known.receipt == receipt for known in deliveries):
                deliveries.append(delivery)
        return taken

    async def _settle(self, name: str, receipt: str) -> None:
        await asyncio.sleep(self._rng.below(300) / 1_000)
        if self._rng.chance(FORGOTTEN):
            return
        if self._rng.chance(NACKED):
            self._history.free(name, receipt)
            await self._ask(lambda gateway: gateway.nack([receipt], self._rng.below(2_000)))
            return
        if self._rng.chance(EXTENDED):
            self._history.free(name, receipt)
            asked_ms = self._home.clock.monotonic_ms()
            answer = await self._ask(lambda gateway: gateway.extend([receipt], INVISIBLE_MS))
            if not answer or answer[0].new_receipt is None:
                return  # It comes again when its time is over.
            receipt = answer[0].new_receipt
            now_ms = self._home.clock.monotonic_ms()
            extended = Delivery(self._number, receipt, now_ms, asked_ms + INVISIBLE_MS)
            self._history.deliveries[name].append(extended)
        answer = await self._ask(lambda gateway: gateway.ack([receipt]))
        if not answer or (answer[0].problem is not None and answer[0].problem.retryable):
            self._history.doubtful.add(name)
        elif answer[0].outcome == "acked":
            self._history.acked[name] += 1
        else:
            assert answer[0].outcome == "gone", answer


async def crash_some(home: PullUnit, rng: Rng) -> None:
    for _ in range(CRASHES):
        await asyncio.sleep(rng.below(3_000) / 1_000)
        if rng.chance(0.5):
            await home.crash_broker(rng, away_s=rng.below(2_000) / 1_000)
        else:
            home.gateways[rng.below(GATEWAYS)].transport.cut()


async def drain(home: PullUnit, history: History) -> None:
    """Ack what comes until every time is over: messages whose acks are in doubt, and no others."""
    quiet_ms = 0
    while quiet_ms < INVISIBLE_MS + 3_000:
        left = await home.gateways[0].pull(wait_ms=1_000)
        quiet_ms = 0 if left else quiet_ms + 1_000
        for message, receipt in left:
            [result] = await home.gateways[0].ack([receipt])
            assert result.outcome == "acked"
            history.acked[message.body.decode()] += 1


@pytest.mark.parametrize("seed", range(SEED, SEED + SEEDS))
async def test_every_message_is_acked_once_and_given_to_one_client_at_a_time(seed: int) -> None:
    rng = Rng(seed)
    async with PullUnit(GATEWAYS) as home:
        names = [f"m{number}" for number in range(MESSAGES)]
        await home.send(*names)
        history = History(names)
        clients = [Client(number, home, history, Rng(rng.below(2**32))) for number in range(CLIENTS)]
        async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
            for client in clients:
                tasks.create_task(client.run())
            tasks.create_task(crash_some(home, rng))
        await drain(home, history)
        assert history.differences() == []
