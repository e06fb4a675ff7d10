import struct
from datetime import UTC
from zlib import crc32
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.storeformat import layout
from gantry.storeformat.scan import usual_size

int64 = st.integers(-(2**63), 2**63 - 1)


@given(int64, st.integers(-(2**31), 2**31 - 1), int64)
def test_units_there_and_back(offset: int, size: int, code: int) -> None:
    unit = layout.decode_unit(b"ab" + layout.encode_unit(offset, size, code), 2)
    assert unit == (offset, size, code)
    assert unit.is_valid is (offset >= 0 and size > 0)


def test_filler_is_a_valid_unit() -> None:
    filler = layout.decode_unit(layout.FILLER_UNIT)
    assert filler.is_filler
    assert filler.is_valid
    assert not layout.decode_unit(bytes(20)).is_valid


@pytest.mark.parametrize("name", ["", "0", "0" * 19, "0" * 21, "0" * 19 + "x", "\u0660" * 20, "-" + "0" * 19])
def test_invalid_file_names_are_not_parsed(name: str) -> None:
    assert layout.parse_file_name(name) is None


def test_index_names_are_local_times() -> None:
    assert layout.index_file_name(1_700_000_000_007, UTC) == "20231114221320007"
    assert layout.index_file_name(1_700_000_000_007, ZoneInfo("Asia/Shanghai")) == "20231115061320007"
    assert layout.is_index_file_name("20231114221320007")
    assert not layout.is_index_file_name("2023111422132000")
    assert not layout.is_index_file_name("2023111422132000x")


def test_the_seconds_of_an_index_entry() -> None:
    assert layout.index_time_diff_s(5_999, 1_000) == 4
    assert layout.index_time_diff_s(999, 1_000) == 0
    assert layout.index_time_diff_s(5_000, 0) == 0
    assert layout.index_time_diff_s(1 << 62, 1) == 2**31 - 1


def test_checkpoint_times() -> None:
    checkpoint = layout.Checkpoint(10_000, 9_000, 4_000)
    assert (checkpoint.min_timestamp, checkpoint.min_timestamp_index) == (6_000, 4_000)
    assert layout.Checkpoint(1, 2, 3).min_timestamp == 0
    assert layout.decode_checkpoint(b"\0\0") == layout.Checkpoint()


def test_the_count_of_an_earlier_release_is_read() -> None:
    packed = struct.pack(">qqqq", 500, 30, 4, 0)
    data = layout.CHECKPOINT.pack(1, 1, 1, 0, 500).ljust(256, b"\0") + packed + crc32(packed).to_bytes(4) + bytes(40)
    assert layout.decode_queue_count(data) == (500, 30, 4, 0, -1)
    assert layout.decode_confirm_offset(data, log_end=400) == (500, True)


def test_a_checkpoint_without_a_count_repeats_the_confirm_offset() -> None:
    data = layout.CHECKPOINT.pack(1, 1, 1, 0, 900).ljust(256, b"\0") + layout.encode_queue_count(None, 500)
    assert layout.decode_queue_count(data) is None
    assert layout.decode_confirm_offset(data, log_end=1000) == (500, True)
    assert layout.decode_confirm_offset(data[:256], log_end=1000) == (900, False)
    assert layout.decode_confirm_offset(data[:256], log_end=899) == (0, False)


def test_usual_size() -> None:
    assert usual_size([]) == 0
    assert usual_size([5, 7, 5]) == 5
    assert usual_size([5, 7]) == 7
