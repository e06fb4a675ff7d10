"""Every frame that Apache RocketMQ's client, broker, name server and mqadmin exchanged, read and written back.

JSON headers are compared by meaning, since Java's maps have no order; binary headers byte by byte. Typed headers and
bodies that this version supports are compared by meaning too.
"""

import gzip
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gantry.remoting import bodies
from gantry.remoting import headers as h
from gantry.remoting.bodies.fastjson import to_strict_json
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import SerializeType, decode_frame, encode_frame
from gantry.remoting.connection import Connection
from gantry.remoting.errors import HeaderError

FRAMES = Path(__file__).parent / "golden" / "frames.jsonl.gz"
FRAME_COUNT = 1686
NOT_REQUEST_CODES = {9998, 9999}  # An unknown code, sent on purpose to record the answer to it.

# Fields that any request may carry and that our code does not read.
IGNORED_FIELDS = {"bname", "ns", "nsd", "oway", "lo", "ReqT"}
STORED_CODES = {ResponseCode.SUCCESS, ResponseCode.FLUSH_SLAVE_TIMEOUT}

REQUEST_HEADERS: dict[int, type[h.Header]] = {
    10: h.SendMessageHeader, 310: h.SendMessageHeaderV2, 320: h.SendMessageHeaderV2, 325: h.SendMessageHeaderV2,
    324: h.SendMessageHeader, 11: h.PullMessageHeader, 361: h.PullMessageHeader, 14: h.QueryConsumerOffsetHeader,
    15: h.UpdateConsumerOffsetHeader, 29: h.SearchOffsetHeader, 30: h.GetMaxOffsetHeader, 31: h.GetMinOffsetHeader,
    32: h.GetEarliestStoreTimeHeader, 12: h.QueryMessageHeader, 33: h.ViewMessageHeader, 17: h.CreateTopicHeader,
    215: h.DeleteTopicHeader, 351: h.GetTopicConfigHeader, 202: h.GetTopicStatsHeader,
    300: h.QueryTopicConsumeByWhoHeader, 207: h.DeleteSubscriptionGroupHeader,
    352: h.GetSubscriptionGroupConfigHeader, 208: h.GetConsumeStatsHeader, 35: h.UnregisterClientHeader,
    38: h.GetConsumerListHeader, 40: h.NotifyConsumerIdsChangedHeader, 203: h.GetConsumerConnectionListHeader,
    204: h.GetProducerConnectionListHeader, 307: h.GetConsumerRunningInfoHeader, 315: h.ViewBrokerStatsDataHeader,
    100: h.PutKvConfigHeader, 101: h.GetKvConfigHeader, 102: h.DeleteKvConfigHeader, 219: h.GetKvListHeader,
    103: h.RegisterBrokerHeader, 104: h.UnregisterBrokerHeader, 105: h.GetRouteInfoHeader,
    205: h.WipeWritePermHeader, 327: h.AddWritePermHeader, 216: h.DeleteTopicInNamesrvHeader,
    217: h.RegisterTopicHeader, 224: h.GetTopicsByClusterHeader, 322: h.QueryDataVersionHeader,
    901: h.GetBrokerMemberGroupHeader, 904: h.BrokerHeartbeatHeader, 326: h.PushReplyHeader,
    200050: h.PopMessageHeader, 200051: h.AckMessageHeader, 200052: h.PeekMessageHeader,
    200053: h.ChangeInvisibleTimeHeader, 200054: h.NotificationHeader, 200055: h.PollingInfoHeader,
}  # fmt: skip
RESPONSE_HEADERS: dict[int, type[h.Header]] = {
    10: h.SendMessageResponseHeader, 310: h.SendMessageResponseHeader, 320: h.SendMessageResponseHeader,
    324: h.SendMessageResponseHeader, 325: h.SendMessageResponseHeader,
    11: h.PullMessageResponseHeader, 361: h.PullMessageResponseHeader, 14: h.OffsetResponseHeader,
    29: h.OffsetResponseHeader, 30: h.OffsetResponseHeader, 31: h.OffsetResponseHeader,
    32: h.TimestampResponseHeader, 12: h.QueryMessageResponseHeader, 26: h.GetBrokerConfigResponseHeader,
    34: h.HeartbeatResponseHeader, 101: h.GetKvConfigResponseHeader, 103: h.RegisterBrokerResponseHeader,
    205: h.WipeWritePermResponseHeader, 327: h.AddWritePermResponseHeader, 322: h.QueryDataVersionResponseHeader,
    200050: h.PopMessageResponseHeader, 200052: h.PopMessageResponseHeader,
    200053: h.ChangeInvisibleTimeResponseHeader, 200054: h.NotificationResponseHeader,
    200055: h.PollingInfoResponseHeader,
}  # fmt: skip

Codec = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]
BODY_CLASSES: dict[tuple[int, str], Any] = {
    (103, "request"): bodies.RegisterBrokerBody, (103, "response"): bodies.KVTable,
    (105, "response"): bodies.TopicRouteData, (217, "request"): bodies.TopicRouteData,
    (106, "response"): bodies.ClusterInfo, (901, "response"): bodies.BrokerMemberGroup,
    (34, "request"): bodies.HeartbeatData, (46, "request"): bodies.CheckClientConfig,
    (38, "response"): bodies.ConsumerIdList, (208, "response"): bodies.ConsumeStats,
    (202, "response"): bodies.TopicStatsTable, (203, "response"): bodies.ConsumerConnection,
    (204, "response"): bodies.ProducerConnection, (307, "response"): bodies.ConsumerRunningInfo,
    (206, "response"): bodies.TopicList, (224, "response"): bodies.TopicList, (304, "response"): bodies.TopicList,
    (300, "response"): bodies.GroupList, (315, "response"): bodies.BrokerStatsData,
    (201, "response"): bodies.SubscriptionGroupWrapper, (21, "response"): bodies.TopicConfigSerializeWrapper,
    (28, "response"): bodies.KVTable, (219, "response"): bodies.KVTable,
    (41, "request"): bodies.LockRequest, (41, "response"): bodies.LockedQueues,
    (42, "request"): bodies.LockRequest,
    (43, "response"): bodies.ConsumerOffsetWrapper, (45, "response"): bodies.DelayOffsetWrapper,
    (200151, "request"): bodies.BatchAckRequest, (400, "request"): bodies.QueryAssignmentRequest,
    (400, "response"): bodies.QueryAssignmentResponse, (401, "request"): bodies.MessageRequestMode,
    (402, "response"): bodies.MessageRequestModes,
}  # fmt: skip
BODY_CODECS: dict[tuple[int, str], Codec] = {
    **{key: (kind.decode, lambda value: value.encode()) for key, kind in BODY_CLASSES.items()},
    (200, "request"): (bodies.decode_subscription_group, bodies.encode_subscription_group),
    (225, "request"): (bodies.decode_subscription_groups, bodies.encode_subscription_groups),
    (352, "response"): (bodies.decode_subscription_group, bodies.encode_subscription_group),
    (351, "response"): (bodies.decode_topic_config, bodies.encode_topic_config),
    (18, "request"): (bodies.decode_topic_configs, bodies.encode_topic_configs),
    (322, "request"): (bodies.decode_data_version, bodies.encode_data_version),
}
PROPERTIES_BODIES = {(25, "request"), (26, "response"), (318, "request"), (319, "response")}
# Bodies written by hand for the capture; their missing members get default values.
BARE_CASES = {
    "raw heartbeat bare",
    "raw heartbeat producers only",
    "raw register broker crc mismatch",
    "raw lock batch",
    "raw lock batch other client",
    "raw unlock batch",
}


@pytest.fixture(scope="module")
def frames() -> list[dict[str, Any]]:
    with gzip.open(FRAMES, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def frame_of(row: dict[str, Any]) -> bytes:
    """Return the captured bytes. If the capture cut the body, the length word matches the shorter body."""
    frame = bytes.fromhex(row["frame_hex"])
    return struct.pack(">I", len(frame) - 4) + frame[4:] if row.get("truncated") else frame


def side(row: dict[str, Any]) -> str:
    return "response" if row["dir"] == "response" else "request"


def test_all_frames_are_there(frames: list[dict[str, Any]]):
    assert len(frames) == FRAME_COUNT


def test_every_request_code_has_its_name(frames: list[dict[str, Any]]):
    named = {row["code"]: row["code_name"] for row in frames if row["code"] not in NOT_REQUEST_CODES}

    assert {code: RequestCode(code).name for code in named} == named


def test_every_frame_is_read_as_captured(frames: list[dict[str, Any]]):
    for row in frames:
        command = decode_frame(frame_of(row)[4:])
        header = row["header"]

        assert command.code == header["code"], row["case"]
        assert command.opaque == header["opaque"]
        assert command.version == header["version"]
        assert command.flag == header["flag"]
        assert command.remark == header.get("remark")
        assert command.ext_fields == (header.get("extFields") or {})
        assert command.language.name == "JAVA"
        assert SerializeType(command.serialize_type).name == row["ser"]
        assert command.is_response == (row["dir"] == "response")
        assert command.is_one_way == (row["dir"] == "oneway")
        if not row.get("truncated"):
            assert len(command.body_bytes) == row["body_length"]


def test_every_frame_is_written_back(frames: list[dict[str, Any]]):
    for row in frames:
        frame = frame_of(row)
        written = encode_frame(decode_frame(frame[4:]))

        if row["ser"] == "ROCKETMQ":
            assert written == frame, row["case"]
        else:
            header, body = split(frame)
            written_header, written_body = split(written)
            assert written_body == body
            assert meaning(written_header) == meaning(header), row["case"]


def test_all_frames_of_a_connection_as_one_stream_cut_anywhere(frames: list[dict[str, Any]]):
    stream = b"".join(frame_of(row) for row in frames)
    expected = [decode_frame(frame_of(row)[4:]) for row in frames]

    for chunk_bytes in (1021, 65_536, len(stream)):
        connection = Connection()
        got = []
        for at in range(0, len(stream), chunk_bytes):
            got += connection.receive_data(stream[at : at + chunk_bytes])
        connection.receive_eof()
        assert got == expected


def test_typed_headers_say_the_same(frames: list[dict[str, Any]]):
    seen: set[tuple[int, str]] = set()
    for row, header_type in typed_headers(frames):
        ext = decode_frame(frame_of(row)[4:]).ext_fields
        missing = [
            field.encode_name
            for field in msgspec.structs.fields(header_type)
            if field.required and field.encode_name not in ext
        ]
        if missing and row["dir"] == "response" and row["response_code"] not in STORED_CODES:
            continue  # A refusal carries no header, or only the region.
        if missing:  # A request that was wrong on purpose; the broker answered 1.
            with pytest.raises(HeaderError, match=f"header field {missing[0]} is missing"):
                header_type.from_ext(ext)
            continue
        header = header_type.from_ext(ext)

        assert header.to_ext() == {key: value for key, value in ext.items() if key not in IGNORED_FIELDS}, row["case"]
        assert header_type.from_ext(header.to_ext()) == header
        seen.add((row["code"], side(row)))

    assert seen == {(code, "request") for code in REQUEST_HEADERS} | {(code, "response") for code in RESPONSE_HEADERS}


def test_typed_bodies_say_the_same(frames: list[dict[str, Any]]):
    seen: set[tuple[int, str]] = set()
    for row in frames:
        codec = BODY_CODECS.get((row["code"], side(row)))
        body = decode_frame(frame_of(row)[4:]).body_bytes
        if codec is None or not body or row.get("truncated"):
            continue
        decode, encode = codec
        value = decode(body)
        written = encode(value)

        assert decode(written) == value, row["case"]
        if row["case"] not in BARE_CASES:
            assert unordered(json.loads(to_strict_json(written))) == unordered(json.loads(to_strict_json(body)))
        seen.add((row["code"], side(row)))

    assert seen == set(BODY_CODECS)


def test_properties_bodies_say_the_same(frames: list[dict[str, Any]]):
    seen: set[tuple[int, str]] = set()
    for row in frames:
        body = decode_frame(frame_of(row)[4:]).body_bytes
        if (row["code"], side(row)) not in PROPERTIES_BODIES or not body:
            continue
        properties = bodies.decode_properties_text(body)

        assert bodies.decode_properties_text(bodies.encode_properties_text(properties)) == properties
        assert len(properties) == body.count(b"\n")
        seen.add((row["code"], side(row)))

    assert seen == PROPERTIES_BODIES


def typed_headers(frames: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], type[h.Header]]]:
    for row in frames:
        header_type = (RESPONSE_HEADERS if side(row) == "response" else REQUEST_HEADERS).get(row["code"])
        if header_type is not None:
            yield row, header_type


def split(frame: bytes) -> tuple[bytes, bytes]:
    header_end = 8 + (int.from_bytes(frame[4:8], "big") & 0xFFFFFF)
    return frame[8:header_end], frame[header_end:]


def meaning(header: bytes) -> dict[str, Any]:
    """Return a JSON header without Java's artefact; empty ext fields equal missing ones."""
    members: dict[str, Any] = json.loads(header)
    members.pop("serializeTypeCurrentRPC", None)
    if not members.get("extFields"):
        members.pop("extFields", None)
    return members


def unordered(value: Any) -> Any:
    """Return a JSON value with sorted arrays: Java's sets and object-key maps come in any order."""
    if isinstance(value, dict):
        return {key: unordered(member) for key, member in value.items()}
    if isinstance(value, list):
        return sorted((unordered(member) for member in value), key=lambda member: json.dumps(member, sort_keys=True))
    return value
