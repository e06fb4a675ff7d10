"""Deleted topics: their messages do not come back, and messages of a new topic with the same name are never hidden."""

import json

import pytest
from structlog.testing import capture_logs

from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.topic import DeleteTopicHeader
from gantry.runtime.rng import Rng
from services.broker.store.folder import deletedtopics
from services.broker.store.folder.deletedtopics import DELETIONS_MAX, DeletedTopics
from tests.support.brokerunit import BrokerUnit
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import HOST, make_store, read_queue, small_settings
from tests.support.virtualtime import FakeClock

PATH = "/store/config/gantry-deletions.json"


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def files(clock):
    made = MemFileSystem(clock)
    made.make_dirs("/store/config")
    return made


def deletions(files, *, is_ours=True) -> DeletedTopics:
    loaded = DeletedTopics(files, "/store")
    loaded.load(is_ours=is_ours)
    return loaded


def put(store, clock, topic: str, count: int) -> None:
    for _ in range(count):
        clock.advance(10)
        store.put(topic, 0, b"m", b"KEYS\x01k\x02", born_at_ms=1, born_host=HOST)
    store.request_flush()
    store.dispatch()


def test_a_record_is_dead_if_it_was_stored_before_the_deletion_by_offset_and_by_time(files):
    deletions(files).add("T", 600, 1_000, log_min=0)()
    deleted = deletions(files)
    assert deleted.covers(b"T", 599, 1_000)
    assert not deleted.covers(b"T", 600, 1_000)
    assert not deleted.covers(b"T", 599, 1_001)
    assert not deleted.covers(b"U", 0, 0)


def test_records_appended_after_a_cut_of_the_log_are_alive(files):
    deleted = deletions(files)
    deleted.add("T", 600, 1_000, log_min=0)()
    deleted.add("OLD", 100, 1_000, log_min=0)()
    deleted.mark_saved("OLD")
    deleted.settle(100, 500)
    again = deletions(files)
    assert again.covers(b"T", 499, 1_000)
    assert not again.covers(b"T", 500, 1_000)
    assert list(json.loads(files.read(PATH))["topics"]) == ["T"], "the log has no record of OLD"


def test_all_records_are_alive_if_another_broker_used_the_store(files):
    deletions(files).add("T", 600, 1_000, log_min=0)()
    deleted = deletions(files, is_ours=False)
    assert not deleted.covers(b"T", 0, 0)
    deleted.settle(0, 10_000)
    assert not deletions(files).covers(b"T", 0, 0)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"topics": [1]}', b'{"topics": {"T": {}}}', b"\xff", b"7"])
def test_a_file_that_can_not_be_read_hides_nothing(files, content):
    files.write(PATH, content)
    deleted = deletions(files)
    assert not deleted.covers(b"T", 0, 0)
    deleted.add("U", 1, 1, log_min=0)()
    assert deletions(files).covers(b"U", 0, 0)


@pytest.mark.parametrize("member", ["log_end", "deleted_at_ms"])
@pytest.mark.parametrize(
    "value",
    ["Infinity", "-Infinity", "NaN", "1e999", "1.5", "-1", "true", '"7"', "null", "[]", str(1 << 63), "9" * 5000],
)
def test_an_invalid_offset_or_time_hides_nothing(files, member, value):
    values = {"log_end": "600", "deleted_at_ms": "1000"} | {member: value}
    members = ", ".join(f'"{name}": {each}' for name, each in values.items())
    files.write(PATH, f'{{"topics": {{"T": {{{members}}}}}}}'.encode())
    with capture_logs() as lines:
        deleted = deletions(files)
    assert [line["log_level"] for line in lines] == ["warning"]
    assert not deleted.covers(b"T", 0, 0)
    deleted.settle(0, 600)


def test_the_oldest_deletions_are_forgotten_first(files, monkeypatch):
    monkeypatch.setattr(deletedtopics, "DELETIONS_MAX", 3)
    deleted = deletions(files)
    for number, topic in enumerate(["A", "B", "C", "A", "D"]):
        deleted.add(topic, 100 + number, 1, log_min=0)()
        deleted.mark_saved(topic)()
    assert list(json.loads(files.read(PATH))["topics"]) == ["C", "A", "D"]
    deleted.add("E", 200, 1, log_min=103)()
    assert list(json.loads(files.read(PATH))["topics"]) == ["D", "E"]
    assert DELETIONS_MAX >= 1_000


def test_a_deletion_succeeds_if_its_note_can_not_be_written(clock):
    refusing = FaultFileSystem(MemFileSystem(clock), FaultRule("write", "*gantry-deletions*"))
    store = make_store(refusing, clock, small_settings())
    store.start()
    put(store, clock, "T", 3)
    store.delete_topic("T")
    assert store.max_offset("T", 0) == 0
    put(store, clock, "T", 1)
    assert list(read_queue(store, "T", 0)) == [0]


@pytest.mark.parametrize("is_crash", [False, True])
async def test_messages_of_a_deleted_topic_do_not_come_back_after_a_restart(is_crash):
    async with BrokerUnit() as before:
        for topic in ("T", "OTHER"):
            await before.make_topic(topic, 1)
            for number in range(3):
                assert (await before.send(topic, b"old %d" % number)).code == ResponseCode.SUCCESS
        header = DeleteTopicHeader(topic="T")
        assert (await before.ask(RequestCode.DELETE_TOPIC_IN_BROKER, header)).code == ResponseCode.SUCCESS
        crashed = before.files.crash_clone(Rng(1))
    files = crashed if is_crash else before.files
    for life in range(3):
        async with BrokerUnit(files=files) as unit:
            if life == 0:
                assert ("T", 0) not in list(unit.store.queues())
                await unit.make_topic("T", 1)
            assert unit.store.max_offset("T", 0) == life
            assert unit.store.max_offset("OTHER", 0) == 3
            assert (await unit.send("T", b"new")).code == ResponseCode.SUCCESS
            assert list(read_queue(unit.store, "T", 0)) == list(range(life + 1))
            crashed = unit.files.crash_clone(Rng(life))
        files = crashed if is_crash else files


def test_a_crash_at_any_moment_of_a_deletion_does_not_affect_other_topics(clock):
    clones: list[MemFileSystem] = []

    files = MemFileSystem(clock)
    store = make_store(files, clock, small_settings())
    store.start()
    for _ in range(3):
        put(store, clock, "T", 20)
        put(store, clock, "U", 20)
        clock.advance(10_000)
        store.maintain()
    files.on_operation = lambda operation, path: clones.append(files.crash_clone(Rng(len(clones))))
    store.delete_topic("T")
    assert len(clones) > 5
    for clone in clones:
        again = make_store(clone, clock, small_settings())
        assert again.start().lost == ()
        assert list(read_queue(again, "U", 0)) == list(range(60))
        first = again.max_offset("T", 0)
        put(again, clock, "T", 1)
        assert list(read_queue(again, "T", 0))[-1] == first
        assert again.stop()
