"""Promises of consumption retry: the ladder of 1 + 16 deliveries, the dead letter after it, and what they keep."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gantry.model.delaylevel import DELAY_LEVELS_MS
from gantry.model.group import SubscriptionGroup
from gantry.model.message import MessageQueue, StoredMessage
from gantry.model.names import SCHEDULE_TOPIC, TIMER_TOPIC
from gantry.model.record import iter_records
from gantry.remoting.bodies import LockRequest, encode_subscription_group
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from services.broker.store.results import PutResult, PutStatus
from tests.support.brokerunit import BrokerUnit
from tests.support.heartbeats import consumer_beat

RETRY, DLQ = "%RETRY%g", "%DLQ%g"
CODE = RequestCode.CONSUMER_SEND_MSG_BACK
LADDER_MS = DELAY_LEVELS_MS[2:]
TICK_MS = 5_000
GOLDEN = Path(__file__).parents[1] / "golden" / "expected.json"


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await prepare(unit)
        yield unit


def slow_unit(**settings: Any) -> BrokerUnit:
    """Return a broker for hours of virtual time. Its timers are slow, and it must not take that for overload."""
    return BrokerUnit(timer_interval_ms_min=TICK_MS, broker_fast_failure_enable=False, **settings)


async def prepare(unit: BrokerUnit, **config: Any) -> None:
    await unit.make_topic("T")
    body = encode_subscription_group(SubscriptionGroup("g", **config))
    answer = await unit.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def stored(unit: BrokerUnit, topic: str, queue_id: int = 0, offset: int = 0) -> list[StoredMessage]:
    found: list[StoredMessage] = []
    while True:
        result = unit.store.get(topic, queue_id, offset, 32)
        if not result.records:
            return found
        found += iter_records(result.body)
        offset = result.next_offset


async def send(unit: BrokerUnit, body: bytes = b"m", **changes: Any) -> StoredMessage:
    answer = await unit.send("T", body, properties={"TAGS": "A", "KEYS": "k"}, **changes)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return stored(unit, "T", changes.get("queue_id", 0))[-1]


async def send_back(unit: BrokerUnit, message: StoredMessage, **changes: Any) -> RemotingCommand:
    ext = {
        "offset": str(message.physical_offset), "group": "g", "delayLevel": "0", "originTopic": "T",
        "originMsgId": message.message_id, "unitMode": "false", **changes,
    }  # fmt: skip
    if unit.connection.client.closed:  # It was idle for two minutes.
        unit.connection = unit.connect()
    return await unit.ask(CODE, ext=ext)


def set_live(unit: BrokerUnit, **values: Any) -> None:
    live = unit.broker.core.live_settings
    live.current = dataclasses.replace(live.current, **values)


async def sent_back(unit: BrokerUnit, message: StoredMessage, **changes: Any) -> None:
    answer = await send_back(unit, message, **changes)
    assert (answer.code, answer.remark) == (ResponseCode.SUCCESS, None)


async def fall_back(unit: BrokerUnit, failures: int, limit: int | None = None) -> RemotingCommand:
    """Send a message to the retry topic, as a client does that can't send it back."""
    properties = {"RETRY_TOPIC": "T", "DELAY": str(3 + failures), "RECONSUME_TIME": str(failures)}
    return await unit.send(RETRY, b"m", properties=properties, reconsume_times=failures, max_reconsume_times=limit)


class TestLadder:
    async def test_a_message_that_always_fails_is_delivered_17_times_and_then_is_one_dead_letter(self) -> None:
        async with slow_unit() as unit:
            await prepare(unit)
            message = await send(unit)
            for attempt, delay_ms in enumerate(LADDER_MS, 1):
                failed_ms = unit.clock.now_ms()
                await sent_back(unit, message)
                await asyncio.sleep((delay_ms + 2 * TICK_MS) / 1000)
                retries = stored(unit, RETRY)
                assert len(retries) == attempt
                message = retries[-1]
                assert 0 <= message.stored_at_ms - failed_ms - delay_ms <= TICK_MS + 100, attempt
                assert message.reconsume_times == attempt
            assert stored(unit, DLQ) == []
            await sent_back(unit, message)
            await asyncio.sleep(DELAY_LEVELS_MS[-1] / 1000 * 2)
            assert len(stored(unit, RETRY)) == 16, "never an eighteenth delivery"
            (letter,) = stored(unit, DLQ)
            assert (letter.body, letter.reconsume_times) == (b"m", 17)

    async def test_a_retry_keeps_the_message_and_names_its_origin(self, unit: BrokerUnit) -> None:
        origin = await send(unit, flag=7, born_timestamp=99)
        await sent_back(unit, origin)
        await asyncio.sleep(11)
        (retry,) = stored(unit, RETRY)
        for name in ("body", "flag", "sys_flag", "born_at_ms", "born_host", "message_id", "tag", "keys"):
            assert getattr(retry, name) == getattr(origin, name), name
        assert {name: retry.properties[name] for name in retry.properties.keys() - origin.properties.keys()} == {
            "RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": origin.stored_id, "DELAY": "3", "WAIT": "false",
            "REAL_TOPIC": RETRY, "REAL_QID": "0",
        }  # fmt: skip
        await sent_back(unit, retry)
        await asyncio.sleep(31)
        (_, second) = stored(unit, RETRY)
        assert second.properties["ORIGIN_MESSAGE_ID"] == origin.stored_id, "that of the first message"
        assert (second.properties["RETRY_TOPIC"], second.reconsume_times) == ("T", 2)

    async def test_the_consumer_may_choose_the_level(self, unit: BrokerUnit) -> None:
        await sent_back(unit, await send(unit), delayLevel="1")
        await asyncio.sleep(1.3)
        assert len(stored(unit, RETRY)) == 1

    async def test_the_consumer_may_choose_a_delay_in_ms(self, unit: BrokerUnit) -> None:
        message = await send(unit)
        await sent_back(unit, message, gantryDelayMs="0")
        assert len(stored(unit, RETRY)) == 1, "without a delay, the message can be read at once"
        await sent_back(unit, message, gantryDelayMs="5000")
        assert unit.store.max_offset(SCHEDULE_TOPIC, 1) == 1, "the delay of level 2"
        due_ms = unit.clock.now_ms() + 25_000
        await sent_back(unit, message, gantryDelayMs="25000")
        (waiting,) = stored(unit, TIMER_TOPIC)
        assert waiting.properties["TIMER_DELIVER_MS"] == str(due_ms)
        await asyncio.sleep(30)
        assert [retry.reconsume_times for retry in stored(unit, RETRY)] == [1, 1, 1]

    async def test_without_timers_a_delay_in_ms_becomes_the_next_longer_level(self) -> None:
        async with BrokerUnit(timer_wheel_enable=False) as unit:
            await prepare(unit)
            await sent_back(unit, await send(unit), gantryDelayMs="25000")
            assert unit.store.max_offset(SCHEDULE_TOPIC, 3) == 1

    async def test_a_negative_level_makes_a_dead_letter_at_once(self, unit: BrokerUnit) -> None:
        await sent_back(unit, await send(unit), delayLevel="-1")
        (letter,) = stored(unit, DLQ)
        assert letter.properties["DELAY"] == "0"

    async def test_failures_in_place_count(self, unit: BrokerUnit) -> None:
        message = await send(unit)
        await sent_back(unit, message, delayLevel="-1", gantryFailures="3")
        (letter,) = stored(unit, DLQ)
        assert letter.reconsume_times == 3
        for failures in ("0", "-1", "1000001"):
            answer = await send_back(unit, message, gantryFailures=failures)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert f"gantryFailures: {failures} is not within 1 and 1000000" in (answer.remark or "")

    async def test_the_reply_waits_until_the_retry_is_on_the_disk(self, unit: BrokerUnit) -> None:
        message = await send(unit)
        await sent_back(unit, message)
        unit.flush_is_stuck = True
        asking = asyncio.ensure_future(send_back(unit, message))
        await asyncio.sleep(1)
        assert not asking.done()
        unit.flush_is_stuck = False
        unit.broker.core.waiters.flushed_from_thread(unit.store.flushed_offset)
        assert (await asking).code == ResponseCode.SUCCESS

    async def test_a_poison_message_never_stops_its_neighbours(self, unit: BrokerUnit) -> None:
        bodies = [b"%d" % number for number in range(20)]
        for body in bodies:
            await send(unit, body)
        pulled = list(iter_records((await unit.pull("T")).body_bytes))
        await sent_back(unit, pulled[3])
        answer = await unit.pull("T", offset=4)
        assert [message.body for message in iter_records(answer.body_bytes)] == bodies[4:]
        await asyncio.sleep(11)
        assert [message.body for message in stored(unit, RETRY)] == [b"3"]


class TestLimit:
    async def test_the_limit_of_the_group_counts(self) -> None:
        async with BrokerUnit() as unit:
            await prepare(unit, retry_max_times=1)
            await sent_back(unit, await send(unit))
            await asyncio.sleep(11)
            (retry,) = stored(unit, RETRY)
            await sent_back(unit, retry)
            assert len(stored(unit, DLQ)) == 1

    @pytest.mark.parametrize(("version", "letters"), [(121, 1), (120, 0)])
    async def test_the_limit_of_a_consumer_overrides_it(self, unit: BrokerUnit, version: int, letters: int) -> None:
        message = await send(unit)
        ext = {"offset": str(message.physical_offset), "group": "g", "delayLevel": "0", "maxReconsumeTimes": "0"}
        request = RemotingCommand.request(CODE, ext=ext)
        request.version = version
        answer = await unit.connection.client.request(request, 5_000)
        assert answer.code == ResponseCode.SUCCESS
        assert len(stored(unit, DLQ)) == letters

    async def test_the_last_setting_wins(self, unit: BrokerUnit) -> None:
        message = await send(unit)
        await prepare(unit, retry_max_times=0)
        await sent_back(unit, message)
        assert len(stored(unit, DLQ)) == 1

    async def test_a_group_without_retry_queues_drops_the_message(self) -> None:
        async with BrokerUnit() as unit:
            await prepare(unit, retry_queue_nums=0)
            message = await send(unit)
            end = unit.store.max_physical_offset
            await sent_back(unit, message)
            assert unit.store.max_physical_offset == end

    async def test_retries_go_to_all_retry_queues_of_the_group(self) -> None:
        async with BrokerUnit() as unit:
            await prepare(unit, retry_queue_nums=3)
            message = await send(unit)
            for _ in range(30):
                await sent_back(unit, message, delayLevel="1")
            await asyncio.sleep(2)
            assert all(stored(unit, RETRY, queue_id) for queue_id in range(3))


class TestCurve:
    @pytest.mark.parametrize(
        ("policy", "levels"),
        [
            ({"type": "CUSTOMIZED"}, [3, 4, 5]),
            ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 1, 60_000, 1_000]}}, [5, 1, 1]),
            ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 5_000, "max": 10_000, "multiplier": 2}},
             [2, 3, 3]),
            ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 20_000, "multiplier": 2}}, [4, 5, 6]),
            ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": "x", "multiplier": -1}}, [2, 3, 4]),
            ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 10**12, "max": 10**13}}, [18]),
        ],
    )  # fmt: skip
    async def test_a_group_has_its_own_delays(self, policy: dict[str, Any], levels: list[int]) -> None:
        async with slow_unit(timer_wheel_enable=False) as unit:
            await prepare(unit, group_retry_policy=policy)
            message = await send(unit)
            for failures, level in enumerate(levels):
                before = unit.store.max_offset(SCHEDULE_TOPIC, level - 1)
                await sent_back(unit, message)
                assert unit.store.max_offset(SCHEDULE_TOPIC, level - 1) == before + 1, failures
                await asyncio.sleep(DELAY_LEVELS_MS[level - 1] / 1000 + 12)
                message = stored(unit, RETRY)[-1]

    async def test_a_delay_between_two_levels_becomes_a_set_time_if_the_broker_has_timers(self) -> None:
        policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [90_000]}}
        async with BrokerUnit() as unit:
            await prepare(unit, group_retry_policy=policy)
            message = await send(unit)
            due_ms = unit.clock.now_ms() + 90_000
            await sent_back(unit, message)
            (waiting,) = stored(unit, TIMER_TOPIC)
            assert waiting.properties["TIMER_DELIVER_MS"] == str(due_ms)
            assert "DELAY" not in waiting.properties
            await asyncio.sleep(87)
            assert stored(unit, RETRY) == []
            await asyncio.sleep(5)
            (retried,) = stored(unit, RETRY)
            assert (retried.body, retried.reconsume_times) == (message.body, 1)


class TestRefusals:
    async def test_each_wrong_request_is_refused_by_name_and_stores_nothing(self, unit: BrokerUnit) -> None:
        message = await send(unit)
        end = unit.store.max_physical_offset
        answer = await send_back(unit, message, offset="99999999")
        assert (answer.code, answer.remark) == (1, "look message by offset failed, 99999999")
        answer = await send_back(unit, message, offset=str(message.physical_offset + 1))
        assert (answer.code, answer.remark) == (1, f"look message by offset failed, {message.physical_offset + 1}")
        assert (await send_back(unit, message, offset="-1")).code == 1
        assert (await send_back(unit, message, group="a b")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert (await send_back(unit, message, delayLevel="x")).code == 1
        for delay_ms in ("-1", str(40 * 86_400_000 + 1)):
            answer = await send_back(unit, message, gantryDelayMs=delay_ms)
            assert (answer.code, f"gantryDelayMs: {delay_ms}" in str(answer.remark)) == (13, True)
        set_live(unit, auto_create_subscription_group=False)
        answer = await send_back(unit, message, group="nobody")
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert "subscription group not exist, nobody" in str(answer.remark)
        set_live(unit, broker_permission=4)
        assert (await send_back(unit, message)).code == ResponseCode.NO_PERMISSION
        assert unit.store.max_physical_offset == end

    async def test_an_unknown_group_is_created_as_by_rocketmq(self, unit: BrokerUnit) -> None:
        await sent_back(unit, await send(unit), group="new")
        assert unit.broker.tables.topics.find("%RETRY%new") is not None

    async def test_a_store_that_takes_nothing_says_so_and_the_message_can_be_sent_back_again(
        self, unit: BrokerUnit
    ) -> None:
        message = await send(unit)
        put = unit.store.put
        unit.store.put = lambda *record, **fields: PutResult(PutStatus.NOT_WRITABLE, reason="full")  # type: ignore[method-assign]
        answer = await send_back(unit, message)
        assert (answer.code, answer.remark) == (1, "SERVICE_NOT_AVAILABLE: full")
        unit.store.put = put  # type: ignore[method-assign]
        await sent_back(unit, message)


class TestFallback:
    async def test_a_client_may_send_the_retry_itself(self, unit: BrokerUnit) -> None:
        assert (await fall_back(unit, 1)).code == ResponseCode.SUCCESS
        await asyncio.sleep(31)
        (retry,) = stored(unit, RETRY)
        assert (retry.reconsume_times, retry.properties["DELAY"]) == (1, "4")

    @pytest.mark.parametrize(("failures", "limit", "letters"), [(16, None, 0), (17, None, 1), (2, 1, 1), (1, 1, 0)])
    async def test_one_that_failed_too_often_becomes_a_dead_letter(
        self, unit: BrokerUnit, failures: int, limit: int | None, letters: int
    ) -> None:
        answer = await fall_back(unit, failures, limit)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        found = stored(unit, DLQ)
        assert len(found) == letters
        assert all(letter.properties["DELAY"] == "-1" for letter in found)

    async def test_one_of_a_group_that_consumes_in_order_becomes_a_dead_letter_at_once(self, unit: BrokerUnit) -> None:
        body = LockRequest("client", "g", [MessageQueue("T", "broker-a", 0)]).encode()
        await unit.ask(RequestCode.LOCK_BATCH_MQ, body=body)
        assert (await fall_back(unit, 1, limit=5)).code == ResponseCode.SUCCESS
        (letter,) = stored(unit, DLQ)
        assert letter.properties["DELAY"] == "-1"
        await sent_back(unit, await send(unit))
        assert len(stored(unit, DLQ)) == 1, "request 36 follows the ladder whether the group has locks or not"
        assert (await unit.send(RETRY, b"redriven")).code == ResponseCode.SUCCESS
        assert [retry.body for retry in stored(unit, RETRY)] == [b"redriven"], "a message that has not failed"
        await unit.ask(RequestCode.UNLOCK_BATCH_MQ, body=body)
        assert (await fall_back(unit, 1)).code == ResponseCode.SUCCESS
        assert len(stored(unit, DLQ)) == 1

    async def test_one_of_an_unknown_group_is_refused(self, unit: BrokerUnit) -> None:
        answer = await unit.send("%RETRY%nobody", reconsume_times=1)
        assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


class TestTopics:
    async def test_a_group_has_its_retry_topic_from_its_creation(self, unit: BrokerUnit) -> None:
        topics = unit.broker.tables.topics
        assert topics.find(RETRY) is not None
        assert topics.find(DLQ) is None, "a group without dead letters has no topic of them"
        await unit.pull("T", consumer_group="puller")
        assert topics.find("%RETRY%puller") is not None
        await unit.ask(RequestCode.HEART_BEAT, body=consumer_beat("1@2", "beating", "T"))
        assert topics.find("%RETRY%beating") is not None

    async def test_the_retry_topic_of_an_acknowledged_group_survives_a_crash(self, unit: BrokerUnit) -> None:
        text = unit.files.read("/data/store/config/topics.json").decode()
        assert RETRY in text

    async def test_a_dead_letter_is_never_without_its_topic_on_disk(self, unit: BrokerUnit) -> None:
        await sent_back(unit, await send(unit), delayLevel="-1")
        text = unit.files.read("/data/store/config/topics.json").decode()
        assert DLQ in text

    async def test_consumers_can_not_read_dead_letters_and_tools_can(self, unit: BrokerUnit) -> None:
        await sent_back(unit, await send(unit), delayLevel="-1")
        assert (await unit.pull(DLQ)).code == ResponseCode.NO_PERMISSION
        answer = await unit.pull(DLQ, consumer_group="TOOLS_CONSUMER")
        assert [letter.body for letter in iter_records(answer.body_bytes)] == [b"m"]
        config = unit.broker.tables.topics.find(DLQ)
        assert config is not None
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 2)

    @pytest.mark.parametrize("cleans", [True, False])
    async def test_a_deleted_group_takes_its_topics_with_it_or_says_what_stays(
        self, unit: BrokerUnit, *, cleans: bool
    ) -> None:
        message = await send(unit)
        await sent_back(unit, message)
        await sent_back(unit, message, delayLevel="-1")
        answer = await unit.ask(
            RequestCode.DELETE_SUBSCRIPTIONGROUP, ext={"groupName": "g", "cleanOffset": str(cleans).lower()}
        )
        assert answer.code == ResponseCode.SUCCESS
        topics = unit.broker.tables.topics
        kept = [topic for topic in (RETRY, DLQ) if topics.find(topic) is not None]
        assert kept == ([] if cleans else [RETRY, DLQ])
        assert (answer.remark is None) == cleans
        assert cleans or f"{RETRY}, {DLQ} are kept" in str(answer.remark)
        await asyncio.sleep(11)
        assert len(stored(unit, RETRY)) == (0 if cleans else 1)

    async def test_a_retry_topic_that_may_not_be_written_refuses(self, unit: BrokerUnit) -> None:
        ext = {
            "topic": RETRY, "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1",
            "perm": "4", "topicFilterType": "SINGLE_TAG", "order": "false",
        }  # fmt: skip
        await unit.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext=ext)
        answer = await send_back(unit, await send(unit))
        assert (answer.code, answer.remark) == (16, f"the topic[{RETRY}] sending message is forbidden")


class TestFigures:
    @pytest.mark.parametrize(("name", "total"), [("SNDBCK_PUT_NUMS", 3), ("DLQ_PUT_NUMS", 1)])
    async def test_statistics_count_by_topic_and_group(self, unit: BrokerUnit, name: str, total: int) -> None:
        message = await send(unit)
        for level in ("0", "0", "-1"):
            await sent_back(unit, message, delayLevel=level)
        ext = {"statsName": name, "statsKey": "T@g"}
        answer = await unit.ask(RequestCode.VIEW_BROKER_STATS_DATA, ext=ext)
        assert json.loads(answer.body_bytes)["statsMinute"]["sum"] == total


async def test_retries_and_letters_have_the_properties_that_apache_writes(unit: BrokerUnit) -> None:
    """The golden dead letter of request 36, whose message was retried once."""
    golden = json.loads(GOLDEN.read_text())["topics"]["%DLQ%GID_Golden_Retry"]["queues"]["0"]["messages"][0]
    properties = {name: golden["properties"][name] for name in ("UNIQ_KEY", "TAGS", "KEYS")}
    await unit.send("T", properties=properties | {"WAIT": "true"})
    (message,) = stored(unit, "T")
    await sent_back(unit, message, maxReconsumeTimes="1")
    await asyncio.sleep(11)
    (retry,) = stored(unit, RETRY)
    await sent_back(unit, retry, maxReconsumeTimes="1")
    (letter,) = stored(unit, DLQ)
    ours = letter.properties | {
        "CLUSTER": "GoldenCluster", "ORIGIN_MESSAGE_ID": golden["properties"]["ORIGIN_MESSAGE_ID"],
        "RETRY_TOPIC": "GoldenDlq", "REAL_TOPIC": "%RETRY%GID_Golden_Retry",
    }  # fmt: skip
    assert ours == golden["properties"]
    assert letter.reconsume_times == golden["reconsumeTimes"] == 2


async def test_a_group_whose_retry_topic_would_be_too_long_is_refused_with_both_lengths(unit: BrokerUnit) -> None:
    message = await send(unit)
    ext = {"offset": str(message.physical_offset), "group": "g" * 250, "delayLevel": "0"}
    answer = await unit.ask(CODE, ext=ext)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert answer.remark == f"group {'g' * 250}: its retry topic has 257 characters, at most 255 are allowed"
