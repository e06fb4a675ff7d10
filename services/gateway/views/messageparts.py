"""The parts of which messages are written directly from records, in one of two codings (messagecodings.py).

This is the hot path of streams and of pulls by receipt: records go from the broker's bytes to the client's bytes without
objects in between. The parts that a message shares with thousands of others (the queue's names, hosts, properties other
than the id) are encoded once and then joined in as bytes; its own parts are packed into place. The result equals that of
`message_view` (messages.py). Pure.

Concurrency: one thread; the caches belong to the process, are bounded, and are emptied when full.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gantry.model.message import decode_properties
from gantry.model.propertyname import PropertyName
from gantry.model.record import RecordScan

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


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The facts that all messages of a queue share; `start` is their encoded form.

    Attributes:
        receipt_prefix: Start of the receipts of a stream.
        tags: The tags that are wanted; None for all.
        origins: Facts by the first topic of messages, if the queue has messages that come back; else None.
    """

    broker: str
    queue_id: int
    receipt_prefix: bytes
    tags: frozenset[str] | None
    start: bytes
    origins: dict[str, "QueueFacts"] | None = None


class PropertyFacts:
    """The facts that properties yield; `written` is their encoded form, `origin` the first topic of a retry."""

    __slots__ = ("origin", "tag", "written")

    def __init__(self, tag: str | None, written: bytes, origin: str | None = None) -> None:
        self.tag = tag
        self.written = written
        self.origin = origin


class MessageWriter(Protocol):
    """One of the two codings of messages."""

    def queue_facts(
        self, topic: str, broker: str, queue_id: int, *, receipt_prefix: bytes = b"", tags: frozenset[str] | None = None
    ) -> QueueFacts:
        """Return the shared facts of a queue."""
        ...

    def property_facts(self, properties: dict[str, str]) -> PropertyFacts:
        """Return the facts of properties."""
        ...

    def head(
        self, queue: QueueFacts, properties: PropertyFacts, record: RecordScan, message_id: bytes, receipt: bytes
    ) -> bytes:
        """Encode a message but its body.

        Args:
            queue: Facts of its queue.
            properties: Facts of its properties.
            record: The record.
            message_id: Its unique key; empty for one that was stored without.
            receipt: Its receipt, in ASCII without quotes and backslashes.
        """
        ...

    def with_body(self, head: bytes, body: bytes) -> bytes:
        """Return a message: the result of `head` with the decompressed body."""
        ...

    def with_messages(self, fields: Mapping[str, Any], parts: Sequence[bytes]) -> bytes:
        """Return a map of a few fields and of encoded messages, as `messages`."""
        ...


class PropertyCache(dict[bytes, PropertyFacts]):
    """The facts of properties, by their bytes without the unique key; one cache for each coding."""

    def facts(self, writer: MessageWriter, properties: bytes) -> PropertyFacts:
        """Return the facts of properties, from the cache if they are there."""
        found = self.get(properties)
        if found is None:
            found = writer.property_facts(decode_properties(properties))
            if len(properties) <= _CACHED_PROPERTIES_BYTES_MAX and _OWN_RECEIPT not in properties:
                if len(self) >= _CACHED_MAX:
                    self.clear()
                self[properties] = found
        return found


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
