import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gantry.model.group import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from gantry.remoting.aio import Channel
from gantry.remoting.bodies import CheckClientConfig, ConsumerData, HeartbeatData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from services.broker.processors import clients
from tests.support.brokerunit import BrokerUnit
from tests.support.connectionpair import ConnectionPair
from tests.support.heartbeats import consumer_beat, subscribe

SQL = SubscriptionData("T", sub_string="a > 5", sub_version=1, expression_type="SQL92")


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit() as unit:
        await unit.make_topic("T")
        yield unit


class Listener:
    """A connection that records the groups of its notifications."""

    def __init__(self, unit: BrokerUnit) -> None:
        self.told: list[str] = []
        self.pair: ConnectionPair = unit.connect({RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self._notified})

    def _notified(self, channel: Channel, request: RemotingCommand) -> None:
        assert request.is_one_way
        self.told.append(request.ext_fields["consumerGroup"])

    async def take(self) -> list[str]:
        await asyncio.sleep(0.01)
        told, self.told = self.told, []
        return told


async def beat(unit: BrokerUnit, body: bytes, listener: Listener | None = None) -> RemotingCommand:
    return await unit.ask(RequestCode.HEART_BEAT, body=body, connection=listener.pair if listener else None)


async def ids(unit: BrokerUnit, group: str = "g") -> Any:
    answer = await unit.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext={"consumerGroup": group})
    return answer.body if answer.code == 0 else (answer.code, answer.remark)


class TestHeartbeat:
    async def test_it_is_answered_as_rocketmq_5_does(self, unit: BrokerUnit) -> None:
        answer = await beat(unit, consumer_beat("1@2", "g", "T", producer_groups=("pg", "CLIENT_INNER_PRODUCER")))
        assert (answer.code, answer.version) == (0, 479)
        assert answer.ext_fields == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
        assert set(unit.broker.tables.producers.groups()) == {"pg", "CLIENT_INNER_PRODUCER"}

    async def test_the_first_heartbeat_creates_group_and_retry_topic(self, unit: BrokerUnit) -> None:
        await subscribe(unit, "g", "T")
        assert unit.broker.tables.groups.find("g") is not None
        retry = unit.broker.tables.topics.find("%RETRY%g")
        assert retry is not None
        assert (retry.read_queue_nums, retry.write_queue_nums, retry.perm) == (1, 1, 6)

    async def test_ids_are_returned_byte_for_byte(self, unit: BrokerUnit) -> None:
        assert await ids(unit) == (1, "no consumer for this group, g")
        odd = '10.0.0.1@4242#99@ünï"t'
        await beat(unit, consumer_beat(odd, "g", "T"))
        assert await ids(unit) == '{"consumerIdList":["10.0.0.1@4242#99@ünï\\"t"]}'.encode()

    async def test_unchanged_subscriptions_may_be_omitted_once_known(self, unit: BrokerUnit) -> None:
        unknown = await beat(unit, consumer_beat("1@2", "g", fingerprint=5, without_sub=True))
        assert unknown.ext_fields["IS_SUB_CHANGE"] == "true"
        await beat(unit, consumer_beat("1@2", "g", "T", fingerprint=5))
        known = await beat(unit, consumer_beat("1@2", "g", fingerprint=5, without_sub=True))
        assert known.ext_fields["IS_SUB_CHANGE"] == "false"
        info = unit.broker.tables.consumers.find("g")
        assert info is not None
        assert list(info.subscriptions) == ["T"]

    async def test_missing_tag_hashes_are_computed(self, unit: BrokerUnit) -> None:
        bare = SubscriptionData("T", sub_string="A || B", sub_version=1)
        await beat(unit, consumer_beat("1@2", "g", subscriptions=(bare,)))
        info = unit.broker.tables.consumers.find("g")
        assert info is not None
        assert info.subscriptions["T"].code_set == {65, 66}

    @pytest.mark.parametrize(
        ("body", "code", "remark"),
        [
            (b"", 1, "body"),
            (b"{", 1, "body"),
            (b'{"clientID":""}', 1, "clientID has 0 characters"),
            (b'{"clientID":5}', 1, "clientID"),
            (b'{"clientID":"x","consumerDataSet":[{"groupName":"a b"}]}', 1, "consumerGroup: 'a b'"),
            (b'{"clientID":"x","producerDataSet":[{"groupName":""}]}', 1, "producerGroup: ''"),
            (b'{"clientID":"x","consumerDataSet":[{"groupName":"g","consumeType":"LOUD"}]}', 1, "consumeType"),
            (HeartbeatData("x", tuple(f"g{number}" for number in range(10_001))).encode(), 1, "10001 groups"),
        ],
    )
    async def test_a_bad_heartbeat_is_refused_as_a_whole(
        self, unit: BrokerUnit, body: bytes, code: int, remark: str
    ) -> None:
        answer = await beat(unit, body)
        assert (answer.code, remark in str(answer.remark)) == (code, True), answer.remark

    async def test_subscriptions_and_instances_are_bounded(
        self, unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("services.broker.processors.clients.SUBSCRIPTIONS_OF_CLIENT_MAX", 1)
        many = (SubscriptionData("T"), SubscriptionData("U"))
        answer = await beat(unit, consumer_beat("1@2", "g", subscriptions=many))
        assert (answer.code, answer.remark) == (1, "heart-beat of 2 subscriptions, at most 1 are allowed")
        monkeypatch.setattr("services.broker.processors.clients.MEMBERS_MAX", 2)
        known = consumer_beat("1@2", "g", "T", producer_groups=("pg",))
        assert (await beat(unit, known)).code == 0
        assert (await beat(unit, known)).code == 0, "known instances continue"
        answer = await beat(unit, consumer_beat("3@4", "g", "T"))
        remark = "clientID 3@4: 1 more instances in groups, there are 2 of at most 2"
        assert (answer.code, answer.remark) == (1, remark)
        unit.broker.tables.producers.unregister("pg", unit.connection.server, "1@2")
        assert (await beat(unit, consumer_beat("3@4", "g", "T"))).code == 0

    async def test_an_sql_subscription_is_refused_while_sql_is_disabled_and_nothing_is_registered(
        self, unit: BrokerUnit
    ) -> None:
        unit.change_settings(enable_property_filter=False)
        answer = await beat(unit, consumer_beat("1@2", "g", subscriptions=(SQL,), producer_groups=("pg",)))
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "enablePropertyFilter=false (group g, topic T, expression 'a > 5')" in str(answer.remark)
        assert unit.broker.tables.consumers.groups() == []
        assert unit.broker.tables.producers.groups() == {}
        check = await unit.ask(RequestCode.CHECK_CLIENT_CONFIG, body=CheckClientConfig("1@2", "g", SQL).encode())
        assert (check.code, "SQL92" in str(check.remark)) == (1, True)
        tags = CheckClientConfig("1@2", "g", SubscriptionData("T")).encode()
        assert (await unit.ask(RequestCode.CHECK_CLIENT_CONFIG, body=tags)).code == 0

    async def test_an_invalid_expression_is_refused_before_anything_is_registered(self, unit: BrokerUnit) -> None:
        wrong = dataclasses.replace(SQL, sub_string="a LIKE 'x'")
        answer = await beat(unit, consumer_beat("1@2", "g", subscriptions=(SQL, wrong), producer_groups=("pg",)))
        assert answer.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
        assert "sql: at character 3: LIKE is not supported" in str(answer.remark)
        assert unit.broker.tables.consumers.groups() == []
        assert unit.broker.tables.producers.groups() == {}
        check = await unit.ask(RequestCode.CHECK_CLIENT_CONFIG, body=CheckClientConfig("1@2", "g", wrong).encode())
        assert (check.code, check.remark) == (answer.code, answer.remark)
        check = await unit.ask(RequestCode.CHECK_CLIENT_CONFIG, body=CheckClientConfig("1@2", "g", SQL).encode())
        assert check.code == 0
        unknown = dataclasses.replace(SQL, expression_type="XPATH")
        answer = await beat(unit, consumer_beat("1@2", "g", subscriptions=(unknown,)))
        assert (answer.code, "'XPATH' is neither TAG nor SQL92" in str(answer.remark)) == (23, True)

    async def test_many_new_expressions_are_parsed_in_several_turns(
        self, unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clients, "PARSED_AT_ONCE", 20)
        many = tuple(SubscriptionData(f"T{n}", f"a > {n}", sub_version=1, expression_type="SQL92") for n in range(9))
        body = consumer_beat("1@2", "g", subscriptions=many)
        closing = unit.connect()
        waiting = asyncio.ensure_future(
            closing.client.request(RemotingCommand.request(RequestCode.HEART_BEAT, body=body), 1000)
        )
        await asyncio.sleep(0)
        closing.client.abort("gone")
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.1)
        assert unit.broker.tables.consumers.groups() == [], "a closed connection does not become a member"
        assert (await beat(unit, consumer_beat("1@2", "g", subscriptions=many))).code == 0
        info = unit.broker.tables.consumers.find("g")
        assert info is not None
        assert info.subscriptions["T8"].sub_string == "a > 8"
        fresh = (*many[1:], dataclasses.replace(many[0], sub_string="a >> 5"))
        body = consumer_beat(
            "1@2", "other", subscriptions=(*fresh, SubscriptionData("U", "b" * 30, expression_type="SQL92"))
        )
        assert (await beat(unit, body)).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED

    async def test_the_expressions_of_one_client_are_limited(
        self, unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clients, "SQL_CHARACTERS_OF_CLIENT_MAX", 9)
        two = (SQL, dataclasses.replace(SQL, topic="U"))
        answer = await beat(unit, consumer_beat("1@2", "g", subscriptions=two))
        assert answer.remark == "heart-beat with SQL92 expressions of 10 characters, at most 9 are allowed"
        assert (await beat(unit, consumer_beat("1@2", "g", subscriptions=two[:1]))).code == 0

    async def test_a_filter_without_a_tag_is_refused_and_nothing_is_registered(self, unit: BrokerUnit) -> None:
        empty = SubscriptionData("T", sub_string="||", sub_version=1)
        answer = await beat(unit, consumer_beat("1@2", "g", subscriptions=(empty,), producer_groups=("pg",)))
        assert (answer.code, answer.remark) == (ResponseCode.INVALID_PARAMETER, "filter: '||' names no tag")
        assert unit.broker.tables.consumers.groups() == []
        assert unit.broker.tables.producers.groups() == {}
        assert unit.broker.tables.groups.find("g") is None
        named = await beat(unit, consumer_beat("1@2", "g", subscriptions=(empty,), without_sub=True))
        assert named.code == ResponseCode.INVALID_PARAMETER

    async def test_no_group_is_created_if_that_is_switched_off(self, unit: BrokerUnit) -> None:
        unit.change_settings(auto_create_subscription_group=False)
        answer = await beat(unit, consumer_beat("1@2", "g", "T", producer_groups=("pg",)))
        assert (answer.code, "autoCreateSubscriptionGroup" in str(answer.remark)) == (26, True)
        assert unit.broker.tables.producers.groups() == {}

    @pytest.mark.parametrize("groups_max", [1_000, 1])
    async def test_a_refused_heartbeat_creates_no_group(
        self, unit: BrokerUnit, monkeypatch: pytest.MonkeyPatch, groups_max: int
    ) -> None:
        """The first group could be created, the second one could not: groups are limited, or only system groups may."""
        groups = unit.broker.tables.groups
        unit.change_settings(auto_create_subscription_group=groups_max == 1)
        monkeypatch.setattr("services.broker.registry.groups.GROUPS_MAX", len(groups) + groups_max)
        first = "one" if groups_max == 1 else "TOOLS_CONSUMER"
        groups.remove(first, 1)
        before = dict(groups.all())
        consumers = tuple(
            ConsumerData(
                group,
                ConsumeType.CONSUME_PASSIVELY,
                MessageModel.CLUSTERING,
                ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                (SubscriptionData("T"),),
            )
            for group in (first, "two")
        )
        answer = await beat(unit, HeartbeatData("1@2", (), consumers).encode())
        assert (answer.code, "[two]" in str(answer.remark)) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, True)
        assert groups.all() == before
        assert unit.broker.tables.topics.find(f"%RETRY%{first}") is None


class TestNotification:
    async def test_each_connection_and_group_is_notified_once_for_many_changes(self, unit: BrokerUnit) -> None:
        one, two = Listener(unit), Listener(unit)
        beats = [beat(unit, consumer_beat(f"1@{number}", "g", "T"), one) for number in range(5)]
        await asyncio.gather(*beats)
        assert await one.take() == ["g"]
        await beat(unit, consumer_beat("2@1", "g", "T"), two)
        assert (await one.take(), await two.take()) == (["g"], ["g"])
        await beat(unit, consumer_beat("2@1", "g", "T"), two)
        assert (await one.take(), await two.take()) == ([], [])

    async def test_remaining_members_are_notified_of_a_leave(self, unit: BrokerUnit) -> None:
        one, two = Listener(unit), Listener(unit)
        await beat(unit, consumer_beat("a", "g", "T", producer_groups=("pg",)), one)
        await beat(unit, consumer_beat("b", "g", "T"), one)
        await beat(unit, consumer_beat("c", "g", "T"), two)
        await one.take()
        await two.take()
        ext = {"clientID": "a", "consumerGroup": "g", "producerGroup": "pg"}
        answer = await unit.ask(RequestCode.UNREGISTER_CLIENT, ext=ext, connection=one.pair)
        assert answer.code == 0
        assert (await one.take(), await two.take()) == (["g"], ["g"])
        assert await ids(unit) == b'{"consumerIdList":["b","c"]}'
        assert unit.broker.tables.producers.groups() == {}
        one.pair.client.abort("gone")
        assert await two.take() == ["g"]
        assert await ids(unit) == b'{"consumerIdList":["c"]}'
        again = await unit.ask(RequestCode.UNREGISTER_CLIENT, ext=ext)
        assert again.code == 0  # ali-ons waits for this answer when it closes.

    async def test_broadcasting_groups_and_groups_that_opted_out_are_not_notified(self, unit: BrokerUnit) -> None:
        one = Listener(unit)
        await beat(unit, consumer_beat("a", "b", "T", message_model="BROADCASTING"), one)
        assert await one.take() == []
        unit.change_settings(notify_consumer_ids_changed_enable=False)
        await beat(unit, consumer_beat("a", "g", "T"), one)
        assert await one.take() == []
        unit.change_settings(notify_consumer_ids_changed_enable=True)
        body = b'{"groupName":"quiet","notifyConsumerIdsChangedEnable":false}'
        await unit.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
        await beat(unit, consumer_beat("a", "quiet", "T"), one)
        assert await one.take() == []


class TestExpiry:
    async def test_two_minutes_without_a_heartbeat_end_an_instance_but_not_its_neighbours(
        self, unit: BrokerUnit
    ) -> None:
        unit.connection.client.attributes["keep"] = True
        await beat(unit, consumer_beat("silent", "g", "T"))
        for _ in range(5):
            await asyncio.sleep(30)
            await beat(unit, consumer_beat("alive", "g", "T"))
        assert await ids(unit) == b'{"consumerIdList":["alive"]}'
        assert not unit.connection.client.closed

    async def test_a_connection_without_a_live_instance_is_closed(self, unit: BrokerUnit) -> None:
        listener = Listener(unit)
        await beat(unit, consumer_beat("silent", "g", "T", producer_groups=("pg",)), listener)
        for _ in range(14):
            await asyncio.sleep(10)
            await unit.ask(RequestCode.GET_BROKER_CONFIG)
        assert listener.pair.client.closed
        assert await ids(unit) == (1, "no consumer for this group, g")
        assert unit.broker.tables.producers.groups() == {}
