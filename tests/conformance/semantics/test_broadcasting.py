"""Promises of a consumer with a listener in broadcasting mode: through the client engine and a broker, on virtual time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from gantry.client import DeadLetterError, ListenerSettings, LocalOffsets, PushConsumer, StartPosition
from gantry.client.engine import ClientEngine
from gantry.client.errors import InvalidArgumentError, OffsetsFileError
from gantry.model.group import ConsumeFromWhere, MessageModel
from gantry.model.message import MessageQueue, StoredMessage
from gantry.remoting.bodies.connections import ConsumerConnection
from gantry.remoting.bodies.variants import GroupVariants
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.runtime.rng import Rng
from gantry.runtime.workers import InlineWorker
from tests.support.brokerunit import BrokerUnit
from tests.support.memfilesystem import MemFileSystem
from tests.support.unitcluster import engine_on

FIRST = StartPosition(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
FILE = "/offsets/one/g/offsets.json"
QUEUES = [MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)]


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit(timer_interval_ms_min=5_000, broker_fast_failure_enable=False) as unit:
        await unit.make_topic("T", queues=2)
        yield unit


@pytest.fixture
async def engine(unit: BrokerUnit) -> AsyncIterator[ClientEngine]:
    async with engine_on(unit) as engine:
        yield engine


@pytest.fixture
def disk(unit: BrokerUnit) -> MemFileSystem:
    return MemFileSystem(unit.clock)


class Listener:
    """A listener that notes the bodies of the messages, and fails for some of them."""

    def __init__(self, *failing: bytes, error: Exception | None = None) -> None:
        self.seen: list[bytes] = []
        self._failing = failing
        self._error = error or ValueError("it can't be processed")

    async def __call__(self, message: StoredMessage) -> None:
        self.seen.append(message.body)
        if message.body in self._failing:
            raise self._error


def push(
    engine: ClientEngine, disk: MemFileSystem, listener: Listener, *, client_id: str | None = "one", **options: Any
) -> PushConsumer:
    settings = ListenerSettings(
        **{name: options.pop(name) for name in list(options) if name in ListenerSettings.__dataclass_fields__}
    )
    offsets = LocalOffsets("/offsets", files=disk, worker=InlineWorker())
    model = MessageModel.BROADCASTING
    options = {"start": FIRST, "client_id": client_id, "local_offsets": offsets, **options}
    return PushConsumer(engine, "g", ["T"], listener, message_model=model, settings=settings, **options)


async def send(unit: BrokerUnit, *bodies: bytes) -> None:
    for number, body in enumerate(bodies):
        await unit.send(body=body, queue_id=number % 2)


async def broker_knows(unit: BrokerUnit) -> list[int | None]:
    """Return the offsets of the group on the broker."""
    return [unit.broker.tables.offsets.find("T", "g", queue_id) for queue_id in (0, 1)]


async def test_every_consumer_of_the_group_gets_every_message(unit, engine, disk):
    one, two = Listener(), Listener()
    async with (
        engine_on(unit, seed=8) as other,
        push(engine, disk, one) as first,
        push(other, disk, two, client_id="two") as second,
    ):
        await send(unit, b"a", b"b", b"c")
        await asyncio.sleep(30)
        assert first.held == second.held == {*QUEUES}
        await send(unit, b"d")
        await asyncio.sleep(1)
    assert sorted(one.seen) == sorted(two.seen) == [b"a", b"b", b"c", b"d"]
    assert await broker_knows(unit) == [None, None], "the broker keeps no offset for them"


async def test_a_consumer_that_starts_again_goes_on_where_it_ended(unit, engine, disk):
    listener = Listener()
    async with push(engine, disk, listener):
        await send(unit, b"a", b"b", b"c")
        await asyncio.sleep(1)
    await send(unit, b"while it is away")
    async with push(engine, disk, listener):
        await asyncio.sleep(1)
    assert sorted(listener.seen) == [b"a", b"b", b"c", b"while it is away"]


@pytest.mark.parametrize("seed", range(8))
async def test_after_a_power_cut_nothing_is_lost_and_only_the_last_seconds_come_again(unit, engine, disk, seed):
    listener = Listener()
    async with push(engine, disk, listener):
        await send(unit, *(b"%d" % number for number in range(10)))
        await asyncio.sleep(6)
        await send(unit, b"late")
        await asyncio.sleep(1)
        after = disk.crash_clone(Rng(seed))
    again = Listener()
    async with push(engine, after, again):
        await send(unit, b"new")
        await asyncio.sleep(1)
    assert again.seen == [b"late", b"new"]


async def test_a_write_that_the_power_cuts_leaves_the_old_or_the_new_offsets(unit, engine, disk):
    await send(unit, *(b"%d" % number for number in range(10)))
    cuts: list[MemFileSystem] = []
    async with push(engine, disk, Listener()):
        await asyncio.sleep(6)
        disk.on_operation = lambda operation, path: cuts.extend(disk.crash_clone(Rng(seed)) for seed in range(4))
        await send(unit, *(b"%d" % number for number in range(10, 20)))
        await asyncio.sleep(6)
        disk.on_operation = None
    assert len(cuts) >= 4 * 6, "both files are written, synced and renamed"
    starts = set()
    for cut in cuts:
        offsets = LocalOffsets("/offsets", files=cut, worker=InlineWorker())
        await offsets.open("one", "g")
        starts.add(tuple([(await offsets.committed(queue))[0] for queue in QUEUES]))
        await offsets.close()
    assert starts == {(5, 5), (10, 10)}


async def test_a_broken_file_falls_back_to_its_backup(unit, engine, disk):
    listener = Listener()
    async with push(engine, disk, listener):
        await send(unit, b"a", b"b")
        await asyncio.sleep(6)
        await send(unit, b"c", b"d")
        await asyncio.sleep(6)
    disk.write(FILE, disk.read(FILE)[:-20])
    again = Listener()
    async with push(engine, disk, again):
        await asyncio.sleep(6)
    assert sorted(again.seen) == [b"c", b"d"]
    async with push(engine, disk, again):
        await asyncio.sleep(6)
    assert len(again.seen) == 2, "the file is good again"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:-1}}']
)
async def test_a_consumer_whose_files_are_both_broken_does_not_start(unit, engine, disk, content):
    disk.make_dirs("/offsets/one/g")
    for path in (FILE, FILE + ".bak"):
        disk.write(path, content)
    with pytest.raises(OffsetsFileError, match=f"{FILE} is broken.*no good backup"):
        await push(engine, disk, Listener()).start()
    disk.remove(FILE)
    disk.remove(FILE + ".bak")
    async with push(engine, disk, Listener()):
        pass  # The lock of the consumer that did not start is released.


async def test_the_offsets_of_a_java_client_are_taken_over(unit, engine, disk):
    await send(unit, b"a", b"b", b"c", b"d")
    disk.make_dirs("/offsets/one/g")
    # RocketMQ 5.3.3 writes the file with line breaks and tabs.
    disk.write(
        FILE,
        b'{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"T"\n\t\t}:2,{\n\t\t\t'
        b'"brokerName":"broker-a",\n\t\t\t"queueId":1,\n\t\t\t"topic":"T"\n\t\t}:1\n\t}\n}',
    )
    listener = Listener()
    async with push(engine, disk, listener):
        await asyncio.sleep(1)
    assert listener.seen == [b"d"]
    assert disk.read(FILE) == (
        b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:2,'
        b'{"brokerName":"broker-a","queueId":1,"topic":"T"}:2}}'
    )


async def test_a_full_disk_delays_the_offsets_and_stops_nothing(unit, engine, disk):
    listener = Listener()

    def fail(operation: str, path: str) -> None:
        raise OSError(28, "No space left on device", path)

    async with push(engine, disk, listener):
        await asyncio.sleep(1)
        disk.on_operation = fail
        await send(unit, b"a", b"b")
        await asyncio.sleep(20)
        await send(unit, b"c")
        await asyncio.sleep(1)
        assert sorted(listener.seen) == [b"a", b"b", b"c"]
        disk.on_operation = None
        await asyncio.sleep(6)
        after = disk.crash_clone(Rng(1))
    again = Listener()
    async with push(engine, after, again):
        await asyncio.sleep(1)
    assert again.seen == []


async def test_a_message_that_fails_is_skipped_and_comes_to_nobody_again(unit, engine, disk):
    one, two = Listener(b"bad"), Listener()
    async with (
        engine_on(unit, seed=8) as other,
        push(engine, disk, one) as consumer,
        push(other, disk, two, client_id="two"),
    ):
        await send(unit, b"bad", b"x", b"good")
        await asyncio.sleep(600)
        counts = consumer.counts
        assert (counts.failed, counts.skipped, counts.sent_back, counts.consumed) == (1, 1, 0, 2)
    assert sorted(one.seen) == sorted(two.seen) == [b"bad", b"good", b"x"]
    assert unit.store.max_offset("%RETRY%g", 0) == unit.store.max_offset("%DLQ%g", 0) == 0


@pytest.mark.parametrize(
    ("error", "deliveries"), [(ValueError("it can't be processed"), 3), (DeadLetterError("never"), 1)]
)
async def test_in_order_a_message_that_fails_holds_up_its_queue_until_it_is_skipped(
    unit, engine, disk, error, deliveries
):
    listener = Listener(b"bad", error=error)
    async with push(engine, disk, listener, is_orderly=True, max_reconsume_times=2) as consumer:
        await unit.send(body=b"bad")
        await unit.send(body=b"next")
        await asyncio.sleep(60)
        assert consumer.counts.skipped == 1
    assert listener.seen == [b"bad"] * deliveries + [b"next"]
    assert unit.store.max_offset("%DLQ%g", 0) == 0


async def test_orderly_consumers_do_not_wait_for_each_others_locks(unit, engine, disk):
    one, two = Listener(), Listener()
    async with (
        engine_on(unit, seed=8) as other,
        push(engine, disk, one, is_orderly=True),
        push(other, disk, two, client_id="two", is_orderly=True),
    ):
        await send(unit, b"a", b"b")
        await asyncio.sleep(5)
    assert sorted(one.seen) == sorted(two.seen) == [b"a", b"b"]


async def test_the_broker_shows_the_group_as_broadcasting(unit, engine, disk):
    async with push(engine, disk, Listener()):
        answer = await unit.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, ext={"consumerGroup": "g"})
        shown = ConsumerConnection.decode(answer.body_bytes)
        assert shown.message_model is MessageModel.BROADCASTING
        assert {*shown.subscriptions} == {"T"}, "there is no retry topic to read"


async def test_a_group_with_both_models_is_named_as_a_mixture(unit, engine, disk):
    listener = Listener()
    async with (
        engine_on(unit, seed=8) as other,
        push(engine, disk, listener),
        PushConsumer(other, "g", ["T"], Listener(), start=FIRST),
    ):
        answer = await unit.ask(RequestCode.GANTRY_GROUP_VARIANTS, ext={"consumerGroup": "g"})
        variants = GroupVariants.decode(answer.body_bytes).variants
        assert {variant.message_model for variant in variants} == {"CLUSTERING", "BROADCASTING"}
        await send(unit, b"a", b"b")
        await asyncio.sleep(1)
        assert sorted(listener.seen) == [b"a", b"b"], "the broadcasting one still gets everything"


async def test_a_reset_of_the_groups_offsets_does_not_move_a_broadcasting_consumer(unit, engine, disk):
    await send(unit, *(b"%d" % number for number in range(10)))
    async with PushConsumer(engine, "g", ["T"], Listener(), start=FIRST):
        await asyncio.sleep(6)
    ext = {"topic": "T", "group": "g", "queueId": "0", "offset": "1", "timestamp": "-1", "isForce": "true"}
    assert (await unit.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext=ext)).code == ResponseCode.SUCCESS
    listener = Listener()
    async with push(engine, disk, listener):
        await asyncio.sleep(30)
        assert sorted(listener.seen) == [b"%d" % number for number in range(10)]
    async with push(engine, disk, listener):
        await asyncio.sleep(30)
    assert len(listener.seen) == 10


async def test_a_group_that_forbids_broadcasting_gives_nothing_to_it(unit, engine, disk):
    groups = unit.broker.tables.groups
    await send(unit, b"a", b"b")
    listener = Listener()
    async with push(engine, disk, listener):
        await asyncio.sleep(1)
        assert len(listener.seen) == 2
        groups.put(replace(groups.find("g"), consume_broadcast_enable=False), 1)
        await send(unit, b"c", b"d")
        await asyncio.sleep(30)
        assert len(listener.seen) == 2
        groups.put(replace(groups.find("g"), consume_broadcast_enable=True), 1)
        await asyncio.sleep(5)
        assert len(listener.seen) == 4


async def test_a_second_consumer_on_the_same_file_is_refused_and_does_not_disturb_the_first(unit, engine, disk):
    listener = Listener()
    async with engine_on(unit, seed=8) as other, push(engine, disk, listener):
        with pytest.raises(InvalidArgumentError, match=r"client_id: 'one' consumes in group g already.*own"):
            await push(other, disk, Listener()).start()
        await send(unit, b"a", b"b")
        await asyncio.sleep(6)
        assert sorted(listener.seen) == [b"a", b"b"]
    async with push(engine, disk, listener) as again:
        assert again.held == {*QUEUES}, "the end of the first releases the file"


async def test_a_new_consumer_begins_at_the_end_and_gets_what_comes_to_queues_that_are_added(unit, engine, disk):
    await send(unit, b"old", b"older")
    listener = Listener()
    async with push(engine, disk, listener, start=None):
        await asyncio.sleep(1)
        await unit.make_topic("T", queues=3)
        await unit.send(body=b"new", queue_id=2)
        await asyncio.sleep(60)
        assert listener.seen == [b"new"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"client_id": None}, "client_id: .* pass one"),
        ({"local_offsets": None}, "local_offsets: .* needed in BROADCASTING"),
    ],
)
async def test_a_consumer_that_could_not_find_its_offsets_again_is_refused(unit, engine, disk, options, reason):
    with pytest.raises(InvalidArgumentError, match=reason):
        push(engine, disk, Listener(), **options)


async def test_local_offsets_of_a_clustering_consumer_are_refused(engine, disk):
    offsets = LocalOffsets("/offsets", files=disk, worker=InlineWorker())
    with pytest.raises(InvalidArgumentError, match=r"local_offsets: .* not allowed in CLUSTERING"):
        PushConsumer(engine, "g", ["T"], Listener(), local_offsets=offsets)


@pytest.mark.parametrize("client_id", ["a/b", "..", "x" * 256])
async def test_a_client_id_that_is_no_name_of_a_folder_is_refused(unit, engine, disk, client_id):
    with pytest.raises(InvalidArgumentError, match=r"client_id: .* name of a folder"):
        await push(engine, disk, Listener(), client_id=client_id).start()


class HeldUpWorker(InlineWorker):
    """A worker whose jobs wait for the disk while it is held up."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[tuple[Callable[[], Any], Future[Any]]] | None = None
        self.is_closed = False

    def submit(self, job: Callable[[], Any]) -> "Future[Any]":
        if self.jobs is None:
            return super().submit(job)
        self.jobs.append((job, Future()))
        return self.jobs[-1][1]

    def go_on(self) -> None:
        for job, future in self.jobs or ():
            future.set_result(job())

    def close(self) -> None:
        self.is_closed = True


async def test_a_cancelled_close_releases_the_file_and_its_thread(disk):
    worker = HeldUpWorker()
    offsets = LocalOffsets("/offsets", files=disk, worker=worker)
    await offsets.open("one", "g")
    worker.jobs = []
    closing = asyncio.ensure_future(offsets.close())
    await asyncio.sleep(1)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    worker.go_on()
    await asyncio.sleep(1)
    assert worker.is_closed
    again = LocalOffsets("/offsets", files=disk, worker=InlineWorker())
    await again.open("one", "g")
    await again.close()
