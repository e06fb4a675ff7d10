"""The message record. The CommitLog, pull replies, check-backs and replication to slaves use the same bytes.

Format (big-endian; docs/formats/commitlog.md; positions for two IPv4 hosts):
    position  size     field
    0         4        total size, this field included
    4         4        magic: DAA320A7 (version 1), DAA320AB (version 2)
    8         4        CRC-32 of the body as stored, & 7FFFFFFF
    12        4        queue id
    16        4        flag of the application
    20        8        queue offset
    28        8        physical offset of this record
    36        4        sysFlag (sysflag.py)
    40        8        born time, ms, from the clock of the client
    48        8 | 20   born host: IP of 4 or 16 bytes, port of 4
    56        8        store time, ms
    64        8 | 20   store host
    72        4        reconsume times
    76        8        physical offset of the half message, else 0
    84        4        body length
    88        n        body
    …         1 | 2    topic length, 2 bytes in version 2
    …         n        topic, UTF-8
    …         2        properties length
    …         n        properties (message.py); the last 20 bytes may be the whole-record checksum

Whole-record checksum: `__CRC32#` 0x01, ten decimal digits of CRC-32 & 7FFFFFFF of all bytes before these 20, least
significant digit first, 0x02. It is the last property of the record, so readers that do not know it ignore it.

Source: RocketMQ 5.3 MessageExtEncoder and MessageDecoder. ADR-0004 defines torn and corrupt records.
"""

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from isal.isal_zlib import crc32 as _crc32

from gantry.model import sysflag
from gantry.model.address import HOST_V4_BYTES, HOST_V6_BYTES, unpack_host
from gantry.model.address import pack_host as pack_host  # noqa: PLC0414 - exported here, too.
from gantry.model.errors import CorruptRecordError, InvalidMessageError, TornRecordError
from gantry.model.message import CRC_PROPERTY_PREFIX, CrcState, StoredMessage, decode_properties
from gantry.model.names import PROPERTIES_BYTES_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

    class RecordData(Buffer, Protocol):
        """A buffer with records: bytes, a memoryview or a mapped file."""

        def __len__(self) -> int: ...

        def __getitem__(self, key: slice, /) -> Any: ...

else:
    RecordData = Any

RECORD_MAGIC_V1: Final = 0xDAA320A7
RECORD_MAGIC_V2: Final = 0xDAA320AB
BLANK_MAGIC: Final = 0xCBD43194
"""The magic of the filler at the end of a CommitLog file: int remaining bytes, int magic, the rest is undefined."""
BLANK_BYTES_MIN: Final = 8
CRC_PROPERTY_BYTES: Final = 20
CRC_MASK: Final = 0x7FFF_FFFF
TOPIC_BYTES_MAX_V1: Final = 127
TOPIC_BYTES_MAX_V2: Final = 32_767

crc32 = _crc32
"""The CRC-32 function for records. ADR-0012 gives the reason for not using that of zlib."""

_V6 = sysflag.HOSTS_V6_MASK
_PEEK = struct.Struct(">iI")
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_SYS_FLAG_AT = 36
_FORMAT = ">iIIiiqqiq{born}sq{store}siqi"


def _head(sys_flag: int) -> struct.Struct:
    born = HOST_V6_BYTES if sys_flag & sysflag.BORN_HOST_V6 else HOST_V4_BYTES
    store = HOST_V6_BYTES if sys_flag & sysflag.STORE_HOST_V6 else HOST_V4_BYTES
    return struct.Struct(_FORMAT.format(born=born, store=store))


# The part before the body, by the two bits of sysFlag that give the length of the hosts.
_HEADS = {bits: _head(bits) for bits in (0, sysflag.BORN_HOST_V6, sysflag.STORE_HOST_V6, _V6)}
_HEAD_V4 = _HEADS[0]
_HEAD_V4_BYTES = _HEAD_V4.size
assert _HEAD_V4_BYTES == 88  # As in the table above.
RECORD_BYTES_MIN: Final = _HEAD_V4_BYTES + 1 + 2

# Every record has a topic, but there are few topics. So the topic with its length prefix is cached.
_TOPICS_MAX = 4096
_topics_v1: dict[bytes, bytes] = {}
_topics_v2: dict[bytes, bytes] = {}

# This takes half the time of a call of the class, which passes every field by name again.
_new_tuple = tuple.__new__


class RecordHead(NamedTuple):
    """The fields of a record in raw form, without the body. Dispatch, recovery and push use it."""

    size_bytes: int
    version: int
    body_crc: int
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_at_ms: int
    born_host: bytes
    stored_at_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_transaction_offset: int
    body_start: int
    """The start of the body in the parsed data, not in the record."""
    body_end: int
    topic: bytes
    properties: bytes
    """The encoded properties, including the whole-record checksum."""

    @property
    def has_record_crc(self) -> bool:
        """Whether the record ends with the whole-record checksum."""
        return has_record_crc(self.properties)


def record_size(
    body_len: int,
    topic_len: int,
    properties_len: int,
    *,
    born_v6: bool = False,
    store_v6: bool = False,
    version: int = 1,
) -> int:
    """Return the size of a record. `properties_len` includes the whole-record checksum if there is one."""
    extra = HOST_V6_BYTES - HOST_V4_BYTES
    return _HEAD_V4_BYTES + (born_v6 + store_v6) * extra + body_len + version + topic_len + 2 + properties_len


def record_properties_size(properties: bytes, *, whole_record_crc: bool) -> int:
    """Return the size of properties in a record, which adds the checksum and, if it is missing, the last separator."""
    size = len(properties)
    if not whole_record_crc:
        return size
    return size + CRC_PROPERTY_BYTES + (size > 0 and properties[-1] != 0x02)


def encode_record(  # noqa: PLR0917 - the hot path: keywords cost 0.5 µs per record.
    queue_id: int,
    flag: int,
    queue_offset: int,
    physical_offset: int,
    sys_flag: int,
    born_at_ms: int,
    born_host: bytes,
    stored_at_ms: int,
    store_host: bytes,
    reconsume_times: int,
    prepared_transaction_offset: int,
    body: bytes | memoryview,
    topic: bytes,
    properties: bytes,
    body_crc: int | None = None,
    version: int = 1,
    whole_record_crc: bool = True,
) -> bytes:
    """Return the bytes of a record. This is the most frequent call in a broker: one pack, one join, two checksums.

    The arguments are the fields in the table of this module, with these rules. The hosts are packed (`pack_host`) and
    have the lengths that sysFlag gives. `body` is the body to store; it may be compressed. `properties` are encoded and
    have no whole-record checksum (see `message.remove_property`). `body_crc` is the checksum of the body if the caller
    knows it. `version` is 2 for topics of more than 127 bytes. `whole_record_crc` says whether to append the
    whole-record checksum to the properties.

    Raises:
        InvalidMessageError: A part does not fit its field.
    """
    bits = sys_flag & _V6
    head, head_len = (_HEADS[bits], _HEADS[bits].size) if bits else (_HEAD_V4, _HEAD_V4_BYTES)
    if version == 1:
        prefixed_topic, magic = _topics_v1.get(topic) or _prefix_topic(topic, _topics_v1, 1), RECORD_MAGIC_V1
    else:
        prefixed_topic, magic = _topics_v2.get(topic) or _prefix_topic(topic, _topics_v2, 2), RECORD_MAGIC_V2
    if whole_record_crc and properties and properties[-1] != 0x02:
        properties += b"\x02"
    properties_len = len(properties) + (CRC_PROPERTY_BYTES if whole_record_crc else 0)
    if properties_len > PROPERTIES_BYTES_MAX:
        raise InvalidMessageError("properties", properties_len, f"bytes are more than {PROPERTIES_BYTES_MAX}")
    assert len(born_host) + len(store_host) == head_len - 72, "hosts and sysFlag disagree"
    if body_crc is None:
        body_crc = crc32(body) & CRC_MASK
    body_len = len(body)
    try:
        start = head.pack(
            head_len + body_len + len(prefixed_topic) + 2 + properties_len,
            magic,
            body_crc,
            queue_id,
            flag,
            queue_offset,
            physical_offset,
            sys_flag,
            born_at_ms,
            born_host,
            stored_at_ms,
            store_host,
            reconsume_times,
            prepared_transaction_offset,
            body_len,
        )
    except struct.error as error:
        raise InvalidMessageError("record", None, f"has a number that does not fit its field: {error}") from None
    record = b"".join((start, body, prefixed_topic, _SHORT.pack(properties_len), properties))
    if not whole_record_crc:
        return record
    # Format the property backward and reverse it. This gives the digits in the order of the format.
    return record + (b"\x02%010d\x01#23CRC__" % (crc32(record) & CRC_MASK))[::-1]


def record_crc_property(crc: int) -> bytes:
    """Return the last 20 bytes of a record, given the CRC-32 of its other bytes."""
    return (b"\x02%010d\x01#23CRC__" % (crc & CRC_MASK))[::-1]


def has_record_crc(properties: bytes) -> bool:
    """Return whether the properties of a record end with the whole-record checksum."""
    tail = properties[-CRC_PROPERTY_BYTES:]
    return len(tail) == CRC_PROPERTY_BYTES and tail[-1] == 0x02 and tail.startswith(CRC_PROPERTY_PREFIX)


def properties_without_crc(properties: bytes) -> bytes:
    """Return the properties of a record without the whole-record checksum."""
    return properties[:-CRC_PROPERTY_BYTES] if has_record_crc(properties) else properties


def parse_head(data: RecordData, at: int = 0, *, limit: int | None = None) -> RecordHead:
    """Parse the record that starts at position `at` of `data`. The checksums are not checked.

    Args:
        data: Bytes, a memoryview or a map. The result does not reference it.
        at: The start of the record.
        limit: The end of the bytes to parse; by default the end of `data`.

    Raises:
        TornRecordError: The bytes end before the end of the record.
        CorruptRecordError: The magic or a length is wrong.
    """
    end = len(data) if limit is None else min(limit, len(data))
    available = end - at
    if available < _HEAD_V4_BYTES:
        raise _short(data, at, end)
    fields = _HEAD_V4.unpack_from(data, at)
    size, magic, sys_flag = fields[0], fields[1], fields[7]
    if magic == RECORD_MAGIC_V1:
        version = 1
    elif magic == RECORD_MAGIC_V2:
        version = 2
    else:
        raise _not_a_record(size, magic, at)
    if size < RECORD_BYTES_MIN:
        raise CorruptRecordError(f"total size {size} is less than {RECORD_BYTES_MIN}", at)
    if size > available:
        raise TornRecordError(f"the record has {size} bytes, {available} are there", at)
    body_start = at + _HEAD_V4_BYTES
    if sys_flag & _V6:
        head = _HEADS[sys_flag & _V6]
        if size < head.size + version + 2:
            raise CorruptRecordError(f"total size {size} is less than a record with such hosts has", at)
        fields = head.unpack_from(data, at)
        body_start = at + head.size
    body_len = fields[14]
    record_end = at + size
    body_end = body_start + body_len
    topic_start = body_end + version
    if body_len < 0 or topic_start + 2 > record_end:
        raise CorruptRecordError(f"body length {body_len} does not fit a record of {size} bytes", at)
    topic_len = data[body_end:topic_start]
    topic_end = topic_start + (topic_len[0] if version == 1 else topic_len[0] << 8 | topic_len[1])
    if topic_end + 2 > record_end:
        raise CorruptRecordError(f"topic length {topic_end - topic_start} does not fit a record of {size} bytes", at)
    (properties_len,) = _SHORT.unpack_from(data, topic_end)
    if topic_end + 2 + properties_len != record_end:
        raise CorruptRecordError(
            f"total size is {size}, the parts have {topic_end + 2 + properties_len - at} bytes", at
        )
    topic, properties = bytes(data[topic_start:topic_end]), bytes(data[topic_end + 2 : record_end])
    return _new_tuple(RecordHead, (size, version, *fields[2:14], body_start, body_end, topic, properties))


def check_head(data: RecordData, at: int, head: RecordHead) -> CrcState:
    """Check the checksum of a parsed record: the whole-record checksum if there is one, else that of the body."""
    if has_record_crc(head.properties):
        crc = crc32(data[at : at + head.size_bytes - CRC_PROPERTY_BYTES])
        is_right = head.properties[-CRC_PROPERTY_BYTES:] == record_crc_property(crc)
        return CrcState.OK if is_right else CrcState.RECORD_MISMATCH
    return CrcState.BODY_ONLY if is_body_right(data, head) else CrcState.BODY_MISMATCH


def is_body_right(data: RecordData, head: RecordHead) -> bool:
    """Return whether the checksum of a parsed record's body is correct."""
    return crc32(data[head.body_start : head.body_end]) & CRC_MASK == head.body_crc


def decode_record(data: RecordData, at: int = 0, *, limit: int | None = None, check_crc: bool = True) -> StoredMessage:
    """Decode the record that starts at position `at` of `data`.

    Args:
        data: Bytes, a memoryview or a map. The result does not reference it.
        at: The start of the record.
        limit: The end of the bytes to decode; by default the end of `data`.
        check_crc: Whether to check the checksum: the whole-record checksum if there is one, else that of the body.

    Returns:
        The message. Its `crc` is the result of the check. A wrong checksum raises no error.

    Raises:
        TornRecordError: The bytes end before the end of the record.
        CorruptRecordError: The magic, a length or the topic is wrong.
    """
    head = parse_head(data, at, limit=limit)
    return decode_head(data, at, head, check_head(data, at, head) if check_crc else CrcState.UNCHECKED)


def decode_head(data: RecordData, at: int, head: RecordHead, crc: CrcState) -> StoredMessage:
    """Decode the raw fields of a parsed record and its body.

    Raises:
        CorruptRecordError: The topic is not UTF-8.
    """
    try:
        topic = head.topic.decode()
    except UnicodeDecodeError:
        raise CorruptRecordError(f"topic {head.topic!r} is no UTF-8", at) from None
    parts = (
        topic,
        head.queue_id,
        head.queue_offset,
        head.physical_offset,
        head.size_bytes,
        head.body_crc,
        head.flag,
        head.sys_flag,
        head.born_at_ms,
        unpack_host(head.born_host),
        head.stored_at_ms,
        unpack_host(head.store_host),
        head.reconsume_times,
        head.prepared_transaction_offset,
        bytes(data[head.body_start : head.body_end]),
        decode_properties(properties_without_crc(head.properties)),
        head.version,
        crc,
    )
    return _new_tuple(StoredMessage, parts)


def find_properties(data: RecordData, at: int, end: int) -> bytes | None:
    """Return the encoded properties of the record between two positions, or None if its lengths are wrong.

    The body is not read, and no checksum is checked.

    Args:
        data: Bytes or a map.
        at: The start of the record.
        end: The end of the record.
    """
    if end - at < RECORD_BYTES_MIN:
        return None
    _, magic = _PEEK.unpack_from(data, at)
    (sys_flag,) = _INT.unpack_from(data, at + _SYS_FLAG_AT)
    body_at = at + _HEADS[sys_flag & _V6].size
    if body_at > end:
        return None
    (body_len,) = _INT.unpack_from(data, body_at - _INT.size)
    prefix = 4 if magic == RECORD_MAGIC_V2 else 3  # The lengths of the topic and of the properties.
    topic_at = body_at + body_len
    if body_len < 0 or topic_at + prefix > end:
        return None
    topic_len = data[topic_at : topic_at + prefix - 2]
    start = topic_at + prefix + int.from_bytes(topic_len)
    return bytes(data[start:end]) if start <= end else None


RecordScan = tuple[int, int, int, int, int, int, bytes, int, bytes, int, int, int, int, int, bool]
"""The result of `scan_record`: size in bytes, queue id, queue offset, physical offset, sysFlag, born time (ms), born host,
store time (ms), store host, reconsume times, start and end of the body, start and end of the properties (without the
whole-record checksum), and whether the checksum is correct."""


def scan_record(data: bytes, at: int, end: int) -> RecordScan:
    """Parse and check the record that starts at position `at` of `data`, in one fast step.

    The result has the same values as those of `parse_head` and `check_head`, in a third of their time. It is for
    callers that forward a hundred thousand pulled records a second. It returns a plain tuple, because a named tuple
    takes a tenth of the total time. It returns positions instead of copies of the body and the properties.

    Raises:
        TornRecordError: The bytes end before the end of the record.
        CorruptRecordError: The magic or a length is wrong.
    """
    if end - at >= RECORD_BYTES_MIN:
        (
            size, magic, body_crc, queue_id, _, offset, physical, sys_flag, born, born_host, stored, host, times, _, length,
        ) = _HEAD_V4.unpack_from(data, at)  # fmt: skip
        stop = at + size
        body_end = at + _HEAD_V4_BYTES + length
        if magic == RECORD_MAGIC_V1 and not sys_flag & _V6 and length >= 0 and body_end + 3 <= stop <= end:
            start = body_end + 3 + data[body_end]
            if start <= stop and data[start - 2] << 8 | data[start - 1] == stop - start:
                crc_at = stop - CRC_PROPERTY_BYTES
                if crc_at >= start and data[crc_at : stop - 11] == CRC_PROPERTY_PREFIX:
                    crc = crc32(data[at:crc_at]) & CRC_MASK
                    is_good = data[stop - 2 : stop - 12 : -1] == b"%010d" % crc and data[stop - 1] == 0x02
                    stop = crc_at
                else:
                    is_good = crc32(data[body_end - length : body_end]) & CRC_MASK == body_crc
                if is_good:
                    return (
                        size, queue_id, offset, physical, sys_flag, born, born_host, stored, host, times,
                        body_end - length, body_end, start, stop, True,
                    )  # fmt: skip
    head = parse_head(data, at, limit=end)
    properties_end = at + head.size_bytes
    properties_start = properties_end - len(head.properties)
    if head.has_record_crc:
        properties_end -= CRC_PROPERTY_BYTES
    is_good = check_head(data, at, head).is_good
    return (
        head.size_bytes, head.queue_id, *head[5:13], head.body_start, head.body_end, properties_start, properties_end, is_good,
    )  # fmt: skip


def with_reconsume_times(record: RecordScan, times: int) -> RecordScan:
    """Return the fields of a record with other reconsume times."""
    size, queue_id, offset, physical, flag, born, born_host, stored, host, _, start, end, first, last, is_good = record
    return (
        size,
        queue_id,
        offset,
        physical,
        flag,
        born,
        born_host,
        stored,
        host,
        times,
        start,
        end,
        first,
        last,
        is_good,
    )


def topic_at(data: bytes, record: RecordScan) -> bytes:
    """Return the topic of a record that `scan_record` has parsed."""
    body_end, properties_start = record[11:13]
    end = properties_start - _SHORT.size
    # One byte has the length of the topic in version 1, two in version 2.
    return data[body_end + 1 : end] if data[body_end] == end - body_end - 1 else data[body_end + 2 : end]


def iter_records(data: RecordData, *, check_crc: bool = True) -> Iterator[StoredMessage]:
    """Yield the decoded records of a sequence, such as the body of a pull reply.

    Raises:
        TornRecordError: The last record is incomplete.
        CorruptRecordError: A record is corrupt. Its end is unknown, so the rest can't be decoded.
    """
    at, end = 0, len(data)
    while at < end:
        message = decode_record(data, at, check_crc=check_crc)
        yield message
        at += message.size_bytes


def encode_blank(remaining: int) -> bytes:
    """Return the first 8 bytes of the filler at the end of a CommitLog file."""
    return _PEEK.pack(remaining, BLANK_MAGIC)


def peek(data: RecordData, at: int) -> tuple[int, int]:
    """Return the size and the magic at position `at` of `data`, which must have 8 bytes there."""
    size, magic = _PEEK.unpack_from(data, at)
    return size, magic


def encode_message(message: StoredMessage, *, whole_record_crc: bool) -> bytes:
    """Return the record of a decoded message. Only tests and tools call this, not the broker."""
    properties = b"".join(f"{name}\x01{value}\x02".encode() for name, value in message.properties.items())
    return encode_record(
        queue_id=message.queue_id,
        flag=message.flag,
        queue_offset=message.queue_offset,
        physical_offset=message.physical_offset,
        sys_flag=message.sys_flag,
        born_at_ms=message.born_at_ms,
        born_host=pack_host(message.born_host),
        stored_at_ms=message.stored_at_ms,
        store_host=pack_host(message.store_host),
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        body=message.body,
        topic=message.topic.encode(),
        properties=properties,
        version=message.version,
        whole_record_crc=whole_record_crc,
    )


def _prefix_topic(topic: bytes, cache: dict[bytes, bytes], version: int) -> bytes:
    limit = TOPIC_BYTES_MAX_V1 if version == 1 else TOPIC_BYTES_MAX_V2
    if len(topic) > limit:
        raise InvalidMessageError("topic", topic, f"has {len(topic)} bytes, a version {version} record holds {limit}")
    prefixed = len(topic).to_bytes(version) + topic
    if len(cache) >= _TOPICS_MAX:
        cache.clear()
    cache[topic] = prefixed
    return prefixed


def _short(data: RecordData, at: int, end: int) -> TornRecordError | CorruptRecordError:
    available = max(end - at, 0)
    if at >= 0 and available >= _PEEK.size:
        size, magic = _PEEK.unpack_from(data, at)
        if magic not in (RECORD_MAGIC_V1, RECORD_MAGIC_V2):
            return _not_a_record(size, magic, at)
        if size < RECORD_BYTES_MIN:
            return CorruptRecordError(f"total size {size} is less than {RECORD_BYTES_MIN}", at)
    return TornRecordError(f"{available} bytes are less than a record's head", at)


def _not_a_record(size: int, magic: int, at: int) -> CorruptRecordError:
    if magic == BLANK_MAGIC:
        return CorruptRecordError("the filler of a file's end, not a record", at)
    return CorruptRecordError(f"magic {magic:08X} (after size {size}) is not a record's", at)
