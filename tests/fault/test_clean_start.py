"""A start after an orderly stop reads no part of a long log again: the test counts the pages that were read."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from gantry.runtime.osfilesystem import OsFileSystem
from gantry.runtime.pagecache import resident_ranges
from tests.fault.openedstore import closed
from tests.support.storeworkload import HOST

FILE_BYTES = 256 << 10
FILES = 12


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stopped store whose log consists almost only of a deleted topic's messages."""
    kind = subprocess.run(["stat", "-fc", "%T", str(tmp_path)], capture_output=True, text=True, check=True).stdout
    if kind.strip() in {"tmpfs", "overlayfs"}:
        pytest.skip(f"{kind.strip()} does not tell which pages were read")
    folder = tmp_path / "store"
    store = closed(folder)
    store.start()
    put(store, "KEPT", 1)
    while store.max_physical_offset < FILES * FILE_BYTES:
        put(store, "BUSY", 100)
    assert store.delete_topic("BUSY").result()
    assert store.stop()
    return folder


def put(store, topic: str, count: int) -> None:
    for number in range(count):
        store.put(topic, 0, os.urandom(1000), b"UNIQ_KEY\x01%d\x02" % number, born_at_ms=1, born_host=HOST)
    store.request_flush()
    store.dispatch()


def drop(folder: Path) -> None:
    for path in folder.glob("commitlog/*"):
        assert OsFileSystem().drop_cache(str(path)) == 0
    assert bytes_in_memory(folder) == 0


def bytes_in_memory(folder: Path) -> int:
    total = 0
    for path in folder.glob("commitlog/*"):
        fd = os.open(path, os.O_RDWR)
        total += sum(end - start for start, end in resident_ranges(fd))
        os.close(fd)
    return total


def test_nothing_of_the_log_is_read_again(folder: Path):
    drop(folder)
    store = closed(folder)
    report = store.start()
    read = bytes_in_memory(folder)
    assert (report.was_clean, report.records, report.scanned_from) == (True, 0, report.log_end_offset)
    # The kernel reads ahead at most one window; the start reads the oldest record for its time.
    assert read <= 2 * 128 << 10, f"{read} of {FILES * FILE_BYTES} bytes were read"
    assert store.max_offset("KEPT", 0) == 1
    assert store.max_offset("BUSY", 0) == 0
    assert store.stop()


def test_a_store_without_its_last_file_is_scanned(folder: Path):
    end = json.loads((folder / "config/gantry.json").read_text())["clean_stop_offset"]
    last = end - end % FILE_BYTES
    for path in folder.glob("commitlog/*"):
        if int(path.name) >= last:  # Later files were preallocated.
            path.unlink()
    store = closed(folder)
    report = store.start()
    assert report.missing == ((last, last + FILE_BYTES),)
    assert report.scanned_from < report.log_end_offset
    assert store.stop()


def test_a_store_with_changed_queues_is_scanned(folder: Path):
    for path in folder.glob("consumequeue/KEPT/0/*"):
        path.unlink()
    store = closed(folder)
    assert store.start().units_mended == 1
    assert store.max_offset("KEPT", 0) == 1
    assert store.stop()
