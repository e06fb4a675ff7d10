"""Our store serves what Apache RocketMQ wrote: every message, offset, time and key equals its broker's answers."""

import hashlib
import json
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gantry.model import sysflag
from gantry.model.message import StoredMessage
from gantry.model.record import decode_record
from gantry.runtime.clock import SystemClock
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.runtime.workers import InlineWorker
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import Boundary, GetStatus, PutStatus, RecoveryReport
from services.broker.store.settings import StoreSettings

GOLDEN = Path(__file__).parent / "golden"
TIME_MAX_MS = 1 << 62
TORN_AT, TORN_END = 1_398_989, 1_399_392


class Opened(NamedTuple):
    name: str
    store: MessageStore
    report: RecoveryReport
    expected: dict[str, Any]
    clean: dict[str, Any]


def golden_settings(root: Path) -> StoreSettings:
    """Return the settings of the golden broker's broker.conf."""
    return StoreSettings(
        store_path_root_dir=str(root),
        mapped_file_size_commit_log=262_144,
        mapped_file_size_consume_queue=6000,
        max_hash_slot_num=500,
        max_index_num=2000,
        message_delay_level=" ".join(f"{seconds}s" for seconds in range(1, 19)),
    )


def make_store(root: Path) -> MessageStore:
    workers = {name: InlineWorker() for name in ("flush_worker", "making_worker", "chores_worker")}
    return MessageStore(golden_settings(root), files=OsFileSystem(), clock=SystemClock(), **workers)


@pytest.fixture(scope="module", params=["clean", "crashed", "torn"])
def opened(request, tmp_path_factory) -> Iterator[Opened]:
    name = request.param
    folder = tmp_path_factory.mktemp(name)
    with tarfile.open(GOLDEN / f"store-{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    clean = json.loads((GOLDEN / "expected.json").read_text())
    expected = clean if name == "clean" else json.loads((GOLDEN / f"expected-{name}.json").read_text())
    store = make_store(folder / "store")
    report = store.start()
    yield Opened(name, store, report, expected, clean)
    store.stop()


def read_all(store: MessageStore, topic: str, queue_id: int) -> list[StoredMessage]:
    messages: list[StoredMessage] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.get(topic, queue_id, offset, 32)
        messages += map(decode_record, result.records)
        offset = result.next_offset
    return messages


def as_expected(message: StoredMessage) -> dict[str, Any]:
    body = message.inflated_body()
    return {
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.physical_offset,
        "storeSize": message.size_bytes,
        "topic": message.topic,
        "queueId": message.queue_id,
        "flag": message.flag,
        "sysFlag": message.sys_flag & ~sysflag.COMPRESSED,
        "bodyCRC": message.body_crc,
        "bornTimestamp": message.born_at_ms,
        "storeTimestamp": message.stored_at_ms,
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "msgId": message.properties.get("UNIQ_KEY"),
        "offsetMsgId": message.stored_id,
        "tags": message.tag,
        "keys": message.properties.get("KEYS"),
        "bodyLength": len(body),
        "bodySha256": hashlib.sha256(body).hexdigest(),
        "properties": message.properties,
    }


def wanted(opened: Opened, topic: str, queue_id: str) -> dict[int, dict[str, Any]]:
    """Return the messages of a queue by offset; unchanged ones are only in the clean store's file."""
    queue = opened.expected["topics"][topic]["queues"][queue_id]
    same = opened.clean["topics"].get(topic, {}).get("queues", {}).get(queue_id, {"messages": []})["messages"]
    messages = {message["queueOffset"]: message for message in same} | {
        message["queueOffset"]: message for message in queue["messages"]
    }
    return {offset: message for offset, message in messages.items() if offset < queue["max"]}


def queues_of(expected: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (topic, queue_id, queue)
        for topic, content in expected["topics"].items()
        for queue_id, queue in content["queues"].items()
    ]


def test_every_message_is_served_field_by_field(opened):
    count = 0
    for topic, queue_id, queue in queues_of(opened.expected):
        messages = {message.queue_offset: message for message in read_all(opened.store, topic, int(queue_id))}
        for offset, message in wanted(opened, topic, queue_id).items():
            seen = as_expected(messages.pop(offset))
            assert {name: message.get(name) for name in seen} == seen
            count += 1
        # Apache RocketMQ truncated the log at the damage; our broker keeps the records after it.
        assert all(offset >= queue["max"] for offset in messages)
        assert opened.name == "torn" or not messages
    assert count == opened.expected["messageCount"]


def test_min_and_max_offsets(opened):
    for topic, queue_id, queue in queues_of(opened.expected):
        assert opened.store.min_offset(topic, int(queue_id)) == queue["min"]
        if opened.name != "torn":
            assert opened.store.max_offset(topic, int(queue_id)) == queue["max"]
    if opened.name != "torn":
        assert opened.store.max_physical_offset == opened.expected["commitLogMaxOffset"]


def test_offsets_by_time(opened):
    for case in opened.expected["offsetByTime"]:
        boundary = Boundary(case["boundary"])
        found = opened.store.offset_by_time(case["topic"], case["queueId"], case["timestamp"], boundary)
        assert found == case["offset"], case


def test_queries_find_at_least_what_rocketmq_found(opened):
    for case in opened.expected["queryMessage"]:
        result = opened.store.query(case["topic"], case["key"], 64, 0, TIME_MAX_MS)
        found = [decode_record(record).physical_offset for record in result.records]
        assert found == sorted(found)
        if opened.name == "clean" or case["code"] == 0:
            assert found == (case.get("commitLogOffsets") or []), case
        else:
            # A key from the clean store: RocketMQ has lost its index entry, our index still has it.
            same = [each for each in opened.clean["queryMessage"] if each["key"] == case["key"]]
            assert found == (same[0].get("commitLogOffsets") or [] if same else found), case


def test_messages_by_id(opened):
    for case in opened.expected["viewById"]:
        record = opened.store.record_at(case["commitLogOffset"])
        assert record is not None
        assert (len(record), hashlib.sha256(record).hexdigest()) == (case["recordLength"], case["recordSha256"])


def test_the_start_reports_its_repairs(opened):
    report = opened.report
    assert report.was_clean == (opened.name == "clean")
    assert report.torn_bytes == report.units_cut == 0
    if opened.name != "torn":
        assert (report.lost, report.units_mended, report.units_skipped) == ((), 0, 0)


def test_all_but_the_damaged_record_of_the_torn_store(opened):
    if opened.name != "torn":
        return
    assert opened.report.lost == ((TORN_AT, TORN_END),)
    assert opened.report.units_skipped == 1
    assert opened.report.units_mended == 4, "one became filler, three of another queue had been wiped"
    offsets = [message.queue_offset for message in read_all(opened.store, "GoldenNormal", 0)]
    assert offsets == [*range(349), 350]
    skipped = opened.store.get("GoldenNormal", 0, 349, 1)
    assert (skipped.status, skipped.next_offset) == (GetStatus.FOUND, 351)
    assert opened.store.record_at(TORN_AT) is None
    served = sum(len(read_all(opened.store, topic, queue_id)) for topic, queue_id in opened.store.queues())
    assert served == 2451 - 1, "the crashed store has 2451"


def test_a_store_of_rocketmqs_takes_messages_and_keeps_its_own(tmp_path):
    with tarfile.open(GOLDEN / "store-clean.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    store = make_store(tmp_path / "store")
    store.start()
    boundary = store.max_physical_offset
    end = store.max_offset("GoldenNormal", 1)
    host = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
    result = store.put("GoldenNormal", 1, b"new", b"UNIQ_KEY\x01N1\x02", born_at_ms=1, born_host=host)
    assert result.status is PutStatus.OK
    assert (result.physical_offset, result.queue_offset) == (boundary, end)
    assert store.stop()
    mark = json.loads((tmp_path / "store" / "config" / "gantry.json").read_text())
    assert mark["record_checksum_from"] == boundary
    again = make_store(tmp_path / "store")
    assert again.start().lost == ()
    assert decode_record(again.get("GoldenNormal", 1, end, 1).records[0]).body == b"new"
    assert len(read_all(again, "GoldenNormal", 1)) == end + 1
    again.stop()


def test_a_sparse_store_is_served_without_filling_its_holes(tmp_path):
    with tarfile.open(GOLDEN / "store-clean.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    packed, root = tmp_path / "store", tmp_path / "sparse"
    subprocess.run(["cp", "-r", "--sparse=always", str(packed), str(root)], check=True)
    before = {path: path.stat().st_blocks for path in root.rglob("*") if path.is_file() and path.stat().st_size > 4096}
    holes = [path for path, blocks in before.items() if blocks * 512 < path.stat().st_size]
    if not holes:
        pytest.skip("the folder for temporary files lies in a file system without holes")
    expected = json.loads((GOLDEN / "expected.json").read_text())
    store = make_store(root)
    store.start()
    for topic, queue_id, queue in queues_of(expected):
        assert len(read_all(store, topic, int(queue_id))) == queue["max"] - queue["min"]
    for case in expected["queryMessage"]:
        assert len(store.query(case["topic"], case["key"], 64, 0, TIME_MAX_MS).records) == len(
            case.get("commitLogOffsets") or []
        )
    assert store.stop()
    assert [path for path, blocks in before.items() if path.stat().st_blocks > blocks] == []
