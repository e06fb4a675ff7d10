import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry.model.record import encode_blank
from gantry.storeformat.commitlog import LogScan
from gantry.storeformat.manifest import StoreManifest
from gantry.storeformat.scan import StoreReader
from tests.support.memfilesystem import MemFileSystem
from tests.support.storebuilder import StoreBuilder
from tests.support.virtualtime import FakeClock


def scanned(store: StoreBuilder, *, start: int | None = None, drop: str = "") -> tuple[LogScan, list[int]]:
    """Save the store, read it, and return the scan with the offsets of the records whose checksum is valid."""
    files = MemFileSystem(FakeClock())
    store.save(files)
    if drop:
        files.remove(f"/store/commitlog/{drop}")
    with StoreReader(files, "/store") as reader:
        scan = reader.scan(start)
        offsets = [record.offset for record in scan if record.crc.is_good]
        return scan, offsets


def stored(count: int = 16, *, manifest: bool = True, file_bytes: int = 1024, **changes: object) -> StoreBuilder:
    store = StoreBuilder(log_file_bytes=file_bytes)
    store.manifest = StoreManifest(record_checksum_from=0) if manifest else None
    for number in range(count):
        store.add(body=b"body %d" % number * 3, **changes)
    return store


def damage_ranges(scan: LogScan) -> list[tuple[int, int]]:
    return [(damage.start, damage.end) for damage in scan.damages]


def test_every_record_is_read_across_files() -> None:
    store = stored()
    scan, offsets = scanned(store)
    assert offsets == [record.offset for record in store.records]
    assert (scan.records_count, scan.damages) == (16, [])
    assert scan.end == len(store.log)
    assert len(store.log) > 2048, "the test needs several files"
    assert scan.tail is not None
    assert scan.tail.size_bytes == 0


def test_empty_stores() -> None:
    files = MemFileSystem(FakeClock())
    files.make_dirs("/store/commitlog")
    with StoreReader(files, "/store") as reader:
        scan = reader.scan()
        assert list(scan) == []
        assert (scan.end, scan.tail) == (0, None)
    scan, offsets = scanned(StoreBuilder())
    assert (offsets, scan.end, scan.damages) == ([], 0, [])


def test_a_log_whose_last_file_is_full_ends_with_it() -> None:
    store = stored(4)
    store.log += encode_blank(1024 - len(store.log) % 1024)
    store.log += bytes(-len(store.log) % 1024)
    scan, offsets = scanned(store)
    assert len(offsets) == 4
    assert (scan.end, scan.tail) == (len(store.log), None)


def test_reading_may_begin_at_a_record() -> None:
    store = stored()
    _, offsets = scanned(store, start=store.records[5].offset)
    assert offsets == [record.offset for record in store.records[5:]]
    assert scanned(store, start=10**9)[1] == []


@settings(max_examples=200, deadline=None)
@given(st.integers(0))
def test_one_flipped_bit_costs_one_record(seed: int) -> None:
    store = stored()
    victim = store.records[random.Random(seed).randrange(len(store.records) - 1)]
    store.flip(random.Random(seed).randrange(victim.offset * 8, victim.end * 8))
    scan, offsets = scanned(store)
    assert offsets == [record.offset for record in store.records if record is not victim]
    assert damage_ranges(scan) == [(victim.offset, victim.end)]
    assert scan.end == len(store.log)


@settings(max_examples=200, deadline=None)
@given(st.integers(0))
def test_one_flipped_bit_costs_at_most_one_record_without_record_checksums(seed: int) -> None:
    store = stored(manifest=False, whole_record_crc=False)
    victim = store.records[random.Random(seed).randrange(len(store.records) - 1)]
    store.flip(random.Random(seed).randrange(victim.offset * 8, victim.end * 8))
    _, offsets = scanned(store)
    assert set(offsets) >= {record.offset for record in store.records if record is not victim}


@pytest.mark.parametrize("bit", [3, 40])
def test_damaged_last_record_is_a_tail(bit: int) -> None:
    store = stored()
    last = store.records[-1]
    store.flip(last.offset * 8 + bit)
    scan, offsets = scanned(store)
    assert len(offsets) == 15
    assert scan.damages == []
    assert scan.tail is not None
    assert (scan.tail.start, scan.tail.used_end, scan.end) == (last.offset, last.end, last.offset)
    assert scan.tail.is_record_like
    assert not scan.tail.is_older


def test_torn_tail() -> None:
    store = stored()
    last = store.records[-1]
    store.log[last.offset + 60 :] = bytes(len(store.log) - last.offset - 60)
    scan, offsets = scanned(store)
    assert len(offsets) == 15
    assert scan.damages == []
    assert scan.tail is not None
    assert scan.tail.size_bytes <= 60


def test_adjacent_damaged_records_are_named_one_by_one() -> None:
    store = stored()
    first, second = store.records[1], store.records[2]
    store.flip(first.offset * 8 + 90 * 8)
    store.flip(second.offset * 8 + 90 * 8)
    scan, offsets = scanned(store)
    assert len(offsets) == 14
    assert damage_ranges(scan) == [(first.offset, first.end), (second.offset, second.end)]


def test_damaged_filler_costs_no_record() -> None:
    store = stored()
    filler = next(record.end for record in store.records if record.end // 1024 == 0 and record.end + 150 > 1024)
    store.flip((filler + 5) * 8)
    scan, offsets = scanned(store)
    assert len(offsets) == 16
    assert damage_ranges(scan) == [(filler, 1024)]


def test_damage_before_a_filler_ends_at_it() -> None:
    store = stored()
    victim = next(record for record in store.records if record.end // 1024 == 0 and record.end + 150 > 1024)
    store.flip(victim.offset * 8)
    scan, offsets = scanned(store)
    assert len(offsets) == 15
    assert damage_ranges(scan) == [(victim.offset, victim.end)]


def test_missing_file_is_damage() -> None:
    store = stored()
    scan, offsets = scanned(store, drop="00000000000000001024")
    assert offsets == [record.offset for record in store.records if record.offset // 1024 != 1]
    assert damage_ranges(scan) == [(1024, 2048)]


def test_file_of_zeros_in_the_middle_is_damage() -> None:
    store = stored()
    store.log[1024:2048] = bytes(1024)
    scan, offsets = scanned(store)
    assert offsets == [record.offset for record in store.records if record.offset // 1024 != 1]
    assert damage_ranges(scan) == [(1024, 2048)]


def test_after_expiry_the_log_begins_later() -> None:
    store = stored()
    store.first_file = 1024
    scan, offsets = scanned(store)
    assert offsets == [record.offset for record in store.records if record.offset >= 1024]
    assert scan.damages == []


def test_a_record_inside_a_body_does_not_count() -> None:
    store = StoreBuilder(log_file_bytes=8192)
    inner = store.add(body=b"inner").data
    outer = store.add(body=inner * 3)
    store.add()
    store.flip(outer.offset * 8 + 8 * 8)
    scan, offsets = scanned(store)
    assert offsets == [store.records[0].offset, store.records[2].offset]
    assert damage_ranges(scan) == [(outer.offset, outer.end)]


def test_a_missing_checksum_is_damage_only_if_it_is_required() -> None:
    store = StoreBuilder(log_file_bytes=8192)
    before = store.add(whole_record_crc=False)
    boundary = store.add()
    bare = store.add(whole_record_crc=False)
    foreign_start = store.add().end
    foreign = store.add(whole_record_crc=False)
    store.manifest = StoreManifest(record_checksum_from=boundary.offset, clean_stop_offset=foreign_start)
    scan, offsets = scanned(store)
    assert damage_ranges(scan) == [(bare.offset, bare.end)]
    assert "missing" in scan.damages[0].reason
    assert before.offset in offsets
    assert foreign.offset in offsets


def test_older_records_after_the_end_are_a_tail() -> None:
    """The log was cut and continued with a record of another length, over bytes that were not wiped."""
    store = stored(6, file_bytes=8192)
    cut = store.records[2]
    old = bytes(store.log)
    del store.log[cut.offset :]
    fresh = store.add(body=b"x", after_ms=60_000)
    store.log += old[len(store.log) :]
    scan, offsets = scanned(store)
    assert offsets == [store.records[0].offset, store.records[1].offset, fresh.offset]
    assert scan.damages == []
    assert scan.tail is not None
    assert scan.tail.is_older
    assert (scan.end, scan.tail.used_end) == (fresh.end, len(old))


def test_a_topic_that_is_not_utf8_is_damage() -> None:
    store = StoreBuilder(log_file_bytes=8192)
    victim = store.add("TT", whole_record_crc=False)
    store.add()
    store.log[victim.offset + 88 + 4 + 1] = 0xFF
    scan, offsets = scanned(store)
    assert offsets == [store.records[1].offset]
    assert "no UTF-8" in scan.damages[0].reason
