"""The frames of a stream: what a client's bytes mean, and how ours are written.

Two codings of the same frames, chosen by subprotocol. A client's frame is decoded straight into its type, unknown
fields refused; ours are maps, written by the codec, in which offsets are texts in JSON and integers in MessagePack.

A frame that can be read as an object but is wrong is a `RefusedFrameError`: it is answered, and the stream goes on.
One that can't be read is an `UnreadableFrameError`: nobody knows what the client meant, so the stream ends. Pure.

Source: openapi/websocket.md and openapi/websocket-schemas.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, Protocol

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gantry.model.errors import InvalidValueError
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
FILTER_LENGTH_MAX: Final = 4096

FrameId = Annotated[str, Meta(min_length=1, max_length=128)] | Annotated[int, Meta(ge=-INT64_MAX, le=INT64_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]
Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Text = Annotated[str, Meta(max_length=128)]


class ClientFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="type"):
    """What every frame of a client may have."""

    id: FrameId | UnsetType = UNSET


class Hello(ClientFrame, frozen=True, tag="hello"):
    """Says who is there."""

    client_name: Text | None = None
    resume: Text | None = None


class Credit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server may send."""

    messages: Count = DEFAULT_CREDIT_MESSAGES
    bytes: Count = DEFAULT_CREDIT_BYTES


class SqlFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An SQL expression, told apart from a tag expression so that it can be refused by name."""

    sql: Annotated[str, Meta(max_length=FILTER_LENGTH_MAX)]


class Subscribe(ClientFrame, frozen=True, tag="subscribe", rename={"start": "from"}):
    """Makes the connection a consumer instance of the group."""

    group: Name
    topic: Name
    filter: Annotated[str, Meta(min_length=1, max_length=FILTER_LENGTH_MAX)] | SqlFilter = "*"
    mode: Literal["clustering", "broadcasting"] = "clustering"
    order: Literal["concurrent", "orderly"] = "concurrent"
    strategy: Literal["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH", "MACHINE_ROOM", "MACHINE_ROOM_NEARBY", "CONFIG"] = (
        "AVG"
    )
    start: Annotated[str, Meta(max_length=64)] | UnsetType = UNSET
    credit: Credit = Credit()
    batch: Annotated[int, Meta(ge=1)] = DEFAULT_BATCH


class _OfSubscription(ClientFrame, frozen=True):
    subscription: str


class Ack(_OfSubscription, frozen=True, tag="ack"):
    """Settles messages."""

    receipts: Annotated[list[str], Meta(min_length=1)]


class Nack(_OfSubscription, frozen=True, tag="nack"):
    """Gives messages back; comes later."""

    receipts: Annotated[list[str], Meta(min_length=1)]
    delay: str | None = None


class AddCredit(_OfSubscription, frozen=True, tag="credit"):
    """Adds credit."""

    messages: Count = 0
    bytes: Count = 0


class Pause(_OfSubscription, frozen=True, tag="pause"):
    """Stops the sending of messages."""


class Resume(_OfSubscription, frozen=True, tag="resume"):
    """Ends a pause."""


class Unsubscribe(_OfSubscription, frozen=True, tag="unsubscribe"):
    """Ends a subscription."""


class Publish(ClientFrame, frozen=True, tag="publish"):
    """Sends messages; the items stay undecoded here, since one bad item must not cost the others."""

    topic: Name
    messages: Annotated[list[msgspec.Raw], Meta(min_length=1)]


class CheckResult(ClientFrame, frozen=True, tag="check_result"):
    """Decides a transaction; comes later."""

    transaction: str
    decision: Literal["commit", "rollback", "unknown"]


AnyClientFrame = Hello | Subscribe | Ack | Nack | AddCredit | Pause | Resume | Unsubscribe | Publish | CheckResult


class FrameError(Exception):
    """Root of what is wrong with a client's frame."""


class UnreadableFrameError(FrameError):
    """The bytes are no frame at all."""


class RefusedFrameError(FrameError):
    """A frame's type, or a field's value, is not what it may be.

    Attributes:
        error: Which field, and why.
        frame_id: The frame's id, where it has a usable one.
        is_publish: The frame was to send messages.
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
        """Read a client's frame. Raises RefusedFrameError, UnreadableFrameError."""
        ...

    def encode(self, frame: Mapping[str, Any]) -> bytes:
        """Write one of our frames."""
        ...

    def offset(self, value: int) -> int | str:
        """Return what stands for an offset."""
        ...


class JsonCodec:
    """JSON in text frames."""

    subprotocol = "gantry.v1.json"
    is_text = True

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(AnyClientFrame)
        self._encoder = msgspec.json.Encoder()

    def decode(self, data: bytes) -> AnyClientFrame:
        """Read a client's frame."""
        try:
            # The decoder does not look into the items of a publish, nor at what is unknown.
            data.decode()
        except UnicodeDecodeError as error:
            raise UnreadableFrameError(f"a text frame is not UTF-8: {error.reason} at byte {error.start}") from None
        try:
            frame: AnyClientFrame = self._decoder.decode(data)
        except READ_ERRORS as error:
            loose = _loose(msgspec.json.decode, data)
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
        """Write one of our frames."""
        return self._encoder.encode(frame)

    def offset(self, value: int) -> str:
        """Return the offset as text: JavaScript's numbers end at 2⁵³."""
        return str(value)


class MsgpackCodec:
    """MessagePack in binary frames."""

    subprotocol = "gantry.v1.msgpack"
    is_text = False

    def __init__(self) -> None:
        self._decoder = msgspec.msgpack.Decoder(AnyClientFrame)
        self._encoder = msgspec.msgpack.Encoder()

    def decode(self, data: bytes) -> AnyClientFrame:
        """Read a client's frame."""
        try:
            frame: AnyClientFrame = self._decoder.decode(data)
        except READ_ERRORS as error:
            raise _refusal(error, _loose(_decode_msgpack, data), "MessagePack") from None
        # The items of a publish are looked at one by one when they are read.
        twice = _repeated_name(data) if isinstance(frame, Publish) else find_duplicate_key(data)
        if twice is not None:
            duplicate = DuplicateError("/", twice, "stands twice in one map")
            raise RefusedFrameError(duplicate, frame.id, is_publish=isinstance(frame, Publish))
        return frame

    def encode(self, frame: Mapping[str, Any]) -> bytes:
        """Write one of our frames."""
        return self._encoder.encode(frame)

    def offset(self, value: int) -> int:
        """Return the offset itself."""
        return value


CODECS: Final[Mapping[str, type[JsonCodec] | type[MsgpackCodec]]] = {
    codec.subprotocol: codec for codec in (JsonCodec, MsgpackCodec)
}


def _refusal(cause: Exception, frame: object, coding: str) -> FrameError:
    """Say what is wrong with bytes that are none of the frames; `frame` is what they are, or None."""
    if frame is None and not isinstance(cause, msgspec.ValidationError):
        return UnreadableFrameError(f"this is not {coding}: {cause}")
    if not isinstance(frame, dict):
        return UnreadableFrameError("a frame is an object with a type")
    error = translate(cause)
    value = _value_at(frame, error.field)
    if isinstance(error, WrongTypeError) and value is not _ABSENT:
        error = InvalidValueError(error.field, value, f"can't be used: {error.reason}")
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


def _loose(decode: Callable[[bytes], Any], data: bytes) -> object:
    """Read the bytes as anything; None where even that can't be done."""
    try:
        return decode(data)
    except READ_ERRORS:
        return None


def _decode_msgpack(data: bytes) -> object:
    # Python would show an extension by its address in memory.
    return msgspec.msgpack.decode(data, ext_hook=lambda _, content: bytes(content))


def _has_only_single_names(data: bytes, frame: Publish) -> bool:
    """Say whether no name stands twice outside the items of a publish; False means perhaps (schemas/reading.py)."""
    colons = data.count(b":") - sum(bytes(item).count(b":") for item in frame.messages)
    names = len(("type", "topic", "messages")) + (frame.id is not UNSET)
    return colons == names


_OuterMap = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])


def _repeated_name(data: bytes) -> str | None:
    """Return a name that stands twice in the outer map of MessagePack that is known to be one, or None."""
    first = data[0]
    count = first & 0x0F if first & 0xF0 == 0x80 else int.from_bytes(data[1 : 3 if first == 0xDE else 5], "big")
    return None if len(_OuterMap.decode(data)) == count else find_duplicate_key(data)
