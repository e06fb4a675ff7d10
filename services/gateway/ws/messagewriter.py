"""Writes the records of a pull as the messages of a `messages` frame.

This is the hot path of push: records go from the broker's bytes to the client's bytes without objects in between. The
parts that a message shares with thousands of others (the queue's names, hosts, properties other than the id) are
encoded once and then joined in as bytes; its own parts are packed into place.

A record is checked before it is sent: by the checksum over the whole record, or by that of the body if there is no
other. A damaged record is skipped and reported, never sent. Pure.

Concurrency: one thread; the caches belong to the process, are bounded, and are emptied when full.
"""

import struct
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import msgspec

from gantry.model import sysflag
from gantry.model.address import unpack_host
from gantry.model.compression import decompress
from gantry.model.errors import CorruptRecordError, RecordError
from gantry.model.message import decode_properties, split_keys
from gantry.model.propertyname import PropertyName
from gantry.model.record import RecordScan, scan_record
from services.gateway.schemas.messages import BASE64, BINARY, TEXT
from services.gateway.schemas.times import format_time
from services.gateway.views.messages import user_properties

# A body that a client compressed may be larger when inflated than any that comes over HTTP.
INFLATED_BYTES_MAX: Final = 16 * 1024 * 1024

_CACHED_MAX: Final = 4096
# Longer properties are rarely repeated, and a cache full of them would take tens of megabytes.
_CACHED_PROPERTIES_BYTES_MAX: Final = 512

_UNIQ_KEY: Final = PropertyName.UNIQ_KEY.encode() + b"\x01"
_UNIQ_KEY_BYTES: Final = len(_UNIQ_KEY)
_ID_LENGTH: Final = 32
_UINT32 = struct.Struct(">I").pack


@dataclass(slots=True)
class WrittenMessages:
    """The records of a pull that were processed, up to some limit.

    Attributes:
        parts: Encoded messages.
        offsets: Queue offsets of the messages.
        sizes: Sizes of the messages in bytes.
        at: Position of the first record that was not processed.
        next_offset: Queue offset after the last record that was processed.
        damaged: Queue offsets of records that were skipped, with the reasons.
        is_cut: Whether the start of the next record is unknown because a record is damaged; everything from
            `next_offset` on must be pulled again.
    """

    at: int
    next_offset: int
    parts: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    damaged: list[tuple[int, str]] = field(default_factory=list)
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The facts that all messages of a queue share; `start` is their encoded form."""

    broker: str
    queue_id: int
    receipt_prefix: bytes
    tags: frozenset[str] | None
    start: bytes


class PropertyFacts:
    """The facts that properties yield; `written` is their encoded form."""

    __slots__ = ("tag", "written")

    def __init__(self, tag: str | None, written: bytes) -> None:
        self.tag = tag
        self.written = written


class MessageWriter(Protocol):
    """One of the two codings of messages."""

    def queue_facts(
        self, topic: str, broker: str, queue_id: int, *, receipt_prefix: bytes, tags: frozenset[str] | None
    ) -> QueueFacts:
        """Return the shared facts of a queue."""
        ...

    def property_facts(self, properties: dict[str, str]) -> PropertyFacts:
        """Return the facts of properties."""
        ...

    def message(
        self, queue: QueueFacts, properties: PropertyFacts, record: RecordScan, message_id: bytes, body: bytes
    ) -> bytes:
        """Encode one message. `message_id` is empty for one that was stored without a unique key."""
        ...

    def frame(self, subscription: str, receipt: str, parts: Sequence[bytes]) -> bytes:
        """Encode the frame around the messages."""
        ...


class PropertyCache(dict[bytes, PropertyFacts]):
    """The facts of properties, by their bytes without the unique key; one cache for each coding."""

    def keep(self, key: bytes, value: PropertyFacts) -> PropertyFacts:
        """Store facts unless their key is long, and return them; a full cache is emptied first."""
        if len(key) <= _CACHED_PROPERTIES_BYTES_MAX:
            if len(self) >= _CACHED_MAX:
                self.clear()
            self[key] = value
        return value


def write_messages(
    writer: MessageWriter,
    cache: PropertyCache,
    queue: QueueFacts,
    data: bytes,
    *,
    at: int,
    offset: int,
    messages_max: int,
    bytes_max: int,
    only: Container[int] | None = None,
) -> WrittenMessages:
    """Encode messages until one of the limits is met or the data ends.

    Args:
        writer: The coding.
        cache: Cache of the same coding.
        queue: Facts from `writer.queue_facts`.
        data: Consecutive records: the body of a pull reply.
        at: Position at which to start.
        offset: Expected queue offset of the first record.
        messages_max: Maximum number of messages, at least 1.
        bytes_max: Number of bytes after which no further message is encoded; the first one always is.
        only: Queue offsets of the messages to encode; None for all.
    """
    taken = WrittenMessages(at, offset)
    parts, offsets, sizes, tags = taken.parts, taken.offsets, taken.sizes, queue.tags
    write, end = writer.message, len(data)
    while at < end and messages_max > 0 and bytes_max > 0:
        try:
            record = scan_record(data, at, end)
        except RecordError as error:
            taken.damaged.append((offset, error.reason))
            taken.is_cut, at, offset = True, end, offset + 1
            break
        size, queue_offset, _, sys_flag, _, _, _, _, _, body_start, body_end, start, stop, is_good = record
        at += size
        if not is_good or queue_offset < offset:
            # Not even the queue offset of such a record can be trusted, only that the record follows the one before it.
            taken.damaged.append((offset, "its checksum is wrong" if not is_good else f"its offset is {queue_offset}"))
            offset += 1
            continue
        offset = queue_offset + 1
        # The unique key is the one property that differs in every message: without it, the other properties have few
        # distinct values. It nearly always has 32 characters.
        key_at = data.find(_UNIQ_KEY, start, stop)
        value, value_end = key_at + _UNIQ_KEY_BYTES, key_at + _UNIQ_KEY_BYTES + _ID_LENGTH
        is_usual = key_at >= 0 and value_end < stop and data[value_end] == 0x02
        if is_usual and (key_at == start or data[key_at - 1] == 0x02):
            message_id, rest = data[value:value_end], data[start:key_at] + data[value_end + 1 : stop]
        else:
            message_id, rest = _cut_unique_key(data[start:stop])
        facts = cache.get(rest)
        if facts is None:
            facts = cache.keep(rest, writer.property_facts(decode_properties(rest)))
        if (tags is not None and facts.tag not in tags) or (only is not None and queue_offset not in only):
            continue
        body = data[body_start:body_end]
        if sys_flag & sysflag.COMPRESSED:
            inflated = _inflate(body, sys_flag, taken, queue_offset)
            if inflated is None:
                continue
            body = inflated
        parts.append(write(queue, facts, record, message_id, body))
        offsets.append(queue_offset)
        sizes.append(size)
        messages_max -= 1
        bytes_max -= size
    taken.at, taken.next_offset = at, offset
    return taken


def _inflate(body: bytes, sys_flag: int, taken: WrittenMessages, queue_offset: int) -> bytes | None:
    """Return the inflated body; None, with the damage recorded, if that fails."""
    try:
        return decompress(body, sys_flag, limit_bytes=INFLATED_BYTES_MAX)
    except CorruptRecordError as error:
        taken.damaged.append((queue_offset, error.reason))
        return None


def _cut_unique_key(properties: bytes) -> tuple[bytes, bytes]:
    """Return the unique key, empty if there is none, and the properties without it."""
    start = properties.find(_UNIQ_KEY)
    if start > 0 and properties[start - 1] != 0x02:
        start = properties.find(b"\x02" + _UNIQ_KEY) + 1 or -1
    if start < 0:
        return b"", properties
    value = start + _UNIQ_KEY_BYTES
    stop = properties.find(b"\x02", value)
    if stop < 0:
        stop = len(properties)
    return properties[value:stop], properties[:start] + properties[stop + 1 :]


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
_STR8: Final = [b"\xd9%c" % length for length in range(256)]

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
        self, topic: str, broker: str, queue_id: int, *, receipt_prefix: bytes, tags: frozenset[str] | None
    ) -> QueueFacts:
        """Encode the first fields of every message of the queue."""
        fields = {"topic": topic, "broker": broker, "queue_id": queue_id, "encoding": BINARY}
        return QueueFacts(broker, queue_id, receipt_prefix, tags, _MAP16_HEADER + _entries(fields))

    def property_facts(self, properties: dict[str, str]) -> PropertyFacts:
        """Encode tag, keys and the user's properties."""
        tag = properties.get(PropertyName.TAGS)
        keys = split_keys(properties.get(PropertyName.KEYS))
        fields = {"tag": tag, "keys": keys, "properties": user_properties(properties)}
        return PropertyFacts(tag, _entries(fields))

    def message(
        self, queue: QueueFacts, properties: PropertyFacts, record: RecordScan, message_id: bytes, body: bytes
    ) -> bytes:
        """Encode one message."""
        size, queue_offset, physical, _, born, born_host, stored, store_host, reconsume_times, _, _, _, _, _ = record
        stored_id = (_store_hosts.get(store_host) or _store_host(store_host)) + b"%016X" % physical
        receipt = b"%b%d" % (queue.receipt_prefix, queue_offset)
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
                _STR8[len(receipt)],
                receipt,
                _K_BODY,
                _UINT32(len(body)),
                body,
            )
        )

    def frame(self, subscription: str, receipt: str, parts: Sequence[bytes]) -> bytes:
        """Encode the frame around the messages."""
        start = _pack({"type": "messages", "subscription": subscription, "receipt": receipt})
        # One entry is added to the packed map: the header of so small a map is one byte that contains the count.
        header = bytes((start[0] + 1,))
        return b"".join((header, start[1:], _pack("messages"), b"\xdd", _UINT32(len(parts)), *parts))


class JsonMessageWriter:
    """Messages in JSON: a body is text if it is UTF-8, else base64; offsets are strings."""

    def queue_facts(
        self, topic: str, broker: str, queue_id: int, *, receipt_prefix: bytes, tags: frozenset[str] | None
    ) -> QueueFacts:
        """Encode the first fields of every message of the queue, without the closing brace."""
        start = msgspec.json.encode({"topic": topic, "broker": broker, "queue_id": queue_id})[:-1]
        return QueueFacts(broker, queue_id, receipt_prefix, tags, start)

    def property_facts(self, properties: dict[str, str]) -> PropertyFacts:
        """Encode tag, keys and the user's properties, without braces."""
        tag = properties.get(PropertyName.TAGS)
        keys = split_keys(properties.get(PropertyName.KEYS))
        fields = {"tag": tag, "keys": keys, "properties": user_properties(properties)}
        return PropertyFacts(tag, msgspec.json.encode(fields)[1:-1])

    def message(
        self, queue: QueueFacts, properties: PropertyFacts, record: RecordScan, message_id: bytes, body: bytes
    ) -> bytes:
        """Encode one message."""
        size, queue_offset, physical, _, born, born_host, stored, store_host, reconsume_times, _, _, _, _, _ = record
        stored_id = f"{store_host.hex().upper()}{physical:016X}"
        content: str | bytes
        try:
            content, encoding = body.decode(), TEXT
        except UnicodeDecodeError:
            content, encoding = body, BASE64  # msgspec encodes bytes as base64.
        own = {
            "message_id": message_id.decode("utf-8", "replace") or stored_id,
            "stored_id": stored_id,
            "queue_offset": str(queue_offset),
            "size": size,
            "reconsume_times": max(0, reconsume_times),
            "born_at": format_time(born),
            "stored_at": format_time(stored),
            "born_host": str(unpack_host(born_host)),
            "receipt": f"{queue.receipt_prefix.decode()}{queue_offset}",
            "encoding": encoding,
            "body": content,
        }
        return b",".join((queue.start, properties.written, msgspec.json.encode(own)[1:]))

    def frame(self, subscription: str, receipt: str, parts: Sequence[bytes]) -> bytes:
        """Encode the frame around the messages."""
        start = msgspec.json.encode({"type": "messages", "subscription": subscription, "receipt": receipt})
        return b"".join((start[:-1], b',"messages":[', b",".join(parts), b"]}"))
