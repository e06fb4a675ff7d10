"""Removal of old data on demand: what goes, what stays, and that the answer tells it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gantry.remoting.bodies.cleaning import EXPIRED_FILES, EXPIRED_QUEUES, UNUSED_TOPICS, Clean, Cleaned
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.brokerunit import BrokerUnit

FILE_BYTES = 64 * 1024
MESSAGES = 30
SETTINGS = {
    "mapped_file_size_commit_log": FILE_BYTES,
    "mapped_file_size_consume_queue": 200,
    "file_reserved_time": 1,
    # No hour of the day removes files by itself.
    "delete_when": "",
    # The timers of these tests are slow, which looks like a loop that is held.
    "broker_fast_failure_enable": False,
}


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit(timer_interval_ms_min=5_000, **SETTINGS) as unit:
        await unit.make_topic("T", 1)
        yield unit


async def fill(unit: BrokerUnit, topic: str = "T", count: int = MESSAGES) -> None:
    """Store messages, of which each fills most of a file of the log."""
    for _ in range(count):
        assert (await unit.send(topic, b"x" * (FILE_BYTES * 2 // 3))).code == 0


async def let_pass(unit: BrokerUnit, seconds: int) -> None:
    """Let time pass. The broker closes idle connections, so the next request needs a new one."""
    await asyncio.sleep(seconds)
    unit.connection = unit.connect()


async def clean(unit: BrokerUnit, *what: str, dry_run: bool = False) -> Cleaned:
    answer = await unit.ask(RequestCode.GANTRY_CLEAN, body=Clean(what=list(what), dry_run=dry_run).encode())
    assert answer.code == 0, answer.remark
    return Cleaned.decode(answer.body_bytes)


async def test_expired_files_go_in_as_many_batches_as_it_takes(unit: BrokerUnit) -> None:
    await fill(unit)
    await let_pass(unit, 60)
    assert (await clean(unit, EXPIRED_FILES)).log_files == 0, "the files are young"
    await let_pass(unit, 3600)
    expected = await clean(unit, EXPIRED_FILES, EXPIRED_QUEUES, dry_run=True)
    assert expected.log_files == MESSAGES - 1, "three batches of ten; the last file stays"
    assert unit.store.min_physical_offset == expected.min_physical_offset == 0
    cleaned = await clean(unit, EXPIRED_FILES, EXPIRED_QUEUES)
    assert (cleaned.log_files, cleaned.log_bytes) == (expected.log_files, expected.log_bytes)
    assert cleaned.min_physical_offset == unit.store.min_physical_offset == cleaned.log_bytes
    assert cleaned.queue_files == 2, "files of ten units"
    assert (await clean(unit, EXPIRED_FILES, EXPIRED_QUEUES)).log_files == 0
    assert (unit.store.min_offset("T", 0), unit.store.max_offset("T", 0)) == (MESSAGES - 1, MESSAGES)


async def test_a_queue_without_messages_goes_on_at_its_end(unit: BrokerUnit) -> None:
    await fill(unit, count=3)
    await unit.make_topic("U", 1)
    await fill(unit, "U", count=2)
    await let_pass(unit, 3700)
    assert (await unit.ask(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
    assert (await unit.ask(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
    assert (unit.store.min_offset("T", 0), unit.store.max_offset("T", 0)) == (3, 3)
    answer = await unit.send("T")
    assert answer.code == 0, answer.remark
    assert answer.ext_fields["queueOffset"] == "3"


async def test_topics_without_configuration_are_removed_with_their_offsets(unit: BrokerUnit) -> None:
    for topic in ("T", "LOST"):
        await unit.make_topic(topic, 1)
        assert (await unit.send(topic)).code == 0
        unit.broker.tables.offsets.commit(topic, "g", 0, 1, 1)
    assert (await unit.send("T", properties={"DELAY": "1"})).code == 0
    unit.broker.tables.topics.remove("LOST", unit.clock.now_ms())
    assert (await clean(unit, EXPIRED_FILES, EXPIRED_QUEUES)).topics == []
    assert (await clean(unit, UNUSED_TOPICS, dry_run=True)).topics == ["LOST"]
    assert unit.store.max_offset("LOST", 0) == 1
    assert (await clean(unit, UNUSED_TOPICS)).topics == ["LOST"]
    assert (await unit.ask(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
    queues = set(unit.store.queues())
    assert ("LOST", 0) not in queues
    assert {("T", 0), ("SCHEDULE_TOPIC_XXXX", 0)} <= queues
    assert unit.broker.tables.offsets.find("LOST", "g", 0) is None
    assert unit.broker.tables.offsets.find("T", "g", 0) == 1
    await unit.make_topic("LOST", 1)
    assert (await unit.send("LOST")).ext_fields["queueOffset"] == "0"


@pytest.mark.parametrize("what", [[], ["EVERYTHING"], [EXPIRED_FILES, "everything"]])
async def test_an_unknown_name_is_refused(unit: BrokerUnit, what: list[str]) -> None:
    answer = await unit.ask(RequestCode.GANTRY_CLEAN, body=Clean(what=what).encode())
    assert (answer.code, str(answer.remark)[:5]) == (ResponseCode.INVALID_PARAMETER, "what=")
