"""A topic that is deleted and created again while messages of the old topic are still on their way."""

import contextlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from gantry.model.record import decode_record
from gantry.runtime.clock import SystemClock
from gantry.runtime.osfilesystem import OsFileSystem
from services.broker.store.messagestore import MessageStore
from services.broker.store.settings import StoreSettings
from tests.fault.brokers import NEVER_FULL, SMALL_FILES, assert_verifies

HOST = bytes(8)
SMALLER_FILES = {"mapped_file_size_commit_log": 10_240, "max_hash_slot_num": 5, "max_index_num": 20}
SETTLED_WITHIN_S = 10.0


@contextlib.contextmanager
def running(folder: Path) -> Iterator[MessageStore]:
    settings = StoreSettings(store_path_root_dir=str(folder), **(SMALL_FILES | NEVER_FULL | SMALLER_FILES))
    store = MessageStore(settings, files=OsFileSystem(), clock=SystemClock())
    store.start()
    yield store
    assert store.stop()


def put(store: MessageStore, body: bytes, *, topic: str = "T") -> int:
    return store.put(topic, 0, body, b"KEYS\x01k\x02", born_at_ms=1, born_host=HOST).queue_offset


def settle(store: MessageStore) -> None:
    """Flush and dispatch all messages."""
    store.request_flush()
    deadline = time.monotonic() + SETTLED_WITHIN_S
    while store.flushed_offset < store.max_physical_offset:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    store.dispatch()


def readable(store: MessageStore) -> list[bytes]:
    return [decode_record(record).body for record in store.get("T", 0, store.min_offset("T", 0), 32).records]


def test_records_in_flight_to_a_deleted_topic_do_not_hide_those_of_the_new_one(tmp_path: Path) -> None:
    with running(tmp_path) as store:
        for number in range(3):
            put(store, b"old %d" % number)
        settle(store)
        put(store, b"late")
        assert store.delete_topic("T").result()
        assert put(store, b"new") == 0
        settle(store)
        assert readable(store) == [b"new"]


def test_a_queue_that_recovery_brings_back_in_part_is_no_damage(tmp_path: Path) -> None:
    with running(tmp_path / "store") as store:
        for number in range(30):
            put(store, b"%d" % number + bytes(700))
        put(store, b"another", topic="U")
    with running(tmp_path / "store") as store:
        assert store.delete_topic("T").result()
        # The state that kill -9 leaves.
        shutil.copytree(tmp_path / "store", tmp_path / "crashed")
    # No note of the deletion exists, as after a failed write, or in a store from another broker.
    (tmp_path / "crashed" / "config" / "gantry-deletions.json").unlink()
    min((tmp_path / "crashed" / "commitlog").iterdir()).unlink()
    with running(tmp_path / "crashed") as store:
        assert 0 < store.min_offset("T", 0) < store.max_offset("T", 0) == 30
    assert_verifies(tmp_path / "crashed")
