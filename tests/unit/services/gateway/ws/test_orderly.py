"""Orderly subscriptions: one batch of a queue at a time, and a returned message suspends its queue."""

import asyncio
from typing import Any

import pytest

from services.gateway.ws.committing import DRAIN_MS, drain
from services.gateway.ws.effects import Join
from services.gateway.ws.feed import Feed
from services.gateway.ws.nacking import RETURNED_AT_ONCE
from services.gateway.ws.subscription import Subscription
from tests.support.pulledrecords import pulled
from tests.unit.services.gateway.ws.streams import Stream, queue


def orderly(stream: Stream, *numbers: int, **fields: Any) -> tuple[Subscription, list[Feed]]:
    fields.setdefault("batch", 2)
    subscription = stream.subscribe({queue(number): 0 for number in numbers or (0,)}, order="orderly", **fields)
    return subscription, list(subscription.feeds.values())


def offsets(frame: dict[str, Any]) -> list[int]:
    assert frame["type"] == "messages", frame
    return [int(message["queue_offset"]) for message in frame["messages"]]


def ack(stream: Stream, *receipts: str) -> list[dict[str, Any]]:
    return stream.say(type="ack", subscription="s1", receipts=list(receipts))


def nack(stream: Stream, *receipts: str, **fields: Any) -> list[dict[str, Any]]:
    return stream.say(type="nack", subscription="s1", receipts=list(receipts), **fields)


def tick(stream: Stream) -> None:
    stream.take(stream.session.tick(overdue_before_ms=lambda _: stream.now_ms - 900_000, now_ms=stream.now_ms))


def problem_of(frames: list[dict[str, Any]]) -> tuple[int, str, str]:
    (error,) = frames
    return error["problem"]["status"], error["problem"]["type"].rpartition("/")[2], error["problem"]["detail"]


def test_the_group_is_joined_as_an_orderly_instance() -> None:
    stream = Stream()
    stream.say(type="subscribe", group="G", topic="T", order="orderly")
    join = stream.effects.pop()
    assert isinstance(join, Join)
    assert join.subscription.is_orderly


def test_the_next_batch_of_a_queue_follows_the_ack_of_the_one_before() -> None:
    stream = Stream()
    subscription, (first, second) = orderly(stream, 0, 1)
    (batch,) = stream.pull(subscription, first, pulled(range(5)), 5)
    assert offsets(batch) == [0, 1]
    (other,) = stream.pull(subscription, second, pulled(range(1)), 1)
    assert offsets(other) == [0], "queues do not wait for each other"
    assert ack(stream, batch["messages"][1]["receipt"]) == []
    (following,) = ack(stream, batch["messages"][0]["receipt"])
    assert offsets(following) == [2, 3]
    (last,) = ack(stream, following["receipt"])
    assert offsets(last) == [4]
    assert stream.session.next_pull(subscription, first) is None, "nothing is pulled while a batch is in flight"
    ack(stream, last["receipt"])
    assert stream.order(subscription, first).offset == 5
    assert [offset for _, feed, offset in stream.session.commits() if feed is first] == [5]


def test_a_returned_message_suspends_its_queue_and_comes_again_first() -> None:
    stream = Stream()
    subscription, (first, second) = orderly(stream, 0, 1)
    (batch,) = stream.pull(subscription, first, pulled(range(5)), 5)
    (other,) = stream.pull(subscription, second, pulled(range(2)), 2)
    ack(stream, batch["messages"][0]["receipt"])
    (state,) = nack(stream, batch["messages"][1]["receipt"], id=1, delay="5s")
    assert (state["type"], state["reason"], state["in_flight"]) == ("state", "suspended", 3)
    assert stream.session.delivery.held_bytes == 0, "a suspended queue leaves the room to others"
    assert ack(stream, other["receipt"]) == []
    stream.now_ms += 4_999
    tick(stream)
    assert stream.session.next_pull(subscription, first) is None
    assert stream.order(subscription, second).offset == 2
    stream.now_ms += 1
    tick(stream)
    order = stream.order(subscription, first)
    assert (order.offset, order.resend) == (0, True)
    (again,) = stream.pull(subscription, first, pulled(range(2)), 2)
    assert (offsets(again), again["receipt"]) == ([1], batch["receipt"])
    tick(stream)
    assert stream.session.next_pull(subscription, first) is None, "it is sent once for each nack"
    assert ack(stream, again["receipt"]) == []
    (following,) = stream.pull(subscription, first, pulled(range(2, 5)), 5)
    assert offsets(following) == [2, 3], "nothing was skipped"


def test_the_default_delay_is_a_second_and_an_ack_ends_the_suspension() -> None:
    stream = Stream()
    subscription, (feed,) = orderly(stream)
    (batch,) = stream.pull(subscription, feed, pulled(range(3)), 3)
    nack(stream, batch["receipt"])
    assert feed.resume_at_ms == stream.now_ms + 1_000
    ack(stream, batch["receipt"])
    (following,) = stream.pull(subscription, feed, pulled(range(2, 3)), 3)
    assert offsets(following) == [2]
    stream.now_ms += 1_000
    tick(stream)
    (again,) = stream.pull(subscription, feed, pulled(range(2, 3)), 3)
    assert offsets(again) == [2]


@pytest.mark.parametrize(
    ("fields", "status", "detail"),
    [
        ({"delay": "9ms"}, 400, "/delay: '9ms' is not within 10 and 30000 ms"),
        ({"delay": "31s"}, 400, "is not within 10 and 30000 ms"),
        ({"delay": "soon"}, 400, "is not a duration"),
        ({"receipts": ["x"] * (RETURNED_AT_ONCE + 1)}, 413, "1001 exceed the limit of 1000"),
        ({"receipts": ["not a receipt"]}, 400, "is not a receipt"),
        ({"receipts": ["n-1.7"]}, 410, "is not in flight here"),
        ({"receipts": ["n-9.0"]}, 410, "is not in flight here"),
        ({"receipts": ["n-1.0-2"]}, 410, "is not in flight here"),
    ],
)
def test_a_bad_nack_is_refused_and_suspends_nothing(fields: dict[str, Any], status: int, detail: str) -> None:
    stream = Stream()
    subscription, (feed,) = orderly(stream)
    (batch,) = stream.pull(subscription, feed, pulled(range(3)), 3)
    frame = {"type": "nack", "subscription": "s1", "receipts": [batch["receipt"]], **fields}
    problem = problem_of(stream.say(**frame))
    assert (problem[0], detail in problem[2]) == (status, True), problem
    assert feed.resume_at_ms is None


def test_a_receipt_that_is_settled_suspends_nothing() -> None:
    stream = Stream()
    subscription, (feed,) = orderly(stream)
    (batch,) = stream.pull(subscription, feed, pulled(range(3)), 3)
    ack(stream, batch["messages"][0]["receipt"])
    assert problem_of(nack(stream, batch["messages"][0]["receipt"]))[0] == 410
    assert feed.resume_at_ms is None


def test_many_bad_receipts_have_one_summary() -> None:
    stream = Stream(receipt_errors_max=2)
    orderly(stream)
    errors = nack(stream, *(f"n-9.{number}" for number in range(5)))
    assert len(errors) == 3
    assert "3 more of this ack" in errors[-1]["problem"]["detail"]


def test_a_queue_that_moves_sends_nothing_more() -> None:
    stream = Stream()
    subscription, (feed,) = orderly(stream)
    (batch,) = stream.pull(subscription, feed, pulled(range(5)), 5)
    feed.is_draining = True
    assert ack(stream, batch["receipt"]) == []
    assert stream.session.next_pull(subscription, feed) is None
    assert feed.to_commit() == 2


async def test_a_moving_queue_waits_for_its_acks_but_not_for_ever() -> None:
    stream = Stream()
    subscription, feeds = orderly(stream, 0, 1)
    (batch,) = stream.pull(subscription, feeds[0], pulled(range(5)), 5)
    loop = asyncio.get_running_loop()
    draining = asyncio.ensure_future(drain(feeds))
    await asyncio.sleep(1)
    assert not draining.done()
    ack(stream, batch["receipt"])
    await draining
    assert loop.time() < 1.1
    stream = Stream()
    subscription, feeds = orderly(stream)
    stream.pull(subscription, feeds[0], pulled(range(5)), 5)
    began = loop.time()
    await drain(feeds)
    assert loop.time() - began == pytest.approx(DRAIN_MS / 1_000)
