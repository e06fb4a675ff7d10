"""IndexFile and IndexService: layout, chains, consecutive files, queries, and files after a crash."""

import json
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry.model.javahash import index_key_hash
from gantry.runtime.openfiles import OpenFiles
from gantry.storeformat.layout import INDEX_HEADER, index_entry_position, index_file_bytes
from services.broker.store.files.coldreads import ColdRead
from services.broker.store.files.pages import NotInMemoryError, Pages, ReadBlocks
from services.broker.store.index import indexrepair
from services.broker.store.index.indexfile import IndexFile
from services.broker.store.index.indexservice import IndexService
from services.broker.store.index.keysearch import KeySearch
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import small_settings
from tests.support.virtualtime import FakeClock

VECTOR = json.loads((Path(__file__).parents[4] / "conformance/golden/vectors.json").read_text())["index"]
T0 = 1_700_000_000_000
ALWAYS = (0, 1 << 62)


def index_file(slots: int = 8, entries: int = 32, files: MemFileSystem | None = None) -> IndexFile:
    files = files or MemFileSystem(FakeClock())
    pooled = OpenFiles(files, 8).adopt(files.create("/x", index_file_bytes(slots, entries), sparse=True))
    return IndexFile("x", pooled, slots=slots, entries=entries)


def content(file: IndexFile) -> bytes:
    return file._pooled.read(0, file._pooled.size_bytes)


def write(file: IndexFile, at: int, data: bytes) -> None:
    file._pooled.write(at, data)


def service(files: MemFileSystem | None = None, clock: FakeClock | None = None) -> IndexService:
    clock = clock or FakeClock(T0)
    return IndexService(OpenFiles(files or MemFileSystem(clock), 8), small_settings(), clock)


def find(index: IndexService, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
    return search(index, index_key_hash(topic, key), count_max, begin_ms, end_ms)


def search(index: Collection[IndexFile], key_hash: int, count_max: int, begin_ms: int, end_ms: int) -> list[int]:
    search = KeySearch(index, Pages(), key_hash, count_max, begin_ms=begin_ms, end_ms=end_ms)
    while not search.is_done:
        search.step(7)
    return list(search.found)


def put(index: IndexService, number: int, *, keys: str = "") -> None:
    index.put("T", f"U{number}", keys, number * 100, T0 + number * 500)


def entry(number: int, *, keys: str = ""):
    return (number * 100, 100, None, number, 0, "T", f"U{number}", keys, T0 + number * 500)


def test_the_bytes_equal_the_vector():
    slots, entries = 5_000_000, 100
    file = index_file(slots, entries)
    key_hash = index_key_hash("TopicTest", "k1")
    assert key_hash == VECTOR["hash"]
    file.put(((key_hash, 4096, VECTOR["header_after_two"]["beginTs"]),))
    file.put(((key_hash, 5000, VECTOR["header_after_two"]["endTs"]),))
    file.write_header()
    memory = file.file.memory
    first = index_entry_position(slots, 1)
    assert memory[0:40].hex() == VECTOR["header_after_two"]["hex"]
    assert first == VECTOR["first_entry_pos"]
    assert memory[first : first + 20].hex() == VECTOR["first_entry_hex"]
    assert memory[first + 20 : first + 40].hex() == VECTOR["second_entry_same_slot"]["hex"]
    assert 40 + VECTOR["slot"] * 4 in (VECTOR["slot_pos"], VECTOR["slot_pos"] + 40)
    assert int.from_bytes(memory[40 + VECTOR["slot"] * 4 : 44 + VECTOR["slot"] * 4]) == 2


def test_chains_are_walked_newest_first():
    file = index_file(slots=2)
    file.put([(hash_, number * 10, T0 + number * 1000) for number, hash_ in enumerate((4, 6, 4, 5, 4))])
    assert search([file], 4, 64, *ALWAYS) == [40, 20, 0]
    assert search([file], 6, 64, *ALWAYS) == [10]
    assert search([file], 5, 64, *ALWAYS) == [30]
    assert search([file], 8, 64, *ALWAYS) == []
    assert search([file], 4, 64, T0 + 1500, T0 + 3000) == [20]


def test_a_circular_chain_ends():
    file = index_file(slots=1)
    file.put([(1, 10, T0), (1, 20, T0), (1, 30, T0)])
    at = index_entry_position(1, 2) + 16
    write(file, at, (3).to_bytes(4))
    assert search([file], 1, 64, *ALWAYS) == [30, 20]


def test_a_full_file_holds_one_entry_less_than_its_name_says():
    index = service()
    for number in range(31):
        put(index, number)
    assert len(index) == 1
    put(index, 31)
    assert [file.count for file in index] == [32, 2]


def test_a_following_file_repeats_the_end_of_the_previous_one():
    index = service()
    for number in range(40):
        put(index, number)
    index.write_headers()
    first, second = index
    assert INDEX_HEADER.unpack(second.file.memory[0:40]) == (T0 + 31 * 500, T0 + 39 * 500, 3100, 3900, 8, 10)
    assert first.end_offset == 3000
    assert index.full_end_at_ms == T0 + 30 * 500
    assert index.last_update == (T0 + 39 * 500, 3900)
    for number in range(40):
        assert find(index, "T", f"U{number}", 64, T0 + number * 500, T0 + number * 500) == [number * 100]


def test_putting_all_equals_putting_one_by_one():
    one, all_ = service(), service()
    entries = [entry(number, keys="k1 k2" if number % 7 == 0 else "") for number in range(100)]
    for number in range(100):
        put(one, number, keys="k1 k2" if number % 7 == 0 else "")
    for start in range(0, 100, 13):
        all_.put_all(entries[start : start + 13])
    one.write_headers()
    all_.write_headers()
    assert [content(file) for file in one] == [content(file) for file in all_]


def test_putting_again_changes_nothing_even_across_the_end_of_a_file():
    index = service()
    for number in range(12):
        put(index, number, keys="a b")
    index.write_headers()
    before = [content(file) for file in index]
    assert len(before) == 2
    for number in range(12):
        put(index, number, keys="a b")
    index.put_all([entry(number, keys="a b") for number in range(12)])
    index.write_headers()
    assert [content(file) for file in index] == before


def test_a_message_with_some_indexed_keys_gets_the_missing_ones():
    index = service()
    put(index, 1)
    index.put("T", "U2", "", 200, T0)
    index.put("T", "U2", "a b", 200, T0)
    assert find(index, "T", "a", 64, *ALWAYS) == [200]
    assert [file.count for file in index] == [5]


def test_a_message_without_keys_is_not_indexed():
    index = service()
    index.put("T", "", "", 100, T0)
    index.put_all([(100, 10, None, 0, 0, "T", "", "", T0)])
    assert len(index) == 0


def test_queries_stop_at_the_count_and_omit_duplicates():
    index = service()
    for number in range(50):
        index.put("T", "", "same same", number * 100, T0 + number)
    assert find(index, "T", "same", 3, *ALWAYS) == [4900, 4800, 4700]
    assert len(find(index, "T", "same", 64, *ALWAYS)) == 50


def test_names_sort_in_creation_order_though_the_clock_goes_back():
    clock = FakeClock(T0)
    index = service(clock=clock)
    for number in range(100):
        put(index, number)
        clock.advance(-5000)
    names = [file.name for file in index]
    assert names == sorted(set(names))
    assert len(names) == 4


def test_files_of_other_sizes_are_kept_until_they_are_not_needed():
    files = MemFileSystem(FakeClock())
    files.make_dirs("/store/index")
    files.create("/store/index/20260101000000000", 777).close()
    files.write("/store/index/20260101000000001", b"")
    files.write("/store/index/notes", b"x")
    index = service(files)
    index.load()
    assert len(index) == 0
    assert list(index.broken) == ["20260101000000000", "20260101000000001"]
    index.repair(0, lambda offset: True, is_synced=True)
    assert len(files.list_dir("/store/index")) == 3
    index.remove_broken()
    assert files.list_dir("/store/index") == ["notes"]


def test_old_files_expire_but_never_the_last_one():
    index = service()
    for number in range(70):
        put(index, number)
    assert [file.start for file in index.expire(3001)] == [0]
    assert len(index.expire(1 << 40)) == 1
    assert len(index) == 1


@pytest.fixture(autouse=True, scope="module")
def _small_pieces():
    """Make a repair cross the borders of its pieces."""
    before = indexrepair.PIECE_ENTRIES, indexrepair.PIECE_SLOTS
    indexrepair.PIECE_ENTRIES, indexrepair.PIECE_SLOTS = 5, 3
    yield
    indexrepair.PIECE_ENTRIES, indexrepair.PIECE_SLOTS = before


@pytest.mark.parametrize("is_synced", [False, True])
def test_repairing_an_intact_file_changes_nothing(is_synced):
    files = MemFileSystem(FakeClock(T0))
    index = service(files)
    for number in range(25):  # The first record lies at offset 0.
        put(index, number)
    index.write_headers()
    (whole,) = [bytes(file.file.memory) for file in index]
    again = crashed(index, files)
    assert again.repair(1 << 40, lambda offset: True, is_synced=is_synced) == 0
    assert [bytes(file.file.memory) for file in again] == [whole]


def crashed(index: IndexService, files: MemFileSystem) -> IndexService:
    again = service(files)
    again.load()
    return again


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_repair_keeps_trusted_entries_and_restores_the_rest(data):
    files = MemFileSystem(FakeClock(T0))
    index = service(files)
    count = data.draw(st.integers(1, 70))
    trusted = data.draw(st.integers(0, count))
    is_synced = data.draw(st.booleans())
    synced: dict[str, bytes] = {}
    for number in range(1, count):
        if number == trusted:
            synced = {file.name: content(file) for file in index}
        put(index, number, keys="k" if number % 3 == 0 else "")
    index.write_headers()
    whole = [content(file) for file in index]
    if trusted == count:
        synced = {file.name: content(file) for file in index}
    for file in index:  # Tear the untrusted parts: any byte of later entries, the slots and the head.
        for number in range(1, file.count):
            if file._entry(number)[1] >= trusted * 100 and data.draw(st.booleans()):
                write(file, index_entry_position(8, number) + data.draw(st.integers(0, 19)), b"\0")
        if file.is_full and file.end_offset < trusted * 100:
            continue
        if is_synced:  # A slot has its synced value or a later one.
            for at in range(40, 72, 4):
                if data.draw(st.booleans()):
                    write(file, at, synced.get(file.name, bytes(72))[at : at + 4])
        else:
            write(file, 40, bytes(data.draw(st.integers(0, 32))))
    again = crashed(index, files)
    again.repair(trusted * 100, lambda offset: None if offset % 100 else offset, is_synced=is_synced)
    for number in range(1, count):
        put(again, number, keys="k" if number % 3 == 0 else "")
    again.write_headers()
    assert [content(file)[40:] for file in again] == [content[40:] for content in whole]
    for number in range(1, count):
        assert find(again, "T", f"U{number}", 64, T0 + number * 500, T0 + number * 500) == [number * 100]


@pytest.mark.parametrize("torn", [[26], [25, 26]])
def test_a_torn_last_entry_that_looks_old_makes_no_earlier_entry_trusted(torn: list[int]):
    """Pieces of five: the 26th entry is alone in its piece, and with a small offset it looked synced."""
    files = MemFileSystem(FakeClock(T0))
    index = service(files)
    for number in range(1, 27):
        put(index, number)
    index.write_headers()
    (file,) = index
    for number in torn:
        write(file, index_entry_position(8, number) + 4, (200 + number).to_bytes(8))
    again = crashed(index, files)
    gone = again.repair(1300, lambda offset: None if offset % 100 else offset, is_synced=True)
    assert (gone, [file.end_offset for file in again]) == (14, [1200])


def test_index_files_after_a_gap_are_rebuilt():
    files = MemFileSystem(FakeClock(T0))
    index = service(files)
    for number in range(1, 80):
        put(index, number)
    index.write_headers()
    middle = [file._pooled.path for file in index][1]
    files.write(middle, b"")
    again = crashed(index, files)
    again.repair(3200, lambda offset: True, is_synced=True)
    assert [file.end_offset for file in again] == [3100]


@pytest.mark.parametrize("promised", [-5, 0, 1 << 20])
def test_a_head_with_impossible_values(promised):
    file = index_file()
    write(file, 36, promised.to_bytes(4, signed=True))
    again = IndexFile("x", file._pooled, slots=8, entries=32)
    assert again.count == (1 if promised <= 0 else 32)


def test_a_search_continues_at_the_entry_that_was_not_in_memory():
    files = MemFileSystem(FakeClock())
    file = index_file(slots=1, files=files)
    file.put([(1, number, T0) for number in range(20)])
    pages = Pages()
    search = KeySearch([file], pages, 1, 64, begin_ms=0, end_ms=1 << 62)
    pages.attempt(lambda: search.step(5))
    assert list(search.found) == [19, 18, 17, 16, 15]
    pages.tick()
    files.drop_from_memory("/x")
    with pytest.raises(NotInMemoryError) as missed:
        pages.attempt(lambda: search.step(5))
    assert (search.walked, search.is_done) == (5, False)
    read = ColdRead(missed.value.missing)
    read.run(files)
    blocks = ReadBlocks()
    read.add_to(blocks)
    while not search.is_done:
        pages.attempt(lambda: search.step(7), blocks)  # The entries before the missing one were loaded with it.
    assert list(search.found) == list(range(19, -1, -1))
    assert files.cold_touches == []


def test_a_search_skips_a_file_that_expires_meanwhile():
    index = service()
    for number in range(40):
        put(index, number, keys="same")
    search = KeySearch(index, Pages(), index_key_hash("T", "same"), 64, begin_ms=0, end_ms=1 << 62)
    search.step(3)
    files = list(index)
    expired = index.expire(files[-1].begin_offset)
    assert len(expired) == len(files) - 1
    while not search.is_done:
        search.step(3)
    assert min(search.found) >= files[-1].begin_offset
