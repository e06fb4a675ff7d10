"""Which groups have just consumed through this gateway."""

from services.gateway.usecases.consuming import recentconsumers
from services.gateway.usecases.consuming.recentconsumers import RECENT_MS, RecentConsumers
from tests.support.virtualtime import FakeClock


def test_a_group_has_consumed_for_a_minute(monkeypatch):
    monkeypatch.setattr(recentconsumers, "PAIRS_MAX", 2)
    clock = FakeClock()
    recent = RecentConsumers(clock)
    recent.note("G", "T")
    assert (recent.has_consumed("G", "T"), recent.has_consumed("G", "U")) == (True, False)
    clock.advance(RECENT_MS)
    assert recent.has_consumed("G", "T")
    clock.advance(1)
    assert not recent.has_consumed("G", "T")
    for topic in "TUT":
        recent.note("G", topic)
    recent.note("H", "T")
    assert [recent.has_consumed(*pair) for pair in (("G", "T"), ("G", "U"), ("H", "T"))] == [True, False, True]
