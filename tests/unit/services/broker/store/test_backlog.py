"""Units with store times, and the first message that a filter accepts."""

import pytest

from gantry.model.record import decode_record
from gantry.model.unitrow import NO_MESSAGE_ROW, UNIT_ROW, UNIT_ROW_BYTES
from gantry.storeformat.layout import FILLER_UNIT, file_name
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import FirstMessage, UnitRows
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, HOST_V6, make_store, small_settings
from tests.support.virtualtime import FakeClock

RECORD_BYTES = 200
NOWHERE = (0, -1, 0, -1)


class Opened:
    def __init__(self, **changes) -> None:
        self.clock = FakeClock()
        self.files = MemFileSystem(self.clock)
        settings = small_settings(**({"mapped_file_size_consume_queue": 2000} | changes))
        self.store: MessageStore = make_store(self.files, self.clock, settings)
        self.store.start()

    def put(self, count: int, *, topic: str = "T", tag: str = "", host: bytes = HOST) -> None:
        properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
        rest = 91 + len(host) - len(HOST) + len(topic) + len(properties) + 20
        for _ in range(count):
            self.clock.advance(7)
            self.store.put(topic, 0, bytes(RECORD_BYTES - rest), properties, born_at_ms=1, born_host=host)
        self.store.request_flush()
        self.store.dispatch()

    @property
    def queue(self):
        return self.store._queues.find("T", 0)

    def truth(self, index: int) -> tuple[int, int, int, int]:
        """Return the row of an offset according to its decoded record."""
        unit = self.queue.unit(index)
        message = decode_record(self.store.record_at(unit.physical_offset))
        assert message.queue_offset == index
        return (message.physical_offset, message.size_bytes, unit.tags_code, message.stored_at_ms)

    def rows(self, offset: int = 0, count: int = 1000) -> list[tuple[int, ...]]:
        answer = self.store.unit_rows("T", 0, offset, count)
        assert len(answer.rows) == UNIT_ROW_BYTES * (answer.next_offset - answer.first_offset)
        return list(UNIT_ROW.iter_unpack(answer.rows))

    def overwrite(self, physical_offset: int, data: bytes) -> None:
        file = self.files.open(f"/store/commitlog/{file_name(physical_offset - physical_offset % 4096)}")
        at = physical_offset % 4096
        file.map()[at : at + len(data)] = data


def test_rows_match_the_records():
    opened = Opened()
    opened.put(30, tag="A")
    opened.put(30, host=HOST_V6)
    opened.put(5, topic="U")
    assert opened.rows(0, 60) == [opened.truth(index) for index in range(60)]
    assert opened.rows(17, 4) == [opened.truth(index) for index in range(17, 21)]
    assert len({row[0] // 4096 for row in opened.rows()}) > 2, "over several files of the log"


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, UnitRows(0, 3, 0, 3, b"")),
        (-1, UnitRows(0, 3, 0, 3, b"")),
        (2, UnitRows(0, 3, 2, 3, b"")),
        (3, UnitRows(0, 3, 3, 3, b"")),
        (9, UnitRows(0, 3, 9, 9, b"")),
    ],
)
def test_offsets_within_and_outside(offset, expected):
    opened = Opened()
    opened.put(3)
    assert opened.store.unit_rows("T", 0, offset, 10)._replace(rows=b"") == expected
    assert opened.store.unit_rows("T", 1, offset, 10) == UnitRows(0, 0, max(offset, 0), max(offset, 0), b"")


def test_one_call_stays_in_one_queue_file():
    opened = Opened(mapped_file_size_consume_queue=200)
    opened.put(25)
    assert [len(opened.rows(offset)) for offset in (0, 7, 20)] == [10, 3, 5]


def test_a_queue_begins_after_its_removed_records():
    opened = Opened()
    opened.put(50)
    opened.store._log.files.drop_before(8192, count_max=9)
    assert opened.rows(0, 2) == [(0, 200, 0, -1), (200, 200, 0, -1)], "its units are still there"
    opened.store._queues.correct_min(8192)
    first = opened.store.min_offset("T", 0)
    assert first > 0
    answer = opened.store.unit_rows("T", 0, 0, 5)
    assert (answer.min_offset, answer.first_offset, answer.next_offset) == (first, first, first + 5)
    assert opened.rows(0, 1) == [opened.truth(first)]


def test_offsets_without_a_message():
    opened = Opened(mapped_file_size_consume_queue=200)
    opened.put(25)
    opened.queue.repair_unit(1, FILLER_UNIT)
    opened.queue.repair_unit(2, bytes(20))
    opened.queue.repair_unit(3, (5).to_bytes(8) + (-7).to_bytes(4, signed=True) + bytes(8))
    opened.queue.repair_unit(4, (-5).to_bytes(8, signed=True) + (200).to_bytes(4) + bytes(8))
    assert opened.rows(0, 6) == [opened.truth(0), *[NOWHERE] * 4, opened.truth(5)]
    dropped = next(file for file in opened.queue.files if file.start == 200)
    opened.queue.files._ordered.remove(dropped)
    del opened.queue.files._by_start[200]
    assert opened.store.unit_rows("T", 0, 13, 100).rows == NO_MESSAGE_ROW * 7


@pytest.mark.parametrize("at", [0, 4, 12, 20, 28], ids=["size", "magic", "queue id", "queue offset", "physical offset"])
def test_a_unit_that_points_to_another_record_has_no_time(at):
    opened = Opened()
    opened.put(3, tag="A")
    opened.overwrite(RECORD_BYTES + at, b"\x01\x02")
    assert opened.rows() == [opened.truth(0), (RECORD_BYTES, RECORD_BYTES, 65, -1), opened.truth(2)]


def test_units_that_point_beyond_the_log():
    opened = Opened()
    opened.put(6)
    good = opened.queue.units(0, 6)
    opened.queue.repair_unit(1, (1 << 40).to_bytes(8) + good[8:20])
    opened.queue.repair_unit(2, good[40:48] + (4000).to_bytes(4) + good[52:60])
    opened.queue.repair_unit(3, good[60:68] + (90).to_bytes(4) + good[72:80])
    opened.queue.repair_unit(4, (6 * RECORD_BYTES).to_bytes(8) + good[8:20])
    rows = opened.rows()
    assert [row[3] for row in rows[1:5]] == [-1] * 4
    assert (rows[1][0], rows[2][1], rows[3][1]) == (1 << 40, 4000, 90)
    assert rows[5] == opened.truth(5)


def test_an_implausible_time_is_none():
    opened = Opened()
    opened.put(1)
    opened.overwrite(56, b"\xff")
    assert opened.rows()[0][3] == -1


def test_the_first_message_that_matches_is_found():
    opened = Opened(mapped_file_size_consume_queue=200)
    for number in range(25):
        opened.put(1, tag="b" if number in (12, 23) else "a")
    find = opened.store.find_message
    assert find("T", 0, 0, None, 99) == FirstMessage(0, 25, 0, opened.queue.unit(0))
    assert find("T", 0, 0, frozenset({98, 5}), 99) == FirstMessage(0, 25, 12, opened.queue.unit(12))
    assert find("T", 0, 13, frozenset({98}), 99) == FirstMessage(0, 25, 23, opened.queue.unit(23))
    assert find("T", 0, 24, frozenset({98}), 99) == FirstMessage(0, 25, 25, None)
    assert find("T", 0, 0, frozenset(), 99) == FirstMessage(0, 25, 25, None)
    assert find("T", 0, 0, frozenset({98}), 12) == FirstMessage(0, 25, 12, None), "the limit, one before it"
    assert find("T", 0, 0, frozenset({98}), 13).unit is not None
    assert find("T", 0, 7, None, 0) == FirstMessage(0, 25, 7, None)
    assert find("T", 0, 30, None, 9) == FirstMessage(0, 25, 30, None)
    assert find("T", 1, 3, None, 9) == FirstMessage(0, 0, 3, None)
    for number in (0, 1):
        opened.queue.repair_unit(number, FILLER_UNIT)
    assert find("T", 0, 0, None, 99).scanned_to == 2
    assert find("T", 0, 0, frozenset({0, 97}), 99).scanned_to == 2, "filler has the tags code of no tag"


def test_only_an_intact_record_returns_its_time():
    opened = Opened()
    opened.put(4, tag="A")
    opened.put(1, topic="U")
    units = [opened.queue.unit(index) for index in range(4)]
    stored_at = opened.store.verified_stored_at
    assert stored_at("T", 0, 1, units[1]) == opened.truth(1)[3]
    assert stored_at("T", 0, 2, units[1]) is None
    assert stored_at("T", 1, 1, units[1]) is None
    assert stored_at("U", 0, 1, units[1]) is None
    assert stored_at("T", 0, 1, units[1]._replace(size_bytes=199)) is None
    opened.overwrite(2 * RECORD_BYTES + 120, b"\x01")
    assert stored_at("T", 0, 2, units[2]) is None
    opened.overwrite(3 * RECORD_BYTES + 63, b"\x01")
    assert stored_at("T", 0, 3, units[3]) is None, "the bit is in the time itself"
    opened.store._log.files.drop_from(0)
    assert stored_at("T", 0, 1, units[1]) is None
