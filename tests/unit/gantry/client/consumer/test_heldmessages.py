"""The messages that a push consumer holds: turns, waits and limits."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.client.consumer.heldmessages import HeldMessages, HeldQueue, HoldLimits, Room
from gantry.model.address import Address, pack_host
from gantry.model.message import MessageQueue, StoredMessage
from gantry.model.record import decode_record, encode_record

HOST = pack_host(Address("10.0.0.1", 10911))
LIMITS = HoldLimits(queue_messages_max=8, queue_bytes_max=10_000, queue_span_max=20, messages_max=12, bytes_max=100_000)


def message(offset: int, body: bytes = b"body") -> StoredMessage:
    return decode_record(
        encode_record(0, 0, offset, offset * 100, 0, 1, HOST, 2, HOST, 0, 0, body, b"T", b"", None, 1, False)
    )


def held(*, is_orderly: bool = False, batch_max: int = 1, limits: HoldLimits = LIMITS) -> HeldMessages:
    return HeldMessages(limits, batch_max=batch_max, is_orderly=is_orderly)


def queue_with(messages: HeldMessages, *offsets: int, name: str = "a") -> HeldQueue:
    queue = messages.add_queue(MessageQueue("T", name, 0), 0)
    messages.add(queue, map(message, offsets), max(offsets, default=-1) + 1, now_ms=0)
    return queue


def taken(messages: HeldMessages) -> list[tuple[str, list[int]]]:
    found: list[tuple[str, list[int]]] = []
    while (batch := messages.take()) is not None:
        found.append((batch.held.queue.broker_name, offsets(batch.messages)))
    return found


def offsets(messages: Sequence[StoredMessage]) -> list[int]:
    return [each.queue_offset for each in messages]


def test_queues_take_turns():
    messages = held(batch_max=2)
    queue_with(messages, 0, 1, 2, 3, 4)
    queue_with(messages, 0, 1, 2, name="b")
    assert taken(messages) == [("a", [0, 1]), ("b", [0, 1]), ("a", [2, 3]), ("b", [2]), ("a", [4])]


def test_an_orderly_queue_runs_one_batch_at_a_time():
    messages = held(is_orderly=True)
    queue_with(messages, 0, 1)
    batch = messages.take()
    assert batch is not None
    assert messages.take() is None
    messages.consumed(batch, batch.messages)
    messages.ended(batch)
    assert taken(messages) == [("a", [1])]


def test_a_suspended_queue_waits_and_repeats_its_messages_in_order():
    messages = held(is_orderly=True, batch_max=3)
    queue_with(messages, 0, 1, 2, 3)
    batch = messages.take()
    assert batch is not None
    messages.suspend(batch, batch.messages[1:], until_ms=500)
    messages.ended(batch)
    assert (messages.take(), messages.next_due_ms()) == (None, 500)
    messages.resume(now_ms=499)
    assert messages.take() is None
    messages.resume(now_ms=500)
    assert taken(messages) == [("a", [1, 2, 3])]


def test_a_message_set_aside_lets_the_others_pass_and_holds_the_commit_point():
    messages = held()
    queue = queue_with(messages, 0, 1)
    first, second = messages.take(), messages.take()
    assert first is not None
    assert second is not None
    messages.set_aside(first, first.messages[0], until_ms=5_000)
    messages.consumed(second, second.messages)
    messages.ended(first)
    messages.ended(second)
    assert (queue.running_count, queue.window.commit_point, messages.messages) == (0, 0, 1)
    messages.resume(now_ms=5_000)
    assert taken(messages) == [("a", [0])]


@pytest.mark.parametrize("leaves", [HeldMessages.drop, lambda messages, queue: messages.restart(queue, 0)])
def test_the_result_of_a_batch_of_a_queue_that_left_or_was_reset_changes_nothing(leaves):
    messages = held()
    queue = queue_with(messages, 0, 1, 2)
    batch = messages.take()
    assert batch is not None
    leaves(messages, queue)
    assert not batch.is_current
    assert (messages.messages, messages.bytes) == (0, 0)
    messages.set_aside(batch, batch.messages[0], until_ms=1)
    messages.consumed(batch, batch.messages)
    assert messages.failed(batch, batch.messages[0]) == 0
    messages.ended(batch)
    messages.resume(now_ms=1)
    assert messages.take() is None
    assert (messages.messages, queue.failures) == (0, {})


def test_a_draining_queue_begins_no_batch():
    messages = held()
    queue = queue_with(messages, 0)
    messages.drain([queue])
    assert messages.take() is None


def test_a_full_queue_pulls_again_when_a_quarter_is_free():
    messages = held()
    queue = queue_with(messages, *range(8))
    assert messages.room(queue) is None
    for number in range(2):
        assert not messages.should_pull_again(queue), number
        batch = messages.take()
        assert batch is not None
        messages.consumed(batch, batch.messages)
        messages.ended(batch)
    assert messages.should_pull_again(queue)
    room = messages.room(queue)
    assert room is not None
    assert room.messages == 2


def test_messages_beyond_the_common_limit_are_pulled_again():
    messages = held()
    queue_with(messages, *range(8))
    other = queue_with(messages, *range(8), name="b")
    assert (messages.messages, other.window.next_offset) == (12, 4)
    assert messages.is_full
    assert messages.room(other) is None


def test_a_queue_that_holds_nothing_may_take_one_message_whatever_the_others_hold():
    messages = held()
    queue_with(messages, *range(8))
    queue_with(messages, *range(8), name="b")
    third = messages.add_queue(MessageQueue("T", "c", 0), 0)
    assert messages.room(third) == Room(1, 1)
    messages.add(third, map(message, range(3)), 3, now_ms=0)
    assert (third.window.in_flight_count, third.window.next_offset) == (1, 1)


def test_a_span_that_is_too_long_stops_the_pulls():
    messages = held()
    queue = queue_with(messages, 0, 21)
    assert messages.room(queue) is None
    assert not messages.should_pull_again(queue)


def test_messages_that_the_queue_has_already_are_ignored():
    messages = held()
    queue = queue_with(messages, 0, 1)
    messages.add(queue, map(message, (0, 1, 2)), 2, now_ms=0)
    assert (queue.window.in_flight_count, queue.window.next_offset) == (3, 3)


@given(st.lists(st.sampled_from(["add", "take", "consume", "fail", "time", "restart", "drop"]), max_size=60))
def test_the_counts_are_those_of_the_windows_and_no_message_is_lost(steps):
    messages = held(batch_max=2)
    queue = queue_with(messages)
    running = []
    now_ms = 0
    for step in steps:
        if step == "add" and not queue.is_dropped and messages.room(queue) is not None:
            at = queue.window.next_offset
            messages.add(queue, map(message, (at, at + 1)), at + 3, now_ms=now_ms)
        elif step == "take":
            running += [batch for batch in [messages.take()] if batch is not None]
        elif step in ("consume", "fail") and running:
            batch = running.pop(0)
            for each in batch.messages if step == "fail" else ():
                messages.set_aside(batch, each, until_ms=now_ms + 10)
            if step == "consume":
                messages.consumed(batch, batch.messages)
            messages.ended(batch)
        elif step == "time":
            now_ms += 7
            messages.resume(now_ms=now_ms)
        elif step == "restart" and not queue.is_dropped:
            messages.restart(queue, 5)
        elif step == "drop" and not queue.is_dropped:
            messages.drop(queue)
    waiting = 0 if queue.is_dropped else queue.window.in_flight_count
    assert messages.messages == waiting
    assert queue.running_count == len(running)
    # All messages that do not run come in the end.
    messages.resume(now_ms=now_ms + 10)
    current = sum(len(batch.messages) for batch in running if batch.is_current)
    assert sum(len(found) for _, found in taken(messages)) == waiting - current
