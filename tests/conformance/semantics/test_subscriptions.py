"""Promises about members of a group that disagree: each one gets what it asked for, and the broker names them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gantry.model.record import iter_records
from gantry.remoting.bodies import ConsumerIdList
from gantry.remoting.bodies.variants import GroupVariants
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from tests.support.brokerunit import BrokerUnit, pull_header
from tests.support.connectionpair import ConnectionPair
from tests.support.heartbeats import consumer_beat


@pytest.fixture
async def unit() -> AsyncIterator[BrokerUnit]:
    async with BrokerUnit(timer_interval_ms_min=1_000) as unit:
        for topic in ("T", "U"):
            await unit.make_topic(topic, queues=1)
            for tag in ("A", "B"):
                await unit.send(topic, body=tag.encode(), properties={"TAGS": tag})
        yield unit


class Member:
    """A member of group g that relies on its heart-beats, as Java's push consumer does, on a connection of its own."""

    def __init__(self, unit: BrokerUnit, client_id: str) -> None:
        self.unit, self.client_id = unit, client_id
        self.notices: list[RemotingCommand] = []
        handlers = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: lambda _, request: self.notices.append(request)}
        self.connection: ConnectionPair = unit.connect(handlers)

    async def beat(self, *topics: str, expression: str = "*", version: int = 1, model: str = "CLUSTERING") -> None:
        body = consumer_beat(self.client_id, "g", *topics, expression=expression, version=version, message_model=model)
        answer = await self.unit.ask(RequestCode.HEART_BEAT, body=body, connection=self.connection)
        assert answer.code == ResponseCode.SUCCESS, answer.remark

    async def pull(self, topic: str = "T", *, version: int = 1) -> list[str]:
        header = pull_header(topic, 0, sys_flag=0, subscription=None, sub_version=version, max_msg_nums=8)
        answer = await self.unit.ask(RequestCode.PULL_MESSAGE, header, connection=self.connection)
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer.remark
        return [message.body.decode() for message in iter_records(answer.body_bytes)]


async def variants(unit: BrokerUnit) -> GroupVariants:
    answer = await unit.ask(RequestCode.GANTRY_GROUP_VARIANTS, ext={"consumerGroup": "g"})
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return GroupVariants.decode(answer.body_bytes)


async def test_members_with_different_topics_both_go_on_pulling(unit: BrokerUnit) -> None:
    one, two = Member(unit, "one"), Member(unit, "two")
    for _ in range(5):
        await one.beat("T")
        assert await one.pull("T") == ["A", "B"]
        await two.beat("U")
        assert await two.pull("U") == ["A", "B"]
        assert await one.pull("T") == ["A", "B"]
        await asyncio.sleep(30)


async def test_members_with_different_topics_do_not_keep_rebalancing_each_other(unit: BrokerUnit) -> None:
    one, two = Member(unit, "one"), Member(unit, "two")
    await one.beat("T")
    await two.beat("U")
    await asyncio.sleep(1)
    notices = len(one.notices)
    for _ in range(10):
        await one.beat("T")
        await two.beat("U")
        await asyncio.sleep(30)
    assert len(one.notices) == notices


async def test_members_with_different_tags_each_get_their_own(unit: BrokerUnit) -> None:
    one, two = Member(unit, "one"), Member(unit, "two")
    await one.beat("T", expression="A", version=1)
    await two.beat("T", expression="B", version=2)
    assert await one.pull(version=1) == ["A"]
    assert await two.pull(version=2) == ["B"]
    await one.beat("T", expression="A", version=1)
    assert await two.pull(version=2) == ["B"]


async def test_a_member_that_changes_its_tags_gets_the_new_ones(unit: BrokerUnit) -> None:
    one = Member(unit, "one")
    await one.beat("T", expression="A", version=1)
    await one.beat("T", expression="B", version=2)
    assert await one.pull(version=2) == ["B"]
    header = pull_header("T", 0, sys_flag=0, subscription=None, sub_version=3)
    answer = await unit.ask(RequestCode.PULL_MESSAGE, header, connection=one.connection)
    assert answer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST


async def test_a_heart_beat_under_way_costs_nothing_if_another_member_has_the_version(unit: BrokerUnit) -> None:
    """Clients take a new version with every change of their queues."""
    one, two = Member(unit, "one"), Member(unit, "two")
    await one.beat("T", expression="A", version=1)
    await two.beat("T", expression="A", version=5)
    assert await one.pull(version=4) == ["A"]


async def test_the_topics_and_the_filter_of_a_member_that_leaves_go_with_it(unit: BrokerUnit) -> None:
    one, two = Member(unit, "one"), Member(unit, "two")
    await one.beat("T", expression="A", version=1)
    await two.beat("T", "U", expression="B", version=2)
    info = unit.broker.tables.consumers.find("g")
    assert info is not None
    assert info.subscriptions["T"].sub_string == "B"
    two.connection.client.abort("gone")
    await asyncio.sleep(0.1)
    assert {topic: each.sub_string for topic, each in info.subscriptions.items()} == {"T": "A"}


async def test_the_broker_names_who_differs_and_since_when(unit: BrokerUnit) -> None:
    one, two, three = (Member(unit, name) for name in ("one", "two", "three"))
    await one.beat("T", expression="A||B")
    began_ms = unit.clock.now_ms()
    await asyncio.sleep(10)
    await two.beat("T", expression="B || A")
    assert (await variants(unit)).differs_since is None
    await three.beat("T", "U", expression="A", model="BROADCASTING")
    differed_ms = unit.clock.now_ms()
    await asyncio.sleep(10)
    await three.beat("T", "U", expression="A", model="BROADCASTING", version=2)
    found = await variants(unit)
    assert found.differs_since == differed_ms
    first, second = found.variants
    assert (first.client_ids, first.clients, first.message_model, first.since) == (
        ["one", "two"], 2, "CLUSTERING", began_ms,
    )  # fmt: skip
    assert [(each.topic, each.expression) for each in first.subscriptions] == [("T", "A || B")]
    assert (second.client_ids, second.message_model, second.since) == (["three"], "BROADCASTING", differed_ms)
    assert [(each.topic, each.expression) for each in second.subscriptions] == [("T", "A"), ("U", "A")]
    await three.beat("T", expression="A||B", version=3)
    assert (await variants(unit)).differs_since is None


async def shared_by(member: Member) -> list[str]:
    """Return the client ids among which a member shares the queues."""
    ext = {"consumerGroup": "g"}
    answer = await member.unit.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext=ext, connection=member.connection)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return list(ConsumerIdList.decode(answer.body_bytes).consumer_id_list)


async def test_a_member_in_broadcasting_mode_takes_no_share_from_the_others(unit: BrokerUnit) -> None:
    one, two, three = (Member(unit, name) for name in ("one", "two", "three"))
    await one.beat("T")
    await two.beat("T")
    await three.beat("T", model="BROADCASTING")
    assert await shared_by(one) == await shared_by(two) == ["one", "two"]
    assert "three" in await shared_by(three), "a member must learn that the broker knows it"
    for member in (one, two):
        await member.beat("T", model="BROADCASTING", version=2)
    assert await shared_by(one) == ["one", "two", "three"]


async def test_metrics_name_the_groups_whose_members_differ(unit: BrokerUnit) -> None:
    one, two = Member(unit, "one"), Member(unit, "two")
    await one.beat("T")

    def figures() -> dict[str, list[tuple[str, float]]]:
        families = unit.broker.collector(unit.server.counters).collect()
        return {
            family.name: [(sample.labels.get("consumer_group", ""), sample.value) for sample in family.samples]
            for family in families
            if "differ" in family.name
        }

    assert figures() == {"gantry_broker_differing_groups": [("", 0)], "gantry_broker_group_differs_since_seconds": []}
    await two.beat("U")
    assert figures()["gantry_broker_differing_groups"] == [("", 1)]
    assert figures()["gantry_broker_group_differs_since_seconds"] == [("g", unit.clock.now_ms() / 1_000)]


async def test_only_members_in_broadcasting_mode_are_refused_where_it_is_not_allowed(unit: BrokerUnit) -> None:
    one, two = Member(unit, "one"), Member(unit, "two")
    await one.beat("T")
    await two.beat("T", model="BROADCASTING")
    ext_body = b'{"groupName":"g","consumeEnable":true,"consumeBroadcastEnable":false}'
    await unit.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=ext_body)
    assert await one.pull() == ["A", "B"]
    header = pull_header("T", 0, sys_flag=0, subscription=None, sub_version=1)
    answer = await unit.ask(RequestCode.PULL_MESSAGE, header, connection=two.connection)
    assert answer.code == ResponseCode.NO_PERMISSION
