"""The window on a queue: which offset may be committed, and which messages are delivered again."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gantry.client.consumer.processqueue import ProcessQueue


def window(*offsets: int, next_offset: int, start: int = 40) -> ProcessQueue:
    queue = ProcessQueue(start)
    queue.add([(offset, 10) for offset in offsets], next_offset, now_ms=0)
    return queue


def test_an_empty_window_commits_its_next_pull_offset():
    assert ProcessQueue(7).commit_point == 7


def test_out_of_order_acks_commit_up_to_the_first_gap():
    queue = window(40, 41, 42, 45, 46, next_offset=47)
    assert queue.ack(40)
    assert queue.ack(42)
    assert queue.ack(46)
    assert (queue.commit_point, queue.in_flight_count, queue.in_flight_bytes) == (41, 2, 20)
    queue.ack(41)
    assert queue.commit_point == 45
    queue.ack(45)
    assert queue.commit_point == 47


def test_a_pull_without_matches_moves_the_commit_point_of_an_empty_window_only():
    queue = window(40, next_offset=41)
    queue.add([], 60, now_ms=0)
    assert queue.commit_point == 40
    queue.ack(40)
    assert queue.commit_point == 60


def test_a_repeated_or_unknown_ack_differs_from_the_first_one():
    queue = window(40, next_offset=41)
    assert queue.ack(40)
    assert not queue.ack(40)
    assert not queue.ack(99)


def test_room_is_limited_by_messages_bytes_and_span():
    queue = window(40, 41, next_offset=42)
    assert queue.has_room()
    assert not queue.has_room(messages_max=2)
    assert not queue.has_room(bytes_max=20)
    queue.add([(5_000, 1)], 5_001, now_ms=0)
    assert queue.span == 4_960
    assert not queue.has_room()


def test_overdue_messages_are_returned_once_until_they_are_overdue_again():
    queue = window(40, 41, next_offset=42)
    queue.ack(40)
    assert queue.overdue(now_ms=99, timeout_ms=100) == []
    assert queue.overdue(now_ms=100, timeout_ms=100) == [41]
    queue.redelivered(41, now_ms=100)
    queue.redelivered(40, now_ms=100)
    assert queue.overdue(now_ms=150, timeout_ms=100) == []
    assert queue.holds(41)
    assert not queue.holds(40)


def test_a_restart_clears_the_window():
    queue = window(40, 41, next_offset=42)
    queue.restart_at(1_000)
    assert (queue.commit_point, queue.in_flight_count, queue.in_flight_bytes, queue.span) == (1_000, 0, 0, 0)
    assert not queue.ack(40)


def test_offsets_below_the_next_one_raise_an_assertion_error():
    queue = window(40, next_offset=41)
    with pytest.raises(AssertionError):
        queue.add([(40, 1)], 42, now_ms=0)
    with pytest.raises(AssertionError):
        queue.add([], 40, now_ms=0)


class Windows(RuleBasedStateMachine):
    """The model: the set of delivered messages that are not acknowledged."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ProcessQueue(0)
        self.pending: set[int] = set()
        self.committed = 0

    @rule(gaps=st.lists(st.integers(0, 5), max_size=8), tail=st.integers(0, 3))
    def pull(self, gaps: list[int], tail: int) -> None:
        at, found = self.queue.next_offset, []
        for gap in gaps:
            found.append((at + gap, 1))
            at += gap + 1
        self.queue.add(found, at + tail, now_ms=0)
        self.pending.update(offset for offset, _ in found)

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.pending)))
        assert self.queue.ack(offset)
        self.pending.discard(offset)

    @invariant()
    def the_commit_point_never_skips_and_never_goes_back(self) -> None:
        point = self.queue.commit_point
        assert point == (min(self.pending) if self.pending else self.queue.next_offset)
        assert point >= self.committed
        self.committed = point
        assert self.queue.in_flight_count == self.queue.in_flight_bytes == len(self.pending)


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=20, stateful_step_count=20, deadline=None)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 30), unique=True))
def test_acknowledged_in_any_order_all_is_committed(order: list[int]):
    queue = ProcessQueue(0)
    queue.add([(offset, 1) for offset in sorted(order)], 31, now_ms=0)
    for offset in order:
        queue.ack(offset)
    assert queue.commit_point == 31
