import pytest

from services.broker.registry import resets as resets_module
from services.broker.registry.resets import HOLDS_MS, KEPT_MS, Reset, ResetTable

NOW = 1_700_000_000_000


def test_a_reset_holds_for_an_hour_and_is_kept_for_a_day() -> None:
    table = ResetTable()
    epoch = table.put("T", "g", {0: (30, 5)}, NOW)
    row = Reset(epoch, NOW, 30, 5)
    assert table.holds_until_ms == NOW + HOLDS_MS
    assert table.holding("T", "g", 0, NOW + HOLDS_MS - 1) == row
    assert table.holding("T", "g", 0, NOW + HOLDS_MS) is None
    assert table.find("T", "g", 0, NOW + KEPT_MS - 1) == row
    assert table.find("T", "g", 0, NOW + KEPT_MS) is None
    assert table.find("T", "g", 1, NOW) is None


def test_epochs_grow_even_if_the_clock_goes_back_or_the_table_is_read_again() -> None:
    table = ResetTable()
    first = table.put("T", "g", {0: (30, 5)}, NOW)
    second = table.put("T", "h", {0: (30, 5)}, NOW - 1000)
    again = ResetTable()
    again.load({"T@h": {0: Reset(second, NOW, 30, 5)}})
    assert first < second < again.put("T", "g", {0: (5, 6)}, NOW - 1000)
    assert again.holding("T", "h", 0, NOW) is not None


def test_old_rows_make_room_and_rows_that_hold_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resets_module, "RESETS_MAX", 2)
    table = ResetTable()
    table.put("T", "g", {0: (1, 2)}, NOW)
    table.put("T", "g", {1: (1, 2)}, NOW + HOLDS_MS)
    assert not table.has_room("U", "g", [0, 1], NOW + HOLDS_MS)  # The row of queue 1 holds.
    assert table.has_room("U", "g", [0], NOW + HOLDS_MS)
    assert table.find("T", "g", 0, NOW + HOLDS_MS) is None
    assert table.rows("T@g") is not None
    assert table.has_room("T", "g", [1], NOW + HOLDS_MS)


def test_deleting_a_topic_or_group_deletes_its_rows() -> None:
    table = ResetTable()
    for topic, group in (("T", "g"), ("T", "h"), ("U", "g")):
        table.put(topic, group, {0: (1, 2)}, NOW)
    table.is_dirty = False
    table.remove_topic("T")
    assert table.rows("T@g") is table.rows("T@h") is None
    assert table.is_dirty
    table.remove_group("g")
    assert table.rows("U@g") is None


def test_resets_are_listed_after_an_epoch_also_after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resets_module, "RESETS_MAX", 3)
    table = ResetTable()
    first = table.put("T", "g", {0: (30, 5), 1: (7, 9)}, NOW)
    second = table.put("T", "g", {1: (9, 1)}, NOW + 5)
    assert table.made_after(0, 9) == [(first, "T", "g"), (second, "T", "g")]
    assert table.made_after(0, 1) == [(first, "T", "g")]
    assert table.made_after(first, 9) == [(second, "T", "g")]
    assert table.queues_of("T", "g", first) == {0: Reset(first, NOW, 30, 5)}
    again = ResetTable()
    again.load({"T@g": {0: Reset(first, NOW, 30, 5), 1: Reset(second, NOW + 5, 9, 1)}})
    assert again.made_after(0, 9) == table.made_after(0, 9)
    assert again.epoch == second
    # The list is bounded; the rows themselves decide what can be undone.
    for number in range(6):
        table.put("T", "g", {0: (5, number)}, NOW + 10 + number)
    assert 3 <= len(table.made_after(0, 99)) <= 6
