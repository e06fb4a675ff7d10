"""OpenFiles: which file it closes, how it runs out of descriptors, and which files are written and not synced."""

import errno

import pytest

from gantry.runtime.openfiles import OpenFiles, PooledFile
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock


@pytest.fixture
def files() -> FaultFileSystem:
    system = FaultFileSystem(MemFileSystem(FakeClock()))
    for name in "abcdefgh":
        system.create(f"/{name}", 100).close()
    return system


def pooled(pool: OpenFiles, names: str) -> list[PooledFile]:
    return [PooledFile(pool, f"/{name}", 100) for name in names]


def open_ones(*some: PooledFile) -> str:
    return "".join(each.path[1:] for each in some if each.file is not None)


def test_open_files_stay_within_the_budget_and_closed_files_are_reopened_for_reading(files):
    pool = OpenFiles(files, 3)
    some = pooled(pool, "abcdefgh")
    for _ in range(2):
        for number, each in enumerate(some):
            each.write(number, bytes([number + 1]))
            assert len(pool) <= 3
    assert [each.read(number, 1) for number, each in enumerate(some)] == [bytes([n + 1]) for n in range(8)]
    assert [each.read_now(7, 1) for each in some] == [bytes(1)] * 7 + [b"\x08"]


def test_a_file_used_often_stays_open_longer_than_files_used_once(files):
    pool = OpenFiles(files, 3)
    busy, *others = pooled(pool, "abcdefgh")
    busy.read(0, 1)
    first = busy.file
    for each in others:
        each.read(0, 1)
        busy.read(0, 1)
    assert busy.file is first


def test_if_the_process_has_no_descriptors_files_are_closed_and_the_open_is_retried(files):
    pool = OpenFiles(files, 8)
    some = pooled(pool, "abc")
    for each in some:
        each.read(0, 1)
    files.rules.append(FaultRule("open", error=errno.EMFILE, times=1))
    assert PooledFile(pool, "/d", 100).read(0, 1) == b"\0"
    assert open_ones(*some) == ""
    files.rules[:] = [FaultRule("open", error=errno.EMFILE)]
    with pytest.raises(OSError, match="Too many open files"):
        PooledFile(pool, "/e", 100).read(0, 1)
    files.rules[:] = [FaultRule("open", error=errno.EACCES, times=1)]
    with pytest.raises(PermissionError):
        PooledFile(pool, "/e", 100).read(0, 1)


def test_dirty_files_are_listed_once_with_their_bytes(files):
    pool = OpenFiles(files, 8)
    a, b, c = pooled(pool, "abc")
    a.write(0, bytes(60))
    a.write(0, bytes(60))
    b.write(0, bytes(60))
    c.allocate(0, 10)
    assert pool.take_due(100, 1) == [a]
    assert pool.take_due(0, 1) == [], "too many"
    dirty = pool.take_dirty()
    assert (set(dirty.files), dirty.was_closed) == ({b, c}, False)
    assert not pool.take_dirty().files


def test_a_file_closed_while_dirty_is_listed_until_everything_is_synced(files):
    pool = OpenFiles(files, 1)
    a, b = pooled(pool, "ab")
    a.write(0, b"x")
    b.write(0, b"x")
    assert pool.take_due(0, 9) == [], "a sync of single files may not show a failed write-back any more"
    assert pool.take_dirty().was_closed
    b.read(0, 1)
    a.read(0, 1)
    assert not pool.take_dirty().was_closed, "it was clean"


def test_a_held_file_is_not_closed_before_its_release(files):
    pool = OpenFiles(files, 2)
    a, b, c, d = pooled(pool, "abcd")
    a.write(0, b"x")
    b.write(0, b"x")
    held = pool.hold(pool.take_dirty().files)
    c.read(0, 1)
    d.read(0, 1)
    a.close()  # Its topic is deleted.
    for file in held:
        file.sync()
    assert open_ones(a, b) == "b"
    pool.release()
    assert len(pool) <= 2
    with pytest.raises(AssertionError, match="/a is closed"):
        held[0].sync()


def test_a_removed_file_is_not_dirty_and_its_closing_is_not_listed(files):
    pool = OpenFiles(files, 8)
    (a,) = pooled(pool, "a")
    a.write(0, b"x")
    a.close()
    assert pool.take_dirty() == ({}.keys(), False)


def test_closing_closes_all(files):
    pool = OpenFiles(files, 8)
    some = pooled(pool, "abc")
    for each in some:
        each.write(0, b"x")
    pool.close()
    assert (len(pool), open_ones(*some)) == (0, "")
