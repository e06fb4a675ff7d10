"""Client frames in both codings: valid ones, invalid ones, and those that end the stream."""

import contextlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.ws import frames
from services.gateway.ws.frames import (
    Codec,
    JsonCodec,
    MsgpackCodec,
    RefusedFrameError,
    UnreadableFrameError,
)

SCHEMAS = Path(__file__).resolve().parents[5] / "openapi" / "websocket-schemas"
CLIENT_FRAMES: list[type[frames.ClientFrame]] = [
    frames.Hello,
    frames.Subscribe,
    frames.Ack,
    frames.Nack,
    frames.AddCredit,
    frames.Pause,
    frames.Resume,
    frames.Unsubscribe,
    frames.Publish,
    frames.CheckResult,
]


@pytest.fixture(params=[JsonCodec, MsgpackCodec])
def codec(request: pytest.FixtureRequest) -> Codec:
    made: Codec = request.param()
    return made


def test_each_frame_has_the_fields_of_its_schema() -> None:
    for frame in CLIENT_FRAMES:
        info = msgspec.inspect.type_info(frame)
        assert isinstance(info, msgspec.inspect.StructType)
        schema = json.loads((SCHEMAS / f"{info.tag}.json").read_text())
        assert {field.encode_name for field in info.fields} | {"type"} == set(schema["properties"])
        required = {field.encode_name for field in info.fields if field.required}
        assert required | {"type"} == set(schema["required"])


def test_defaults_are_those_of_the_schema(codec: Codec) -> None:
    frame = codec.decode(codec.encode({"type": "subscribe", "group": "g", "topic": "t"}))
    assert isinstance(frame, frames.Subscribe)
    properties = json.loads((SCHEMAS / "subscribe.json").read_text())["properties"]
    for name in ("filter", "mode", "order", "strategy", "batch"):
        assert getattr(frame, name) == properties[name]["default"]
    assert frame.start is msgspec.UNSET
    assert "default" not in properties["from"]
    credit = properties["credit"]["properties"]
    assert (frame.credit.messages, frame.credit.bytes) == (credit["messages"]["default"], credit["bytes"]["default"])


@pytest.mark.parametrize(
    ("frame", "field", "frame_id"),
    [
        ({"type": "shout", "id": 7}, "/type", 7),
        ({"id": "a"}, "/type", "a"),
        ({"type": 3}, "/type", msgspec.UNSET),
        ({"type": "pause"}, "/subscription", msgspec.UNSET),
        ({"type": "pause", "subscription": None}, "/subscription", msgspec.UNSET),
        ({"type": "pause", "subscription": "s1", "colour": "red"}, "/colour", msgspec.UNSET),
        ({"type": "pause", "subscription": "s1", "id": True}, "/id", msgspec.UNSET),
        ({"type": "pause", "subscription": "s1", "id": ""}, "/id", msgspec.UNSET),
        ({"type": "pause", "subscription": "s1", "id": 2**63}, "/id", msgspec.UNSET),
        ({"type": "ack", "subscription": "s1", "receipts": []}, "/receipts", msgspec.UNSET),
        ({"type": "ack", "subscription": "s1", "receipts": ["1.1", 2], "id": 1}, "/receipts/1", 1),
        (
            {"type": "subscribe", "group": "g", "topic": "t", "credit": {"messages": -1}},
            "/credit/messages",
            msgspec.UNSET,
        ),
        ({"type": "subscribe", "group": "g", "topic": "t", "mode": "anycast"}, "/mode", msgspec.UNSET),
        ({"type": "subscribe", "group": "g" * 256, "topic": "t"}, "/group", msgspec.UNSET),
        ({"type": "subscribe", "group": "g", "topic": "t", "batch": 0}, "/batch", msgspec.UNSET),
        ({"type": "publish", "topic": "t", "messages": []}, "/messages", msgspec.UNSET),
    ],
)
def test_a_wrong_frame_is_refused_by_field(codec: Codec, frame: object, field: str, frame_id: object) -> None:
    with pytest.raises(RefusedFrameError) as caught:
        codec.decode(_encode(codec, frame))
    assert caught.value.error.field == field
    assert caught.value.frame_id == frame_id


def test_the_refusal_shows_a_shortened_value(codec: Codec) -> None:
    with pytest.raises(RefusedFrameError) as caught:
        codec.decode(_encode(codec, {"type": "pause", "subscription": ["x" * 1000]}))
    assert "xxx" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_the_refusal_shows_an_extension_of_messagepack_as_bytes() -> None:
    with pytest.raises(RefusedFrameError, match=r"/type: '.x07' is not valid"):
        MsgpackCodec().decode(msgspec.msgpack.encode({"type": msgspec.msgpack.Ext(1, b"\x07")}))


@pytest.mark.parametrize("frame", [[], "text", 3, None, True])
def test_a_frame_that_is_no_object_is_unreadable(codec: Codec, frame: object) -> None:
    with pytest.raises(UnreadableFrameError, match="an object"):
        codec.decode(_encode(codec, frame))


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\xff\xfe", b"\x81", b"{", b"[" * 100_000, b"\x91" * 100_000])
def test_undecodable_frames_are_unreadable(codec: Codec, data: bytes) -> None:
    with pytest.raises(UnreadableFrameError):
        codec.decode(data)


def test_half_of_a_surrogate_pair_is_refused_with_this_reason() -> None:
    with pytest.raises(UnreadableFrameError, match="half of a character"):
        JsonCodec().decode(b'{"type": "pause", "subscription": "\\ud800"}')


def test_a_repeated_name_is_refused() -> None:
    twice = b'{"type":"pause","subscription":"s1","subscription":"s2"}'
    with pytest.raises(RefusedFrameError, match="'subscription' appears twice"):
        JsonCodec().decode(twice)
    outside = b'{"type":"publish","topic":"t","topic":"u","messages":[{"body":"a:b"}]}'
    with pytest.raises(RefusedFrameError, match="'topic' appears twice"):
        JsonCodec().decode(outside)
    pair = msgspec.msgpack.encode("type") + msgspec.msgpack.encode("pause")
    name = msgspec.msgpack.encode("subscription") + msgspec.msgpack.encode("s1")
    for header in (b"\x83", b"\xde\x00\x03", b"\xdf\x00\x00\x00\x03"):
        with pytest.raises(RefusedFrameError, match="appears twice"):
            MsgpackCodec().decode(header + pair + name + name)


def test_the_items_of_a_publish_are_not_decoded_with_the_frame(codec: Codec) -> None:
    items = [{"body": "a:b"}, 3]
    frame = codec.decode(_encode(codec, {"type": "publish", "id": "x:y", "topic": "t", "messages": items}))
    assert isinstance(frame, frames.Publish)
    inside = b'{"type":"publish","topic":"t","messages":[{"body":"a","body":"b"}]}'
    assert isinstance(JsonCodec().decode(inside), frames.Publish)
    name = msgspec.msgpack.encode("topic") + msgspec.msgpack.encode("t")
    packed = msgspec.msgpack.encode({"type": "publish", "messages": [{}]})
    with pytest.raises(RefusedFrameError, match="'topic' appears twice"):
        MsgpackCodec().decode(b"\x84" + packed[1:] + name + name)


def test_offsets_are_texts_in_json_and_integers_in_messagepack() -> None:
    assert JsonCodec().offset(2**60) == "1152921504606846976"
    assert MsgpackCodec().offset(2**60) == 2**60


@given(data=st.binary(max_size=200))
def test_any_bytes_give_a_frame_or_an_error(data: bytes) -> None:
    for made in (JsonCodec(), MsgpackCodec()):
        with contextlib.suppress(frames.FrameError):
            assert isinstance(made.decode(data), frames.ClientFrame)


def _encode(codec: Codec, frame: object) -> bytes:
    return msgspec.json.encode(frame) if codec.is_text else msgspec.msgpack.encode(frame)
