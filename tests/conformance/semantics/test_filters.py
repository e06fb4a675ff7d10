"""Promises of filters: what a consumer with tags or with an SQL92 expression gets, and what wakes it."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gantry.model.group import SubscriptionData, sql_subscription
from gantry.model.record import iter_records
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from services.broker.store.queues.consumequeue import ConsumeQueue
from tests.support.brokerunit import BrokerUnit
from tests.support.heartbeats import consumer_beat

SQL = {"sys_flag": 4, "expression_type": "SQL92"}
WAIT = 2


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        yield unit


def bodies(answer: RemotingCommand) -> list[bytes]:
    return [message.body for message in iter_records(answer.body_bytes)]


async def fill(unit: BrokerUnit, count: int = 12) -> None:
    for number in range(count):
        properties = {"number": str(number), "TAGS": "AB"[number % 2]}
        await unit.send(body=b"%d" % number, properties=properties)


async def subscribe(unit: BrokerUnit, sql: str, version: int = 1) -> RemotingCommand:
    body = consumer_beat("1@2", "g", subscriptions=(sql_subscription("T", sql, version),))
    return await unit.ask(RequestCode.HEART_BEAT, body=body)


async def test_a_pull_with_an_expression_gets_the_messages_that_match(unit: BrokerUnit) -> None:
    await fill(unit)
    answer = await unit.pull(subscription="number BETWEEN 3 AND 8 AND TAGS = 'B'", **SQL)
    assert (answer.code, bodies(answer)) == (ResponseCode.SUCCESS, [b"3", b"5", b"7"])
    assert answer.ext_fields["nextBeginOffset"] == "12"
    some = await unit.pull(subscription="number > 1", max_msg_nums=2, **SQL)
    assert (bodies(some), some.ext_fields["nextBeginOffset"]) == ([b"2", b"3"], "4")


async def test_no_match_is_answered_at_once_with_the_next_offset(unit: BrokerUnit) -> None:
    await fill(unit)
    answer = await unit.pull(subscription="number > 100", **{**SQL, "sys_flag": 4 | WAIT})
    assert (answer.code, answer.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "12")


async def test_a_scan_is_bounded_and_continues_at_its_next_offset() -> None:
    async with BrokerUnit(max_filter_message_size=200) as unit:
        await unit.make_topic("T")
        await fill(unit, 35)
        for wanted in ({"subscription": "number = 34", **SQL}, {"subscription": "C || D", "sys_flag": 4}):
            offset, ends = 0, []
            while offset < 35:
                answer = await unit.pull(offset=offset, max_msg_nums=1, **wanted)
                offset = int(answer.ext_fields["nextBeginOffset"])
                ends.append((answer.code, offset))
            codes = [code for code, _ in ends]
            assert [offset for _, offset in ends] == [10, 20, 30, 35]
            assert set(codes[:-1]) == {ResponseCode.PULL_RETRY_IMMEDIATELY}
            assert (codes[-1] == ResponseCode.SUCCESS) is ("number" in wanted["subscription"])


async def test_an_invalid_expression_of_a_pull_is_refused_with_its_position(unit: BrokerUnit) -> None:
    await fill(unit, 1)
    answer = await unit.pull(subscription="number + 1 > 5", **SQL)
    assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "at character 8: arithmetic (+) is not supported; expected <>" in str(answer.remark)
    assert not answer.body_bytes


async def test_a_message_on_which_the_expression_fails_is_not_delivered(unit: BrokerUnit) -> None:
    for value in ("7", "7.5", "seven", None):
        await unit.send(body=str(value).encode(), properties={} if value is None else {"number": value})
    assert bodies(await unit.pull(subscription="number > 5", **SQL)) == [b"7"]
    assert bodies(await unit.pull(subscription="NOT (number > 5)", **SQL)) == []
    assert bodies(await unit.pull(subscription="number IS NULL OR number > 5.0", **SQL)) == [b"7", b"7.5", b"None"]


async def test_the_subscription_of_a_heart_beat_filters_pulls_without_one(unit: BrokerUnit) -> None:
    await fill(unit)
    assert (await subscribe(unit, "number < 3")).code == ResponseCode.SUCCESS
    for kind in ("SQL92", None):  # RocketMQ's push consumers name the type again, pull consumers may not.
        answer = await unit.pull(sys_flag=0, subscription=None, expression_type=kind)
        assert bodies(answer) == [b"0", b"1", b"2"]
    assert (await subscribe(unit, "number > 9", version=2)).code == ResponseCode.SUCCESS
    assert bodies(await unit.pull(sys_flag=0, subscription=None)) == [b"10", b"11"]


async def test_an_invalid_heart_beat_leaves_the_subscription_as_it_is(unit: BrokerUnit) -> None:
    await fill(unit)
    assert (await subscribe(unit, "number < 3")).code == ResponseCode.SUCCESS
    refused = await subscribe(unit, "number <", version=2)
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "at character 9: the expression ends too early" in str(refused.remark)
    assert bodies(await unit.pull(sys_flag=0, subscription=None)) == [b"0", b"1", b"2"]


async def test_the_setting_disables_sql_at_once_and_not_tags(unit: BrokerUnit) -> None:
    await fill(unit, 2)
    assert (await subscribe(unit, "number < 3")).code == ResponseCode.SUCCESS
    unit.change_settings(enable_property_filter=False)
    for changes in ({"subscription": "number < 3", **SQL}, {"subscription": None, "sys_flag": 0}):
        answer = await unit.pull(**changes)
        assert (answer.code, "enablePropertyFilter=false" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    assert bodies(await unit.pull(subscription="A")) == [b"0"]


@pytest.mark.parametrize(
    ("wanted", "other", "match"),
    [
        ({"subscription": "a > 5", "expression_type": "SQL92"}, {"a": "5"}, {"a": "6"}),
        ({"subscription": "UA", "expression_type": "TAG"}, {"TAGS": "AA"}, {"TAGS": "UA"}),
    ],
)
async def test_a_waiting_pull_wakes_only_for_a_message_that_matches(
    unit: BrokerUnit, wanted: dict[str, Any], other: dict[str, str], match: dict[str, str]
) -> None:
    await unit.send(properties=other)
    waiting = asyncio.ensure_future(unit.pull(offset=1, sys_flag=4 | WAIT, suspend_timeout_millis=30_000, **wanted))
    for _ in range(3):
        await unit.send(properties=other)
        await asyncio.sleep(1)
        assert not waiting.done()
        assert unit.broker.core.long_polling.count == 1
    await unit.send(body=b"match", properties=match)
    async with asyncio.timeout(0.5):
        answer = await waiting
    assert (bodies(answer), answer.ext_fields["nextBeginOffset"]) == ([b"match"], "5")


async def test_a_waiting_pull_whose_expression_changed_gets_what_the_new_one_matches(unit: BrokerUnit) -> None:
    assert (await subscribe(unit, "number < 3")).code == ResponseCode.SUCCESS
    waiting = asyncio.ensure_future(unit.pull(sys_flag=WAIT, subscription=None, suspend_timeout_millis=5_000))
    await asyncio.sleep(0.1)
    assert (await subscribe(unit, "number > 3", version=2)).code == ResponseCode.SUCCESS
    await unit.send(properties={"number": "2"})
    answer = await waiting
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert not answer.body_bytes


async def test_units_with_addresses_of_rocketmqs_extended_queue_are_read() -> None:
    async with BrokerUnit(max_filter_message_size=16_000) as unit:
        unit.files.make_dirs("/data/store/consumequeue_ext/T/0")
        await unit.make_topic("T")
        await fill(unit, 3)
        queue: ConsumeQueue | None = unit.store._queues.find("T", 0)
        assert queue is not None
        file = queue.files.first
        assert file is not None
        file.write(12, (-(2**63) + 48).to_bytes(8, signed=True))  # Its message has the tag A.
        assert bodies(await unit.pull(subscription="B")) == [b"0", b"1"], "the client compares the tags again"
        assert bodies(await unit.pull(subscription="A")) == [b"0", b"2"]
        assert bodies(await unit.pull(subscription="TAGS = 'B'", **SQL)) == [b"1"]


def test_a_subscription_with_sql_takes_any_tag() -> None:
    subscription = sql_subscription("T", "a > 5")
    assert subscription.matches_tag(None)
    assert not dataclasses.replace(subscription, expression_type="TAG").matches_tag(None)
    assert not SubscriptionData("T", sub_string="A", tags_set=frozenset("A")).is_sql
