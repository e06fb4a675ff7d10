"""Pulling regions from a scripted broker: every kind of answer, and its result."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gantry.client.consumer.pull import PullResult, PullStatus
from gantry.client.errors import BrokerError, BrokerUnavailableError, ConnectionFailedError, NoRouteError
from gantry.model.address import Address, pack_host
from gantry.model.group import SubscriptionData
from gantry.model.message import MessageQueue
from gantry.model.record import encode_record
from gantry.model.route import BrokerData
from gantry.remoting.bodies import ClusterInfo
from gantry.remoting.codes import ResponseCode
from spark.datasource.brokers import queuepull
from spark.datasource.brokers.queuepull import Losses, RegionPuller, removed_of
from spark.datasource.columns.batches import arrow_schema
from spark.datasource.columns.records import RecordDecoder
from spark.datasource.partitions import Region
from spark.datasource.schema import MESSAGES

HOST = pack_host(Address("10.0.0.5", 10911))
SCHEMA = arrow_schema(MESSAGES)
REGION = Region("T", "broker-a", 0, 0, 100)
PHYSICAL_OF_60 = 60_000

Answer = Callable[[int, int, int], PullResult]


def record(offset: int, body: bytes = b"body") -> bytes:
    return encode_record(
        0, 0, offset, 1000 * offset, 0, 5, HOST, 7, HOST, 0, 0, body, b"T", b"n\x01%d\x02" % offset
    )  # fmt: skip


def result(
    status: PullStatus, next_offset: int, offsets: Sequence[int] = (), *, body: bytes | None = None
) -> PullResult:
    data = b"".join(map(record, offsets)) if body is None else body
    return PullResult(status, memoryview(data), next_offset, 0, 100, 0, SubscriptionData("T"))


class Brokers:
    """The parts of an engine that pulling needs: tasks, members of broker sets, and scripted answers."""

    def __init__(self, answer: Answer, members: dict[int, str] | None = None) -> None:
        self.tasks = self
        self.answer = answer
        self.members = members or {0: "master"}
        self.asked: list[tuple[int, int, int]] = []
        self.registered = self.brokers()
        self.code = ResponseCode.TOPIC_NOT_EXIST

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return asyncio.ensure_future(work)

    def brokers(self) -> dict[str, BrokerData]:
        return {"broker-a": BrokerData("C", "broker-a", self.members)}

    async def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(self.registered, {})

    async def call(self, address: str, *_: Any, **__: Any) -> Any:
        raise BrokerError(self.code, "says the broker", address)

    async def pull(
        self, queue: MessageQueue, offset: int, *, broker_id: int, wide_messages: int, **_: Any
    ) -> PullResult:
        self.asked.append((offset, wide_messages, broker_id))
        await asyncio.sleep(0)
        return self.answer(offset, wide_messages, broker_id)


async def offsets_of(brokers: Brokers, *regions: Region) -> tuple[list[int], dict[Region, Losses]]:
    puller = RegionPuller(brokers)  # type: ignore[arg-type]
    puller._puller = brokers  # type: ignore[assignment]
    found: list[int] = []
    async for block in puller.blocks(regions or (REGION,)):
        decoder = RecordDecoder("T", "broker-a", 0, SCHEMA)
        for batch, damages in decoder.decode(block.data, block.bounds):
            if damages:
                puller.note(block.region).damaged.extend(damages)
            found += [] if batch is None else batch["queue_offset"].to_pylist()
    return found, puller.losses


@pytest.mark.parametrize("at_once", [1, 3, 7, 1000])
async def test_a_region_is_returned_in_order_for_any_size_of_answers(at_once: int) -> None:
    def answer(offset: int, count: int, _: int) -> PullResult:
        end = min(offset + min(count, at_once), 100)
        return result(PullStatus.FOUND, end, range(offset, end))

    assert await offsets_of(Brokers(answer)) == (list(range(100)), {})


async def test_gaps_and_messages_beyond_the_end_of_a_chunk() -> None:
    there = [offset for offset in range(120) if offset % 10 > 2]

    def answer(offset: int, count: int, _: int) -> PullResult:
        found = [each for each in there if each >= offset][: min(count, 9)]
        return result(PullStatus.FOUND, found[-1] + 1, found)

    regions = [Region("T", "broker-a", 0, 0, 55), Region("T", "broker-a", 0, 55, 100)]
    found, losses = await offsets_of(Brokers(answer), *regions)
    assert (found, losses) == ([offset for offset in there if offset < 100], {})


async def test_messages_removed_meanwhile_are_skipped() -> None:
    def answer(offset: int, count: int, _: int) -> PullResult:
        if offset < 40:
            return result(PullStatus.OFFSET_ILLEGAL, 40)
        if offset == 60:
            return result(PullStatus.NO_MATCHED_MSG, 70)
        return result(PullStatus.FOUND, min(offset + 20, 60 if offset < 60 else 100), range(offset, offset + 20))

    found, losses = await offsets_of(Brokers(answer))
    assert sorted({*found}) == found == [*range(40, 60), *range(70, 90), *range(90, 100)]
    assert losses[REGION].removed == [(0, 40)]


@pytest.mark.parametrize("status", [PullStatus.NO_NEW_MSG, PullStatus.OFFSET_ILLEGAL])
async def test_a_queue_that_ends_earlier_by_now_ends_the_region(status: PullStatus) -> None:
    def answer(offset: int, count: int, _: int) -> PullResult:
        if offset < 30:
            return result(PullStatus.FOUND, 30, range(offset, 30))
        return result(status, 30)

    found, losses = await offsets_of(Brokers(answer))
    assert found == list(range(30))
    assert losses[REGION].removed == [(30, 100)]


@pytest.mark.parametrize("error", [NoRouteError("T"), BrokerError(ResponseCode.TOPIC_NOT_EXIST, "no", "h:1")])
async def test_a_topic_that_is_gone_ends_the_region(error: Exception) -> None:
    def answer(offset: int, count: int, _: int) -> PullResult:
        raise error

    found, losses = await offsets_of(Brokers(answer))
    assert found == []
    assert losses[REGION].removed == [(0, 100)]


async def test_a_topic_without_a_route_is_no_loss_while_its_broker_is_away_or_busy() -> None:
    def answer(offset: int, count: int, _: int) -> PullResult:
        raise NoRouteError("T")

    brokers = Brokers(answer)
    brokers.registered = {}
    with pytest.raises(BrokerUnavailableError):
        await offsets_of(brokers)
    busy = Brokers(answer)
    busy.code = ResponseCode.SYSTEM_BUSY
    with pytest.raises(BrokerError, match="says the broker"):
        await offsets_of(busy)


async def test_a_slave_that_ends_earlier_is_no_loss_while_its_master_is_away() -> None:
    def answer(offset: int, count: int, _: int) -> PullResult:
        if offset < 30:
            return result(PullStatus.FOUND, 30, range(offset, 30))
        return result(PullStatus.NO_NEW_MSG, 30)

    with pytest.raises(BrokerUnavailableError):
        await offsets_of(Brokers(answer, {1: "slave"}))


async def test_messages_of_a_queue_created_again_are_not_the_planned_ones() -> None:
    def answer(offset: int, count: int, _: int) -> PullResult:
        end = min(offset + 20, 100)
        return result(PullStatus.FOUND, end, range(offset, end))

    region = replace(REGION, physical_end=PHYSICAL_OF_60)
    found, losses = await offsets_of(Brokers(answer), region)
    assert found == list(range(60))
    (loss,) = removed_of(losses)
    assert (loss.expected, loss.end, loss.next) == (60, 100, None)
    assert "made again" in loss.found


async def test_damage_in_an_answer_affects_one_message() -> None:
    def answer(offset: int, count: int, _: int) -> PullResult:
        records = [record(each) for each in range(offset, 100)]
        if offset <= 5:
            records[5 - offset] = bytes(len(records[5 - offset]))
        if offset <= 50:
            records[50 - offset] = records[50 - offset].replace(b"body", b"bodx")
        return result(PullStatus.FOUND, 100, body=b"".join(records))

    found, losses = await offsets_of(Brokers(answer))
    assert found == [offset for offset in range(100) if offset not in (5, 50)]
    assert sorted(damage.queue_offset or 0 for damage in losses[REGION].damaged) == [5, 50]


async def test_a_slave_is_read_if_it_has_the_messages() -> None:
    def answer(offset: int, count: int, member: int) -> PullResult:
        if member == 1 and offset >= 50:
            return result(PullStatus.NO_NEW_MSG, offset)
        end = min(offset + 10, 50 if member == 1 else 100)
        return result(PullStatus.FOUND, end, range(offset, end))

    brokers = Brokers(answer, {0: "master", 1: "slave"})
    assert (await offsets_of(brokers))[0] == list(range(100))
    assert {member for offset, _, member in brokers.asked if offset < 50} == {1}
    assert {member for offset, _, member in brokers.asked if offset > 50} == {0}


async def test_a_silent_broker_is_asked_again_and_then_fails_the_read() -> None:
    failures = 2

    def answer(offset: int, count: int, _: int) -> PullResult:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ConnectionFailedError("h:1", "gone", sent=False)
        return result(PullStatus.FOUND, 100, range(offset, 100))

    assert (await offsets_of(Brokers(answer)))[0] == list(range(100))
    failures = queuepull.ATTEMPTS_MAX
    with pytest.raises(ConnectionFailedError):
        await offsets_of(Brokers(answer))
