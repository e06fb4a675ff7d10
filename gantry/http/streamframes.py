"""The frames of `/v1/stream`, as a client reads and writes them (openapi/websocket.md). Pure.

MessagePack is decoded directly into these types. JSON has bodies as text or base64, so its messages are decoded into a
separate type first. Frames of an unknown type come from a later version, and are ignored.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from gantry.http.calls import message_fields
from gantry.http.errors import DECODE_ERRORS, GantryProtocolError, Problem
from gantry.http.results import Message, OutgoingMessage, SendResult

FrameId = str | int


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="type"):
    """The first frame."""

    session: str
    client_id: str
    limits: dict[str, int]
    ping_ms: int


class Subscribed(msgspec.Struct, frozen=True, tag="subscribed", tag_field="type"):
    """The answer to a subscribe: the subscription is active."""

    subscription: str
    id: FrameId | None = None
    skipped: int = 0


class AssignedQueue(msgspec.Struct, frozen=True):
    """A queue that the connection holds, and the next offset to consume."""

    broker: str
    queue_id: int
    next_offset: int


class Assigned(msgspec.Struct, frozen=True, tag="assigned", tag_field="type"):
    """All queues that the connection holds now."""

    subscription: str
    queues: list[AssignedQueue]


class Messages(msgspec.Struct, frozen=True, tag="messages", tag_field="type"):
    """A batch of messages of one queue, in its order."""

    subscription: str
    receipt: str
    messages: list[Message]


class Credit(msgspec.Struct, frozen=True):
    """The amount that the server may still send."""

    messages: int
    bytes: int


class State(msgspec.Struct, frozen=True, tag="state", tag_field="type"):
    """The messages in flight, and the credit left; `skipped` counts messages that a tail has not looked at."""

    subscription: str
    in_flight: int
    credit: Credit
    reason: str
    id: FrameId | None = None
    skipped: int | None = None


class Check(msgspec.Struct, frozen=True, tag="check", tag_field="type"):
    """The question about an open transaction; `checks` counts the questions so far."""

    transaction: str
    group: str
    checks: int
    message: Message


class Published(msgspec.Struct, frozen=True, tag="published", tag_field="type"):
    """The outcome of each message of a publish."""

    results: list[SendResult]
    stored: int
    not_stored: int
    unknown: int
    id: FrameId | None = None


class ErrorFrame(msgspec.Struct, frozen=True, tag="error", tag_field="type"):
    """The server refused something."""

    problem: Problem
    id: FrameId | None = None
    subscription: str | None = None
    receipt: str | None = None


class Goodbye(msgspec.Struct, frozen=True, tag="goodbye", tag_field="type"):
    """The last frame before a close."""

    retry: bool
    after_ms: int
    reason: str


ServerFrame = Welcome | Subscribed | Assigned | Messages | State | Published | Check | ErrorFrame | Goodbye


class _JsonMessages(msgspec.Struct, frozen=True, tag="messages", tag_field="type"):
    subscription: str
    receipt: str
    messages: list[dict[str, Any]]


class _JsonCheck(msgspec.Struct, frozen=True, tag="check", tag_field="type"):
    transaction: str
    group: str
    checks: int
    message: dict[str, Any]


class StreamCoding(Protocol):
    """An encoding of frames: MessagePack or JSON."""

    subprotocol: str

    def decode(self, data: bytes | str) -> ServerFrame | None:
        """Decode a frame; return None for an unknown type. Raises GantryProtocolError."""
        ...

    def encode(self, frame: Mapping[str, Any]) -> bytes | str:
        """Write a frame."""
        ...

    def messages(self, messages: Sequence[OutgoingMessage]) -> list[Any]:
        """Return the encodable form of messages to publish."""
        ...


class MsgpackCoding:
    """MessagePack: bodies are bytes, offsets integers."""

    subprotocol = "gantry.v1.msgpack"

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(ServerFrame)
        self._encoder = msgspec.msgpack.Encoder()

    def decode(self, data: bytes | str) -> ServerFrame | None:
        """Read a frame."""
        if isinstance(data, str):
            raise GantryProtocolError("a text frame came where binary ones were agreed on")
        try:
            frame: ServerFrame = self._decoder.decode(data)
        except DECODE_ERRORS as error:
            if _is_unknown(error):
                return None
            raise GantryProtocolError(f"a frame can't be read: {error}") from None
        return frame

    def encode(self, frame: Mapping[str, Any]) -> bytes:
        """Write a frame."""
        return self._encoder.encode(frame)

    def messages(self, messages: Sequence[OutgoingMessage]) -> list[Any]:
        """Return the messages unchanged, because the encoder can encode them."""
        return list(messages)


class JsonCoding:
    """JSON: bodies are text or base64, offsets are strings."""

    subprotocol = "gantry.v1.json"

    def __init__(self) -> None:
        kinds = Welcome | Subscribed | Assigned | _JsonMessages | State | Published | _JsonCheck | ErrorFrame | Goodbye
        self._decoder = msgspec.json.Decoder(kinds, strict=False)
        self._encoder = msgspec.json.Encoder()

    def decode(self, data: bytes | str) -> ServerFrame | None:
        """Read a frame."""
        try:
            frame = self._decoder.decode(data)
            if isinstance(frame, _JsonMessages):
                return Messages(frame.subscription, frame.receipt, [_message(each) for each in frame.messages])
            if isinstance(frame, _JsonCheck):
                return Check(frame.transaction, frame.group, frame.checks, _message(frame.message))
        except (*DECODE_ERRORS, KeyError, ValueError) as error:
            if _is_unknown(error):
                return None
            raise GantryProtocolError(f"a frame can't be read: {error}") from None
        known: ServerFrame = frame
        return known

    def encode(self, frame: Mapping[str, Any]) -> str:
        """Write a frame."""
        return self._encoder.encode(frame).decode()

    def messages(self, messages: Sequence[OutgoingMessage]) -> list[Any]:
        """Return the fields of the messages, with bodies as JSON text or base64."""
        return [message_fields(message) for message in messages]


CODINGS: Final[Mapping[str, type[MsgpackCoding] | type[JsonCoding]]] = {"msgpack": MsgpackCoding, "json": JsonCoding}


def _message(fields: dict[str, Any]) -> Message:
    body = fields["body"]
    return msgspec.convert(
        {**fields, "body": b64decode(body) if fields["encoding"] == "base64" else body.encode()}, Message, strict=False
    )


def _is_unknown(error: Exception) -> bool:
    return str(error).startswith("Invalid value") and str(error).endswith("at `$.type`")
