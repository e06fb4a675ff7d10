"""Admin calls: which servers they call, and how their answers are combined."""

import pytest

from gantry.client.admin import Admin
from gantry.client.errors import BrokerError, BrokerUnavailableError, InvalidArgumentError, NoRouteError
from gantry.model.address import Address, pack_host
from gantry.model.group import SubscriptionGroup, parse_tag_expression
from gantry.model.message import MessageQueue, encode_properties
from gantry.model.messageid import encode_stored_id
from gantry.model.record import encode_record
from gantry.model.route import BrokerData
from gantry.model.topic import TopicConfig
from gantry.remoting import bodies
from gantry.remoting.codes import RequestCode
from gantry.remoting.headers.topic import CreateTopicHeader
from tests.support.scriptedpeer import ok, refuse

HOST = Address("10.0.0.1", 10911)


def answer(body: bytes):
    return lambda request: ok(request, body=body)


def record(key: str, message_id: str, *, stored_at_ms: int = 2) -> bytes:
    host = pack_host(HOST)
    return encode_record(
        queue_id=1, flag=0, queue_offset=5, physical_offset=500, sys_flag=0, born_at_ms=1, born_host=host,
        stored_at_ms=stored_at_ms, store_host=host, reconsume_times=0, prepared_transaction_offset=0, body=b"x",
        topic=b"T", properties=encode_properties({"KEYS": key, "UNIQ_KEY": message_id}), whole_record_crc=True,
    )  # fmt: skip


@pytest.fixture
def admin(engine, cluster) -> Admin:
    cluster.topic("T", "a", "b")
    return Admin(engine)


@pytest.fixture
def brokers(transport):
    """Sets the brokers' scripts."""

    def do(code: int, a, b=None) -> None:
        transport.at("a:10911", {code: a})
        transport.at("b:10911", {code: b or a})

    return do


async def test_a_topic_is_created_on_all_masters_or_on_those_named(admin, brokers, transport):
    code = RequestCode.UPDATE_AND_CREATE_TOPIC
    brokers(code, ok)
    await admin.create_topic(TopicConfig("New", 4, 2, 6, order=True, attributes={"message.type": "FIFO"}))
    assert [len(transport.sent(code, f"{name}:10911")) for name in "ab"] == [1, 1]
    header = CreateTopicHeader.from_ext(transport.sent(code)[0].ext_fields)
    assert (header.topic, header.read_queue_nums, header.write_queue_nums, header.order) == ("New", 4, 2, True)
    assert header.attributes == "+message.type=FIFO"
    await admin.create_topic(TopicConfig("New"), brokers=["b"])
    assert [len(transport.sent(code, f"{name}:10911")) for name in "ab"] == [1, 2]
    with pytest.raises(BrokerUnavailableError, match="zzz"):
        await admin.create_topic(TopicConfig("New"), brokers=["zzz"])


async def test_a_set_without_a_master_is_left_out_unless_named(admin, cluster):
    cluster.registered["b"] = BrokerData("C", "b", {1: "b:1"})
    assert await admin.masters() == {"a": "a:10911"}
    with pytest.raises(BrokerUnavailableError, match="broker b"):
        await admin.masters(["b"])


async def test_a_topic_is_deleted_on_brokers_then_on_name_servers_then_here(admin, brokers, transport, engine):
    brokers(RequestCode.DELETE_TOPIC_IN_BROKER, ok)
    transport.at("ns:1", {RequestCode.DELETE_TOPIC_IN_NAMESRV: ok})
    await engine.route("T")
    await admin.delete_topic("T")
    codes = [request.code for _, request in transport.requests]
    assert codes.index(215) < codes.index(216)
    assert engine.cached_publish_info("T") is None


async def test_a_refusal_fails_the_call_with_its_sender(admin, brokers):
    brokers(RequestCode.UPDATE_AND_CREATE_TOPIC, ok, refuse(16, "no permission"))
    with pytest.raises(BrokerError, match=r"b:10911 answered 16"):
        await admin.create_topic(TopicConfig("New"))


@pytest.mark.parametrize("name", ["", "a b"])
async def test_invalid_names_are_refused(admin, name):
    calls = (
        admin.create_topic(TopicConfig(name)),
        admin.delete_topic(name),
        admin.put_group(SubscriptionGroup(name)),
        admin.delete_group(name),
    )
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            await call


async def test_configurations_are_read_and_may_be_missing(admin, brokers):
    config, group = TopicConfig("T", 4, 4), SubscriptionGroup("g", retry_max_times=3)
    brokers(RequestCode.GET_TOPIC_CONFIG, answer(bodies.encode_topic_config(config)), refuse(17))
    assert await admin.topic_config("T", "a") == config
    assert await admin.topic_config("T", "b") is None
    brokers(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, answer(bodies.encode_subscription_group(group)), refuse(26))
    assert await admin.group_config("g", "a") == group
    assert await admin.group_config("g", "b") is None
    topics = bodies.TopicConfigSerializeWrapper({"T": config}).encode()
    brokers(RequestCode.GET_ALL_TOPIC_CONFIG, answer(topics))
    assert dict(await admin.topic_configs("a")) == {"T": config}
    groups = bodies.SubscriptionGroupWrapper({"g": group}).encode()
    brokers(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, answer(groups))
    assert dict(await admin.group_configs("a")) == {"g": group}
    brokers(RequestCode.GET_TOPIC_CONFIG, refuse(1))
    with pytest.raises(BrokerError):
        await admin.topic_config("T", "a")


async def test_groups_are_written_and_deleted_everywhere(admin, brokers, transport):
    put, delete = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.DELETE_SUBSCRIPTIONGROUP
    brokers(put, ok)
    brokers(delete, ok)
    await admin.put_group(SubscriptionGroup("g"))
    await admin.delete_group("g", clean_offsets=True)
    assert [len(transport.sent(code)) for code in (put, delete)] == [2, 2]
    assert transport.sent(delete)[0].ext_fields == {"groupName": "g", "cleanOffset": "true"}


async def test_statistics_of_all_brokers_are_combined(admin, brokers):
    def stats(broker: str) -> bytes:
        return bodies.TopicStatsTable({MessageQueue("T", broker, 0): bodies.TopicOffset(max_offset=7)}).encode()

    brokers(RequestCode.GET_TOPIC_STATS_INFO, answer(stats("a")), answer(stats("b")))
    assert {queue.broker_name: one.max_offset for queue, one in (await admin.topic_stats("T")).items()} == {
        "a": 7,
        "b": 7,
    }

    def lag(broker: str) -> bytes:
        return bodies.ConsumeStats({MessageQueue("T", broker, 0): bodies.OffsetWrapper(consumer_offset=3)}).encode()

    brokers(RequestCode.GET_CONSUME_STATS, answer(lag("a")), answer(lag("b")))
    assert [one.consumer_offset for one in (await admin.consume_stats("g", "T")).values()] == [3, 3]
    lists = bodies.GroupList(group_list=["g2"]).encode(), bodies.GroupList(group_list=["g1", "g2"]).encode()
    brokers(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, answer(lists[0]), answer(lists[1]))
    assert await admin.topic_groups("T") == ["g1", "g2"]
    with pytest.raises(NoRouteError):
        await admin.topic_stats("Nowhere")


async def test_connected_clients_are_listed_by_broker(admin, brokers):
    connection = bodies.ClientConnection(client_addr="1.2.3.4:5", client_id="me@1")
    consumers = bodies.ConsumerConnection((connection,), {"T": parse_tag_expression("T", "A")}).encode()
    brokers(RequestCode.GET_CONSUMER_CONNECTION_LIST, answer(consumers), refuse(206))
    assert [one.connections for one in (await admin.consumer_connections("g")).values()] == [(connection,)]
    producers = bodies.ProducerConnection(connection_set=[connection]).encode()
    brokers(RequestCode.GET_PRODUCER_CONNECTION_LIST, refuse(1), answer(producers))
    assert set(await admin.producer_connections("pg")) == {"b"}


async def test_statistics_and_settings_of_a_broker_are_read(admin, brokers, transport):
    brokers(RequestCode.GET_BROKER_RUNTIME_INFO, answer(b'{"table":{"putTps":"1.0"}}'))
    assert await admin.broker_runtime_info("a") == {"putTps": "1.0"}
    brokers(RequestCode.GET_BROKER_CONFIG, answer(b"brokerName=a\n"))
    assert await admin.broker_config("a") == {"brokerName": "a"}
    transport.at("ns:1", {RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: answer(b'{"topicList":["T"]}')})
    assert await admin.topics() == ["T"]


async def test_a_key_finds_its_messages_on_all_brokers_oldest_first_and_no_others(admin, brokers, transport):
    found = record("k1", "ID1", stored_at_ms=9) + record("other", "ID2")
    brokers(RequestCode.QUERY_MESSAGE, answer(found), answer(record("k1 k2", "ID3", stored_at_ms=4)))
    messages = await admin.query_by_key("T", "k1")
    assert [message.message_id for message in messages] == ["ID3", "ID1"]
    assert "_UNIQUE_KEY_QUERY" not in transport.sent(RequestCode.QUERY_MESSAGE)[0].ext_fields
    brokers(RequestCode.QUERY_MESSAGE, answer(found), refuse(22))
    assert [message.message_id for message in await admin.query_by_unique_key("T", "ID2")] == ["ID2"]
    assert transport.sent(RequestCode.QUERY_MESSAGE)[-1].ext_fields["_UNIQUE_KEY_QUERY"] == "true"


async def test_a_stored_id_is_looked_up_at_a_known_broker_only(admin, cluster, transport):
    stored_id = encode_stored_id(HOST, 500)
    assert await admin.view_message(stored_id) is None
    assert [address for address, _ in transport.requests] == ["ns:1"]
    cluster.registered["a"] = BrokerData("C", "a", {0: str(HOST)})
    transport.at(str(HOST), {RequestCode.VIEW_MESSAGE_BY_ID: answer(record("k", "ID"))})
    message = await admin.view_message(stored_id)
    assert message is not None
    assert (message.message_id, message.physical_offset) == ("ID", 500)
    transport.at(str(HOST), {RequestCode.VIEW_MESSAGE_BY_ID: refuse(1)})
    assert await admin.view_message(stored_id) is None
    with pytest.raises(InvalidArgumentError, match="stored_id"):
        await admin.view_message("nonsense")


async def test_records_that_can_not_be_read_are_an_error_with_their_sender(admin, brokers):
    brokers(RequestCode.QUERY_MESSAGE, answer(b"no record" * 20))
    with pytest.raises(BrokerError, match=r"a:10911.*can't be read"):
        await admin.query_by_key("T", "k")
    brokers(RequestCode.GET_TOPIC_STATS_INFO, answer(b"no JSON"))
    with pytest.raises(BrokerError, match=r"a:10911.*can't be read"):
        await admin.topic_stats("T")
