"""One suite for every FileSystem: the real one and the one in memory must not be told apart by the store."""

import errno

import pytest

from gantry.runtime.errors import AlreadyLockedError
from gantry.runtime.files import FileSystem, OsFileSystem, write_atomically
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock


@pytest.fixture(params=["os", "mem", "fault over mem"])
def place(request, tmp_path) -> tuple[FileSystem, str]:
    if request.param == "os":
        return OsFileSystem(), str(tmp_path)
    files = MemFileSystem(FakeClock())
    files.make_dirs("/store")
    return (FaultFileSystem(files), "/store") if request.param.startswith("fault") else (files, "/store")


def test_a_created_file_is_zeros_and_keeps_what_is_written(place):
    files, root = place
    file = files.create(f"{root}/a", 1000)
    memory = file.map()
    assert len(memory) == file.size_bytes == files.size_bytes(f"{root}/a") == 1000
    assert memory[0:1000] == bytes(1000)
    memory[10:15] = b"hello"
    memory[20:23] = memoryview(b"abc")
    file.sync()
    file.close()
    again = files.open(f"{root}/a")
    assert again.map()[10:15] == b"hello"
    assert again.map()[20:23] == b"abc"
    assert files.read(f"{root}/a")[8:17] == b"\0\0hello\0\0"
    again.close()


def test_a_slice_of_a_map_is_bytes_and_maps_of_one_file_agree(place):
    files, root = place
    file, other = files.create(f"{root}/a", 64), files.open(f"{root}/a")
    file.map()[0:3] = b"abc"
    assert isinstance(file.map()[0:3], bytes)
    assert file.map() is file.map()
    assert other.map()[0:3] == b"abc"
    assert other.map().find(b"bc") == 1
    assert other.map()[1] == ord("b")
    file.close()
    other.close()


def test_slice_assignment_may_not_change_the_length(place):
    files, root = place
    file = files.create(f"{root}/a", 64)
    with pytest.raises(IndexError):
        file.map()[0:3] = b"four"
    assert len(file.map()) == 64
    file.close()


def test_a_file_opened_for_reading_is_not_written(place):
    files, root = place
    files.create(f"{root}/a", 64).close()
    file = files.open(f"{root}/a", writable=False)
    with pytest.raises(TypeError):
        file.map()[0:3] = b"abc"
    file.close()


def test_closing_is_refused_while_somebody_looks(place):
    files, root = place
    file = files.create(f"{root}/a", 64)
    view = memoryview(file.map())
    with pytest.raises(BufferError):
        file.close()
    view.release()
    file.close()
    file.close()


def test_pieces_are_written_in_a_row_and_seen_through_the_map(place):
    files, root = place
    file = files.create(f"{root}/a", 100_000)
    memory = file.map()
    memory[8:12] = b"left"
    file.write(10, [])
    file.write(10, [b"ab", b"", b"cde"])
    assert memory[0:20] == bytes(8) + b"leabcde" + bytes(5)
    pieces = [bytes([number % 251]) * 30 for number in range(3000)]
    file.write(50, pieces)
    assert memory[50:90_050] == b"".join(pieces)
    assert memory[90_050:100_000] == bytes(9_950)
    file.sync()
    file.close()
    assert files.read(f"{root}/a")[50:90_050] == b"".join(pieces)


def test_behind_the_end_of_data_there_are_only_zeros(place):
    files, root = place
    file = files.create(f"{root}/a", 1 << 20)
    assert file.data_end(0) in {0, 1 << 20}
    file.map()[70_000:70_005] = b"abcde"
    for _ in range(2):
        end = file.data_end(0)
        assert end >= 70_005
        assert file.map()[end : 1 << 20] == bytes((1 << 20) - end)
        assert file.data_end(70_004) >= 70_005
        assert file.data_end(1 << 20) == 1 << 20
        file.sync()
    file.close()


def test_what_is_missing_or_there_already_is_said(place):
    files, root = place
    files.create(f"{root}/a", 8).close()
    with pytest.raises(FileExistsError):
        files.create(f"{root}/a", 8)
    for call in (files.open, files.read, files.remove, files.size_bytes, files.modified_ms, files.sync_dir):
        with pytest.raises(FileNotFoundError):
            call(f"{root}/none")
    with pytest.raises(FileNotFoundError):
        files.create(f"{root}/none/a", 8)
    assert files.list_dir(f"{root}/none") == []
    assert not files.exists(f"{root}/none")
    assert not files.is_dir(f"{root}/a")


def test_folders(place):
    files, root = place
    files.make_dirs(f"{root}/x/y")
    files.make_dirs(f"{root}/x/y")
    files.write(f"{root}/x/b", b"1")
    files.write(f"{root}/x/a", b"2")
    assert files.list_dir(f"{root}/x") == ["a", "b", "y"]
    assert files.is_dir(f"{root}/x/y")
    files.sync_dir(f"{root}/x")
    with pytest.raises(OSError) as refused:
        files.remove_dir(f"{root}/x")
    assert refused.value.errno == errno.ENOTEMPTY
    files.remove_dir(f"{root}/x/y")
    files.remove(f"{root}/x/a")
    assert files.list_dir(f"{root}/x") == ["b"]


def test_small_files_and_renaming(place):
    files, root = place
    files.write(f"{root}/a", b"one")
    files.write(f"{root}/a", b"two", durable=True)
    assert files.read(f"{root}/a") == b"two"
    files.write(f"{root}/b", b"other")
    files.replace(f"{root}/a", f"{root}/b")
    assert files.read(f"{root}/b") == b"two"
    assert files.list_dir(root) == ["b"]
    write_atomically(files, f"{root}/b", b"three")
    assert files.read(f"{root}/b") == b"three"
    assert files.list_dir(root) == ["b"]
    assert files.modified_ms(f"{root}/b") > 0


def test_a_lock_is_held_once_until_it_is_released(place):
    files, root = place
    lock = files.lock(f"{root}/lock")
    with pytest.raises(AlreadyLockedError):
        files.lock(f"{root}/lock")
    assert files.read(f"{root}/lock") == b""  # Reading, and so opening and closing, must not give it back.
    with pytest.raises(AlreadyLockedError):
        files.lock(f"{root}/lock")
    lock.release()
    files.lock(f"{root}/lock").release()


def test_disk_usage_is_a_share(place):
    files, root = place
    usage = files.disk_usage(root)
    assert usage.used >= 0
    assert usage.usable > 0
    assert 0 <= usage.percent <= 100


def test_faults_strike_by_name_path_and_count():
    files = FaultFileSystem(MemFileSystem(FakeClock()), FaultRule("sync", "*/b", errno.EIO, after=1, times=1))
    one, two = files.create("/a", 8), files.create("/b", 8)
    one.sync()
    two.sync()
    with pytest.raises(OSError) as failed:
        two.sync()
    assert failed.value.errno == errno.EIO
    two.sync()
    one.sync()
