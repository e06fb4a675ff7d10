"""Messages made directly from records, in one of two codings.

This is the hot path of streams and of pulls by receipt. A record goes from the broker's bytes to a flat struct, and the
encoder writes all structs of an answer or of a frame at once. The facts that a message shares with thousands of others
(hosts, times, properties other than the id) are made once and kept. The result equals that of `message_view`
(messages.py). Pure.

Concurrency: one thread; the caches belong to the process, are bounded, and are emptied when full.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from gantry.model.address import unpack_host
from gantry.model.message import decode_properties, split_keys
from gantry.model.propertyname import PropertyName
from gantry.model.record import RecordScan
from services.gateway.schemas.messages import BINARY, ShownMessage
from services.gateway.schemas.times import format_time
from services.gateway.views.messages import body_view, user_properties

_CACHED_MAX: Final = 4096
# Longer properties are rarely repeated, and a cache full of them would take tens of megabytes.
_CACHED_PROPERTIES_BYTES_MAX: Final = 512
# The receipt of a message that is popped again is in its properties, so no other message has the same ones.
_OWN_RECEIPT: Final = PropertyName.POP_CK.encode() + b"\x01"

# The unique key is the one property that differs in every message: without it, the other properties have few distinct
# values. It nearly always has 32 characters.
_UNIQ_KEY: Final = PropertyName.UNIQ_KEY.encode() + b"\x01"
_UNIQ_KEY_BYTES: Final = len(_UNIQ_KEY)
_ID_LENGTH: Final = 32

# The messages of a pull were born and stored within a few milliseconds.
_times: dict[int, str] = {}
# There are few distinct packed hosts: the broker's own, and one for each producing connection.
_born_hosts: dict[bytes, str] = {}
_store_hosts: dict[bytes, str] = {}


def _time(at_ms: int) -> str:
    return _keep(_times, at_ms, format_time(at_ms))


def _born_host(packed: bytes) -> str:
    return _keep(_born_hosts, packed, str(unpack_host(packed)))


def _store_host(packed: bytes) -> str:
    """Return the first digits of stored ids."""
    return _keep(_store_hosts, packed, packed.hex().upper())


def _keep(cache: dict[Any, str], key: object, text: str) -> str:
    if len(cache) >= _CACHED_MAX:
        cache.clear()
    cache[key] = text
    return text


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The facts that all messages of a queue share in a stream.

    Attributes:
        topic: The topic of the queue.
        broker: The broker.
        queue_id: The queue.
        receipt_prefix: Start of the receipts.
        tags: The tags that are wanted; None for all.
        is_retry: Whether it is the queue of a retry topic, whose messages show the topic to which they were sent.
    """

    topic: str
    broker: str
    queue_id: int
    receipt_prefix: str
    tags: frozenset[str] | None
    is_retry: bool


class PropertyFacts:
    """The facts that properties yield; `origin` is the first topic of a retry."""

    __slots__ = ("keys", "origin", "shown", "tag")

    def __init__(self, properties: dict[str, str]) -> None:
        self.tag = properties.get(PropertyName.TAGS)
        self.keys = split_keys(properties.get(PropertyName.KEYS))
        self.shown = user_properties(properties)
        self.origin = properties.get(PropertyName.RETRY_TOPIC)


class PropertyCache(dict[bytes, PropertyFacts]):
    """The facts of properties, by their bytes without the unique key."""

    def facts(self, properties: bytes) -> PropertyFacts:
        """Return the facts of properties, from the cache if they are there."""
        found = self.get(properties)
        if found is None:
            found = PropertyFacts(decode_properties(properties))
            if len(properties) <= _CACHED_PROPERTIES_BYTES_MAX and _OWN_RECEIPT not in properties:
                if len(self) >= _CACHED_MAX:
                    self.clear()
                self[properties] = found
        return found


class MessageWriter:
    """One of the two codings of messages.

    Attributes:
        binary: Whether it is MessagePack; else it is JSON.
        encode: The encoder.
    """

    __slots__ = ("binary", "encode")

    def __init__(self, *, binary: bool) -> None:
        self.binary = binary
        self.encode: Callable[[Any], bytes] = (
            msgspec.msgpack.Encoder().encode if binary else msgspec.json.Encoder().encode
        )

    def show(  # noqa: PLR0917 - the hot path: keywords cost more.
        self,
        topic: str,
        broker: str,
        record: RecordScan,
        message_id: bytes,
        properties: PropertyFacts,
        receipt: str,
        body: bytes,
        body_bytes_max: int | None = None,
    ) -> ShownMessage:
        """Return a message.

        Args:
            topic: The topic to which it was sent.
            broker: The broker.
            record: The record.
            message_id: Its unique key; empty for one that was stored without.
            properties: Facts of its properties.
            receipt: Its receipt.
            body: Its decompressed body.
            body_bytes_max: Size above which a body stays bytes in JSON.
        """
        size, queue_id, offset, physical, _, born, born_host, stored, store_host, times, _, _, _, _, _ = record
        stored_id = f"{_store_hosts.get(store_host) or _store_host(store_host)}{physical:016X}"
        shown: tuple[bytes | str, str] = body, BINARY
        if not self.binary and (body_bytes_max is None or len(body) <= body_bytes_max):
            shown = body_view(body)
        return ShownMessage(
            message_id.decode("utf-8", "replace") or stored_id,
            stored_id,
            topic,
            broker,
            queue_id,
            offset if self.binary else str(offset),
            shown[0],
            shown[1],
            properties.tag,
            properties.keys,
            properties.shown,
            _times.get(born) or _time(born),
            _times.get(stored) or _time(stored),
            _born_hosts.get(born_host) or _born_host(born_host),
            max(0, times),
            size,
            receipt,
        )


def cut_unique_key(data: bytes, start: int, stop: int) -> tuple[bytes, bytes]:
    """Return the unique key, empty if there is none, and the properties without it.

    Args:
        data: Bytes with records.
        start: Start of the properties in them.
        stop: End of the properties.
    """
    key_at = data.find(_UNIQ_KEY, start, stop)
    value, value_end = key_at + _UNIQ_KEY_BYTES, key_at + _UNIQ_KEY_BYTES + _ID_LENGTH
    is_usual = key_at >= 0 and value_end < stop and data[value_end] == 0x02
    if is_usual and (key_at == start or data[key_at - 1] == 0x02):
        return data[value:value_end], data[start:key_at] + data[value_end + 1 : stop]
    return _cut_unusual_key(data[start:stop])


def _cut_unusual_key(properties: bytes) -> tuple[bytes, bytes]:
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
