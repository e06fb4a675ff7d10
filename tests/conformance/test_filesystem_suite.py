"""One suite for every FileSystem: the store sees no difference between the real one and the one in memory."""

import errno
import mmap
import os
import subprocess
import time
from pathlib import Path

import pytest

from gantry.runtime.errors import AlreadyLockedError, describe_os_error
from gantry.runtime.files import File, FileSystem, write_atomically
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.runtime.rng import Rng
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.memnode import PAGE_BYTES, BusError
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


def test_closing_is_refused_while_a_view_is_open(place):
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


def test_bytes_are_read_by_position_and_at_once_where_the_page_cache_has_them(place):
    files, root = place
    file = files.create(f"{root}/a", 10_000)
    file.map()[5_000:5_005] = b"hello"
    file.write(9_995, [b"end", b"!!"])
    assert file.read(4_999, 7) == b"\0hello\0"
    assert file.read(9_995, 5) == b"end!!"
    assert file.read(10_000, 0) == file.read(3, 0) == b""
    assert file.read_now(5_000, 5_000) == file.read(5_000, 5_000), "just written"
    file.close()
    file = files.open(f"{root}/a", writable=False)
    assert (file.read(0, 1), file.read_now(9_999, 1)) == (b"\0", b"!")
    file.close()


def test_a_mapped_file_lives_on_without_its_descriptor(place):
    files, root = place
    file = files.create(f"{root}/a", 100_000)
    memory = file.map()
    memory[0:5] = b"first"
    file.sync()
    file.drop_descriptor()
    memory[5:11] = b"second"
    assert bytes(memory[0:11]) == b"firstsecond"
    assert file.cached_end(0, 100) == 100
    file.sync()
    assert file.data_end(0) >= 11
    assert file.blank_unreadable(0, 100_000) == []
    file.prefetch(0, 100)
    file.write(11, [b"third"])
    assert memory[0:16] == b"firstsecondthird"
    file.allocate(20, 10)
    file.drop_descriptor()
    file.drop_descriptor()
    assert file.read(5, 6) == file.read_now(5, 6) == b"second"
    file.drop_descriptor()
    file.close()
    assert files.read(f"{root}/a")[:17] == b"firstsecondthird\0"


def test_a_file_without_a_descriptor_raises_if_its_path_is_gone(place):
    files, root = place
    file = files.create(f"{root}/a", 100)
    memory = file.map()
    memory[0:5] = b"first"
    file.drop_descriptor()
    files.remove(f"{root}/a")
    for use in (lambda: file.read(0, 5), file.sync, lambda: file.write(0, [b"x"]), lambda: file.data_end(0)):
        with pytest.raises(FileNotFoundError):
            use()
    assert memory[0:5] == b"first"
    file.close()


def blocks_of(files: FileSystem, path: str) -> int:
    """Return how many bytes of disk space a file takes."""
    if isinstance(files, OsFileSystem):
        return Path(path).stat().st_blocks * 512
    inner = files.inner if isinstance(files, FaultFileSystem) else files
    return inner.used_bytes()


def test_a_sparse_file_has_its_size_and_no_blocks_until_they_are_allocated(place):
    files, root = place
    file = files.create(f"{root}/a", 1 << 22, sparse=True)
    assert file.size_bytes == files.size_bytes(f"{root}/a") == 1 << 22
    assert blocks_of(files, f"{root}/a") == 0
    assert file.data_end(0) == 0
    assert file.read((1 << 22) - 5, 5) == bytes(5)
    file.write(5_000, [b"ab"])
    file.allocate(4_096, 8_192)
    file.map()[8_000:8_003] = b"map"
    assert file.read(5_000, 3) == b"ab\0"
    assert file.read(8_000, 4) == b"map\0"
    assert 8_003 <= file.data_end(0) <= 12_288 + 4_096
    file.sync()
    assert 8_192 <= blocks_of(files, f"{root}/a") <= 16_384
    file.close()
    files.open(f"{root}/a").close()
    assert blocks_of(files, f"{root}/a") <= 16_384, "a sparse file stays sparse"


def test_a_volume_makes_everything_durable_and_may_be_closed_twice(place):
    files, root = place
    volume = files.open_volume(root)
    assert volume is not None, "this kernel is older than 5.8"
    files.create(f"{root}/a", 100).write(0, [b"abc"])
    volume.sync()
    volume.close()
    volume.close()
    if isinstance(files, MemFileSystem):
        for seed in range(20):
            assert files.crash_clone(Rng(seed)).read(f"{root}/a")[:3] == b"abc"


def test_after_the_end_of_data_there_are_only_zeros(place):
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


def test_missing_and_existing_paths_raise(place):
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
    assert files.list_files(f"{root}/x") == [("a", 1), ("b", 1)]
    assert files.list_files(f"{root}/none") == []
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
    write_atomically(files, f"{root}/b", (piece for piece in (b"fo", b"", b"ur")))
    assert files.read(f"{root}/b") == b"four"
    assert files.list_dir(root) == ["b"]
    assert files.modified_ms(f"{root}/b") > 0


def test_a_lock_is_held_once_until_it_is_released(place):
    files, root = place
    lock = files.lock(f"{root}/lock")
    with pytest.raises(AlreadyLockedError):
        files.lock(f"{root}/lock")
    assert files.read(f"{root}/lock") == b""  # Opening, reading and closing the file must not release the lock.
    with pytest.raises(AlreadyLockedError):
        files.lock(f"{root}/lock")
    lock.release()
    files.lock(f"{root}/lock").release()


def test_a_lock_knows_whether_its_file_is_there(place):
    files, root = place
    lock = files.lock(f"{root}/lock")
    assert lock.is_current()
    files.remove(f"{root}/lock")
    assert not lock.is_current()
    other = files.lock(f"{root}/lock")
    assert not lock.is_current()
    assert other.is_current()
    lock.release()
    other.release()


def test_a_folder_stays_locked_when_its_files_are_removed(place):
    files, root = place
    lock = files.lock_dir(root)
    assert lock.is_current()
    with pytest.raises(AlreadyLockedError):
        files.lock_dir(root)
    files.lock(f"{root}/lock").release()
    files.remove(f"{root}/lock")
    with pytest.raises(AlreadyLockedError):
        files.lock_dir(root)
    lock.release()
    files.lock_dir(root).release()
    with pytest.raises(FileNotFoundError):
        files.lock_dir(f"{root}/none")


def test_a_file_keeps_its_bytes_after_its_cache_is_dropped(place):
    files, root = place
    file = files.create(f"{root}/a", 100_000)
    file.write(50_000, [b"abc"])
    file.close()
    files.drop_cache(f"{root}/a")
    file = files.open(f"{root}/a")
    assert file.map()[49_999:50_004] == b"\0abc\0"
    assert file.read(49_999, 5) == b"\0abc\0"
    assert file.blank_unreadable(0, 100_000) == []
    file.close()
    with pytest.raises(FileNotFoundError):
        files.drop_cache(f"{root}/none")


def test_disk_usage_is_a_share(place):
    files, root = place
    usage = files.disk_usage(root)
    assert usage.used >= 0
    assert usage.usable > 0
    assert 0 <= usage.percent <= 100


def test_allocated_bytes_are_those_of_one_file(place):
    files, root = place
    files.create(f"{root}/a", 64 << 10).close()
    files.create(f"{root}/b", 1 << 20).close()
    assert 64 << 10 <= files.allocated_bytes(f"{root}/a") < 1 << 20 <= files.allocated_bytes(f"{root}/b") < 2 << 20
    with pytest.raises(FileNotFoundError):
        files.allocated_bytes(f"{root}/none")


def test_fault_rules_match_by_name_path_and_count():
    files = FaultFileSystem(MemFileSystem(FakeClock()), FaultRule("sync", "*/b", errno.EIO, after=1, times=1))
    one, two = files.create("/a", 8), files.create("/b", 8)
    one.sync()
    two.sync()
    with pytest.raises(OSError) as failed:
        two.sync()
    assert failed.value.errno == errno.EIO
    two.sync()
    one.sync()


def test_fault_rules_apply_to_a_file_and_a_volume():
    files = FaultFileSystem(MemFileSystem(FakeClock()))
    file, volume = files.create("/a", 8, sparse=True), files.open_volume("/")
    calls = {
        "pread": lambda: (file.read(0, 1), file.read_now(0, 1)),
        "allocate": lambda: file.allocate(0, 8),
        "pwrite": lambda: file.write(0, [b"a"]),
        "syncfs": volume.sync,
    }
    for operation, call in calls.items():
        call()
        files.rules[:] = [FaultRule(operation, times=1)]
        with pytest.raises(OSError, match="Input/output error"):
            call()
        call()


def test_a_full_disk_refuses_to_fill_a_hole_and_writing_through_a_map_ends_the_process():
    files = MemFileSystem(FakeClock(), capacity_bytes=4 * PAGE_BYTES)
    file = files.create("/a", 8 * PAGE_BYTES, sparse=True)
    file.allocate(0, 4 * PAGE_BYTES)
    for fill in (lambda: file.allocate(0, 5 * PAGE_BYTES), lambda: file.write(4 * PAGE_BYTES, [b"x"])):
        with pytest.raises(OSError) as full:
            fill()
        assert full.value.errno == errno.ENOSPC
    with pytest.raises(BusError, match="/a has a hole"):
        file.map()[4 * PAGE_BYTES : 4 * PAGE_BYTES + 1] = b"x"
    file.map()[0:1] = b"x"


def test_every_byte_of_a_hot_file_is_in_memory(place):
    files, root = place
    file = files.create(f"{root}/a", 20_000)
    file.map()
    file.write(0, [b"x" * 20_000])
    for at, end in ((0, 20_000), (0, 1), (4_095, 4_097), (5_000, 19_999), (19_999, 20_000)):
        assert file.cached_end(at, end) == end
    file.prefetch(0, 20_000)
    file.close()  # The question must not leave behind a view that keeps the map open.


def test_no_byte_of_a_cold_path_is_in_memory():
    files = MemFileSystem(FakeClock())
    file = files.create("/a", 8)
    files.cold.add("/a")
    assert file.cached_end(2, 8) == 2
    assert files.cold_touches == []
    assert file.map()[2:4] == bytes(2)
    assert files.cold_touches == ["/a"]


def test_the_real_page_cache_is_asked_page_by_page_without_reading(tmp_path):
    path, page = tmp_path / "a", mmap.PAGESIZE
    skip_without_page_cache(tmp_path)
    path.write_bytes(b"x" * 64 * page)
    file = OsFileSystem().open(str(path))
    file.map()
    drop_pages(file, path, range(64))
    assert file.cached_end(100, 64 * page) == 100
    file.read(20 * page, 1)  # The read loads its page, and perhaps some pages after it.
    assert file.cached_end(20 * page + 7, 20 * page + 9) == 20 * page + 9
    assert file.cached_end(19 * page, 64 * page) == 19 * page
    assert file.cached_end(0, 64 * page) == 0
    file.map()[0:1]
    assert file.cached_end(0, 1) == 1
    file.close()


def test_a_cold_path_is_read_but_not_at_once():
    files = MemFileSystem(FakeClock())
    file = files.create("/a", 8)
    files.cold.add("/a")
    assert (file.read_now(0, 8), file.read(0, 8)) == (None, bytes(8))


def test_the_real_page_cache_is_asked(tmp_path):
    skip_without_page_cache(tmp_path)
    file = OsFileSystem().create(f"{tmp_path}/a", 1 << 20)
    file.write(0, [bytes(range(256)) * 4_096])
    file.sync()
    file.map()
    # The kernel starts to read the pages that it lacks, and a quick disk may have the first ones before the call returns.
    # So the read is much longer than what the kernel reads ahead.
    at, half = 512 << 10, bytes(range(256)) * 2_048
    for _ in range(50):
        drop_pages(file, tmp_path / "a", range(128, 256))
        found = file.read_now(at, len(half))
        if found is None:
            break
        assert found == half
    assert found is None
    assert file.read(at, len(half)) == half
    assert file.read_now(at, len(half)) == half
    file.close()


def skip_without_page_cache(folder: Path) -> None:
    """Skip a test if the file system can't tell which pages are in memory."""
    kind = subprocess.run(["stat", "-fc", "%T", str(folder)], capture_output=True, text=True, check=True).stdout.strip()
    if kind in {"tmpfs", "overlayfs"}:
        pytest.skip(f"the folder for temporary files lies in a {kind}, which can't tell what is in memory")


def drop_pages(file: File, path: Path, numbers: range) -> None:
    """Remove pages of a file from the page cache."""
    page = mmap.PAGESIZE
    deadline = time.monotonic() + 10
    with path.open("rb") as other:
        os.fsync(other.fileno())
        # The kernel keeps pages that a processor has not put into the LRU lists yet, so the call is repeated.
        while any(file.cached_end(number * page, (number + 1) * page) > number * page for number in numbers):
            assert time.monotonic() < deadline, "the kernel keeps pages that it was told to drop"
            os.posix_fadvise(other.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_after_a_failed_sync_memory_shows_bytes_that_the_disk_lacks():
    files = MemFileSystem(FakeClock())
    file = files.create("/a", 1024)
    file.map()[0:3] = b"one"
    file.sync()

    def fail(operation: str, path: str) -> None:
        raise OSError(errno.EIO, "Input/output error", path)

    file.map()[3:6] = b"two"
    file.map()[600:605] = b"three"
    files.on_operation = fail
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    files.on_operation = None
    file.map()[6:10] = b"four"
    file.sync()
    assert file.read(0, 10) + file.read(600, 5) == b"onetwofourthree"
    file.close()
    files.drop_cache("/a")
    file = files.open("/a")
    assert file.read(0, 10) + file.read(600, 5) == b"onetwofour" + bytes(5), "a page is written as a whole"


def test_drop_cache_keeps_the_pages_that_another_process_maps(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"a" * 100_000)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        assert held[99_999] == ord("a")  # A page that a process has touched stays in the cache.
        assert OsFileSystem().drop_cache(str(path)) in {0, 102_400}


@pytest.mark.parametrize("operation", ["read", "read_now", "write", "allocate", "sync"])
def test_an_error_of_an_open_file_names_the_file(tmp_path, operation):
    """A system call on a descriptor names no file: the reason of a failed flush read "Input/output error ()"."""
    path = f"{tmp_path}/a"
    file = OsFileSystem().create(path, 8192)
    os.close(file._fd)
    calls = {
        "read": lambda: file.read(0, 1),
        "read_now": lambda: file.read_now(0, 1),
        "write": lambda: file.write(0, [b"a"]),
        "allocate": lambda: file.allocate(0, 8192),
        "sync": file.sync,
    }
    with pytest.raises(OSError) as failed:
        calls[operation]()
    file._fd = -1
    assert (failed.value.errno, failed.value.filename) == (errno.EBADF, path)
    assert describe_os_error(failed.value) == f"Bad file descriptor ({path})"


def test_reasons_are_never_empty():
    assert describe_os_error(OSError(errno.EIO, "Input/output error")) == "Input/output error"
    assert describe_os_error(OSError("only a text")) == "only a text"
    assert describe_os_error(OSError()) == "OSError"


def test_a_kernel_without_cache_information_names_no_bytes(tmp_path, monkeypatch):
    file = OsFileSystem().create(f"{tmp_path}/a", 8192)
    file.map()
    file.write(0, [b"a" * 8192])
    assert file.cached_end(5, 8192) == 8192
    monkeypatch.setattr("gantry.runtime.osfile._mincore", lambda *arguments: -1)
    assert file.cached_end(5, 8192) == 5
    file.close()


def test_an_inaccessible_path_is_not_a_missing_path(tmp_path):
    """A start that ran out of memory took the abort file for missing, and so took a crash for an orderly stop."""
    files, loop = OsFileSystem(), f"{tmp_path}/loop"
    Path(loop).symlink_to(loop)
    for ask in (files.exists, files.is_dir, files.make_dirs):
        with pytest.raises(OSError) as failed:
            ask(loop)
        assert failed.value.errno == errno.ELOOP
    files.write(f"{tmp_path}/a", b"")
    assert not files.exists(f"{tmp_path}/a/b")
    with pytest.raises(FileExistsError):
        files.make_dirs(f"{tmp_path}/a")
    files.make_dirs(str(tmp_path))
