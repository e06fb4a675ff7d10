import pytest

from gantry.model.topic import DataVersion
from services.broker.registry import offsets as offsets_module
from services.broker.registry.offsets import VERSION_STEP, OffsetTable


def test_a_commit_overwrites_and_a_negative_one_is_ignored() -> None:
    table = OffsetTable()
    assert table.find("T", "g", 0) is None
    table.commit("T", "g", 0, -1, now_ms=1)
    assert not table.is_dirty
    table.commit("T", "g", 0, 8, now_ms=1)
    table.commit("T", "g", 0, 5, now_ms=1)
    table.commit("T", "g", 0, -7, now_ms=1)
    assert table.find("T", "g", 0) == 5
    assert table.find("T", "g", 1) is None
    assert table.queues("T", "g") == {0: 5}
    assert table.queues("T", "h") == {}


def test_the_version_changes_after_a_number_of_commits() -> None:
    table = OffsetTable()
    for offset in range(VERSION_STEP):
        table.commit("T", "g", 0, offset, now_ms=77)
    assert table.version == DataVersion(0, 77, 1)


def test_groups_of_a_topic_and_topics_of_a_group_are_found() -> None:
    table = OffsetTable()
    for topic, group in [("T", "g"), ("%RETRY%g", "g"), ("T", "h")]:
        table.commit(topic, group, 0, 1, now_ms=1)
    assert table.topics_of("g") == ["T", "%RETRY%g"]
    assert table.groups_of("T") == ["g", "h"]
    assert table.groups() == ["g", "h"]


def test_deleting_a_topic_or_group_deletes_exactly_its_offsets() -> None:
    table = OffsetTable()
    for topic, group in [("T", "g"), ("T2", "g"), ("T", "gg"), ("U", "g")]:
        table.commit(topic, group, 0, 1, now_ms=1)
        table.note_pull(topic, group, 0, 2)
    table.remove_topic("T")
    assert table.topics_of("g") == ["T2", "U"]
    assert table.pulled("T", "g", 0) is None
    table.remove_group("g")
    assert table.all() == {}
    assert table.pulled("U", "g", 0) is None


def test_pulled_offsets_are_kept_in_memory_only() -> None:
    table = OffsetTable()
    table.note_pull("T", "g", 3, 9)
    assert table.pulled("T", "g", 3) == 9
    assert not table.is_dirty
    assert table.all() == {}
    assert not table.unsaved


def test_changes_since_the_last_save_are_recorded() -> None:
    table = OffsetTable()
    table.load(DataVersion(0, 5, 2), {"T@g": {0: 1}, "U@g": {0: 1}})
    assert (list(table.unsaved), list(table.unsaved_groups), table.is_dirty) == (["T@g", "U@g"], ["g"], False)
    table.unsaved.clear()
    table.unsaved_groups.clear()
    table.commit("T", "g", 0, 2, now_ms=1)
    assert (list(table.unsaved), list(table.unsaved_groups), table.is_dirty) == (["T@g"], [], True)
    table.commit("T", "h", 0, 2, now_ms=1)
    assert (list(table.unsaved), list(table.unsaved_groups)) == (["T@g", "T@h"], ["h"])
    table.unsaved.clear()
    table.remove_topic("U")
    assert (list(table.unsaved), list(table.unsaved_groups)) == (["U@g"], ["h", "g"])


def test_offsets_beyond_the_end_are_reset_to_it() -> None:
    table = OffsetTable()
    table.load(DataVersion(), {"T@g": {0: 5, 1: 6, 2: 7}, "Gone@g": {0: 1}, "T@h": {1: 2}})
    table.unsaved.clear()
    ends = {("T", 0): 5, ("T", 1): 5, ("T", 2): 0}
    clamped = table.clamp(lambda topic, queue_id: ends.get((topic, queue_id), 0))
    assert clamped == [("T", "g", 1, 6, 5), ("T", "g", 2, 7, 0), ("Gone", "g", 0, 1, 0)]
    assert table.all() == {"T@g": {0: 5, 1: 5, 2: 0}, "Gone@g": {0: 0}, "T@h": {1: 2}}
    assert (list(table.unsaved), table.is_dirty) == (["T@g", "Gone@g"], True)
    assert table.clamp(lambda topic, queue_id: 10) == []


def test_a_full_table_takes_no_new_pair_but_commits_of_existing_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_module, "OFFSETS_MAX", 2)
    monkeypatch.setattr(offsets_module, "QUEUES_RESERVE", 1)
    table = OffsetTable()
    assert table.commit("T", "g", 0, 1, now_ms=1)
    assert table.commit("T", "h", 0, 1, now_ms=1)
    assert not table.commit("T", "i", 0, 1, now_ms=1)
    assert table.commit("T", "g", 0, 2, now_ms=1)
    assert table.commit("T", "g", 1, 2, now_ms=1), "an existing pair may get another queue"
    assert not table.commit("T", "g", 2, 2, now_ms=1)
    assert table.all() == {"T@g": {0: 2, 1: 2}, "T@h": {0: 1}}
    table.remove_group("g")
    assert table.commit("T", "i", 0, 1, now_ms=1)


def test_pulled_offsets_of_all_queues_are_removed_with_their_group() -> None:
    offsets = OffsetTable()
    for queue_id in range(8):
        offsets.note_pull("T", "G", queue_id, 7)
    offsets.remove_group("G")
    assert [offsets.pulled("T", "G", queue_id) for queue_id in range(8)] == [None] * 8


def test_the_number_of_recorded_pulls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_module, "PULLED_PAIRS_MAX", 2)
    table = OffsetTable()
    for group in ("g", "h", "g", "i"):
        table.note_pull("T", group, 0, 9)
    assert [table.pulled("T", group, 0) for group in ("g", "h", "i")] == [None, 9, 9]


def test_a_pair_that_is_removed_twice_is_a_bug() -> None:
    offsets = offsets_module.QueueOffsets()
    offsets.put("T", "g", {0: 1})
    offsets.remove("T", "g")
    with pytest.raises(AssertionError, match="T@g is unknown"):
        offsets.remove("T", "g")
