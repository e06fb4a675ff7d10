import pytest

from gantry.model.javahash import index_key_hash
from gantry.storeformat import layout
from gantry.storeformat.errors import BrokenFileError
from gantry.storeformat.indexfile import IndexReader
from tests.support.storebuilder import STORED_AT_MS, StoreBuilder


def built(count: int = 4) -> tuple[StoreBuilder, bytearray]:
    store = StoreBuilder(slots=5)
    for number in range(count):
        store.add(properties={"UNIQ_KEY": f"U{number}", "KEYS": "k same"})
    return store, bytearray(store.index_file())


def test_sizes_are_derived_from_the_file() -> None:
    _, data = built()
    index = IndexReader("f", data)
    assert (index.slots, index.entries, index.next_number) == (5, 20, 13)
    data = bytearray(layout.index_file_bytes(3, 7))
    index = IndexReader("f", data, slots=3)
    assert (index.slots, index.entries, index.next_number) == (3, 7, 1)


@pytest.mark.parametrize(
    ("size", "slots"), [(0, None), (40, None), (41, None), (40 + 84 * 2 + 1, None), (60, 5), (65, 1)]
)
def test_invalid_sizes_are_named(size: int, slots: int | None) -> None:
    with pytest.raises(BrokenFileError, match=f"{size} bytes fit no index file"):
        IndexReader("f", bytearray(size), slots=slots)


def test_a_chain_leads_from_the_newest_to_the_oldest() -> None:
    store, data = built()
    index = IndexReader("f", data)
    found = index.find(index_key_hash("T", "same"), begin_ms=0, end_ms=1 << 60)
    assert found == [record.offset for record in reversed(store.records)]
    assert index.find(index_key_hash("T", "none"), begin_ms=0, end_ms=1 << 60) == []


def test_times_narrow_a_search() -> None:
    store, data = built()
    index = IndexReader("f", data)
    begin = STORED_AT_MS + 1000
    found = index.find(index_key_hash("T", "k"), begin_ms=begin + 1000, end_ms=begin + 2000)
    assert found == [store.records[2].offset, store.records[1].offset]


def test_a_chain_that_does_not_lead_backwards_ends() -> None:
    _, data = built()
    index = IndexReader("f", data)
    key_hash = index_key_hash("T", "same")
    newest = index.slot(key_hash % 5)
    at = layout.index_entry_position(5, newest)
    for previous in (newest, newest + 1, 1000, -1):
        entry = index.entry(newest)
        layout.INDEX_ENTRY.pack_into(data, at, *entry._replace(previous=previous))
        assert [item.key_hash for item in index.chain(key_hash)] == [entry.key_hash]
