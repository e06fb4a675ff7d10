"""The lifetime of a store: starts that fail, each with an error of one line, and the files that a stop leaves."""

import errno
import json

import pytest

from gantry.runtime.errors import StartupError
from gantry.runtime.rng import Rng
from gantry.storeformat.layout import file_name
from services.broker.store.errors import CorruptStoreError, StoreFormatError, StoreLockedError, StoreUnusableError
from services.broker.store.results import GetStatus, PutStatus
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, make_store, read_queue, small_settings
from tests.support.virtualtime import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def files(clock) -> MemFileSystem:
    return MemFileSystem(clock)


def put(store, topic="T", queue_id=0):
    result = store.put(topic, queue_id, b"body", b"UNIQ_KEY\x01k\x02", born_at_ms=1, born_host=HOST)
    store.request_flush()
    store.dispatch()
    return result


def test_a_running_store_is_locked(files, clock):
    store = make_store(files, clock)
    store.start()
    before = files.operations
    with pytest.raises(StoreLockedError, match="/store/lock is locked: another broker runs on this store"):
        make_store(files, clock).start()
    assert files.operations == before, "no file was changed"
    assert put(store).status is PutStatus.OK
    assert store.stop()
    again = make_store(files, clock)
    again.start()
    assert again.stop()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"format_version": 2}', "has format 2, this release knows formats up to 1"),
        ("[]", "is not a JSON object"),
        ("{", "is not JSON"),
    ],
)
def test_a_store_of_a_newer_format_is_refused_and_left_as_it_is(files, clock, content, words):
    store = make_store(files, clock)
    store.start()
    put(store)
    assert store.stop()
    files.write("/store/config/gantry.json", content.encode())
    files.sync_everything()
    before = {path: files.read(path) for path in ("/store/checkpoint", f"/store/commitlog/{file_name(0)}")}
    with pytest.raises(StoreFormatError, match=words):
        make_store(files, clock).start()
    assert {path: files.read(path) for path in before} == before
    assert not files.exists("/store/abort")
    assert not files.locked


def test_a_file_of_another_size_is_refused(files, clock):
    store = make_store(files, clock)
    store.start()
    put(store)
    assert store.stop()
    with pytest.raises(CorruptStoreError, match="has 4096 bytes and starts at 0; files of 8192 bytes are expected"):
        make_store(files, clock, small_settings(mapped_file_size_commit_log=8192)).start()
    assert not files.locked


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (FaultRule("make_dirs", error=errno.EROFS), "Read-only file system"),
        (FaultRule("lock", error=errno.EACCES), "Permission denied"),
        (FaultRule("write", error=errno.ENOSPC), "No space left on device"),
        (FaultRule("create", "*/checkpoint", errno.ENOSPC), "No space left on device"),
        (FaultRule("sync", "*/commitlog/*", errno.EIO), "Input/output error"),
        (FaultRule("open", "*/commitlog/*", errno.EMFILE), "Too many open files"),
    ],
)
def test_an_error_of_the_disk_is_reported_in_one_line(clock, files, rule, words):
    store = make_store(files, clock)
    store.start()
    put(store)
    assert store.stop()
    if rule.operation == "create":
        files.remove("/store/checkpoint")
    faulty = FaultFileSystem(files, rule)
    with pytest.raises(StoreUnusableError) as refused:
        make_store(faulty, clock).start()
    assert isinstance(refused.value, StartupError)
    assert words in str(refused.value)
    assert "/store" in str(refused.value)
    assert "\n" not in str(refused.value)
    faulty.rules.clear()
    again = make_store(faulty, clock)
    again.start()
    assert list(read_queue(again, "T", 0)) == [0]


def test_a_full_disk_during_the_rebuild_of_recovery(clock, files):
    store = make_store(files, clock)
    store.start()
    put(store)
    files.sync_everything()
    crashed = files.crash_clone(Rng(0))
    crashed.remove(f"/store/consumequeue/T/0/{file_name(0)}")
    faulty = FaultFileSystem(crashed, FaultRule("create", "*/consumequeue/*", errno.ENOSPC))
    with pytest.raises(StoreUnusableError, match="No space left"):
        make_store(faulty, clock).start()


def test_marks_and_abort_file_from_start_to_stop(files, clock):
    store = make_store(files, clock, process_id=99)
    store.start()
    assert files.read("/store/abort") == b"99"
    assert json.loads(files.read("/store/config/gantry.json")) == {
        "format_version": 1,
        "record_checksum_from": 0,
        "clean_stop_offset": None,
        "clean_stop_derived": None,
        "abort_process_id": None,
        "opened_offset": 0,
        "opened_derived": {"queues": 0, "units": 0, "index_end": 0, "files": 0},
    }
    end = put(store).next_offset
    assert store.stop()
    assert not files.exists("/store/abort")
    manifest = json.loads(files.read("/store/config/gantry.json"))
    assert manifest["clean_stop_offset"] == end
    assert manifest["clean_stop_derived"] == {"queues": 1, "units": 1, "index_end": 0, "files": 1}
    assert (manifest["abort_process_id"], manifest["opened_offset"], manifest["opened_derived"]) == (None, None, None)
    assert not files.locked


def test_a_stop_flushes_and_dispatches_the_rest(files, clock):
    store = make_store(files, clock)
    store.start()
    store.put("T", 0, b"late", b"", born_at_ms=1, born_host=HOST)
    assert store.stop()
    again = make_store(files, clock)
    report = again.start()
    assert report.units_mended == 0
    assert list(read_queue(again, "T", 0)) == [0]


def test_a_stop_that_can_not_be_recorded(files, clock):
    faulty = FaultFileSystem(files)
    store = make_store(faulty, clock)
    store.start()
    put(store)
    faulty.rules.append(FaultRule("replace", error=errno.EROFS))
    assert not store.stop()
    assert files.exists("/store/abort")


def test_stopping_twice_or_before_the_start(files, clock):
    store = make_store(files, clock)
    assert not store.stop()
    store = make_store(files, clock)
    store.start()
    assert store.stop()
    assert not store.stop()


def test_a_deleted_topic_is_gone_and_may_be_created_again(files, clock):
    store = make_store(files, clock)
    store.start()
    for queue_id in (0, 1):
        put(store, "T", queue_id)
    put(store, "U")
    pending = store.put("T", 0, b"", b"", born_at_ms=1, born_host=HOST)
    store.delete_topic("T")
    assert set(store.queues()) == {("U", 0)}
    assert store.get("T", 0, 0, 1).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    store.request_flush()
    store.dispatch()
    assert store.record_at(pending.physical_offset) is not None
    store.delete_topic("T")
    assert files.list_dir("/store/consumequeue") == ["U"]
    assert put(store).queue_offset == 0
    assert list(read_queue(store, "T", 0)) == [0]
    assert store.stop()


def test_the_state_has_all_offsets(files, clock):
    store = make_store(files, clock)
    store.start()
    end = put(store).next_offset
    later = store.put("T", 0, b"", b"", born_at_ms=1, born_host=HOST).next_offset
    state = store.state()
    assert (state.writable, state.reason) == (True, "")
    assert (state.min_physical_offset, state.max_physical_offset) == (0, later)
    assert (state.flushed_offset, state.confirm_offset, state.dispatched_offset) == (end, end, end)
    assert (state.dispatch_behind_bytes, state.lost_bytes, state.damaged_reads, state.skipped_units) == (0, 0, 0, 0)
    assert state.recovery is not None
    assert store.flushed_offset == store.confirm_offset == store.dispatched_offset == end
    assert (store.min_physical_offset, store.max_physical_offset) == (0, later)
    assert (store.min_offset("T", 0), store.max_offset("T", 0), store.max_offset("none", 0)) == (0, 1, 0)
    assert not make_store(MemFileSystem(clock), clock).state().writable
