"""What fastjson 1.2 writes and strict JSON is not: map keys that are numbers or objects.

    {0:"10.0.0.5:10911",1:"10.0.0.6:10911"}                                    integer keys without quotes
    {{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"brokerOffset":9}}     MessageQueue as a key

Reading: a body is first read as strict JSON, at C speed, then with quotes around what looks like an integer key: within
a text that would end the text before a digit, which is no JSON. Only if that fails too, `to_strict_json` rewrites it
token by token, integer keys with quotes and a map with object keys as an array of pairs, and it is read again. So typed
bodies declare such maps as `list[tuple[Key, Value]] | dict[str, Value]`; the second is the empty map, and maps of
writers that put the object into a string.

Writing: `integer_keys` and `queue_keys` give the raw form, which Java peers need for object keys and expect for
integers.

Source: fastjson 1.2.83 as RocketMQ 4.9 and 5.3 use it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

import msgspec

from gantry.model.message import MessageQueue
from gantry.remoting.errors import BodyError

DEPTH_MAX = 64
# About a second of work. Large bodies have integer keys at most: offset tables that brokers send.
RELAXED_BYTES_MAX = 4 * 1024 * 1024

T = TypeVar("T")
V = TypeVar("V")

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+|"', re.DOTALL)
_INTEGER = re.compile(rb"-?\d{1,20}")
_INTEGER_KEY = re.compile(rb"([{,])(-?\d{1,20}):")
_AT = re.compile(r" - at `(?:key in )?\$?(.*)`$")

_encoder = msgspec.json.Encoder()
encode_json = _encoder.encode
_decoders: dict[Any, Any] = {}


class JsonBody(msgspec.Struct, rename="camel"):
    """The parent of bodies that are a JSON object; the fields stand in the order of their wire names, as Java's."""

    def encode(self) -> bytes:
        """Return the body."""
        return encode_json(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read a body; unknown members are ignored.

        Raises:
            BodyError: It is no JSON, or not of this shape.
        """
        return decode_json(cls, data)


class MessageQueueBean(JsonBody, kw_only=True):
    """A MessageQueue as JSON."""

    broker_name: str
    queue_id: int
    topic: str

    def to_model(self) -> MessageQueue:
        """Return the noun."""
        return MessageQueue(topic=self.topic, broker_name=self.broker_name, queue_id=self.queue_id)


def decode_json(kind: type[T], data: bytes) -> T:
    """Read a body of fastjson's as `kind`, a msgspec type.

    Raises:
        BodyError: It is no JSON in the wide sense, or not of this shape.
    """
    name = getattr(kind, "__name__", str(kind))
    decoder: msgspec.json.Decoder[T] | None = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind, strict=False)
    rewritings: tuple[Callable[[], bytes], ...] = (
        lambda: data,
        lambda: _INTEGER_KEY.sub(rb'\1"\2":', data),
    )
    for rewritten in rewritings:
        try:
            return decoder.decode(rewritten())
        except (ValueError, RecursionError) as error:
            if isinstance(error, msgspec.ValidationError):
                # The JSON is fine and its shape is not, so rewriting can't help.
                raise to_body_error(name, error) from None
    try:
        return decoder.decode(to_strict_json(data, kind=name))
    except msgspec.ValidationError as error:
        raise to_body_error(name, error) from None
    except (ValueError, RecursionError) as error:
        raise BodyError(name, "", str(error)) from None


def to_body_error(kind: str, error: msgspec.ValidationError) -> BodyError:
    """Return msgspec's complaint as ours, with the JSON path apart."""
    text = str(error)
    at = _AT.search(text)
    return BodyError(kind, at[1].lstrip(".") if at else "", text[: at.start()] if at else text)


def to_strict_json(data: bytes, *, kind: str = "JSON") -> bytes:
    """Rewrite fastjson's output as strict JSON; what is wrong in other ways stays wrong.

    Raises:
        BodyError: Too large, too deep, or a key is neither text, integer nor object.
    """
    if len(data) > RELAXED_BYTES_MAX:
        raise BodyError(kind, "", f"{len(data)} bytes that are no strict JSON; at most {RELAXED_BYTES_MAX} are read")
    rewriter = _Rewriter(kind)
    for match in _TOKEN.finditer(data):
        rewriter.take(match[0], match.start())
    return rewriter.end()


_ARRAY, _OBJECT, _PAIRS = range(3)
_KEY, _COLON, _VALUE, _AFTER = range(4)


class _Rewriter:
    """A stack of open containers, each [shape, what is expected next, where its opening token lies in `out`]."""

    __slots__ = ("_kind", "_out", "_stack")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._out: list[bytes] = []
        self._stack: list[list[int]] = []

    def take(self, token: bytes, at: int) -> None:
        """Take the next token."""
        out, stack = self._out, self._stack
        top = stack[-1] if stack else None
        expected = top[1] if top else _VALUE
        if token in (b"}", b"]"):
            if top is None:
                raise self._error(token, at)
            if top[0] == _PAIRS:
                out.append(b"]]" if expected == _AFTER else b"]")
            else:
                out.append(b"]" if top[0] == _ARRAY else b"}")
            stack.pop()
            self._complete()
        elif expected == _KEY and top is not None:
            self._take_key(token, at, top)
        elif token in (b"{", b"["):
            self._open(token)
        elif token == b":":
            if top is None or expected != _COLON:
                raise self._error(token, at)
            out.append(b"," if top[0] == _PAIRS else b":")
            top[1] = _VALUE
        elif token == b",":
            if top is None or expected != _AFTER:
                raise self._error(token, at)
            out.append(b"]," if top[0] == _PAIRS else b",")
            top[1] = _VALUE if top[0] == _ARRAY else _KEY
        else:
            out.append(token)
            self._complete()

    def end(self) -> bytes:
        """Return the rewritten text."""
        return b"".join(self._out)

    def _take_key(self, token: bytes, at: int, top: list[int]) -> None:
        if token == b"{":
            top[0] = _PAIRS
            self._out[top[2]] = b"["
            self._out.append(b"[")
            self._open(token)
            return
        if token.startswith(b'"') and len(token) > 1:
            self._out.append(token)
        elif _INTEGER.fullmatch(token):
            self._out.append(b'"' + token + b'"')
        else:
            raise self._error(token, at)
        top[1] = _COLON

    def _open(self, token: bytes) -> None:
        if len(self._stack) >= DEPTH_MAX:
            raise BodyError(self._kind, "", f"nested deeper than {DEPTH_MAX}")
        is_object = token == b"{"
        self._stack.append([_OBJECT if is_object else _ARRAY, _KEY if is_object else _VALUE, len(self._out)])
        self._out.append(token)

    def _complete(self) -> None:
        """A value is complete, or an object that is a key."""
        if self._stack:
            top = self._stack[-1]
            top[1] = _COLON if top[1] == _KEY else _AFTER

    def _error(self, token: bytes, at: int) -> BodyError:
        return BodyError(self._kind, "", f"{token[:20]!r} is out of place at byte {at}")


def integer_keys(table: Mapping[int, Any]) -> msgspec.Raw:
    """Return a map as fastjson writes it, integer keys without quotes."""
    return msgspec.Raw(b"{" + b",".join(b"%d:%b" % (key, encode_json(value)) for key, value in table.items()) + b"}")


def queue_keys(table: Iterable[tuple[MessageQueue, Any]]) -> msgspec.Raw:
    """Return a map as fastjson writes it, each key a MessageQueue object."""
    return msgspec.Raw(
        b"{" + b",".join(b"%b:%b" % (encode_json(queue_bean(key)), encode_json(value)) for key, value in table) + b"}"
    )


def queue_bean(queue: MessageQueue) -> MessageQueueBean:
    """Return the JSON shape of a MessageQueue."""
    return MessageQueueBean(broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic)


def queue_table(pairs: list[tuple[MessageQueueBean, V]] | dict[str, V]) -> dict[MessageQueue, V]:
    """Return a map that was read with queues as keys.

    Raises:
        BodyError: A key that came as text holds no MessageQueue.
    """
    if isinstance(pairs, list):
        return {key.to_model(): value for key, value in pairs}
    return {decode_json(MessageQueueBean, key.encode()).to_model(): value for key, value in pairs.items()}
