"""Wheel, timer log and check point in a file system in memory."""

import pytest

from gantry.runtime.errors import StartupError
from gantry.storeformat.timerfiles import (
    NO_UNIT,
    UNIT_BYTES,
    Slot,
    SlotProgress,
    TimerCheck,
    TimerUnit,
    is_timer_blank,
)
from services.broker.timer.checkfile import CheckFile
from services.broker.timer.unitlog import UnitLog
from services.broker.timer.wheel import Wheel
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock

SLOTS = 64
FILE_BYTES = 4096
UNITS_A_FILE = (FILE_BYTES - 16) // UNIT_BYTES


def unit(number: int) -> TimerUnit:
    return TimerUnit(NO_UNIT, 1, 1_000_000, 5000, number * 100, 100, 7)


@pytest.fixture
def files() -> MemFileSystem:
    made = MemFileSystem(FakeClock())
    made.make_dirs("/s")
    return made


@pytest.fixture
def wheel(files: MemFileSystem) -> Wheel:
    made = Wheel(files, "/s/timerwheel", slots=SLOTS)
    made.create()
    return made


def save(wheel: Wheel) -> None:
    wheel.write(wheel.take_changed())
    wheel.written()


class TestWheel:
    def test_a_slot_is_found_before_during_and_after_a_check_point(self, files: MemFileSystem, wheel: Wheel) -> None:
        slot = Slot(1000, 0, 52, 2)
        wheel.put(slot)
        assert wheel.find(1000) == slot
        pending = wheel.take_changed()
        assert wheel.find(1000) == slot
        wheel.put(Slot(1001, 104, 104, 1))
        wheel.write(pending)
        wheel.written()
        assert (wheel.find(1000), wheel.find(1001)) == (slot, Slot(1001, 104, 104, 1))
        assert wheel.changed_count == 1
        again = Wheel(files, "/s/timerwheel", slots=SLOTS)
        assert again.open()
        assert (again.find(1000), again.find(1001)) == (slot, None)

    def test_a_slot_belongs_to_the_second_that_it_names(self, wheel: Wheel) -> None:
        wheel.put(Slot(1000, 0, 52, 2))
        assert wheel.find(1000 + SLOTS) is None
        assert wheel.occupant(1000 + SLOTS).second == 1000

    def test_the_next_used_second_is_found_over_the_end_of_the_file(self, wheel: Wheel) -> None:
        start = 10 * SLOTS - 4
        wheel.put(Slot(start + 6, 0, 0, 1))
        wheel.put(Slot(start - SLOTS + 8, 0, 0, 1))  # This second is of an earlier round.
        second, steps = start, 0
        while wheel.find(second) is None:
            second, steps = wheel.next_used(second, start + 30), steps + 1
        assert (second, steps) == (start + 6, 2)
        assert wheel.next_used(start + 7, start + 9) == start + 9

    def test_slots_next_to_each_other_are_written_together(self, files: MemFileSystem, wheel: Wheel) -> None:
        for second in (5, 6, 7, 20, 63, 64):
            wheel.put(Slot(second, 0, 0, 1))
        save(wheel)
        found = [slot.second for slots in wheel.scan(6) for slot in slots]
        assert found == [64, 6, 7, 20, 63]

    def test_an_empty_file_is_the_rest_of_a_crash(self, files: MemFileSystem) -> None:
        files.write("/s/timerwheel", b"")
        assert not Wheel(files, "/s/timerwheel", slots=SLOTS).open()


class TestUnitLog:
    def test_units_are_found_at_their_positions_over_several_files(self, files: MemFileSystem) -> None:
        log = UnitLog(files, "/s/timerlog", FILE_BYTES)
        log.load()
        count = 3 * UNITS_A_FILE + 5
        positions = [log.append(unit(number)) for number in range(count)]
        log.write_out()
        assert positions[UNITS_A_FILE - 1] == (UNITS_A_FILE - 1) * UNIT_BYTES
        assert positions[UNITS_A_FILE] == FILE_BYTES
        for number in reversed(range(count)):
            assert log.find(positions[number]) == unit(number)
        first = files.open("/s/timerlog/00000000000000000000")
        assert is_timer_blank(first.read(UNITS_A_FILE * UNIT_BYTES, 16))
        assert log.find(positions[-1] + UNIT_BYTES) is None
        log.sync(log.take_unsynced())
        again = UnitLog(files, "/s/timerlog", FILE_BYTES)
        again.load()
        place, found = 0, 0
        while (next_place := again.next_position(place)) is not None and again.find(next_place) is not None:
            assert next_place == positions[found]
            place, found = next_place + UNIT_BYTES, found + 1
        assert found == count

    def test_a_cut_removes_later_files_and_blanks_the_rest(self, files: MemFileSystem) -> None:
        log = UnitLog(files, "/s/timerlog", FILE_BYTES)
        log.load()
        for number in range(2 * UNITS_A_FILE):
            log.append(unit(number))
        log.write_out()
        log.cut(10 * UNIT_BYTES)
        assert log.end == 10 * UNIT_BYTES
        assert files.list_dir("/s/timerlog") == ["00000000000000000000"]
        content = files.open("/s/timerlog/00000000000000000000").read(0, FILE_BYTES)
        assert any(content[: 10 * UNIT_BYTES])
        assert not any(content[10 * UNIT_BYTES :])
        assert log.append(unit(1)) == 10 * UNIT_BYTES

    def test_old_files_are_removed_but_never_the_last_one(self, files: MemFileSystem) -> None:
        log = UnitLog(files, "/s/timerlog", FILE_BYTES)
        log.load()
        for number in range(2 * UNITS_A_FILE + 1):
            log.append(unit(number))
        log.write_out()
        assert log.drop_before(FILE_BYTES - 1) == 0
        assert log.drop_before(10 * FILE_BYTES) == 2
        assert (log.start, log.files_count) == (2 * FILE_BYTES, 1)
        assert log.find(0) is None
        assert log.find(2 * FILE_BYTES) == unit(2 * UNITS_A_FILE)

    def test_units_are_found_while_the_disk_is_full_and_written_later(self, files: MemFileSystem) -> None:
        log = UnitLog(files, "/s/timerlog", FILE_BYTES)
        log.load()
        log.append(unit(0))
        files.capacity_bytes = files.used_bytes()
        with pytest.raises(OSError, match="No space"):
            log.write_out()
        assert log.find(0) == unit(0)
        files.capacity_bytes = 1 << 30
        log.write_out()
        assert log.find(0) == unit(0)

    def test_a_file_of_another_size_stops_the_start(self, files: MemFileSystem) -> None:
        files.make_dirs("/s/timerlog")
        files.create("/s/timerlog/00000000000000000000", 100)
        with pytest.raises(StartupError, match="mapped_file_size_timer_log"):
            UnitLog(files, "/s/timerlog", FILE_BYTES).load()


def test_a_check_point_is_read_back_with_its_progress(files: MemFileSystem) -> None:
    file = CheckFile(files, "/s/config/timercheck")
    assert file.read() is None
    check = TimerCheck(1, 2, 3, 3, 0, 6, 7)
    file.write(check, SlotProgress(9, 52))
    assert file.read() == (check, SlotProgress(9, 52))
    file.write(check._replace(counter=8), None)
    assert file.read() == (check._replace(counter=8), None)
    assert files.size_bytes("/s/config/timercheck") == 4096


def test_a_check_point_that_a_crash_cut_while_it_was_created_is_none(files: MemFileSystem) -> None:
    files.make_dirs("/s/config")
    for content in (b"", bytes(10), bytes(4096)):
        files.write("/s/config/timercheck", content)
        file = CheckFile(files, "/s/config/timercheck")
        assert file.read() is None
    file.write(TimerCheck(1, 2, 3, 3, 0, 6, 7), None)
    assert file.read() is not None
