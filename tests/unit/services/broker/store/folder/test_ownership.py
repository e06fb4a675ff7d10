"""Ownership: which lock files and folders leave the store ours, and how running jobs behave once it is lost."""

import errno

import pytest
from structlog.testing import capture_logs

from gantry.storeformat.layout import LOCK_CONTENT
from services.broker.store import retention
from services.broker.store.errors import StoreLockedError
from services.broker.store.folder.ownership import OwnedFiles, Ownership
from services.broker.store.settings import FlushDiskType
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, ROOT, make_store, small_settings
from tests.support.virtualtime import FakeClock
from tests.support.waitingworker import SwitchedWorker, WaitingWorker

LOCK = f"{ROOT}/lock"


@pytest.fixture
def files():
    memory = MemFileSystem(FakeClock())
    memory.make_dirs(ROOT)
    return memory


def owned(files):
    told = []
    owner = Ownership(files, ROOT)
    owner.on_lost = told.append
    owner.take()
    return owner, told


def test_a_missing_lock_file_is_created_again_by_the_next_change(files):
    owner, told = owned(files)
    files.remove(LOCK)
    OwnedFiles(files, owner).write(f"{ROOT}/a", b"a")
    assert files.read(LOCK) == LOCK_CONTENT
    with pytest.raises(StoreLockedError):
        Ownership(files, ROOT).take()
    assert not told
    owner.release()
    Ownership(files, ROOT).take()


def test_a_lock_file_without_a_holder_is_locked_again(files):
    owner, told = owned(files)
    files.remove(LOCK)
    files.write(LOCK, b"")
    assert owner.is_still_owned()
    assert not told
    assert files.find(LOCK) in files.locked


def test_a_lock_file_that_can_not_be_created_keeps_the_store_and_is_reported_once(files):
    faulty = FaultFileSystem(files)
    owner, told = owned(faulty)
    files.remove(LOCK)
    rule = FaultRule("lock", error=errno.ENOSPC)
    faulty.rules.append(rule)
    with capture_logs() as logs:
        assert all(owner.is_still_owned() for _ in range(3))
    assert [entry["event"] for entry in logs] == ["the store's lock file can't be made"]
    faulty.rules.clear()
    assert owner.is_still_owned()
    assert files.read(LOCK) == LOCK_CONTENT
    assert not told


def test_a_lock_file_is_locked_even_if_its_content_can_not_be_written(files):
    faulty = FaultFileSystem(files)
    owner, told = owned(faulty)
    files.remove(LOCK)
    faulty.rules.append(FaultRule("write", error=errno.ENOSPC))
    assert all(owner.is_still_owned() for _ in range(3))
    assert files.find(LOCK) in files.locked
    assert not told


@pytest.mark.parametrize("how", ["taken", "moved", "replaced"])
def test_a_lost_store_is_reported_once_and_stays_lost(files, how):
    owner, told = owned(files)
    if how == "taken":
        files.remove(LOCK)
        files.lock(LOCK)
        reason = f"another broker has the store's lock: {LOCK}"
    else:
        files.move(ROOT, "/elsewhere")
        reason = f"the store's folder was moved or removed: {ROOT}"
        if how == "replaced":
            files.make_dirs(ROOT)
            Ownership(files, ROOT).take()
    assert owner.lost is None
    assert owner.lost_reason() == reason
    assert not owner.is_still_owned()
    if how == "moved":
        files.move("/elsewhere", ROOT)
        assert not owner.is_still_owned(), "another broker may have written to it meanwhile"
    assert told == [reason]


@pytest.mark.parametrize("operation", ["create", "open", "write", "replace", "remove", "remove_dir", "make_dirs"])
def test_no_operation_changes_a_lost_store(files, operation):
    owner, _ = owned(files)
    files.move(ROOT, "/elsewhere")
    files.make_dirs(f"{ROOT}/d")
    for name in ("a", "b"):
        files.write(f"{ROOT}/{name}", b"a")
    before, guarded = files.content(ROOT), OwnedFiles(files, owner)
    operations = {
        "create": lambda: guarded.create(f"{ROOT}/c", 10),
        "open": lambda: guarded.open(f"{ROOT}/a"),
        "write": lambda: guarded.write(f"{ROOT}/a", b"c"),
        "replace": lambda: guarded.replace(f"{ROOT}/a", f"{ROOT}/b"),
        "remove": lambda: guarded.remove(f"{ROOT}/a"),
        "remove_dir": lambda: guarded.remove_dir(f"{ROOT}/d"),
        "make_dirs": lambda: guarded.make_dirs(f"{ROOT}/e"),
    }
    with pytest.raises(OSError, match="moved or removed") as raised:
        operations[operation]()
    assert raised.value.errno == errno.ESTALE
    assert files.content(ROOT) == before
    assert guarded.open(f"{ROOT}/a", writable=False).read(0, 1) == b"a"


class Busy:
    """A store whose workers have jobs that were submitted while the store was ours."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.files = MemFileSystem(self.clock)
        workers = {name: SwitchedWorker() for name in ("flush_worker", "making_worker", "chores_worker")}
        self.store = make_store(self.files, self.clock, small_settings(), **workers)
        self.store.start()
        for topic in "ABAB" * 10:
            self.put(topic)
        self.clock.advance(10_000)
        self.store.maintain()
        self.put("A")
        self.late = {name: WaitingWorker() for name in workers}
        for name, worker in workers.items():
            worker.late = self.late[name]

    def put(self, topic: str) -> None:
        self.store.put(topic, 0, bytes(800), b"", born_at_ms=1, born_host=HOST)
        self.store.request_flush()
        self.store.dispatch()

    def lose(self) -> dict[str, bytes]:
        self.files.remove(LOCK)
        self.files.lock(LOCK)
        return self.files.content(ROOT)


def begin_flush(busy: Busy) -> None:
    busy.put("A")


def begin_checkpoint(busy: Busy) -> None:
    busy.clock.advance(10_000)
    busy.store.maintain()


def begin_next_file(busy: Busy) -> None:
    for _ in range(10):
        busy.put("A")


def begin_removal(busy: Busy) -> None:
    busy.clock.advance(3 * 3_600_000)
    assert busy.store.clean_expired() > 0


def begin_note_of_failure(busy: Busy) -> None:
    def refuse(operation: str, path: str) -> None:
        if operation == "sync":
            raise OSError(errno.EIO, "Input/output error", path)

    busy.put("A")
    busy.files.on_operation = refuse
    busy.late["flush_worker"].run()
    busy.files.on_operation = None


def begin_deletion(busy: Busy) -> None:
    busy.store.delete_topic("A")


def begin_note(busy: Busy) -> None:
    busy.store.delete_topic("A")
    busy.late["chores_worker"].run()
    assert "A" in busy.store.unsaved_deletions()
    busy.late["chores_worker"].run_all()
    busy.store.mark_deletion_saved("A")


JOBS = {
    begin_flush: "flush_worker",
    begin_checkpoint: "chores_worker",
    begin_next_file: "making_worker",
    begin_removal: "chores_worker",
    begin_deletion: "chores_worker",
    begin_note: "chores_worker",
    begin_note_of_failure: "chores_worker",
}


@pytest.mark.parametrize("begin", JOBS)
def test_a_job_submitted_before_the_loss_changes_nothing_after_it(begin):
    busy = Busy()
    begin(busy)
    assert busy.late[JOBS[begin]].waiting
    before = busy.lose()
    flushed = busy.store.flushed_offset
    for worker in busy.late.values():
        worker.run_all()
    assert busy.files.content(ROOT) == before
    assert busy.store.lost_reason() is not None
    assert not busy.store.stop()
    assert busy.files.content(ROOT) == before
    assert busy.store.flushed_offset == flushed


def test_the_loss_of_a_store_is_not_recorded_in_the_store():
    busy = Busy()
    busy.put("A")
    busy.lose()
    busy.late["flush_worker"].run()
    assert busy.store.lost_reason() is not None
    assert not busy.late["chores_worker"].waiting


@pytest.mark.parametrize("stands_still", [True, False])
def test_no_record_is_dispatched_in_a_lost_store(stands_still):
    clock = FakeClock()
    files = MemFileSystem(clock)
    store = make_store(files, clock, small_settings(flush_disk_type=FlushDiskType.ASYNC_FLUSH))
    store.start()
    for _ in range(12 if stands_still else 1):
        store.put("T", 0, b"x", b"", born_at_ms=1, born_host=HOST)
    store.write_out()
    if stands_still:
        files.capacity_bytes = files.used_bytes()
        store.dispatch()
        assert "can't be made readable" in store.state().reason
        files.capacity_bytes *= 2
    files.remove(LOCK)
    files.lock(LOCK)
    before = files.content(ROOT)
    clock.advance(1_000)
    for act in (store.maintain, store.dispatch, store.maintain):
        act()
        assert store.dispatched_offset < store.confirm_offset
    assert files.content(ROOT) == before


def test_a_running_retention_ends_when_the_store_is_lost(monkeypatch):
    monkeypatch.setattr(retention, "QUEUES_PER_TICK_MAX", 1)
    clock = FakeClock()
    files = MemFileSystem(clock)
    store = make_store(files, clock, small_settings(), open_files_max=1)
    store.start()
    for queue_id in [*range(5)] * 12:
        store.put("T", queue_id, b"x", b"", born_at_ms=1, born_host=HOST)
        store.request_flush()
        store.dispatch()
    clock.advance(10_000)
    store.maintain()
    clock.advance(3 * 3_600_000)
    store.maintain()
    assert store.clean_expired() > 0
    files.move(ROOT, "/elsewhere")
    clock.advance(100)
    store.maintain()
    assert store.lost_reason() is not None
