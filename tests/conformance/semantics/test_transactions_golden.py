"""Half, op, committed and checked messages equal those of Apache RocketMQ, and a store of it with open ones goes on."""

import asyncio
import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gantry.model import sysflag
from gantry.model.message import StoredMessage
from gantry.model.record import decode_record
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.brokerunit import BrokerUnit
from tests.support.memfilesystem import MemFileSystem
from tests.support.transactions import COMMIT, GIVEN_UP, HALF, OP, TransactionProducer, bodies, messages
from tests.support.virtualtime import VirtualClock

GOLDEN = Path(__file__).parents[1] / "golden"
ADDED = {"__transactionId__", "REAL_TOPIC", "REAL_QID", "MSG_REGION", "TRACE_ON", "CLUSTER"}
BY_BROKER = {"queue_offset", "physical_offset", "stored_at_ms", "store_host", "size_bytes", "born_host", "crc"}
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log": 262_144,
    "mapped_file_size_consume_queue": 6000,
    "max_hash_slot_num": 500,
    "max_index_num": 2000,
    "file_reserved_time": 8760,
    "broker_cluster_name": "GoldenCluster",
    "transaction_check_interval": 2000,
    "transaction_time_out": 2000,
    "channel_expired_timeout": 1 << 30,
    "timer_wheel_enable": False,
}


def golden_files(clock: VirtualClock) -> MemFileSystem:
    """Return the files of the golden broker after a clean stop."""
    files = MemFileSystem(clock)
    with tarfile.open(GOLDEN / "store-clean.tar.gz") as archive:
        for member in archive:
            path = f"/data/{member.name}".rstrip("/")
            if member.isdir():
                files.make_dirs(path)
            elif member.isfile():
                content = archive.extractfile(member)
                assert content is not None
                files.make_dirs(path.rpartition("/")[0])
                files.write(path, content.read(), durable=True)
    return files


def golden_unit(progress: tuple[int, int], **settings: Any) -> BrokerUnit:
    """Return a unit on the golden store, as if its check had come only so far in the half and the op topic."""
    unit = BrokerUnit(**{**SETTINGS, **settings})
    expected = json.loads((GOLDEN / "expected.json").read_text())
    unit.clock.set_wall(expected["readBackTimestamp"])
    unit.files = files = golden_files(unit.clock)
    path = "/data/store/config/consumerOffset.json"
    text = files.read(path).decode()
    for topic, old, new in ((HALF, 62, progress[0]), (OP, 3, progress[1])):
        before = f'"{topic}@CID_RMQ_SYS_TRANS":{{0:{old}'
        assert before in text
        text = text.replace(before, f'"{topic}@CID_RMQ_SYS_TRANS":{{0:{new}')
    files.write(path, text.encode(), durable=True)
    return unit


def comparable(message: StoredMessage) -> dict[str, Any]:
    """Return the fields that do not depend on the broker's clock, address and log."""
    values = {name: value for name, value in message._asdict().items() if name not in BY_BROKER}
    values["properties"] = {name: value for name, value in message.properties.items() if name != "CLUSTER"}
    values["sys_flag"] = message.sys_flag & ~sysflag.HOSTS_V6_MASK
    return values


async def golden(topic: str, queue_id: int = 0) -> list[StoredMessage]:
    async with golden_unit((62, 3)) as unit:
        return messages(unit, topic, queue_id)


async def begun_again(unit: BrokerUnit, half: StoredMessage) -> tuple[TransactionProducer, Any]:
    """Send the message of a golden half message to another broker."""
    topic, queue_id = half.properties["REAL_TOPIC"], int(half.properties["REAL_QID"])
    await unit.make_topic(topic)
    producer = TransactionProducer(unit, group=half.properties["PGROUP"])
    await producer.join()
    properties = {name: value for name, value in half.properties.items() if name not in ADDED}
    answer = await producer.begin(
        topic, half.body, queue_id=queue_id, properties=properties, born_timestamp=half.born_at_ms, flag=half.flag
    )
    return producer, answer


async def test_half_committed_and_op_messages_equal_those_of_apache():
    half, other = (await golden(HALF))[:2]
    real, op = (await golden("GoldenTrans", 1))[0], (await golden(OP))[0]
    async with BrokerUnit() as unit:
        unit.clock.set_wall(half.stored_at_ms)
        producer, first = await begun_again(unit, half)
        _, second = await begun_again(unit, other)
        ours = messages(unit, HALF)
        assert [comparable(each) for each in ours] == [comparable(half), comparable(other)]
        for answer in (first, second):
            assert (await producer.end(answer, COMMIT)).code == ResponseCode.SUCCESS
        (committed,) = messages(unit, "GoldenTrans", 1)
        assert committed.prepared_transaction_offset == ours[0].physical_offset
        assert real.prepared_transaction_offset == half.physical_offset
        same = {"prepared_transaction_offset": 0}
        assert comparable(committed) | same == comparable(real) | same
        await asyncio.sleep(4)
        (ours_op,) = messages(unit, OP)
        same = {"body": b"", "body_crc": 0, "born_at_ms": 0}
        assert comparable(ours_op) | same == comparable(op) | same
        assert ours_op.body == b"0,1,"
        assert op.body.startswith(ours_op.body)


async def test_a_checked_half_message_and_its_check_equal_those_of_apache():
    halves = await golden(HALF)
    copy = next(half for half in halves if half.properties.get("TRANSACTION_CHECK_TIMES") == "1")
    original = next(half for half in halves if half.message_id == copy.message_id)
    with gzip.open(GOLDEN / "frames.jsonl.gz", "rt") as lines:
        frames = [json.loads(line) for line in lines]
    frame = next(
        frame
        for frame in frames
        if frame["code"] == RequestCode.CHECK_TRANSACTION_STATE
        and frame["header"]["extFields"]["msgId"] == copy.message_id
    )
    record = decode_record(bytes.fromhex(frame["frame_hex"])[-frame["body_length"] :])
    async with BrokerUnit(**{**SETTINGS, "broker_name": "golden-a"}) as unit:
        unit.clock.set_wall(original.stored_at_ms)
        producer, _ = await begun_again(unit, original)
        await asyncio.sleep(4.5)
        ((header, half),) = producer.checks[:1]
        ours = messages(unit, HALF)[1]
        assert comparable(ours) == comparable(copy)
        assert comparable(half) == comparable(record)
        assert half.stored_at_ms == messages(unit, HALF)[0].stored_at_ms
        assert record.stored_at_ms == original.stored_at_ms
        assert (half.queue_offset, half.physical_offset) == (ours.queue_offset, ours.physical_offset)
        assert (record.queue_offset, record.physical_offset) == (copy.queue_offset, copy.physical_offset)
        fields = frame["header"]["extFields"]
        wanted = {"topic": HALF, "msgId": copy.message_id, "transactionId": copy.message_id}
        assert {name: fields[name] for name in wanted} == wanted
        assert header.to_ext().keys() == fields.keys()
        assert {name: header.to_ext()[name] for name in wanted} == wanted
        assert (fields["offsetMsgId"], header.offset_msg_id) == (copy.stored_id, ours.stored_id)
        assert int(fields["tranStateTableOffset"]) == copy.queue_offset
        assert int(fields["commitLogOffset"]) == copy.physical_offset


async def test_a_store_of_apache_without_open_transactions_asks_nobody():
    async with golden_unit((62, 3)) as unit:
        producer = TransactionProducer(unit, group="PIDT_Golden")
        await producer.join()
        await asyncio.sleep(10)
        assert producer.checks == []
        assert unit.store.max_offset(HALF, 0) == 62


@pytest.mark.parametrize("progress", [(0, 0), (30, 0), (37, 1)])
async def test_open_transactions_of_apache_go_on_here(progress):
    async with golden_unit(progress) as unit:
        halves = messages(unit, HALF)
        decided = {int(offset) for op in messages(unit, OP) for offset in op.body.decode().split(",") if offset}
        open_ones = {half.message_id: half for half in halves[progress[0] :] if half.queue_offset not in decided}
        given_up = [half for half in open_ones.values() if half.properties.get("TRANSACTION_CHECK_TIMES") == "15"]
        before = len(bodies(unit, "GoldenTrans")), len(bodies(unit, "GoldenTrans", 1)), len(bodies(unit, GIVEN_UP))
        producer = TransactionProducer(unit, group="PIDT_Golden", decide=lambda half: COMMIT)
        await producer.join()
        await asyncio.sleep(10)
        asked = [half.message_id for _, half in producer.checks]
        assert len(asked) == len(set(asked))
        assert set(asked) == {key for key in open_ones if open_ones[key] not in given_up}
        after = len(bodies(unit, "GoldenTrans")), len(bodies(unit, "GoldenTrans", 1)), len(bodies(unit, GIVEN_UP))
        assert sum(after) - sum(before) == len(open_ones)
        assert after[2] - before[2] == len(given_up)
