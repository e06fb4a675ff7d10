"""Promises of a consumer with a listener: through the client engine and a broker, on virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from gantry.client import DeadLetterError, ListenerSettings, Producer, PushConsumer, ReconsumeLaterError, StartPosition
from gantry.client.engine import ClientEngine
from gantry.model.group import ConsumeFromWhere
from gantry.model.message import Message, MessageQueue, StoredMessage
from gantry.model.record import iter_records
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.brokerunit import BrokerUnit
from tests.support.unitcluster import engine_on

FIRST = StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
DLQ = "%DLQ%g"
TICK_MS = 5_000

Send = Callable[..., Awaitable[None]]


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    # Slow timers make hours of virtual time short. The broker must not take that for overload.
    async with BrokerUnit(timer_interval_ms_min=TICK_MS, broker_fast_failure_enable=False) as unit:
        await unit.make_topic("T", queues=2)
        yield unit


@pytest.fixture
async def engine(unit: BrokerUnit) -> AsyncIterator[ClientEngine]:
    async with engine_on(unit) as engine:
        yield engine


@pytest.fixture
def send(engine: ClientEngine) -> Send:
    async def send(*bodies: str, key: str | None = None) -> None:
        for body in bodies:
            await Producer(engine, "pg").send(Message("T", body.encode()), ordering_key=key)

    return send


def push(engine: ClientEngine, listener: Any = None, **options: Any) -> PushConsumer:
    settings = ListenerSettings(
        **{name: options.pop(name) for name in list(options) if name in ListenerSettings.__dataclass_fields__}
    )
    return PushConsumer(engine, "g", ["T"], listener, start=FIRST, settings=settings, **options)


async def committed(unit: BrokerUnit, topic: str = "T") -> list[int | None]:
    """Return the group's committed offsets in the topic's queues."""
    found: list[int | None] = []
    for queue_id in range(unit.broker.tables.topics.find(topic).read_queue_nums):
        ext = {"topic": topic, "queueId": str(queue_id), "consumerGroup": "g", "setZeroIfNotFound": "false"}
        answer = await unit.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext=ext)
        found.append(int(answer.ext_fields["offset"]) if answer.code == ResponseCode.SUCCESS else None)
    return found


def letters(unit: BrokerUnit) -> list[StoredMessage]:
    found = unit.store.get(DLQ, 0, 0, 32)
    return list(iter_records(found.body)) if found.body else []


async def test_each_message_is_processed_once_and_its_offset_is_committed(unit, engine, send):
    seen: list[str] = []

    async def listen(message: StoredMessage) -> None:
        seen.append(message.body.decode())

    wanted = [f"m{number}" for number in range(100)]
    async with push(engine, listen):
        await send(*wanted)
        await asyncio.sleep(1)
    assert sorted(seen) == sorted(wanted)
    assert sum(await committed(unit)) == 100
    async with push(engine, listen) as again:
        await asyncio.sleep(20)
        assert again.counts.consumed == 0


async def test_the_listener_may_choose_the_delay_and_the_number_of_retries(unit, engine, send):
    at_ms: list[int] = []

    async def listen(message: StoredMessage) -> None:
        at_ms.append(unit.clock.now_ms())
        raise ReconsumeLaterError("busy", delay_ms=60_000)

    async with push(engine, listen, max_reconsume_times=2):
        await send("m")
        await asyncio.sleep(600)
    assert len(at_ms) == 3
    assert all(60_000 <= after - before <= 60_000 + 3 * TICK_MS for before, after in pairwise(at_ms))
    assert [letter.body for letter in letters(unit)] == [b"m"]


async def test_a_message_that_is_rejected_for_good_becomes_a_dead_letter_at_once(unit, engine, send):
    async def listen(message: StoredMessage) -> None:
        raise DeadLetterError("not an order")

    async with push(engine, listen) as consumer:
        await send("m")
        await asyncio.sleep(1)
        assert [letter.body for letter in letters(unit)] == [b"m"]
        await asyncio.sleep(60)
        assert (consumer.counts.failed, consumer.counts.dead) == (1, 1)


async def test_messages_of_a_batch_that_are_not_named_are_consumed(unit, engine, send):
    batches: list[list[str]] = []

    async def listen(messages: Sequence[StoredMessage]) -> None:
        batches.append([message.body.decode() for message in messages])
        bad = [message for message in messages if message.body == b"bad" and not message.reconsume_times]
        if bad:
            raise ReconsumeLaterError(messages=bad)

    await send("a", "bad", "b", key="k")
    async with push(engine, batch_listener=listen, batch_messages_max=8):
        await asyncio.sleep(60)
    assert batches == [["a", "bad", "b"], ["bad"]]
    assert sum(await committed(unit)) == 3


async def test_a_call_that_takes_too_long_is_cancelled_and_its_message_comes_again(unit, engine, send):
    ended: list[str] = []

    async def listen(message: StoredMessage) -> None:
        try:
            if not message.reconsume_times:
                await asyncio.sleep(3_600)
        finally:
            ended.append("again" if message.reconsume_times else "first")

    async with push(engine, listen, consume_timeout_ms=2_000) as consumer:
        await send("m")
        await asyncio.sleep(2.1)
        assert ended == ["first"]
        await asyncio.sleep(30)
        assert ended == ["first", "again"]
        assert (consumer.counts.timed_out, consumer.counts.consumed) == (1, 1)


async def test_a_listener_that_ignores_its_cancellation_keeps_its_place_but_not_its_message(unit, engine, send):
    freed = asyncio.Event()
    calls: list[int] = []

    async def listen(message: StoredMessage) -> None:
        calls.append(message.reconsume_times)
        while not message.reconsume_times and not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                continue

    async with push(engine, listen, consume_timeout_ms=2_000, concurrency=2) as consumer:
        await send("m")
        await asyncio.sleep(60)
        assert calls == [0, 1]
        assert consumer.held_messages == 0
        freed.set()
        await asyncio.sleep(1)
        assert consumer.counts.consumed == 1, "the late result does not count"


async def test_no_more_calls_run_at_once_than_allowed_and_queues_take_turns(unit, engine, send):
    running: set[str] = set()
    most = 0
    begun: list[int] = []

    async def listen(message: StoredMessage) -> None:
        nonlocal most
        running.add(message.message_id)
        begun.append(message.queue_id)
        most = max(most, len(running))
        await asyncio.sleep(1)
        running.discard(message.message_id)

    for queue_id in (0, 1):
        for _ in range(20):
            await unit.send(queue_id=queue_id)
    async with push(engine, listen, concurrency=4):
        await asyncio.sleep(15)
    assert (most, len(begun)) == (4, 40)
    assert abs(begun[:20].count(0) - 10) <= 4, "a long queue does not hold up the other one"


async def test_the_offset_is_committed_up_to_the_first_message_that_is_not_done(unit, engine, send):
    slow = asyncio.Event()

    async def listen(message: StoredMessage) -> None:
        if message.body == b"m3":
            await slow.wait()

    await send(*(f"m{number}" for number in range(10)), key="k")
    async with push(engine, listen) as consumer:
        await asyncio.sleep(11)
        assert consumer.counts.consumed == 9
        assert max(await committed(unit)) == 3
        slow.set()
        await asyncio.sleep(6)
        assert max(await committed(unit)) == 10


async def test_close_waits_for_the_calls_that_run_and_begins_no_other(unit, engine, send):
    ended: list[str] = []

    async def listen(message: StoredMessage) -> None:
        await asyncio.sleep(10)
        ended.append(message.body.decode())

    await send(*(f"m{number}" for number in range(8)), key="k")
    consumer = push(engine, listen, concurrency=3)
    await consumer.start()
    await asyncio.sleep(1)
    await consumer.close()
    assert sorted(ended) == ["m0", "m1", "m2"]
    assert max(await committed(unit)) == 3
    await asyncio.sleep(100)
    assert len(ended) == 3


async def test_close_cancels_calls_that_take_too_long_and_does_not_commit_them(unit, engine, send):
    cancelled: list[str] = []

    async def listen(message: StoredMessage) -> None:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            cancelled.append(message.body.decode())
            raise

    await send("m", key="k")
    consumer = push(engine, listen)
    await consumer.start()
    await asyncio.sleep(1)
    await consumer.close(timeout_ms=500)
    assert cancelled == ["m"]
    assert max(await committed(unit)) == 0
    assert consumer.counts.failed == 0, "it comes again at once, and not as a retry"


@pytest.mark.parametrize("cancels", [1, 2])
async def test_a_cancelled_close_ends_all_calls(unit, engine, send, cancels):
    running: list[str] = []

    async def listen(message: StoredMessage) -> None:
        running.append(message.body.decode())
        try:
            await asyncio.sleep(3_600)
        finally:
            running.clear()

    await send("m")
    consumer = push(engine, listen)
    await consumer.start()
    await asyncio.sleep(1)
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(1)
    assert running == ["m"]
    for _ in range(cancels):
        closing.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(closing, return_exceptions=True)
    await asyncio.sleep(0)
    assert running == []
    assert consumer.held_messages == 0


async def group_members(unit: BrokerUnit) -> list[str]:
    answer = await unit.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": "g"})
    return json.loads(answer.body_bytes)["consumerIdList"] if answer.code == ResponseCode.SUCCESS else []


@pytest.mark.parametrize("after_s", [0, 1])
@pytest.mark.parametrize("is_orderly", [False, True], ids=["concurrent", "in order"])
async def test_a_cancelled_close_leaves_the_group(unit, engine, send, after_s, is_orderly):
    async def listen(message: StoredMessage) -> None:
        await asyncio.sleep(3_600)

    async def accept(message: StoredMessage) -> None:
        pass

    await send("m")
    consumer = push(engine, listen, is_orderly=is_orderly)
    await consumer.start()
    await asyncio.sleep(20)
    assert await group_members(unit) == [consumer.client_id]
    closing = asyncio.ensure_future(consumer.close())
    await asyncio.sleep(after_s)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert consumer.held == frozenset()
    for pause_s in (1, 40, 80, 100):
        await asyncio.sleep(pause_s)
        assert await group_members(unit) == []
    async with push(engine, accept, is_orderly=is_orderly) as again:
        await asyncio.sleep(1)
        assert again.counts.consumed == 1


async def test_a_queue_that_moves_loses_no_message_and_repeats_at_most_those_under_way(unit, engine, send):
    seen: dict[str, list[str]] = {"one": [], "two": []}

    def listener(name: str) -> Any:
        async def listen(message: StoredMessage) -> None:
            await asyncio.sleep(0.5)
            seen[name].append(message.body.decode())

        return listen

    wanted = [f"m{number}" for number in range(100)]
    async with push(engine, listener("one"), concurrency=2) as one:
        await send(*wanted)
        await asyncio.sleep(3)
        async with engine_on(unit, seed=8) as other, push(other, listener("two"), concurrency=2) as two:
            await asyncio.sleep(60)
            topics = [{queue for queue in each.held if queue.topic == "T"} for each in (one, two)]
            assert [len(queues) for queues in topics] == [1, 1]
    assert seen["two"]
    assert sorted({*seen["one"], *seen["two"]}) == sorted(wanted)
    repeated = set(seen["one"]) & set(seen["two"])
    # The new member reads the committed offset while the old one still works on two messages.
    assert len(repeated) <= 4, repeated


async def test_results_of_a_queue_that_has_left_are_not_committed(unit, engine, send):
    slow = asyncio.Event()

    async def listen(message: StoredMessage) -> None:
        await slow.wait()

    for number in range(20):
        await unit.send(queue_id=number % 2)
    async with push(engine, listen, revoke_timeout_ms=1_000) as one:
        await asyncio.sleep(1)
        async with engine_on(unit, seed=8) as other, push(other, listen) as two:
            await asyncio.sleep(5)
            (moved,) = [queue.queue_id for queue in two.held if queue.topic == "T"]
            before = (await committed(unit))[moved]
            assert before == 0
            await two.close(timeout_ms=0)
            slow.set()
            await asyncio.sleep(0.2)
            assert one.counts.dropped == 10
            assert (await committed(unit))[moved] == 0


async def test_after_a_reset_the_group_goes_on_at_the_new_offset(unit, engine, send):
    seen: list[str] = []

    async def listen(message: StoredMessage) -> None:
        seen.append(message.body.decode())

    await send(*(f"m{number}" for number in range(10)), key="k")
    async with push(engine, listen) as consumer:
        await asyncio.sleep(6)
        assert len(seen) == 10
        offsets = await committed(unit)
        ext = {
            "topic": "T", "group": "g", "queueId": str(offsets.index(10)), "offset": "4", "timestamp": "-1",
            "isForce": "true",
        }  # fmt: skip
        answer = await unit.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext=ext)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        await asyncio.sleep(6)
        assert sorted(seen[10:]) == [f"m{number}" for number in range(4, 10)]
        assert max(await committed(unit)) == 10
        assert consumer.held_messages == 0


async def test_a_second_consumer_with_the_same_client_id_is_refused_and_does_not_disturb_the_first(unit, engine, send):
    seen: list[str] = []

    async def listen(message: StoredMessage) -> None:
        seen.append(message.body.decode())

    async with push(engine, listen) as first:
        with pytest.raises(Exception, match=r"client_id: .* consumes topic T in group g already"):
            await push(engine, listen).start()
        async with push(engine, listen, client_id="another"):
            await asyncio.sleep(30)
            assert len([queue for queue in first.held if queue.topic == "T"]) == 1
        await asyncio.sleep(30)
        await send("m")
        await asyncio.sleep(1)
        assert seen == ["m"]
        assert MessageQueue("T", "broker-a", 0) in first.held


async def test_a_deleted_group_stays_deleted_under_its_consumer_until_somebody_makes_it_again(
    unit: BrokerUnit, engine: ClientEngine, send: Send
) -> None:
    seen: list[bytes] = []

    async def listen(message: StoredMessage) -> None:
        seen.append(message.body)

    async with push(engine, listen):
        await send("first")
        await asyncio.sleep(2 * TICK_MS / 1000)
        assert seen == [b"first"]
        ext = {"groupName": "g", "cleanOffset": "true"}
        assert (await unit.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext=ext)).code == ResponseCode.SUCCESS
        await send("while it is deleted")
        await asyncio.sleep(90)
        tables = unit.broker.tables
        assert (tables.groups.find("g"), tables.consumers.find("g"), tables.topics.find("%RETRY%g")) == (
            None,
            None,
            None,
        )
        assert tables.offsets.topics_of("g") == []
        body = b'{"groupName":"g"}'
        assert (await unit.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
        await asyncio.sleep(60)
        assert b"while it is deleted" in seen
