"""The wire format against vectors.json, byte by byte where the format leaves no choice."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from gantry.model.topic import DataVersion, TopicConfig
from gantry.remoting.bodies.config import TopicConfigSerializeWrapper
from gantry.remoting.bodies.registration import RegisterBrokerBody, decode_topic_line, encode_topic_line
from gantry.remoting.codes import LanguageCode
from gantry.remoting.command import RemotingCommand, SerializeType, decode_frame, encode_frame

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "vectors.json").read_text())


def test_json_frame_is_read_as_the_vector_says():
    vector = VECTORS["remoting_json_frame"]
    frame = bytes.fromhex(vector["frame_hex"])

    command = decode_frame(frame[4:])

    assert (command.code, command.opaque, command.flag, command.version) == (105, 7, 0, 479)
    assert command.language is LanguageCode.JAVA
    assert command.ext_fields == {"topic": "TopicTest"}
    assert command.remark is None
    assert command.body is None
    assert command.serialize_type == SerializeType.JSON


def test_json_frame_is_written_as_java_does_but_for_its_artefact():
    vector = VECTORS["remoting_json_frame"]
    command = decode_frame(bytes.fromhex(vector["frame_hex"])[4:])

    frame = encode_frame(command)

    header = vector["header_json"].replace('"serializeTypeCurrentRPC":"JSON",', "").encode()
    assert frame[8:] == header
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert int.from_bytes(frame[4:8], "big") == len(header)


@pytest.mark.parametrize("vector", VECTORS["remoting_binary_frame"], ids=lambda vector: str(vector["code"]))
def test_binary_frame_both_ways(vector: dict[str, Any]):
    frame = bytes.fromhex(vector["frame_hex"])
    body = vector.get("body_utf8")
    expected = RemotingCommand(
        code=vector["code"],
        ext_fields=dict(vector["ext"]),
        flag=vector["flag"],
        language_name=LanguageCode(vector["language"]).name,
        opaque=vector["opaque"],
        remark=vector["remark"],
        version=vector["version"],
        body=None if body is None else body.encode(),
        serialize_type=SerializeType.ROCKETMQ,
    )

    assert decode_frame(frame[4:]) == expected
    assert encode_frame(expected) == frame


@pytest.mark.parametrize("vector", VECTORS["topic_config_string"], ids=lambda vector: vector["cfg"][0])
def test_topic_line_of_a_compressed_registration(vector: dict[str, Any]):
    name, read, write, perm, filter_type, attributes = vector["cfg"]
    config = TopicConfig(name, read, write, perm, topic_filter_type=filter_type, attributes=attributes)

    assert encode_topic_line(config) == vector["string"]
    assert decode_topic_line(vector["string"]) == config


def test_compressed_registration_both_ways():
    plain = bytes.fromhex(VECTORS["register_broker_compressed_body_plain_hex"])

    body = RegisterBrokerBody.decode(zlib.compress(plain, 9), compressed=True)

    assert body.encode_uncompressed() == plain
    assert RegisterBrokerBody.decode(body.encode(compressed=True), compressed=True) == body


def test_compressed_registration_of_an_old_broker_has_no_queue_mappings():
    topics = TopicConfigSerializeWrapper({"T": TopicConfig("T", 4, 4)}, DataVersion(0, 1, 2))
    plain = RegisterBrokerBody(topics, ("filter:1",)).encode_uncompressed()[:-4]

    body = RegisterBrokerBody.decode(zlib.compress(plain), compressed=True, version=409)

    assert body == RegisterBrokerBody(topics, ("filter:1",))
