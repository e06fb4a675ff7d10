"""Deleting a topic beside other work: nothing else waits, and a crash leaves the whole topic or nothing of it."""

import asyncio
import errno
import json
from collections.abc import AsyncIterator, Callable

import pytest

from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.topic import DeleteTopicHeader
from gantry.runtime.rng import Rng
from services.broker.registry.persistence import NotSavedError
from tests.support.brokerunit import BrokerUnit
from tests.support.faultfilesystem import FaultFileSystem, FaultRule
from tests.support.heartbeats import subscribe
from tests.support.memfilesystem import MemFileSystem
from tests.support.storeworkload import read_queue
from tests.support.virtualtime import VirtualClock
from tests.support.waitingworker import WaitingWorker

DELETE = RequestCode.DELETE_TOPIC_IN_BROKER
# Each step copies the state that a crash would leave.
TINY = {"mapped_file_size_commit_log": 8 << 10, "mapped_file_size_consume_queue": 400, "max_message_size": 1000}
TOPICS = "/data/store/config/topics.json"


class Saving:
    """Config files are written when the test says so."""

    def __init__(self, unit: BrokerUnit) -> None:
        self.writes: list[asyncio.Event] = []
        self.is_over = False
        unit.broker.persistence.run_in_thread = self._run

    async def _run(self, work: Callable[[], None]) -> None:
        if not self.is_over:
            may_go = asyncio.Event()
            self.writes.append(may_go)
            await may_go.wait()
        work()

    async def go_on(self) -> None:
        """Let the present write end."""
        await settle()
        writes, self.writes = self.writes, []
        for write in writes:
            write.set()
        await settle()

    async def end(self) -> None:
        """Hold back no more writes."""
        self.is_over = True
        await self.go_on()


async def settle() -> None:
    """Let every callback run that waits for nothing."""
    for _ in range(100):
        await asyncio.sleep(0)


def request(unit: BrokerUnit, code: int = DELETE, topic: str = "T") -> asyncio.Task:
    return asyncio.ensure_future(unit.ask(code, DeleteTopicHeader(topic=topic)))


def saved_topics(files) -> dict:
    return json.loads(files.read(TOPICS))["topicConfigTable"]


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        yield unit


async def fill(unit: BrokerUnit, topic: str = "T") -> None:
    await unit.make_topic(topic, 2)
    for queue_id in (0, 1, 0):
        assert (await unit.send(topic, b"old", queue_id=queue_id)).code == ResponseCode.SUCCESS
    unit.broker.tables.offsets.commit(topic, "g", 0, 2, 1)
    unit.broker.save_offsets()
    unit.broker.persistence.write_all()


@pytest.mark.parametrize("seed", range(3))
async def test_a_crash_at_any_step_leaves_the_topic_with_its_messages_or_nothing(seed: int) -> None:
    clones: list[MemFileSystem] = []
    async with BrokerUnit(**TINY) as unit:
        files = unit.files
        await fill(unit)
        await fill(unit, "OTHER")
        files.on_operation = lambda operation, path: clones.append(files.crash_clone(Rng(seed * 1000 + len(clones))))
        assert (await unit.ask(DELETE, DeleteTopicHeader(topic="T"))).code == ResponseCode.SUCCESS
        clones.append(files.crash_clone(Rng(seed)))
        files.on_operation = None
    whole = [await _is_whole(clone) for clone in clones]
    assert whole == sorted(whole, reverse=True), whole
    assert whole[0]
    assert not whole[-1]
    assert whole.count(False) > 10, "not only at the end"


async def _is_whole(files: MemFileSystem) -> bool:
    for life in range(2):
        async with BrokerUnit(files=files, **TINY) as unit:
            offsets = unit.broker.tables.offsets
            assert len(read_queue(unit.store, "OTHER", 0)) == offsets.find("OTHER", "g", 0) == 2
            if unit.broker.tables.topics.find("T") is not None and life == 0:
                assert [len(read_queue(unit.store, "T", queue_id)) for queue_id in (0, 1)] == [2, 1]
                assert offsets.find("T", "g", 0) == 2
                return True
            assert [unit.store.max_offset("T", queue_id) for queue_id in (0, 1)] == [life, life]
            assert offsets.find("T", "g", 0) is None
            if life == 0:
                assert "T" not in saved_topics(unit.files) or unit.store.unsaved_deletions() == []
                await unit.make_topic("T", 2)
            assert unit.broker.tables.topics.find("T") is not None
            for queue_id in (0, 1):
                assert (await unit.send("T", queue_id=queue_id)).ext_fields["queueOffset"] == str(life)
            files = unit.files.crash_clone(Rng(life))
    return False


async def test_while_the_worker_is_busy_only_the_deleted_topic_is_refused(unit: BrokerUnit) -> None:
    await fill(unit)
    await unit.make_topic("U")
    worker = unit.store._remover.worker = WaitingWorker()
    first, second = request(unit), request(unit)
    await settle()
    assert (await unit.send("U")).code == ResponseCode.SUCCESS
    refused = await unit.send("T")
    assert (refused.code, "topic T is being deleted" in str(refused.remark)) == (14, True)
    with pytest.raises(AssertionError, match="topic T is being deleted"):
        await unit.make_topic("T")
    assert "T" in saved_topics(unit.files), "it leaves the tables after the note"
    assert not first.done()
    while not first.done():
        worker.run_all()
        await settle()
    assert (first.result().code, (await second).code) == (0, 0)
    await unit.make_topic("T")
    assert (await unit.send("T")).ext_fields["queueOffset"] == "0"


async def test_deleted_created_by_a_send_and_deleted_within_one_save_ends_deleted(unit: BrokerUnit) -> None:
    await fill(unit)
    saving = Saving(unit)
    first = request(unit)
    await settle()
    sent = await unit.send("T", default_topic="TBW102")
    assert (sent.code, sent.remark) == (ResponseCode.SYSTEM_BUSY, "topic T is being deleted; it can be made again soon")
    second = request(unit)
    while not (first.done() and second.done()):
        await saving.go_on()
    assert "T" not in saved_topics(unit.files)
    third = asyncio.ensure_future(unit.send("T"))
    while not third.done():
        await saving.go_on()
    assert third.result().ext_fields["queueOffset"] == "0"
    assert "T" in saved_topics(unit.files)


async def test_a_send_is_answered_as_stored_only_if_its_topic_is_saved(unit: BrokerUnit) -> None:
    saving = Saving(unit)
    unit.broker.persistence.mark("topics.json")
    await settle()
    first = asyncio.ensure_future(unit.send("T"))
    await settle()
    deleted = request(unit)
    await saving.go_on()
    assert saving.writes, "a table without the topic is being written"
    second = asyncio.ensure_future(unit.send("T"))
    await saving.go_on()
    for sent in (first, second):
        assert not sent.done() or sent.result().code != ResponseCode.SUCCESS or "T" in saved_topics(unit.files)
    while not all(each.done() for each in (first, second, deleted)):
        await saving.go_on()
    answers = [first.result().code, second.result().code, deleted.result().code]
    assert answers == [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_BUSY, ResponseCode.SUCCESS]
    assert unit.store.max_offset("T", 0) == 0


async def test_a_heartbeat_does_not_create_the_retry_topic_that_is_being_deleted(unit: BrokerUnit) -> None:
    await subscribe(unit, "g", "X")
    topic = "%RETRY%g"
    worker = unit.store._remover.worker = WaitingWorker()
    deleted = request(unit, topic=topic)
    await settle()
    worker.run_all()
    saving = Saving(unit)
    await settle()
    await subscribe(unit, "g", "Y")
    assert unit.broker.tables.topics.find(topic) is None
    while not deleted.done():
        worker.run_all()
        await saving.go_on()
    assert topic not in saved_topics(unit.files)
    await saving.end()
    await subscribe(unit, "g", "Z")
    assert unit.broker.tables.topics.find(topic) is not None


@pytest.mark.parametrize("operation", ["replace", "remove"])
async def test_a_deletion_whose_save_fails_is_repeated_or_ended_by_the_next_start(operation: str) -> None:
    memory = MemFileSystem(VirtualClock())
    files = FaultFileSystem(memory)
    async with BrokerUnit(files=files) as unit:
        await fill(unit)
        path = "*/topics.json.tmp" if operation == "replace" else "*/consumequeue/T/*"
        files.rules.append(FaultRule(operation, path, errno.EIO))
        for _ in range(2):
            answer = await unit.ask(DELETE, DeleteTopicHeader(topic="T"))
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
            assert "Input/output error" in str(answer.remark)
        assert (await unit.send("T")).code in {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE}
        crashed = memory.crash_clone(Rng(1))
        files.rules.clear()
        assert (await unit.ask(DELETE, DeleteTopicHeader(topic="T"))).code == ResponseCode.SUCCESS
        assert (await unit.send("T")).ext_fields["queueOffset"] == "0"
    async with BrokerUnit(files=crashed) as unit:
        assert unit.broker.tables.topics.find("T") is None
        assert (await unit.send("T")).ext_fields["queueOffset"] == "0"


async def test_a_start_that_can_not_save_the_end_of_a_deletion_keeps_the_name_blocked() -> None:
    memory = MemFileSystem(VirtualClock())
    async with BrokerUnit(files=memory) as unit:
        await fill(unit)
        unit.store.delete_topic("T")
        crashed = memory.crash_clone(Rng(1))
    files = FaultFileSystem(crashed, FaultRule("replace", "*/topics.json.tmp", errno.EIO))
    async with BrokerUnit(files=files) as unit:
        assert (await unit.send("T")).code == ResponseCode.SYSTEM_BUSY
        files.rules.clear()
        assert (await unit.ask(DELETE, DeleteTopicHeader(topic="T"))).code == ResponseCode.SUCCESS
        assert (await unit.send("T")).ext_fields["queueOffset"] == "0"


async def test_a_broker_that_stops_leaves_the_rest_to_the_next_start(unit: BrokerUnit) -> None:
    await fill(unit)
    unit.store._remover.is_stopping = True
    with pytest.raises(NotSavedError, match="the next start ends that"):
        await unit.broker.deletion.delete("T")
    unit.store._remover.is_stopping = False
    async with BrokerUnit(files=unit.files.crash_clone(Rng(1))) as again:
        assert again.broker.tables.topics.find("T") is None
        assert "T" not in saved_topics(again.files)
