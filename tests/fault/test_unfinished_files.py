"""A power cut during the creation of files leaves files of any size; the start and `repair` must handle them."""

import os
from pathlib import Path

import pytest

from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.findings import Result
from gantry.storeformat.layout import INDEX_DIR, file_name, index_file_bytes
from gantry.storeformat.scan import StoreReader
from gantry.storeformat.verify import verify
from services.broker.store.__main__ import main as store_main
from services.broker.store.errors import CorruptStoreError
from tests.fault.brokers import SMALL_FILES
from tests.fault.openedstore import closed, opened
from tests.support.smallstore import FILE_BYTES, PER_FILE, SmallStore
from tests.support.storeworkload import HOST, ROOT, make_store, small_settings

MESSAGES = PER_FILE + 5
LOG_BYTES = SMALL_FILES["mapped_file_size_commit_log"]
QUEUE_BYTES = SMALL_FILES["mapped_file_size_consume_queue"]
SIZES = (0, 1, 4096, 25_000, LOG_BYTES - 1)


@pytest.fixture
def store() -> SmallStore:
    small = SmallStore()
    small.put(MESSAGES)
    small.kill()
    return small


def remake(store: SmallStore, path: str, size: int) -> None:
    if store.files.exists(path):
        store.files.remove(path)
    store.files.create(path, size).close()


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("size", [0, 1, 200, FILE_BYTES - 1])
def test_short_files_without_records_are_dropped(store, size, thorough):
    for number in (2, 3, 5):
        remake(store, store.log_path(number), size)
    remake(store, f"{store.log_path(6)}.new", size)
    report = store.start(thorough=thorough)
    assert (report.lost, report.missing) == ((), ())
    assert store.offsets() == list(range(MESSAGES))
    store.put(2 * PER_FILE)
    store.cut_power()
    store.start()
    assert store.offsets() == list(range(MESSAGES + 2 * PER_FILE))


@pytest.mark.parametrize("thorough", [False, True])
@pytest.mark.parametrize("size", [0, 1, 20, 199])
def test_short_queue_and_index_files_are_built_again(store, size, thorough):
    for number in (0, 2):
        remake(store, f"{ROOT}/consumequeue/T/0/{file_name(number * 200)}", size)
    remake(store, f"{ROOT}/{INDEX_DIR}/29991231235959999", min(size, index_file_bytes(8, 32) - 1))
    store.start(thorough=thorough)
    assert store.offsets() == list(range(MESSAGES))
    assert store.files.list_dir(f"{ROOT}/{INDEX_DIR}") == []


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_truncated_queue_file_is_built_again(how):
    store = SmallStore()
    store.put(MESSAGES)
    store.checkpoint()
    assert how == "kill" or store.store.stop()
    store.kill()
    path = f"{ROOT}/consumequeue/T/0/{file_name(0)}"
    content = store.files.read(path)
    remake(store, path, 90)
    store.files.open(path).map()[0:90] = content[:90]
    store.start()
    assert store.files.read(path) == content
    assert store.offsets() == list(range(MESSAGES))


@pytest.mark.parametrize("how", ["stop", "kill", "repair"])
@pytest.mark.parametrize("added", [1, 20, 200, 700])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_queue_file_that_is_too_long_is_cut(number: int, added: int, how: str):
    store = SmallStore()
    store.put(MESSAGES)
    store.checkpoint()
    assert how != "stop" or store.store.stop()
    store.kill()
    folder = f"{ROOT}/consumequeue/T/0"
    before = {name: store.files.read(f"{folder}/{name}") for name in store.files.list_dir(folder)}
    assert len(before) == 3
    path = f"{folder}/{list(before)[number]}"
    content = store.files.read(path)
    store.files.write(path, content + b"\1" * added)
    store.start(thorough=how == "repair")
    assert {name: store.files.read(f"{folder}/{name}") for name in store.files.list_dir(folder)} == before
    assert store.offsets() == list(range(MESSAGES))


@pytest.mark.parametrize("how", ["stop", "kill", "repair"])
def test_queue_files_of_another_setting_among_others_are_built_again(how: str):
    """An operator copied a queue's folder from a store with another mapped_file_size_consume_queue."""
    store = SmallStore()
    store.put(MESSAGES)
    store.put(3, "U")
    store.checkpoint()
    assert how != "stop" or store.store.stop()
    store.kill()
    folder = f"{ROOT}/consumequeue/T/0"
    before = {name: store.files.read(f"{folder}/{name}") for name in store.files.list_dir(folder)}
    units = b"".join(before.values())
    for name in before:
        store.files.remove(f"{folder}/{name}")
    for start in range(0, len(units), 300):
        store.files.write(f"{folder}/{file_name(start)}", units[start : start + 300].ljust(300, b"\0"))
    store.start(thorough=how == "repair")
    assert {name: store.files.read(f"{folder}/{name}") for name in store.files.list_dir(folder)} == before
    assert store.offsets() == list(range(MESSAGES))


@pytest.mark.parametrize("size", [20 * 5, 20 * 9, 20 * 20])
def test_another_setting_of_the_queue_files_size_is_named(size: int):
    store = SmallStore()
    store.put(MESSAGES)
    assert store.store.stop()
    folder = f"{ROOT}/consumequeue/T/0"
    before = {name: store.files.read(f"{folder}/{name}") for name in store.files.list_dir(folder)}
    for thorough in (False, True):
        other = make_store(store.files, store.clock, small_settings(mapped_file_size_consume_queue=size))
        with pytest.raises(CorruptStoreError, match="mapped_file_size_consume_queue=200"):
            other.start(thorough=thorough)
    assert {name: store.files.read(f"{folder}/{name}") for name in store.files.list_dir(folder)} == before
    store.start()
    assert store.offsets() == list(range(MESSAGES))


@pytest.mark.parametrize("how", ["stop", "kill", "repair"])
@pytest.mark.parametrize("size", [0, 90, 200])
def test_a_temporary_file_beside_the_queue_file_under_repair_is_removed(size: int, how: str):
    """A kill came after the new file was made, and before it replaced the short one."""
    store = SmallStore()
    store.put(MESSAGES)
    store.checkpoint()
    assert how != "stop" or store.store.stop()
    store.kill()
    path = f"{ROOT}/consumequeue/T/0/{file_name(0)}"
    content = store.files.read(path)
    store.files.write(path, content[:90])
    store.files.create(f"{path}.new", size).close()
    store.start(thorough=how == "repair")
    assert not store.files.exists(f"{path}.new")
    assert store.files.read(path) == content
    assert store.offsets() == list(range(MESSAGES))


def test_a_short_log_file_with_records_is_left_to_the_operator(store):
    content = store.files.read(store.log_path(1))
    remake(store, store.log_path(1), 1000)
    store.files.open(store.log_path(1)).map()[0:1000] = content[:1000]
    with pytest.raises(CorruptStoreError, match=r"has 1000 bytes .*`truncate -s 4096`"):
        store.start()
    assert store.files.read(store.log_path(1)) == content[:1000]


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A real store with 100 messages, as a kill leaves it."""
    folder = tmp_path / "store"
    store = closed(folder)
    store.start()
    store.put("U", 0, b"", b"", born_at_ms=1, born_host=HOST)
    store.stop()
    store = closed(folder)
    store.start()
    for number in range(100):
        store.put("T", 0, bytes(1000), b"UNIQ_KEY\x01%d\x02" % number, born_at_ms=1, born_host=HOST)
    store.write_out()
    store._close()
    assert (folder / "abort").exists()
    return folder


@pytest.mark.parametrize("size", SIZES)
def test_a_real_store_starts_and_is_repaired(killed: Path, size: int):
    queue = killed / "consumequeue" / "T" / "0"
    paths = [killed / "commitlog" / file_name(start) for start in (LOG_BYTES, 2 * LOG_BYTES)]
    for path, most in ((paths[0], LOG_BYTES), (paths[1], LOG_BYTES), (queue / file_name(0), QUEUE_BYTES)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            if size:
                os.posix_fallocate(file.fileno(), 0, min(size, most - 1))
    with StoreReader(OsFileSystem(), str(killed)) as reader:
        report = verify(reader)
    assert report.result is Result.NEEDS_RECOVERY, report.findings
    assert store_main(["repair", str(killed)]) == 0
    with opened(killed) as store:
        assert store.report.was_clean
        assert store.store.max_offset("T", 0) == 100
        assert store.store.max_physical_offset < LOG_BYTES
