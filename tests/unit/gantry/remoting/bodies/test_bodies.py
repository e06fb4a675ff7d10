import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry.model.group import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData, SubscriptionGroup
from gantry.model.message import MessageQueue
from gantry.model.route import BrokerData, QueueData, TopicRoute
from gantry.model.topic import DataVersion, TopicConfig
from gantry.remoting import bodies
from gantry.remoting.bodies import registration
from gantry.remoting.errors import BodyError

names = st.text(st.characters(codec="utf-8", exclude_characters=" "), min_size=1, max_size=8)
small = st.integers(0, 1000)
queues = st.builds(MessageQueue, names, names, small)
versions = st.builds(DataVersion, small, small, small)
topics = st.builds(
    TopicConfig,
    names,
    small,
    small,
    st.integers(0, 15),
    st.booleans(),
    attributes=st.dictionaries(names, names, max_size=2),
)
groups = st.builds(
    SubscriptionGroup, names, st.booleans(), st.booleans(), attributes=st.dictionaries(names, names, max_size=2)
)
subscriptions = st.builds(
    SubscriptionData, names, names, st.frozensets(names, max_size=3), st.frozensets(small, max_size=3), small
)
brokers = st.builds(
    BrokerData, names, names, st.dictionaries(st.integers(0, 3), names, max_size=3), st.none() | names, st.booleans()
)
routes = st.builds(
    TopicRoute,
    st.lists(st.builds(QueueData, names, small, small, small, small), max_size=2).map(tuple),
    st.lists(brokers, max_size=2).map(tuple),
    st.none() | names,
    st.dictionaries(names, st.lists(names, max_size=2).map(tuple), max_size=2),
)
consumers = st.builds(
    bodies.ConsumerData, names, st.sampled_from(ConsumeType), st.sampled_from(MessageModel),
    st.sampled_from(ConsumeFromWhere), st.lists(subscriptions, max_size=2).map(tuple), st.booleans(),
)  # fmt: skip
topic_tables = st.builds(
    bodies.TopicConfigSerializeWrapper,
    st.lists(topics, max_size=3).map(lambda configs: {config.topic_name: config for config in configs}),
    versions,
    versions,
)
connections = st.builds(bodies.ClientConnection, client_addr=names, client_id=names, language=names, version=small)
ALL: dict[Any, st.SearchStrategy[Any]] = {
    bodies.TopicRouteData: st.builds(bodies.TopicRouteData, routes),
    bodies.ClusterInfo: st.builds(
        bodies.ClusterInfo, st.dictionaries(names, brokers, max_size=2),
        st.dictionaries(names, st.lists(names, max_size=2).map(tuple), max_size=2),
    ),
    bodies.BrokerMemberGroup: st.builds(bodies.BrokerMemberGroup, names, names, st.dictionaries(small, names, max_size=2)),
    bodies.HeartbeatData: st.builds(
        bodies.HeartbeatData, names, st.lists(names, max_size=2).map(tuple), st.lists(consumers, max_size=2).map(tuple)
    ),
    bodies.CheckClientConfig: st.builds(bodies.CheckClientConfig, names, names, subscriptions, st.none() | names),
    bodies.TopicConfigSerializeWrapper: topic_tables,
    bodies.SubscriptionGroupWrapper: st.builds(
        bodies.SubscriptionGroupWrapper,
        st.lists(groups, max_size=3).map(lambda items: {item.group_name: item for item in items}),
        versions,
        st.dictionaries(names, st.dictionaries(names, small, max_size=2), max_size=2),
    ),
    bodies.RegisterBrokerBody: st.builds(bodies.RegisterBrokerBody, topic_tables, st.lists(names, max_size=2).map(tuple)),
    bodies.ConsumerOffsetWrapper: st.builds(
        bodies.ConsumerOffsetWrapper, st.dictionaries(names, st.dictionaries(small, small, max_size=3), max_size=3), versions,
        st.dictionaries(names, st.lists(names, max_size=2).map(tuple), max_size=2),
    ),
    bodies.DelayOffsetWrapper: st.builds(bodies.DelayOffsetWrapper, st.dictionaries(small, small, max_size=3), versions),
    bodies.ConsumeStats: st.builds(
        bodies.ConsumeStats,
        st.dictionaries(queues, st.builds(bodies.OffsetWrapper, broker_offset=small, pull_offset=small), max_size=3),
        small.map(float),
    ),
    bodies.TopicStatsTable: st.builds(
        bodies.TopicStatsTable,
        st.dictionaries(queues, st.builds(bodies.TopicOffset, max_offset=small, min_offset=small), max_size=3),
    ),
    bodies.BrokerStatsData: st.builds(bodies.BrokerStatsData, stats_day=st.builds(bodies.BrokerStatsItem, sum=small)),
    bodies.ConsumerConnection: st.builds(
        bodies.ConsumerConnection, st.lists(connections, max_size=2).map(tuple), st.dictionaries(names, subscriptions, max_size=2),
        st.none() | st.sampled_from(ConsumeType), st.none() | st.sampled_from(MessageModel), st.none() | st.sampled_from(ConsumeFromWhere),
    ),
    bodies.ProducerConnection: st.builds(bodies.ProducerConnection, connection_set=st.lists(connections, max_size=2)),
    bodies.ConsumerRunningInfo: st.builds(
        bodies.ConsumerRunningInfo, st.dictionaries(names, names, max_size=2), st.lists(subscriptions, max_size=2).map(tuple),
        st.dictionaries(queues, st.builds(bodies.ProcessQueueInfo, commit_offset=small, locked=st.booleans()), max_size=2),
        st.dictionaries(names, st.builds(bodies.ConsumeStatus, consume_failed_msgs=small), max_size=2), jstack=st.none() | names,
    ),
    bodies.KVTable: st.builds(bodies.KVTable, table=st.dictionaries(names, names, max_size=2)),
    bodies.TopicList: st.builds(bodies.TopicList, broker_addr=st.none() | names, topic_list=st.lists(names, max_size=2)),
    bodies.GroupList: st.builds(bodies.GroupList, group_list=st.lists(names, max_size=2)),
    bodies.ConsumerIdList: st.builds(bodies.ConsumerIdList, consumer_id_list=st.lists(names, max_size=2)),
}  # fmt: skip
"""Every body class, with example values."""


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@settings(max_examples=20)
@given(data=st.data())
def test_encoding_round_trips(kind: Any, data: st.DataObject):
    body = data.draw(ALL[kind])

    assert kind.decode(body.encode()) == body


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@settings(max_examples=30)
@given(
    data=st.binary(max_size=40)
    | st.sampled_from([b"{}", b"[]", b"null", b"0", b'{"table":[]}', b'{"offsetTable":{0:{}}}'])
)
def test_anything_is_read_or_refused(kind: Any, data: bytes):
    try:
        kind.decode(data)
    except BodyError as error:
        message = str(error)
    else:
        message = "body"
    assert message.startswith("body")


@given(topic_tables, st.lists(names, max_size=2))
def test_a_compressed_registration_keeps_all_but_flag_order_and_mapping_version(table: Any, servers: list[str]):
    body = bodies.RegisterBrokerBody(table, tuple(servers))

    read = bodies.RegisterBrokerBody.decode(body.encode(compressed=True), compressed=True)

    assert read.filter_servers == body.filter_servers
    assert read.topics.data_version == table.data_version
    assert {name: bare(config) for name, config in read.topics.topic_config_table.items()} == {
        name: bare(config) for name, config in table.topic_config_table.items()
    }


def bare(config: TopicConfig) -> tuple[object, ...]:
    return config.topic_name, config.read_queue_nums, config.write_queue_nums, config.perm, dict(config.attributes)


@given(st.lists(topics, max_size=3), st.lists(groups, max_size=3), versions)
def test_single_nouns_and_lists_of_them(
    configs: list[TopicConfig], items: list[SubscriptionGroup], version: DataVersion
):
    assert bodies.decode_topic_configs(bodies.encode_topic_configs(configs)) == configs
    assert bodies.decode_subscription_groups(bodies.encode_subscription_groups(items)) == items
    assert bodies.decode_data_version(bodies.encode_data_version(version)) == version
    for config in configs:
        assert bodies.decode_topic_config(bodies.encode_topic_config(config)) == config
    for item in items:
        assert bodies.decode_subscription_group(bodies.encode_subscription_group(item)) == item


def test_commands_without_a_name_are_refused():
    with pytest.raises(BodyError, match="topicName: is missing"):
        bodies.decode_topic_config(b'{"perm":6}')
    with pytest.raises(BodyError, match="groupName: is missing"):
        bodies.decode_subscription_group(b"{}")


def test_a_route_is_written_for_old_and_new_clients():
    route = TopicRoute(
        (QueueData("broker-a", 8, 8, 6),), (BrokerData("C", "broker-a", {1: "10.0.0.6:1", 0: "10.0.0.5:1"}),)
    )

    new = bodies.TopicRouteData(route).encode()
    old = bodies.TopicRouteData(route).encode(standard_json=False)

    assert b'"brokerAddrs":{"0":"10.0.0.5:1","1":"10.0.0.6:1"}' in new
    assert b'"brokerAddrs":{0:"10.0.0.5:1",1:"10.0.0.6:1"}' in old
    assert b" " not in new + old
    assert bodies.TopicRouteData.decode(old) == bodies.TopicRouteData.decode(new) == bodies.TopicRouteData(route)


def test_a_route_of_an_old_name_server_is_read():
    data = b'{"brokerDatas":[],"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":4,"topicSynFlag":3,"writeQueueNums":4}]}'

    assert bodies.TopicRouteData.decode(data).route.queue_datas == (QueueData("b", 4, 4, 6, 3),)


def test_a_heartbeat_of_a_bare_client_gets_javas_defaults():
    data = (
        b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{"topic":"T"}]}],"other":{"x":[]}}'
    )

    heartbeat = bodies.HeartbeatData.decode(data)

    assert heartbeat == bodies.HeartbeatData(
        "c", (), (bodies.ConsumerData("g", subscriptions=(SubscriptionData("T"),)),)
    )


def test_a_heartbeat_with_an_unknown_kind_of_consumer_is_refused():
    with pytest.raises(BodyError, match="Invalid enum value 'CONSUME_SIDEWAYS'") as caught:
        bodies.HeartbeatData.decode(
            b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_SIDEWAYS"}]}'
        )
    assert caught.value.field == "consumerDataSet[0].consumeType"


def test_an_empty_registration_has_no_topics():
    assert bodies.RegisterBrokerBody.decode(b"") == bodies.RegisterBrokerBody()
    assert bodies.RegisterBrokerBody.decode(b"{}") == bodies.RegisterBrokerBody()


@pytest.mark.parametrize(
    "plain",
    [
        b"",
        b"\0\0",
        b"\0\0\0\x09{}",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x02{}\x7f\xff\xff\xff",
        b"\0\0\0\x02{}\0\0\0\x01\0\0\0\x01\xff",
        b"\0\0\0\x02{}\0\0\0\x01\0\0\0\x05T 1 1",
        b"\0\0\0\x02{}\0\0\0\x01\0\0\0\x0cT x 1 6 S {}",
        b"\0\0\0\x02{}\0\0\0\x01\0\0\0\x0bT 1 1 6 S {",
        b"\0\0\0\x02{}\0\0\0\0\0\0\0\x02{}\0\0\0\0",
    ],
    ids=lambda plain: plain.hex(),
)
def test_a_broken_compressed_registration_is_refused(plain: bytes):
    with pytest.raises(BodyError):
        bodies.RegisterBrokerBody.decode(zlib.compress(plain), compressed=True)


def test_a_compressed_registration_is_unpacked_to_a_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(registration, "INFLATED_BYTES_MAX", 1000)

    for data, message in [
        (zlib.compress(bytes(1001)), "inflates to more"),
        (zlib.compress(bytes(900))[:-8], "ends before"),
        (b"not zlib", "no zlib stream"),
    ]:
        with pytest.raises(BodyError, match=message):
            bodies.RegisterBrokerBody.decode(data, compressed=True)


def test_queue_mappings_of_static_topics_are_skipped():
    plain = bodies.RegisterBrokerBody().encode_uncompressed()[:-4] + b"\0\0\0\x01\0\0\0\x02{}"

    assert bodies.RegisterBrokerBody.decode(zlib.compress(plain), compressed=True) == bodies.RegisterBrokerBody()


def test_a_topic_line_before_attributes_is_read():
    assert registration.decode_topic_line("T 4 4 6 SINGLE_TAG") == TopicConfig("T", 4, 4)


def test_an_unknown_member_group():
    assert bodies.BrokerMemberGroup.decode(b"{}") == bodies.BrokerMemberGroup("", "")
