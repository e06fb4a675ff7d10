"""Pulling, through the whole broker over memory and virtual time."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import structlog

from gantry.model.group import SubscriptionGroup
from gantry.model.record import iter_records
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from tests.support.brokerunit import BrokerUnit, pull_header
from tests.support.heartbeats import consumer_beat, subscribe

SUSPEND = 4 | 2


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        yield unit


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in iter_records(answer.body_bytes)]


class TestPull:
    async def test_records_come_with_the_next_offset(self, unit: BrokerUnit) -> None:
        for number in range(5):
            await unit.send(body=b"%d" % number)
        answer = await unit.pull(offset=1, max_msg_nums=3)
        assert (answer.code, answer.remark, bodies(answer)) == (0, "FOUND", [b"1", b"2", b"3"])
        assert answer.ext_fields == {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": "4",
            "minOffset": "0",
            "maxOffset": "5",
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        }

    async def test_our_own_field_raises_the_limit_by_count(self, unit: BrokerUnit) -> None:
        for _ in range(40):
            await unit.send()
        assert len(bodies(await unit.pull(max_msg_nums=100))) == 32
        assert len(bodies(await unit.pull(max_msg_nums=1, gantry_max_msg_nums=100))) == 40
        assert len(bodies(await unit.pull(max_msg_nums=1, gantry_max_msg_nums=-3))) == 1

    @pytest.mark.parametrize(
        ("offset", "code", "status", "next_offset"),
        [(1, 19, "OFFSET_OVERFLOW_ONE", "1"), (7, 21, "OFFSET_OVERFLOW_BADLY", "1"), (-1, 21, "OFFSET_TOO_SMALL", "0")],
    )
    async def test_pulls_outside_the_queue_give_the_next_offset(
        self, unit: BrokerUnit, offset: int, code: int, status: str, next_offset: str
    ) -> None:
        await unit.send()
        answer = await unit.pull(offset=offset)
        assert (answer.code, answer.remark, answer.body) == (code, status, None)
        assert answer.ext_fields["nextBeginOffset"] == next_offset

    async def test_a_pull_of_an_empty_queue_is_held_at_its_start_only(self, unit: BrokerUnit) -> None:
        assert (await unit.pull(offset=0)).code == ResponseCode.PULL_NOT_FOUND
        assert (await unit.pull(offset=3)).code == ResponseCode.PULL_OFFSET_MOVED

    async def test_messages_with_other_tags_are_skipped(self, unit: BrokerUnit) -> None:
        for tag in ("A", "B", "A", "C"):
            await unit.send(body=tag.encode(), properties={"TAGS": tag})
        answer = await unit.pull(subscription="A || C")
        assert bodies(answer) == [b"A", b"A", b"C"]
        answer = await unit.pull(subscription="X")
        assert (answer.code, answer.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
        assert answer.ext_fields["nextBeginOffset"] == "4"

    async def test_the_requested_size_is_kept_but_one_message_is_always_returned(self, unit: BrokerUnit) -> None:
        for _ in range(3):
            await unit.send(body=bytes(1000))
        assert len(bodies(await unit.pull(max_msg_bytes=2500))) == 2
        assert len(bodies(await unit.pull(max_msg_bytes=1))) == 1

    async def test_the_commit_offset_counts_only_with_its_flag(self, unit: BrokerUnit) -> None:
        for _ in range(3):
            await unit.send()
        await unit.pull(commit_offset=3)
        assert unit.broker.tables.offsets.find("T", "g", 0) is None
        await unit.pull(commit_offset=3, sys_flag=4 | 1)
        assert unit.broker.tables.offsets.find("T", "g", 0) == 3
        await unit.pull(commit_offset=-1, sys_flag=4 | 1)
        assert unit.broker.tables.offsets.find("T", "g", 0) == 3

    async def test_a_refused_commit_does_not_fail_the_pull(self, unit: BrokerUnit) -> None:
        await unit.send()
        with structlog.testing.capture_logs() as lines:
            for _ in range(3):
                answer = await unit.pull(commit_offset=2, sys_flag=4 | 1)
                assert (answer.code, len(bodies(answer))) == (0, 1)
        assert unit.broker.tables.offsets.find("T", "g", 0) is None
        assert unit.broker.commits.refused_count == 3
        assert [line["event"] for line in lines] == ["commit refused"], "one of them a second"
        assert "commitOffset=2: queue 0 of topic T ends at 1; the offset was not stored" in lines[0]["reason"]

    async def test_lite_pull_gives_the_same_result(self, unit: BrokerUnit) -> None:
        await unit.send()
        answer = await unit.ask(RequestCode.LITE_PULL_MESSAGE, pull_header(sys_flag=4 | 16))
        assert (answer.code, len(bodies(answer))) == (0, 1)


class TestRefusedPull:
    @pytest.mark.parametrize(
        ("changes", "code", "remark"),
        [
            ({"topic": "Nobody"}, ResponseCode.TOPIC_NOT_EXIST, "topic[Nobody] not exist"),
            ({"queue_id": 4}, ResponseCode.INVALID_PARAMETER, "queueId[4] is illegal"),
            ({"queue_id": -1}, ResponseCode.INVALID_PARAMETER, "queueId[-1] is illegal"),
            ({"max_msg_nums": 0}, ResponseCode.INVALID_PARAMETER, "maxMsgNums=0"),
            ({"consumer_group": "a b"}, ResponseCode.INVALID_PARAMETER, "group: 'a b'"),
            ({"sys_flag": 0}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "group info not exist"),
            ({"expression_type": "XPATH"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "'XPATH' is neither TAG nor SQL92"),
            ({"expression_type": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "sql: at character 1: "),
            ({"subscription": " || "}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "names no tag"),
        ],
    )
    async def test_invalid_pulls_are_refused(
        self, unit: BrokerUnit, changes: dict[str, Any], code: int, remark: str
    ) -> None:
        answer = await unit.pull(**{"topic": "T", **changes})
        assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark

    async def test_a_missing_field_is_named(self, unit: BrokerUnit) -> None:
        ext = pull_header().to_ext()
        del ext["maxMsgNums"]
        answer = await unit.ask(RequestCode.PULL_MESSAGE, ext=ext)
        assert (answer.code, "header field maxMsgNums is missing" in str(answer.remark)) == (1, True)

    async def test_a_forbidden_pull_gives_the_reason(self, unit: BrokerUnit) -> None:
        tables = unit.broker.tables
        unit.change_settings(broker_permission=2)
        assert (await unit.pull()).ext_fields == {"forbiddenType": "1"}
        unit.change_settings(broker_permission=6)
        tables.groups.put(SubscriptionGroup("g", consume_enable=False), 1)
        assert (await unit.pull()).ext_fields == {"forbiddenType": "2"}
        tables.groups.put(SubscriptionGroup("g", consume_broadcast_enable=False), 1)
        await subscribe(unit, "g", "T", message_model="BROADCASTING")
        assert (await unit.pull(sys_flag=0)).ext_fields == {"forbiddenType": "4"}
        assert (await unit.pull()).ext_fields == {"forbiddenType": "4"}, "a filter in the pull makes no difference"
        await subscribe(unit, "g", "T")
        tables.groups.forbidden["g"] = {"T": 4}
        assert (await unit.pull(sys_flag=0)).ext_fields == {"forbiddenType": "5"}
        unit.change_settings(auto_create_subscription_group=False)
        answer = await unit.pull(consumer_group="new")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    async def test_the_subscription_of_the_heartbeat_is_used_and_checked(self, unit: BrokerUnit) -> None:
        for tag in ("A", "B"):
            await unit.send(body=tag.encode(), properties={"TAGS": tag})
        await subscribe(unit, "g", "T", expression="B", version=5)
        assert bodies(await unit.pull(sys_flag=0, sub_version=5)) == [b"B"]
        newer = await unit.pull(sys_flag=0, sub_version=6)
        assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST
        await unit.make_topic("U")
        missing = await unit.pull("U", sys_flag=0)
        assert (missing.code, "group g, topic U" in str(missing.remark)) == (24, True)


class TestLongPolling:
    async def test_a_held_pull_is_answered_at_once_by_a_message(self, unit: BrokerUnit) -> None:
        waiting = asyncio.ensure_future(unit.pull(sys_flag=SUSPEND))
        await asyncio.sleep(3)
        assert not waiting.done()
        sent_at_ms = unit.clock.now_ms()
        await unit.send(body=b"news")
        assert bodies(await waiting) == [b"news"]
        assert unit.clock.now_ms() - sent_at_ms < 10
        assert unit.broker.core.long_polling.count == 0

    async def test_a_batch_answers_a_held_pull_once_with_all_messages(self, unit: BrokerUnit) -> None:
        waiting = asyncio.ensure_future(unit.pull(sys_flag=SUSPEND))
        await asyncio.sleep(0.01)
        await asyncio.gather(*(unit.send(body=b"%d" % number) for number in range(4)))
        assert len(bodies(await waiting)) == 4

    async def test_a_held_pull_is_answered_19_after_its_time(self, unit: BrokerUnit) -> None:
        started_ms = unit.clock.monotonic_ms()
        answer = await unit.pull(sys_flag=SUSPEND, suspend_timeout_millis=2000)
        assert (answer.code, answer.remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
        assert 2000 <= unit.clock.monotonic_ms() - started_ms <= 2300

    async def test_unwanted_tags_advance_a_held_pull_without_an_answer(self, unit: BrokerUnit) -> None:
        waiting = asyncio.ensure_future(unit.pull(sys_flag=SUSPEND, subscription="A", suspend_timeout_millis=2000))
        await asyncio.sleep(0.01)
        await unit.send(properties={"TAGS": "B"})
        await asyncio.sleep(1)
        assert not waiting.done()
        answer = await waiting
        assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "1")

    async def test_short_polling_waits_a_second(self, unit: BrokerUnit) -> None:
        unit.change_settings(long_polling_enable=False)
        started_ms = unit.clock.monotonic_ms()
        await unit.pull(sys_flag=SUSPEND)
        assert unit.clock.monotonic_ms() - started_ms <= 1300

    async def test_a_held_pull_of_a_closed_connection_is_dropped(self, unit: BrokerUnit) -> None:
        other = unit.connect()
        waiting = asyncio.ensure_future(
            unit.ask(RequestCode.PULL_MESSAGE, pull_header(sys_flag=SUSPEND), connection=other)
        )
        await asyncio.sleep(0.01)
        assert unit.broker.core.long_polling.count == 1
        other.client.abort("gone")
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.01)
        assert unit.broker.core.long_polling.count == 0
        await unit.send()

    async def test_held_pulls_above_the_limit_are_refused(self, unit: BrokerUnit) -> None:
        unit.change_settings(pull_thread_pool_queue_capacity=1)
        waiting = asyncio.ensure_future(unit.pull(sys_flag=SUSPEND))
        await asyncio.sleep(0.01)
        answer = await unit.pull(sys_flag=SUSPEND)
        assert (answer.code, str(answer.remark)[:10]) == (ResponseCode.SYSTEM_BUSY, "[OVERLOAD]")
        await unit.send()
        assert (await waiting).code == 0

    async def test_a_held_pull_sees_a_deleted_topic(self, unit: BrokerUnit) -> None:
        waiting = asyncio.ensure_future(unit.pull(sys_flag=SUSPEND))
        await asyncio.sleep(0.01)
        await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})
        unit.broker.core.long_polling.resume_all()
        assert (await waiting).code == ResponseCode.TOPIC_NOT_EXIST

    async def test_the_commit_counts_on_the_first_attempt_only(self, unit: BrokerUnit) -> None:
        await unit.ask(RequestCode.HEART_BEAT, body=consumer_beat("1@2", "g", "T"))
        for _ in range(2):
            await unit.send()
        waiting = asyncio.ensure_future(unit.pull(offset=2, sys_flag=SUSPEND | 1, commit_offset=2))
        await asyncio.sleep(0.01)
        assert unit.broker.tables.offsets.find("T", "g", 0) == 2
        unit.broker.tables.offsets.commit("T", "g", 0, 9, 1)
        await unit.send()
        await waiting
        assert unit.broker.tables.offsets.find("T", "g", 0) == 9
