"""The state of MemFileSystem after a power cut: a fake that lost nothing could not fail a test."""

import pytest

from gantry.runtime.rng import Rng
from tests.support.memfilesystem import MemFileSystem
from tests.support.memnode import PAGE_BYTES, SECTOR_BYTES
from tests.support.virtualtime import FakeClock

SEEDS = range(300)


@pytest.fixture
def files() -> MemFileSystem:
    system = MemFileSystem(FakeClock())
    system.create("/a", 4 * PAGE_BYTES).sync()
    system.sync_dir("/")
    return system


def contents(files: MemFileSystem, path: str = "/a") -> set[bytes | None]:
    clones = (files.crash_clone(Rng(seed)) for seed in SEEDS)
    return {clone.read(path) if clone.exists(path) else None for clone in clones}


def test_synced_bytes_are_always_kept(files):
    file = files.open("/a")
    file.map()[10:13] = b"abc"
    file.sync()
    assert contents(files) == {files.read("/a")}


def test_each_unsynced_page_may_be_kept_or_lost(files):
    memory = files.open("/a").map()
    for page in range(3):
        memory[page * PAGE_BYTES : page * PAGE_BYTES + 4] = b"page"
    found = {
        tuple(data[page * PAGE_BYTES : page * PAGE_BYTES + 4] == b"page" for page in range(3))
        for data in contents(files)
    }
    assert len(found) == 8, "every combination, later pages without earlier ones too"


def test_a_page_may_hold_an_older_write_and_tear_at_a_sector(files):
    memory = files.open("/a").map()
    memory[0:PAGE_BYTES] = b"1" * PAGE_BYTES
    memory[0:PAGE_BYTES] = b"2" * PAGE_BYTES
    found = {data[:PAGE_BYTES] for data in contents(files)}
    assert {b"\0" * PAGE_BYTES, b"1" * PAGE_BYTES, b"2" * PAGE_BYTES} < found
    for data in found:
        sectors = [data[at : at + SECTOR_BYTES] for at in range(0, PAGE_BYTES, SECTOR_BYTES)]
        assert all(len(set(sector)) == 1 for sector in sectors), "torn at sectors only"


def test_a_name_that_was_not_synced_may_be_gone_and_a_size_too(files):
    files.create("/b", 100).map()[0:1] = b"x"
    found = contents(files, "/b")
    assert {None, b"", bytes(100)} <= found


def test_name_changes_in_a_folder_take_effect_in_order(files):
    files.create("/b", 1)
    files.create("/c", 1)
    files.remove("/a")
    for seed in SEEDS:
        names = files.crash_clone(Rng(seed)).list_dir("/")
        assert names in (["a"], ["a", "b"], ["a", "b", "c"], ["b", "c"])


def test_a_rename_is_atomic(files):
    files.write("/t", b"new", durable=True)
    files.replace("/t", "/a")
    for seed in SEEDS:
        clone = files.crash_clone(Rng(seed))
        assert (clone.exists("/t"), clone.read("/a")) in ((True, bytes(4 * PAGE_BYTES)), (False, b"new"))


def test_a_small_file_that_is_not_durable_may_have_any_content(files):
    files.write("/s", b"old", durable=True)
    files.write("/s", b"newer")
    assert contents(files, "/s") >= {b"old", b"", b"newer", b"ne"}


def test_a_removed_folder_may_come_back(files):
    files.make_dirs("/d/e")
    files.sync_dir("/")
    files.remove_dir("/d/e")
    files.remove_dir("/d")
    assert {files.crash_clone(Rng(seed)).is_dir("/d") for seed in SEEDS} == {True, False}


def test_a_clone_of_a_clone_loses_nothing_more(files):
    files.open("/a").map()[0:4] = b"abcd"
    clone = files.crash_clone(Rng(5))
    assert contents(clone) == {clone.read("/a")}
