"""The body of a batch send (request 320): several messages of one topic in one request. Brokers decode it.

Format: items without a gap. Format of an item (big-endian; lengths in bytes):
    total size 4        22 + the length of body and properties
    magic 4             0; not read
    body CRC 4          0; not read
    flag 4              the message's flag, signed
    body length 4, body
    properties length 2, properties
The items share all other fields (topic, queue, born time, …), which are in the header of the request.

Source: RocketMQ 5.3 MessageDecoder.encodeMessage and decodeMessage.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from gantry.model.errors import CorruptRecordError, InvalidMessageError
from gantry.model.names import PROPERTIES_BYTES_MAX

ITEM_EXTRA_BYTES: Final = 22
"""The size of an item in addition to its body and its properties."""

_HEAD = struct.Struct(">iIIii")
_SHORT = struct.Struct(">h")
assert (_HEAD.size, _SHORT.size) == (20, 2)
assert _HEAD.size + _SHORT.size == ITEM_EXTRA_BYTES


class BatchItem(NamedTuple):
    """One message of a batch.

    `body` has the type of the batch body: a slice of a memoryview shares its memory, a slice of bytes is a copy.
    `properties` are encoded (gantry.model.message).
    """

    flag: int
    body: bytes | memoryview
    properties: bytes


def encode_batch(items: Iterable[tuple[int, bytes | memoryview, bytes]]) -> bytes:
    """Return the batch body of items (flag, body, properties).

    Raises:
        InvalidMessageError: The properties, the flag or the body of an item do not fit their field.
    """
    parts: list[bytes | memoryview] = []
    for flag, body, properties in items:
        body_len, properties_len = len(body), len(properties)
        if properties_len > PROPERTIES_BYTES_MAX:
            raise InvalidMessageError("properties", properties_len, f"bytes are more than {PROPERTIES_BYTES_MAX}")
        try:
            head = _HEAD.pack(ITEM_EXTRA_BYTES + body_len + properties_len, 0, 0, flag, body_len)
        except struct.error:
            field, value = ("body", body_len) if -(1 << 31) <= flag < 1 << 31 else ("flag", flag)
            raise InvalidMessageError(field, value, "does not fit a 32-bit number") from None
        parts += (head, body, _SHORT.pack(properties_len), properties)
    return b"".join(parts)


def decode_batch(body: bytes | memoryview) -> list[BatchItem]:
    """Return the items of a batch body.

    Raises:
        CorruptRecordError: The lengths of an item contradict each other, or an item extends past the end of the body.
            `at` is the start of the item, in bytes from the start of the body.
    """
    items: list[BatchItem] = []
    at, end = 0, len(body)
    unpack, unpack_length, new = _HEAD.unpack_from, _SHORT.unpack_from, tuple.__new__
    while at < end:
        if end - at < ITEM_EXTRA_BYTES:
            raise CorruptRecordError(f"batch item {len(items)}: {end - at} bytes are less than an item's", at)
        size, _, _, flag, body_len = unpack(body, at)
        body_start = at + 20
        body_end = body_start + body_len
        if size < ITEM_EXTRA_BYTES or size > end - at:
            raise CorruptRecordError(f"batch item {len(items)}: size {size}, {end - at} bytes are left", at)
        if body_len < 0 or body_end + 2 > at + size:
            raise CorruptRecordError(f"batch item {len(items)}: body length {body_len} in an item of {size} bytes", at)
        (properties_len,) = unpack_length(body, body_end)
        if body_end + 2 + properties_len != at + size:
            raise CorruptRecordError(
                f"batch item {len(items)}: properties length {properties_len} in an item of {size} bytes", at
            )
        # tuple.__new__ takes half the time of BatchItem(…).
        items.append(new(BatchItem, (flag, body[body_start:body_end], bytes(body[body_end + 2 : at + size]))))
        at += size
    return items
