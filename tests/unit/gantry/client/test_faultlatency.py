"""Which brokers are avoided, and for how long."""

import pytest

from gantry.client.faultlatency import FaultTable, fault_duration_ms


@pytest.mark.parametrize(
    ("latency_ms", "duration_ms"),
    [(0, 0), (49, 0), (549, 0), (550, 2_000), (1_799, 2_000), (1_800, 5_000), (14_999, 10_000), (60_000, 30_000)],
)
def test_a_slower_broker_is_avoided_longer(latency_ms: int, duration_ms: int):
    assert fault_duration_ms(latency_ms) == duration_ms


def test_an_unknown_broker_is_available():
    assert FaultTable().is_available("a", now_ms=0)


def test_a_slow_broker_is_avoided_for_its_time():
    table = FaultTable()
    table.record("a", 600, now_ms=1_000)
    assert not table.is_available("a", now_ms=2_999)
    assert table.is_available("a", now_ms=3_000)
    assert table.is_available("b", now_ms=1_000)


def test_a_failed_broker_is_avoided_for_ten_seconds():
    table = FaultTable()
    table.isolate("a", now_ms=0)
    assert not table.is_available("a", now_ms=9_999)
    assert table.is_available("a", now_ms=10_000)


def test_a_fast_answer_ends_the_isolation():
    table = FaultTable()
    table.isolate("a", now_ms=0)
    table.record("a", 3, now_ms=1)
    assert table.is_available("a", now_ms=1)
