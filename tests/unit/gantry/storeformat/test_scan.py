import errno

import pytest

from gantry.storeformat import layout, scan
from gantry.storeformat.consumequeue import find_unit
from gantry.storeformat.errors import NewerFormatError, NotAStoreError, StoreInUseError
from gantry.storeformat.scan import StoreReader
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.storebuilder import StoreBuilder
from tests.support.virtualtime import FakeClock


def saved(store: StoreBuilder) -> MemFileSystem:
    files = MemFileSystem(FakeClock())
    store.save(files)
    return files


def test_folders_that_are_no_store() -> None:
    files = MemFileSystem(FakeClock())
    with pytest.raises(NotAStoreError, match="no such folder"):
        StoreReader(files, "/store")
    files.make_dirs("/store")
    with pytest.raises(NotAStoreError, match="no folder commitlog"):
        StoreReader(files, "/store/")


def test_a_store_in_use_is_refused_and_a_reader_locks_brokers_out() -> None:
    files = saved(StoreBuilder())
    lock = files.lock("/store/lock")
    with pytest.raises(StoreInUseError, match="/store: a broker runs"):
        StoreReader(files, "/store")
    lock.release()
    with StoreReader(files, "/store"), pytest.raises(StoreInUseError):
        StoreReader(files, "/store")
    StoreReader(files, "/store").close()


def test_a_reader_ignores_a_lock_that_can_not_be_opened() -> None:
    store = StoreBuilder()
    store.add()
    read_only = FaultFileSystem(saved(store), FaultRule("lock", error=errno.EROFS))
    with StoreReader(read_only, "/store") as reader:
        assert len(list(reader.scan())) == 1


def test_nothing_is_written() -> None:
    files = saved(StoreBuilder())
    files.remove("/store/lock")
    before = files.operations
    with StoreReader(files, "/store") as reader:
        list(reader.scan())
    assert files.operations == before


def test_newer_formats_are_refused_and_broken_marks_noted() -> None:
    files = saved(StoreBuilder())
    files.write("/store/config/gantry.json", b'{"format_version": 99}')
    with pytest.raises(NewerFormatError):
        StoreReader(files, "/store")
    files.write("/store/config/gantry.json", b"{")
    with StoreReader(files, "/store") as reader:
        assert reader.manifest is None
        assert reader.manifest_problem is not None


def test_units_of_queues_are_read_across_files() -> None:
    store = StoreBuilder(queue_file_bytes=60)
    for number in range(10):
        store.add(queue_id=number % 2)
    with StoreReader(saved(store), "/store") as reader:
        queues = reader.queues()
        assert [(queue.topic, queue.queue_id, len(queue.files)) for queue in queues] == [("T", 0, 2), ("T", 1, 2)]
        units = reader.units(queues[1])
        found = [(placed.queue_offset, placed.unit.physical_offset) for placed in units]
        assert found == [(record.queue_offset, record.offset) for record in store.records if record.queue_id == 1]
        assert (units.min_offset, units.max_offset, units.used_behind_bytes) == (0, 5, 0)
        unit = find_unit(queues[1], 4, reader.memory)
        assert unit is not None
        assert unit.physical_offset == found[4][1]
        assert find_unit(queues[1], 5, reader.memory) is None
        assert find_unit(queues[1], 99, reader.memory) is None


def test_queue_that_begins_late_holes_and_missing_files() -> None:
    store = StoreBuilder(queue_file_bytes=100)
    units = store.units[("T", 0)] = bytearray(layout.FILLER_UNIT * 3)
    for number in range(12):
        units += layout.encode_unit(number * 100, 100, 0)
    files = saved(store)
    with StoreReader(files, "/store") as reader:
        scan_ = reader.units(reader.queues()[0])
        assert [placed.queue_offset for placed in scan_] == list(range(3, 15))
        assert (scan_.min_offset, scan_.max_offset) == (3, 15)
    units[7 * 20 : 8 * 20] = bytes(20)
    with StoreReader(saved(store), "/store") as reader:
        scan_ = reader.units(reader.queues()[0])
        assert len(list(scan_)) == 4
        assert (scan_.max_offset, scan_.used_behind_bytes) == (7, (60 - 8) + (100 - 8))
    files.remove(f"/store/consumequeue/T/0/{layout.file_name(100)}")
    with StoreReader(files, "/store") as reader:
        scan_ = reader.units(reader.queues()[0])
        assert len(list(scan_)) == 2
        assert scan_.missing_bytes == (100, 200)


def test_files_that_are_no_queue_are_ignored() -> None:
    store = StoreBuilder()
    store.add()
    files = saved(store)
    files.write("/store/consumequeue/file", b"x")
    files.make_dirs("/store/consumequeue/T/x")
    files.write("/store/consumequeue/T/0/notes", b"x")
    files.write(f"/store/commitlog/{'9' * 20}", b"")
    files.make_dirs(f"/store/commitlog/{'8' * 20}")
    with StoreReader(files, "/store") as reader:
        assert [(queue.topic, queue.queue_id, len(queue.files)) for queue in reader.queues()] == [("T", 0, 1)]
        assert len(reader.log_files) == 1


def test_records_by_offset_and_by_key() -> None:
    store = StoreBuilder()
    for _ in range(8):
        store.add()
    with StoreReader(saved(store), "/store") as reader:
        assert reader.find("T", "k1") == [record.offset for record in store.records]
        assert reader.find("T", "U3") == [store.records[3].offset]
        assert reader.find("T", "nobody") == []
        found = reader.record(store.records[3].offset)
        assert found is not None
        assert found.message().message_id == "U3"
        assert found.end == store.records[3].end
        assert reader.record(store.records[3].offset + 1) is None
        assert reader.record(10**9) is None
        assert reader.checkpoint() is not None


def test_few_files_stay_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "OPEN_FILES_MAX", 2)
    store = StoreBuilder()
    for _ in range(20):
        store.add()
    with StoreReader(saved(store), "/store") as reader:
        assert len(list(reader.scan())) == 20
        assert len(reader.log_files) > 2
        assert all(len(pool) <= 2 for pool in reader._pools.values())
        assert reader.record(store.records[0].offset) is not None
