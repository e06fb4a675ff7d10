"""Decoding of registrations."""

import zlib

import pytest

from gantry.model.topic import DataVersion, TopicConfig
from gantry.remoting.bodies import RegisterBrokerBody, TopicConfigSerializeWrapper
from gantry.remoting.errors import BodyError
from gantry.remoting.headers.namesrv import RegisterBrokerHeader
from services.namesrv.errors import RefusedError
from services.namesrv.registration import read_registration

TOPICS = {"T1": TopicConfig("T1", 8, 4), "T2": TopicConfig("T2", attributes={"message.type": "FIFO"})}
BODY = RegisterBrokerBody(TopicConfigSerializeWrapper(TOPICS, DataVersion(0, 17, 3)), ("f:1",))


def header(**changes) -> RegisterBrokerHeader:
    values = {
        "broker_name": "broker-a",
        "broker_addr": "10.0.0.1:10911",
        "cluster_name": "C",
        "ha_server_addr": "10.0.0.1:10912",
        "broker_id": 0,
    }
    return RegisterBrokerHeader(**{**values, **changes})


@pytest.mark.parametrize("compressed", [False, True])
def test_both_encodings_give_the_same_registration(compressed):
    body = BODY.encode(compressed=compressed)
    crc = zlib.crc32(body) & 0x7FFF_FFFF
    read = read_registration(header(compressed=compressed, body_crc32=crc, zone_name="z"), body, version=479)
    assert read.topics == TOPICS
    assert read.data_version == DataVersion(0, 17, 3)
    assert (read.key, read.broker_name, read.filter_servers) == (("C", "10.0.0.1:10911"), "broker-a", ("f:1",))
    assert (read.heartbeat_timeout_ms, read.enable_acting_master, read.zone_name) == (120_000, None, "z")


def test_no_body_means_no_topics():
    read = read_registration(header(heartbeat_timeout_millis=5_000), b"", version=479)
    assert (dict(read.topics), read.data_version, read.heartbeat_timeout_ms) == ({}, DataVersion(0, 0, 0), 5_000)


def test_the_checksum_0_means_none():
    assert read_registration(header(body_crc32=0), BODY.encode(), version=479).topics


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"body_crc32": 7}, "crc32 not match: bodyCrc32 is 7"),
        ({"broker_name": ""}, "brokerName: is empty"),
        ({"broker_name": "x" * 256}, "brokerName: .*256 characters"),
        ({"broker_name": "a\nb"}, "brokerName: .*can't be printed"),
        ({"cluster_name": ""}, "clusterName: is empty"),
        ({"broker_addr": "10.0.0.1"}, "brokerAddr: '10.0.0.1' is not host:port"),
        ({"broker_addr": ":1"}, "brokerAddr"),
        ({"broker_addr": "h:0"}, "brokerAddr"),
        ({"broker_addr": "h:65536"}, "brokerAddr"),
        ({"broker_id": -1}, "brokerId: -1"),
        ({"heartbeat_timeout_millis": 0}, "heartbeatTimeoutMillis: 0"),
    ],
)
def test_an_invalid_header_is_refused_by_field_and_value(changes, match):
    with pytest.raises(RefusedError, match=match):
        read_registration(header(**changes), BODY.encode(), version=479)


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (TopicConfig("T", -1, 4), "readQueueNums of topic T: -1"),
        (TopicConfig("T", 4, -1), "writeQueueNums of topic T: -1"),
        (TopicConfig("T", perm=-4), "perm of topic T: -4"),
        (TopicConfig(""), "topic: is empty"),
    ],
)
def test_a_topic_that_no_client_could_use_is_refused(config, match):
    body = RegisterBrokerBody(TopicConfigSerializeWrapper({config.topic_name: config})).encode()
    with pytest.raises(RefusedError, match=match):
        read_registration(header(), body, version=479)


@pytest.mark.parametrize(("body", "compressed"), [(b"{", False), (b"not zlib", True), (b"[]", False)])
def test_an_undecodable_body_is_a_body_error(body, compressed):
    with pytest.raises(BodyError):
        read_registration(header(compressed=compressed), body, version=479)
