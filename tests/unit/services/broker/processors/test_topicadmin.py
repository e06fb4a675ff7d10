import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gantry.model.topic import TopicConfig
from gantry.remoting.bodies import GroupList, TopicConfigSerializeWrapper, encode_topic_configs
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from tests.support.brokerunit import BrokerUnit
from tests.support.heartbeats import subscribe


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        yield unit


async def create(unit: BrokerUnit, topic: str = "T", **changes: Any) -> RemotingCommand:
    ext = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "3", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": "", "force": "false",
    }  # fmt: skip
    return await unit.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, ext={**ext, **changes})


async def test_a_topic_is_created_saved_and_changed(unit: BrokerUnit) -> None:
    assert (await create(unit, attributes="+message.type=FIFO")).code == 0
    saved = json.loads(unit.files.read("/data/store/config/topics.json"))
    assert saved["topicConfigTable"]["T"]["attributes"] == {"message.type": "FIFO"}
    assert (await create(unit, perm="4", order="true", attributes="-message.type")).code == 0
    answer = await unit.ask(RequestCode.GET_TOPIC_CONFIG, ext={"topic": "T", "lo": "true"})
    assert answer.body == (
        b'{"attributes":{},"order":true,"perm":4,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T",'
        b'"topicSysFlag":0,"writeQueueNums":3}'
    )


async def test_fewer_write_queues_take_effect_for_the_next_send(unit: BrokerUnit) -> None:
    await create(unit, writeQueueNums="4")
    assert (await unit.send(queue_id=3)).code == 0
    await create(unit, readQueueNums="1", writeQueueNums="1")
    assert (await unit.send(queue_id=3)).code == ResponseCode.INVALID_PARAMETER
    assert (await unit.pull(queue_id=3)).code == ResponseCode.INVALID_PARAMETER
    assert (await unit.send(queue_id=-1)).ext_fields["queueId"] == "0"


@pytest.mark.parametrize(
    ("changes", "code", "remark"),
    [
        ({"topic": "bad.topic!"}, 29, "topic: 'bad.topic!' may only hold"),
        ({"topic": "x" * 128}, 29, "is 128 characters long"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, 29, "The topic[SCHEDULE_TOPIC_XXXX] is conflict with system topic."),
        ({"topic": "C"}, 29, "conflict with system topic"),
        ({"readQueueNums": "-1"}, 29, "readQueueNums=-1: is not within 0 and 10000"),
        ({"writeQueueNums": "10001"}, 29, "writeQueueNums=10001"),
        ({"readQueueNums": "0", "writeQueueNums": "0"}, 29, "no queue"),
        ({"readQueueNums": "x"}, 1, "header field readQueueNums = 'x'"),
        ({"perm": "8"}, 29, "perm=8: is not within 0 and 7"),
        ({"topicFilterType": "LOUD"}, 29, "topicFilterType=LOUD"),
        ({"attributes": "+no.such=1"}, 1, "unsupported key: no.such"),
    ],
)
async def test_invalid_topics_are_refused(unit: BrokerUnit, changes: dict[str, str], code: int, remark: str) -> None:
    answer = await create(unit, **changes)
    assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark
    assert unit.broker.tables.topics.find("T") is None


async def test_a_list_does_not_exceed_the_limit_of_topics(unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.broker.processors.topicadmin.TOPICS_MAX", len(unit.broker.tables.topics) + 1)
    several = encode_topic_configs([TopicConfig("A", 1, 1), TopicConfig("B", 1, 1)])
    answer = await unit.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=several)
    assert (answer.code, "are allowed" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    assert unit.broker.tables.topics.find("A") is None
    one = encode_topic_configs([TopicConfig("A", 1, 1)])
    assert (await unit.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=one)).code == 0


async def test_a_list_of_topics_is_created_as_a_whole_or_not_at_all(unit: BrokerUnit) -> None:
    good = [TopicConfig("A", 1, 1), TopicConfig("B", 2, 2)]
    for bad in ([*good, TopicConfig("x y")], [*good, TopicConfig("A", 3, 3)]):
        answer = await unit.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=encode_topic_configs(bad))
        assert answer.code == 29
        assert unit.broker.tables.topics.find("A") is None
    assert (await unit.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=b'{"topicConfigList":[{}]}')).code == 1
    assert (await unit.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=encode_topic_configs(good))).code == 0
    answer = await unit.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    table = TopicConfigSerializeWrapper.decode(answer.body_bytes)
    assert {"A", "B", "TBW102"} <= table.topic_config_table.keys()
    assert table.data_version == unit.broker.tables.topics.version


async def test_deleting_a_topic_deletes_its_offsets_and_queues(unit: BrokerUnit) -> None:
    await create(unit)
    await unit.send()
    unit.broker.tables.offsets.commit("T", "g", 0, 1, 1)
    for _ in range(2):
        answer = await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "T"})
        assert answer.code == 0
    assert unit.broker.tables.offsets.groups_of("T") == []
    assert unit.store.max_offset("T", 0) == 0
    answer = await unit.ask(RequestCode.GET_TOPIC_CONFIG, ext={"topic": "T"})
    assert (answer.code, answer.remark) == (17, "No topic in this broker. topic: T")
    assert (await unit.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "TBW102"})).code == 29
    await create(unit)
    assert (await unit.send()).ext_fields["queueOffset"] == "0"


async def test_groups_of_a_topic_are_listed(unit: BrokerUnit) -> None:
    await create(unit)
    await subscribe(unit, "live", "T")
    unit.broker.tables.offsets.commit("T", "away", 0, 1, 1)
    unit.broker.tables.offsets.commit("T", "live", 0, 1, 1)
    answer = await unit.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, ext={"topic": "T"})
    assert GroupList.decode(answer.body_bytes).group_list == ["live", "away"]


async def test_system_topics_are_listed(unit: BrokerUnit) -> None:
    await create(unit)
    answer = await unit.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    topics = json.loads(answer.body_bytes)["topicList"]
    assert {"TBW102", "C", "broker-a", "C_REPLY_TOPIC", "rmq_sys_wheel_timer"} <= set(topics)
    assert "T" not in topics
    assert len(topics) == len(set(topics))
