"""Messages: the message of a producer, the message in a store, and the encoding of properties.

Format of properties: `name 0x01 value 0x02`, repeated. Releases before 5.0 omit the last 0x02.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gantry.model import sysflag
from gantry.model.address import Address as Address  # noqa: PLC0414 - exported here, too.
from gantry.model.compression import INFLATED_BYTES_MAX, decompress
from gantry.model.errors import InvalidMessageError
from gantry.model.messageid import encode_stored_id
from gantry.model.propertyname import RESERVED_PROPERTIES as RESERVED_PROPERTIES  # noqa: PLC0414 - exported here, too.
from gantry.model.propertyname import PropertyName as PropertyName  # noqa: PLC0414 - exported here, too.

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
KEY_SEPARATOR: Final = " "

_PARTS = ("property name", "property value")

CRC_PROPERTY_PREFIX: Final = PropertyName.CRC32.encode() + b"\x01"


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker set. The sort order is the order that clients use to allocate queues."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Message:
    """A message that a producer sends."""

    topic: str
    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0

    @property
    def tag(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(PropertyName.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The index keys."""
        return split_keys(self.properties.get(PropertyName.KEYS))

    @property
    def unique_key(self) -> str | None:
        """The message id from the client, or None if the client has not set it yet."""
        return self.properties.get(PropertyName.UNIQ_KEY)


class CrcState(enum.Enum):
    """The result of a check of a record's checksums."""

    OK = "ok"
    """The record has a checksum over the whole record, and it is correct."""
    BODY_ONLY = "body_only"
    """The record has only the checksum of the body, and it is correct. The other fields can't be checked."""
    BODY_MISMATCH = "body_mismatch"
    """The record has only the checksum of the body, and it is wrong."""
    RECORD_MISMATCH = "record_mismatch"
    """The record has a checksum over the whole record, and it is wrong."""
    UNCHECKED = "unchecked"
    """The checksum was not checked."""

    @property
    def is_good(self) -> bool:
        """Whether a checksum was checked and is correct."""
        return self in (CrcState.OK, CrcState.BODY_ONLY)


class StoredMessage(NamedTuple):
    """A decoded record. It is a tuple for speed: a consumer creates a hundred thousand of them a second."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    body_crc: int
    flag: int
    sys_flag: int
    born_at_ms: int
    born_host: Address
    stored_at_ms: int
    store_host: Address
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    """The body as stored. It may be compressed."""
    properties: dict[str, str]
    """The properties without the checksum over the whole record."""
    version: int
    crc: CrcState

    @property
    def message_id(self) -> str:
        """The message id from the client (UNIQ_KEY), or the stored id if the client set none."""
        return self.properties.get(PropertyName.UNIQ_KEY) or self.stored_id

    @property
    def stored_id(self) -> str:
        """The id that contains the place of the record: the address of the store and the physical offset."""
        return encode_stored_id(self.store_host, self.physical_offset)

    @property
    def tag(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(PropertyName.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The index keys."""
        return split_keys(self.properties.get(PropertyName.KEYS))

    @property
    def is_compressed(self) -> bool:
        """Whether the stored body is compressed."""
        return bool(self.sys_flag & sysflag.COMPRESSED)

    def inflated_body(self, *, limit_bytes: int = INFLATED_BYTES_MAX) -> bytes:
        """Return the decompressed body.

        Raises:
            CorruptRecordError: The body can't be decompressed, or the result is larger than `limit_bytes`.
        """
        if not self.sys_flag & sysflag.COMPRESSED:
            return self.body
        return decompress(self.body, self.sys_flag, limit_bytes=limit_bytes)


def split_keys(text: str | None) -> tuple[str, ...]:
    """Return the keys in a KEYS property. Spaces separate the keys."""
    if not text:
        return ()
    return tuple(key for key in text.split(KEY_SEPARATOR) if key)


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the properties in the format of records and send requests, with the last 0x02.

    Raises:
        InvalidMessageError: A name or a value is empty (readers would ignore the property), contains 0x01 or 0x02, or
            can't be encoded as UTF-8.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    count = len(properties)
    if (
        text.count("\x01") != count
        or text.count("\x02") != count
        or "\x01\x02" in text
        or "\x02\x01" in text
        or text.startswith("\x01")
    ):
        raise _property_error(properties)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _property_error(properties) from None


def decode_properties(data: bytes | bytearray | memoryview) -> dict[str, str]:
    """Return the properties in the bytes. If a name occurs more than once, its last value is used.

    This never fails. A pair without a name or a value is ignored, as in every RocketMQ client. Bytes that are not
    UTF-8 become U+FFFD.
    """
    properties = {}
    for pair in str(data, "utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def find_property(data: bytes, name: bytes) -> str | None:
    """Return the value of one property without decoding the others. The result is that of `decode_properties`."""
    value = find_value(data, name)
    if value == "":
        # An empty value is ignored, but the property may occur earlier with another value.
        return decode_properties(data).get(name.decode())
    return value


def find_value(data: bytes, name: bytes) -> str | None:
    """Return the last value of one property, which may be empty; None if the property does not occur."""
    start = data.rfind(b"\x02" + name + b"\x01")
    if start >= 0:
        start += len(name) + 2
    elif data.startswith(name + b"\x01"):
        start = len(name) + 1
    else:
        return None
    end = data.find(b"\x02", start)
    return (data[start:end] if end >= 0 else data[start:]).decode("utf-8", "replace")


def remove_property(data: bytes, name: bytes) -> bytes:
    """Return the encoded properties without one property, or the same bytes if it is absent."""
    if name + b"\x01" not in data:
        return data
    prefix = name + b"\x01"
    return b"\x02".join(pair for pair in data.split(b"\x02") if not pair.startswith(prefix))


def join_properties(first: bytes, second: bytes) -> bytes:
    """Return two encoded properties texts as one. Add the separator between them if the first text lacks it."""
    if first and second and first[-1] != 0x02:
        return first + b"\x02" + second
    return first + second


def _property_error(properties: Mapping[str, str]) -> InvalidMessageError:
    """Return the error for the first invalid name or value. At least one must be invalid."""
    texts = ((part, text) for item in properties.items() for part, text in zip(_PARTS, item, strict=True))
    return next(InvalidMessageError(part, text, reason) for part, text in texts if (reason := _find_fault(text)))


def _find_fault(text: str) -> str | None:
    if not text:
        return "is empty"
    if "\x01" in text or "\x02" in text:
        return "holds the character 0x01 or 0x02, which separate properties"
    return None if _is_utf8(text) else "can't be written as UTF-8"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
