"""Returned messages: they are sent back to their broker, and those that come back are shown with their first topic."""

import asyncio
from typing import Any

import pytest

from gantry.model.message import MessageQueue
from services.gateway.errors import BROKER_UNAVAILABLE, ProblemError
from services.gateway.ws.effects import JoinRetries, Poisoned, Return
from services.gateway.ws.nacking import POISON_FAILURES, RETURNED_AT_ONCE
from services.gateway.ws.subscription import Subscription
from tests.support.pulledrecords import pulled, record
from tests.unit.services.gateway.ws.peers import Peer, Service
from tests.unit.services.gateway.ws.streams import Stream, queue

RETRY = MessageQueue("%RETRY%G", "broker-a", 0)


def concurrent(stream: Stream, messages: int = 4, **fields: Any) -> tuple[Subscription, dict[str, Any]]:
    subscription = stream.subscribe({queue(): 0}, **fields)
    (batch,) = stream.pull(subscription, subscription.feeds[queue()], pulled(range(messages)), messages)
    return subscription, batch


def nack(stream: Stream, *receipts: str, **fields: Any) -> list[dict[str, Any]]:
    return stream.say(type="nack", subscription="s1", receipts=list(receipts), **fields)


def orders_of(stream: Stream) -> list[Return]:
    orders = [effect for effect in stream.effects if isinstance(effect, Return)]
    stream.effects.clear()
    return orders


def order_of(stream: Stream) -> Return:
    (order,) = orders_of(stream)
    return order


def returned(stream: Stream, order: Return, *failed: int) -> list[dict[str, Any]]:
    problem = ProblemError(BROKER_UNAVAILABLE, "broker-a is away")
    return stream.take(stream.session.returned(order, {(order.parts[0].feed, offset): problem for offset in failed}))


def commits(stream: Stream) -> list[int]:
    return [offset for _, _, offset in stream.session.commits()]


def tick(stream: Stream) -> None:
    stream.take(stream.session.tick(overdue_before_ms=lambda _: stream.now_ms - 60_000, now_ms=stream.now_ms))


class TestConcurrent:
    @pytest.mark.parametrize(
        ("fields", "delay_ms"),
        [({}, None), ({"delay": "0s"}, 0), ({"delay": "25s"}, 25_000), ({"delay": "PT1M"}, 60_000)],
    )
    def test_a_message_is_sent_back_and_its_neighbours_are_not(self, fields: dict[str, Any], delay_ms: int) -> None:
        stream = Stream()
        subscription, batch = concurrent(stream)
        assert nack(stream, batch["messages"][0]["receipt"], id=7, **fields) == []
        order = order_of(stream)
        assert (order.parts[0].offsets, order.delay_ms, order.is_dead) == ([0], delay_ms, False)
        assert commits(stream) == [0], "the message is in flight until its broker has it"
        assert subscription.in_flight == 4
        (state,) = returned(stream, order)
        assert (state["id"], state["reason"], state["in_flight"]) == (7, "returned", 3)
        assert state["credit"]["messages"] == 1_997
        assert commits(stream) == [1]

    def test_the_receipt_of_a_frame_returns_what_is_left_of_it(self) -> None:
        stream = Stream()
        _, batch = concurrent(stream)
        stream.say(type="ack", subscription="s1", receipts=[batch["messages"][1]["receipt"]])
        assert nack(stream, batch["receipt"]) == []
        order = order_of(stream)
        assert order.parts[0].offsets == [0, 2, 3]
        assert returned(stream, order) == [], "without an id there is no answer"
        assert commits(stream) == [4]

    def test_a_message_that_is_not_taken_back_stays_in_flight(self) -> None:
        stream = Stream()
        _, batch = concurrent(stream)
        nack(stream, batch["receipt"], id=1)
        error, state = returned(stream, order_of(stream), 2)
        assert (error["id"], error["receipt"]) == (1, batch["messages"][2]["receipt"])
        assert (error["problem"]["status"], error["problem"]["retryable"]) == (503, True)
        assert state["in_flight"] == 1
        assert commits(stream) == [2]
        nack(stream, batch["messages"][2]["receipt"])
        returned(stream, order_of(stream))
        assert commits(stream) == [4]

    def test_wrong_receipts_are_refused_one_by_one(self) -> None:
        stream = Stream()
        _, batch = concurrent(stream)
        receipts = [message["receipt"] for message in batch["messages"]]
        stream.say(type="ack", subscription="s1", receipts=receipts[:1])
        nack(stream, receipts[1])
        stream.effects.clear()
        errors = nack(stream, receipts[0], "?", receipts[1], receipts[2], "n-9.1")
        assert [error["receipt"] for error in errors] == [receipts[0], "?", receipts[1], "n-9.1"]
        assert [error["problem"]["status"] for error in errors] == [410, 400, 410, 410]
        assert order_of(stream).parts[0].offsets == [2]

    @pytest.mark.parametrize(
        ("delay", "reason"), [("soon", "is not a duration"), ("41d", "is longer than"), ("-1s", "is not a duration")]
    )
    def test_a_wrong_delay_returns_nothing(self, delay: str, reason: str) -> None:
        stream = Stream()
        _, batch = concurrent(stream)
        (error,) = nack(stream, batch["receipt"], delay=delay)
        assert (error["problem"]["status"], error["problem"]["field"]) == (400, "/delay")
        assert reason in error["problem"]["detail"]
        assert orders_of(stream) == []
        nack(stream, batch["receipt"])
        assert len(order_of(stream).parts[0].offsets) == 4

    def test_a_nack_of_too_many_messages_returns_nothing(self) -> None:
        stream = Stream()
        subscription = stream.subscribe({queue(): 0}, batch=1_000)
        frames = stream.pull(subscription, subscription.feeds[queue()], pulled(range(1_200)), 1_200)
        (error,) = nack(stream, *(frame["receipt"] for frame in frames))
        assert error["problem"]["status"] == 413
        assert f"more than {RETURNED_AT_ONCE} messages" in error["problem"]["detail"]
        assert orders_of(stream) == []

    def test_a_queue_that_moved_meanwhile_is_left_alone(self) -> None:
        stream = Stream()
        subscription, batch = concurrent(stream)
        nack(stream, batch["receipt"])
        order = order_of(stream)
        stream.take(stream.session.assigned(subscription, [(queue(), 0)], [queue()]))
        assert returned(stream, order) == []
        assert commits(stream) == [0]
        assert subscription.credit_messages == 2_000

    def test_overdue_messages_are_sent_back_once(self) -> None:
        stream = Stream()
        subscription, _ = concurrent(stream)
        stream.now_ms += 59_999
        tick(stream)
        assert orders_of(stream) == []
        stream.now_ms += 1
        tick(stream)
        order = order_of(stream)
        assert (order.parts[0].offsets, order.delay_ms, order.is_overdue) == ([0, 1, 2, 3], None, True)
        tick(stream)
        assert orders_of(stream) == []
        (state,) = returned(stream, order)
        assert (state["reason"], state["in_flight"]) == ("timed_out", 0)
        assert subscription.credit_messages == 2_000
        assert commits(stream) == [4]

    def test_overdue_messages_that_are_not_taken_back_are_sent_again(self) -> None:
        stream = Stream()
        subscription, batch = concurrent(stream)
        stream.now_ms += 60_000
        tick(stream)
        returned(stream, order_of(stream), 0, 1, 2, 3)
        (again,) = stream.pull(subscription, subscription.feeds[queue()], pulled(range(4)), 4)
        assert again["receipt"] == batch["receipt"]


class TestComingBack:
    def test_one_subscription_of_a_group_has_its_retry_topic(self) -> None:
        stream = Stream()
        for number, topic in enumerate(("T", "U"), 1):
            stream.say(type="subscribe", group="G", topic=topic)
            join = stream.effects.pop()
            stream.take(stream.session.joined(join.subscription, join.frame_id))  # type: ignore[union-attr]
            assert [type(effect) for effect in stream.effects] == [JoinRetries], number
        first, second = stream.session.subscriptions.values()
        assert (first.has_retries, second.has_retries) == (True, False)
        stream.effects.clear()
        stream.say(type="unsubscribe", subscription="s1")
        assert stream.effects[-1] == JoinRetries(second), "the next one takes it over"

    def test_a_message_that_comes_back_is_shown_with_its_first_topic_and_its_attempts(self) -> None:
        stream = Stream()
        subscription = stream.subscribe({queue(): 0}, filter="A")
        assert stream.take(stream.session.assigned(subscription, [(RETRY, 0)], ())) == [], "clients see their topics"
        feed = subscription.feeds[RETRY]
        data = b"".join(
            record(number, tag="B", reconsume_times=2, properties={"RETRY_TOPIC": topic, "own": "1"})
            for number, topic in enumerate(("T", "U"))
        )
        (batch,) = stream.pull(subscription, feed, data, 2)
        assert [(one["topic"], one["reconsume_times"]) for one in batch["messages"]] == [("T", 2), ("U", 2)]
        assert batch["messages"][0]["properties"] == {"own": "1"}
        assert batch["subscription"] == "s1"
        stream.say(type="ack", subscription="s1", receipts=[batch["receipt"]])
        assert {feed.queue: offset for _, feed, offset in stream.session.commits()} == {queue(): 0, RETRY: 2}

    async def test_the_stream_joins_the_retry_topic_and_returns_messages(self) -> None:
        service = Service(messages=3)
        peer = await Peer(service).welcomed()
        peer.say(type="subscribe", group="G", topic="T")
        batch = (await peer.frames_until("messages"))[-1]
        await asyncio.sleep(0.1)
        (member,) = service.consumers.members
        (retries,) = service.consumers.retries
        peer.say(type="nack", subscription="s1", id=1, receipts=[batch["messages"][1]["receipt"]], delay="5s")
        assert (await peer.frame())["reason"] == "returned"
        assert member.sent_back == [(1, 5_000, False)]
        member.failures = 1
        peer.say(type="nack", subscription="s1", id=2, receipts=[batch["messages"][0]["receipt"]])
        assert [frame["type"] for frame in await peer.frames_until("state")] == ["error", "state"]
        await peer.hang_up()
        assert member.is_left
        assert retries.is_left


class TestOrderly:
    def test_after_the_last_attempt_a_message_becomes_a_dead_letter_and_its_queue_goes_on(self) -> None:
        stream = Stream()
        subscription, batch = concurrent(stream, order="orderly", batch=1, max_reconsume_times=2)
        feed = subscription.feeds[queue()]
        for attempt in (1, 2):
            assert nack(stream, batch["receipt"]) == []
            assert stream.effects == []
            stream.now_ms += 1_000
            tick(stream)
            (batch,) = stream.pull(subscription, feed, pulled(range(1)), 1)
            assert batch["messages"][0]["reconsume_times"] == attempt
            stream.effects.clear()
        (state,) = nack(stream, batch["receipt"])
        assert (state["reason"], state["poison"]["queue_offset"], state["poison"]["failures"]) == ("poison", "0", 3)
        order = order_of(stream)
        assert (order.is_dead, order.parts[0].offsets) == (True, [0])
        assert order.parts[0].failures == {0: 3}
        assert commits(stream) == [0], "nothing is skipped before its broker has the dead letter"
        returned(stream, order)
        assert commits(stream) == [1]
        (batch,) = stream.pull(subscription, feed, pulled(range(1, 4)), 4)
        assert batch["messages"][0]["queue_offset"] == "1"
        assert batch["messages"][0]["reconsume_times"] == 0

    def test_a_dead_letter_that_is_not_taken_suspends_its_queue(self) -> None:
        stream = Stream()
        subscription, batch = concurrent(stream, order="orderly", max_reconsume_times=0)
        nack(stream, batch["messages"][0]["receipt"])
        (error,) = returned(stream, order_of(stream), 0)
        assert error["problem"]["status"] == 503
        stream.now_ms += 1_000
        tick(stream)
        (again,) = stream.pull(subscription, subscription.feeds[queue()], pulled(range(4)), 4)
        assert len(again["messages"]) == 4

    def test_without_a_limit_a_poison_message_is_never_skipped_but_loud(self) -> None:
        stream = Stream()
        subscription, batch = concurrent(stream, order="orderly", batch=1)
        feed = subscription.feeds[queue()]
        for attempt in range(1, 30):
            frames = nack(stream, batch["receipt"])
            reports = [effect.failures for effect in stream.effects if isinstance(effect, Poisoned)]
            expected = attempt >= POISON_FAILURES
            assert [frame["reason"] for frame in frames] == ["poison"] * expected, attempt
            assert reports == [attempt] * expected
            stream.effects.clear()
            stream.now_ms += 1_000
            tick(stream)
            (batch,) = stream.pull(subscription, feed, pulled(range(1)), 1)
            stream.effects.clear()
        assert commits(stream) == [0]


async def test_a_message_not_acknowledged_in_time_is_sent_back() -> None:
    service = Service(messages=3)
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T")
    await peer.frames_until("messages")
    state = (await peer.frames_until("state"))[-1]
    assert asyncio.get_running_loop().time() >= 60
    assert (state["reason"], state["in_flight"]) == ("timed_out", 0)
    (member,) = service.consumers.members
    assert member.sent_back == [(0, None, False), (1, None, False), (2, None, False)]
    await peer.hang_up()
    assert member.commits[-1] == (0, 3)


async def test_an_orderly_message_not_acknowledged_in_time_is_delivered_again() -> None:
    service = Service(messages=3)
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", group="G", topic="T", order="orderly")
    first = (await peer.frames_until("messages"))[-1]
    again = (await peer.frames_until("messages"))[-1]
    assert again == first
    assert asyncio.get_running_loop().time() >= 60
    await peer.hang_up()
