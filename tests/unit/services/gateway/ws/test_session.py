"""The session: the effects of each frame, and frames that it must never send."""

from typing import Any

import msgspec
import pytest

from gantry.model.compression import Compression
from gantry.model.group import ConsumeFromWhere
from services.gateway.errors import BROKER_UNAVAILABLE, UNKNOWN_TOPIC, ProblemError
from services.gateway.ws.effects import Close, Join, Leave, Publish, Wake, WakeFeed
from tests.support.pulledrecords import pulled, record
from tests.unit.services.gateway.ws.streams import Stream, queue


def problem_of(frames: list[dict[str, Any]]) -> tuple[int, str]:
    assert [frame["type"] for frame in frames] == ["error"], frames
    problem = frames[0]["problem"]
    return problem["status"], problem["type"].rpartition("/")[2]


def test_the_welcome_comes_first_and_has_the_limits() -> None:
    stream = Stream(batch_max=77)
    (welcome,) = stream.take(stream.session.open())
    assert welcome["type"] == "welcome"
    assert welcome["client_id"] == "127.0.0.1@session-1"
    assert welcome["limits"]["batch_max"] == 77


def test_hello_is_accepted_as_the_first_frame_only() -> None:
    stream = Stream()
    assert stream.say(type="hello", client_name="me") == []
    assert stream.session.client_name == "me"
    assert problem_of(stream.say(type="hello")) == (409, "conflict")
    assert problem_of(Stream().say(type="hello", resume="token")) == (501, "not-implemented")


def test_subscribing_joins_the_group_and_is_answered_after_the_join() -> None:
    stream = Stream()
    assert stream.say(type="subscribe", id="a", group="G", topic="T", filter="AA || UA", from_="first") == []
    join = stream.effects.pop()
    assert isinstance(join, Join)
    assert join.subscription.data.tags_set == {"AA", "UA"}
    assert join.start is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
    assert problem_of(stream.say(type="pause", subscription="s1")) == (404, "not-found")
    assert stream.take(stream.session.joined(join.subscription, join.frame_id)) == [
        {"type": "subscribed", "id": "a", "subscription": "s1"}
    ]
    (assigned,) = stream.take(stream.session.assigned(join.subscription, [(queue(1), 7), (queue(0), 5)], ()))
    assert assigned["queues"] == [
        {"broker": "broker-a", "queue_id": 0, "next_offset": "5"},
        {"broker": "broker-a", "queue_id": 1, "next_offset": "7"},
    ]
    assert isinstance(stream.effects.pop(), Wake)


def test_a_group_is_created_only_with_a_start_position() -> None:
    stream = Stream()
    for fields, may_make in (({}, False), ({"from": "last"}, True), ({"from": "first"}, True)):
        stream.say(type="subscribe", group="G", topic=f"T{fields.get('from')}", **fields)
        join = stream.effects.pop()
        assert isinstance(join, Join)
        assert join.may_make is may_make
    (subscribed,) = stream.take(stream.session.joined(join.subscription, 7, skipped=12))
    assert subscribed == {"type": "subscribed", "id": 7, "subscription": "s3", "skipped": "12"}


def test_a_subscription_with_sql_delivers_what_the_broker_returns_whatever_its_tag() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0}, filter={"sql": "number > 5"})
    assert (subscription.data.sub_string, subscription.data.expression_type) == ("number > 5", "SQL92")
    (frame,) = stream.pull(subscription, subscription.feeds[queue()], pulled([0, 2]), 4)
    assert [message["queue_offset"] for message in frame["messages"]] == ["0", "2"]


def test_an_error_in_sql_names_its_position() -> None:
    stream = Stream()
    answer = stream.say(type="subscribe", id=1, group="G", topic="T", filter={"sql": "a LIKE 'x'"})
    assert answer[0]["problem"]["field"] == "/filter/sql"
    assert "filter/sql: at character 3: LIKE is not supported" in answer[0]["problem"]["detail"]


def test_a_start_position_by_time() -> None:
    stream = Stream()
    stream.say(type="subscribe", group="G", topic="T", from_="2023-11-14T22:13:20.000Z")
    join = stream.effects.pop()
    assert isinstance(join, Join)
    assert (join.start, join.start_at_ms) == (ConsumeFromWhere.CONSUME_FROM_TIMESTAMP, 1_700_000_000_000)


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"mode": "broadcasting"}, 501),
        ({"strategy": "CONSISTENT_HASH"}, 501),
        ({"filter": {"sql": "a >> 1"}}, 400),
        ({"filter": {"sql": "a > 1", "tags": "AA"}}, 400),
        ({"filter": " || "}, 400),
        ({"filter": ""}, 400),
        ({"from": "yesterday"}, 400),
        ({"batch": 1001}, 400),
        ({"topic": "no spaces"}, 400),
        ({"group": "no/slash"}, 400),
        ({"topic": "secret"}, 403),
        ({"group": "secret"}, 403),
        ({"group": "CID_RMQ_SYS_TRANS"}, 403),
    ],
)
def test_invalid_subscriptions_are_refused(fields: dict[str, Any], status: int) -> None:
    stream = Stream()
    answer = stream.say(**{"type": "subscribe", "id": 3, "group": "G", "topic": "T"} | fields)
    assert problem_of(answer)[0] == status
    assert answer[0]["id"] == 3
    assert stream.effects == []
    assert stream.session.subscriptions == {}


def test_one_subscription_for_each_group_and_topic_up_to_a_limit() -> None:
    stream = Stream(subscriptions_max=2)
    stream.subscribe()
    assert problem_of(stream.say(type="subscribe", group="G", topic="T")) == (409, "conflict")
    stream.subscribe(topic="U")
    assert problem_of(stream.say(type="subscribe", group="G", topic="V")) == (429, "too-many")


def test_a_group_that_refuses_the_connection() -> None:
    stream = Stream()
    stream.say(type="subscribe", id="a", group="G", topic="T")
    join = stream.effects.pop()
    assert isinstance(join, Join)
    answer = stream.take(stream.session.join_failed(join.subscription, join.frame_id, ProblemError(UNKNOWN_TOPIC, "T")))
    assert problem_of(answer) == (404, "unknown-topic")
    assert stream.session.joined(join.subscription, join.frame_id) == []
    stream.subscribe()


def test_messages_are_sent_within_credit_and_acks_return_it() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0}, credit={"messages": 3, "bytes": 10**6}, batch=2)
    feed = subscription.feeds[queue()]
    frames = stream.pull(subscription, feed, pulled(range(5)), 5)
    assert [frame["type"] for frame in frames] == ["messages", "messages", "state"]
    assert [[m["queue_offset"] for m in frame["messages"]] for frame in frames[:2]] == [["0", "1"], ["2"]]
    assert (frames[2]["reason"], frames[2]["in_flight"]) == ("no_credit", 3)
    assert stream.session.next_pull(subscription, feed) is None
    frames = stream.say(type="ack", subscription="s1", receipts=[frames[0]["receipt"]], id="k")
    assert [frame["type"] for frame in frames] == ["state", "messages"]
    assert (frames[0]["id"], frames[0]["reason"], frames[0]["in_flight"]) == ("k", "acked", 1)
    assert [m["queue_offset"] for m in frames[1]["messages"]] == ["3", "4"]
    assert [(each.queue, offset) for _, each, offset in stream.session.commits()] == [(queue(), 2)]


def test_bytes_count_against_credit_but_one_message_is_always_sent() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0}, credit={"messages": 100, "bytes": 1})
    feed = subscription.feeds[queue()]
    frames = stream.pull(subscription, feed, pulled(range(3)), 3)
    assert [len(frame.get("messages", ())) for frame in frames] == [1, 0]
    assert frames[1]["credit"] == {"messages": 99, "bytes": 0}
    size = frames[0]["messages"][0]["size"]
    frames = stream.say(type="credit", subscription="s1", bytes=size)
    assert [frame["type"] for frame in frames] == ["state", "messages", "state"]


def test_credit_is_cut_to_its_limit() -> None:
    stream = Stream(credit_messages_max=10, credit_bytes_max=100)
    stream.subscribe(credit={"messages": 50, "bytes": 500})
    (state,) = stream.say(type="credit", subscription="s1", messages=10**12, bytes=10**12, id=1)
    assert (state["credit"], state["reason"], state["id"]) == ({"messages": 10, "bytes": 100}, "credit", 1)


def test_credit_and_messages_in_flight_never_exceed_the_limit() -> None:
    """Credit was limited alone: credit added while messages were in flight went above the limit after their acks."""
    stream = Stream(credit_messages_max=10, credit_bytes_max=100_000)
    subscription = stream.subscribe({queue(): 0}, credit={"messages": 4, "bytes": 100_000})
    feed = subscription.feeds[queue()]
    (sent,) = stream.pull(subscription, feed, pulled(range(4)), 4)
    (state,) = stream.say(type="credit", subscription="s1", messages=10**9, bytes=10**9)
    size_bytes = sum(message["size"] for message in sent["messages"])
    assert (state["in_flight"], state["credit"]) == (4, {"messages": 6, "bytes": 100_000 - size_bytes})
    (state,) = stream.say(type="ack", subscription="s1", receipts=[sent["receipt"]], id=1)
    assert (state["in_flight"], state["credit"]) == (0, {"messages": 10, "bytes": 100_000})
    frames = stream.pull(subscription, feed, pulled(range(4, 30)), 30)
    assert sum(len(frame.get("messages", ())) for frame in frames) == 10
    (state,) = stream.say(type="credit", subscription="s1", messages=1)
    assert (state["in_flight"], state["credit"]["messages"]) == (10, 0)
    stream.take(stream.session.assigned(subscription, (), [queue()]))
    assert (subscription.in_flight, subscription.credit_messages, subscription.credit_bytes) == (0, 10, 100_000)


def test_a_long_ack_is_settled_in_slices() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0}, credit={"messages": 5_000}, batch=1_000)
    frames = stream.pull(subscription, subscription.feeds[queue()], pulled(range(3_500)), 3_500)
    receipts = [message["receipt"] for frame in frames for message in frame["messages"]]
    left = [3_500]
    assert stream.say(type="ack", subscription="s1", id=1, receipts=receipts) == []
    while stream.session.is_acking:
        left.append(subscription.in_flight)
        answer = stream.take(stream.session.continue_ack())
    assert left == [3_500, 2_500, 1_500, 500]
    assert [(frame["type"], frame["id"], frame["in_flight"]) for frame in answer] == [("state", 1, 0)]
    assert stream.session.continue_ack() == []


def test_a_long_ack_ends_with_its_queue_or_its_connection() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0}, credit={"messages": 5_000}, batch=1_000)
    frames = stream.pull(subscription, subscription.feeds[queue()], pulled(range(2_500)), 2_500)
    receipts = [message["receipt"] for frame in frames for message in frame["messages"]]
    stream.say(type="ack", subscription="s1", id=1, receipts=receipts)
    stream.take(stream.session.assigned(subscription, (), [queue()]))
    answer = stream.take(stream.session.continue_ack())
    assert {frame["problem"]["status"] for frame in answer} == {410}
    assert all("of another session" in frame["problem"]["detail"] for frame in answer)
    stream.session.close(1000, "done")
    assert stream.session.is_acking
    assert stream.session.continue_ack() == []
    assert not stream.session.is_acking


def test_a_thousand_refused_receipts_are_answered_in_few_frames() -> None:
    stream = Stream(receipt_errors_max=3)
    stream.subscribe()
    frames = stream.say(type="ack", subscription="s1", id=1, receipts=[f"n-7.{number}" for number in range(1_000)])
    assert [frame["type"] for frame in frames] == ["error"] * 4 + ["state"]
    assert [frame.get("receipt") for frame in frames] == ["n-7.0", "n-7.1", "n-7.2", "n-7.999", None]
    assert "997 more" in frames[3]["problem"]["detail"]


def test_acks_by_message_move_the_commit_point_only_over_acknowledged_messages() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0})
    (frame,) = stream.pull(subscription, subscription.feeds[queue()], pulled(range(4)), 4)
    receipts = [message["receipt"] for message in frame["messages"]]
    assert stream.say(type="ack", subscription="s1", receipts=[receipts[1], receipts[3]]) == []
    assert [offset for _, _, offset in stream.session.commits()] == [0]
    stream.say(type="ack", subscription="s1", receipts=[receipts[0]])
    assert [offset for _, _, offset in stream.session.commits()] == [2]
    stream.say(type="ack", subscription="s1", receipts=[receipts[2]])
    assert [offset for _, _, offset in stream.session.commits()] == [4]


def test_receipts_are_refused_one_by_one() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0})
    (frame,) = stream.pull(subscription, subscription.feeds[queue()], pulled(range(2)), 2)
    good = frame["messages"][0]["receipt"]
    bad = ["", "x", "1.", "n-1.0-", "n-1.0-x", "n-1.0-9", "n-9.0", good, "n-1." + "9" * 100, "\uff11.0"]
    frames = stream.say(type="ack", subscription="s1", receipts=[good, *bad], id=5)
    assert [frame["type"] for frame in frames] == ["error"] * len(bad) + ["state"]
    assert [frame["problem"]["status"] for frame in frames[:-1]] == [400] * 5 + [410] * 3 + [400] * 2
    assert frames[7]["receipt"] == good
    assert all(frame["id"] == 5 for frame in frames)
    assert frames[-1]["in_flight"] == 1


def test_a_receipt_of_another_session_settles_nothing() -> None:
    """Feeds and offsets count alike in all sessions, so a stale receipt once matched another session's messages."""
    earlier, later = Stream(nonce="earlier-"), Stream(nonce="later-")
    frames, subscriptions = [], []
    for stream in (earlier, later):
        subscription = stream.subscribe({queue(): 0})
        subscriptions.append(subscription)
        frames += stream.pull(subscription, subscription.feeds[queue()], pulled(range(4)), 4)
    for receipt in (frames[0]["receipt"], frames[0]["messages"][0]["receipt"]):
        answer = later.say(type="ack", subscription="s1", receipts=[receipt])
        assert problem_of(answer) == (410, "receipt-gone")
    assert subscriptions[1].in_flight == 4
    assert [offset for _, _, offset in later.session.commits()] == [0]
    assert later.say(type="ack", subscription="s1", receipts=[frames[1]["receipt"]]) == []
    assert [offset for _, _, offset in later.session.commits()] == [4]


def test_a_receipt_from_before_an_offset_reset_settles_nothing() -> None:
    """A broker that lost its queue's end gives the same offsets to other messages."""
    stream = Stream()
    subscription = stream.subscribe({queue(): 5})
    feed = subscription.feeds[queue()]
    (before,) = stream.pull(subscription, feed, pulled(range(5, 7)), 7)
    (assigned,) = stream.take(stream.session.moved(subscription, feed, 5))
    assert assigned["queues"][0]["next_offset"] == "5"
    (after,) = stream.pull(subscription, feed, pulled(range(5, 7)), 7)
    answer = stream.say(type="ack", subscription="s1", receipts=[before["messages"][0]["receipt"]])
    assert problem_of(answer) == (410, "receipt-gone")
    assert subscription.in_flight == 2
    stream.say(type="ack", subscription="s1", receipts=[after["receipt"]])
    assert [offset for _, _, offset in stream.session.commits()] == [7]


def test_too_many_receipts() -> None:
    stream = Stream(receipts_max=2)
    stream.subscribe()
    assert problem_of(stream.say(type="ack", subscription="s1", receipts=["1.1"] * 3)) == (413, "too-large")


def test_a_pause_holds_messages_back() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0})
    feed = subscription.feeds[queue()]
    order = stream.session.next_pull(subscription, feed)
    assert order is not None
    assert stream.say(type="pause", subscription="s1", id=1)[0]["reason"] == "paused"
    assert stream.take(stream.session.pulled(subscription, feed, order, pulled([0]), 1, now_ms=1)) == []
    assert stream.session.next_pull(subscription, feed) is None
    frames = stream.say(type="resume", subscription="s1")
    assert [frame["type"] for frame in frames] == ["state", "messages"]


def test_queues_share_credit_in_turn() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(0): 0, queue(1): 0}, credit={"messages": 0}, batch=1)
    for number in (0, 1):
        feed = subscription.feeds[queue(number)]
        subscription.hold(feed, pulled(range(4), queue_id=number), 4)
    frames = stream.say(type="credit", subscription="s1", messages=4)
    assert [frame["messages"][0]["queue_id"] for frame in frames[1:5]] == [0, 1, 0, 1]


def test_receipts_of_a_revoked_queue_are_refused() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(0): 0, queue(1): 5}, credit={"messages": 2})
    feed = subscription.feeds[queue(0)]
    order = stream.session.next_pull(subscription, feed)
    assert order is not None
    (frame, *_) = stream.pull(subscription, feed, pulled(range(3)), 3)
    (assigned,) = stream.take(stream.session.assigned(subscription, (), [queue(0)]))
    assert [each["queue_id"] for each in assigned["queues"]] == [1]
    assert (subscription.credit_messages, subscription.in_flight) == (2, 0)
    answer = stream.say(type="ack", subscription="s1", receipts=[frame["receipt"]])
    assert problem_of(answer) == (410, "receipt-gone")
    assert stream.take(stream.session.pulled(subscription, feed, order, pulled([3]), 4, now_ms=1)) == []
    assert stream.session.next_pull(subscription, feed) is None
    assert stream.session.moved(subscription, feed, 1) == []
    assert stream.session.pull_failed(subscription, feed, ProblemError(UNKNOWN_TOPIC, "T")) == []
    stream.take(stream.session.assigned(subscription, [(queue(0), 0)], [queue(7)]))
    answer = stream.say(type="ack", subscription="s1", receipts=[frame["receipt"]])
    assert problem_of(answer) == (410, "receipt-gone")


def test_a_message_not_acknowledged_in_time_is_sent_again_if_the_order_counts() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0}, order="orderly", credit={"messages": 4})
    feed = subscription.feeds[queue()]
    (first, *_) = stream.pull(subscription, feed, pulled(range(4)), 4)
    stream.say(type="ack", subscription="s1", receipts=[first["messages"][1]["receipt"]])
    assert stream.session.tick(overdue_before_ms=lambda _: stream.now_ms - 1, now_ms=stream.now_ms) == []
    stream.effects.clear()
    stream.take(stream.session.tick(overdue_before_ms=lambda _: stream.now_ms, now_ms=stream.now_ms))
    assert isinstance(stream.effects.pop(), Wake)
    order = stream.session.next_pull(subscription, feed)
    assert order is not None
    assert (order.offset, order.messages_max, order.resend) == (0, 4, True)
    stream.now_ms = 5_000
    (again,) = stream.pull(subscription, feed, pulled(range(2)), 2)
    assert [message["queue_offset"] for message in again["messages"]] == ["0"]
    (again,) = stream.pull(subscription, feed, pulled(range(2, 4)), 4)
    assert [message["queue_offset"] for message in again["messages"]] == ["2", "3"]
    assert again["receipt"] == first["receipt"]
    assert subscription.credit_messages == 1
    assert stream.session.tick(overdue_before_ms=lambda _: 4_999, now_ms=stream.now_ms) == []
    stream.say(type="ack", subscription="s1", receipts=[first["receipt"]])
    assert [offset for _, _, offset in stream.session.commits()] == [4]


def test_overdue_messages_with_compressed_bodies_all_come_again() -> None:
    data = b"".join(record(offset, b"x" * 15_000, compression=Compression.ZLIB) for offset in range(3))
    stream = Stream()
    subscription = stream.subscribe({queue(): 0}, order="orderly")
    feed = subscription.feeds[queue()]
    (first,) = stream.pull(subscription, feed, data, 3)
    stream.session.tick(overdue_before_ms=lambda _: stream.now_ms, now_ms=stream.now_ms)
    (again,) = stream.pull(subscription, feed, data, 3)
    assert [message["queue_offset"] for message in again["messages"]] == ["0", "1", "2"]
    assert (again["messages"], subscription.in_flight) == (first["messages"], 3)


def test_an_overdue_message_that_the_broker_dropped_is_given_up() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0}, order="orderly")
    feed = subscription.feeds[queue()]
    stream.pull(subscription, feed, pulled(range(2)), 2)
    stream.session.tick(overdue_before_ms=lambda _: stream.now_ms, now_ms=stream.now_ms)
    assert stream.pull(subscription, feed, b"", 100) == []
    assert (subscription.in_flight, subscription.credit_messages) == (0, 2_000)
    order = stream.session.next_pull(subscription, feed)
    assert order is not None
    assert (order.offset, order.resend) == (2, False)


def test_an_overdue_message_acked_meanwhile_is_not_sent_again() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0}, order="orderly")
    feed = subscription.feeds[queue()]
    (frame,) = stream.pull(subscription, feed, pulled(range(2)), 2)
    stream.session.tick(overdue_before_ms=lambda _: stream.now_ms, now_ms=stream.now_ms)
    order = stream.session.next_pull(subscription, feed)
    assert order is not None
    stream.say(type="ack", subscription="s1", receipts=[frame["receipt"]])
    assert stream.take(stream.session.pulled(subscription, feed, order, pulled(range(2)), 2, now_ms=1)) == []
    order = stream.session.next_pull(subscription, feed)
    assert order is not None
    assert not order.resend


def test_filtered_messages_move_the_commit_point() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0}, filter="AA")
    feed = subscription.feeds[queue()]
    assert stream.pull(subscription, feed, b"", 10) == []
    assert [offset for _, _, offset in stream.session.commits()] == [10]
    assert stream.pull(subscription, feed, record(10, tag="BB"), 11) == []
    assert [offset for _, _, offset in stream.session.commits()] == [11]


def test_damage_is_reported_and_skipped() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0})
    feed = subscription.feeds[queue()]
    broken = bytearray(record(1, b"good"))
    broken[broken.index(b"good")] ^= 1
    frames = stream.pull(subscription, feed, record(0) + bytes(broken) + record(2), 3)
    assert [frame["type"] for frame in frames] == ["messages", "error"]
    assert "broker broker-a, queue 0, offset 1" in frames[1]["problem"]["detail"]
    frames = stream.pull(subscription, feed, record(3) + record(4)[:-1], 6)
    assert [frame["type"] for frame in frames] == ["messages", "error"]
    order = stream.session.next_pull(subscription, feed)
    assert order is not None
    assert order.offset == 5


def test_a_pull_from_an_outdated_offset_is_ignored() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0})
    feed = subscription.feeds[queue()]
    order = stream.session.next_pull(subscription, feed)
    assert order is not None
    stream.pull(subscription, feed, pulled([0]), 1)
    (assigned,) = stream.take(stream.session.moved(subscription, feed, 50))
    assert assigned["queues"][0]["next_offset"] == "50"
    assert subscription.credit_messages == 2_000
    assert stream.take(stream.session.pulled(subscription, feed, order, pulled([0]), 1, now_ms=1)) == []
    assert [offset for _, _, offset in stream.session.commits()] == [50]


def test_an_unreachable_broker_is_reported_once() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(0): 0, queue(1): 0})
    first, second = (subscription.feeds[queue(number)] for number in (0, 1))
    problem = ProblemError(BROKER_UNAVAILABLE, "broker-a is away")
    error, state = stream.take(stream.session.pull_failed(subscription, first, problem))
    assert (error["subscription"], error["problem"]["status"]) == ("s1", 503)
    assert state["reason"] == "waiting"
    assert stream.session.pull_failed(subscription, first, problem) == []
    assert stream.session.pull_failed(subscription, second, problem) == []
    assert stream.pull(subscription, first, b"", 0) == []
    assert stream.pull(subscription, second, b"", 0)[0]["reason"] == "flowing"


def test_a_full_connection_holds_messages_back() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0})
    feed = subscription.feeds[queue()]
    order = stream.session.next_pull(subscription, feed)
    assert order is not None
    stream.session.delivery.block()
    assert stream.session.next_pull(subscription, feed) is None
    assert stream.take(stream.session.pulled(subscription, feed, order, pulled([0]), 1, now_ms=1)) == []
    (frame,) = stream.take(stream.session.unblock(now_ms=2))
    assert frame["type"] == "messages"
    assert isinstance(stream.effects.pop(), WakeFeed)


def test_unsubscribing_commits_and_leaves() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0})
    (frame,) = stream.pull(subscription, subscription.feeds[queue()], pulled(range(2)), 2)
    stream.say(type="ack", subscription="s1", receipts=[frame["messages"][0]["receipt"]])
    stream.effects.clear()
    (state,) = stream.say(type="unsubscribe", subscription="s1", id=9)
    assert (state["reason"], state["in_flight"], state["id"]) == ("unsubscribed", 0, 9)
    leave = stream.effects.pop()
    assert isinstance(leave, Leave)
    assert leave.commits == [(queue(), 1)]
    assert problem_of(stream.say(type="unsubscribe", subscription="s1")) == (404, "not-found")
    stream.subscribe()


def test_publishing() -> None:
    stream = Stream(publish_messages_max=2, publishes_pending_max=1)
    assert stream.say(type="publish", id=1, topic="T", messages=[{"body": "a"}, 3]) == []
    publish = stream.effects.pop()
    assert isinstance(publish, Publish)
    assert [bytes(item) for item in publish.messages] == [b'{"body":"a"}', b"3"]
    refused = stream.say(type="publish", id=2, topic="T", messages=[{}])
    assert problem_of(refused) == (429, "too-many")
    assert refused[0]["problem"]["outcome"] == "not_stored"
    counts = {"stored": 1, "not_stored": 0, "unknown": 0}
    results = [{"outcome": "stored", "queue_offset": "5"}]
    (answer,) = stream.take(stream.session.publishes.done(publish.frame_id, results, counts))
    assert answer == {"type": "published", "id": 1, "results": results} | counts
    assert problem_of(stream.say(type="publish", topic="T", messages=[{}] * 3)) == (413, "too-large")
    assert problem_of(stream.say(type="publish", topic="secret", messages=[{}])) == (403, "forbidden")
    stream.say(type="publish", id=4, topic="T", messages=[{}])
    for frame in ({"messages": []}, {}, {"messages": [{}], "colour": "red"}):
        (refused,) = stream.say(type="publish", id=3, topic="T", **frame)
        assert (refused["id"], refused["problem"]["status"], refused["problem"]["outcome"]) == (3, 400, "not_stored")
    assert "outcome" not in stream.say(type="pause")[0]["problem"]
    failed = stream.take(stream.session.publishes.failed(4, ProblemError(UNKNOWN_TOPIC, "T")))
    assert (failed[0]["id"], problem_of(failed)) == (4, (404, "unknown-topic"))
    assert stream.session.publishes.pending == 0


@pytest.mark.parametrize(
    ("data", "is_text", "code"),
    [(b"{", True, 4400), (b"[]", True, 4400), (b"{}", False, 4400), (b" " * 101, True, 4429)],
)
def test_a_protocol_violation_ends_the_stream(data: bytes, is_text: bool, code: int) -> None:
    stream = Stream(frame_bytes_max=100)
    stream.subscribe()
    (goodbye,) = stream.take(stream.session.receive(data, is_text=is_text, now_ms=1))
    assert (goodbye["type"], goodbye["retry"]) == ("goodbye", False)
    close = stream.effects.pop()
    assert isinstance(close, Close)
    assert close.code == code


def test_frames_that_are_always_refused_end_the_stream() -> None:
    stream = Stream(refused_frames_max=2)
    stream.subscribe()
    for _ in range(3):
        for _ in range(2):
            assert problem_of(stream.say(type="nonsense")) == (400, "invalid-field")
        stream.say(type="pause", subscription="s1")
    for _ in range(5):
        assert problem_of(stream.say(type="pause", subscription="s9"))[0] == 404
    for _ in range(2):
        stream.say(type="nonsense")
    (goodbye,) = stream.say(type="nonsense")
    assert goodbye["type"] == "goodbye"


def test_a_closed_session_has_no_effects() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0})
    feed = subscription.feeds[queue()]
    order = stream.session.next_pull(subscription, feed)
    assert order is not None
    (goodbye,) = stream.take(stream.session.close(1012, "restart", retry=True, after_ms=500))
    assert goodbye == {"type": "goodbye", "retry": True, "after_ms": 500, "reason": "restart"}
    session = stream.session
    assert session.close(1012, "again") == []
    assert session.receive(b"{", is_text=True, now_ms=1) == []
    assert session.pulled(subscription, feed, order, pulled([0]), 1, now_ms=1) == []
    assert session.next_pull(subscription, feed) is None
    assert session.joined(subscription, msgspec.UNSET) == []
    assert session.assigned(subscription, (), ()) == []
    assert session.moved(subscription, feed, 1) == []
    assert session.pull_failed(subscription, feed, ProblemError(UNKNOWN_TOPIC, "T")) == []
    assert session.publishes.done(1, [], {}) == []
    assert session.publishes.failed(1, ProblemError(UNKNOWN_TOPIC, "T")) == []
    assert session.join_failed(subscription, 1, ProblemError(UNKNOWN_TOPIC, "T")) == []
