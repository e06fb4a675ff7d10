"""`python -m services.broker.store repair DIR`, and the store on a real disk with its real threads."""

import json
import os
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path

import pytest

from gantry.runtime.clock import SystemClock
from gantry.runtime.osfilesystem import OsFileSystem
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus
from tests.support.storeworkload import HOST, read_queue, small_settings

GOLDEN = Path(__file__).parents[1] / "conformance" / "golden"


def repair(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "services.broker.store", "repair", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def torn(tmp_path) -> Path:
    with tarfile.open(GOLDEN / "store-torn.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "store"


def test_a_damaged_store_is_repaired_once(torn):
    done = repair(str(torn))
    assert done.returncode == 0, done.stderr
    assert "2450 records between 0 and 1402856" in done.stdout
    assert "damaged: 403 bytes at 1398989 hold no valid record; kept as they are" in done.stdout
    assert "units of consume queues built again: 4" in done.stdout
    again = json.loads(repair(str(torn), "--json").stdout)
    assert (again["lost_bytes"], again["units_mended"], again["units_skipped"]) == (403, 0, 1)
    assert not (torn / "abort").exists()


def test_an_intact_store_needs_no_repair(tmp_path):
    with tarfile.open(GOLDEN / "store-clean.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    before = {path: path.read_bytes() for path in (tmp_path / "store").glob("c*/**/0*") if path.is_file()}
    done = repair(str(tmp_path / "store"))
    assert done.returncode == 0, done.stderr
    report = json.loads(repair(str(tmp_path / "store"), "--json").stdout)
    assert report["records"] == 2235
    assert (report["lost"], report["torn_bytes"], report["units_mended"], report["units_cut"]) == ([], 0, 0, 0)
    assert {path: path.read_bytes() for path in before} == before


def test_a_missing_store_and_a_store_in_use_are_reported_in_one_line(tmp_path):
    done = repair(str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == f"repair: {tmp_path / 'none'}: there is no such folder"
    store = MessageStore(
        small_settings(store_path_root_dir=str(tmp_path / "s")), files=OsFileSystem(), clock=SystemClock()
    )
    store.start()
    done = repair(str(tmp_path / "s"))
    assert done.returncode == 1
    assert "a broker runs on this store" in done.stderr.splitlines()[-1]
    assert store.stop()


def test_the_store_with_its_threads(tmp_path):
    """All activities of a broker with real files, real time and all workers at once."""
    settings = small_settings(
        store_path_root_dir=str(tmp_path / "s"), mapped_file_size_commit_log=1 << 16, max_index_num=500,
        mapped_file_size_consume_queue=2000, flush_consume_queue_thorough_interval=20, flush_interval_consume_queue=5,
    )  # fmt: skip
    flushed = threading.Semaphore(0)
    offsets: list[int] = []

    def on_flushed(offset: int) -> None:
        offsets.append(offset)
        flushed.release()

    store = MessageStore(
        settings, files=OsFileSystem(), clock=SystemClock(), on_flushed=on_flushed, process_id=os.getpid()
    )
    store.start()
    for number in range(3000):
        properties = f"UNIQ_KEY\x01U{number}\x02KEYS\x01k{number % 7}\x02".encode()
        result = store.put("T", number % 3, b"%d" % number * 20, properties, born_at_ms=1, born_host=HOST)
        assert result.status is PutStatus.OK
        if number % 20 == 0:
            store.request_flush()
            assert flushed.acquire(timeout=10)
            store.dispatch()
            store.maintain()
    store.request_flush()
    deadline = time.monotonic() + 10
    while store.flushed_offset < result.next_offset and time.monotonic() < deadline:
        flushed.acquire(timeout=1)
    store.dispatch()
    assert offsets == sorted(offsets)
    for queue_id in range(3):
        found = read_queue(store, "T", queue_id)
        assert [body for _, body, _ in found.values()] == [b"%d" % number * 20 for number in range(queue_id, 3000, 3)]
    assert store.delete_topic("T").result()
    assert store.stop()
    assert sorted(path.name for path in (tmp_path / "s").iterdir()) == [
        "checkpoint", "commitlog", "config", "consumequeue", "index", "lock",
    ]  # fmt: skip


def test_a_read_only_disk_is_reported_in_one_line(tmp_path):
    if os.geteuid() == 0:
        folder = "/proc/sys/store"  # No user, root included, can make a folder there.
    else:
        (tmp_path / "closed").mkdir(mode=0o500)
        folder = str(tmp_path / "closed" / "store")
    store = MessageStore(small_settings(store_path_root_dir=folder), files=OsFileSystem(), clock=SystemClock())
    with pytest.raises(Exception, match=f"the store {folder} can't be used: ") as refused:
        store.start()
    assert "\n" not in str(refused.value)
