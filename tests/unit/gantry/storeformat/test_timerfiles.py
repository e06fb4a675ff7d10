"""The codecs of the timer's files: round trips, limits, and bytes that are no unit."""

import pytest

from gantry.model.errors import CorruptRecordError
from gantry.model.topic import DataVersion
from gantry.storeformat.timerfiles import (
    BLANK_BYTES,
    CHECK_BYTES,
    CHECK_FILE_BYTES,
    FLAG_DEFAULT,
    FLAG_DELETE,
    FLAG_ROLL,
    NO_UNIT,
    PROGRESS_AT,
    UNIT_BYTES,
    WHEEL_SLOTS,
    Slot,
    SlotProgress,
    TimerCheck,
    TimerUnit,
    TopicCount,
    decode_slot,
    decode_timer_check,
    decode_timer_metrics,
    encode_slot,
    encode_slot_progress,
    encode_timer_blank,
    encode_timer_check,
    encode_timer_metrics,
    encode_timer_unit,
    find_slot_progress,
    find_timer_unit,
    is_timer_blank,
    slot_index,
)

UNIT = TimerUnit(-1, FLAG_DEFAULT, 1_700_000_000_000, 5_000, 4096, 139, -1983015359)


@pytest.mark.parametrize("flags", [1, 3, 5, 7])
def test_a_unit_is_read_as_it_was_written(flags: int) -> None:
    unit = UNIT._replace(flags=flags, previous=520)
    data = b"x" + encode_timer_unit(unit)
    assert len(data) == 1 + UNIT_BYTES
    assert find_timer_unit(data, 1) == unit
    assert unit.slot_ms == 1_700_000_005_000
    assert unit.is_rolled == bool(flags & FLAG_ROLL)
    assert unit.is_deletion == bool(flags & FLAG_DELETE)


@pytest.mark.parametrize(
    "change",
    [{"flags": 0}, {"flags": 16}, {"physical_offset": -1}, {"size_bytes": 0}, {"size_bytes": -5}, {"previous": -2}],
)
def test_bytes_with_an_impossible_field_are_no_unit(change: dict[str, int]) -> None:
    assert find_timer_unit(encode_timer_unit(UNIT._replace(**change))) is None


def test_zeros_a_wrong_size_and_a_blank_are_no_unit() -> None:
    assert find_timer_unit(bytes(UNIT_BYTES)) is None
    assert find_timer_unit(b"\0\0\0\x33" + encode_timer_unit(UNIT)[4:]) is None
    blank = encode_timer_blank(60)
    assert len(blank) == BLANK_BYTES
    assert is_timer_blank(blank)
    assert not is_timer_blank(encode_timer_unit(UNIT))
    assert find_timer_unit(blank.ljust(UNIT_BYTES, b"\0")) is None


def test_a_slot_is_read_as_it_was_written_and_comes_round_after_14_days() -> None:
    slot = Slot(1_700_000_005, 52, 156, 3)
    assert decode_slot(b"\0" * 32 + encode_slot(slot), 32) == slot
    assert slot_index(slot.second) == slot_index(slot.second + WHEEL_SLOTS) != slot_index(slot.second + 1)
    assert WHEEL_SLOTS == 14 * 24 * 3600


def test_a_check_point_is_read_as_it_was_written() -> None:
    check = TimerCheck(1, 2, 3, 4, 5, 6, 7)
    assert decode_timer_check(encode_timer_check(check).ljust(4096, b"\0")) == check
    with pytest.raises(CorruptRecordError, match="55 bytes"):
        decode_timer_check(bytes(CHECK_BYTES - 1))


def test_the_progress_of_a_slot_is_read_as_it_was_written_and_damage_is_none() -> None:
    progress = SlotProgress(1_700_000_000, 520)
    data = bytes(PROGRESS_AT) + encode_slot_progress(progress)
    assert find_slot_progress(data) == progress
    assert find_slot_progress(bytes(CHECK_FILE_BYTES)) is None
    assert find_slot_progress(data[:-1] + b"x") is None


def test_metrics_are_read_as_they_were_written() -> None:
    version, counts = DataVersion(0, 5, 9), {"T": TopicCount(3, 17), "%RETRY%g": TopicCount(-1, 2)}
    data = encode_timer_metrics(version, counts)
    assert decode_timer_metrics(data) == (version, counts)
    assert data.startswith(b'{"dataVersion":{"counter":9,"stateVersion":0,"timestamp":5},"timingCount":{"T":{"count":3')


@pytest.mark.parametrize("data", [b"", b"[]", b'{"dataVersion":{}}', b'{"timingCount":{"T":1}}', b"[" * 5000])
def test_metrics_of_another_shape_are_an_error(data: bytes) -> None:
    with pytest.raises(CorruptRecordError, match="timer metrics"):
        decode_timer_metrics(data)


def test_no_unit_is_before_every_position() -> None:
    assert NO_UNIT < 0
