"""Messages written directly from records: equal to the generic way, and never damaged."""

from typing import Any

import msgspec
import pytest

from gantry.model.address import Address
from gantry.model.compression import Compression
from gantry.model.record import decode_record
from services.gateway.usecases.reading.messages import read_message
from services.gateway.views import messageparts
from services.gateway.views.messageparts import MessageWriter, PropertyCache, QueueFacts
from services.gateway.views.messages import message_view
from services.gateway.ws import messagewriter
from services.gateway.ws.messagewriter import WrittenMessages, messages_frame, write_messages
from tests.support.pulledrecords import pulled, record

ALL = 1 << 40


@pytest.fixture(params=[False, True], ids=["JSON", "MessagePack"])
def writer(request: pytest.FixtureRequest) -> MessageWriter:
    return MessageWriter(binary=request.param)


def facts_of(tags: frozenset[str] | None = None, topic: str = "T") -> QueueFacts:
    return QueueFacts(topic, "broker-a", 0, receipt_prefix="4.", tags=tags, is_retry=topic.startswith("%RETRY%"))


def take_all(writer: MessageWriter, data: bytes, tags: frozenset[str] | None = None, **limits: Any) -> WrittenMessages:
    options = {"at": 0, "offset": 0, "messages_max": ALL, "bytes_max": ALL} | limits
    return write_messages(writer, PropertyCache(), facts_of(tags), data, **options)


def decode(writer: MessageWriter, taken: WrittenMessages) -> list[dict[str, Any]]:
    frame = messages_frame(writer, "s1", "4.0-9", taken.messages)
    module = msgspec.msgpack if writer.binary else msgspec.json
    decoded: dict[str, Any] = module.decode(frame)
    assert decoded["type"] == "messages"
    assert decoded["subscription"] == "s1"
    assert decoded["receipt"] == "4.0-9"
    messages: list[dict[str, Any]] = decoded["messages"]
    return messages


RECORDS = {
    "usual": record(
        7, b'{"a": 1}', tag="AA", properties={"KEYS": "k1 k2", "origin": "EWR", "WAIT": "true", "CLUSTER": "c"}
    ),
    "bytes": record(7, bytes(range(256))),
    "no unique key": record(7, message_id=None),
    "short unique key": record(7, message_id="abc"),
    "unique key that is no ASCII": record(7, message_id="ü" * 32, properties={"note": "höhe"}),
    "unique key at the end": record(
        7, message_id=None, properties={"a": "b", "UNIQ_KEY": "F" * 32}, whole_record_crc=False
    ),
    "name that ends like it": record(7, message_id=None, properties={"MY_UNIQ_KEY": "x"}),
    "no properties": record(7, message_id=None, whole_record_crc=False),
    "long properties": record(7, properties={"long": "x" * 600}),
    "unique key with a quote": record(7, message_id='"\\' * 16),
    "IPv6": record(7, born_host=Address("2001:db8::1", 5), store_host=Address("2001:db8::2", 6)),
    "compressed": record(7, b"x" * 10_000, compression=Compression.ZLIB),
    "large": record(7, b"y" * 100_000),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_message_equals_its_view(writer: MessageWriter, name: str) -> None:
    data = RECORDS[name]
    taken = take_all(writer, data)
    (message,) = decode(writer, taken)
    expected = message_view(read_message(decode_record(data), "broker-a"), binary=writer.binary)
    assert message == expected | {"keys": list(expected["keys"]), "receipt": "4.7"}
    assert (taken.offsets, taken.sizes, taken.at, taken.next_offset) == ([7], [len(data)], len(data), 8)


def test_equal_properties_are_decoded_once(writer: MessageWriter) -> None:
    cache = PropertyCache()
    write_messages(writer, cache, facts_of(), pulled(range(9)), at=0, offset=0, messages_max=ALL, bytes_max=ALL)
    assert len(cache) == 1


@pytest.mark.parametrize(("topic", "shown"), [("%RETRY%G", "First"), ("T", "T")])
def test_a_message_that_comes_back_shows_its_first_topic(writer: MessageWriter, topic: str, shown: str) -> None:
    data = record(0, properties={"RETRY_TOPIC": "First"}, topic=topic)
    options = {"at": 0, "offset": 0, "messages_max": ALL, "bytes_max": ALL}
    taken = write_messages(writer, PropertyCache(), facts_of(topic=topic), data, **options)
    assert [message.topic for message in taken.messages] == [shown]


def test_full_caches_are_emptied(writer: MessageWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messageparts, "_CACHED_MAX", 2)
    for name in ("_born_hosts", "_store_hosts", "_times"):
        # Other tests have filled the caches of the process.
        monkeypatch.setattr(messageparts, name, {})
    cache = PropertyCache()
    hosts = [Address("10.0.0.1", port) for port in range(5)]
    data = b"".join(
        record(number, tag=f"t{number}", born_host=host, store_host=host) for number, host in enumerate(hosts)
    )
    taken = write_messages(writer, cache, facts_of(), data, at=0, offset=0, messages_max=ALL, bytes_max=ALL)
    assert len(taken.messages) == 5
    for kept in (cache, messageparts._born_hosts, messageparts._store_hosts, messageparts._times):
        assert 1 <= len(kept) <= 2


def test_a_compressed_body_counts_with_its_decompressed_size(writer: MessageWriter) -> None:
    data = b"".join(record(number, b"x" * 100_000, compression=Compression.ZLIB) for number in range(4))
    taken = take_all(writer, data, bytes_max=150_000)
    assert taken.offsets == [0, 1]


def test_limits_end_a_slice_and_the_next_one_continues(writer: MessageWriter) -> None:
    data = pulled(range(10, 16))
    first = take_all(writer, data, offset=10, messages_max=2)
    assert (first.offsets, first.next_offset) == ([10, 11], 12)
    second = take_all(writer, data, at=first.at, offset=first.next_offset, bytes_max=len(data) // 6 + 1)
    assert second.offsets == [12, 13]
    third = take_all(writer, data, at=second.at, offset=second.next_offset)
    assert (third.offsets, third.at) == ([14, 15], len(data))


def test_unwanted_tags_are_skipped(writer: MessageWriter) -> None:
    data = record(0, tag="AA") + record(1) + record(2, tag="UA")
    taken = take_all(writer, data, tags=frozenset({"UA", "DL"}))
    assert (taken.offsets, taken.next_offset, taken.damaged) == ([2], 3, [])
    assert take_all(writer, data, only={1: 0}).offsets == [1]


@pytest.mark.parametrize("whole_record_crc", [True, False])
def test_a_damaged_record_is_skipped_and_reported(writer: MessageWriter, whole_record_crc: bool) -> None:
    broken = bytearray(record(1, b"good", whole_record_crc=whole_record_crc))
    broken[broken.index(b"good")] ^= 1
    taken = take_all(writer, record(0) + bytes(broken) + record(2))
    assert taken.offsets == [0, 2]
    assert taken.damaged == [(1, "its checksum is wrong")]
    assert not taken.is_cut


def test_after_a_record_without_an_end_nothing_is_read(writer: MessageWriter) -> None:
    taken = take_all(writer, record(0) + record(1)[:-3])
    assert (taken.offsets, taken.next_offset, taken.is_cut) == ([0], 2, True)
    assert taken.damaged[0][0] == 1
    taken = take_all(writer, b"\x00" * 200 + record(1))
    assert (taken.offsets, taken.next_offset, taken.is_cut) == ([], 1, True)


def test_a_decreasing_queue_offset_is_damage(writer: MessageWriter) -> None:
    taken = take_all(writer, record(5) + record(3) + record(7), offset=5)
    assert (taken.offsets, taken.damaged, taken.next_offset) == ([5, 7], [(6, "its offset is 3")], 8)


def test_a_body_that_can_not_be_decompressed_is_damage(writer: MessageWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messagewriter, "INFLATED_BYTES_MAX", 100)
    taken = take_all(writer, record(0, b"z" * 101, compression=Compression.ZLIB) + record(1))
    assert taken.offsets == [1]
    assert taken.damaged[0][0] == 0


def test_one_flipped_bit_is_never_delivered(writer: MessageWriter) -> None:
    good = record(1, b"body", tag="AA")
    for bit in range(len(good) * 8):
        broken = bytearray(good)
        broken[bit // 8] ^= 1 << bit % 8
        taken = take_all(writer, record(0) + bytes(broken) + record(2), offset=0)
        for message in decode(writer, taken):
            if message["message_id"] in {"7F000001" + f"{offset:024X}" for offset in (0, 2)}:
                continue
            # Only a flip within the checksum's own name leaves a valid record; the body's checksum still covers the
            # body.
            assert message["queue_offset"] in (1, "1")
            assert len(good) - 20 <= bit // 8
