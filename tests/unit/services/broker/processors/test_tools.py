"""Requests of tools: statistics, clients, settings, messages by key."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gantry.model.message import MessageQueue
from gantry.model.record import iter_records
from gantry.remoting.aio import Channel
from gantry.remoting.bodies import (
    BrokerStatsData,
    ConsumerConnection,
    ConsumeStats,
    ProducerConnection,
    TopicStatsTable,
    decode_properties_text,
)
from gantry.remoting.bodies.brokersettings import (
    BrokerSetting,
    BrokerSettingsBody,
    SettingsChange,
    SettingsChanged,
)
from gantry.remoting.bodies.queuestates import QueueState, QueueStates
from gantry.remoting.bodies.statistics import FlowRows
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from tests.support.brokerunit import BrokerUnit
from tests.support.heartbeats import consumer_beat, subscribe


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T", queues=2)
        yield unit


async def ask(unit: BrokerUnit, code: int, **ext: object) -> RemotingCommand:
    return await unit.ask(code, ext={name: str(value) for name, value in ext.items()})


class TestStatistics:
    async def test_the_queues_of_a_topic(self, unit: BrokerUnit) -> None:
        await unit.send()
        await unit.send()
        answer = await ask(unit, RequestCode.GET_TOPIC_STATS_INFO, topic="T")
        table = TopicStatsTable.decode(answer.body_bytes)
        full, empty = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
        assert set(table.offset_table) == {full, empty}
        assert (table.offset_table[full].min_offset, table.offset_table[full].max_offset) == (0, 2)
        assert table.offset_table[full].last_update_timestamp == unit.store.stored_at("T", 0, 1)
        assert table.offset_table[empty].last_update_timestamp == 0
        assert (await ask(unit, RequestCode.GET_TOPIC_STATS_INFO, topic="Nobody")).code == 17

    async def test_the_offsets_of_a_group_beside_those_of_its_queues(self, unit: BrokerUnit) -> None:
        for _ in range(3):
            await unit.send()
        await unit.pull(max_msg_nums=2)
        await asyncio.sleep(1)
        unit.broker.tables.offsets.commit("T", "g", 0, 1, 1)
        unit.broker.tables.offsets.commit("Gone", "g", 0, 1, 1)
        for ext in ({}, {"topic": "T"}, {"topicList": "T;;"}):
            answer = await ask(unit, RequestCode.GET_CONSUME_STATS, consumerGroup="g", **ext)
            stats = ConsumeStats.decode(answer.body_bytes)
            row = stats.offset_table[MessageQueue("T", "broker-a", 0)]
            assert (row.broker_offset, row.consumer_offset, row.pull_offset) == (3, 1, 2)
            assert row.last_timestamp == unit.store.stored_at("T", 0, 0)
            assert {queue.topic for queue in stats.offset_table} == {"T"}
        assert stats.consume_tps > 0
        await subscribe(unit, "g", "Other")
        answer = await ask(unit, RequestCode.GET_CONSUME_STATS, consumerGroup="g")
        assert ConsumeStats.decode(answer.body_bytes).offset_table == {}
        answer = await ask(unit, RequestCode.GET_CONSUME_STATS, consumerGroup="nobody")
        assert (answer.code, answer.body) == (0, b'{"consumeTps":0.0,"offsetTable":{}}')

    async def test_a_single_counter(self, unit: BrokerUnit) -> None:
        await unit.send()
        answer = await ask(unit, RequestCode.VIEW_BROKER_STATS_DATA, statsName="TOPIC_PUT_NUMS", statsKey="T")
        assert BrokerStatsData.decode(answer.body_bytes).stats_minute.sum == 1
        answer = await ask(unit, RequestCode.VIEW_BROKER_STATS_DATA, statsName="GROUP_GET_NUMS", statsKey="T@g")
        assert (answer.code, answer.remark) == (1, "The stats <GROUP_GET_NUMS> <T@g> not exist")

    async def test_all_counters_of_a_topic_and_of_a_group(self, unit: BrokerUnit) -> None:
        for topic in ("T", "T", "U"):
            await unit.send(topic)
        await unit.pull(max_msg_nums=2)
        for name in ("SNDBCK_PUT_NUMS", "DLQ_PUT_NUMS"):
            unit.broker.stats.return_flow(name, "T", "g", unit.clock.now_ms()).messages += 1
        await asyncio.sleep(20)
        for ext, kinds in (
            ({"topic": "T"}, ["STORED", "DELIVERED", "SENT_BACK", "DEAD"]),
            ({"consumerGroup": "g"}, ["DELIVERED", "SENT_BACK", "DEAD"]),
            ({"topic": "T", "consumerGroup": "g"}, ["DELIVERED", "SENT_BACK", "DEAD"]),
            ({"topic": "U"}, ["STORED"]),
            ({"topic": "U", "consumerGroup": "g"}, []),
        ):
            answer = await ask(unit, RequestCode.GANTRY_STATISTICS, **ext)
            rows = FlowRows.decode(answer.body_bytes).rows
            assert [row.kind for row in rows] == kinds
        stored, delivered, *_ = FlowRows.decode(
            (await ask(unit, RequestCode.GANTRY_STATISTICS, topic="T")).body_bytes
        ).rows
        assert (stored.topic, stored.group, delivered.group) == ("T", None, "g")
        for window in (stored.minute, stored.hour, stored.day, delivered.minute):
            assert window.messages == 2
            assert window.bytes > 2 * 5
            assert 20_000 <= window.elapsed_ms <= 21_000
        refused = await ask(unit, RequestCode.GANTRY_STATISTICS)
        assert (refused.code, str(refused.remark)[:6]) == (29, "topic:")

    async def test_statistics_of_all_queues(self, unit: BrokerUnit) -> None:
        await unit.send()
        unit.broker.tables.offsets.commit("T", "g", 0, 1, 1)
        answer = await ask(unit, RequestCode.GANTRY_QUEUE_STATES, topic="T", consumerGroup="g")
        states = QueueStates.decode(answer.body_bytes)
        stored_at = unit.store.stored_at("T", 0, 0)
        assert states.broker_name == "broker-a"
        assert states.queues == [
            QueueState(
                queue_id=0, max_offset=1, last_stored_at=stored_at, committed_offset=1, committed_stored_at=stored_at
            ),
            QueueState(queue_id=1),
        ]
        assert (await ask(unit, RequestCode.GANTRY_QUEUE_STATES, topic="Nobody")).code == 17


class TestQuery:
    async def test_by_key_and_by_unique_key(self, unit: BrokerUnit) -> None:
        await unit.send(body=b"one", properties={"UNIQ_KEY": "U1", "KEYS": "a b"})
        await unit.send(body=b"two", properties={"UNIQ_KEY": "U2", "KEYS": "b"})
        ext = {"topic": "T", "maxNum": 10, "beginTimestamp": 0, "endTimestamp": 2**63 - 1}
        answer = await ask(unit, RequestCode.QUERY_MESSAGE, key="b", **ext)
        assert [message.body for message in iter_records(answer.body_bytes)] == [b"one", b"two"]
        assert int(answer.ext_fields["indexLastUpdatePhyoffset"]) > 0
        answer = await ask(unit, RequestCode.QUERY_MESSAGE, key="U2", _UNIQUE_KEY_QUERY="true", **{**ext, "maxNum": 0})
        assert [message.body for message in iter_records(answer.body_bytes)] == [b"two"]
        answer = await ask(unit, RequestCode.QUERY_MESSAGE, key="c", **ext)
        assert (answer.code, answer.remark) == (22, "can not find message, maybe time range not correct")
        assert "indexLastUpdateTimestamp" in answer.ext_fields
        answer = await ask(unit, RequestCode.QUERY_MESSAGE, key="b", **{**ext, "maxNum": 0})
        assert (answer.code, answer.remark) == (29, "maxNum=0: is less than 1")

    async def test_messages_by_offset(self, unit: BrokerUnit) -> None:
        await unit.send(body=b"one")
        await unit.send(body=b"two")
        (first,) = iter_records((await ask(unit, RequestCode.VIEW_MESSAGE_BY_ID, offset=0)).body_bytes)
        (second,) = iter_records(
            (await ask(unit, RequestCode.VIEW_MESSAGE_BY_ID, offset=first.size_bytes, topic="T")).body_bytes
        )
        assert (first.body, second.body) == (b"one", b"two")
        for offset in (-1, 1, first.size_bytes + 1, 2**62):
            answer = await ask(unit, RequestCode.VIEW_MESSAGE_BY_ID, offset=offset)
            assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {offset}")


class TestConnections:
    async def test_the_instances_of_a_group(self, unit: BrokerUnit) -> None:
        await unit.ask(RequestCode.HEART_BEAT, body=consumer_beat("1@2", "g", "T", producer_groups=("pg",)))
        answer = await ask(unit, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="g")
        info = ConsumerConnection.decode(answer.body_bytes)
        assert [(row.client_addr, row.client_id, row.version) for row in info.connections] == [
            ("127.0.0.1:50000", "1@2", 479)
        ]
        assert info.subscriptions["T"].sub_string == "*"
        assert info.consume_type == "CONSUME_PASSIVELY"
        answer = await ask(unit, RequestCode.GET_CONSUMER_CONNECTION_LIST, consumerGroup="h")
        assert (answer.code, answer.remark) == (206, "the consumer group[h] not online")
        answer = await ask(unit, RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="pg")
        assert ProducerConnection.decode(answer.body_bytes).connection_set[0].client_id == "1@2"
        answer = await ask(unit, RequestCode.GET_PRODUCER_CONNECTION_LIST, producerGroup="h")
        assert (answer.code, answer.remark) == (1, "the producer group[h] not exist")
        answer = await ask(unit, RequestCode.GET_ALL_PRODUCER_INFO)
        (row,) = json.loads(answer.body_bytes)["data"]["pg"]
        assert (row["clientId"], row["remoteIP"]) == ("1@2", "/127.0.0.1:50000")

    async def test_topics_and_subscriptions_of_a_group_are_listed(self, unit: BrokerUnit) -> None:
        await subscribe(unit, "g", "T", expression="A")
        unit.broker.tables.offsets.commit("T", "g", 0, 1, 1)
        answer = await ask(unit, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="g")
        assert answer.body == b'{"brokerAddr":"10.0.0.5:10911","topicList":["T"]}'
        answer = await ask(unit, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="T")
        assert json.loads(answer.body_bytes)["subscriptionData"]["subString"] == "A"
        answer = await ask(unit, RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER, group="g", topic="U")
        assert answer.body == b'{"group":"g","topic":"U"}'

    async def running_info(self, unit: BrokerUnit, client_id: str = "1@2") -> RemotingCommand:
        return await ask(
            unit, RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId=client_id, jstackEnable="false"
        )

    async def test_an_instance_is_asked_for_its_running_info(self, unit: BrokerUnit) -> None:
        asked: list[dict[str, str]] = []

        def answer_info(channel: Channel, request: RemotingCommand) -> RemotingCommand:
            asked.append(request.ext_fields)
            return RemotingCommand.response_to(request, 0, remark="fine", body=b'{"jstack":null}')

        other = unit.connect({RequestCode.GET_CONSUMER_RUNNING_INFO: answer_info})
        await unit.ask(RequestCode.HEART_BEAT, body=consumer_beat("1@2", "g", "T"), connection=other)
        answer = await self.running_info(unit)
        assert (answer.code, answer.remark, answer.body) == (0, "fine", b'{"jstack":null}')
        assert asked == [{"consumerGroup": "g", "clientId": "1@2", "jstackEnable": "false"}]
        answer = await self.running_info(unit, "nobody@1")
        assert (answer.code, answer.remark) == (1, "The Consumer <g> <nobody@1> not online")

    async def test_a_silent_instance_does_not_delay_others(self, unit: BrokerUnit) -> None:
        other = unit.connect({RequestCode.GET_CONSUMER_RUNNING_INFO: lambda channel, request: None})
        await unit.ask(RequestCode.HEART_BEAT, body=consumer_beat("1@2", "g", "T"), connection=other)
        waiting = asyncio.ensure_future(self.running_info(unit))
        await asyncio.sleep(1)
        assert (await unit.send()).code == 0
        answer = await waiting
        assert answer.code == ResponseCode.CONSUME_MSG_TIMEOUT


class TestBrokerConfig:
    async def change(self, unit: BrokerUnit, text: str) -> Any:
        answer = await unit.ask(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode())
        return answer.code, answer.remark

    async def test_all_settings_are_shown_under_rocketmq_names(self, unit: BrokerUnit) -> None:
        answer = await unit.ask(RequestCode.GET_BROKER_CONFIG)
        assert json.loads(answer.ext_fields["version"]) == {"counter": 0, "stateVersion": 0, "timestamp": 0}
        shown = decode_properties_text(answer.body_bytes)
        assert shown["brokerClusterName"] == "C"
        assert (shown["brokerIP1"], shown["listenPort"]) == ("10.0.0.5", "10911")
        assert (shown["flushDiskType"], shown["enabledAppendPropCRC"]) == ("SYNC_FLUSH", "true")
        assert shown["waitTimeMillsInSendQueue"] == "200"

    async def test_a_switch_takes_effect_at_once_and_is_saved(self, unit: BrokerUnit) -> None:
        assert await self.change(unit, "autoCreateTopicEnable=false\nnoSuchKey=1\n") == (0, None)
        assert (await unit.send("New")).code == ResponseCode.TOPIC_NOT_EXIST
        kept = json.loads(unit.files.read("/data/store/config/gantry-settings.json"))
        assert kept["settings"] == {"auto_create_topic_enable": "false"}
        shown = await unit.ask(RequestCode.GET_BROKER_CONFIG)
        assert b"autoCreateTopicEnable=false\n" in shown.body_bytes
        assert json.loads(shown.ext_fields["version"])["counter"] == 1

    async def test_a_setting_for_the_next_start_is_accepted_with_a_remark(self, unit: BrokerUnit) -> None:
        code, remark = await self.change(unit, "deleteWhen=05\n")
        assert (code, remark) == (0, "takes effect at the next start: deleteWhen")

    @pytest.mark.parametrize(
        ("text", "code", "remark"),
        [
            ("brokerConfigPath=/x", 16, "Can not update config in black list. (brokerConfigPath)"),
            ("storePathRootDir=/x", 16, "black list"),
            ("defaultTopicQueueNums=many", 29, "default_topic_queue_nums: 'many' is not a whole number"),
            ("autoCreateTopicEnable=false\nbrokerPermission=9", 29, "broker_permission: 9"),
            ("a=\\uZZZZ", 1, "no escape"),
            ("", 0, "None"),
        ],
    )
    async def test_settings_are_changed_as_a_whole_or_not_at_all(
        self, unit: BrokerUnit, text: str, code: int, remark: str
    ) -> None:
        found, said = await self.change(unit, text)
        assert (found, remark in str(said)) == (code, True), said
        assert unit.broker.core.live_settings.current.auto_create_topic_enable

    async def test_the_permission_of_the_broker_applies_to_its_topics(self, unit: BrokerUnit) -> None:
        before = unit.broker.tables.topics.version
        assert await self.change(unit, "brokerPermission=4") == (0, None)
        assert unit.broker.core.live_settings.current.broker_permission == 4
        assert unit.broker.tables.topics.version != before

    async def settings(self, unit: BrokerUnit) -> dict[str, BrokerSetting]:
        answer = await unit.ask(RequestCode.GANTRY_SETTINGS)
        return {setting.name: setting for setting in BrokerSettingsBody.decode(answer.body_bytes).settings}

    async def change_settings(self, unit: BrokerUnit, wanted: dict[str, str], **expected: str) -> Any:
        body = SettingsChange(settings=wanted, expected=expected).encode()
        return await unit.ask(RequestCode.GANTRY_CHANGE_SETTINGS, body=body)

    async def test_a_change_that_expects_other_values_changes_nothing_and_tells_the_difference(
        self, unit: BrokerUnit
    ) -> None:
        wanted = {"default_query_max_num": "9", "max_message_size": "5"}
        answer = await self.change_settings(unit, wanted, max_message_size="7", default_query_max_num="32")
        (difference,) = SettingsChanged.decode(answer.body_bytes).differences
        assert (difference.name, difference.expected, difference.actual) == ("max_message_size", "7", "65536")
        assert unit.broker.core.live_settings.current.default_query_max_num == 32
        answer = await self.change_settings(unit, wanted, max_message_size="65536")
        assert SettingsChanged.decode(answer.body_bytes).differences == []
        assert unit.broker.core.live_settings.current.default_query_max_num == 9
        shown = (await self.settings(unit))["max_message_size"]
        assert (shown.value, shown.default_value, shown.is_live, shown.is_changed) == ("5", "4194304", True, True)
        shown = (await self.settings(unit))["broker_ip1"]
        assert (shown.value, shown.is_live, shown.is_changed) == ("10.0.0.5", False, False)
        kept = json.loads(unit.files.read("/data/store/config/gantry-settings.json"))
        assert kept["settings"] == wanted

    async def test_of_two_changes_that_expect_the_same_value_one_is_refused(self, unit: BrokerUnit) -> None:
        answers = await asyncio.gather(
            *(self.change_settings(unit, {"max_message_size": size}, max_message_size="65536") for size in "56")
        )
        differences = [SettingsChanged.decode(answer.body_bytes).differences for answer in answers]
        assert [len(one) for one in differences] == [0, 1]
        assert differences[1][0].actual == "5"

    @pytest.mark.parametrize(
        ("wanted", "code", "remark"),
        [
            ({"max_message_size": "5", "delete_when": "05"}, 29, "delete_when: takes effect only at the next start"),
            ({"max_message_size": "5", "no_such": "1"}, 29, "no_such: there is no such setting"),
            ({"max_message_size": "5", "maxMessageSize": "1"}, 29, "maxMessageSize: there is no such setting"),
            ({"max_message_size": "many"}, 29, "max_message_size: 'many' is not a whole number"),
            ({"broker_permission": "8"}, 29, "broker_permission: 8"),
            ({}, 29, "settings: has 0 members"),
        ],
    )
    async def test_only_settings_that_take_effect_at_once_are_changed(
        self, unit: BrokerUnit, wanted: dict[str, str], code: int, remark: str
    ) -> None:
        answer = await self.change_settings(unit, wanted)
        assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark
        assert unit.broker.core.live_settings.current.max_message_size == 65_536

    async def test_settings_of_the_black_list_are_never_changed(self) -> None:
        async with BrokerUnit(config_black_list="configBlackList;maxMessageSize") as unit:
            answer = await self.change_settings(unit, {"max_message_size": "5"})
        assert (answer.code, answer.remark) == (16, "max_message_size: may not be changed by a request")

    async def test_the_runtime_figures_are_those_that_tools_read(self, unit: BrokerUnit) -> None:
        await unit.send()
        await asyncio.sleep(20)
        await unit.pull()
        answer = await unit.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = json.loads(answer.body_bytes)["table"]
        for name in ("putTps", "getFoundTps", "getMissTps", "getTotalTps", "getTransferredTps"):
            assert len([float(part) for part in table[name].split(" ")]) == 3
        assert table["msgPutTotalTodayNow"] == "1"
        assert table["msgPutTotalTodayMorning"] == table["msgPutTotalYesterdayMorning"] == "0"
        assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 20 seconds ]"
        assert table["commitLogMaxOffset"] == str(unit.store.max_physical_offset)
        assert table["dispatchBehindBytes"] == "0"
        assert table["gantryStoreWritable"] == "true"
        assert int(table["gantryFlushBehindBytes"]) >= 0
        assert table["brokerVersionDesc"] == "V5_3_3"


@pytest.mark.parametrize(
    ("code", "feature"),
    [
        (906, "replication to slaves"),
        (907, "replication to slaves"),
        (513, "static topics"),
        (2001, "flow control of cold data"),
        (2002, "flow control of cold data"),
        (2003, "flow control of cold data"),
        (2004, "read-ahead mode"),
    ],
)
async def test_unsupported_requests_are_refused_by_the_name_of_the_feature(
    unit: BrokerUnit, code: int, feature: str
) -> None:
    answer = await unit.ask(code)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert f" request type {code} not supported: " in str(answer.remark)
    assert feature in str(answer.remark)
