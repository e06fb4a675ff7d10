import mmap
import struct
import zlib
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model import record
from gantry.model.address import Address, pack_host
from gantry.model.errors import CorruptRecordError, InvalidMessageError, RecordError, TornRecordError
from gantry.model.message import CrcState, StoredMessage, encode_properties
from gantry.model.record import (
    RecordHead,
    RecordScan,
    check_head,
    decode_record,
    encode_blank,
    encode_message,
    encode_record,
    iter_records,
    parse_head,
    record_properties_size,
    record_size,
    scan_record,
    topic_at,
)

V4 = pack_host(Address("10.0.0.5", 10911))
V6 = pack_host(Address("fe80::2", 3))
PROPERTIES = encode_properties({"UNIQ_KEY": "U", "TAGS": "TagA"})


def make(**changes: Any) -> bytes:
    """Encode a record that differs from a plain one in the given fields."""
    values: dict[str, Any] = {
        "queue_id": 3,
        "flag": -5,
        "queue_offset": 17,
        "physical_offset": 4096,
        "sys_flag": 0,
        "born_at_ms": 1_700_000_000_000,
        "born_host": V4,
        "stored_at_ms": 1_700_000_000_123,
        "store_host": V4,
        "reconsume_times": 2,
        "prepared_transaction_offset": 9,
        "body": b"Hello",
        "topic": b"TopicTest",
        "properties": PROPERTIES,
        "whole_record_crc": True,
    }
    return encode_record(**{**values, **changes})


records = st.builds(
    make,
    queue_id=st.integers(-(2**31), 2**31 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    queue_offset=st.integers(0, 2**63 - 1),
    physical_offset=st.integers(0, 2**63 - 1),
    body=st.binary(max_size=64),
    topic=st.text("aZ%-é", max_size=20).map(str.encode),
    properties=st.dictionaries(st.text("abc", min_size=1), st.text("xyz", min_size=1)).map(encode_properties),
    version=st.sampled_from([1, 2]),
    whole_record_crc=st.booleans(),
)


def test_records_round_trip() -> None:
    message = decode_record(make())
    assert message.topic == "TopicTest"
    assert (message.queue_id, message.queue_offset, message.physical_offset) == (3, 17, 4096)
    assert (message.flag, message.sys_flag, message.reconsume_times) == (-5, 0, 2)
    assert (message.born_at_ms, message.stored_at_ms) == (1_700_000_000_000, 1_700_000_000_123)
    assert str(message.born_host) == str(message.store_host) == "10.0.0.5:10911"
    assert message.prepared_transaction_offset == 9
    assert message.body == b"Hello"
    assert message.body_crc == zlib.crc32(b"Hello") & 0x7FFFFFFF
    assert message.properties == {"UNIQ_KEY": "U", "TAGS": "TagA"}
    assert (message.version, message.crc) == (1, CrcState.OK)
    assert message.size_bytes == len(make())


@given(records)
def test_encoding_a_decoded_record_gives_the_same_bytes(data: bytes) -> None:
    message = decode_record(data)
    assert message.crc.is_good
    assert encode_message(message, whole_record_crc=message.crc is CrcState.OK) == data


@pytest.mark.parametrize(("born", "sys_born"), [(V4, 0), (V6, 0x10)])
@pytest.mark.parametrize(("store", "sys_store"), [(V4, 0), (V6, 0x20)])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("whole", [True, False])
def test_hosts_and_sizes(born: bytes, sys_born: int, store: bytes, sys_store: int, version: int, whole: bool) -> None:
    data = make(
        born_host=born, store_host=store, sys_flag=sys_born | sys_store, version=version, whole_record_crc=whole
    )
    properties_len = record_properties_size(PROPERTIES, whole_record_crc=whole)
    assert len(data) == record_size(
        5, 9, properties_len, born_v6=bool(sys_born), store_v6=bool(sys_store), version=version
    )
    message = decode_record(data)
    assert (pack_host(message.born_host), pack_host(message.store_host)) == (born, store)
    assert (message.version, message.body, message.topic) == (version, b"Hello", "TopicTest")
    assert message.crc is (CrcState.OK if whole else CrcState.BODY_ONLY)


def test_the_checksum_property_follows_the_format() -> None:
    data = make(properties=b"a\x011")
    crc = zlib.crc32(data[:-20]) & 0x7FFFFFFF
    assert data[-24:-20] == b"a\x011\x02"
    assert data[-20:] == b"__CRC32#\x01" + f"{crc:010d}"[::-1].encode() + b"\x02"
    head = parse_head(data)
    assert head.has_record_crc
    assert head.properties == data[-24:]
    assert make(properties=b"")[-22:-20] == struct.pack(">h", 20)


def test_a_body_checksum_given_by_the_caller_is_used() -> None:
    assert decode_record(make(body_crc=1, whole_record_crc=False)).crc is CrcState.BODY_MISMATCH
    assert decode_record(make(body_crc=1)).crc is CrcState.OK
    assert decode_record(make(body_crc=1), check_crc=False).crc is CrcState.UNCHECKED


def test_every_flipped_bit_is_detected() -> None:
    data = make()
    for bit in range(len(data) * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            message = decode_record(bytes(broken))
        except RecordError:
            continue
        # If the flip hides the checksum itself, a scan treats its absence as damage.
        assert message.crc is not CrcState.OK, f"bit {bit}"


def test_a_flipped_bit_of_the_body_is_detected_without_the_record_checksum() -> None:
    data = make(whole_record_crc=False)
    for bit in range(88 * 8, 93 * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        assert decode_record(broken).crc is CrcState.BODY_MISMATCH


@given(records, st.integers(0), st.binary(min_size=1, max_size=4))
def test_changed_bytes_decode_or_raise_a_record_error(data: bytes, at: int, change: bytes) -> None:
    at %= len(data)
    broken = (data[:at] + change + data[at + len(change) :])[: len(data)]
    with suppress(RecordError):
        decode_record(broken)


@given(st.binary(max_size=200), st.integers(0, 210), st.none() | st.integers(0, 300))
def test_any_bytes_raise_a_record_error(data: bytes, at: int, limit: int | None) -> None:
    with pytest.raises(RecordError) as caught:
        decode_record(data, at, limit=limit)
    assert caught.value.at == at


@given(st.binary(min_size=90, max_size=200), st.sampled_from([b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab"]))
def test_any_bytes_behind_a_magic_decode_or_raise_a_record_error(data: bytes, magic: bytes) -> None:
    body_len = data[7] % 40
    shaped = struct.pack(">i", len(data)) + magic + data[8:84] + struct.pack(">i", body_len) + data[88:]
    with suppress(RecordError):
        decode_record(shaped)


def test_bytes_that_end_early_are_torn() -> None:
    data = make()
    for end in range(len(data)):
        with pytest.raises(TornRecordError):
            decode_record(data[:end])
        with pytest.raises(TornRecordError):
            decode_record(data + data, 0, limit=end)


def test_short_bytes_that_are_no_record_are_corrupt() -> None:
    with pytest.raises(CorruptRecordError, match="magic"):
        decode_record(b"\0" * 20)
    with pytest.raises(CorruptRecordError, match="total size 5"):
        decode_record(struct.pack(">iI", 5, record.RECORD_MAGIC_V1) + b"\0" * 20)
    with pytest.raises(CorruptRecordError, match="filler"):
        decode_record(encode_blank(1000))


def patched(at: int, text: str, **changes: Any) -> bytes:
    data = make(**changes)
    piece = bytes.fromhex(text)
    return data[:at] + piece + data[at + len(piece) :]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (patched(0, "00000010"), "total size 16"),
        (patched(4, "DAA320A8"), "magic DAA320A8"),
        (patched(84, "FFFFFFFF"), "body length -1"),
        (patched(84, "00100000"), "body length 1048576"),
        (patched(93, "FF"), "topic length 255"),
        (patched(103, "FFFF"), "total size"),
        (patched(36, "00000030", body=b"", topic=b"", properties=b"", whole_record_crc=False), "with such hosts"),
        (make(topic=b"\xff\xfe"), "no UTF-8"),
    ],
)
def test_contradictions_are_named(data: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason):
        decode_record(data)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"topic": b"x" * 128}, "topic"),
        ({"topic": b"x" * 32_768, "version": 2}, "topic"),
        ({"properties": b"x" * 32_748}, "properties"),
        ({"properties": b"x" * 32_768, "whole_record_crc": False}, "properties"),
        ({"queue_id": 2**31}, "record"),
        ({"born_at_ms": 2**63}, "record"),
    ],
)
def test_a_value_too_large_for_its_field_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        make(**change)


def test_host_lengths_must_match_the_flag() -> None:
    with pytest.raises(AssertionError):
        make(born_host=V6)


def test_limits_of_topic_and_properties() -> None:
    assert decode_record(make(topic=b"x" * 127)).topic == "x" * 127
    assert decode_record(make(topic=b"x" * 255, version=2)).topic == "x" * 255
    assert decode_record(make(properties=b"\x02" * 32_747)).crc is CrcState.OK


def test_records_follow_each_other() -> None:
    bodies = [b"a", b"", b"ccc"]
    data = b"".join(make(body=body, whole_record_crc=bool(body)) for body in bodies)
    assert [message.body for message in iter_records(memoryview(data))] == bodies
    assert list(iter_records(b"")) == []
    with pytest.raises(TornRecordError):
        list(iter_records(data[:-1]))


def test_reading_from_the_middle_of_a_map_keeps_no_view_of_it() -> None:
    data = make(body=b"mapped")
    mapped = mmap.mmap(-1, 4096)
    mapped[100 : 100 + len(data)] = data
    message = decode_record(mapped, 100)
    head = parse_head(mapped, 100)
    assert message.body == b"mapped"
    assert mapped[head.body_start : head.body_end] == b"mapped"
    mapped.close()  # Raises BufferError while a view exists.


def test_the_head_equals_that_of_the_record() -> None:
    head = parse_head(memoryview(make(sys_flag=0x10, born_host=V6)))
    assert isinstance(head, RecordHead)
    assert (head.queue_id, head.queue_offset, head.physical_offset) == (3, 17, 4096)
    assert (head.born_host, head.store_host) == (V6, V4)
    assert (head.topic, head.version) == (b"TopicTest", 1)


def test_topics_are_cached_within_bounds() -> None:
    for number in range(record._TOPICS_MAX + 5):
        make(topic=b"T%d" % number)
    assert len(record._topics_v1) <= record._TOPICS_MAX


def both_answers(data: bytes) -> tuple[object, object]:
    """Return the results of the quick scan and of the full decoder for the same bytes."""
    answers: list[object] = []
    for read in (lambda: sliced(data, scan_record(data, 0, len(data))), lambda: scanned(decode_record(data))):
        try:
            answers.append(read())
        except RecordError as error:
            answers.append(type(error))
    return answers[0], answers[1]


def sliced(data: bytes, scan: RecordScan) -> tuple[object, ...]:
    *first, body_start, body_end, properties_start, properties_end, is_good = scan
    return (*first, data[body_start:body_end], data[properties_start:properties_end], is_good)


def scanned(message: StoredMessage) -> tuple[object, ...]:
    head = parse_head(encode_message(message, whole_record_crc=False))
    return (
        message.size_bytes,
        message.queue_id,
        message.queue_offset,
        message.physical_offset,
        message.sys_flag,
        message.born_at_ms,
        head.born_host,
        message.stored_at_ms,
        head.store_host,
        message.reconsume_times,
        message.body,
        head.properties,
        message.crc.is_good,
    )


@given(records)
def test_the_quick_scan_agrees_with_the_decoder(data: bytes) -> None:
    quick, thorough = both_answers(data)
    assert quick == thorough


@given(records)
def test_queue_and_topic_of_a_scanned_record_are_those_of_the_head(data: bytes) -> None:
    try:
        scan = scan_record(data, 0, len(data))
    except RecordError:
        return
    head = parse_head(data)
    assert (scan[1], topic_at(data, scan)) == (head.queue_id, head.topic)


@pytest.mark.parametrize("length", [1, 127, 128, 255, 256, 300])
def test_the_topic_of_a_scanned_record_is_found_in_both_versions(length: int) -> None:
    for version in (1, 2) if length <= 127 else (2,):
        data = make(topic=b"t" * length, version=version)
        assert topic_at(data, scan_record(data, 0, len(data))) == b"t" * length


def test_the_quick_scan_never_accepts_a_flipped_record_that_decoding_rejects() -> None:
    for changes in ({}, {"version": 2}, {"whole_record_crc": False}):
        data = make(**changes)
        for bit in range(len(data) * 8):
            broken = bytearray(data)
            broken[bit // 8] ^= 1 << bit % 8
            raw = bytes(broken)
            try:
                is_good = scan_record(raw, 0, len(raw))[-1]
            except RecordError:
                is_good = False
            try:
                expected = check_head(raw, 0, parse_head(raw)).is_good
            except RecordError:
                expected = False
            assert is_good == expected, f"bit {bit}"
