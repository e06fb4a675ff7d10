"""The JSON dialect of fastjson 1.2: strict JSON, except that map keys may be numbers or objects.

    {0:"10.0.0.5:10911",1:"10.0.0.6:10911"}                                    integer keys without quotes
    {{"brokerName":"broker-a","queueId":0,"topic":"T"}:{"brokerOffset":9}}     MessageQueue as a key

Decoding has three steps. Each step runs only if the text of the step before is not valid JSON.
1. Decode the body as strict JSON, at the speed of C.
2. Put quotes around everything that looks like an integer key, and decode again. If such text is inside a string, the
   new quotes end that string before a digit. The result is not valid JSON, so this step never returns wrong data.
3. Rewrite the body token by token (`to_strict_json`), and decode again. Integer keys get quotes. A map with object
   keys becomes an array of pairs.
So typed bodies declare such maps as `list[tuple[Key, Value]] | dict[str, Value]`. The dict is for the empty map, and
for peers that write the key object as a string.

Encoding: `integer_keys` and `queue_keys` return the raw form. Java peers need it for object keys and expect it for
integer keys.

Source: fastjson 1.2.83 as RocketMQ 4.9 and 5.3 use it.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

import msgspec

from gantry.model.message import MessageQueue
from gantry.remoting.errors import BodyError

DEPTH_MAX = 64
# Step 3 takes about a second for this size. Larger bodies are offset tables of brokers. Their only special keys are
# integer keys, so step 2 decodes them.
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
    """The base class of bodies that are a JSON object. Fields are sorted by their name on the wire, as in Java."""

    def encode(self) -> bytes:
        """Return the encoded body."""
        return encode_json(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Decode a body. Unknown members are ignored.

        Raises:
            BodyError: The data is not JSON, or does not have this shape.
        """
        return decode_json(cls, data)


class MessageQueueBean(JsonBody, kw_only=True):
    """A MessageQueue as JSON."""

    broker_name: str
    queue_id: int
    topic: str

    def to_model(self) -> MessageQueue:
        """Return the model object."""
        return MessageQueue(topic=self.topic, broker_name=self.broker_name, queue_id=self.queue_id)


def decode_json(kind: type[T], data: bytes) -> T:
    """Decode a body in the dialect of fastjson as `kind`, a msgspec type.

    Raises:
        BodyError: The data is not JSON in this dialect, or does not have this shape.
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
                # The JSON is valid but has another shape, so the next steps can't help.
                raise to_body_error(name, error) from None
    try:
        return decoder.decode(to_strict_json(data, kind=name))
    except msgspec.ValidationError as error:
        raise to_body_error(name, error) from None
    except (ValueError, RecursionError) as error:
        raise BodyError(name, "", str(error)) from None


def to_body_error(kind: str, error: msgspec.ValidationError) -> BodyError:
    """Return a BodyError for an error of msgspec, with the JSON path as a separate attribute."""
    text = str(error)
    at = _AT.search(text)
    return BodyError(kind, at[1].lstrip(".") if at else "", text[: at.start()] if at else text)


def to_strict_json(data: bytes, *, kind: str = "JSON") -> bytes:
    """Rewrite the dialect of fastjson as strict JSON. Other errors in the data may remain.

    Raises:
        BodyError: The data is too large or nested too deep, or a key is not a string, an integer or an object.
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
    """A rewriter with a stack of open containers: [shape, kind of the next token, index of its bracket in `_out`]."""

    __slots__ = ("_kind", "_out", "_stack")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._out: list[bytes] = []
        self._stack: list[list[int]] = []

    def take(self, token: bytes, at: int) -> None:
        """Process the next token."""
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
        """Set the next token of the parent container after a value, or an object that is a key, is complete."""
        if self._stack:
            top = self._stack[-1]
            top[1] = _COLON if top[1] == _KEY else _AFTER

    def _error(self, token: bytes, at: int) -> BodyError:
        return BodyError(self._kind, "", f"{token[:20]!r} is out of place at byte {at}")


def integer_keys(table: Mapping[int, Any]) -> msgspec.Raw:
    """Return a map as fastjson writes it, with integer keys without quotes."""
    return msgspec.Raw(b"{" + b",".join(b"%d:%b" % (key, encode_json(value)) for key, value in table.items()) + b"}")


def queue_keys(table: Iterable[tuple[MessageQueue, Any]]) -> msgspec.Raw:
    """Return a map as fastjson writes it, with MessageQueue objects as keys."""
    return msgspec.Raw(
        b"{" + b",".join(b"%b:%b" % (encode_json(queue_bean(key)), encode_json(value)) for key, value in table) + b"}"
    )


def queue_bean(queue: MessageQueue) -> MessageQueueBean:
    """Return the JSON shape of a MessageQueue."""
    return MessageQueueBean(broker_name=queue.broker_name, queue_id=queue.queue_id, topic=queue.topic)


def queue_table(pairs: list[tuple[MessageQueueBean, V]] | dict[str, V]) -> dict[MessageQueue, V]:
    """Return a decoded map with MessageQueue objects as keys.

    Raises:
        BodyError: A key that was sent as a string does not contain a MessageQueue.
    """
    if isinstance(pairs, list):
        return {key.to_model(): value for key, value in pairs}
    return {decode_json(MessageQueueBean, key.encode()).to_model(): value for key, value in pairs.items()}
