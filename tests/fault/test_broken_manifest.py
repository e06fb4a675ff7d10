"""A manifest (`config/gantry.json`) that can't be parsed: the start says so, and `gantry store repair` does it."""

import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.findings import Result
from gantry.storeformat.scan import StoreReader
from gantry.storeformat.verify import verify
from services.broker.store.errors import StoreFormatError
from tests.support.smallstore import PER_FILE, SmallStore
from tests.support.storeworkload import ROOT, make_store, small_settings
from tests.support.virtualtime import FakeClock

MESSAGES = 3 * PER_FILE + 5
MARK = f"{ROOT}/config/gantry.json"
BROKEN = {
    "torn": (b'{"format_version": 1, "rec', "is not JSON"),
    "empty": (b"", "is not JSON"),
    "zeros": (bytes(80), "is not JSON"),
    "list": (b"[]", "is not a JSON object"),
    "version": (b'{"format_version": "1"}', "format_version is '1'"),
    "offset": (b'{"format_version": 1, "record_checksum_from": -5}', "record_checksum_from is -5"),
}


@pytest.fixture
def store() -> SmallStore:
    small = SmallStore()
    small.put(MESSAGES)
    small.checkpoint()
    return small


@pytest.mark.parametrize(("content", "reason"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_start_refuses_and_says_what_to_do_and_a_repair_does_it(store, how, content, reason):
    assert how == "kill" or store.store.stop()
    store.kill()
    store.files.write(MARK, content, durable=True)
    with pytest.raises(StoreFormatError) as refused:
        store.start()
    for words in (MARK, reason, f"gantry store repair {ROOT}", "docs/formats/config.md"):
        assert words in str(refused.value)
    assert store.files.read(MARK) == content, "nothing is changed"

    report = store.start(thorough=True)
    assert report.records == MESSAGES
    assert (report.lost, report.units_cut, report.torn_bytes) == ((), 0, 0)
    assert store.offsets() == list(range(MESSAGES))
    assert store.files.read(f"{MARK}.broken") == content
    store.put(3)
    assert store.store.stop()
    with StoreReader(store.files, ROOT) as reader:
        assert verify(reader).result is Result.OK
    store.start()
    assert store.offsets() == list(range(MESSAGES + 3))


def test_a_repair_that_is_cut_off_leaves_the_broken_manifest(store):
    assert store.store.stop()
    store.files.write(MARK, b"{", durable=True)
    for count in itertools.count(step=5):
        store.cut_power(seed=count)
        if store.files.read(MARK) != b"{":
            store.start()  # The new manifest is the last file that the repair writes.
            break
        with pytest.raises(StoreFormatError):
            store.start()
        cut = store.files.on_operation = _Cut(count)
        try:
            store.start(thorough=True)
        except _PowerCutError:
            store.kill()
            continue
        cut.is_over = True
        break
    assert count > 30, "it was cut off at many places"
    assert store.offsets() == list(range(MESSAGES))
    assert store.store.stop()


class _PowerCutError(Exception):
    pass


class _Cut:
    def __init__(self, after: int) -> None:
        self._left = after
        self.is_over = False

    def __call__(self, operation: str, path: str) -> None:
        self._left -= 1
        if self._left < 0 and not self.is_over:
            raise _PowerCutError


def test_deleted_topics_may_be_back_after_the_repair_and_live_ones_are_whole(store):
    """Another broker may have written the log meanwhile, so the repair keeps every message that might be needed."""
    store.put(2, topic="U")
    assert store.store.delete_topic("T").result() is True
    assert store.store.stop()
    store.files.write(MARK, b"{", durable=True)
    store.start(thorough=True)
    assert store.store.max_offset("U", 0) == 2
    assert store.store.max_offset("T", 0) == MESSAGES


def test_a_newer_mark_is_left_to_the_newer_release(store):
    assert store.store.stop()
    store.files.write(MARK, b'{"format_version": 2}', durable=True)
    for thorough in (False, True):
        with pytest.raises(StoreFormatError, match="use the release that wrote it"):
            store.start(thorough=thorough)
    assert store.files.read(MARK) == b'{"format_version": 2}'


def test_the_command_repairs_it(tmp_path: Path):
    root = str(tmp_path / "store")
    store = make_store(OsFileSystem(), FakeClock(), small_settings(store_path_root_dir=root))
    store.start()
    for number in range(30):
        store.put("T", 0, b"body %d" % number, b"UNIQ_KEY\x01k\x02", born_at_ms=1, born_host=bytes(8))
        store.request_flush()
        store.dispatch()
    assert store.stop()
    manifest = Path(root, "config", "gantry.json")
    manifest.write_bytes(b"{")
    command = [sys.executable, "-m", "services.broker.store", "repair", root, "--index-slots", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "manifest" in done.stdout) == (0, True), done.stderr
    assert json.loads(manifest.read_bytes())["clean_stop_offset"] is not None
    with StoreReader(OsFileSystem(), root) as reader:
        assert verify(reader).result is Result.OK
