"""The keys of a duplicate window: compared with a table that keeps everything."""

import hashlib
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.duplicates.keytable import KeyTable, Place

START_MS = 1_700_000_000_000


def digest(number: int) -> bytes:
    return number.to_bytes(16)


def add(table: KeyTable, number: int, at_ms: int) -> None:
    table.add(digest(number), number * 100, number % 7, number, at_ms, number % 3)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40), st.booleans()), max_size=300), st.integers(1, 100))
def test_a_key_is_known_exactly_as_long_as_the_window(steps: list[tuple[int, int, bool]], window_ms: int) -> None:
    table, model, now_ms = KeyTable(window_ms, 1_000), dict[int, int](), START_MS
    for number, pause_ms, sweeps in steps:
        now_ms += pause_ms
        if sweeps:
            table.sweep(now_ms, 3)
        first_ms = model.get(number)
        is_known = first_ms is not None and now_ms - first_ms < window_ms
        found = table.find(digest(number), now_ms)
        assert found == (Place(number * 100, number % 7, number, number % 3) if is_known else None)
        if not is_known:
            model[number] = now_ms
            add(table, number, now_ms)


def test_many_keys_are_all_found_after_every_split() -> None:
    table = KeyTable(60_000, 100_000)
    for number in range(3_000):
        add(table, number, START_MS)
        if number % 500 == 0:
            assert all(table.find(digest(known), START_MS) for known in range(number + 1))
    assert table.find(digest(3_000), START_MS) is None
    assert table.count == 3_000


def test_a_digest_across_two_entries_is_not_a_key() -> None:
    table = KeyTable(60_000, 10)
    table.add(bytes(16), 0, 0, 0, 0)
    table.add(bytes(15) + b"\x01", 0, 0, 0, 0)
    assert table.find(bytes(12) + b"\x01\x00\x00\x00", 0) is None


@pytest.mark.parametrize("keys_max", [1, 10, 64, 1_000])
def test_the_newest_keys_are_kept_within_the_limit(keys_max: int) -> None:
    table = KeyTable(10**8, keys_max)
    for number in range(5 * keys_max):
        add(table, number, START_MS + number)
        table.sweep(START_MS + number, 8)
    now_ms = START_MS + 5 * keys_max
    known = [number for number in range(5 * keys_max) if table.find(digest(number), now_ms)]
    assert known == list(range(known[0], 5 * keys_max))
    assert keys_max <= len(known) <= keys_max + keys_max // 32 + 2
    assert table.known_from_ms == START_MS + known[0]
    assert table.forgotten == known[0]


def test_a_lower_limit_forgets_older_keys() -> None:
    table = KeyTable(10**8, 1_000)
    for number in range(900):
        add(table, number, START_MS + number)
    table.limit(100)
    for number in range(900, 1_000):
        add(table, number, START_MS + number)
    assert table.find(digest(850), START_MS + 1_000) is None
    assert table.find(digest(950), START_MS + 1_000) is not None


def test_a_clock_that_is_set_back_makes_no_key_live_longer() -> None:
    table = KeyTable(1_000, 10)
    add(table, 1, START_MS)
    assert table.find(digest(1), START_MS + 1_000) is None
    assert table.find(digest(1), START_MS) is None


def test_keys_from_two_months_ago_are_not_taken_for_new_ones() -> None:
    table = KeyTable(1_000, 10)
    add(table, 1, START_MS)
    table.sweep(START_MS + 5_000, 100)
    add(table, 2, START_MS + (1 << 32) + 500)
    assert table.find(digest(1), START_MS + (1 << 32) + 500) is None


def test_ended_keys_give_their_memory_back() -> None:
    table = KeyTable(1_000, 100_000)
    for number in range(2_000):
        add(table, number, START_MS)
    table.sweep(START_MS + 1_000, 10_000)
    assert table.count == 0
    table.sweep(START_MS + 1_000, 10_000)
    assert (table.buckets_count(), table.known_count()) == (1, 0)


def test_a_key_takes_less_than_64_bytes() -> None:
    table = KeyTable(10**8, 100_000)
    for number in range(50_000):
        table.add(hashlib.md5(digest(number)).digest(), number, 0, number, START_MS)
    size = sum(sys.getsizeof(bucket) + 8 for bucket in table._buckets)
    assert size < 64 * 50_000
