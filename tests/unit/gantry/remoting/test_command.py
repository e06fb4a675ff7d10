import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.remoting.codes import ANNOUNCED_VERSION, LanguageCode
from gantry.remoting.command import (
    FRAME_BYTES_MAX,
    RemotingCommand,
    SerializeType,
    decode_frame,
    encode_frame,
)
from gantry.remoting.errors import LocalProtocolError, RemoteProtocolError
from gantry.remoting.headers import GetRouteInfoHeader

int32 = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
commands = st.builds(
    RemotingCommand,
    code=st.integers(-(2**15), 2**15 - 1),
    ext_fields=st.dictionaries(texts, texts, max_size=5),
    flag=int32,
    language_name=st.sampled_from(LanguageCode).map(lambda code: code.name),
    opaque=int32,
    remark=st.none() | texts,
    version=st.integers(-(2**15), 2**15 - 1),
    body=st.none() | st.binary(min_size=1, max_size=100),
    serialize_type=st.sampled_from([SerializeType.JSON, SerializeType.ROCKETMQ]),
)


def json_frame(header: object, body: bytes = b"") -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack(">I", len(data)) + data + body


@given(commands)
def test_encoding_round_trips(command: RemotingCommand):
    frame = encode_frame(command)

    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert decode_frame(frame[4:]) == command


@given(commands)
def test_reading_and_writing_agree(command: RemotingCommand):
    frame = encode_frame(command)

    assert encode_frame(decode_frame(frame[4:])) == frame


def test_json_header_is_compact_and_in_javas_order():
    command = RemotingCommand.request(105, GetRouteInfoHeader(topic="T"))
    command.opaque = 7
    command.remark = "r"

    header = encode_frame(command)[8:].decode()

    assert header == (
        '{"code":105,"extFields":{"topic":"T"},"flag":0,"language":"PYTHON","opaque":7,"remark":"r",'
        f'"version":{ANNOUNCED_VERSION}}}'
    )


def test_empty_ext_fields_are_left_out():
    assert b"extFields" not in encode_frame(RemotingCommand.request(34))


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"queueId": 0}, {"queueId": "0"}),
        ({"offset": -9223372036854775808}, {"offset": "-9223372036854775808"}),
        ({"unitMode": False, "batch": True}, {"unitMode": "false", "batch": "true"}),
        ({"timeout": 1.5}, {"timeout": "1.5"}),
        ({"topic": "T", "gone": None}, {"topic": "T"}),
        (None, {}),
    ],
)
def test_ext_fields_of_other_types_become_texts(sent: dict[str, object] | None, read: dict[str, str]):
    assert decode_frame(json_frame({"code": 10, "extFields": sent})).ext_fields == read


def test_unknown_members_and_those_of_our_own_names_are_ignored():
    header = {"code": 10, "body": "x", "serialize_type": 9, "serializeTypeCurrentRPC": "JSON", "other": [{}]}

    command = decode_frame(json_frame(header))

    assert command == RemotingCommand(code=10)


def test_nulls_and_a_numeric_language_are_taken_as_absent():
    header = {"code": 10, "flag": None, "language": 3, "opaque": None, "remark": None, "version": None}

    assert decode_frame(json_frame(header)) == RemotingCommand(code=10)


def test_an_unknown_language_is_other():
    assert decode_frame(json_frame({"code": 10, "language": "KOTLIN"})).language is LanguageCode.OTHER
    assert decode_frame(json_frame({"code": 10, "language": "GO"})).language is LanguageCode.GO


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"code":"10"}',
        b'{"code":1.5}',
        b'{"code":true}',
        b'{"code":2147483648}',
        b'{"code":10,"opaque":-2147483649}',
        b'{"code":10,"extFields":[]}',
        b'{"code":10,"extFields":{"a":{}}}',
        b'{"code":10,"extFields":{"a":[]}}',
        b'{"code":10,"remark":1}',
        b'{"code":10,"remark":"\xff"}',
        b'{"code":10,"remark":"\\ud800"}',
        b'{"code":10}}',
        b'{"code":10,"x":' + b"[" * 100_000,
    ],
    ids=lambda header: repr(header[:40]),
)
def test_an_invalid_json_header_is_refused(header: bytes):
    with pytest.raises(RemoteProtocolError, match="JSON header"):
        decode_frame(json_frame(header))


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"", "frame of 0 bytes"),
        (b"\0\0\0", "frame of 3 bytes"),
        (b"\0\0\0\x05{}", "header of 5 bytes in a frame of 6"),
        (b"\x02\0\0\x02{}", "header coding 2"),
        (b"\xff\0\0\0", "header coding 255"),
    ],
)
def test_an_inconsistent_frame_is_refused(frame: bytes, message: str):
    with pytest.raises(RemoteProtocolError, match=message):
        decode_frame(frame)


def test_a_response_takes_opaque_and_coding_from_its_request():
    request = RemotingCommand(code=34, opaque=99, serialize_type=SerializeType.ROCKETMQ)

    response = RemotingCommand.response_to(request, 0, remark="ok", body=b"b", ext={"a": "1"})

    assert (response.opaque, response.serialize_type) == (99, SerializeType.ROCKETMQ)
    assert response.is_response
    assert not response.is_one_way
    assert (response.remark, response.body, response.ext_fields) == ("ok", b"b", {"a": "1"})


def test_a_request_may_be_one_way_and_add_ext_fields():
    request = RemotingCommand.request(105, GetRouteInfoHeader(topic="T"), one_way=True, ext={"gantryX": "1"})

    assert request.is_one_way
    assert not request.is_response
    assert request.ext_fields == {"topic": "T", "gantryX": "1"}


@pytest.mark.parametrize("body", [b"abc", bytearray(b"abc"), memoryview(b"abc")])
def test_a_body_may_be_any_bytes_like_object(body: bytes | bytearray | memoryview):
    command = RemotingCommand.request(10, body=body)

    assert decode_frame(encode_frame(command)[4:]).body == b"abc"
    assert command.body_bytes == b"abc"


def test_an_empty_body_is_none():
    command = decode_frame(encode_frame(RemotingCommand.request(10, body=b""))[4:])

    assert command.body is None
    assert command.body_bytes == b""


def test_a_frame_above_the_limit_is_not_encoded():
    with pytest.raises(LocalProtocolError, match="at most 16777216"):
        encode_frame(RemotingCommand.request(10, body=bytes(FRAME_BYTES_MAX)))


def test_half_a_surrogate_pair_is_not_encoded():
    for serialize_type in SerializeType:
        command = RemotingCommand(code=10, remark="\ud800", serialize_type=serialize_type)
        with pytest.raises(LocalProtocolError, match="code 10"):
            encode_frame(command)
