"""kill -9 of a broker under load, at random and at named moments: it keeps exactly the acknowledged messages.

The page cache outlives a process, so ASYNC_FLUSH must keep acknowledged messages too. test_powercut.py covers power
cuts.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gantry.client.admin import Admin
from gantry.client.consumer.pull import PullConsumer
from gantry.client.errors import Outcome
from gantry.client.producer import Producer
from gantry.model.group import SubscriptionGroup
from gantry.model.message import Message, MessageQueue
from gantry.model.topic import TopicConfig
from gantry.runtime.failpoints import Failpoint
from gantry.runtime.rng import Rng
from tests.fault.admin import keep_churning
from tests.fault.brokers import BROKER, assert_verifies, broker, wait_until
from tests.fault.history import History, assert_kept
from tests.fault.load import Load, assert_commits, assert_keys_found, client, read_all
from tests.support.brokerprocess import BrokerProcess, NamesrvProcess

ROUNDS = {"SYNC_FLUSH": 8, "ASYNC_FLUSH": 4}
TOPICS = {"ONE": 1, "MANY": 5}
QUEUES = [MessageQueue(topic, BROKER, number) for topic, count in TOPICS.items() for number in range(count)]
CHURNED = MessageQueue("CHURN", BROKER, 0)
# Few enough to keep a test short; enough that some messages come before the moment of the kill.
HITS_MAX = {
    Failpoint.STORE_BEFORE_SYNC: 150,
    Failpoint.STORE_AFTER_SYNC: 150,
    Failpoint.STORE_BEFORE_ROLL: 6,
    Failpoint.STORE_BEFORE_CHECKPOINT: 6,
    Failpoint.BROKER_BEFORE_REPLY: 150,
}


class Victim:
    """A broker that is killed and started again, and the history of all its lives."""

    def __init__(self, folder: Path, namesrv: NamesrvProcess, rng: Rng, flush_disk_type: str) -> None:
        self.folder = folder
        self.store = folder / "store"
        self.history = History()
        self.rng = rng
        self._namesrv = namesrv.address
        # A short send queue, so that the broker refuses some sends because it is busy.
        self._settings = {
            "flush_disk_type": flush_disk_type,
            "max_message_size": 64 << 10,
            "send_thread_pool_queue_capacity": 20,
        }
        self.process = self.make()

    def make(self, failpoints: str = "") -> BrokerProcess:
        self.process = broker(self.folder, self._namesrv, failpoints=failpoints, **self._settings)
        return self.process

    async def start(self) -> None:
        await asyncio.to_thread(self.process.start)

    async def make_topics(self) -> None:
        async with client(self._namesrv) as engine:
            admin = Admin(engine)
            for topic, count in TOPICS.items():
                await admin.create_topic(TopicConfig(topic, count, count))

    async def load_until_killed(self) -> None:
        async with self._load() as load:
            await load.reach(1 + self.rng.below(400))
            await asyncio.sleep(self.rng.below(50) / 1000)
            await asyncio.to_thread(self.process.kill)

    async def load_until_it_dies(self) -> None:
        async with self._load():
            assert await asyncio.to_thread(self.process.wait) == -signal.SIGKILL

    async def check(self) -> None:
        async with client(self._namesrv) as engine:
            # If the kill came just after the deletion, the topic is not there to be read.
            await Admin(engine).create_topic(TopicConfig(CHURNED.topic, 1, 1))
            assert_kept(self.history, await read_all(engine, [*QUEUES, CHURNED]), gapless=True)
            await assert_commits(engine, self.history, QUEUES)
            await assert_keys_found(engine, self.history, self.rng)

    @contextlib.asynccontextmanager
    async def _load(self) -> AsyncIterator[Load]:
        async with client(self._namesrv) as engine:
            load = Load(engine, self.history, self.rng, QUEUES)
            load.start()
            churning = asyncio.ensure_future(keep_churning(engine, self.history, self.rng, CHURNED))
            try:
                yield load
            finally:
                churning.cancel()
                await asyncio.gather(churning, return_exceptions=True)
                await load.stop()


@pytest.fixture
async def victim(
    tmp_path: Path, namesrv: NamesrvProcess, rng: Rng, request: pytest.FixtureRequest
) -> AsyncIterator[Victim]:
    victim = Victim(tmp_path / BROKER, namesrv, rng, getattr(request, "param", "SYNC_FLUSH"))
    try:
        yield victim
    finally:
        victim.process.kill()


@pytest.mark.parametrize("victim", ["SYNC_FLUSH", "ASYNC_FLUSH"], indirect=True)
async def test_killed_at_random_moments(victim: Victim, request: pytest.FixtureRequest) -> None:
    await victim.start()
    await victim.make_topics()
    for number in range(ROUNDS[request.node.callspec.params["victim"]]):
        await victim.load_until_killed()
        assert_verifies(victim.store)
        if number % 3 == 2:
            await kill_while_starting(victim)
        await victim.start()
        await victim.check()
    print(victim.history.summary())
    assert victim.history.count(Outcome.NOT_STORED) > 10
    assert victim.process.terminate() == 0
    assert not (victim.store / "abort").exists()
    assert_verifies(victim.store)


async def kill_while_starting(victim: Victim) -> None:
    """Kill the broker during recovery."""
    victim.process.launch()
    await asyncio.sleep(0.5 + victim.rng.below(1000) / 1000)
    victim.process.kill()


async def test_killed_at_named_moments(victim: Victim) -> None:
    await victim.start()
    await victim.make_topics()
    await victim.load_until_killed()
    failpoints = list(Failpoint)
    victim.rng.shuffle(failpoints)
    for failpoint in failpoints:
        somewhere = 2 + victim.rng.below(HITS_MAX[failpoint])
        # A start writes a checkpoint itself, and the failpoint may kill it.
        for hits in (1, somewhere) if failpoint is Failpoint.STORE_BEFORE_CHECKPOINT else (somewhere,):
            print(f"{failpoint}:{hits}")
            victim.make(f"{failpoint}:{hits}")
            if await survives_start(victim):
                await victim.load_until_it_dies()
            assert_verifies(victim.store)
    victim.make()
    await victim.start()
    await victim.check()


async def survives_start(victim: Victim) -> bool:
    """Start a broker; return False if its failpoint kills it before it is ready."""
    try:
        await victim.start()
    except AssertionError as error:
        assert f"it ended with {-signal.SIGKILL}" in str(error), error
        return False
    return True


def test_every_failpoint_is_tried() -> None:
    assert set(HITS_MAX) == set(Failpoint)


async def test_offsets_of_a_deleted_topic_are_forgotten_for_good(tmp_path: Path, namesrv: NamesrvProcess) -> None:
    """Otherwise the group would skip the first messages of a new topic with that name."""
    process = broker(tmp_path / BROKER, namesrv.address, flush_consumer_offset_interval=60_000)
    queue = MessageQueue("T", BROKER, 0)
    try:
        process.start()
        async with client(namesrv.address) as engine:
            admin, consumer = Admin(engine), PullConsumer(engine, "G")
            await admin.create_topic(TopicConfig("T", 1, 1))
            await admin.put_group(SubscriptionGroup("G"))
            await Producer(engine, "P").send(Message("T", b"read"), queue=queue)
            await consumer.commit_offset(queue, 1)
            # Groups and offsets are written together.
            await admin.put_group(SubscriptionGroup("G"))
            saved = tmp_path / BROKER / "store" / "config" / "consumerOffset.json"
            await asyncio.to_thread(wait_until, lambda: saved.exists() and b"{0:1" in saved.read_bytes())
            await admin.delete_topic("T")
        process.kill()
        process.start()
        async with client(namesrv.address) as engine:
            await Admin(engine).create_topic(TopicConfig("T", 1, 1))
            assert await PullConsumer(engine, "G").committed_offset(queue) is None
    finally:
        process.kill()
