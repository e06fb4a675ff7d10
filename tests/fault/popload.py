"""A load of clients that pop, acknowledge, give back and extend, against a broker process; it writes a PopHistory."""

import asyncio
from dataclasses import dataclass, field
from typing import Self

from gantry.model.popreceipt import PopReceipt
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.errors import RequestFailedError
from gantry.remoting.headers import ChangeInvisibleTimeResponseHeader
from gantry.runtime.rng import Rng
from tests.fault.waitingload import Link, ProcessLink
from tests.fault.waitingunit import UnitLink
from tests.support.brokerunit import BrokerUnit
from tests.support.pops import Popped, ack, bodies, change, pop_header, popped

TOPIC, QUEUES = "T", 4
CLIENTS = 8
AT_ONCE = 8
INVISIBLE_MS = 4_000
GIVEN_BACK_MS = 300
SEND_PAUSE_MS_MAX = 20
ACKED, EXTENDED, GIVEN_BACK = 60, 75, 85
"""Percentages, each with those before it; the rest is forgotten."""
QUIET_MS = 3 * INVISIBLE_MS
POLL_S = 0.1


@dataclass
class PopHistory:
    """The knowledge of the clients, by body.

    Attributes:
        stored: Messages whose send was answered.
        asked: Messages that a client has acknowledged, answered or not.
        acked: Messages whose acknowledgement was answered.
        changing: Messages whose invisible time is being changed.
        hidden_until_ms: Time before which nobody may get the message.
    """

    stored: set[str] = field(default_factory=set)
    asked: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    changing: set[str] = field(default_factory=set)
    hidden_until_ms: dict[str, int] = field(default_factory=dict)

    def copy(self) -> Self:
        """Return the knowledge until now."""
        return type(self)(
            set(self.stored), set(self.asked), set(self.acked), set(self.changing), dict(self.hidden_until_ms)
        )

    def came(self, item: Popped) -> str:
        """Note a delivery, and return the body. Raises AssertionError if it breaks a promise."""
        (body,) = bodies([item])
        assert body not in self.acked, f"{body} comes again after its acknowledgement"
        early_ms = self.hidden_until_ms.get(body, 0) - item.receipt.popped_at_ms
        assert early_ms <= 0 or body in self.changing, f"{body} comes {early_ms} ms before its time is over"
        self.changing.discard(body)
        self.hidden_until_ms[body] = item.receipt.expires_at_ms
        return body

    def summary(self) -> str:
        """Return the counts as a text."""
        return f"{len(self.stored)} stored, {len(self.hidden_until_ms)} given out, {len(self.acked)} acknowledged"


class PopLoad:
    """The load on one broker, for one life of it.

    Args:
        address: The broker's address.
        history: The history of the store.
        rng: The choices.
        life: A number that no earlier life of the store has.
    """

    def __init__(self, address: str, history: PopHistory, rng: Rng, life: int) -> None:
        self._links = [ProcessLink(address) for _ in range(CLIENTS + 1)]
        self._history = history
        self._rng = rng
        self._life = life
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Create topic and group, and start the clients."""
        sender, *clients = self._links
        await sender.make_topic(TOPIC, QUEUES)
        await sender.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b'{"groupName":"g"}')
        workers = [self._send(sender), *map(self._consume, clients)]
        self._tasks = [asyncio.ensure_future(worker) for worker in workers]

    async def stop(self) -> None:
        """Wait for the clients of a broker that is killed. Raises an error of the load."""
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for link in self._links:
            await link.close()
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, RequestFailedError):
                raise result

    async def _send(self, link: ProcessLink) -> None:
        for number in range(1 << 30):
            body = f"m{self._life}-{number}"
            answer = await link.send(TOPIC, body.encode(), queue_id=number % QUEUES)
            assert answer.code == ResponseCode.SUCCESS, answer.remark
            self._history.stored.add(body)
            await asyncio.sleep(self._rng.below(SEND_PAUSE_MS_MAX) / 1000)

    async def _consume(self, link: ProcessLink) -> None:
        header = {"invisible_time": INVISIBLE_MS, "poll_time": 200}
        while True:
            wanted = pop_header(TOPIC, max_msg_nums=1 + self._rng.below(AT_ONCE), **header)
            items = popped(await link.ask(RequestCode.POP_MESSAGE, wanted))
            # The whole answer is noted before the first acknowledgement: its messages are hidden since the pop.
            for item, body in [(item, self._history.came(item)) for item in items]:
                await self._settle(link, item.receipt, body)

    async def _settle(self, link: ProcessLink, receipt: PopReceipt, body: str) -> None:
        way = self._rng.below(100)
        if way < ACKED:
            await acknowledge(link, self._history, receipt, body)
        elif way < GIVEN_BACK:
            self._history.changing.add(body)
            answer = await change(link, receipt, INVISIBLE_MS if way < EXTENDED else GIVEN_BACK_MS)
            assert answer.code == ResponseCode.SUCCESS, f"{body}: {answer.remark}"
            new = ChangeInvisibleTimeResponseHeader.from_ext(answer.ext_fields)
            # Another client may have it by now, if its time was over when the answer came.
            if body in self._history.changing:
                self._history.changing.remove(body)
                self._history.hidden_until_ms[body] = new.pop_time + new.invisible_time


async def acknowledge(link: Link, history: PopHistory, receipt: PopReceipt, body: str) -> None:
    """Acknowledge a message."""
    history.asked.add(body)
    answer = await ack(link, receipt)
    assert answer.code == ResponseCode.SUCCESS, f"{body}: {answer.remark}"
    history.acked.add(body)


async def drain(unit: BrokerUnit, history: PopHistory, *, wall_ms: int) -> None:
    """Start a broker at a wall time, and acknowledge everything until nothing comes.

    Raises AssertionError: A promise is broken.
    """
    unit.clock.set_wall(wall_ms)
    async with unit:
        link = UnitLink(unit, {})
        quiet_since_ms = link.now_ms()
        while link.now_ms() - quiet_since_ms < QUIET_MS:
            answer = await link.ask(RequestCode.POP_MESSAGE, pop_header(TOPIC, invisible_time=INVISIBLE_MS))
            for item in popped(answer):
                quiet_since_ms = link.now_ms()
                await acknowledge(link, history, item.receipt, history.came(item))
            await asyncio.sleep(POLL_S)
        await link.close()
    lost = history.stored - history.asked
    assert not lost, f"stored, not acknowledged, and lost: {sorted(lost)}"
