"""The frames of a stream: decoding of the client's frames, and encoding of the gateway's.

Two codings of the same frames, chosen by subprotocol. A client's frame is decoded straight into its type, and unknown
fields are rejected. The gateway's frames are maps, encoded by the codec; offsets in them are strings in JSON and
integers in MessagePack.

A frame that is an object but not valid raises `RefusedFrameError`: it is answered, and the stream continues. Bytes that
are no frame raise `UnreadableFrameError`: the meaning is unknown, so the stream ends. Pure.

Source: openapi/websocket.md and openapi/websocket-schemas.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gantry.model.errors import InvalidValueError
from services.gateway.schemas.filters import Filter
from services.gateway.schemas.msgpackkeys import find_duplicate_key
from services.gateway.schemas.reading import (
    READ_ERRORS,
    DuplicateError,
    WrongTypeError,
    refuse_duplicates,
    translate,
)
from services.gateway.ws.limits import DEFAULT_BATCH, DEFAULT_CREDIT_BYTES, DEFAULT_CREDIT_MESSAGES

INT64_MAX: Final = 2**63 - 1
FAILURES_MAX: Final = 65_535

FrameId = Annotated[str, Meta(min_length=1, max_length=128)] | Annotated[int, Meta(ge=-INT64_MAX, le=INT64_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Text = Annotated[str, Meta(max_length=128)]


class ClientFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    """The fields that every client frame may have."""

    id: FrameId | UnsetType = UNSET


class Hello(ClientFrame, frozen=True, tag="hello"):
    """Names the client, and the producer groups whose transactions it decides."""

    client_name: Text | None = None
    producer_groups: list[Name] = []
    resume: Text | None = None


class Credit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The credit: the messages and bytes that the server may send."""

    messages: Count = DEFAULT_CREDIT_MESSAGES
    bytes: Count = DEFAULT_CREDIT_BYTES


class Subscribe(ClientFrame, frozen=True, tag="subscribe", rename={"start": "from"}):
    """Makes the connection a consumer instance of the group, or shows a topic (`tail`, without a group)."""

    topic: Name
    group: Name | UnsetType = UNSET
    filter: Filter = "*"
    mode: Literal["clustering", "broadcasting", "tail"] = "clustering"
    order: Literal["concurrent", "orderly"] = "concurrent"
    strategy: Literal["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "CONFIG"] = (
        "AVG"
    )
    start: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    credit: Credit = Credit()
    batch: Annotated[int, Meta(ge=1)] = DEFAULT_BATCH
    max_reconsume_times: Annotated[int, Meta(ge=0, le=FAILURES_MAX)] | None = None
    rate_per_s: Annotated[int, Meta(ge=1)] | None = None


class _SubscriptionFrame(ClientFrame, frozen=True):
    subscription: str


class Ack(_SubscriptionFrame, frozen=True, tag="ack"):
    """Acknowledges messages."""

    receipts: Annotated[list[str], Meta(min_length=1)]


class Nack(_SubscriptionFrame, frozen=True, tag="nack"):
    """Returns messages: they come again later."""

    receipts: Annotated[list[str], Meta(min_length=1)]
    delay: str | None = None


class AddCredit(_SubscriptionFrame, frozen=True, tag="credit"):
    """Adds credit."""

    messages: Count = 0
    bytes: Count = 0


class Pause(_SubscriptionFrame, frozen=True, tag="pause"):
    """Pauses the messages of a subscription."""


class Resume(_SubscriptionFrame, frozen=True, tag="resume"):
    """Ends a pause."""


class Unsubscribe(_SubscriptionFrame, frozen=True, tag="unsubscribe"):
    """Ends a subscription."""


class Publish(ClientFrame, frozen=True, tag="publish"):
    """Sends messages. The items stay undecoded here, so that one invalid item does not affect the others."""

    topic: Name
    messages: Annotated[list[msgspec.Raw], Meta(min_length=1)]


class CheckResult(ClientFrame, frozen=True, tag="check_result"):
    """Answers a check: decides a transaction."""

    transaction: Text
    decision: Literal["commit", "rollback", "unknown"]


AnyClientFrame = Hello | Subscribe | Ack | Nack | AddCredit | Pause | Resume | Unsubscribe | Publish | CheckResult


class FrameError(Exception):
    """Base class of errors in a client's frame."""


class UnreadableFrameError(FrameError):
    """The bytes are no frame."""


class RefusedFrameError(FrameError):
    """A frame's type, or the value of a field, is not valid.

    Attributes:
        error: The field and the reason.
        frame_id: Id of the frame, if it has a valid one.
        is_publish: Whether the frame is a publish.
    """

    def __init__(self, error: InvalidValueError, frame_id: str | int | UnsetType, *, is_publish: bool) -> None:
        super().__init__(str(error))
        self.error = error
        self.frame_id = frame_id
        self.is_publish = is_publish


class Codec(Protocol):
    """One of the two codings."""

    subprotocol: str
    is_text: bool

    def decode(self, data: bytes) -> AnyClientFrame:
        """Decode a client's frame. Raises RefusedFrameError, UnreadableFrameError."""
        ...

    def encode(self, frame: Mapping[str, Any]) -> bytes:
        """Encode a frame of the gateway."""
        ...

    def offset(self, value: int) -> int | str:
        """Return an offset as this coding writes it."""
        ...


class JsonCodec:
    """JSON in text frames."""

    subprotocol = "gantry.v1.json"
    is_text = True

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(AnyClientFrame)
        self._encoder = msgspec.json.Encoder()

    def decode(self, data: bytes) -> AnyClientFrame:
        """Decode a client's frame."""
        try:
            # The decoder checks UTF-8 neither in the items of a publish nor in unknown values.
            data.decode()
        except UnicodeDecodeError as error:
            raise UnreadableFrameError(f"a text frame is not UTF-8: {error.reason} at byte {error.start}") from None
        try:
            frame: AnyClientFrame = self._decoder.decode(data)
        except READ_ERRORS as error:
            loose = _decode_loosely(msgspec.json.decode, data)
            if loose is None and not isinstance(error, msgspec.ValidationError):
                raise UnreadableFrameError(f"a text frame is not JSON: {translate(error, data=data)}") from None
            raise _refusal(error, loose, "JSON") from None
        try:
            if not isinstance(frame, Publish) or not _has_only_single_names(data, frame):
                refuse_duplicates(data)
        except InvalidValueError as error:
            raise RefusedFrameError(error, frame.id, is_publish=isinstance(frame, Publish)) from None
        return frame

    def encode(self, frame: Mapping[str, Any]) -> bytes:
        """Encode a frame of the gateway."""
        return self._encoder.encode(frame)

    def offset(self, value: int) -> str:
        """Return the offset as a string: JavaScript's integers are exact only up to 2⁵³."""
        return str(value)


class MsgpackCodec:
    """MessagePack in binary frames."""

    subprotocol = "gantry.v1.msgpack"
    is_text = False

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(AnyClientFrame)
        self._encoder = msgspec.msgpack.Encoder()

    def decode(self, data: bytes) -> AnyClientFrame:
        """Decode a client's frame."""
        try:
            frame: AnyClientFrame = self._decoder.decode(data)
        except READ_ERRORS as error:
            raise _refusal(error, _decode_loosely(_decode_msgpack, data), "MessagePack") from None
        # The items of a publish are checked one by one when they are decoded.
        twice = _repeated_name(data) if isinstance(frame, Publish) else find_duplicate_key(data)
        if twice is not None:
            duplicate = DuplicateError("/", twice, "appears twice in one map")
            raise RefusedFrameError(duplicate, frame.id, is_publish=isinstance(frame, Publish))
        return frame

    def encode(self, frame: Mapping[str, Any]) -> bytes:
        """Encode a frame of the gateway."""
        return self._encoder.encode(frame)

    def offset(self, value: int) -> int:
        """Return the offset itself."""
        return value


CODECS: Final[Mapping[str, type[JsonCodec] | type[MsgpackCodec]]] = {
    codec.subprotocol: codec for codec in (JsonCodec, MsgpackCodec)
}


def _refusal(cause: Exception, frame: object, coding: str) -> FrameError:
    """Return the error for bytes that are no valid frame; `frame` is their content as plain values, or None."""
    if frame is None and not isinstance(cause, msgspec.ValidationError):
        return UnreadableFrameError(f"this is not {coding}: {cause}")
    if not isinstance(frame, dict):
        return UnreadableFrameError("a frame must be an object with a type")
    error = translate(cause)
    value = _value_at(frame, error.field)
    if isinstance(error, WrongTypeError) and value is not _ABSENT:
        error = InvalidValueError(error.field, value, f"is not valid: {error.reason}")
    is_publish = frame.get("type") == "publish"
    return RefusedFrameError(error, _usable_id(frame.get("id", UNSET)), is_publish=is_publish)


def _usable_id(frame_id: object) -> str | int | UnsetType:
    try:
        usable: str | int = msgspec.convert(frame_id, FrameId)
    except msgspec.ValidationError:
        return UNSET
    return usable


_ABSENT: Final = object()


def _value_at(frame: object, path: str) -> object:
    for name in filter(None, path.split("/")):
        if isinstance(frame, dict) and name in frame:
            frame = frame[name]
        elif isinstance(frame, list) and name.isdecimal() and int(name) < len(frame):
            frame = frame[int(name)]
        else:
            return _ABSENT
    return frame


def _decode_loosely(decode: Callable[[bytes], Any], data: bytes) -> object:
    """Decode the bytes as plain values; None if that fails, too."""
    try:
        return decode(data)
    except READ_ERRORS:
        return None


def _decode_msgpack(data: bytes) -> object:
    # Without the hook, Python would show an extension type by its address in memory.
    return msgspec.msgpack.decode(data, ext_hook=lambda _, content: bytes(content))


def _has_only_single_names(data: bytes, frame: Publish) -> bool:
    """Return whether no name is repeated outside the items of a publish; False means perhaps (schemas/reading.py)."""
    colons = data.count(b":") - sum(bytes(item).count(b":") for item in frame.messages)
    names = len(("type", "topic", "messages")) + (frame.id is not UNSET)
    return colons == names


_OuterMap = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def _repeated_name(data: bytes) -> str | None:
    """Return a repeated name of the outer MessagePack map, or None; the data is known to be a map."""
    first = data[0]
    count = first & 0x0F if first & 0xF0 == 0x80 else int.from_bytes(data[1 : 3 if first == 0xDE else 5], "big")
    return None if len(_OuterMap.decode(data)) == count else find_duplicate_key(data)
