"""Promises of consumption retry as a handler sees them: through the client engine and a broker, on virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.client.consumer.rebalance import GroupMember
from gantry.client.consumer.sendback import SendBack
from gantry.client.consumer.starts import Assignment, StartPosition
from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.model.delaylevel import DELAY_LEVELS_MS
from gantry.model.group import ConsumeFromWhere, SubscriptionGroup, parse_tag_expression
from gantry.model.message import Message, MessageQueue, StoredMessage
from gantry.model.record import iter_records
from gantry.remoting.bodies import encode_subscription_group
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.brokerunit import BrokerUnit
from tests.support.unitcluster import engine_on

RETRY, DLQ = "%RETRY%g", "%DLQ%g"
LADDER_MS = DELAY_LEVELS_MS[2:]
TICK_MS = 5_000
SUSPEND_MS = 15_000
AFTERWARDS_S = DELAY_LEVELS_MS[-1] / 1000 + 600


class Seen(NamedTuple):
    """A delivery, as the handler saw it."""

    at_ms: int
    body: bytes
    failures: int
    message_id: str


class Consumer:
    """A consumer of group `g` that calls a handler for each message, and sends the message back if it fails."""

    def __init__(self, engine: ClientEngine, handler: Callable[[StoredMessage], Awaitable[None]]) -> None:
        self._engine = engine
        self._handler = handler
        self._pulls = PullConsumer(engine, "g")
        self._back = SendBack(engine, "g")
        self._next: dict[MessageQueue, int] = {}
        self._loops: dict[MessageQueue, asyncio.Task[None]] = {}
        self.member = GroupMember(
            engine,
            "g",
            [parse_tag_expression(topic, "*") for topic in ("T", RETRY)],
            client_id=engine.client_id,
            on_change=self._on_change,
            commit_point=lambda queue: self._next[queue],
            start=StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
        )

    async def _on_change(self, assigned: Sequence[Assignment], revoked: Sequence[MessageQueue]) -> None:
        for queue in revoked:
            self._loops.pop(queue).cancel()
        for one in assigned:
            self._next[one.queue] = one.next_offset
            self._loops[one.queue] = self._engine.tasks.spawn(self._consume(one.queue))

    async def _consume(self, queue: MessageQueue) -> None:
        while True:
            result = await self._pulls.pull(queue, self._next[queue], suspend_ms=SUSPEND_MS)
            for message in result.messages() if result.status is PullStatus.FOUND else ():
                try:
                    await self._handler(message)
                except ValueError:
                    await self._back.send_back(message, queue.broker_name)
            self._next[queue] = result.next_offset


async def make_group(unit: BrokerUnit) -> None:
    await unit.make_topic("T", queues=2)
    body = encode_subscription_group(SubscriptionGroup("g"))
    answer = await unit.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


async def test_a_handler_that_always_fails_sees_17_deliveries_at_the_stated_gaps_and_never_an_18th() -> None:
    # Slow timers make hours of virtual time short. The broker must not take that for overload.
    async with BrokerUnit(timer_interval_ms_min=TICK_MS, broker_fast_failure_enable=False) as unit:
        await make_group(unit)
        seen: list[Seen] = []

        async def handle(message: StoredMessage) -> None:
            seen.append(Seen(unit.clock.now_ms(), message.body, message.reconsume_times, message.message_id))
            if message.body == b"poison":
                raise ValueError("it always fails")

        async with engine_on(unit) as engine:
            consumer = Consumer(engine, handle)
            await consumer.member.start()
            sent = await Producer(engine, "pg").send(Message("T", b"poison"))
            await Producer(engine, "pg").send(Message("T", b"good"))
            await asyncio.sleep(sum(LADDER_MS) / 1000 + AFTERWARDS_S)
            await consumer.member.close()

        assert [one.body for one in seen if one.body != b"poison"] == [b"good"], "a neighbour waits for nobody"
        deliveries = [one for one in seen if one.body == b"poison"]
        assert [one.failures for one in deliveries] == list(range(17))
        assert {one.message_id for one in deliveries} == {sent.message_id}
        gaps_ms = [after.at_ms - before.at_ms for before, after in pairwise(deliveries)]
        late_ms = [gap_ms - delay_ms for gap_ms, delay_ms in zip(gaps_ms, LADDER_MS, strict=True)]
        assert all(0 <= late <= 3 * TICK_MS for late in late_ms), late_ms
        (letter,) = iter_records(unit.store.get(DLQ, 0, 0, 32).body)
        assert (letter.body, letter.message_id, letter.reconsume_times) == (b"poison", sent.message_id, 17)
