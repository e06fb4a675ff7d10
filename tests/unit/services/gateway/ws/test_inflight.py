"""The in-flight window, against a model that stores messages one by one."""

import random
from collections.abc import Iterator
from typing import Any, SupportsIndex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.ws import inflight
from services.gateway.ws.inflight import NOTHING, Window, WindowRelease


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    """Make a handful of batches fill several blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inflight, "BLOCK_BATCHES_MAX", 2)
        yield


def window_of(*batches: list[int]) -> Window:
    window = Window(0)
    for offsets in batches:
        window.add(offsets, [offset * 10 for offset in offsets], now_ms=offsets[0])
    return window


def test_the_commit_point_is_the_first_unsettled_message() -> None:
    window = window_of([0, 1, 2], [5, 6])
    assert window.settle(1) == WindowRelease(1, 10)
    assert window.commit_point() == 0
    assert window.settle(0) == WindowRelease(1, 0)
    assert window.commit_point() == 2
    assert window.settle(2) == WindowRelease(1, 20)
    assert window.commit_point() == 5
    assert window.settle_batch(5, 6) == WindowRelease(2, 110)
    assert window.commit_point() == 7
    assert window.messages == 0


def test_offsets_that_are_not_in_flight_settle_nothing() -> None:
    window = window_of([3, 5], [9])
    for offset in (0, 4, 7, 10):
        assert window.settle(offset) is NOTHING
    for first, last in ((0, 5), (3, 4), (3, 9), (9, 10)):
        assert window.settle_batch(first, last) is NOTHING
    window.settle(3)
    assert window.settle(3) is NOTHING
    window.settle(5)
    assert window.settle(5) is NOTHING
    assert window.settle_batch(3, 5) is NOTHING


def test_a_batch_settles_its_remaining_messages() -> None:
    window = window_of([1, 2, 3])
    window.settle(2)
    assert window.settle_batch(1, 3) == WindowRelease(2, 40)
    assert window.commit_point() == 4


def test_messages_sent_long_ago_are_overdue() -> None:
    window = window_of([10, 11], [20])
    assert window.find_overdue(sent_until_ms=9) is None
    batch = window.find_overdue(sent_until_ms=10)
    assert batch is not None
    assert (batch.first, batch.last, batch.unsettled()) == (10, 11, [10, 11])
    window.settle(10)
    assert batch.unsettled() == [11]
    window.settle(11)
    assert batch.is_settled


def test_clearing_returns_the_messages_in_flight() -> None:
    window = window_of([1, 2], [3])
    window.settle(1)
    assert window.clear(100) == WindowRelease(2, 50)
    assert window.commit_point() == 100


@given(
    gaps=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=8),
    acks=st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=40),
)
def test_the_window_agrees_with_a_set(gaps: list[list[int]], acks: list[tuple[bool, int]]) -> None:
    window, batches, at = Window(0), [], 0
    for gap in gaps:
        offsets = []
        for skipped in gap:
            at += skipped
            offsets.append(at)
            at += 1
        window.add(offsets, [1] * len(offsets), now_ms=0)
        batches.append(offsets)
    alive = {offset for offsets in batches for offset in offsets}
    for whole, number in acks:
        if whole and batches:
            offsets = batches[number % len(batches)]
            expected = len(alive.intersection(offsets))
            assert window.settle_batch(offsets[0], offsets[-1]).messages == expected
            alive.difference_update(offsets)
        else:
            assert window.settle(number).messages == (number in alive)
            alive.discard(number)
        assert window.messages == len(alive)
        assert window.commit_point() == (min(alive) if alive else at)


class Shifted(list[Any]):
    """A list that counts how many of its items are moved when one is removed."""

    moved = 0

    def __delitem__(self, at: SupportsIndex | slice) -> None:
        assert not isinstance(at, slice)
        Shifted.moved += len(self) - at.__index__()
        super().__delitem__(at)


def count_shifts(holder: Any) -> None:
    """Replace every list of an object, and of the objects in it, by one that counts."""
    for name in holder.__slots__:
        value = getattr(holder, name)
        if isinstance(value, list):
            setattr(holder, name, Shifted(value))
            for item in value:
                if type(item).__module__ == inflight.__name__ and not isinstance(item, inflight.Batch):
                    count_shifts(item)


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize("messages", [1, 3])
def test_acks_in_any_order_cost_the_same_each(order: str, messages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a window of one-message batches, each acknowledgement once moved all later batches."""
    monkeypatch.setattr(inflight, "BLOCK_BATCHES_MAX", 256)
    count, window = 10_000, Window(0)
    for first in range(0, count * messages, messages):
        window.add(range(first, first + messages), [1] * messages, now_ms=0)
    offsets = list(range(count * messages))
    if order == "random":
        random.Random(1).shuffle(offsets)
    elif order == "reverse":
        offsets.reverse()
    count_shifts(window)
    Shifted.moved = 0
    assert all(window.settle(offset).messages == 1 for offset in offsets)
    assert (window.messages, window.commit_point()) == (0, count * messages)
    assert Shifted.moved <= count * 2 * 257


def test_the_search_for_overdue_batches_skips_young_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    window = Window(0)
    for first in range(10):
        window.add([first], [1], now_ms=first)
    first_batch = window.find_overdue(sent_until_ms=0)
    assert first_batch is not None
    first_batch.sent_at_ms = 100
    assert window.find_overdue(sent_until_ms=0) is None
    overdue = window.find_overdue(sent_until_ms=3)
    assert overdue is not None
    assert overdue.first == 1
    for first in range(1, 10):
        window.settle(first)
    assert window.find_overdue(sent_until_ms=99) is None
    assert window.find_overdue(sent_until_ms=100) is first_batch
