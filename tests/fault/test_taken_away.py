"""Removed files and unreadable pages: the store continues with the rest and logs the loss."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from gantry.runtime.errors import AlreadyLockedError
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.errors import StoreInUseError
from gantry.storeformat.layout import file_name
from gantry.storeformat.scan import StoreReader
from services.broker.store.errors import CorruptStoreError, StoreLockedError, StoreUnusableError
from services.broker.store.recovery.logend import UNREADABLE_RANGES_MAX
from services.broker.store.results import PutStatus
from tests.support.memfilesystem import MemFileSystem
from tests.support.smallstore import FILE_BYTES, PER_FILE, RECORD_BYTES, SmallStore
from tests.support.storeworkload import HOST, ROOT, make_store, read_queue, small_settings
from tests.support.virtualtime import FakeClock

MESSAGES = 3 * PER_FILE + 5


@pytest.fixture
def store() -> SmallStore:
    small = SmallStore()
    small.put(MESSAGES)
    small.checkpoint()
    return small


def end(store: SmallStore, how: str) -> None:
    assert how == "kill" or store.store.stop()
    store.kill()


class FewDescriptors:
    """A store that keeps one file of its queues open, with messages in the queues T and U."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.files = MemFileSystem(self.clock)
        self.start()
        self.put("T", 15)
        self.put("U", 60)
        self.clock.advance(11_000)
        self.store.maintain()

    def start(self) -> None:
        self.store = make_store(self.files, self.clock, small_settings(), open_files_max=1)
        self.store.start()

    def put(self, topic: str, count: int = 1) -> None:
        for _ in range(count):
            result = self.store.put(topic, 0, bytes(300), b"", born_at_ms=1, born_host=HOST)
            assert result.status is PutStatus.OK, result.reason
            self.store.request_flush()
            self.store.dispatch()
            self.store.maintain()

    def offsets(self, topic: str) -> list[int]:
        return list(read_queue(self.store, topic, 0))


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("is_folder", [False, True])
def test_a_queue_file_that_goes_while_the_store_runs_stops_no_queue_and_is_built_again(how, is_folder):
    few = FewDescriptors()
    path = f"{ROOT}/consumequeue/T/0/{200:020d}"
    for name in few.files.list_dir(f"{ROOT}/consumequeue/T/0"):
        if is_folder or path.endswith(name):
            few.files.remove(f"{ROOT}/consumequeue/T/0/{name}")
    if is_folder:
        few.files.remove_dir(f"{ROOT}/consumequeue/T/0")
    with structlog.testing.capture_logs() as logs:
        few.put("T")
        few.put("U", 2)
        few.put("T")
    assert [entry["path"] for entry in logs if entry["log_level"] == "error"] == [path]
    assert few.offsets("U") == list(range(62))
    assert few.store.max_offset("T", 0) == 17
    if how == "stop":
        few.store.stop()
    else:
        few.files.locked.clear()
    few.start()
    assert few.offsets("T") == list(range(17))
    few.put("T")
    assert few.offsets("T") == list(range(18)), "no offset is given twice"
    assert few.store.stop()


@pytest.mark.parametrize("start", [0, 200])
def test_retention_continues_after_a_missing_queue_file(start):
    few = FewDescriptors()
    few.files.remove(f"{ROOT}/consumequeue/T/0/{start:020d}")
    few.clock.advance(2 * 3_600_000)
    with structlog.testing.capture_logs() as logs:
        assert few.store.clean_expired() > 3
        few.store.maintain()
    assert any("T/0" in f"{entry.get('path')} {entry.get('reason')}" for entry in logs), "the path is told"
    kept = few.offsets("U")
    assert kept
    assert kept[-1] == 59
    assert few.files.list_dir(f"{ROOT}/consumequeue/U/0")[0] != f"{0:020d}", "the other queue's files go"
    few.put("T")
    few.put("U")


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_log_file_that_is_gone_at_the_start_costs_its_own_messages_only(store, number, how):
    end(store, how)
    store.files.remove(store.log_path(number))
    report = store.start()
    kept = [index for index in range(MESSAGES) if index // PER_FILE != number]
    assert store.offsets() == kept
    assert report.missing == (() if number == 0 else ((number * FILE_BYTES, (number + 1) * FILE_BYTES),))
    store.put(3)
    assert store.offsets() == [*kept, MESSAGES, MESSAGES + 1, MESSAGES + 2], "no offset is given twice"
    store.cut_power()
    store.start()
    assert store.offsets() == [*kept, MESSAGES, MESSAGES + 1, MESSAGES + 2]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_log_file_removed_while_the_store_runs_stays_readable(store, number):
    store.files.remove(store.log_path(number))
    store.put(PER_FILE)
    store.clock.advance(3 * 3_600_000)
    store.store.maintain()
    assert store.store.clean_expired() > 0, "a missing file does not keep those behind it"
    store.put(1)
    assert store.store.stop()


def test_the_log_leaves_the_file_it_writes_when_that_is_gone(store):
    store.files.remove(store.log_path(3))
    store.clock.advance(1_000)
    store.store.maintain()
    store.put(5)
    assert store.offsets() == list(range(MESSAGES + 5)), "what memory still has can be read until the stop"
    store.cut_power()
    report = store.start()
    assert store.offsets() == [*range(3 * PER_FILE), *range(MESSAGES, MESSAGES + 5)]
    assert report.missing == ((3 * FILE_BYTES, 4 * FILE_BYTES),)


def test_a_next_file_that_is_gone_is_made_again(store):
    store.files.remove(store.log_path(4))
    store.put(PER_FILE)
    store.cut_power()
    store.start()
    assert store.offsets() == list(range(MESSAGES + PER_FILE))


@pytest.mark.parametrize("how", ["kill", "repair"])
def test_a_page_that_can_not_be_read_costs_its_records(store, how):
    end(store, "kill")
    store.files.remove(f"{ROOT}/checkpoint")  # A start reads the records after it.
    first = 3 * FILE_BYTES + 2 * RECORD_BYTES
    store.files.make_unreadable(store.log_path(3), 2 * RECORD_BYTES, 2 * RECORD_BYTES + 1)
    report = store.start(thorough=how == "repair")
    lost = [index for index in range(3 * PER_FILE, MESSAGES) if index not in store.offsets()]
    assert lost == [3 * PER_FILE + 1, 3 * PER_FILE + 2]
    assert report.unreadable == ((first - first % 256, first - first % 256 + 256),)
    assert report.lost[0][0] <= first < report.lost[0][1]
    assert report.log_end_offset == 4 * FILE_BYTES, "what is appended goes to a file that can be read"
    store.put(1)
    assert store.offsets()[-1] == MESSAGES


def test_a_page_at_the_logs_end_that_can_not_be_read_frees_no_offset(store):
    end(store, "kill")
    last = store.store.max_physical_offset - 10
    store.files.make_unreadable(store.log_path(3), last % FILE_BYTES, last % FILE_BYTES + 1)
    store.start()
    assert store.offsets() == [*range(MESSAGES - 2)]
    store.put(1)
    assert store.offsets() == [*range(MESSAGES - 2), MESSAGES]


def test_the_page_with_a_files_age_may_be_unreadable(store):
    """After a crash of another broker, the time of each file's first record determines where the start begins."""
    end(store, "kill")
    store.files.remove(f"{ROOT}/config/gantry.json")
    store.files.make_unreadable(store.log_path(3), 0, 1)
    store.start()
    assert store.offsets()[:3] == [0, 1, 2]
    assert len(store.offsets()) >= MESSAGES - 3


def test_the_newest_record_of_a_deleted_topic_may_be_unreadable(store):
    store.put(3, "D")
    newest = store.store.max_physical_offset - RECORD_BYTES
    folder = f"{ROOT}/consumequeue/D/0"
    kept = {name: store.files.read(f"{folder}/{name}") for name in store.files.list_dir(folder)}
    store.store.delete_topic("D")
    assert store.store.stop()
    # As if the start had to remove the topic's messages.
    store.files.make_dirs(folder)
    for name, content in kept.items():
        store.files.write(f"{folder}/{name}", content)
    store.files.make_unreadable(store.log_path(newest // FILE_BYTES), newest % FILE_BYTES, newest % FILE_BYTES + 1)
    store.start()
    assert store.files.list_dir(folder) == []
    assert store.offsets() == [*range(MESSAGES)]


def test_a_queue_whose_first_file_can_not_be_read_begins_and_expires(store):
    """The broker meets the page while it runs: other queues are not delayed, and the file stays."""
    end(store, "stop")
    store.start()
    folder = f"{ROOT}/consumequeue/T/0"
    names = store.files.list_dir(folder)
    store.files.make_unreadable(f"{folder}/{names[0]}", 0, store.files.size_bytes(f"{folder}/{names[0]}"))
    store.clock.advance(3 * 3_600_000)
    store.checkpoint()
    assert store.store.clean_expired() > 0
    store.store.maintain()
    assert store.files.exists(f"{folder}/{names[0]}")
    store.put(1)
    assert store.store.get("T", 0, MESSAGES, 32).next_offset == MESSAGES + 1


@pytest.mark.parametrize("which", [slice(0, 1), slice(1, None), slice(None)])
@pytest.mark.parametrize("how", ["kill", "stop", "repair"])
def test_a_page_of_a_queue_that_can_not_be_read_is_built_again(store, how, which):
    end(store, "stop" if how == "stop" else "kill")
    folder = f"{ROOT}/consumequeue/T/0"
    names = store.files.list_dir(folder)
    assert len(names) > 2
    if how == "stop" and which.stop == 1:
        which = slice(-1, None)  # An orderly start reads the end of the last file only.
    for name in names[which]:
        store.files.make_unreadable(f"{folder}/{name}", 0, store.files.size_bytes(f"{folder}/{name}"))
    report = store.start(thorough=how == "repair")
    assert report.units_mended > 0
    assert store.offsets() == [*range(MESSAGES)]
    store.put(1)
    assert store.offsets() == [*range(MESSAGES + 1)], "no offset is given twice"


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_the_end_of_a_queue_that_can_not_be_read_is_built_again_from_before_the_checkpoint(how):
    store, count = SmallStore(mapped_file_size_consume_queue=20 * 1000), 15 * PER_FILE
    store.put(count)
    store.put(2 * PER_FILE, topic="U")  # With that, no record of T lies behind the checkpoint, or in its file.
    store.checkpoint()
    end(store, how)
    store.files.make_unreadable(f"{ROOT}/consumequeue/T/0/{file_name(0)}", 4096, 20 * count)
    store.start()
    assert store.offsets() == [*range(count)]
    store.put(1)
    assert store.offsets() == [*range(count + 1)]


def test_a_disk_with_almost_only_unreadable_pages_is_refused(store, monkeypatch):
    assert UNREADABLE_RANGES_MAX > 16
    monkeypatch.setattr("services.broker.store.recovery.logend.UNREADABLE_RANGES_MAX", 1)
    end(store, "kill")
    store.files.remove(f"{ROOT}/checkpoint")
    for at in (0, 512):
        store.files.make_unreadable(store.log_path(3), at, at + 1)
    with pytest.raises(CorruptStoreError, match="can't read 2 ranges"):
        store.start()


LOOK = """
import os, sys
from gantry.runtime.osfilesystem import OsFileSystem
file = OsFileSystem().open(sys.argv[1], writable=sys.argv[3] == "writable")
memory = file.map()
os.truncate(sys.argv[1], 32768)  # Pages behind the end are as deadly as those that a disk can't read.
if sys.argv[2] == "asked":
    assert file.blank_unreadable(0, 65536) == [(32768, 65536)]
    assert file.blank_unreadable(0, 65536) == [(32768, 65536)]
assert memory[32767:40000] == b"a" + bytes(7232)
file.close()
"""


@pytest.mark.parametrize(("how", "code"), [("asked", 0), ("unasked", -signal.SIGBUS)])
@pytest.mark.parametrize("access", ["writable", "read-only"])
def test_a_map_shows_zeros_where_it_would_end_the_process(tmp_path: Path, how, code, access):
    (tmp_path / "file").write_bytes(b"a" * 65_536)
    looked = subprocess.run([sys.executable, "-c", LOOK, str(tmp_path / "file"), how, access], check=False)
    assert looked.returncode == code


def test_a_missing_lock_file_is_created_again_and_admits_no_other_broker(store):
    store.files.remove(f"{ROOT}/lock")
    with pytest.raises(StoreLockedError):
        make_store(store.files, store.clock).start()
    with pytest.raises(StoreInUseError):
        StoreReader(store.files, ROOT)
    store.clock.advance(1_000)
    store.store.maintain()
    assert store.files.read(f"{ROOT}/lock") == b"lock"
    with pytest.raises(AlreadyLockedError):
        store.files.lock(f"{ROOT}/lock")
    assert store.store.stop()
    store.start()


def test_a_lock_file_held_by_another_process_stops_the_writing(store):
    store.files.remove(f"{ROOT}/lock")
    other = store.files.lock(f"{ROOT}/lock")
    store.clock.advance(1_000)
    store.store.maintain()
    assert "another broker has the store's lock" in store.store.state().reason
    assert not store.store.stop()
    other.release()
    assert not store.start().was_clean


def test_the_lock_of_a_folder_holds_between_processes(tmp_path: Path):
    lock = OsFileSystem().lock_dir(str(tmp_path))
    program = f"from gantry.runtime.osfilesystem import OsFileSystem; OsFileSystem().lock_dir({str(tmp_path)!r})"
    tried = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "AlreadyLockedError" in tried.stderr
    lock.release()
    subprocess.run([sys.executable, "-c", program], check=True)


def blind(store: SmallStore, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Make the system fail for lack of memory when it is asked whether paths with `part` exist."""
    real = store.files.exists

    def exists(path: str) -> bool:
        if part in path:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path)
        return real(path)

    monkeypatch.setattr(store.files, "exists", exists)


def test_an_inaccessible_log_file_does_not_count_as_removed(store, monkeypatch):
    blind(store, monkeypatch, "/commitlog/000")
    store.clock.advance(1_000)
    store.store.maintain()
    store.put(1)
    assert store.store.max_physical_offset < 4 * FILE_BYTES, "it goes on in its file"
    store.put(PER_FILE)
    assert store.offsets() == list(range(MESSAGES + PER_FILE + 1))


def test_an_inaccessible_abort_file_does_not_count_as_missing(store, monkeypatch):
    store.kill()
    blind(store, monkeypatch, "/abort")
    with pytest.raises(StoreUnusableError, match=rf"Cannot allocate memory \({ROOT}/abort\)"):
        store.start()
