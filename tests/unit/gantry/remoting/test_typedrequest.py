"""The typed decoder of request headers gives the same result as the generic one."""

import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand, SerializeType, encode_frame
from gantry.remoting.connection import Connection
from gantry.remoting.errors import HeaderError
from gantry.remoting.headers import SendMessageHeader, SendMessageHeaderV2
from gantry.remoting.typedrequest import request_decoders

HEADERS = {
    RequestCode.SEND_MESSAGE: SendMessageHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageHeaderV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageHeaderV2,
}
EXT = {
    "a": "P",
    "b": "T",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "i": "a\x01b\x02",
}


def frame_of(header: dict[str, Any], body: bytes = b"body") -> bytes:
    data = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(data) + len(body), len(data)) + data + body


def received(frame: bytes, *, typed: bool) -> RemotingCommand:
    (command,) = Connection(typed=request_decoders(HEADERS) if typed else None).receive_data(frame)
    return command


def outcome(command: RemotingCommand) -> Any:
    if command.header is not None:
        assert command.ext_fields == {}
        return command.header
    try:
        return HEADERS[RequestCode(command.code)].from_ext(command.ext_fields)
    except HeaderError as error:
        return str(error)


values = st.sampled_from(["", "0", "7", "-1", "x", "true", "false", "2147483648", "1700000000000", "\x02é"])
loose = values | st.integers(-(2**40), 2**40) | st.booleans() | st.none()


@given(
    st.sampled_from(sorted(HEADERS)),
    st.dictionaries(st.sampled_from([*"abcdefghijklmn", "bname", "topic", "queueId"]), loose),
    st.sets(st.sampled_from(sorted(EXT))),
    st.integers(0, 2**31 - 1),
)
def test_both_decoders_agree(code: int, changes: dict[str, Any], missing: set[str], opaque: int):
    ext = {name: value for name, value in {**EXT, **changes}.items() if name not in missing}
    frame = frame_of({"code": code, "extFields": ext, "flag": 2, "language": "GO", "opaque": opaque, "version": 3})
    short, long = received(frame, typed=True), received(frame, typed=False)
    assert outcome(short) == outcome(long)
    for name in ("code", "flag", "language_name", "opaque", "remark", "version", "body", "serialize_type"):
        assert getattr(short, name) == getattr(long, name)
    assert long.header is None


def test_a_send_of_the_java_client_is_decoded_by_the_typed_decoder():
    command = received(frame_of({"code": 310, "extFields": EXT, "flag": 0, "opaque": 1}), typed=True)
    assert isinstance(command.header, SendMessageHeaderV2)
    assert (command.header.topic, command.header.born_timestamp) == ("T", 1_700_000_000_000)


@pytest.mark.parametrize(
    "header",
    [
        {"extFields": EXT, "code": 310},
        {"code": 310},
        {"code": 310, "extFields": None},
        {"code": 310, "extFields": {**EXT, "b": 5}},
        {"code": 310, "extFields": EXT, "code2": 1, "header": {"topic": "forged"}},
    ],
)
def test_the_typed_and_the_generic_decoder_agree(header: dict[str, Any]):
    frame = frame_of(header)
    assert outcome(received(frame, typed=True)) == outcome(received(frame, typed=False))


def test_a_peer_can_not_forge_a_decoded_header():
    command = received(frame_of({"code": 35, "extFields": {}, "header": {"topic": "forged"}}), typed=True)
    assert command.header is None


def test_a_binary_header_takes_the_generic_decoder():
    sent = RemotingCommand(310, dict(EXT), serialize_type=SerializeType.ROCKETMQ, body=b"b")
    command = received(encode_frame(sent), typed=True)
    assert (command.header, command.ext_fields) == (None, EXT)
