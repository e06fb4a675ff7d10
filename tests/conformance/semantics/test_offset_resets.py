"""Promises of offset resets: the group is where it was put, whatever its consumers still have under way."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gantry.model.message import MessageQueue
from gantry.remoting.bodies.resets import (
    CONSUMED,
    HAS_MEMBERS,
    NO_QUEUE,
    OUT_OF_RANGE,
    SUPERSEDED,
    UNKNOWN_RESET,
    ConsumeTimeSpans,
    CorrectionOffsets,
    MadeResets,
    ResetOffsets,
    ResetQueue,
    ResetQueues,
    ResetResults,
)
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import PullMessageResponseHeader
from gantry.remoting.headers.reset import ResetClientOffsetHeader
from services.broker.processors import offsetreset
from services.broker.registry import resets as resets_module
from services.broker.registry.resets import HOLDS_MS, KEPT_MS
from tests.support.brokerunit import BrokerUnit
from tests.support.connectionpair import ConnectionPair
from tests.support.heartbeats import consumer_beat, subscribe

MESSAGES = 40
MOVED = ResponseCode.PULL_OFFSET_MOVED


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await fill(unit)
        yield unit


@asynccontextmanager
async def slow_unit() -> AsyncIterator[BrokerUnit]:
    """Run a broker whose timers are slow, for hours of virtual time."""
    async with BrokerUnit(timer_interval_ms_min=600_000) as unit:
        await fill(unit)
        yield unit


async def fill(unit: BrokerUnit) -> None:
    await unit.make_topic("T", queues=2)
    unit.broker.tables.groups.ensure("g", unit.settings, 1)
    for _ in range(MESSAGES):
        await unit.send()


async def commit(
    unit: BrokerUnit,
    offset: int,
    connection: ConnectionPair | None = None,
    *,
    queue_id: int = 0,
    epoch: int | None = None,
) -> int:
    ext = {"topic": "T", "queueId": str(queue_id), "consumerGroup": "g", "commitOffset": str(offset)}
    if epoch is not None:
        ext["gantryResetEpoch"] = str(epoch)
    return (await unit.ask(RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext, connection=connection)).code


async def read(unit: BrokerUnit, connection: ConnectionPair | None = None, *, queue_id: int = 0) -> RemotingCommand:
    ext = {"topic": "T", "queueId": str(queue_id), "consumerGroup": "g", "setZeroIfNotFound": "false"}
    return await unit.ask(RequestCode.QUERY_CONSUMER_OFFSET, ext=ext, connection=connection)


async def pull(
    unit: BrokerUnit, offset: int, connection: ConnectionPair | None = None, **ext: object
) -> tuple[int, int]:
    """Pull, and return the code and the offset to go on at."""
    fields = {
        "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": offset, "maxMsgNums": 8, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*", **ext,
    }  # fmt: skip
    answer = await unit.ask(
        RequestCode.PULL_MESSAGE, ext={name: str(value) for name, value in fields.items()}, connection=connection
    )
    return answer.code, PullMessageResponseHeader.from_ext(answer.ext_fields).next_begin_offset


async def reset(
    unit: BrokerUnit, offset: int | None = None, *, time: int = -1, queue_id: int = 0, force: bool = True
) -> RemotingCommand:
    ext = {"topic": "T", "group": "g", "timestamp": str(time), "isForce": str(force).lower(), "queueId": str(queue_id)}
    if offset is not None:
        ext["offset"] = str(offset)
    return await unit.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext=ext, connection=unit.connect())


async def reset_queues(unit: BrokerUnit, *queues: ResetQueue, dry_run: bool = False) -> ResetResults:
    answer = await unit.ask(
        RequestCode.GANTRY_RESET_QUEUES,
        ext={"topic": "T", "consumerGroup": "g"},
        body=ResetQueues(queues=list(queues), dry_run=dry_run).encode(),
    )
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return ResetResults.decode(answer.body_bytes)


def committed(unit: BrokerUnit, queue_id: int = 0) -> int | None:
    return unit.broker.tables.offsets.find("T", "g", queue_id)


class TestConsumersThatDoNotKnowResets:
    async def test_a_commit_under_way_does_not_overwrite_a_reset(self, unit: BrokerUnit) -> None:
        await commit(unit, 30)
        assert (await reset(unit, 5)).code == 0
        assert await commit(unit, 31) == MOVED
        assert committed(unit) == 5

    async def test_a_commit_within_a_pull_does_not_either(self, unit: BrokerUnit) -> None:
        await pull(unit, 20)
        await reset(unit, 5)
        assert await pull(unit, 28, sysFlag=5, commitOffset=28) == (MOVED, 5)
        assert committed(unit) == 5

    async def test_one_way_commits_of_a_client_that_connects_again_are_refused(self, unit: BrokerUnit) -> None:
        await commit(unit, 30)
        await reset(unit, 5)
        again = unit.connect()
        ext = {"topic": "T", "queueId": "0", "consumerGroup": "g", "commitOffset": "31"}
        again.client.send_one_way(RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, ext=ext, one_way=True))
        assert (await read(unit, again)).ext_fields["offset"] == "5"

    async def test_a_pull_from_an_old_offset_is_sent_to_the_new_one_until_it_follows(self, unit: BrokerUnit) -> None:
        await pull(unit, 20)
        await reset(unit, 5)
        assert await pull(unit, 28) == (MOVED, 5)
        assert await pull(unit, 28) == (MOVED, 5)
        assert await pull(unit, 5) == (0, 13)
        assert await pull(unit, 13) == (0, 21)

    async def test_the_answer_21_alone_does_not_free_old_commits(self, unit: BrokerUnit) -> None:
        """Clients of 4.9 go on to commit the old offset for 10 s after it."""
        await pull(unit, 20)
        await reset(unit, 5)
        assert await pull(unit, 28) == (MOVED, 5)
        assert await commit(unit, 28) == MOVED
        assert committed(unit) == 5

    async def test_a_client_that_commits_the_offset_it_was_told_may_commit_again(self, unit: BrokerUnit) -> None:
        await pull(unit, 20)
        await reset(unit, 5)
        await pull(unit, 28)
        assert await commit(unit, 5) == 0
        assert await commit(unit, 9) == 0
        assert committed(unit) == 9

    async def test_a_client_that_asks_for_the_offset_may_commit_again(self, unit: BrokerUnit) -> None:
        await commit(unit, 30)
        await reset(unit, 5)
        assert (await read(unit)).ext_fields["offset"] == "5"
        assert await commit(unit, 9) == 0

    async def test_a_client_that_only_pulls_may_commit_what_it_has_pulled_since(self, unit: BrokerUnit) -> None:
        await pull(unit, 20)
        await reset(unit, 5)
        await pull(unit, 28)
        await pull(unit, 5)
        assert await commit(unit, 28) == MOVED
        assert await commit(unit, 4) == MOVED
        assert await commit(unit, 13) == 0

    async def test_a_group_that_is_moved_forward_is_not_moved_back(self, unit: BrokerUnit) -> None:
        await pull(unit, 8)
        await commit(unit, 8)
        await reset(unit)
        assert committed(unit) == MESSAGES
        assert await commit(unit, 16) == MOVED
        assert await pull(unit, 16) == (MOVED, MESSAGES)

    async def test_other_queues_and_groups_are_not_affected(self, unit: BrokerUnit) -> None:
        await unit.send(queue_id=1)
        await commit(unit, 30)
        await reset(unit, 5)
        assert await commit(unit, 1, queue_id=1) == 0
        assert (await pull(unit, 28, consumerGroup="other"))[0] == 0

    async def test_a_tool_may_commit_after_a_reset(self, unit: BrokerUnit) -> None:
        """`mqadmin resetOffsetByTimeOld` and `cloneGroupOffset` commit without reading."""
        await commit(unit, 30)
        await reset(unit, 5)
        tool = unit.connect()
        assert await commit(unit, 7, tool) == 0
        assert committed(unit) == 7
        assert await commit(unit, 31) == MOVED

    async def test_a_reset_no_longer_holds_after_an_hour(self) -> None:
        async with slow_unit() as unit:
            await reset(unit, 5)
            await asyncio.sleep(HOLDS_MS / 1000 - 1)
            late = unit.connect()
            assert await pull(unit, 28, late) == (MOVED, 5)
            await asyncio.sleep(1)
            assert await commit(unit, 28, late) == 0

    async def test_a_reset_holds_after_a_restart_of_the_broker(self) -> None:
        async with BrokerUnit() as unit:
            await fill(unit)
            await pull(unit, 28)
            await commit(unit, 30)
            await reset(unit, 5)
            files, settings = unit.files.crash_clone(unit.broker.rng), unit.settings
        async with BrokerUnit(files=files, store_path_root_dir=settings.store_path_root_dir) as unit:
            assert committed(unit) == 5
            assert await pull(unit, 28) == (MOVED, 5)
            assert await commit(unit, 28) == MOVED


class TestConsumersThatKnowResets:
    async def test_a_commit_with_an_old_epoch_is_refused_on_any_connection(self, unit: BrokerUnit) -> None:
        await reset(unit, 5)
        epoch = int((await read(unit)).ext_fields["gantryResetEpoch"])
        assert await commit(unit, 9, epoch=0) == MOVED
        assert await commit(unit, 9, epoch=epoch) == 0
        await reset(unit, 3)
        assert await commit(unit, 17, epoch=epoch) == MOVED
        assert committed(unit) == 3

    async def test_a_pull_with_an_old_epoch_learns_the_new_one(self, unit: BrokerUnit) -> None:
        await reset(unit, 5)
        answer = await unit.ask(
            RequestCode.PULL_MESSAGE,
            ext={
                "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "5", "maxMsgNums": "8", "sysFlag": "4",
                "commitOffset": "0", "suspendTimeoutMillis": "0", "subVersion": "0", "subscription": "*",
                "gantryResetEpoch": "0",
            },
        )  # fmt: skip
        epoch = answer.ext_fields["gantryResetEpoch"]
        assert (answer.code, answer.remark, answer.ext_fields["nextBeginOffset"]) == (MOVED, "OFFSET_RESET", "5")
        assert (await pull(unit, 5, gantryResetEpoch=epoch))[0] == 0
        assert (await read(unit)).ext_fields["gantryResetEpoch"] == epoch


class TestMembersAreTold:
    async def test_each_connection_of_the_group_gets_request_220(self, unit: BrokerUnit) -> None:
        got: list[RemotingCommand] = []
        connection = unit.connect({RequestCode.RESET_CONSUMER_CLIENT_OFFSET: lambda _, request: got.append(request)})
        await unit.ask(RequestCode.HEART_BEAT, body=consumer_beat("1@2", "g", "T"), connection=connection)
        await reset(unit, 5)
        await asyncio.sleep(0.1)
        (command,) = got
        header = ResetClientOffsetHeader.from_ext(command.ext_fields)
        assert (header.topic, header.group, header.is_force) == ("T", "g", True)
        assert command.is_one_way
        assert ResetOffsets.decode(command.body_bytes).offset_table == {MessageQueue("T", "broker-a", 0): 5}
        # It has dropped what it had, as Java's client does, and commits the new offset.
        assert await commit(unit, 30, connection) == MOVED
        assert await commit(unit, 5, connection) == 0
        assert await commit(unit, 6, connection) == 0

    async def test_a_held_pull_is_answered_at_once(self, unit: BrokerUnit) -> None:
        waiting = asyncio.ensure_future(pull(unit, MESSAGES, sysFlag=6, suspendTimeoutMillis=15_000))
        await asyncio.sleep(1)
        assert not waiting.done()
        await reset(unit, 5)
        await asyncio.sleep(0.01)
        assert waiting.done()
        assert await waiting == (MOVED, 5)

    async def test_features_are_told_before_any_other_request(self, unit: BrokerUnit) -> None:
        seen: list[object] = []
        unit.broker.on_offsets_reset.append(lambda topic, group, queues: seen.append((topic, group, dict(queues))))
        await reset(unit, 5)
        assert seen == [("T", "g", {0: 5})]


class TestTargets:
    async def test_all_queues_go_to_a_time_to_the_end_or_to_the_first_message(self, unit: BrokerUnit) -> None:
        at_ms = unit.clock.now_ms() + 5_000
        await asyncio.sleep(5)
        await unit.send()
        await unit.send(queue_id=1)
        for time, offsets in ((at_ms, {0: MESSAGES, 1: 0}), (-1, {0: MESSAGES + 1, 1: 1}), (0, {0: 0, 1: 0})):
            answer = await reset(unit, time=time, queue_id=-1)
            table = ResetOffsets.decode(answer.body_bytes).offset_table
            assert {queue.queue_id: offset for queue, offset in table.items()} == offsets
            assert {queue_id: committed(unit, queue_id) for queue_id in offsets} == offsets

    async def test_without_force_no_group_moves_forward(self, unit: BrokerUnit) -> None:
        await commit(unit, 8)
        await reset(unit, time=-1, force=False)
        assert committed(unit) == 8
        await reset(unit, time=0, force=False)
        assert committed(unit) == 0

    async def test_an_offset_outside_the_queue_is_refused(self, unit: BrokerUnit) -> None:
        answer = await reset(unit, MESSAGES + 1)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark == "Target offset 41 not in consume queue range [0-40] of queue 0 of topic T"
        assert committed(unit) is None

    async def test_a_broadcasting_group_is_refused_by_name(self, unit: BrokerUnit) -> None:
        await subscribe(unit, "g", "T", message_model="BROADCASTING")
        answer = await reset(unit, 5)
        assert answer.code == ResponseCode.NO_PERMISSION
        assert answer.remark is not None
        assert answer.remark.startswith("group g is connected in broadcasting mode")
        assert committed(unit) is None

    async def test_a_full_table_refuses_and_changes_nothing(
        self, unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(resets_module, "RESETS_MAX", 1)
        assert (await reset(unit, 5)).code == 0
        assert (await reset(unit, 6)).code == 0
        answer = await reset(unit, 0, queue_id=1)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert committed(unit, 1) is None


class TestSeveralQueues:
    async def test_all_queues_are_reset_or_none(self, unit: BrokerUnit) -> None:
        done = await reset_queues(unit, ResetQueue(queue_id=0, offset=5), ResetQueue(queue_id=1, offset=1))
        assert done.epoch is None
        assert [queue.problem for queue in done.queues] == [None, OUT_OF_RANGE]
        assert committed(unit) is None
        assert (await reset_queues(unit, ResetQueue(queue_id=9, offset=0))).queues[0].problem == NO_QUEUE

    async def test_a_dry_run_changes_nothing(self, unit: BrokerUnit) -> None:
        await commit(unit, 30)
        done = await reset_queues(unit, ResetQueue(queue_id=0, offset=5), dry_run=True)
        assert (done.epoch, done.queues[0].from_offset, done.queues[0].offset) == (None, 30, 5)
        assert committed(unit) == 30
        assert await commit(unit, 31) == 0


class TestUndo:
    async def test_it_brings_back_the_old_offset_and_holds_as_well(self, unit: BrokerUnit) -> None:
        await commit(unit, 30)
        epoch = (await reset_queues(unit, ResetQueue(queue_id=0, offset=5))).epoch
        done = await reset_queues(unit, ResetQueue(queue_id=0, undo_epoch=epoch))
        assert (done.queues[0].from_offset, done.queues[0].offset, done.queues[0].problem) == (5, 30, None)
        assert committed(unit) == 30
        assert await commit(unit, 5) == MOVED

    async def test_a_queue_that_had_no_offset_has_none_again(self, unit: BrokerUnit) -> None:
        epoch = (await reset_queues(unit, ResetQueue(queue_id=0, offset=5))).epoch
        await reset_queues(unit, ResetQueue(queue_id=0, undo_epoch=epoch))
        assert committed(unit) is None
        assert (await read(unit)).code == ResponseCode.QUERY_NOT_FOUND

    async def test_a_queue_that_had_no_offset_keeps_it_while_the_group_is_connected(self, unit: BrokerUnit) -> None:
        await subscribe(unit, "g", "T")
        epoch = (await reset_queues(unit, ResetQueue(queue_id=0, offset=5))).epoch
        assert (await reset_queues(unit, ResetQueue(queue_id=0, undo_epoch=epoch))).queues[0].problem == HAS_MEMBERS
        assert committed(unit) == 5

    async def test_it_is_refused_once_the_group_has_consumed(self, unit: BrokerUnit) -> None:
        await commit(unit, 30)
        epoch = (await reset_queues(unit, ResetQueue(queue_id=0, offset=5))).epoch
        await read(unit)
        await commit(unit, 6)
        assert (await reset_queues(unit, ResetQueue(queue_id=0, undo_epoch=epoch))).queues[0].problem == CONSUMED
        assert committed(unit) == 6

    async def test_it_is_refused_after_another_reset(self, unit: BrokerUnit) -> None:
        first = (await reset_queues(unit, ResetQueue(queue_id=0, offset=5))).epoch
        second = (await reset_queues(unit, ResetQueue(queue_id=0, offset=7))).epoch
        assert (await reset_queues(unit, ResetQueue(queue_id=0, undo_epoch=first))).queues[0].problem == SUPERSEDED
        assert (await reset_queues(unit, ResetQueue(queue_id=1, undo_epoch=second))).queues[0].problem == UNKNOWN_RESET

    async def test_it_is_refused_after_a_day(self) -> None:
        async with slow_unit() as unit:
            epoch = (await reset_queues(unit, ResetQueue(queue_id=0, offset=5))).epoch
            await asyncio.sleep(KEPT_MS / 1000 - 1)
            unit.connection = unit.connect()
            done = await reset_queues(unit, ResetQueue(queue_id=0, undo_epoch=epoch), dry_run=True)
            assert done.queues[0].problem is None
            await asyncio.sleep(1)
            done = await reset_queues(unit, ResetQueue(queue_id=0, undo_epoch=epoch))
            assert done.queues[0].problem == UNKNOWN_RESET


class TestToolRequests:
    async def test_time_spans_of_a_group(self, unit: BrokerUnit) -> None:
        first = unit.broker.store.stored_at("T", 0, 0)
        await asyncio.sleep(10)
        await unit.send()
        last = unit.broker.store.stored_at("T", 0, MESSAGES)
        await commit(unit, MESSAGES)
        await asyncio.sleep(3)
        answer = await unit.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, ext={"topic": "T", "group": "g"})
        spans = ConsumeTimeSpans.decode(answer.body_bytes).consume_time_span_set
        assert [span.message_queue.queue_id for span in spans] == [0, 1]
        busy, empty = spans
        assert (busy.min_time_stamp, busy.max_time_stamp) == (first, last)
        assert busy.consume_time_stamp == unit.broker.store.stored_at("T", 0, MESSAGES - 1)
        assert last is not None
        assert busy.delay_time == unit.clock.now_ms() - last
        assert (empty.min_time_stamp, empty.max_time_stamp, empty.delay_time) == (-1, -1, 0)

    async def test_the_correction_is_the_smallest_offset_of_all_groups(self, unit: BrokerUnit) -> None:
        offsets = unit.broker.tables.offsets
        for group, offset in (("g", 9), ("h", 4), ("slow", 1)):
            offsets.commit("T", group, 0, offset, 1)

        async def ask(**ext: str) -> dict[int, int]:
            answer = await unit.ask(RequestCode.QUERY_CORRECTION_OFFSET, ext={"topic": "T", **ext})
            return dict(CorrectionOffsets.decode(answer.body_bytes).offsets)

        assert await ask(compareGroup="new") == {0: 1}
        assert await ask(compareGroup="new", filterGroups="slow,other") == {0: 4}
        assert await ask(compareGroup="slow", filterGroups="slow") == {0: 2**63 - 1}

    async def test_a_clone_takes_over_the_offsets_and_holds(self, unit: BrokerUnit) -> None:
        unit.broker.tables.groups.ensure("source", unit.settings, 1)
        unit.broker.tables.offsets.commit("T", "source", 0, 12, 1)
        await commit(unit, 30)
        ext = {"srcGroup": "source", "destGroup": "g", "topic": "T", "offline": "true"}
        assert (await unit.ask(RequestCode.CLONE_GROUP_OFFSET, ext=ext)).code == 0
        assert committed(unit) == 12
        assert await commit(unit, 31) == MOVED


class TestListedResets:
    """Reports read the resets of offsets, so that they never count as consumption."""

    async def listed(self, unit: BrokerUnit, after: int = 0) -> MadeResets:
        answer = await unit.ask(RequestCode.GANTRY_RESETS, ext={"afterEpoch": str(after)})
        assert answer.code == 0, answer.remark
        return MadeResets.decode(answer.body_bytes)

    async def test_resets_are_listed_by_epoch_with_the_offsets_before_and_after(self, unit: BrokerUnit) -> None:
        await commit(unit, 30)
        first = (await reset_queues(unit, ResetQueue(queue_id=0, offset=5), ResetQueue(queue_id=1, offset=0))).epoch
        second = (await reset_queues(unit, ResetQueue(queue_id=0, offset=7))).epoch
        assert first is not None
        found = await self.listed(unit)
        assert [(one.epoch, one.topic, one.group) for one in found.resets] == [(first, "T", "g"), (second, "T", "g")]
        # Queue 0 was reset again, so it is part of the second reset only.
        assert [(queue.queue_id, queue.from_offset, queue.offset) for queue in found.resets[0].queues] == [(1, None, 0)]
        assert [(queue.queue_id, queue.from_offset, queue.offset) for queue in found.resets[1].queues] == [(0, 5, 7)]
        assert (await self.listed(unit, first)).resets == found.resets[1:]
        assert (await self.listed(unit, found.resets[1].epoch)).resets == []

    async def test_a_long_list_is_answered_in_parts(self, unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(offsetreset, "RESETS_AT_ONCE", 2)
        epochs = [(await reset_queues(unit, ResetQueue(queue_id=0, offset=number))).epoch for number in range(5)]
        found: list[int] = []
        for _ in range(3):
            part = await self.listed(unit, found[-1] if found else 0)
            found += [one.epoch for one in part.resets]
            assert part.more == (len(found) < 5)
        assert found == epochs

    async def test_all_offsets_say_which_resets_they_contain(self, unit: BrokerUnit) -> None:
        answer = await unit.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert (answer.ext_fields["gantryResetEpoch"], answer.ext_fields["gantryResetEpochEnd"]) == ("0", "0")
        epoch = (await reset_queues(unit, ResetQueue(queue_id=0, offset=5))).epoch
        answer = await unit.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
        assert answer.ext_fields["gantryResetEpoch"] == answer.ext_fields["gantryResetEpochEnd"] == str(epoch)
