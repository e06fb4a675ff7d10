from gantry.model.topic import DataVersion
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


def test_the_version_moves_every_so_many_commits() -> None:
    table = OffsetTable()
    for offset in range(VERSION_STEP):
        table.commit("T", "g", 0, offset, now_ms=77)
    assert table.version == DataVersion(0, 77, 1)


def test_names_are_found_from_both_sides() -> None:
    table = OffsetTable()
    for topic, group in [("T", "g"), ("%RETRY%g", "g"), ("T", "h")]:
        table.commit(topic, group, 0, 1, now_ms=1)
    assert table.topics_of("g") == ["T", "%RETRY%g"]
    assert table.groups_of("T") == ["g", "h"]
    assert table.group_topics() == {"g": ("T", "%RETRY%g"), "h": ("T",)}


def test_deleting_a_topic_or_group_forgets_exactly_its_offsets() -> None:
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
    assert table.snapshot() == {}


def test_a_snapshot_is_a_copy_and_clears_the_mark() -> None:
    table = OffsetTable()
    table.load(DataVersion(0, 5, 2), {"T@g": {0: 1}})
    table.commit("T", "g", 0, 2, now_ms=1)
    snapshot = table.snapshot()
    assert not table.is_dirty
    table.commit("T", "g", 0, 3, now_ms=1)
    assert snapshot == {"T@g": {0: 2}}
    assert table.is_dirty
