"""DerivedSync: it syncs few files one by one and many with one call, and it handles errors in between."""

import errno

import pytest

from gantry.model.javahash import index_key_hash
from gantry.runtime.openfiles import OpenFiles
from services.broker.store.durability.derivedsync import SYNCED_EACH_MAX, DerivedSync
from services.broker.store.files.pages import Pages
from services.broker.store.index.indexservice import IndexService
from services.broker.store.index.keysearch import KeySearch
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import small_settings
from tests.support.virtualtime import FakeClock

UNIT = bytes(11) + b"\1" + bytes(8)


class Derived:
    def __init__(self, *, open_max: int = 1_000, **changes) -> None:
        self.operations: list[tuple[str, str]] = []
        memory = MemFileSystem(FakeClock(), on_operation=lambda *operation: self.operations.append(operation))
        self.files = FaultFileSystem(memory)
        self.files.make_dirs("/store/index")
        settings = small_settings(**changes)
        self.pool = OpenFiles(self.files, open_max)
        self.queues = ConsumeQueueStore(self.pool, settings)
        self.index = IndexService(self.pool, settings, memory.clock)
        self.sync = DerivedSync(self.pool, settings, queues=self.queues, index=self.index)
        self.sync.open()

    def write(self, count: int, *, units: int = 1, index: int = 0) -> None:
        for queue_id in range(count):
            self.queues.append(self.queues.prepare("T", queue_id), index, UNIT * units)

    def run(self) -> list[str]:
        """Run a thorough job, and return the names of its syncs."""
        job = self.sync.thorough_job()
        self.operations.clear()
        job()
        self.sync.settle()
        return [operation for operation, _ in self.operations if "sync" in operation]


def test_few_files_are_synced_before_the_folders_that_name_them():
    derived = Derived()
    derived.write(3)
    assert derived.run() == ["sync"] * 3 + ["sync_dir"] * 6
    paths = [path for _, path in derived.operations[3:]]
    assert paths == sorted(paths, key=len, reverse=True)
    assert derived.run() == [], "nothing new"


def test_thousands_of_files_are_synced_with_one_call():
    derived = Derived()
    derived.write(3 * SYNCED_EACH_MAX)
    assert derived.run() == ["syncfs"]
    derived.write(SYNCED_EACH_MAX, index=1)
    assert derived.run() == ["sync"] * SYNCED_EACH_MAX


def test_a_file_that_was_closed_while_dirty_is_synced_where_its_error_is_reported():
    derived = Derived(open_max=1)
    derived.write(2)
    assert derived.run() == ["syncfs"]
    derived.write(2, index=1)
    derived.files.rules.append(FaultRule("syncfs"))
    with pytest.raises(OSError, match="Input/output error"):
        derived.run()


def test_an_old_kernel_syncs_closed_files_one_by_one(monkeypatch):
    monkeypatch.setattr(MemFileSystem, "open_volume", lambda self, path: None)
    derived = Derived(open_max=1)
    derived.write(3)
    job = derived.sync.thorough_job()
    derived.files.remove(f"/store/consumequeue/T/1/{0:020d}")  # Its topic is being deleted.
    derived.operations.clear()
    job()
    assert [path for operation, path in derived.operations if operation == "sync"] == [
        f"/store/consumequeue/T/{queue_id}/{0:020d}" for queue_id in (0, 2)
    ]
    derived.sync.close()


def test_ripe_files_are_synced_between_thorough_rounds():
    derived = Derived(mapped_file_size_consume_queue=20_000, flush_consume_queue_least_pages=2)
    derived.write(2, units=300)
    assert derived.sync.due_job() is None, "6,000 bytes are more than one page"
    derived.write(1, units=200, index=300)
    job = derived.sync.due_job()
    derived.operations.clear()
    job()
    derived.sync.settle()
    assert derived.operations == [("sync", f"/store/consumequeue/T/0/{0:020d}")]
    assert derived.run().count("sync") == 1, "the other file is synced in the next round"


def test_a_folder_that_can_not_be_opened_for_lack_of_descriptors_is_synced_with_its_file_system():
    derived = Derived()
    derived.write(1)
    derived.files.rules.append(FaultRule("sync_dir", error=errno.EMFILE))
    assert derived.run() == ["sync", "syncfs"]
    derived.write(1, index=10)
    derived.files.rules[:] = [FaultRule("sync_dir", error=errno.EIO)]
    with pytest.raises(OSError, match="Input/output error"):
        derived.run()


def test_a_folder_that_is_gone_needs_no_sync():
    derived = Derived()
    derived.write(1)
    job = derived.sync.thorough_job()
    derived.queues.forget_topic("T")
    folder = "/store/consumequeue/T"
    for path in (f"{folder}/0", folder):
        for name in derived.files.list_dir(path):
            derived.files.remove(f"{path}/{name}")
        derived.files.remove_dir(path)
    job()
    derived.sync.settle()


def test_full_index_files_that_are_synced_keep_no_map():
    derived = Derived()
    for number in range(1, 80):
        derived.index.put("T", f"U{number}", "", number * 100, 1_700_000_000_000 + number)
    derived.index.write_headers()
    assert [file.file is not None for file in derived.index] == [True, True, True]
    for _ in range(2):
        derived.run()
    assert [file.file is not None for file in derived.index] == [False, False, True]
    for number in range(1, 80):
        search = KeySearch(derived.index, Pages(), index_key_hash("T", f"U{number}"), 64, begin_ms=0, end_ms=1 << 62)
        search.step(100)
        assert list(search.found) == [number * 100]
