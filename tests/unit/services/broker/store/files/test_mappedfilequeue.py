"""MappedFileQueue: files in offset order, with holes, and the new files that a crash leaves."""

import errno

import pytest

from gantry.runtime.rng import Rng
from gantry.storeformat.layout import file_name
from services.broker.store.errors import CorruptStoreError, MisplacedError, StoreFullError
from services.broker.store.files.mappedfile import MappedFile
from services.broker.store.files.mappedfilequeue import MappedFileQueue, create_file
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock

FOLDER = "/q"


@pytest.fixture
def files() -> MemFileSystem:
    system = MemFileSystem(FakeClock())
    system.make_dirs(FOLDER)
    return system


def queue_of(files, *starts: int) -> MappedFileQueue:
    for start in starts:
        files.create(f"{FOLDER}/{file_name(start)}", 100).close()
    queue = MappedFileQueue(files, FOLDER, 100)
    queue.load()
    return queue


def test_an_empty_folder_and_a_missing_one(files):
    queue = queue_of(files)
    assert (queue.first, queue.last, queue.find(0), len(queue)) == (None, None, None, 0)
    MappedFileQueue(files, "/none", 100).load()


def test_files_are_found_by_offset(files):
    queue = queue_of(files, 200, 300, 500)
    assert [file.start for file in queue] == [200, 300, 500]
    assert queue.find(299).start == 200
    assert queue.find(300).start == 300
    assert queue.find(450) is None, "a hole"
    assert queue.find(199) is None
    assert queue.find(600) is None
    assert queue.following(301).start == 500
    assert queue.following(501) is None


def test_files_with_other_names_are_ignored(files):
    files.write(f"{FOLDER}/notes.txt", b"hello")
    files.make_dirs(f"{FOLDER}/folder")
    assert [file.start for file in queue_of(files, 0)] == [0]


def test_a_folder_with_the_name_of_a_file_is_refused(files):
    """A file with that name would have to be created later."""
    files.make_dirs(f"{FOLDER}/{file_name(100)}")
    with pytest.raises(MisplacedError, match=f"^{FOLDER}/{file_name(100)}: is a folder .* Move it away"):
        queue_of(files, 0)


def test_an_empty_last_file_is_removed(files):
    files.write(f"{FOLDER}/{file_name(100)}", b"")
    assert [file.start for file in queue_of(files, 0)] == [0]
    assert files.list_dir(FOLDER) == [file_name(0)]


def test_an_empty_file_in_the_middle_is_a_hole(files):
    files.write(f"{FOLDER}/{file_name(0)}", b"")
    files.create(f"{FOLDER}/{file_name(100)}", 100).close()
    queue = MappedFileQueue(files, FOLDER, 100)
    assert queue.load(is_derived=True) == [0]
    assert [file.start for file in queue] == [100]
    assert files.exists(queue.path_of(0)), "its name shows that records are missing"
    queue.close()
    assert MappedFileQueue(files, FOLDER, 100).load() == []
    assert files.list_dir(FOLDER) == [file_name(100)]


def test_unfinished_files_of_a_crash_are_removed(files):
    queue_of(files, 0, 100)
    for start, size in ((200, 99), (300, 1), (400, 0)):
        files.create(f"{FOLDER}/{file_name(start)}", size).close()
    files.create(f"{FOLDER}/{file_name(200)}.new", 57).close()
    files.write(f"{FOLDER}/notes.new", b"not ours")
    queue = MappedFileQueue(files, FOLDER, 100)
    queue.load()
    assert [file.start for file in queue] == [0, 100]
    assert files.list_dir(FOLDER) == [file_name(0), file_name(100), "notes.new"]
    assert not queue.was_repaired


def test_a_short_file_that_can_be_rebuilt_gets_its_full_size(files):
    files.create(f"{FOLDER}/{file_name(0)}", 60).map()[20:40] = b"x" * 20
    files.create(f"{FOLDER}/{file_name(100)}", 60).close()
    queue = MappedFileQueue(files, FOLDER, 100)
    assert queue.load(is_derived=True) == []
    assert [bytes(file.memory[0:100]) for file in queue] == [bytes(20) + b"x" * 20 + bytes(60)]
    assert queue.was_repaired
    assert files.list_dir(FOLDER) == [file_name(0)]


def test_a_durable_file_has_its_size_before_it_has_its_name(files):
    seen = []
    files.on_operation = lambda operation, path: seen.append((operation, path.rpartition("/")[2]))
    create_file(files, f"{FOLDER}/{file_name(0)}", 100, durable=True)
    name = file_name(0)
    assert seen == [("create", f"{name}.new"), ("sync", f"{name}.new"), ("replace", name), ("sync_dir", "q")]


@pytest.mark.parametrize(("start", "size"), [(0, 99), (0, 101), (50, 100)])
def test_a_wrong_size_or_place_is_refused_and_nothing_is_changed(files, start, size):
    files.create(f"{FOLDER}/{file_name(start)}", size).map()[98:99] = b"x"
    with pytest.raises(CorruptStoreError, match=f"has {size} bytes and starts at {start}; files of 100"):
        MappedFileQueue(files, FOLDER, 100).load()
    assert files.size_bytes(f"{FOLDER}/{file_name(start)}") == size


def test_a_write_continues_in_the_next_file(files):
    queue = queue_of(files, 0, 100, 200)
    queue.write(95, bytes(range(120)))
    data = b"".join(bytes(file.memory[0:100]) for file in queue)
    assert data == bytes(95) + bytes(range(120)) + bytes(85)
    assert all(file.is_dirty for file in queue)
    with pytest.raises(KeyError):
        queue.write(299, b"ab")


def test_files_are_added_at_the_end_and_into_holes(files):
    queue = queue_of(files, 0, 200)
    queue.add_file(300)
    queue.add_file(100)
    assert [file.start for file in queue] == [0, 100, 200, 300]
    assert queue.folder_is_dirty


def test_a_durable_file_survives_a_power_cut(files):
    files.sync_dir("/")
    queue_of(files).add_file(0, durable=True)
    for seed in range(20):
        assert files.crash_clone(Rng(seed)).size_bytes(f"{FOLDER}/{file_name(0)}") == 100


def test_a_full_disk_is_reported_and_changes_nothing(files):
    full = FaultFileSystem(files, FaultRule("create", error=errno.ENOSPC))
    queue = MappedFileQueue(full, FOLDER, 100)
    with pytest.raises(StoreFullError, match="can't be created: No space left"):
        queue.add_file(0)
    assert len(queue) == 0
    full.rules.clear()
    assert queue.add_file(0).end == 100


def test_a_new_file_that_could_not_be_synced_is_made_again(files):
    failing = FaultFileSystem(files, FaultRule("sync", times=1))
    queue = MappedFileQueue(failing, FOLDER, 100)
    with pytest.raises(StoreFullError):
        queue.add_file(0, durable=True)
    assert queue.add_file(0, durable=True).memory[0:100] == bytes(100)


def test_dropping_old_files_keeps_the_last_one(files):
    queue = queue_of(files, 0, 100, 200, 300)
    assert [file.start for file in queue.drop_before(250, count_max=10)] == [0, 100]
    assert [file.start for file in queue.drop_before(1000, count_max=1)] == [200]
    assert queue.drop_before(1000, count_max=10) == []
    assert queue.first.start == 300


def test_new_files_are_dropped_newest_first(files):
    queue = queue_of(files, 0, 100, 200)
    assert [file.start for file in queue.drop_from(100)] == [200, 100]
    assert queue.last.start == 0
    assert queue.find(150) is None


def test_a_hanged_file_is_not_closed(files):
    mapped = queue_of(files, 0).first
    view = memoryview(mapped.memory)
    assert not mapped.close()
    view.release()
    assert mapped.close()


def test_zero_from_counts_the_zeroed_bytes(files):
    mapped: MappedFile = queue_of(files, 0).first
    mapped.write(10, b"keep")
    mapped.write(40, b"\0torn\0\0here\0")
    assert mapped.written_range(20) == (41, 51)
    assert mapped.zero_from(20) == 10
    assert mapped.zero_from(20) == 0
    assert mapped.memory[0:100] == bytes(10) + b"keep" + bytes(86)


def test_bytes_written_during_a_sync_stay_dirty(files):
    mapped = queue_of(files, 0).first
    mapped.write(0, b"a")
    calls: list[str] = []
    files.on_operation = lambda operation, path: calls.append(operation) or setattr(mapped, "is_dirty", True)
    mapped.sync()
    assert calls == ["sync"]
    assert mapped.is_dirty
