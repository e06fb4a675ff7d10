"""Closing queues of a topic: only when all groups have consumed them, and in one step with the check."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from gantry.remoting.bodies.shrinking import Shrinking
from gantry.remoting.bodies.tables import GroupList
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.brokerunit import BrokerUnit
from tests.support.heartbeats import consumer_beat


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T", 4)
        yield unit


async def write_queues(unit: BrokerUnit, count: int) -> None:
    config = unit.broker.tables.topics.find("T")
    assert config is not None
    ext = {
        "topic": "T", "defaultTopic": "TBW102", "readQueueNums": str(config.read_queue_nums),
        "writeQueueNums": str(count), "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
    }  # fmt: skip
    assert (await unit.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext)).code == 0


async def shrink(unit: BrokerUnit, queues: int = 2, *, dry_run: bool = False, groups: Sequence[str] = ()) -> Shrinking:
    ext = {"topic": "T", "queueNums": str(queues), "dryRun": str(dry_run).lower()}
    body = GroupList(group_list=list(groups)).encode() if groups else b""
    answer = await unit.ask(RequestCode.GANTRY_SHRINK_TOPIC, ext=ext, body=body)
    assert answer.code == 0, answer.remark
    return Shrinking.decode(answer.body_bytes)


def blocks(found: Shrinking) -> list[tuple[str | None, int, int | None]]:
    return [(block.group, block.queue_id, block.unconsumed) for block in found.blocks]


def commit(unit: BrokerUnit, group: str, queue_id: int, offset: int) -> None:
    unit.broker.tables.offsets.commit("T", group, queue_id, offset, 1)


async def test_queues_close_when_all_groups_have_consumed_them(unit: BrokerUnit) -> None:
    for queue_id in (0, 2, 2, 3):
        assert (await unit.send("T", queue_id=queue_id)).code == 0
    commit(unit, "behind", 2, 1)
    commit(unit, "done", 2, 2)
    commit(unit, "done", 3, 1)
    await write_queues(unit, 2)
    assert blocks(await shrink(unit, dry_run=True)) == [("behind", 2, 1), ("behind", 3, 1)]
    found = await shrink(unit)
    assert (found.read_queue_nums, found.write_queue_nums, len(found.blocks)) == (4, 2, 2)
    commit(unit, "behind", 2, 2)
    commit(unit, "behind", 3, 1)
    assert (await shrink(unit, dry_run=True)).read_queue_nums == 4, "a dry run changes nothing"
    found = await shrink(unit)
    assert (found.read_queue_nums, found.blocks) == (2, [])
    assert (await unit.send("T", queue_id=2)).code == ResponseCode.INVALID_PARAMETER
    assert (await shrink(unit)).read_queue_nums == 2, "a repeated request changes nothing"


async def test_a_group_that_consumes_on_another_broker_counts(unit: BrokerUnit) -> None:
    for queue_id in (2, 3):
        assert (await unit.send("T", queue_id=queue_id)).code == 0
    commit(unit, "here", 2, 1)
    commit(unit, "here", 3, 1)
    await write_queues(unit, 2)
    named = ["here", "there", "CID_RMQ_SYS_TRANS"]
    found = await shrink(unit, groups=named)
    assert (found.read_queue_nums, blocks(found)) == (4, [("there", 2, 1), ("there", 3, 1)])
    commit(unit, "there", 2, 1)
    commit(unit, "there", 3, 1)
    assert (await shrink(unit, groups=named)).read_queue_nums == 2


async def test_write_queues_go_first(unit: BrokerUnit) -> None:
    found = await shrink(unit)
    assert (found.read_queue_nums, found.write_queue_nums, found.blocks) == (4, 4, [])


async def test_a_message_that_is_not_readable_yet_keeps_the_queues_open(unit: BrokerUnit) -> None:
    """The message is stored under the old number of queues. Its producer gets an answer when it is on the disk."""
    assert (await unit.send("T", queue_id=0)).code == 0
    commit(unit, "g", 0, 1)
    await write_queues(unit, 2)
    unit.flush_is_stuck = True
    sent = asyncio.ensure_future(unit.send("T", queue_id=3))
    await asyncio.sleep(0.1)
    assert unit.store.max_offset("T", 3) == 0
    found = await shrink(unit)
    assert (found.read_queue_nums, blocks(found)) == (4, [("g", 3, 1)])
    unit.flush_is_stuck = False
    await sent


async def test_a_send_and_a_shrink_in_one_turn_lose_no_message(unit: BrokerUnit) -> None:
    assert (await unit.send("T", queue_id=0)).code == 0
    commit(unit, "g", 0, 1)
    await write_queues(unit, 2)
    found, answer = await asyncio.gather(shrink(unit), unit.send("T", queue_id=3))
    assert (found.read_queue_nums, answer.code) in {(4, 0), (2, ResponseCode.INVALID_PARAMETER)}
    assert unit.store.max_offset("T", 3) == (1 if answer.code == 0 else 0)


async def test_a_connected_group_blocks_without_a_commit_and_a_broadcasting_one_is_unknown(unit: BrokerUnit) -> None:
    assert (await unit.send("T", queue_id=3)).code == 0
    await write_queues(unit, 2)
    assert blocks(await shrink(unit)) == [(None, 3, 1)], "no group has come yet"
    await unit.ask(RequestCode.HEART_BEAT, body=consumer_beat("a@1", "live", "T"))
    assert blocks(await shrink(unit)) == [("live", 3, 1)]
    await unit.ask(
        RequestCode.HEART_BEAT, body=consumer_beat("a@1", "live", "T", message_model="BROADCASTING", version=2)
    )
    assert blocks(await shrink(unit)) == [("live", 3, None)]


@pytest.mark.parametrize(
    ("ext", "code"),
    [
        ({"topic": "NONE", "queueNums": "1"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": "T", "queueNums": "0"}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "T", "queueNums": "-1"}, ResponseCode.INVALID_PARAMETER),
    ],
)
async def test_invalid_requests_are_refused(unit: BrokerUnit, ext: dict[str, str], code: int) -> None:
    assert (await unit.ask(RequestCode.GANTRY_SHRINK_TOPIC, ext=ext)).code == code
