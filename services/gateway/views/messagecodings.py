"""The two codings of messages that are written directly from records: MessagePack and JSON. Pure.

Concurrency: one thread; the caches belong to the process, are bounded, and are emptied when full.
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from gantry.model.address import unpack_host
from gantry.model.message import split_keys
from gantry.model.names import is_retry_topic
from gantry.model.propertyname import PropertyName
from gantry.model.record import RecordScan
from services.gateway.schemas.messages import BINARY
from services.gateway.schemas.times import format_time
from services.gateway.views.messageparts import PropertyFacts, QueueFacts
from services.gateway.views.messages import body_view, user_properties

_CACHED_MAX: Final = 4096
_UINT32 = struct.Struct(">I").pack

# The messages of a pull were born and stored within a few milliseconds.
_born: dict[int, bytes] = {}
_stored: dict[int, bytes] = {}


def _time(cache: dict[int, bytes], name: bytes, at_ms: int) -> bytes:
    if len(cache) >= _CACHED_MAX:
        cache.clear()
    written = cache[at_ms] = name + format_time(at_ms).encode()
    return written


_pack = msgspec.msgpack.encode


def _entries(fields: dict[str, Any]) -> bytes:
    """Return the entries of a small map without its header."""
    assert len(fields) < 16, "a longer map has a longer header"
    return _pack(fields)[1:]


# The parts of a map with 17 entries: the names, encoded once, and the type bytes of values whose type never changes.
_MAP16_HEADER: Final = b"\xde\x00\x11"
_STR8_OF_32: Final = b"\xd9\x20"
_K_MESSAGE_ID: Final = _pack("message_id")
_K_MESSAGE_ID_OF_32: Final = _K_MESSAGE_ID + _STR8_OF_32
_K_STORED_ID: Final = _pack("stored_id")
_K_OFFSET: Final = _pack("queue_offset") + b"\xcf"
_K_SIZE: Final = _pack("size") + b"\xce"
_PLACE: Final = struct.Struct(f">{len(_K_OFFSET)}sQ{len(_K_SIZE)}sI").pack
_K_RECONSUME: Final = _pack("reconsume_times") + b"\xce"
_NOT_RECONSUMED: Final = _K_RECONSUME + _UINT32(0)
_K_BORN_AT: Final = _pack("born_at") + b"\xb8"
_K_STORED_AT: Final = _pack("stored_at") + b"\xb8"
_K_RECEIPT: Final = _pack("receipt")
_K_BODY: Final = _pack("body") + b"\xc6"
_STR8_LENGTH_MAX: Final = 255
_STR8: Final = [b"\xd9%c" % length for length in range(_STR8_LENGTH_MAX + 1)]
_STR16: Final = struct.Struct(">BH").pack

# There are few distinct packed hosts: the broker's own, and one for each producing connection.
_born_hosts: dict[bytes, bytes] = {}
_store_hosts: dict[bytes, bytes] = {}


def _born_host(packed: bytes) -> bytes:
    if len(_born_hosts) >= _CACHED_MAX:
        _born_hosts.clear()
    written = _born_hosts[packed] = _entries({"born_host": str(unpack_host(packed))})
    return written


def _store_host(packed: bytes) -> bytes:
    """Return the name `stored_id`, the type byte of its value and the first digits of it."""
    if len(_store_hosts) >= _CACHED_MAX:
        _store_hosts.clear()
    written = _store_hosts[packed] = _K_STORED_ID + _STR8[len(packed) * 2 + 16] + packed.hex().upper().encode()
    return written


class MsgpackMessageWriter:
    """Messages in MessagePack: bodies are bytes, offsets are integers."""

    def queue_facts(
        self, topic: str, broker: str, queue_id: int, *, receipt_prefix: bytes = b"", tags: frozenset[str] | None = None
    ) -> QueueFacts:
        """Encode the first fields of every message of the queue."""
        fields = {"topic": topic, "broker": broker, "queue_id": queue_id, "encoding": BINARY}
        start = _MAP16_HEADER + _entries(fields)
        return QueueFacts(broker, queue_id, receipt_prefix, tags, start, {} if is_retry_topic(topic) else None)

    def property_facts(self, properties: dict[str, str]) -> PropertyFacts:
        """Encode tag, keys and the user's properties."""
        tag = properties.get(PropertyName.TAGS)
        keys = split_keys(properties.get(PropertyName.KEYS))
        fields = {"tag": tag, "keys": keys, "properties": user_properties(properties)}
        return PropertyFacts(tag, _entries(fields), properties.get(PropertyName.RETRY_TOPIC))

    def head(
        self, queue: QueueFacts, properties: PropertyFacts, record: RecordScan, message_id: bytes, receipt: bytes
    ) -> bytes:
        """Encode a message but its body."""
        size, queue_offset, physical, _, born, born_host, stored, store_host, reconsume_times, _, _, _, _, _ = record
        stored_id = (_store_hosts.get(store_host) or _store_host(store_host)) + b"%016X" % physical
        if len(message_id) == 32 and message_id.isascii():
            identity = _K_MESSAGE_ID_OF_32 + message_id
        elif message_id:
            identity = _K_MESSAGE_ID + _pack(message_id.decode("utf-8", "replace"))
        else:
            identity = _K_MESSAGE_ID + stored_id[len(_K_STORED_ID) :]
        return b"".join(
            (
                queue.start,
                properties.written,
                identity,
                stored_id,
                _PLACE(_K_OFFSET, queue_offset, _K_SIZE, size),
                _NOT_RECONSUMED if not reconsume_times else _K_RECONSUME + _UINT32(max(0, reconsume_times)),
                _born.get(born) or _time(_born, _K_BORN_AT, born),
                _stored.get(stored) or _time(_stored, _K_STORED_AT, stored),
                _born_hosts.get(born_host) or _born_host(born_host),
                _K_RECEIPT,
                _STR8[len(receipt)] if len(receipt) <= _STR8_LENGTH_MAX else _STR16(0xDA, len(receipt)),
                receipt,
                _K_BODY,
            )
        )

    def with_body(self, head: bytes, body: bytes) -> bytes:
        """Add the body."""
        return b"".join((head, _UINT32(len(body)), body))

    def with_messages(self, fields: Mapping[str, Any], parts: Sequence[bytes]) -> bytes:
        """Return a map of a few fields and of encoded messages."""
        start = _pack(fields)
        # One entry is added to the packed map: the header of so small a map is one byte that contains the count.
        header = bytes((start[0] + 1,))
        return b"".join((header, start[1:], _pack("messages"), b"\xdd", _UINT32(len(parts)), *parts))


_to_json = msgspec.json.Encoder().encode

_born_json: dict[int, bytes] = {}
_stored_json: dict[int, bytes] = {}
_hosts_json: dict[bytes, bytes] = {}
_store_hex: dict[bytes, bytes] = {}


def _time_in_json(cache: dict[int, bytes], name: bytes, at_ms: int) -> bytes:
    if len(cache) >= _CACHED_MAX:
        cache.clear()
    written = cache[at_ms] = b',"%b":"%b"' % (name, format_time(at_ms).encode())
    return written


def _host_in_json(packed: bytes) -> bytes:
    if len(_hosts_json) >= _CACHED_MAX:
        _hosts_json.clear()
    written = _hosts_json[packed] = b',"born_host":' + _to_json(str(unpack_host(packed)))
    return written


def _store_host_hex(packed: bytes) -> bytes:
    if len(_store_hex) >= _CACHED_MAX:
        _store_hex.clear()
    written = _store_hex[packed] = packed.hex().upper().encode()
    return written


class JsonMessageWriter:
    """Messages in JSON: a body is text if it is UTF-8, else base64; offsets are strings."""

    def queue_facts(
        self, topic: str, broker: str, queue_id: int, *, receipt_prefix: bytes = b"", tags: frozenset[str] | None = None
    ) -> QueueFacts:
        """Encode the first fields of every message of the queue, without the closing brace."""
        start = msgspec.json.encode({"topic": topic, "broker": broker, "queue_id": queue_id})[:-1]
        return QueueFacts(broker, queue_id, receipt_prefix, tags, start, {} if is_retry_topic(topic) else None)

    def property_facts(self, properties: dict[str, str]) -> PropertyFacts:
        """Encode tag, keys and the user's properties, without braces."""
        tag = properties.get(PropertyName.TAGS)
        keys = split_keys(properties.get(PropertyName.KEYS))
        fields = {"tag": tag, "keys": keys, "properties": user_properties(properties)}
        written = msgspec.json.encode(fields)[1:-1]
        return PropertyFacts(tag, written, properties.get(PropertyName.RETRY_TOPIC))

    def head(
        self, queue: QueueFacts, properties: PropertyFacts, record: RecordScan, message_id: bytes, receipt: bytes
    ) -> bytes:
        """Encode a message but its body."""
        size, queue_offset, physical, _, born, born_host, stored, store_host, times, _, _, _, _, _ = record
        stored_id = (_store_hex.get(store_host) or _store_host_hex(store_host)) + b"%016X" % physical
        if message_id.isalnum():  # ASCII letters and digits, unlike the method of a text.
            name = b'"%b"' % message_id
        else:
            name = _to_json(message_id.decode("utf-8", "replace")) if message_id else b'"%b"' % stored_id
        return (
            b'%b,%b,"message_id":%b,"stored_id":"%b","queue_offset":"%d","size":%d,"reconsume_times":%d%b%b%b,"receipt":"%b"'
            % (
                queue.start,
                properties.written,
                name,
                stored_id,
                queue_offset,
                size,
                max(0, times),
                _born_json.get(born) or _time_in_json(_born_json, b"born_at", born),
                _stored_json.get(stored) or _time_in_json(_stored_json, b"stored_at", stored),
                _hosts_json.get(born_host) or _host_in_json(born_host),
                receipt,
            )
        )

    def with_body(self, head: bytes, body: bytes) -> bytes:
        """Add the body and its encoding."""
        content, encoding = body_view(body)
        return b'%b,"encoding":"%b","body":%b}' % (head, encoding.encode(), _to_json(content))

    def with_messages(self, fields: Mapping[str, Any], parts: Sequence[bytes]) -> bytes:
        """Return a map of a few fields and of encoded messages."""
        start = _to_json(fields)[:-1] + b"," if fields else b"{"
        return b"".join((start, b'"messages":[', b",".join(parts), b"]}"))
