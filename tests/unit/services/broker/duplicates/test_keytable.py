"""The keys of a duplicate window: compared with a table that keeps everything."""

import hashlib
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.broker.duplicates import keytable
from services.broker.duplicates.keytable import KeyTable, Place, wanted_slots

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
            table.sweep(now_ms)
        first_ms = model.get(number)
        is_known = first_ms is not None and now_ms - first_ms < window_ms
        found = table.find(digest(number), now_ms)
        assert found == (Place(number * 100, number % 7, number, number % 3) if is_known else None)
        if not is_known:
            model[number] = now_ms
            add(table, number, now_ms)


def test_many_keys_are_all_found_while_the_table_grows() -> None:
    table = KeyTable(60_000, 100_000)
    for number in range(30_000):
        add(table, number, START_MS)
        if number % 256 in {0, 1}:
            step = 1 + number // 500
            assert all(table.find(digest(known), START_MS) for known in range(number, -1, -step))
    assert all(table.find(digest(known), START_MS) for known in range(30_000))
    assert table.find(digest(30_000), START_MS) is None
    assert table.count == 30_000
    assert 2 * 30_000 <= table.slots_count() <= 1 << 19


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
        table.sweep(START_MS + number)
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


def test_a_sweep_keeps_a_lower_limit_where_nothing_is_added() -> None:
    table = KeyTable(10**8, 10_000)
    for number in range(10_000):
        add(table, number, START_MS + number)
    table.limit(100)
    table.sweep(START_MS + 10_000)
    assert table.count == 100
    assert len(table._chunks) <= 2
    assert table.find(digest(9_899), START_MS + 10_000) is None
    assert table.find(digest(9_900), START_MS + 10_000) is not None


def test_a_removed_key_can_be_used_again() -> None:
    table = KeyTable(10**8, 10_000)
    for number in range(3_000):
        add(table, number, START_MS)
    assert not table.remove(digest(5), 499, 2)  # Its record starts at 500.
    assert not table.remove(digest(5), 500, 1)
    assert not table.remove(digest(3_000), 10**9, 0)
    assert table.remove(digest(5), 500, 2)
    assert not table.remove(digest(5), 500, 2)
    assert table.find(digest(5), START_MS) is None
    assert table.count == 2_999
    table.add(digest(5), 7_777, 1, 2, START_MS)
    assert table.find(digest(5), START_MS) == Place(7_777, 1, 2, 0)
    assert table.remove(digest(2_999), 10**9, 2)
    assert table.count == 2_999


def test_a_removal_frees_the_newest_of_two_places() -> None:
    table = KeyTable(1_000, 10)
    table.add(digest(1), 100, 0, 0, START_MS)
    table.add(digest(1), 200, 0, 1, START_MS + 1_000)
    assert table.remove(digest(1), 200, 0)
    assert table.find(digest(1), START_MS + 1_000) is None


def test_a_clock_that_is_set_back_makes_no_key_live_longer() -> None:
    table = KeyTable(1_000, 10)
    add(table, 1, START_MS)
    assert table.find(digest(1), START_MS + 1_000) is None
    assert table.find(digest(1), START_MS) is None


def test_keys_from_two_months_ago_are_not_taken_for_new_ones() -> None:
    table = KeyTable(1_000, 10)
    add(table, 1, START_MS)
    table.sweep(START_MS + 5_000)
    add(table, 2, START_MS + (1 << 32) + 500)
    assert table.find(digest(1), START_MS + (1 << 32) + 500) is None


def test_ended_keys_give_their_memory_back() -> None:
    table = KeyTable(1_000, 100_000)
    for number in range(20_000):
        add(table, number, START_MS + number // 10_000)
    assert table.slots_count() > 20_000
    table.sweep(START_MS + 1_000)
    assert 10_000 <= table.count < 10_000 + 256
    table.sweep(START_MS + 1_001)
    assert (table.count, table.slots_count(), len(table._chunks)) == (0, 1_024, 1)


def test_a_key_takes_less_than_64_bytes() -> None:
    table = KeyTable(10**8, 100_000)
    for number in range(150_000):
        table.add(hashlib.md5(digest(number)).digest(), number, 0, number, START_MS)
    assert 100_000 <= table.count <= 102_000
    assert size_of(table) < 64 * 100_000


def size_of(table: KeyTable) -> int:
    return sys.getsizeof(table.heads) + sum(
        sys.getsizeof(chunk.data) + sys.getsizeof(chunk.links) + 80 for chunk in table._chunks
    )


@pytest.fixture
def tiny_chunks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"_SHIFT": 2, "_CHUNK": 4, "_IN_CHUNK": 3, "_SLOTS_MIN": 4, "_NUMBER_HIGH": 200}.items():
            patch.setattr(keytable, name, value)
        yield


STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "add", "remove", "sweep", "limit"]), st.integers(0, 400)), max_size=400
)


@pytest.mark.usefixtures("tiny_chunks")
@given(STEPS, st.integers(1, 300), st.integers(20, 100))
def test_it_agrees_with_a_table_that_keeps_everything(
    steps: list[tuple[str, int]], window_ms: int, keys_max: int
) -> None:
    """Chunks of four entries, few slots and low numbers, so that every path is taken often."""
    table, now_ms, added = KeyTable(window_ms, keys_max), START_MS, 0
    known, newest_of, pushed_out = dict[int, int](), dict[int, int](), set[int]()
    for action, number in steps:
        # A higher limit does not bring keys back for which a lower one had no room.
        pushed_out |= {key for key in known if added - newest_of[key] >= keys_max}
        now_ms += number % 7
        key = number % 150
        if action == "sweep":
            table.sweep(now_ms)
        elif action == "limit":
            table.limit(keys_max := 20 + number % 80)
        elif action == "remove":
            place = known.pop(key, None)
            is_known = table.find(digest(key), now_ms) is not None
            assert table.remove(digest(key), 10**9, 0) or not is_known
            assert place is not None or not is_known
        elif table.find(digest(key), now_ms) is None:
            # A key that is not known has ended, or at least `keys_max` newer ones came.
            assert key not in known or now_ms - known[key] >= window_ms or key in pushed_out
            added += 1
            known[key], newest_of[key] = now_ms, added
            pushed_out.discard(key)
            table.add(digest(key), added, 1, added, now_ms)
        else:
            assert now_ms - known[key] < window_ms
            assert table.find(digest(key), now_ms) == Place(newest_of[key], 1, newest_of[key], 0)
    table.sweep(now_ms)
    pushed_out |= {key for key in known if added - newest_of[key] >= keys_max}
    within = [key for key, at_ms in known.items() if now_ms - at_ms < window_ms and key not in pushed_out]
    assert all(table.find(digest(key), now_ms) for key in within)
    assert table.count == sum(chunk_known(table))


def chunk_known(table: KeyTable) -> Iterator[int]:
    """Yield the number of known entries of each chunk, counted one by one."""
    for at, chunk in enumerate(table._chunks):
        start = table._ordinal + at << keytable._SHIFT
        for index in range(min(keytable._CHUNK, table._next - start)):
            physical_offset = keytable._ENTRY.unpack_from(chunk.data, index * keytable._ENTRY_BYTES)[1]
            yield int(start + index >= table.first and physical_offset != keytable._FREED)


@pytest.mark.usefixtures("tiny_chunks")
def test_numbers_begin_again_before_they_are_too_high() -> None:
    table = KeyTable(10**9, 64)
    for number in range(5_000):
        assert table.find(digest(number), START_MS) is None
        add(table, number, START_MS + number)
        assert table.find(digest(max(0, number - 63)), START_MS + number) is not None
        assert table._next < 300
    assert table.forgotten == 5_000 - table.count


@pytest.mark.usefixtures("tiny_chunks")
def test_a_table_shrinks_when_few_keys_are_left() -> None:
    table = KeyTable(1_000, 10_000)
    for number in range(2_000):
        add(table, number, START_MS)
    large = table.slots_count()
    for number in range(2_000, 2_100):
        add(table, number, START_MS + number)
        table.sweep(START_MS + number)
        assert table.find(digest(number), START_MS + number) is not None
    assert table.slots_count() < large / 4


@pytest.mark.parametrize(
    ("slots", "known", "keys_max", "wanted"),
    [
        (1_024, 512, 10**6, 1_024),
        (1_024, 513, 10**6, 8_192),
        (1 << 21, 1_020_000, 10**6, 1 << 21),
        (1 << 19, 300_000, 10**6, 1 << 21),
        (1 << 21, 10_000, 10**6, 1 << 17),
        (1 << 21, 0, 10**6, 1_024),
        (1_024, 2_000, 1, 1_024),
    ],
)
def test_slots_grow_and_shrink_with_the_keys(slots: int, known: int, keys_max: int, wanted: int) -> None:
    assert wanted_slots(slots, known, keys_max) == wanted
    assert wanted_slots(wanted, known, keys_max) == wanted
