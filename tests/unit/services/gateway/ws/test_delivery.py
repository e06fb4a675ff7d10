"""Memory of one connection: subscriptions share it, give it back, and do not wait for each other."""

import pytest

from gantry.model.message import MessageQueue
from services.gateway.ws.delivery import ALLOWANCE_BYTES, PULL_BYTES, SLOW_BYTES
from services.gateway.ws.effects import WakeFeed
from services.gateway.ws.subscription import Subscription
from tests.support.pulledrecords import pulled, record
from tests.unit.services.gateway.ws.streams import Stream, queue

PULLS_MAX = ALLOWANCE_BYTES // PULL_BYTES
COUNT = 1_640
WHOLE = pulled(range(COUNT))
"""A pull of nearly 256 KiB."""
LARGE = record(0, b"x" * (4 << 20))
"""The pull of one message that is larger than the allowance."""


def fill(stream: Stream, subscription: Subscription) -> None:
    """Return as many whole pulls as there is room for."""
    feeds = list(subscription.feeds.values())[:PULLS_MAX]
    orders = [stream.order(subscription, feed) for feed in feeds]
    for feed, order in zip(feeds, orders, strict=True):
        stream.answer(subscription, feed, order, WHOLE, COUNT, is_behind=True)


def woken(stream: Stream) -> list[MessageQueue]:
    found = [each.feed.queue for each in stream.effects if isinstance(each, WakeFeed)]
    stream.effects.clear()
    return found


def test_pulls_that_will_find_messages_share_the_allowance() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(number): 0 for number in range(PULLS_MAX + 2)})
    feeds = list(subscription.feeds.values())
    orders = [stream.session.next_pull(subscription, feed) for feed in feeds]
    assert [order is not None for order in orders] == [True] * PULLS_MAX + [False] * 2
    stream.effects.clear()
    stream.take(stream.session.delivery.ended(feeds[0], has_failed=False))
    assert woken(stream) == [feeds[PULLS_MAX].queue]


def test_a_waiting_pull_takes_no_room_and_is_repeated_if_there_is_none() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(number): 0 for number in range(PULLS_MAX + 1)}, credit={"messages": 0})
    late = subscription.feeds[queue(PULLS_MAX)]
    subscription.credit_messages = 1
    late.is_behind = False
    order = stream.order(subscription, late)
    assert order.waits
    fill(stream, subscription)
    assert stream.answer(subscription, late, order, WHOLE, COUNT) == []
    assert (late.next_offset, late.is_behind, bool(late.held)) == (0, True, False)


@pytest.mark.parametrize("stuck_by", ["credit", "pause"])
def test_a_subscription_without_credit_takes_no_room_from_others(stuck_by: str) -> None:
    stream = Stream()
    stuck = stream.subscribe({queue(number): 0 for number in range(PULLS_MAX)})
    others = {queue(number, "U"): 0 for number in range(2)}
    subscription = stream.subscribe(others, topic="U")
    orders = [(feed, stream.order(stuck, feed)) for feed in stuck.feeds.values()]
    if stuck_by == "credit":
        stuck.credit_messages = 0
    else:
        stuck.is_paused = True
    for feed, order in orders:
        stream.answer(stuck, feed, order, WHOLE, COUNT, is_behind=True)
    assert stuck.held_bytes == PULLS_MAX * len(WHOLE)
    # The stuck subscription leaves enough for one pull.
    first, second = (subscription.feeds[each] for each in others)
    assert stream.session.next_pull(subscription, first) is not None
    assert stream.session.next_pull(subscription, second) is None
    stream.effects.clear()
    stream.take(stream.session.delivery.wake_waiting())
    assert woken(stream) == [second.queue]
    assert stream.session.next_pull(subscription, second) is not None
    assert stuck.held_bytes == 0
    stuck.credit_messages, stuck.is_paused = 2_000, False
    assert [feed.next_offset for feed in stuck.feeds.values()] == [0] * PULLS_MAX


def test_a_hanging_broker_takes_no_room_from_others() -> None:
    stream = Stream()
    hung = {MessageQueue("T", "broker-h", number): 0 for number in range(PULLS_MAX * 3)}
    subscription = stream.subscribe({**hung, queue(0): 0})
    feeds = [subscription.feeds[each] for each in hung]
    under_way = [feed for feed in feeds if stream.session.next_pull(subscription, feed) is not None]
    assert len(under_way) == PULLS_MAX
    assert stream.session.next_pull(subscription, subscription.feeds[queue(0)]) is None
    for feed in under_way:
        stream.take(stream.session.delivery.ended(feed, has_failed=True))
    assert all(stream.session.next_pull(subscription, feed) is not None for feed in feeds)
    assert stream.session.next_pull(subscription, subscription.feeds[queue(0)]) is not None


def test_a_slow_client_keeps_only_its_share_and_continues_at_its_offset() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(number): 0 for number in range(PULLS_MAX)}, credit={"messages": 32})
    fill(stream, subscription)
    held = stream.session.delivery.held_bytes
    assert held > SLOW_BYTES
    stream.take(stream.session.delivery.set_slow(True))
    assert stream.session.delivery.held_bytes <= SLOW_BYTES
    offsets = [feed.next_offset for feed in subscription.feeds.values()]
    sent = [feed.window.position for feed in subscription.feeds.values()]
    assert [offset in (COUNT, at) for offset, at in zip(offsets, sent, strict=True)] == [True] * PULLS_MAX
    stream.say(type="credit", subscription="s1", messages=1_000)
    orders = [stream.session.next_pull(subscription, feed) for feed in subscription.feeds.values()]
    assert [order.bytes_max for order in orders if order is not None] == [SLOW_BYTES]


def test_a_message_larger_than_the_allowance_is_sent() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0})
    feed = subscription.feeds[queue()]
    frames = stream.answer(subscription, feed, stream.order(subscription, feed), LARGE, 1)
    assert [len(message["body"]) for frame in frames for message in frame["messages"]] == [4 << 20]
    assert (feed.next_offset, stream.session.delivery.held_bytes) == (1, 0)


def test_a_large_message_does_not_wait_for_those_without_credit() -> None:
    stream = Stream()
    stuck = stream.subscribe({queue(): 0})
    subscription = stream.subscribe({queue(0, "U"): 0}, topic="U")
    feed, waiting = subscription.feeds[queue(0, "U")], stuck.feeds[queue()]
    order = stream.order(stuck, waiting)
    stuck.credit_messages = 0
    stream.answer(stuck, waiting, order, WHOLE, COUNT)
    frames = stream.answer(subscription, feed, stream.order(subscription, feed), LARGE, 1)
    assert [len(message["body"]) for frame in frames for message in frame["messages"]] == [4 << 20]
    assert (waiting.next_offset, waiting.is_behind) == (0, True), "they are pulled again"


def test_a_pull_of_a_client_that_became_slow_is_not_held() -> None:
    stream = Stream()
    subscription = stream.subscribe({queue(): 0}, credit={"messages": 0})
    feed = subscription.feeds[queue()]
    subscription.credit_messages = 1
    order = stream.order(subscription, feed)
    subscription.credit_messages = 0
    stream.take(stream.session.delivery.set_slow(True))
    stream.answer(subscription, feed, order, WHOLE, COUNT)
    assert (feed.next_offset, stream.session.delivery.held_bytes) == (0, 0)
