"""Live tails: pacing, skipping, and what a client may not do with them."""

from typing import Any

import pytest

from gantry.model.message import MessageQueue
from services.gateway.ws.effects import Leave
from services.gateway.ws.tail import BEHIND_MAX, TailSubscription
from services.gateway.ws.tailing import FOLLOW_MS
from tests.support.pulledrecords import pulled
from tests.unit.services.gateway.ws.peers import Peer, Service
from tests.unit.services.gateway.ws.streams import Stream, queue


def sent(frames: list[dict[str, Any]]) -> list[int]:
    """Return the offsets of the messages in some frames."""
    messages = [message for frame in frames if frame["type"] == "messages" for message in frame["messages"]]
    return [int(message["queue_offset"]) for message in messages]


def tick(stream: Stream) -> list[dict[str, Any]]:
    """Let a second pass."""
    stream.now_ms += 1_000
    return stream.take(stream.session.tick(overdue_before_ms=lambda _: 0, now_ms=stream.now_ms))


def test_nothing_is_in_flight_or_committed_and_only_credit_frames_add_credit() -> None:
    stream = Stream()
    tail = stream.tail({queue(): 0}, credit={"messages": 5, "bytes": 1_000_000})
    assert sent(stream.pull(tail, tail.feeds[queue()], pulled(range(3)), 3)) == [0, 1, 2]
    assert (tail.in_flight, tail.credit_messages, list(stream.session.commits())) == (0, 2, [])
    frames = stream.pull(tail, tail.feeds[queue()], pulled(range(3, 8)), 8)
    assert sent(frames) == [3, 4]
    assert [frame["reason"] for frame in frames if frame["type"] == "state"] == ["no_credit"]
    assert sent(stream.say(type="credit", subscription=tail.name, messages=2, bytes=1_000_000)) == [5, 6]


def test_the_rate_holds_messages_back_until_the_next_second() -> None:
    stream = Stream()
    tail = stream.tail({queue(): 0}, rate_per_s=3)
    frames = stream.pull(tail, tail.feeds[queue()], pulled(range(8)), 8)
    assert sent(frames) == [0, 1, 2]
    assert not any(frame["type"] == "state" for frame in frames), "the rate is no lack of credit"
    assert sent(tick(stream)) == [3, 4, 5]
    assert sent(tick(stream)) == [6, 7]


def test_a_pull_asks_for_no_more_than_the_share_of_a_second() -> None:
    stream = Stream()
    tail = stream.tail({queue(0): 0, queue(1): 0}, rate_per_s=10)
    assert stream.order(tail, tail.feeds[queue(0)]).messages_max == 5


@pytest.mark.parametrize("held_back", ["rate", "credit", "pause", "client"])
def test_a_tail_that_is_held_back_goes_on_at_the_newest_messages_and_says_so(held_back: str) -> None:
    stream = Stream()
    credit = {"messages": 100 if held_back == "credit" else 2_000, "bytes": 10_000_000}
    tail = stream.tail({queue(): 0}, rate_per_s=100 if held_back == "rate" else 1_000, credit=credit)
    tail.rate_per_s = 100
    if held_back == "pause":
        stream.say(type="pause", subscription=tail.name)
    elif held_back == "client":
        stream.session.delivery.block()
        tick(stream)
    else:
        stream.pull(tail, tail.feeds[queue()], pulled(range(100)), 100)
    at = tail.feeds[queue()].next_offset
    assert tail.skip_target(queue(), at, at + 100, at + 200) is None, "2 s of the rate may wait"
    target = tail.skip_target(queue(), at, at + 100, at + 201)
    assert target == at + 101
    tail.note_skipped(target - at)
    [assigned] = stream.take(stream.session.moved(tail, tail.feeds[queue()], target))
    assert assigned["queues"][0]["next_offset"] == str(target)
    [told] = [frame for frame in tick(stream) if frame.get("reason") == "skipped"]
    assert told["skipped"] == "101"
    assert not [frame for frame in tick(stream) if frame.get("reason") == "skipped"], "it is said once"


def test_a_tail_that_nothing_holds_back_may_lag_behind_its_broker() -> None:
    stream = Stream()
    tail = stream.tail({queue(): 0}, rate_per_s=100)
    assert tail.skip_target(queue(), 0, 256, BEHIND_MAX) is None
    assert tail.skip_target(queue(), 0, 256, BEHIND_MAX + 1) == BEHIND_MAX + 1 - 100


def test_messages_of_the_past_are_never_skipped() -> None:
    stream = Stream()
    assert stream.say(type="subscribe", mode="tail", topic="T", rate_per_s=10, from_="first") == []
    tail = stream.effects.pop().subscription  # type: ignore[union-attr]
    assert isinstance(tail, TailSubscription)
    stream.take(stream.session.joined(tail, 1))
    stream.take(stream.session.assigned(tail, [(queue(), 0)], ()))
    tail.is_held_back = True
    assert tail.skip_target(queue(), 0, 10, 1_000_000) is None
    assert tail.skip_target(queue(), 1_000, 1_010, 1_010) is None, "it has reached the end once"
    assert tail.skip_target(queue(), 1_010, 1_020, 1_100) == 1_090


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"group": "G"}, "/group"),
        ({"order": "orderly"}, "/order"),
        ({"max_reconsume_times": 3}, "/max_reconsume_times"),
        ({"rate_per_s": 10_001}, "/rate_per_s"),
        ({"rate_per_s": 0}, "/rate_per_s"),
        ({"from": "tomorrow"}, "/from"),
        ({"mode": "clustering"}, "/group"),
        ({"mode": "clustering", "group": "G", "rate_per_s": 5}, "/rate_per_s"),
    ],
)
def test_fields_that_do_not_fit_the_mode_are_refused(fields: dict[str, Any], field: str) -> None:
    [error] = Stream().say(type="subscribe", **{"mode": "tail", "topic": "T", **fields})
    assert (error["problem"]["status"], error["problem"]["field"]) == (400, field)


def test_a_tail_needs_the_right_to_read_the_topic() -> None:
    [error] = Stream().say(type="subscribe", mode="tail", topic="secret")
    assert error["problem"]["status"] == 403


@pytest.mark.parametrize("kind", ["ack", "nack"])
def test_receipts_of_a_tail_are_refused(kind: str) -> None:
    stream = Stream()
    tail = stream.tail({queue(): 0})
    [batch] = stream.pull(tail, tail.feeds[queue()], pulled(range(3)), 3)
    [error] = stream.say(type=kind, subscription=tail.name, receipts=[batch["receipt"]])
    assert error["problem"]["status"] == 409


def test_several_tails_and_a_group_of_one_topic_do_not_touch_each_other() -> None:
    stream = Stream()
    first, second = stream.tail({queue(): 0}), stream.tail({queue(): 0})
    member = stream.subscribe({queue(): 0})
    stream.say(type="unsubscribe", subscription=first.name)
    [leave] = stream.effects
    assert isinstance(leave, Leave)
    assert set(stream.session.subscriptions) == {second.name, member.name}
    assert member.has_retries
    assert not second.has_retries


async def tailing(service: Service, **fields: Any) -> Peer:
    peer = await Peer(service).welcomed()
    peer.say(type="subscribe", id=1, mode="tail", topic="T", **fields)
    return peer


async def test_new_messages_of_all_queues_arrive_and_new_queues_are_followed() -> None:
    service = Service()
    peer = await tailing(service)
    assert (await peer.frame())["type"] == "subscribed"
    [assigned] = await peer.frames_until("assigned")
    assert assigned["queues"] == [{"broker": "broker-a", "queue_id": 0, "next_offset": "10"}]
    service.tails.ends[queue()] = 12
    assert sent(await peer.frames_until("messages")) == [10, 11]
    service.tails.ends[queue(1)] = 2
    frames = await peer.frames_until("messages")
    assert [len(frame["queues"]) for frame in frames if frame["type"] == "assigned"] == [2]
    assert sent(frames) == [0, 1]
    await peer.hang_up()


async def test_a_tail_whose_brokers_are_all_away_is_refused_and_one_of_two_is_followed_later() -> None:
    service = Service()
    service.tails.failing = {"broker-a"}
    peer = await tailing(service)
    error = await peer.frame()
    assert (error["type"], error["id"], error["problem"]["status"]) == ("error", 1, 503)
    service.tails.ends[MessageQueue("T", "broker-b", 0)] = 3
    peer.say(type="subscribe", id=2, mode="tail", topic="T")
    first = (await peer.frames_until("assigned"))[-1]
    assert [each["broker"] for each in first["queues"]] == ["broker-b"]
    service.tails.failing = set()
    later = (await peer.frames_until("assigned"))[-1]
    assert [each["broker"] for each in later["queues"]] == ["broker-a", "broker-b"]
    await peer.hang_up()


async def test_a_deleted_topic_ends_the_tail_in_our_words() -> None:
    service = Service()
    peer = await tailing(service)
    await peer.frames_until("assigned")
    service.tails.is_deleted = True
    error, state = (await peer.frames_until("state"))[-2:]
    assert (error["subscription"], error["problem"]["type"]) == ("s1", "https://gantry.dev/problems/unknown-topic")
    assert (state["subscription"], state["reason"]) == ("s1", "unsubscribed")
    peer.say(type="pause", id=2, subscription="s1")
    assert (await peer.frame())["problem"]["status"] == 404
    await peer.hang_up()


async def test_a_topic_that_does_not_exist_is_refused() -> None:
    peer = await Peer(Service()).welcomed()
    peer.say(type="subscribe", id=1, mode="tail", topic="NONE")
    error = await peer.frame()
    assert (error["id"], error["problem"]["status"]) == (1, 404)
    await peer.hang_up()


async def test_a_slow_tail_skips_and_counts_over_the_wire() -> None:
    service = Service()
    peer = await tailing(service, rate_per_s=2)
    await peer.frames_until("assigned")
    service.tails.ends[queue()] = 1_000
    frames = await peer.frames_until("state")
    assert sent(frames) == [10, 11, 998, 999], "it goes on at the newest messages"
    assert (frames[-1]["reason"], frames[-1]["skipped"]) == ("skipped", "986")
    await peer.hang_up()


def test_new_queues_are_looked_for_more_often_than_the_contract_says() -> None:
    assert FOLLOW_MS * 1.5 <= 10_000
