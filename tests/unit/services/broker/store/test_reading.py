"""Reading: every status and limit of a get, offsets by time, and how readers handle damage."""

import json
from pathlib import Path

import pytest

from gantry.model.record import decode_record
from gantry.storeformat.layout import file_name
from services.broker.store.messagestore import MessageStore
from services.broker.store.propertyfilter import FILTER_TIME_MAX_MS, FILTER_WORK_BYTES, FILTER_WORK_MAX
from services.broker.store.results import Boundary, GetResult, GetStatus
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, make_store, small_settings
from tests.support.virtualtime import FakeClock

VECTORS = json.loads((Path(__file__).parents[4] / "conformance/golden/vectors.json").read_text())
RECORD_BYTES = 200


class Opened:
    def __init__(self, *, memory_bytes: int = 1 << 40, **changes) -> None:
        self.clock = FakeClock()
        self.files = MemFileSystem(self.clock)
        settings = small_settings(**({"mapped_file_size_consume_queue": 2000} | changes))
        self.store: MessageStore = make_store(self.files, self.clock, settings, physical_memory_bytes=memory_bytes)
        self.store.start()

    def put(self, count: int, *, topic: str = "T", tag: str = "", size: int = RECORD_BYTES) -> None:
        properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
        rest = 91 + len(topic) + len(properties) + 20
        for _ in range(count):
            result = self.store.put(topic, 0, bytes(size - rest), properties, born_at_ms=1, born_host=HOST)
            assert result.next_offset - result.physical_offset == size
        self.store.request_flush()
        self.store.dispatch()

    def get(self, offset: int, max_messages: int = 32, **changes) -> GetResult:
        return self.store.get("T", 0, offset, max_messages, **changes)

    def damage(self, physical_offset: int, data: bytes = b"\xff") -> None:
        start = physical_offset - physical_offset % 4096
        file = self.files.open(f"/store/commitlog/{file_name(start)}")
        at = physical_offset - start
        file.map()[at : at + len(data)] = data


def offsets(result: GetResult) -> list[int]:
    assert result.count == len(result.records)
    return [decode_record(record).queue_offset for record in result.records]


def test_a_queue_that_does_not_exist():
    opened = Opened()
    result = opened.get(5)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)


def test_a_queue_without_a_message_yet():
    opened = Opened()
    opened.store.put("T", 0, b"", b"", born_at_ms=1, born_host=HOST)  # Not flushed, so not visible.
    result = opened.get(0)
    assert (result.status, result.next_offset, result.max_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0)


@pytest.mark.parametrize(
    ("offset", "status", "next_offset"),
    [
        (0, GetStatus.FOUND, 3),
        (2, GetStatus.FOUND, 3),
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
    ],
)
def test_offsets_within_and_outside(offset, status, next_offset):
    opened = Opened()
    opened.put(3)
    result = opened.get(offset)
    assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (status, next_offset, 0, 3)
    assert result.body == b"".join(result.records)


def test_the_smallest_limit_counts():
    opened = Opened()
    opened.put(60)
    assert opened.get(0, 5).count == 5
    assert opened.get(0, 100).count == 32, "count in memory"
    assert opened.get(0, 32, max_bytes=5 * RECORD_BYTES).count == 5
    assert opened.get(0, 32, max_bytes=5 * RECORD_BYTES - 1).count == 4
    assert opened.get(0, 32, max_bytes=1).count == 1, "the first message always comes"
    small = Opened(max_transfer_bytes_on_message_in_memory=3 * RECORD_BYTES)
    small.put(10)
    assert small.get(0).count == 3


def test_messages_not_in_memory_come_in_smaller_pieces():
    # 40 % of 10 records' bytes count as memory: the last four records.
    opened = Opened(memory_bytes=10 * RECORD_BYTES)
    opened.put(14)
    assert opened.get(0).count == 8
    assert opened.get(0).suggest_slave
    result = opened.get(8)
    assert (offsets(result), result.suggest_slave) == ([8, 9, 10, 11, 12, 13], False)
    few = Opened(memory_bytes=10 * RECORD_BYTES, max_transfer_bytes_on_message_in_disk=2 * RECORD_BYTES)
    few.put(14)
    assert few.get(0).count == 2


def test_a_wide_read_is_limited_by_bytes_only():
    opened = Opened(max_transfer_count_on_message_in_memory=2, max_transfer_bytes_on_message_in_memory=5 * RECORD_BYTES)
    opened.put(9)
    assert offsets(opened.get(0, 3)) == [0, 1]
    assert offsets(opened.get(0, 3, wide_messages=4)) == [0, 1, 2, 3]
    assert offsets(opened.get(0, 3, wide_messages=100)) == [0, 1, 2, 3, 4]
    assert offsets(opened.get(0, 3, wide_messages=-1)) == [0, 1]


def test_one_get_stays_in_one_queue_file():
    opened = Opened(mapped_file_size_consume_queue=200)
    opened.put(25)
    assert offsets(opened.get(0)) == list(range(10))
    assert offsets(opened.get(7)) == [7, 8, 9]
    assert offsets(opened.get(20)) == list(range(20, 25))


def test_a_filter_continues_after_messages_that_do_not_match():
    opened = Opened()
    for number in range(20):
        opened.put(1, tag="ab"[number % 2])
    red = opened.get(0, unit_filter=lambda code: code == ord("b"))
    assert (offsets(red), red.next_offset) == (list(range(1, 20, 2)), 20)
    three = opened.get(0, 3, unit_filter=lambda code: code == ord("b"))
    assert (offsets(three), three.next_offset) == ([1, 3, 5], 7), "the message at 6 does not match"
    none = opened.get(0, unit_filter=lambda code: False)
    assert (none.status, none.next_offset, none.count) == (GetStatus.NO_MATCHED_MESSAGE, 20, 0)


def test_a_filter_examines_a_bounded_number_of_units():
    opened = Opened(max_filter_message_size=200)
    opened.put(50)
    result = opened.get(0, unit_filter=lambda code: False)
    assert (result.status, result.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 32), "at least max_messages"
    assert opened.get(0, 5, unit_filter=lambda code: False).next_offset == 10


class Matching:
    """A property filter."""

    def __init__(self, part: bytes, cost: int = 1) -> None:
        self.part = part
        self.cost = cost
        self.seen = 0

    def matches(self, properties: bytes) -> bool:
        self.seen += 1
        return self.part in properties


def test_a_filter_on_properties():
    opened = Opened()
    for number in range(6):
        opened.put(1, tag="ab"[number % 2])
    result = opened.get(0, property_filter=Matching(b"TAGS\x01b"))
    assert (offsets(result), result.next_offset) == ([1, 3, 5], 6)
    none = opened.get(0, property_filter=Matching(b"TAGS\x01c"))
    assert (none.status, none.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 6)
    two = opened.get(0, 2, property_filter=Matching(b"TAGS\x01b"))
    assert (offsets(two), two.next_offset) == ([1, 3], 4)


def test_a_filter_on_properties_ends_early_if_it_is_costly():
    opened = Opened()
    opened.put(30)
    costly = Matching(b"x", cost=FILTER_WORK_MAX // (5 * FILTER_WORK_BYTES))
    result = opened.get(0, property_filter=costly)
    assert (result.status, result.next_offset, costly.seen) == (GetStatus.NO_MATCHED_MESSAGE, 5, 5)


def test_a_filter_on_properties_ends_early_if_it_takes_long():
    opened = Opened()
    opened.put(30)

    class Slow(Matching):
        def matches(self, properties: bytes) -> bool:
            opened.clock.advance(4)
            return super().matches(properties)

    slow = Slow(b"x", cost=1)
    result = opened.get(0, property_filter=slow)
    assert (result.status, result.next_offset, slow.seen) == (GetStatus.NO_MATCHED_MESSAGE, 3, 3)
    assert FILTER_TIME_MAX_MS == 10
    rest = opened.get(27, property_filter=slow)
    assert (rest.status, rest.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 30)


def test_a_damaged_record_never_matches_a_filter_on_properties():
    opened = Opened()
    opened.put(5)
    opened.damage(2 * RECORD_BYTES + 95)  # In the body: the properties still match.
    result = opened.get(0, property_filter=Matching(b""))
    assert offsets(result) == [0, 1, 3, 4]
    opened.damage(3 * RECORD_BYTES + 84)  # The length of the body: there are no properties to be found.
    assert offsets(opened.get(0, property_filter=Matching(b""))) == [0, 1, 4]
    assert opened.store.state().damaged_reads == 3


def test_a_damaged_record_is_skipped_and_counted():
    opened = Opened()
    opened.put(5)
    opened.damage(2 * RECORD_BYTES + 95)
    result = opened.get(0)
    assert (result.status, offsets(result), result.next_offset) == (GetStatus.FOUND, [0, 1, 3, 4], 5)
    alone = opened.get(2, 1)
    assert (alone.status, offsets(alone), alone.next_offset) == (GetStatus.FOUND, [3], 4)
    assert opened.store.state().damaged_reads == 2


def test_a_queue_with_damaged_records_only():
    opened = Opened()
    opened.put(2)
    opened.damage(95)
    opened.damage(RECORD_BYTES + 95)
    result = opened.get(0)
    assert (result.status, result.next_offset, result.records) == (GetStatus.MESSAGE_WAS_REMOVING, 2, ())


def test_filler_is_skipped():
    opened = Opened()
    opened.put(2)
    queue = opened.store._queues.find("T", 0)
    opened.store._queues.append(queue, 6, queue.units(0, 1))
    result = opened.get(2)
    assert (result.status, result.next_offset) == (GetStatus.MESSAGE_WAS_REMOVING, 7)
    assert opened.store.state().skipped_units == 4


def test_a_unit_that_points_to_another_record_is_not_used():
    opened = Opened()
    opened.put(4)
    opened.put(4, topic="U")
    queue = opened.store._queues.find("T", 0)
    other = opened.store._queues.find("U", 0)
    queue.repair_unit(1, queue.units(2, 1))
    queue.repair_unit(2, other.units(2, 1))
    queue.repair_unit(3, (1 << 40).to_bytes(8) + queue.units(3, 1)[8:])
    assert offsets(opened.get(0)) == [0]


def test_a_missing_queue_file_is_skipped():
    opened = Opened(mapped_file_size_consume_queue=200)
    opened.put(25)
    queue = opened.store._queues.find("T", 0)
    dropped = next(file for file in queue.files if file.start == 200)
    queue.files._ordered.remove(dropped)
    del queue.files._by_start[200]
    result = opened.get(13)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_FOUND_NULL, 20)


def test_removed_files_of_the_log():
    opened = Opened()
    opened.put(50)
    opened.store._log.files.drop_before(4096, count_max=9)
    first = -(-4096 // RECORD_BYTES) - 1
    result = opened.get(0)
    assert result.status is GetStatus.FOUND
    assert offsets(result)[0] == first
    opened.store._queues.correct_min(4096)
    assert opened.get(0).status is GetStatus.OFFSET_TOO_SMALL
    assert opened.get(0).next_offset == first == opened.store.min_offset("T", 0)


@pytest.fixture
def timed() -> Opened:
    opened = Opened()
    start = opened.clock.now_ms()
    for at_ms in VECTORS["search_offset_by_time"]["storeTimestamps"]:
        opened.clock.advance(start + at_ms - opened.clock.now_ms())
        opened.put(1)
    opened.start_ms = start  # type: ignore[attr-defined]
    return opened


@pytest.mark.parametrize("case", VECTORS["search_offset_by_time"]["cases"], ids=lambda case: str(case["t"]))
def test_offset_by_time(timed, case):
    for boundary in Boundary:
        found = timed.store.offset_by_time("T", 0, timed.start_ms + case["t"], boundary)
        assert found == case[boundary], boundary


def test_offset_by_time_of_queues_without_messages(timed):
    assert timed.store.offset_by_time("none", 0, 5) == 0
    timed.store._queues.correct_min(1 << 40)
    assert timed.store.offset_by_time("T", 0, 5, Boundary.UPPER) == 6


def test_offset_by_time_skips_damaged_records(timed):
    for number in (1, 2, 4):
        timed.damage(number * RECORD_BYTES + 95)
    start = timed.start_ms
    assert timed.store.offset_by_time("T", 0, start + 100) == 0
    assert timed.store.offset_by_time("T", 0, start + 150) in (1, 2, 3)
    assert timed.store.offset_by_time("T", 0, start + 400) in (4, 5)
    assert timed.store.offset_by_time("T", 0, start + 200, Boundary.UPPER) in (3, 4)


def test_single_messages(timed):
    assert timed.store.stored_at("T", 0, 4) == timed.start_ms + 300
    assert timed.store.stored_at("T", 0, 6) is None
    assert timed.store.stored_at("T", 1, 0) is None
    assert timed.store.earliest_stored_at() == timed.start_ms + 100
    assert decode_record(timed.store.record_at(RECORD_BYTES)).queue_offset == 1
    for nowhere in (1, 6 * RECORD_BYTES, 1 << 40, RECORD_BYTES - 8):
        assert timed.store.record_at(nowhere) is None


def test_no_record_is_read_before_its_flush():
    opened = Opened()
    opened.put(1)
    result = opened.store.put("T", 0, b"", b"UNIQ_KEY\x01k\x02", born_at_ms=1, born_host=HOST)
    assert opened.store.dispatch() == 0
    assert opened.store.max_offset("T", 0) == 1
    assert opened.store.record_at(result.physical_offset) is None
    opened.store.request_flush()
    assert opened.store.dispatch() == 1
    assert opened.store.record_at(result.physical_offset) is not None


def test_queries_are_oldest_first_and_bounded():
    opened = Opened(max_msgs_num_batch=3, max_index_num=64)
    for number in range(6):
        opened.store.put("T", 0, b"%d" % number, b"KEYS\x01k\x02", born_at_ms=1, born_host=HOST)
        opened.clock.advance(1000)
    opened.store.request_flush()
    opened.store.dispatch()
    found = opened.store.query("T", "k", 64, 0, 1 << 62)
    assert [decode_record(record).body for record in found.records] == [b"3", b"4", b"5"]
    last = decode_record(found.records[-1])
    assert found[1:] == (last.stored_at_ms, last.physical_offset)
    assert opened.store.query("T", "none", 64, 0, 1 << 62).records == ()
    opened.damage(last.physical_offset + 90)
    assert len(opened.store.query("T", "k", 64, 0, 1 << 62).records) == 2


def test_without_an_index_nothing_is_found_by_key():
    opened = Opened(message_index_enable=False)
    opened.store.put("T", 0, b"", b"KEYS\x01k\x02", born_at_ms=1, born_host=HOST)
    opened.store.request_flush()
    opened.store.dispatch()
    assert opened.store.query("T", "k", 64, 0, 1 << 62) == ((), 0, 0)
    assert opened.files.list_dir("/store/index") == []
