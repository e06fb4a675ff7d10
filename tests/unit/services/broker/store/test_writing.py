"""Putting messages: which ones are refused and why, and where the others are stored."""

import errno
from itertools import pairwise

import pytest

from gantry.model.message import CrcState
from gantry.model.names import SCHEDULE_TOPIC
from gantry.model.record import decode_record
from gantry.model.sysflag import (
    BORN_HOST_V6,
    STORE_HOST_V6,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
)
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutResult, PutStatus
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, HOST_V6, make_store, read_queue, small_settings
from tests.support.virtualtime import FakeClock

KEY = b"UNIQ_KEY\x01K1\x02"


class Opened:
    def __init__(self, **changes) -> None:
        self.clock = FakeClock()
        self.files = FaultFileSystem(MemFileSystem(self.clock))
        self.store: MessageStore = make_store(self.files, self.clock, small_settings(**changes))
        self.store.start()

    def put(self, topic="T", queue_id=0, body=b"body", properties=KEY, **changes) -> PutResult:
        values = {"born_at_ms": 1, "born_host": HOST} | changes
        return self.store.put(topic, queue_id, body, properties, **values)

    def flushed(self) -> MessageStore:
        self.store.request_flush()
        self.store.dispatch()
        return self.store

    def message(self, result: PutResult):
        record = self.flushed().record_at(result.physical_offset)
        assert record is not None
        return decode_record(record)


@pytest.fixture
def opened() -> Opened:
    return Opened()


def test_offsets_of_a_queue_are_consecutive(opened):
    results = [opened.put(queue_id=number % 2) for number in range(6)]
    assert [result.queue_offset for result in results] == [0, 0, 1, 1, 2, 2]
    assert all(result.next_offset == after.physical_offset for result, after in pairwise(results))
    assert results[0].stored_at_ms == opened.clock.now_ms()


def test_a_record_has_the_given_fields(opened):
    opened.store.store_host = HOST_V6
    result = opened.put(
        queue_id=7, body=b"\0\1\2", properties=b"a\x01b\x02" + KEY, flag=9, sys_flag=1, born_at_ms=55,
        reconsume_times=3, prepared_transaction_offset=77,
    )  # fmt: skip
    message = opened.message(result)
    assert (message.queue_id, message.body, message.flag, message.born_at_ms) == (7, b"\0\1\2", 9, 55)
    assert message.sys_flag == 1 | STORE_HOST_V6
    assert (message.reconsume_times, message.prepared_transaction_offset) == (3, 77)
    assert (message.properties, message.crc) == ({"a": "b", "UNIQ_KEY": "K1"}, CrcState.OK)


def test_the_store_sets_the_flag_bits_of_the_hosts(opened):
    lying = opened.put(sys_flag=BORN_HOST_V6 | STORE_HOST_V6)
    right = opened.put(born_host=HOST_V6)
    assert opened.message(lying).sys_flag == 0
    assert opened.message(right).sys_flag == BORN_HOST_V6
    assert opened.message(right).born_host.ip == "fd00::2"


def test_a_checksum_property_set_by_the_sender_is_dropped(opened):
    forged = b"__CRC32#\x010000000000\x02"
    for properties in (forged + KEY, KEY + forged):
        message = opened.message(opened.put(properties=properties))
        assert (message.crc, message.properties) == (CrcState.OK, {"UNIQ_KEY": "K1"})


@pytest.mark.parametrize(
    ("changes", "status", "reason"),
    [
        ({"body": bytes(101)}, PutStatus.MESSAGE_ILLEGAL, "101 bytes, at most 100"),
        ({"properties": bytes(32_747)}, PutStatus.PROPERTIES_SIZE_EXCEEDED, "32747 bytes, at most 32746"),
        ({"topic": "a/b"}, PutStatus.MESSAGE_ILLEGAL, "'a/b'"),
        ({"topic": "../x"}, PutStatus.MESSAGE_ILLEGAL, "'../x'"),
        ({"topic": "x" * 256}, PutStatus.MESSAGE_ILLEGAL, "255"),
        ({"topic": ""}, PutStatus.MESSAGE_ILLEGAL, ""),
        ({"queue_id": -1}, PutStatus.MESSAGE_ILLEGAL, "queue -1"),
        ({"queue_id": 1 << 31}, PutStatus.MESSAGE_ILLEGAL, "queue 2147483648"),
        ({"flag": 1 << 31}, PutStatus.MESSAGE_ILLEGAL, "does not fit"),
        ({"properties": b"a\x01" + bytes(5000)}, PutStatus.MESSAGE_ILLEGAL, "bytes are more than a file takes (4088)"),
    ],
)
def test_a_refused_append_writes_nothing(changes, status, reason):
    opened = Opened(max_message_size=100)
    first = opened.put()
    result = opened.put(**changes)
    assert result.status is status
    assert reason in result.reason
    second = opened.put()
    assert (second.physical_offset, second.queue_offset) == (first.next_offset, 1)
    items = [(changes.get("flag", 0), changes.get("body", b"b"), changes.get("properties", KEY), None, None, None)]
    batch = opened.store.put_batch(
        changes.get("topic", "T"), changes.get("queue_id", 0), items, born_at_ms=1, born_host=HOST
    )
    assert batch.status is status
    assert opened.put().physical_offset == second.next_offset


def test_topics_of_more_than_127_bytes_are_version_2(opened):
    topic = "%RETRY%" + "g" * 200
    message = opened.message(opened.put(topic=topic))
    assert (message.topic, message.version) == (topic, 2)
    assert opened.message(opened.put()).version == 1


def test_a_record_that_does_not_fit_goes_to_the_next_file(opened):
    results = [opened.put(body=bytes(900)) for _ in range(5)]
    assert [result.physical_offset // 4096 for result in results] == [0, 0, 0, 1, 1]
    assert results[3].physical_offset == 4096
    end = results[2].next_offset
    blank = opened.files.read("/store/commitlog/00000000000000000000")[end : end + 8]
    assert blank == (4096 - end).to_bytes(4) + bytes.fromhex("cbd43194")
    assert [found[1] for found in read_queue(opened.flushed(), "T", 0).values()] == [bytes(900)] * 5


@pytest.mark.parametrize("left", [0, 1, 7, 8, 9])
def test_eight_bytes_always_remain_for_the_filler(opened, left):
    size = opened.put(body=b"").next_offset
    second = opened.put(body=bytes(4096 - size - size - left))
    assert second.physical_offset == (size if left >= 8 else 4096)
    assert list(read_queue(opened.flushed(), "T", 0)) == [0, 1]


def test_transaction_messages_get_no_queue_offset(opened):
    half = opened.put(sys_flag=TRANSACTION_PREPARED)
    gone = opened.put(sys_flag=TRANSACTION_ROLLBACK, properties=b"UNIQ_KEY\x01K2\x02")
    done = opened.put(sys_flag=TRANSACTION_COMMIT, prepared_transaction_offset=half.physical_offset)
    assert (half.queue_offset, gone.queue_offset, done.queue_offset) == (0, 0, 0)
    store = opened.flushed()
    assert list(read_queue(store, "T", 0).values()) == [(done.physical_offset, b"body", "K1")]
    assert opened.message(half).queue_offset == 0
    assert len(store.query("T", "K1", 64, 0, 1 << 62).records) == 2, "prepared ones are indexed"
    assert store.query("T", "K2", 64, 0, 1 << 62).records == (), "rolled back ones are not"


def test_delayed_messages_carry_their_delivery_time(opened):
    for level in ("3", "99", "0", "-1", "x"):
        opened.put(topic=SCHEDULE_TOPIC, queue_id=2, properties=f"DELAY\x01{level}\x02TAGS\x01t\x02".encode())
    opened.flushed()
    data = opened.files.read(f"/store/consumequeue/{SCHEDULE_TOPIC}/2/{0:020d}")
    codes = [int.from_bytes(data[at + 12 : at + 20], signed=True) for at in range(0, 100, 20)]
    now = opened.clock.now_ms()
    assert codes == [now + 10_000, now + 7_200_000, ord("t"), ord("t"), ord("t")]


def test_a_delay_level_of_thousands_of_digits_is_no_level(opened):
    """Python refuses to read such a number, and an exception in dispatch would end the broker at each start."""
    properties = f"DELAY\x01{'9' * 5_000}\x02".encode()
    assert opened.store._requests.tags_code(SCHEDULE_TOPIC, "t", properties, 1) == ord("t")


def test_given_tags_and_keys_are_not_searched_in_properties(opened):
    opened.put(properties=b"TAGS\x01a\x02KEYS\x01k\x02UNIQ_KEY\x01u\x02", tag="b", keys="other", unique_key="")
    store = opened.flushed()
    assert store.get("T", 0, 0, 1, unit_filter=lambda code: code == ord("b")).count == 1
    assert len(store.query("T", "other", 1, 0, 1 << 62).records) == 1
    assert store.query("T", "u", 1, 0, 1 << 62).records == ()


def test_a_batch_lies_in_one_file_with_consecutive_offsets(opened):
    opened.put(body=bytes(3000))
    items = [(number, bytes([number]) * 200, b"UNIQ_KEY\x01B%d\x02" % number, None, None, None) for number in range(5)]
    batch = opened.store.put_batch("T", 0, items, born_at_ms=5, born_host=HOST_V6, reconsume_times=2)
    assert (batch.status, batch.queue_offset, batch.physical_offsets[0]) == (PutStatus.OK, 1, 4096)
    messages = [decode_record(opened.flushed().record_at(at)) for at in batch.physical_offsets]
    assert [message.flag for message in messages] == [0, 1, 2, 3, 4]
    assert [message.queue_offset for message in messages] == [1, 2, 3, 4, 5]
    assert {(message.born_at_ms, message.reconsume_times) for message in messages} == {(5, 2)}
    assert messages[-1].physical_offset + messages[-1].size_bytes == batch.next_offset
    assert opened.put().queue_offset == 6


def test_a_batch_that_fits_no_file_is_refused_as_a_whole(opened):
    items = [(0, bytes(900), KEY, None, None, None)] * 5
    batch = opened.store.put_batch("T", 0, items, born_at_ms=5, born_host=HOST)
    assert batch.status is PutStatus.MESSAGE_ILLEGAL
    assert opened.put()[1:3] == (0, 0)


def test_the_schedule_topic_accepts_no_batch(opened):
    batch = opened.store.put_batch(SCHEDULE_TOPIC, 0, [(0, b"", KEY, None, None, None)], born_at_ms=5, born_host=HOST)
    assert batch.status is PutStatus.MESSAGE_ILLEGAL


def test_a_full_disk_refuses_at_the_next_file_and_recovers(opened):
    opened.put(body=bytes(3800))
    opened.files.rules.append(FaultRule("create", "*/commitlog/*", errno.ENOSPC))
    # The next file was preallocated, but the one after it can't be.
    assert opened.put(body=bytes(3800)).physical_offset == 4096
    refused = opened.put(body=bytes(3800))
    assert refused.status is PutStatus.CREATE_FILE_FAILED
    assert "00000000000000008192 can't be created: No space left" in refused.reason
    opened.files.rules.clear()
    assert opened.put(body=bytes(3800)).status is PutStatus.CREATE_FILE_FAILED, "not tried at every put"
    opened.clock.advance(1000)
    opened.store.maintain()
    after = opened.put(body=bytes(3800))
    assert (after.status, after.physical_offset, after.queue_offset) == (PutStatus.OK, 8192, 2)
    assert len(read_queue(opened.flushed(), "T", 0)) == 3


def test_small_messages_still_fit_a_file_without_a_next_one():
    opened = Opened()
    opened.put(body=bytes(3000))
    opened.files.rules.append(FaultRule("create", "*/commitlog/*", errno.ENOSPC))
    opened.put(body=bytes(3000))
    assert opened.put(body=bytes(3000)).status is PutStatus.CREATE_FILE_FAILED
    assert opened.put(body=b"small").status is PutStatus.OK


def test_no_message_is_accepted_before_the_start_and_after_the_stop():
    clock = FakeClock()
    store = make_store(MemFileSystem(clock), clock)
    for _ in range(2):
        result = store.put("T", 0, b"", KEY, born_at_ms=1, born_host=HOST)
        assert (result.status, result.reason) == (PutStatus.NOT_WRITABLE, "the store is not running")
        store.start()
        assert store.stop()
        batch = store.put_batch("T", 0, [(0, b"", KEY, None, None, None)], born_at_ms=1, born_host=HOST)
        assert batch.status is PutStatus.NOT_WRITABLE
        store = make_store(MemFileSystem(clock), clock)
