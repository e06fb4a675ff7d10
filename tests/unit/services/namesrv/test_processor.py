"""Requests and their answers, against the tables."""

import asyncio
import inspect
import json
from typing import Any

import pytest

from gantry.model.topic import DataVersion, TopicConfig
from gantry.remoting.bodies import RegisterBrokerBody, TopicConfigSerializeWrapper, decode_data_version
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand, decode_frame, encode_frame
from gantry.remoting.errors import HeaderError
from services.namesrv.kvconfig import KvConfig
from services.namesrv.processor import Processor
from services.namesrv.routetable import RouteTable
from services.namesrv.settings import NamesrvSettings
from tests.support.virtualtime import FakeClock

MASTER = {
    "brokerName": "broker-a",
    "brokerAddr": "10.0.0.1:10911",
    "clusterName": "C",
    "brokerId": "0",
    "haServerAddr": "10.0.0.1:10912",
}
SLAVE = {**MASTER, "brokerAddr": "10.0.0.2:10911", "brokerId": "1", "haServerAddr": "10.0.0.2:10912"}


class FakeConnection:
    """The connection of a registration."""

    def __init__(self) -> None:
        self.close_reason = ""

    def close(self, reason: str) -> None:
        self.close_reason = reason


class Server:
    """A processor and its handlers, called as the transport would."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.saved: list[bytes] = []
        self.notified: list[tuple[str, RemotingCommand]] = []
        self.connection = FakeConnection()
        self.error: OSError | None = None
        self.processor = Processor(
            NamesrvSettings(**settings),
            RouteTable(),
            KvConfig({}, self.save),
            clock=self.clock,
            notify=lambda address, command: self.notified.append((address, command)),
            save_changes=self.save,
        )
        self.handlers = self.processor.handlers()

    async def save(self, data: bytes) -> None:
        if self.error is not None:
            raise self.error
        self.saved.append(data)

    async def ask(self, code: int, body: bytes = b"", *, version: int = 479, **ext: str) -> RemotingCommand:
        request = RemotingCommand.request(code, body=body or None, ext=ext)
        request.version = version
        answer = self.handlers[code](self.connection, decode_frame(encode_frame(request)[4:]))
        if inspect.isawaitable(answer):
            answer = await answer
        return decode_frame(encode_frame(answer)[4:])

    async def register(
        self, *topics: str, broker: dict[str, str] = MASTER, counter: int = 1, **ext: str
    ) -> RemotingCommand:
        table = {name: TopicConfig(name, 8, 8) for name in topics or ("T1", "T2")}
        body = RegisterBrokerBody(TopicConfigSerializeWrapper(table, DataVersion(0, 1, counter))).encode()
        return await self.ask(RequestCode.REGISTER_BROKER, body, **{**broker, **ext})


@pytest.fixture
def server() -> Server:
    return Server()


async def test_a_registered_topic_has_a_route(server):
    assert (await server.register()).code == 0
    answer = await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")
    assert answer.body_bytes == (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"10.0.0.1:10911"},"brokerName":"broker-a","cluster":"C",'
        b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
        b'"readQueueNums":8,"topicSysFlag":0,"writeQueueNums":8}]}'
    )


@pytest.mark.parametrize(
    ("version", "ext", "quoted"),
    [
        (121, {}, False),
        (317, {}, False),
        (400, {}, False),
        (401, {}, True),
        (121, {"acceptStandardJsonOnly": "true"}, True),
    ],
)
async def test_old_clients_get_unquoted_broker_ids_unless_they_ask(server, version, ext, quoted):
    await server.register()
    answer = await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1", version=version, **ext)
    assert (b'{"0":' in answer.body_bytes, b"{0:" in answer.body_bytes) == (quoted, not quoted)
    assert b" " not in answer.body_bytes


async def test_an_unknown_topic_is_17_with_the_text_that_clients_know(server):
    answer = await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="X")
    assert answer.code == 17
    assert answer.remark.startswith("No topic route info in name server for the topic: X\n")


async def test_a_refused_registration_is_code_1_with_the_reason(server):
    answer = await server.register("T1")
    assert (answer.code, answer.remark.startswith("register broker failed")) == (1, True)
    answer = await server.register(bodyCrc32="7")
    assert (answer.code, answer.remark.startswith("crc32 not match")) == (1, True)
    with pytest.raises(HeaderError, match="brokerId"):
        await server.register(brokerId="x")


async def test_a_slave_gets_its_master_and_every_broker_the_order_configuration(server):
    await server.ask(RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T1", value="broker-a:4")
    assert json.loads((await server.register()).body_bytes) == {"table": {"T1": "broker-a:4"}}
    answer = await server.register(broker=SLAVE)
    assert answer.ext_fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}
    plain = Server(return_order_topic_config_to_broker=False)
    assert (await plain.register()).body is None


async def test_an_older_incarnation_is_answered_success(server):
    body = RegisterBrokerBody(TopicConfigSerializeWrapper({}, DataVersion(5, 1, 1))).encode()
    await server.ask(RequestCode.REGISTER_BROKER, body, **MASTER)
    answer = await server.register(brokerAddr="10.0.0.9:1")
    assert (answer.code, answer.ext_fields) == (0, {})
    assert len(server.processor.table.live) == 1


async def test_unregistering_removes_the_routes(server):
    await server.register()
    assert (await server.ask(RequestCode.UNREGISTER_BROKER, **MASTER)).code == 0
    assert (await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")).code == 17
    assert (await server.ask(RequestCode.UNREGISTER_BROKER, **MASTER)).code == 0


async def test_a_silent_broker_and_its_connection_are_closed(server):
    await server.register()
    server.clock.advance(120_000)
    server.processor.expire()
    assert server.connection.close_reason == ""
    server.clock.advance(1)
    server.processor.expire()
    assert "silent" in server.connection.close_reason
    assert server.processor.expired_count == 1
    assert (await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")).code == 17


async def test_a_heartbeat_keeps_a_known_broker_alive(server):
    await server.register()
    server.clock.advance(100_000)
    assert (await server.ask(RequestCode.BROKER_HEARTBEAT, **MASTER)).code == 0
    server.clock.advance(100_000)
    server.processor.expire()
    assert len(server.processor.table.live) == 1
    stranger = {**MASTER, "brokerAddr": "10.0.0.9:1"}
    assert (await server.ask(RequestCode.BROKER_HEARTBEAT, **stranger)).code == 0
    assert len(server.processor.table.live) == 1


async def test_a_closed_connection_removes_its_brokers_at_once(server):
    await server.register()
    server.connection.close_reason = "closed by the peer"
    server.processor.connection_closed(server.connection)
    assert len(server.processor.table.live) == 0


async def test_a_data_version_is_compared_and_counts_as_a_sign_of_life(server):
    unknown = await server.ask(
        RequestCode.QUERY_DATA_VERSION, b'{"counter":1,"stateVersion":0,"timestamp":1}', **MASTER
    )
    assert (unknown.ext_fields, unknown.body) == ({"changed": "true"}, None)
    await server.register(counter=4)
    server.clock.advance(100_000)
    same = await server.ask(RequestCode.QUERY_DATA_VERSION, b'{"counter":4,"stateVersion":0,"timestamp":1}', **MASTER)
    assert same.ext_fields == {"changed": "false"}
    assert decode_data_version(same.body_bytes) == DataVersion(0, 1, 4)
    server.clock.advance(100_000)
    changed = await server.ask(RequestCode.QUERY_DATA_VERSION, b'{"counter":5,"timestamp":1}', **MASTER)
    assert changed.ext_fields == {"changed": "true"}
    server.processor.expire()
    assert len(server.processor.table.live) == 1
    server.clock.advance(30_000)
    server.processor.expire()
    assert len(server.processor.table.live) == 0


async def test_write_permissions_are_removed_and_restored(server):
    await server.register()
    taken = await server.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert taken.ext_fields == {"wipeTopicCount": "2"}
    assert b'"perm":4' in (await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")).body_bytes
    given = await server.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    assert given.ext_fields == {"addTopicCount": "2"}
    nobody = await server.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, brokerName="nobody")
    assert nobody.ext_fields == {"wipeTopicCount": "0"}


async def test_the_cluster_is_shown_with_unquoted_ids(server):
    await server.register()
    await server.register(broker=SLAVE)
    assert (await server.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).body_bytes == (
        b'{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},'
        b'"brokerName":"broker-a","cluster":"C","enableActingMaster":false}},"clusterAddrTable":{"C":["broker-a"]}}'
    )
    group = await server.ask(RequestCode.GET_BROKER_MEMBER_GROUP, clusterName="C", brokerName="broker-a")
    assert group.body_bytes == (
        b'{"brokerMemberGroup":{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"broker-a",'
        b'"cluster":"C"}}'
    )


@pytest.mark.parametrize(
    ("code", "ext", "body"),
    [
        (RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}, {"topicList": ["T1", "T2"]}),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "C"}, {"topicList": ["T1", "T2"]}),
        (RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "X"}, {"topicList": []}),
        (
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            {},
            {"brokerAddr": "10.0.0.1:10911", "topicList": ["C", "broker-a"]},
        ),
        (RequestCode.GET_UNIT_TOPIC_LIST, {}, {"topicList": []}),
        (RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, {}, {"topicList": []}),
        (RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, {}, {"topicList": []}),
    ],
)
async def test_topics_are_listed(server, code, ext, body):
    await server.register()
    assert json.loads((await server.ask(code, **ext)).body_bytes) == body


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ("enable_all_topic_list", RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
        ("enable_topic_list", RequestCode.GET_UNIT_TOPIC_LIST),
    ],
)
async def test_lists_can_be_switched_off(setting, code):
    answer = await Server(**{setting: False}).ask(code)
    assert (answer.code, answer.remark) == (1, "disable")


async def test_a_topic_is_registered_and_deleted_on_this_name_server_only(server):
    await server.register()
    body = b'{"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":2,"topicSynFlag":0,"writeQueueNums":2}]}'
    assert (await server.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, body, topic="New")).code == 0
    assert (await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="New")).code == 0
    assert (await server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="New", clusterName="C")).code == 0
    assert (await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="New")).code == 17
    assert (await server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, topic="T1")).code == 0
    assert (await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")).code == 17
    wrong = body.replace(b'"readQueueNums":2', b'"readQueueNums":-2')
    refused = await server.ask(RequestCode.REGISTER_TOPIC_IN_NAMESRV, wrong, topic="New")
    assert (refused.code, "readQueueNums of topic New: -2" in refused.remark) == (1, True)


async def test_key_values_are_stored(server):
    assert (await server.ask(RequestCode.PUT_KV_CONFIG, namespace="NS", key="k1", value="v1 é")).code == 0
    assert (await server.ask(RequestCode.GET_KV_CONFIG, namespace="NS", key="k1")).ext_fields == {"value": "v1 é"}
    listed = await server.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="NS")
    assert json.loads(listed.body_bytes) == {"table": {"k1": "v1 é"}}
    assert (await server.ask(RequestCode.DELETE_KV_CONFIG, namespace="NS", key="k1")).code == 0
    missing = await server.ask(RequestCode.GET_KV_CONFIG, namespace="NS", key="k1")
    assert (missing.code, missing.remark) == (22, "No config item, Namespace: NS Key: k1")
    assert (await server.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, namespace="NS")).code == 22
    assert len(server.saved) == 2


async def test_if_the_file_can_not_be_written_nothing_changes_and_the_error_is_returned(server):
    server.error = OSError(28, "No space left on device")
    answer = await server.ask(RequestCode.PUT_KV_CONFIG, namespace="NS", key="k", value="v")
    assert (answer.code, "No space left" in answer.remark) == (1, True)
    assert (await server.ask(RequestCode.GET_KV_CONFIG, namespace="NS", key="k")).code == 22
    answer = await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"waitSecondsForService=46\n")
    assert answer.code == 1
    assert server.processor.settings.wait_seconds_for_service == 45


async def test_the_order_configuration_is_returned_unless_it_is_switched_off(server):
    await server.register()
    await server.ask(RequestCode.PUT_KV_CONFIG, namespace="ORDER_TOPIC_CONFIG", key="T1", value="broker-a:4")
    shown = await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")
    assert json.loads(shown.body_bytes)["orderTopicConf"] == "broker-a:4"
    without = await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T2")
    assert b"orderTopicConf" not in without.body_bytes
    await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"orderMessageEnable=false\n")
    plain = await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")
    assert b"orderTopicConf" not in plain.body_bytes


async def test_settings_are_shown_changed_and_saved(server):
    shown = await server.ask(RequestCode.GET_NAMESRV_CONFIG)
    assert b"scanNotActiveBrokerInterval=10000\n" in shown.body_bytes
    assert (await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"waitSecondsForService=46\nunknown=1\n")).code == 0
    await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"enableTopicList=false\n")
    assert json.loads(server.saved[-1]) == {"wait_seconds_for_service": "46", "enable_topic_list": "false"}
    await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"unknown=1\n")
    assert len(server.saved) == 2
    assert (await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"kvConfigPath=/x\n")).code == 16
    refused = await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, b"waitSecondsForService=soon\n")
    assert (refused.code, "wait_seconds_for_service" in refused.remark) == (1, True)


async def test_after_a_start_routes_may_have_to_wait_for_brokers():
    server = Server(need_wait_for_service=True)
    await server.register()
    waiting = await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")
    assert (waiting.code, waiting.remark.startswith("name server not ready")) == (1, True)
    server.clock.advance(45_000)
    assert (await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")).code == 0


async def test_a_zone_sees_its_own_brokers_only(server):
    await server.register(__ZONE_NAME="z1")
    other = {**MASTER, "brokerName": "broker-b", "brokerAddr": "10.0.0.3:10911"}
    await server.register(broker=other, __ZONE_NAME="z2")
    ask = {"topic": "T1", "__ZONE_MODE": "true", "__ZONE_NAME": "Z2"}
    narrow = json.loads((await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, **ask)).body_bytes)
    assert [one["brokerName"] for one in narrow["queueDatas"]] == ["broker-b"]
    wide = json.loads((await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="T1")).body_bytes)
    assert len(wide["brokerDatas"]) == 2


async def test_a_change_of_the_lowest_id_is_announced_if_enabled():
    server = Server(notify_min_broker_id_changed=True)
    await server.register(broker=SLAVE)
    await server.register()
    assert [address for address, _ in server.notified] == ["10.0.0.2:10911"]
    assert server.notified[0][1].ext_fields == {
        "minBrokerId": "0",
        "brokerName": "broker-a",
        "minBrokerAddr": "10.0.0.1:10911",
        "haBrokerAddr": "10.0.0.1:10912",
    }
    await server.ask(RequestCode.UNREGISTER_BROKER, **MASTER)
    assert server.notified[-1][1].ext_fields["offlineBrokerAddr"] == "10.0.0.1:10911"
    quiet = Server()
    await quiet.register(broker=SLAVE)
    await quiet.register()
    assert quiet.notified == []


async def test_answers_are_counted(server):
    await server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="X")
    await asyncio.gather(*(server.ask(RequestCode.PUT_KV_CONFIG, namespace="N", key="k", value="v") for _ in range(2)))
    assert server.processor.counts == {(105, 17): 1, (100, 0): 2}
