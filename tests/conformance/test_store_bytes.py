"""Our store writes the same bytes as Apache RocketMQ wherever the format leaves no choice.

Every record of the golden store is put again, in the log's order and at its store time, with the record checksum off
(RocketMQ's default): CommitLog, ConsumeQueues and index files must be identical.
"""

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gantry.model.record import iter_records, parse_head
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.storeformat.layout import QUEUE_COUNT_AT, QUEUE_COUNT_END, decode_checkpoint
from gantry.storeformat.scan import StoreReader
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus
from tests.conformance.test_golden_stores_served import GOLDEN, golden_settings
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, make_store, small_settings
from tests.support.virtualtime import FakeClock

VECTORS = json.loads((GOLDEN / "vectors.json").read_text())


class GivenClock(FakeClock):
    """A clock that shows the time it is given."""

    given_ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.given_ms


@pytest.fixture(scope="module")
def golden(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bytes")
    with tarfile.open(GOLDEN / "store-clean.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "store"


@pytest.fixture(scope="module")
def again(golden) -> MemFileSystem:
    """An empty store of ours into which the golden store's records were put."""
    clock = GivenClock()
    files = MemFileSystem(clock)
    settings = replace(golden_settings(Path("/store")), enabled_append_prop_crc=False)
    store = make_store(files, clock, settings)
    store.start()
    with StoreReader(OsFileSystem(), str(golden)) as reader:
        for record in reader.scan():
            head = record.head
            body = bytes(record.memory[head.body_start : head.body_end])
            clock.given_ms = head.stored_at_ms
            store.store_host = head.store_host
            result = store.put(
                head.topic.decode(), head.queue_id, body, head.properties, flag=head.flag, sys_flag=head.sys_flag,
                born_at_ms=head.born_at_ms, born_host=head.born_host, reconsume_times=head.reconsume_times,
                prepared_transaction_offset=head.prepared_transaction_offset,
            )  # fmt: skip
            assert result.status is PutStatus.OK
            assert result.physical_offset == record.offset
            store.request_flush()
            store.dispatch()
    assert store.stop()
    return files


def names(files: Any, folder: str) -> list[str]:
    return [name for name in files.list_dir(folder) if not files.is_dir(f"{folder}/{name}")]


def test_the_commit_log_is_the_same(golden, again):
    folder = golden / "commitlog"
    written = names(again, "/store/commitlog")
    assert set(written) >= {path.name for path in folder.iterdir()}
    for path in folder.iterdir():
        assert again.read(f"/store/commitlog/{path.name}") == path.read_bytes(), path.name


def test_the_consume_queues_are_the_same(golden, again):
    count = 0
    for path in sorted((golden / "consumequeue").glob("*/*/*")):
        ours = f"/store/{path.relative_to(golden)}"
        assert again.read(ours) == path.read_bytes(), ours
        count += 1
    assert count == sum(len(names(again, f"/store/consumequeue/{topic}/{queue}")) for topic, queue in folders(again))


def folders(files: MemFileSystem) -> list[tuple[str, str]]:
    top = "/store/consumequeue"
    return [(topic, queue) for topic in files.list_dir(top) for queue in files.list_dir(f"{top}/{topic}")]


def test_the_index_files_are_the_same_but_for_their_names(golden, again):
    theirs = [path.read_bytes() for path in sorted((golden / "index").iterdir())]
    ours = [again.read(f"/store/index/{name}") for name in names(again, "/store/index")]
    assert [len(content) for content in ours] == [len(content) for content in theirs]
    for number, (our, their) in enumerate(zip(ours, theirs, strict=True)):
        assert our == their, f"index file {number}"


def test_the_small_files(golden, again):
    assert again.read("/store/lock") == (golden / "lock").read_bytes() == b"lock"
    assert again.size_bytes("/store/checkpoint") == (golden / "checkpoint").stat().st_size == 4096
    theirs = decode_checkpoint((golden / "checkpoint").read_bytes())
    ours = decode_checkpoint(again.read("/store/checkpoint"))
    assert ours[:4] == theirs[:4]
    # RocketMQ leaves bytes without a field unchanged, and Gantry stores its count of queues there.
    content = again.read("/store/checkpoint")
    assert content[40:QUEUE_COUNT_AT] == bytes(QUEUE_COUNT_AT - 40)
    assert content[QUEUE_COUNT_END:] == bytes(4096 - QUEUE_COUNT_END)
    assert not again.exists("/store/abort")


def test_the_abort_file_holds_the_process_id_without_a_line_end():
    files = MemFileSystem(FakeClock())
    store = make_store(files, files.clock, process_id=4711)
    store.start()
    assert files.read("/store/abort") == b"4711"
    assert store.stop()
    assert not files.exists("/store/abort")


def put_vector(store: MessageStore, clock: GivenClock, vector: dict[str, Any]) -> None:
    clock.given_ms = vector["storeTimestamp"]
    properties = "".join(f"{name}\x01{vector['properties'][name]}\x02" for name in vector["properties_order"])
    store.put(
        vector["topic"], vector["queueId"], vector["body_utf8"].encode(), properties.encode(), flag=vector["flag"],
        sys_flag=vector["sysFlag"], born_at_ms=vector["bornTimestamp"], born_host=HOST,
    )  # fmt: skip


@pytest.mark.parametrize("checksum", [False, True])
def test_the_vectors_unit_and_blank(checksum):
    clock = GivenClock()
    files = MemFileSystem(clock)
    settings = small_settings(enabled_append_prop_crc=checksum)
    store = make_store(files, clock, settings)
    store.start()
    vector = VECTORS["message_v1"]
    for _ in range(40):
        put_vector(store, clock, vector)
    store.request_flush()
    store.dispatch()
    unit = files.read("/store/consumequeue/TopicTest/3/00000000000000000000")[20:40]
    size = vector["totalSize"] + (20 if checksum else 0)
    assert unit[:12] == size.to_bytes(8) + size.to_bytes(4)
    log = files.read("/store/commitlog/00000000000000000000")
    end = len(log) // size * size
    end = end if len(log) - end >= 8 else end - size
    assert log[end : end + 8] == (len(log) - end).to_bytes(4) + bytes.fromhex("cbd43194")
    messages = list(iter_records(log[:end]))
    assert {(message.topic, message.body.decode()) for message in messages} == {(vector["topic"], vector["body_utf8"])}
    assert all(parse_head(log, message.physical_offset).has_record_crc == checksum for message in messages)
