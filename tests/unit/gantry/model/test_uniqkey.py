import hashlib
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.errors import InvalidIdError
from gantry.model.uniqkey import (
    UniqueKeyGenerator,
    born_near_ms,
    decode_unique_key,
    encode_unique_key,
    idempotency_key_to_message_id,
    month_bounds_ms,
)

BERLIN = ZoneInfo("Europe/Berlin")
NOVEMBER_MS = 1_698_796_800_000  # 2023-11-01 UTC
NOW_MS = 1_700_000_000_000


class SetClock:
    def __init__(self, now_ms: int = NOW_MS) -> None:
        self.value_ms = now_ms

    def now_ms(self) -> int:
        return self.value_ms


def maker(clock: SetClock, ip: str = "192.168.1.10") -> UniqueKeyGenerator:
    return UniqueKeyGenerator(clock, ip, 70_000, 0x18B4AAC2, tz=UTC)


def test_parts_of_a_key() -> None:
    keys = maker(SetClock())
    keys.make()
    parts = decode_unique_key(keys.make())
    assert parts.ip == bytes([192, 168, 1, 10])
    assert (parts.pid, parts.salt) == (70_000 & 0xFFFF, 0x18B4AAC2)
    assert (parts.time_ms, parts.counter) == (NOW_MS - NOVEMBER_MS, 1)


def test_the_key_of_an_ipv6_machine_is_longer() -> None:
    key = maker(SetClock(), "fd00::2").make()
    assert len(key) == 56
    assert decode_unique_key(key).counter == 0


def test_keys_never_repeat_when_more_are_made_than_a_ms_has_counters() -> None:
    keys = maker(SetClock())
    made = [keys.make() for _ in range(3 * 65_536 + 5)]
    assert len(set(made)) == len(made)
    assert decode_unique_key(made[-1]).time_ms == NOW_MS - NOVEMBER_MS + 3


def test_keys_made_in_bulk_equal_keys_made_one_by_one():
    one_by_one, at_once = maker(SetClock()), maker(SetClock())
    for count in (0, 1, 100, 65_400, 100, 65_536, 70_000, 3):
        assert at_once.make_many(count) == [one_by_one.make() for _ in range(count)]


def test_keys_never_repeat_when_the_clock_goes_back() -> None:
    clock = SetClock()
    keys = maker(clock)
    made = [keys.make() for _ in range(40_000)]
    clock.value_ms -= 5
    made += [keys.make() for _ in range(40_000)]
    clock.value_ms += 5
    made += [keys.make() for _ in range(40_000)]
    assert len(set(made)) == len(made)


def test_the_time_restarts_with_the_month() -> None:
    clock = SetClock()
    keys = maker(clock)
    keys.make()
    december_ms = int(datetime(2023, 12, 1, tzinfo=UTC).timestamp() * 1000)
    clock.value_ms = december_ms - 1
    assert decode_unique_key(keys.make()).time_ms == december_ms - 1 - NOVEMBER_MS
    clock.value_ms = december_ms + 7
    assert decode_unique_key(keys.make()).time_ms == 7


def test_month_starts_at_local_midnight() -> None:
    start_ms, end_ms = month_bounds_ms(NOW_MS, BERLIN)
    assert start_ms == NOVEMBER_MS - 3_600_000
    assert end_ms - start_ms == 30 * 86_400_000
    # In zones with summer time, March has one hour less.
    start_ms, end_ms = month_bounds_ms(int(datetime(2024, 3, 15, tzinfo=UTC).timestamp() * 1000), BERLIN)
    assert end_ms - start_ms == 31 * 86_400_000 - 3_600_000


def test_the_end_of_the_year_and_the_time_zone_of_the_machine() -> None:
    december_ms = int(datetime(2023, 12, 31, 23, tzinfo=UTC).timestamp() * 1000)
    assert month_bounds_ms(december_ms, UTC)[1] == december_ms + 3_600_000
    start_ms, end_ms = month_bounds_ms(NOW_MS)
    assert start_ms <= NOW_MS < end_ms


@given(st.integers(0, 3_000_000_000_000), st.sampled_from([UTC, BERLIN, ZoneInfo("Pacific/Apia")]))
def test_a_moment_lies_in_its_month(at_ms: int, zone: ZoneInfo) -> None:
    start_ms, end_ms = month_bounds_ms(at_ms, zone)
    assert start_ms <= at_ms < end_ms


def test_the_creation_time_is_read_from_a_key() -> None:
    key = maker(SetClock()).make()
    assert born_near_ms(key, now_ms=NOW_MS, tz=UTC) == NOW_MS
    # Read early in the next month, the key must come from the month before.
    assert born_near_ms(key, now_ms=NOW_MS + 18 * 86_400_000, tz=UTC) == NOW_MS


@pytest.mark.parametrize("key", ["", "x" * 32, "0" * 31, "0 " * 16, "0" * 33])
def test_invalid_unique_keys_are_refused(key: str) -> None:
    with pytest.raises(InvalidIdError):
        decode_unique_key(key)


@given(st.binary(min_size=4, max_size=4), st.integers(0), st.integers(0), st.integers(0), st.integers(0))
def test_parts_there_and_back(ip: bytes, pid: int, salt: int, time_ms: int, counter: int) -> None:
    parts = decode_unique_key(encode_unique_key(ip, pid, salt, time_ms, counter))
    assert parts == (ip, pid & 0xFFFF, salt & 0xFFFFFFFF, time_ms & 0xFFFFFFFF, counter & 0xFFFF)


def test_idempotency_keys() -> None:
    assert idempotency_key_to_message_id("0123456789abcdefABCDEF0123456789") == "0123456789abcdefABCDEF0123456789"
    expected = hashlib.sha256(b"order-1").hexdigest().upper()[:32]
    assert idempotency_key_to_message_id("order-1") == expected
    assert len(idempotency_key_to_message_id("0123456789abcdefABCDEF0123456789\n")) == 32
    assert idempotency_key_to_message_id("g" * 32) != "g" * 32
