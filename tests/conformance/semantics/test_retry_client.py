"""Promises of consumption retry as a handler sees them: through the client engine and a broker, on virtual time."""

import asyncio
from itertools import pairwise
from typing import NamedTuple

from gantry.client import Producer, PushConsumer, StartPosition
from gantry.model.delaylevel import DELAY_LEVELS_MS
from gantry.model.group import ConsumeFromWhere, SubscriptionGroup
from gantry.model.message import Message, StoredMessage
from gantry.model.record import iter_records
from gantry.remoting.bodies import encode_subscription_group
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.brokerunit import BrokerUnit
from tests.support.unitcluster import engine_on

DLQ = "%DLQ%g"
LADDER_MS = DELAY_LEVELS_MS[2:]
TICK_MS = 5_000
AFTERWARDS_S = DELAY_LEVELS_MS[-1] / 1000 + 600


class Seen(NamedTuple):
    """A delivery, as the handler saw it."""

    at_ms: int
    body: bytes
    failures: int
    message_id: str
    topic: str


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
            at_ms, failures = unit.clock.now_ms(), message.reconsume_times
            seen.append(Seen(at_ms, message.body, failures, message.message_id, message.topic))
            if message.body == b"poison":
                raise ValueError("it can't be processed")

        async with engine_on(unit) as engine:
            start = StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
            async with PushConsumer(engine, "g", ["T"], handle, start=start) as consumer:
                sent = await Producer(engine, "pg").send(Message("T", b"poison"))
                await Producer(engine, "pg").send(Message("T", b"good"))
                await asyncio.sleep(sum(LADDER_MS) / 1000 + AFTERWARDS_S)
                assert consumer.held_messages == 0

        assert [one.body for one in seen if one.body != b"poison"] == [b"good"], "a neighbour waits for nobody"
        deliveries = [one for one in seen if one.body == b"poison"]
        assert [one.failures for one in deliveries] == list(range(17))
        assert {one.message_id for one in deliveries} == {sent.message_id}
        assert {one.topic for one in deliveries} == {"T"}, "a retry is shown under its first topic"
        gaps_ms = [after.at_ms - before.at_ms for before, after in pairwise(deliveries)]
        late_ms = [gap_ms - delay_ms for gap_ms, delay_ms in zip(gaps_ms, LADDER_MS, strict=True)]
        assert all(0 <= late <= 3 * TICK_MS for late in late_ms), late_ms
        (letter,) = iter_records(unit.store.get(DLQ, 0, 0, 32).body)
        assert (letter.body, letter.message_id, letter.reconsume_times) == (b"poison", sent.message_id, 17)
