"""Messages: what a producer hands in, what a store holds, and the properties text between them.

Format of properties: `name 0x01 value 0x02`, repeated; releases before 5.0 leave the last 0x02 out.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gantry.model import sysflag
from gantry.model.address import Address as Address  # noqa: PLC0414 - offered here, too.
from gantry.model.compression import INFLATED_BYTES_MAX, decompress
from gantry.model.errors import InvalidMessageError
from gantry.model.messageid import encode_stored_id
from gantry.model.propertyname import RESERVED_PROPERTIES as RESERVED_PROPERTIES  # noqa: PLC0414 - offered here, too.
from gantry.model.propertyname import PropertyName as PropertyName  # noqa: PLC0414 - offered here, too.

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
KEY_SEPARATOR: Final = " "

_WHAT = ("property name", "property value")

CRC_PROPERTY_PREFIX: Final = PropertyName.CRC32.encode() + b"\x01"


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One queue of a topic on one broker set; sorts as clients sort queues before they share them out."""

    topic: str
    broker_name: str
    queue_id: int


@dataclass(frozen=True, slots=True)
class Message:
    """What a producer sends."""

    topic: str
    body: bytes
    properties: Mapping[str, str] = field(default_factory=dict)
    flag: int = 0

    @property
    def tag(self) -> str | None:
        """Return the tag, or None."""
        return self.properties.get(PropertyName.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the index keys."""
        return split_keys(self.properties.get(PropertyName.KEYS))

    @property
    def unique_key(self) -> str | None:
        """Return the client's message id, or None before it was given one."""
        return self.properties.get(PropertyName.UNIQ_KEY)


class CrcState(enum.Enum):
    """What a record's checksums say."""

    OK = "ok"
    """The checksum over the whole record is there and right."""
    BODY_ONLY = "body_only"
    """There is only the body's, and it is right; nothing is known of the other fields."""
    BODY_MISMATCH = "body_mismatch"
    """There is only the body's, and it is wrong."""
    RECORD_MISMATCH = "record_mismatch"
    """The checksum over the whole record is there and wrong."""
    UNCHECKED = "unchecked"
    """Nobody looked."""

    @property
    def is_good(self) -> bool:
        """Say whether what was checked is right."""
        return self in (CrcState.OK, CrcState.BODY_ONLY)


class StoredMessage(NamedTuple):
    """A record, decoded. A tuple, because a consumer builds a hundred thousand of them a second."""

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
    """As stored, that is perhaps compressed."""
    properties: dict[str, str]
    """Without the record's own checksum."""
    version: int
    crc: CrcState

    @property
    def message_id(self) -> str:
        """Return the client's id, or the stored id for a message that was stored without one."""
        return self.properties.get(PropertyName.UNIQ_KEY) or self.stored_id

    @property
    def stored_id(self) -> str:
        """Return the id that says where the record lies."""
        return encode_stored_id(self.store_host, self.physical_offset)

    @property
    def tag(self) -> str | None:
        """Return the tag, or None."""
        return self.properties.get(PropertyName.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the index keys."""
        return split_keys(self.properties.get(PropertyName.KEYS))

    @property
    def is_compressed(self) -> bool:
        """Say whether the body is stored compressed."""
        return bool(self.sys_flag & sysflag.COMPRESSED)

    def inflated_body(self, *, limit_bytes: int = INFLATED_BYTES_MAX) -> bytes:
        """Return the body as it was sent.

        Raises:
            CorruptRecordError: The body is compressed and can't be unpacked, or is larger than the limit.
        """
        if not self.sys_flag & sysflag.COMPRESSED:
            return self.body
        return decompress(self.body, self.sys_flag, limit_bytes=limit_bytes)


def split_keys(text: str | None) -> tuple[str, ...]:
    """Return the keys in a KEYS property; they are separated by single spaces."""
    if not text:
        return ()
    return tuple(key for key in text.split(KEY_SEPARATOR) if key)


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the properties as a record and a send request carry them; the last 0x02 is kept.

    Raises:
        InvalidMessageError: A name or value is empty (no reader would see it), holds 0x01 or 0x02, or can't be
            written as UTF-8.
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
        raise _why_refused(properties)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _why_refused(properties) from None


def decode_properties(data: bytes | bytearray | memoryview) -> dict[str, str]:
    """Return the properties that the bytes hold; of a name that stands twice, the last value counts.

    Never fails: a pair without name or value is left out, as every RocketMQ reader does, and bytes that are no
    UTF-8 become U+FFFD.
    """
    properties = {}
    for pair in str(data, "utf-8", "replace").split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def find_property(data: bytes, name: bytes) -> str | None:
    """Return one property's value without decoding the others; the same answer as `decode_properties`."""
    start = data.rfind(b"\x02" + name + b"\x01")
    if start >= 0:
        start += len(name) + 2
    elif data.startswith(name + b"\x01"):
        start = len(name) + 1
    else:
        return None
    end = data.find(b"\x02", start)
    value = data[start:end] if end >= 0 else data[start:]
    if not value:
        # An empty value does not count, and an earlier one of the same name may.
        return decode_properties(data).get(name.decode())
    return value.decode("utf-8", "replace")


def remove_property(data: bytes, name: bytes) -> bytes:
    """Return the properties text without one name; unchanged where it has none."""
    if name + b"\x01" not in data:
        return data
    prefix = name + b"\x01"
    return b"\x02".join(pair for pair in data.split(b"\x02") if not pair.startswith(prefix))


def join_properties(first: bytes, second: bytes) -> bytes:
    """Return two properties texts as one, with the separator between them that the first may lack."""
    if first and second and first[-1] != 0x02:
        return first + b"\x02" + second
    return first + second


def _why_refused(properties: Mapping[str, str]) -> InvalidMessageError:
    """Return what is wrong with properties that something is wrong with."""
    texts = ((what, text) for item in properties.items() for what, text in zip(_WHAT, item, strict=True))
    return next(InvalidMessageError(what, text, reason) for what, text in texts if (reason := _why_not(text)))


def _why_not(text: str) -> str | None:
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
