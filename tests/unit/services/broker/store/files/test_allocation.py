"""Blocks allocated ahead of the write position: step sizes, nearly full disks, and sparse files of a foreign store."""

import contextlib
import errno

import pytest

from gantry.runtime.openfiles import OpenFiles
from gantry.storeformat.layout import file_name, index_file_bytes
from services.broker.store.errors import StoreFullError
from services.broker.store.files.allocation import MAPPED_UNIT_BYTES, allocate_ahead
from services.broker.store.files.pages import Pages
from services.broker.store.index.indexfile import IndexFile
from services.broker.store.index.keysearch import KeySearch
from services.broker.store.results import PutStatus
from tests.support.memfilesystem import MemFileSystem
from tests.support.memnode import PAGE_BYTES
from tests.support.storeworkload import HOST, make_store, small_settings
from tests.support.virtualtime import FakeClock

T0 = 1_700_000_000_000
LOG_BYTES = 64 << 10


class Ranges:
    """A file that records allocations, up to a limit."""

    def __init__(self, size_bytes: int, end_max: int) -> None:
        self.path = "/a"
        self.size_bytes = size_bytes
        self.ranges: list[tuple[int, int]] = []
        self._end_max = end_max

    def allocate(self, at: int, size: int) -> None:
        if at + size > self._end_max:
            raise OSError(errno.ENOSPC, "No space left on device", self.path)
        self.ranges.append((at, size))


def test_steps_double_up_to_the_limit_and_the_end_of_the_file():
    file, end = Ranges(100_000, 100_000), 0
    while end < 100_000:
        end = allocate_ahead(file, end, end + 1, step_max=32_768)
    assert [size for _, size in file.ranges] == [4096, 4096, 8192, 16384, 32768, 32768, 1696]
    assert allocate_ahead(Ranges(1 << 20, 1 << 20), 0, 50_000, step_max=4096) == 53_248, "as much as is needed"


def test_a_nearly_full_disk_allocates_only_the_needed_bytes():
    file = Ranges(1 << 20, 70_000)
    assert allocate_ahead(file, 65_536, 65_537, step_max=1 << 20) == 69_632
    with pytest.raises(StoreFullError, match="/a can't be extended: No space left on device"):
        allocate_ahead(file, 69_632, 70_001, step_max=1 << 20)


class Sparse:
    """A store whose last log file has blocks only for its data, on a disk of a given size."""

    def __init__(self, *, room: int) -> None:
        self.clock = FakeClock(T0)
        self.files = MemFileSystem(self.clock)
        self.store = self.open()
        for _ in range(5):
            assert self.put() is PutStatus.OK
        assert self.store.stop()
        (next_log,) = self.files.list_dir("/store/commitlog")[1:]
        self.files.remove(f"/store/commitlog/{next_log}")
        node = self.files._file(self.log_path)
        node.blocks = set(range(-(-len(bytes(node.memory).rstrip(b"\0")) // PAGE_BYTES)))
        self.files.capacity_bytes = self.files.used_bytes() + room
        self.store = self.open()

    @property
    def log_path(self) -> str:
        return f"/store/commitlog/{file_name(0)}"

    def open(self):
        changes = {"mapped_file_size_commit_log": LOG_BYTES, "message_index_enable": False}
        ratios = dict.fromkeys(("disk_max_used_space_ratio", "disk_space_warning_level_ratio"), 100)
        store = make_store(self.files, self.clock, small_settings(**changes, **ratios))
        store.start()
        return store

    def put(self, body: bytes = b"body" * 100) -> PutStatus:
        status = self.store.put("T", 0, body, b"", born_at_ms=1, born_host=HOST).status
        self.store.request_flush()
        self.store.dispatch()
        return status


def test_a_sparse_log_is_not_filled_by_opening_it():
    sparse = Sparse(room=40_000)
    assert sparse.files._file(sparse.log_path).used_bytes() < 4096
    assert sparse.store.stop()


def test_a_sparse_log_on_a_full_disk_refuses_writes_and_recovers():
    sparse = Sparse(room=20_000)
    count = 5
    while (status := sparse.put()) is PutStatus.OK:
        count += 1
    assert status is PutStatus.CREATE_FILE_FAILED
    end = sparse.store.max_physical_offset
    assert sparse.put() is PutStatus.CREATE_FILE_FAILED
    assert sparse.store.max_physical_offset == end
    assert 20 < count < 60
    sparse.files.capacity_bytes += 200_000
    sparse.store._log.maintain_files()  # The next file could not be preallocated; `maintain` retries every second.
    while sparse.store.max_physical_offset < LOG_BYTES:
        assert sparse.put() is PutStatus.OK, "the record goes to the next file, after filler"
        count += 1
    assert sparse.store.max_offset("T", 0) == count
    assert sparse.store.stop()


def test_a_record_too_large_for_any_file_takes_no_blocks():
    sparse = Sparse(room=400_000)
    before = sparse.files.used_bytes()
    assert sparse.put(bytes(LOG_BYTES)) is PutStatus.MESSAGE_ILLEGAL
    assert sparse.files.used_bytes() == before


def found(file: IndexFile, key_hash: int) -> list[int]:
    search = KeySearch([file], Pages(), key_hash, 64, begin_ms=0, end_ms=1 << 62)
    search.step(100)
    return list(search.found)


def test_a_sparse_index_file_gets_its_blocks_before_its_map_is_written():
    files = MemFileSystem(FakeClock())
    size = index_file_bytes(2_000, 500_000)
    pooled = OpenFiles(files, 8).adopt(files.create("/x", size, sparse=True))
    file = IndexFile("x", pooled, slots=2_000, entries=500_000)
    assert found(file, 7) == []
    assert files.used_bytes() == 0
    files.capacity_bytes = 4_000
    with pytest.raises(StoreFullError, match="/x can't be extended: No space left on device"):
        file.put(((7, 100, T0),))
    assert file.count == 1
    files.capacity_bytes = 5 << 20
    number = 0
    with contextlib.suppress(StoreFullError):
        while number < 500_000:
            file.put([(each, each * 100, T0) for each in range(number + 1, number + 101)])
            number += 100
    assert number == 209_300, "two units of 2 MiB, less head and slots"
    files.capacity_bytes = size
    file.put(((number, number * 100, T0),))
    file.write_header()
    assert found(file, number)[0] == number * 100


def test_files_that_are_mapped_get_blocks_for_whole_folios():
    file, end = Ranges(9 << 20, 9 << 20), 0
    while end < 9 << 20:
        end = allocate_ahead(file, end, end + 1, step_max=4096, unit=MAPPED_UNIT_BYTES)
    assert [at + size for at, size in file.ranges] == [2 << 20, 4 << 20, 6 << 20, 8 << 20, 9 << 20]
    with pytest.raises(StoreFullError):
        allocate_ahead(Ranges(9 << 20, 3 << 20), 2 << 20, (2 << 20) + 1, step_max=4096, unit=MAPPED_UNIT_BYTES)
