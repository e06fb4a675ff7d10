import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from gantry.model.group import SubscriptionGroup
from gantry.remoting.bodies import ConsumerOffsetWrapper, encode_subscription_group, encode_subscription_groups
from gantry.remoting.codes import RequestCode, ResponseCode
from tests.support.brokerunit import BrokerUnit
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import VirtualClock


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        yield unit


async def test_a_group_is_made_saved_changed_and_deleted(unit: BrokerUnit) -> None:
    for times in (3, 5):
        group = SubscriptionGroup("g", retry_max_times=times)
        body = encode_subscription_group(group)
        assert (await unit.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)).code == 0
        answer = await unit.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext={"group": "g"})
        assert answer.body == body
    saved = json.loads(unit.files.read("/data/store/config/subscriptionGroup.json"))
    assert saved["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 5
    unit.broker.tables.offsets.commit("T", "g", 0, 1, 1)
    assert (await unit.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext={"groupName": "g"})).code == 0
    assert unit.broker.tables.offsets.find("T", "g", 0) == 1
    ext = {"groupName": "g", "cleanOffset": "true"}
    assert (await unit.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext=ext)).code == 0
    assert unit.broker.tables.offsets.find("T", "g", 0) is None
    answer = await unit.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, ext={"group": "g"})
    assert (answer.code, answer.remark) == (26, "subscription group [g] not exist in this broker")


@pytest.mark.parametrize("field", ["cleanOffset", "removeOffset"])
async def test_tools_of_4_9_and_5_name_the_removal_of_offsets_differently(unit: BrokerUnit, field: str) -> None:
    offsets = unit.broker.tables.offsets
    for value, left in (("false", 1), ("true", None)):
        offsets.commit("T", "g", 0, 1, 1)
        assert (await unit.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext={"groupName": "g", field: value})).code == 0
        assert offsets.find("T", "g", 0) == left


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"", 1, "body"),
        (b"{}", 1, "groupName"),
        (b'{"groupName":"a b"}', 29, "groupName: 'a b'"),
        (b'{"groupName":"g","retryQueueNums":-1}', 29, "retryQueueNums=-1"),
        (b'{"groupName":"g","retryMaxTimes":"x"}', 1, "retryMaxTimes"),
    ],
)
async def test_invalid_groups_are_refused(unit: BrokerUnit, body: bytes, code: int, remark: str) -> None:
    answer = await unit.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark
    assert unit.broker.tables.groups.find("g") is None


async def test_a_list_of_groups_is_created_as_a_whole_or_not_at_all(unit: BrokerUnit) -> None:
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    bad = encode_subscription_groups([SubscriptionGroup("a"), SubscriptionGroup("x y")])
    assert (await unit.ask(code, body=bad)).code == 29
    assert unit.broker.tables.groups.find("a") is None
    good = encode_subscription_groups([SubscriptionGroup("a"), SubscriptionGroup("b")])
    assert (await unit.ask(code, body=good)).code == 0
    answer = await unit.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    body = json.loads(answer.body_bytes)
    assert {"a", "b", "TOOLS_CONSUMER"} <= body["subscriptionGroupTable"].keys()
    assert body["forbiddenTable"] == {}


async def test_a_list_does_not_exceed_the_limit_of_groups(unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.broker.processors.groupadmin.GROUPS_MAX", len(unit.broker.tables.groups) + 1)
    code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST
    several = encode_subscription_groups([SubscriptionGroup("TOOLS_CONSUMER"), *map(SubscriptionGroup, "ab")])
    answer = await unit.ask(code, body=several)
    assert (answer.code, "are allowed" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    assert unit.broker.tables.groups.find("a") is None
    one = encode_subscription_groups([SubscriptionGroup("TOOLS_CONSUMER"), *map(SubscriptionGroup, "aa")])
    assert (await unit.ask(code, body=one)).code == 0


async def test_all_offsets_are_returned_in_the_format_of_rocketmq(unit: BrokerUnit) -> None:
    unit.broker.tables.offsets.commit("T", "g", 0, 8, 1)
    unit.broker.tables.offsets.commit("T", "g", 1, 7, 1)
    answer = await unit.ask(RequestCode.GET_ALL_CONSUMER_OFFSET)
    version = unit.broker.tables.offsets.version
    assert answer.body_bytes.decode() == (
        f'{{"dataVersion":{{"counter":0,"stateVersion":0,"timestamp":{version.timestamp}}},'
        '"groupTopicMap":{"g":["T"]},"offsetTable":{"T@g":{0:8,1:7}}}'
    )


async def test_all_offsets_of_a_large_table_are_encoded_in_slices(
    unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.broker.processors.groupadmin.SLICE_OFFSETS", 10)
    offsets = unit.broker.tables.offsets
    for number in range(100):
        for queue_id in range(2):
            offsets.commit(f"T{number}", f"g{number % 7}", queue_id, number, 1)
    before_ms = unit.clock.monotonic_ms()
    asking = asyncio.ensure_future(unit.ask(RequestCode.GET_ALL_CONSUMER_OFFSET))
    await asyncio.sleep(0.005)
    offsets.remove_group("g3")
    answer = await asking
    assert unit.clock.monotonic_ms() - before_ms >= 20, "a pause every ten offsets"
    told = ConsumerOffsetWrapper.decode(answer.body_bytes)
    assert told.offset_table == offsets.all()
    assert told.data_version == offsets.version


async def test_delay_offsets_beyond_their_queues_are_corrected() -> None:
    files = MemFileSystem(VirtualClock())
    files.make_dirs("/data/store/config")
    text = b'{\n\t"dataVersion":{\n\t\t"counter":1,\n\t\t"stateVersion":0,\n\t\t"timestamp":5\n\t},\n\t"offsetTable":{1:13,3:14\n\t}\n}'
    files.write("/data/store/config/delayOffset.json", text)
    async with BrokerUnit(files=files) as unit:
        answer = await unit.ask(RequestCode.GET_ALL_DELAY_OFFSET)
        assert answer.body == (b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"offsetTable":{1:0,3:0}}')
        info = json.loads((await unit.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body_bytes)["table"]
        assert info["scheduleMessageOffset_3"] == "0,0"
    assert files.read("/data/store/config/delayOffset.json") == text.replace(b"{1:13,3:14", b"{1:0,3:0")
