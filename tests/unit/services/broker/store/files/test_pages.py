"""Bytes that can be read without waiting for the disk: runs of pages, cached blocks of files, and guarded attempts."""

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.store.errors import StoreReadError
from services.broker.store.files.coldreads import AHEAD_BYTES, GAP_BYTES_MAX, ColdRead, plan
from services.broker.store.files.mappedfile import MappedFile
from services.broker.store.files.pages import (
    CHUNK_BYTES,
    RUNS_MAX,
    CachedRanges,
    MissingRange,
    NotInMemoryError,
    Pages,
    ReadBlocks,
)
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock

START = 1 << 30


class Place:
    """A file of 4 MiB that begins at 1 GiB of its sequence."""

    def __init__(self, *rules: FaultRule) -> None:
        self.files = MemFileSystem(FakeClock())
        self.faulty = FaultFileSystem(self.files, *rules)
        self.file = MappedFile(START, self.faulty.create("/a", 4 << 20))
        self.file.file.write(0, [bytes(range(256)) * (16 << 10)])
        self.pages = Pages()
        self.asked: list[tuple[int, int]] = []

    def attempt(self, *ranges: tuple[int, int], blocks: ReadBlocks | None = None) -> list[bytes]:
        def operation() -> list[bytes]:
            return [self.pages.read(self.file, START + at, size) for at, size in ranges]

        return self.pages.attempt(operation, blocks or ReadBlocks())

    def read(self, *ranges: tuple[int, int]) -> ColdRead:
        return ColdRead([MissingRange(self.file, START + at, size) for at, size in ranges])


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=30))
def test_runs_contain_exactly_the_added_ranges(added: list[tuple[int, int]]) -> None:
    runs, held = CachedRanges(), set()
    for low, size in added:
        run = runs.add(low, low + size)
        held |= set(range(low, low + size))
        assert run[0] <= low < low + size <= run[1]
        assert set(range(*run)) <= held
    for position in range(90):
        low, high = runs.find(position)
        assert (low <= position < high) is (position in held)
        assert set(range(low, high)) <= held


def test_a_hot_range_is_read_and_its_chunk_is_requested_once() -> None:
    place = Place()
    asked: list[int] = []
    ask = place.file.file.cached_end
    place.file.file.cached_end = lambda at, end: asked.append(at) or ask(at, end)  # type: ignore[method-assign]
    assert place.attempt((1000, 4), (5000, 2)) == [bytes([232, 233, 234, 235]), bytes([136, 137])]
    assert place.attempt((CHUNK_BYTES - 2, 2)) == [bytes([254, 255])]
    assert len(asked) == 2  # The range, then its chunk.
    place.pages.tick()
    place.attempt((1000, 4))
    assert len(asked) == 4


def test_a_cold_range_is_reported_and_its_map_is_not_touched() -> None:
    place = Place()
    place.files.drop_from_memory("/a")
    with pytest.raises(NotInMemoryError) as missed:
        place.attempt((1000, 4))
    assert missed.value.missing == [MissingRange(place.file, START + 1000, 4)]
    assert place.files.cold_touches == []
    assert place.pages.misses == 1
    read = place.read((1000, 4))
    read.run(place.faulty)
    blocks = ReadBlocks()
    read.add_to(blocks)
    assert place.attempt((1000, 4), (1001, 2), blocks=blocks) == [bytes([232, 233, 234, 235]), bytes([233, 234])]
    assert place.files.cold_touches == []


def test_noted_cold_pages_fail_the_attempt_at_its_end_even_if_it_raises() -> None:
    place = Place()
    place.files.drop_from_memory("/a")

    def operation() -> None:
        for at in (0, 100):
            try:
                place.pages.read(place.file, START + at, 10)
            except NotInMemoryError as error:
                place.pages.note(error)
        raise ValueError("made of what it could not see")

    with pytest.raises(NotInMemoryError) as missed:
        place.pages.attempt(operation)
    assert [part.at - START for part in missed.value.missing] == [0, 100]
    assert place.pages.attempt(lambda: 5) == 5  # Nothing is left of the previous attempt.


def test_outside_an_attempt_the_kernel_is_not_asked() -> None:
    place = Place()
    place.files.cold.add("/a")
    assert place.pages.read(place.file, START, 3) == bytes([0, 1, 2])
    assert place.files.cold_touches == ["/a"]


def test_runs_of_a_file_have_a_limit() -> None:
    runs = CachedRanges()
    for number in range(RUNS_MAX):
        runs.add(number * 10, number * 10 + 1)
    assert len(runs) == RUNS_MAX
    place = Place()
    place.pages._runs[place.file] = runs
    place.attempt((3 << 20, 1))
    assert len(place.pages._runs[place.file]) == 1


def test_close_ranges_are_read_together_and_distant_ones_apart() -> None:
    place = Place()
    pieces = plan(
        MissingRange(place.file, START + at, size)
        for at, size in ((90_000, 10), (0, 100), (150, 50), (100 + GAP_BYTES_MAX + 100, 10), (150, 50))
    )
    assert [(piece.at - START, piece.end - START) for piece in pieces] == [
        (0, 100 + GAP_BYTES_MAX + 110),
        (90_000, 90_010),
    ]
    assert len(pieces[0].wanted) == 3


def test_only_a_dense_run_is_read_ahead() -> None:
    place = Place()
    for ranges in (
        [(0, 4000)],
        [(at, 100) for at in range(0, 8000, 1000)],
        [(0, 10), (10, 10), (1 << 20, 10), (20, 10)],
    ):
        place.read(*ranges).run(place.faulty)
    assert place.files.advised == []
    place.read(*((at, 1000) for at in range(0, 8000, 1000))).run(place.faulty)
    place.read(*((at, 1000) for at in range((4 << 20) - 8000, 4 << 20, 1000))).run(place.faulty)  # No range follows it.
    assert place.files.advised == [("/a", 8000, AHEAD_BYTES)]


def test_ranges_of_a_file_that_is_gone_when_it_is_read_are_unreadable() -> None:
    place = Place()
    place.files.drop_from_memory("/a")
    read = place.read((0, 10), (20, 10))
    assert place.file.close(), "a waiting read holds no descriptor"
    place.files.remove("/a")
    read.run(place.faulty)
    assert read.unreadable == [], "the disk has no fault"
    blocks = ReadBlocks()
    read.add_to(blocks)
    with pytest.raises(StoreReadError, match="/a can't be read: 10 bytes at 20"):
        place.attempt((20, 10), blocks=blocks)


def test_an_unreadable_range_does_not_affect_other_ranges() -> None:
    place = Place(FaultRule("pread", times=2))  # The whole piece first, then its first range.
    read = place.read((0, 10), (20, 10))
    read.run(place.faulty)
    assert [part.at - START for part in read.unreadable] == [0]
    blocks = ReadBlocks()
    read.add_to(blocks)
    assert place.attempt((20, 10), blocks=blocks) == [bytes(range(20, 30))]
    with pytest.raises(StoreReadError, match="/a can't be read: 10 bytes at 0"):
        place.attempt((0, 10), blocks=blocks)
    place.files.cold.add("/a")
    place.pages.tick()
    with pytest.raises(NotInMemoryError):  # Part of the range may be readable.
        place.attempt((0, 5), blocks=blocks)


def test_an_error_that_is_not_about_the_range_is_raised() -> None:
    place = Place(FaultRule("pread", error=errno.EMFILE))
    with pytest.raises(OSError):
        place.read((0, 10)).run(place.faulty)
