"""The gateway's frames in both codings."""

import msgspec
import pytest

from gantry.http import GantryProtocolError
from gantry.http.streamframes import JsonCoding, Messages, MsgpackCoding, State
from tests.unit.gantry.http.messages import message


def test_messages_are_the_same_in_both_codings() -> None:
    frame = {"type": "messages", "subscription": "s1", "receipt": "1-2"}
    packed = MsgpackCoding().decode(msgspec.msgpack.encode(frame | {"messages": [message(1)], "new": 1}))
    text = JsonCoding().decode(msgspec.json.encode(frame | {"messages": [message(1, binary=False)], "new": 1}))
    assert isinstance(packed, Messages)
    assert isinstance(text, Messages)
    assert packed.messages[0].body == text.messages[0].body == b"\x00body"
    assert msgspec.structs.replace(packed.messages[0], encoding="") == msgspec.structs.replace(
        text.messages[0], encoding=""
    )
    plain = message(1, binary=False, body="täxt", encoding="text")
    text = JsonCoding().decode(msgspec.json.encode(frame | {"messages": [plain]}).decode())
    assert isinstance(text, Messages)
    assert text.messages[0].text == "täxt"


@pytest.mark.parametrize("coding", [JsonCoding(), MsgpackCoding()])
def test_frames_of_a_later_version_are_ignored(coding: JsonCoding | MsgpackCoding) -> None:
    assert coding.decode(coding.encode({"type": "tide", "transaction": "t"})) is None


@pytest.mark.parametrize("coding", [JsonCoding(), MsgpackCoding()])
@pytest.mark.parametrize("frame", [{"type": "state"}, {"x": 1}, []])
def test_invalid_frames_are_refused(coding: JsonCoding | MsgpackCoding, frame: object) -> None:
    encoded = msgspec.json.encode(frame) if isinstance(coding, JsonCoding) else msgspec.msgpack.encode(frame)
    with pytest.raises(GantryProtocolError):
        coding.decode(encoded)


@pytest.mark.parametrize(
    ("coding", "encoded"),
    [
        (MsgpackCoding(), b"\x81\xa4type\xa1\xff"),
        (MsgpackCoding(), b"\x81\xa3new" + b"\x91" * 10_000),
        (JsonCoding(), b'{"type": "\xff"}'),
        (JsonCoding(), b'{"new": ' + b"[" * 10_000),
    ],
    ids=["msgpack: not UTF-8", "msgpack: nested", "json: not UTF-8", "json: nested"],
)
def test_a_frame_that_can_not_be_decoded_is_refused(coding: JsonCoding | MsgpackCoding, encoded: bytes) -> None:
    with pytest.raises(GantryProtocolError, match="can't be read"):
        coding.decode(encoded)


def test_a_text_frame_is_not_messagepack() -> None:
    with pytest.raises(GantryProtocolError, match="text frame"):
        MsgpackCoding().decode("{}")


def test_a_message_without_its_fields() -> None:
    frame = {"type": "messages", "subscription": "s1", "receipt": "1", "messages": [{"body": "x"}]}
    with pytest.raises(GantryProtocolError):
        JsonCoding().decode(msgspec.json.encode(frame))


def test_numbers_must_be_numbers() -> None:
    state = {"type": "state", "subscription": "s", "in_flight": 1, "credit": {"messages": 2, "bytes": 3}, "reason": "x"}
    frame = JsonCoding().decode(msgspec.json.encode(state))
    assert isinstance(frame, State)
    assert frame.credit.bytes == 3
