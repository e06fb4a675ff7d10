"""The client engine against a real name server and two real brokers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path

import pytest

from gantry.client.admin import Admin
from gantry.client.consumer.processqueue import ProcessQueue
from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.client.consumer.rebalance import GroupMember
from gantry.client.consumer.starts import Assignment, StartPosition
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError, Outcome, RequestTimeoutError, SendError
from gantry.client.producer import Producer
from gantry.client.requestreply import Requester, reply_to
from gantry.client.settings import ClientSettings
from gantry.model.group import ConsumeFromWhere, parse_tag_expression
from gantry.model.message import Message, MessageQueue
from gantry.model.names import reply_topic
from gantry.model.topic import TopicConfig
from gantry.remoting.codes import RequestCode
from gantry.remoting.headers.kv import PutKvConfigHeader
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.serviceprocess import ServiceProcess

BROKERS = ("broker-a", "broker-b")
SMALL_FILES = "mapped_file_size_commit_log = 4194304\nmax_hash_slot_num = 1000\nmax_index_num = 4000\n"


def broker(tmp_path: Path, name: str, namesrv: str, listen: str) -> ServiceProcess:
    folder = tmp_path / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "broker.toml").write_text(SMALL_FILES)
    return ServiceProcess(
        "broker",
        folder,
        *("--listen", listen, "--namesrv", namesrv, "--name", name, "--store", str(folder / "store")),
        *("--config", str(folder / "broker.toml"), "--fast-port", "off", "--metrics-port", "off"),
    )


class Cluster:
    """A name server and two brokers that tests may kill and start again on the same ports and folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.namesrv = ServiceProcess("namesrv", folder / "ns", "--listen", "127.0.0.1:0", "--data", str(folder / "ns"))
        self.brokers: dict[str, ServiceProcess] = {}

    def start(self) -> None:
        self.namesrv.start()
        for name in BROKERS:
            self.brokers[name] = broker(self._folder, name, self.namesrv.address, "127.0.0.1:0")
            self.brokers[name].start()

    def start_again(self, name: str) -> None:
        self.brokers[name] = broker(self._folder, name, self.namesrv.address, self.brokers[name].address)
        self.brokers[name].start()

    def stop(self) -> None:
        for process in (*self.brokers.values(), self.namesrv):
            process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
async def engine(cluster: Cluster) -> AsyncIterator[ClientEngine]:
    settings = ClientSettings(
        namesrv=(cluster.namesrv.address,), poll_namesrv_interval_ms=500, offset_commit_interval_ms=100
    )
    engine = ClientEngine(settings, clock=SystemClock(), rng=Rng())
    await engine.start()
    yield engine
    await engine.stop()


async def eventually(condition: Callable[[], Awaitable[bool]], *, within_s: float = 15) -> None:
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - other processes have no event to wait for.
            await asyncio.sleep(0.05)


async def create_topic(engine: ClientEngine, name: str) -> None:
    await Admin(engine).create_topic(TopicConfig(name, 2, 2))

    async def is_routed() -> bool:
        try:
            return len((await engine.publish_info(name, refresh=True)).queues) == 4
        except ClientError:
            return False

    await eventually(is_routed)


class Owner:
    """A member with one window for each queue, which records the changes that it is told."""

    def __init__(self, engine: ClientEngine, topic: str, client_id: str) -> None:
        self.windows: dict[MessageQueue, ProcessQueue] = {}
        self.member = GroupMember(
            engine,
            f"g-{topic}",
            [parse_tag_expression(topic, "*", SystemClock().now_ms())],
            client_id=client_id,
            on_change=self.on_change,
            commit_point=lambda queue: self.windows[queue].commit_point,
            start=StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET),
        )

    async def on_change(self, assigned: Sequence[Assignment], revoked: Sequence[MessageQueue]) -> None:
        for queue in revoked:
            del self.windows[queue]
        self.windows.update({one.queue: ProcessQueue(one.next_offset) for one in assigned})

    async def consume(self, consumer: PullConsumer) -> list[bytes]:
        """Pull once from each queue and acknowledge all messages."""
        bodies = []
        for queue, window in list(self.windows.items()):
            found = await consumer.pull(queue, window.next_offset)
            messages = list(found.messages())
            window.add([(one.queue_offset, one.size_bytes) for one in messages], found.next_offset, now_ms=0)
            for one in messages:
                window.ack(one.queue_offset)
                bodies.append(one.inflated_body())
        return bodies


async def test_messages_sent_in_every_way_are_read_back(engine: ClientEngine):
    await create_topic(engine, "EveryWay")
    producer = Producer(engine, "pg")
    await producer.start()
    one = await producer.send(Message("EveryWay", b"one", {"TAGS": "A", "KEYS": "k1"}))
    batch = await producer.send_batch("EveryWay", [Message("EveryWay", b"b%d" % number) for number in range(3)])
    large = await producer.send(Message("EveryWay", b"large" * 2_000), ordering_key="k")
    await producer.send_one_way(Message("EveryWay", b"oneway"))
    called = asyncio.get_running_loop().create_future()
    producer.send_async(Message("EveryWay", b"async"), lambda result, error: called.set_result(result or error))
    assert {result.outcome for result in (one, *batch, large, await called)} == {Outcome.STORED}

    consumer, admin, bodies = PullConsumer(engine, "g"), Admin(engine), set()
    for queue in await engine.subscribe_queues("EveryWay"):
        found = await consumer.pull(queue, 0)
        bodies |= {message.inflated_body() for message in found.messages()}
    assert bodies == {b"one", b"b0", b"b1", b"b2", b"large" * 2_000, b"oneway", b"async"}
    assert (await admin.view_message(one.stored_id)).message_id == one.message_id
    assert [found.body for found in await admin.query_by_unique_key("EveryWay", batch[1].message_id)] == [b"b1"]
    assert [found.message_id for found in await admin.query_by_key("EveryWay", "k1")] == [one.message_id]
    await producer.close()


async def test_a_held_pull_ends_with_the_next_message(engine: ClientEngine):
    await create_topic(engine, "Held")
    queue = MessageQueue("Held", "broker-a", 0)
    consumer, producer = PullConsumer(engine, "g"), Producer(engine, "pg")
    held = asyncio.ensure_future(consumer.pull(queue, 0, suspend_ms=10_000))
    await asyncio.sleep(0.2)
    assert not held.done()
    await producer.send(Message("Held", b"now"), queue=queue)
    found = await asyncio.wait_for(held, 5)
    assert (found.status, [message.body for message in found.messages()]) == (PullStatus.FOUND, [b"now"])


async def test_members_share_queues_and_continue_at_the_offsets_of_others(engine: ClientEngine):
    await create_topic(engine, "Shared")
    producer, consumer = Producer(engine, "pg"), PullConsumer(engine, "g-Shared")
    for number in range(40):
        await producer.send(Message("Shared", b"%d" % number))
    first, second = Owner(engine, "Shared", "127.0.0.1@1"), Owner(engine, "Shared", "127.0.0.1@2")
    await first.member.start()
    seen = await first.consume(consumer)
    assert len(seen) == 40

    async def is_committed() -> bool:
        stats = await Admin(engine).consume_stats("g-Shared")
        return sum(one.consumer_offset for one in stats.values()) == 40

    await eventually(is_committed)
    await second.member.start()

    async def is_shared() -> bool:
        return len(first.windows) == len(second.windows) == 2

    await eventually(is_shared)
    assert await second.consume(consumer) == []
    await first.member.close()

    async def has_all() -> bool:
        return len(second.windows) == 4

    await eventually(has_all)
    assert await second.consume(consumer) == []
    await second.member.close()


async def test_requests_get_their_replies_over_both_brokers(engine: ClientEngine, cluster: Cluster):
    await create_topic(engine, "ASKED")
    answering = ClientEngine(ClientSettings(namesrv=(cluster.namesrv.address,)), clock=SystemClock(), rng=Rng())
    await answering.start()
    producer, consumer = Producer(answering, "answerers"), PullConsumer(answering, "answerers")

    async def answer(queue: MessageQueue, offset: int) -> None:
        while True:
            found = await consumer.pull(queue, offset, suspend_ms=1_000)
            for message in found.messages():
                await producer.send(reply_to(message, message.inflated_body().upper()))
            offset = found.next_offset

    starts = {queue: await consumer.offsets.max_offset(queue) for queue in await answering.subscribe_queues("ASKED")}
    tasks = [asyncio.ensure_future(answer(*start)) for start in starts.items()]
    asker = Producer(engine, "askers")
    await asker.start()
    requester = Requester(engine, asker)
    questions = [f"question {number}" for number in range(40)]
    replies = await asyncio.gather(
        *(requester.request(Message("ASKED", question.encode()), timeout_ms=10_000) for question in questions)
    )
    assert [reply.inflated_body().decode() for reply in replies] == [question.upper() for question in questions]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    stored = [
        await consumer.offsets.max_offset(queue)
        for queue in await answering.subscribe_queues(reply_topic("DefaultCluster"))
    ]
    assert (len(stored), sum(stored), min(stored) > 0) == (2, 40, True), "each reply once, on both brokers"
    with pytest.raises(RequestTimeoutError):
        await requester.request(Message("ASKED", b"nobody is there"), timeout_ms=500)
    await answering.stop()


async def test_sends_with_keys_of_a_killed_broker_wait_for_it_and_all_others_continue(
    engine: ClientEngine, cluster: Cluster
):
    await create_topic(engine, "Killed")
    producer = Producer(engine, "pg")
    keys = [f"key-{number}" for number in range(16)]
    owners = {key: await producer.queue_for_key("Killed", key) for key in keys}
    assert {queue.broker_name for queue in owners.values()} == set(BROKERS)
    cluster.brokers["broker-b"].kill()
    lost = next(key for key, queue in owners.items() if queue.broker_name == "broker-b")
    with pytest.raises(SendError) as caught:  # The loss may be noticed late.
        await producer.send(Message("Killed", b"first"), ordering_key=lost)
    assert (caught.value.outcome is not Outcome.STORED, caught.value.retryable) == (True, True)
    for key, queue in owners.items():
        message = Message("Killed", key.encode())
        if queue.broker_name == "broker-a":
            assert (await producer.send(message, ordering_key=key)).queue == queue
        else:
            with pytest.raises(SendError) as caught:
                await producer.send(message, ordering_key=key)
            assert (caught.value.outcome, caught.value.retryable) == (Outcome.NOT_STORED, True)
    assert {(await producer.send(Message("Killed", b"x"))).queue.broker_name for _ in range(8)} == {"broker-a"}

    cluster.start_again("broker-b")

    async def is_back() -> bool:
        try:
            return (await producer.send(Message("Killed", lost.encode()), ordering_key=lost)).queue == owners[lost]
        except SendError:
            return False

    await eventually(is_back)


async def test_an_order_configuration_outlives_the_absence_of_a_broker(engine: ClientEngine, cluster: Cluster):
    await create_topic(engine, "Kept")
    put = PutKvConfigHeader(namespace="ORDER_TOPIC_CONFIG", key="Kept", value="broker-a:2;broker-b:2")
    await engine.call(cluster.namesrv.address, RequestCode.PUT_KV_CONFIG, put)
    # A broker that stops in order takes its routes from the name server at once.
    assert cluster.brokers["broker-b"].terminate() == 0

    # This engine has never seen broker-b, as a client that starts now.
    newcomer = ClientEngine(engine.settings, clock=SystemClock(), rng=Rng())
    await newcomer.start()
    try:
        info = await newcomer.publish_info("Kept")
        assert set(info.masters) == {"broker-a"}
        assert [(queue.broker_name, queue.queue_id) for queue in info.ordering_queues] == [
            (name, queue_id) for name in BROKERS for queue_id in range(2)
        ]
        producer = Producer(newcomer, "pg")
        keys = [f"key-{number}" for number in range(16)]
        owners = {key: await producer.queue_for_key("Kept", key) for key in keys}
        for key, queue in owners.items():
            if queue.broker_name == "broker-a":
                assert (await producer.send(Message("Kept", b"x"), ordering_key=key)).queue == queue
            else:
                with pytest.raises(SendError) as caught:
                    await producer.send(Message("Kept", b"x"), ordering_key=key)
                assert (caught.value.outcome, caught.value.retryable) == (Outcome.NOT_STORED, True)
        cluster.start_again("broker-b")
        moved = next(key for key, queue in owners.items() if queue.broker_name == "broker-b")

        async def is_back() -> bool:
            try:
                return (await producer.send(Message("Kept", b"x"), ordering_key=moved)).queue == owners[moved]
            except SendError:
                return False

        await eventually(is_back)
    finally:
        await newcomer.stop()
