"""Check points: which messages of a pop are done, one by one and many at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.pop.checkpoints import CheckPoint, CheckPointTable
from services.broker.pop.records import CheckPointKey

offset_lists = st.lists(st.integers(0, 60), min_size=1, max_size=32, unique=True).map(sorted)


def make(offsets: list[int]) -> CheckPoint:
    return CheckPoint(CheckPointKey("T", "g", 0, offsets[0], 1_000), offsets, 60_000, 3)


@given(offset_lists, st.integers(-1, 61))
def test_a_message_has_the_bit_of_its_place(offsets: list[int], offset: int) -> None:
    bit = make(offsets).bit(offset)
    assert bit == (1 << offsets.index(offset) if offset in offsets else 0)


@given(offset_lists, st.lists(st.integers(-1, 61), max_size=20), st.lists(st.integers(-1, 61), max_size=20))
def test_many_messages_at_once_are_taken_as_one_by_one(offsets: list[int], first: list[int], second: list[int]) -> None:
    tables = CheckPointTable(), CheckPointTable()
    points = make(offsets), make(offsets)
    for table, point in zip(tables, points, strict=True):
        table.add(point)
    for asked in (first, second):
        expected = []
        for offset in asked:
            if points[1].has(offset):
                tables[1].mark(points[1], offset)
                expected.append(offset)
        assert tables[0].take(points[0], asked) == expected
        assert points[0].left == points[1].left
        assert tables[0].in_flight == tables[1].in_flight == len(points[1].left_offsets())
        assert len(tables[0]) == len(tables[1]) == bool(points[1].left)


def test_a_message_that_is_none_of_the_check_point_can_not_be_marked() -> None:
    with pytest.raises(AssertionError):
        make([4, 6]).mark(5, done=True)
