"""Pulled messages made directly from records: equal to the generic view, with the receipts of the group."""

from typing import Any

import msgspec
import pytest

from gantry.client.consumer.popanswer import PoppedRecords, read_popped
from gantry.model.address import Address
from gantry.model.compression import Compression
from gantry.model.popreceipt import PopReceipt
from gantry.model.record import decode_record
from gantry.remoting.headers.pop import PopMessageResponseHeader
from services.gateway.asgi.writing import AnswerWriter
from services.gateway.auth.receipts import Receipt, Receipts
from services.gateway.usecases.reading.messages import read_message
from services.gateway.usecases.receiving.pulling import Pulled, take_popped
from services.gateway.views.messages import LARGE_BODY_BYTES, message_view
from services.gateway.views.receiving import PulledMessages, damaged_view
from tests.support.pulledrecords import record

KEY = bytes(range(32))
OWN_RECEIPT = "9 1000 60000 3 1 broker-a 0 9"


def popped(data: bytes, **more: Any) -> PoppedRecords:
    fields: dict[str, Any] = {"start_offset_info": "0 0 4;0 1 5;1 0 9"} | more
    answer = PopMessageResponseHeader(pop_time=1_000, invisible_time=60_000, revive_qid=3, rest_num=0, **fields)
    return read_popped(data, answer, "broker-a")


def pulled(data: bytes, **more: Any) -> Pulled:
    result = Pulled("broker-a")
    list(take_popped(result, popped(data, **more), Receipts(KEY, "g"), "T"))
    return result


def test_decompression_pauses_after_each_mib() -> None:
    large = [record(offset, bytes(2 << 20), compression=Compression.ZLIB) for offset in (4, 5)]
    pop = popped(b"".join(large), start_offset_info="0 0 4", msg_offset_info="0 0 4,5")
    result = Pulled("broker-a")
    assert len(list(take_popped(result, pop, Receipts(KEY, "g"), "T"))) == 2
    assert [len(message.body) for message in result.messages] == [2 << 20] * 2


def large_pull() -> Pulled:
    """Return a pull of 12 MiB of decompressed bodies in three messages."""
    large = [record(offset, bytes([offset]) * (4 << 20), compression=Compression.ZLIB) for offset in (4, 5, 6)]
    pop = popped(b"".join(large), start_offset_info="0 0 4", msg_offset_info="0 0 4,5,6")
    result = Pulled("broker-a")
    list(take_popped(result, pop, Receipts(KEY, "g"), "T"))
    return result


def test_a_large_pull_keeps_only_8_mib_of_decompressed_bodies() -> None:
    result = large_pull()
    assert [message.body is not None for message in result.messages] == [True, True, False]
    assert result.is_large


@pytest.mark.parametrize("fields", [{}, {"damaged": [{"queue_offset": "9"}]}])
@pytest.mark.parametrize("binary", [False, True])
async def test_a_large_pull_is_written_message_by_message(binary: bool, fields: dict[str, Any]) -> None:
    result = large_pull()
    messages = PulledMessages().show_each(result, binary=binary)
    answer = AnswerWriter().streamed(fields, 3, messages, binary=binary)
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await answer({"type": "http"}, None, send)  # type: ignore[arg-type]
    module = msgspec.msgpack if binary else msgspec.json
    decoded = module.decode(b"".join(message.get("body", b"") for message in sent))
    assert decoded.keys() == {"messages", *fields}
    bodies = [message["body"] for message in decoded["messages"]]
    if not binary:
        bodies = [body.encode() for body in bodies]
    assert [(body[0], len(body)) for body in bodies] == [(4, 4 << 20), (5, 4 << 20), (6, 4 << 20)]


def shown(result: Pulled, *, binary: bool) -> list[dict[str, Any]]:
    module = msgspec.msgpack if binary else msgspec.json
    messages = PulledMessages().show(result, binary=binary)
    assert binary or all(isinstance(message.body, str) for message in messages)
    decoded: list[dict[str, Any]] = module.decode(module.encode(messages))
    return decoded


RECORDS = {
    "usual": record(7, b'{"a": 1}', tag="AA", properties={"KEYS": "k1 k2", "origin": "EWR", "CLUSTER": "c"}),
    "no UTF-8": record(7, bytes(range(256))),
    "no unique key": record(7, message_id=None),
    "another queue": record(7, queue_id=1),
    "compressed": record(7, b"x" * 10_000, compression=Compression.ZLIB),
    "IPv6": record(7, born_host=Address("2001:db8::1", 5), store_host=Address("2001:db8::2", 6)),
    "delivered before": record(7, reconsume_times=3),
    "no checksum of the whole": record(7, whole_record_crc=False),
}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("name", RECORDS)
def test_a_pulled_message_equals_its_view(name: str, binary: bool) -> None:
    data = RECORDS[name]
    (message,) = shown(pulled(data), binary=binary)
    receipt = Receipts(KEY, "g").open(message.pop("receipt"))
    stored = decode_record(data)
    expected = message_view(read_message(stored, "broker-a"), binary=binary)
    assert message == expected | {"keys": list(expected["keys"])}
    start = {0: 4, 1: 5}[stored.queue_id]
    pop = PopReceipt(start, 1_000, 60_000, 3, "0", "broker-a", stored.queue_id, 7)
    assert receipt == Receipt("T", stored.reconsume_times, pop)


def test_messages_of_two_queues_have_receipts_of_their_own() -> None:
    messages = shown(pulled(record(4) + record(5) + record(5, queue_id=1) + record(6)), binary=True)
    receipts = [Receipts(KEY, "g").open(message["receipt"]) for message in messages]
    assert [one and (one.pop.queue_id, one.pop.start_offset, one.pop.queue_offset) for one in receipts] == [
        (0, 4, 4), (0, 4, 5), (1, 5, 5), (0, 4, 6),
    ]  # fmt: skip


def test_a_message_from_a_retry_topic_has_the_receipt_of_its_properties() -> None:
    (message,) = shown(pulled(record(9, properties={"POP_CK": OWN_RECEIPT}, reconsume_times=1)), binary=True)
    receipt = Receipts(KEY, "g").open(message["receipt"])
    assert receipt == Receipt("T", 1, PopReceipt(9, 1_000, 60_000, 3, "1", "broker-a", 0, 9))
    assert (message["properties"], message["reconsume_times"]) == ({}, 1)


def test_messages_in_order_show_the_deliveries_of_their_queue() -> None:
    messages = shown(pulled(record(4) + record(5), order_count_info="0 0 2;0 qo0%5 6"), binary=True)
    assert [message["reconsume_times"] for message in messages] == [2, 6]
    receipts = [Receipts(KEY, "g").open(message["receipt"]) for message in messages]
    assert [receipt and receipt.reconsume_times for receipt in receipts] == [2, 6]


def test_only_json_leaves_a_large_body() -> None:
    body = b"x" * (LARGE_BODY_BYTES + 1)
    result = pulled(record(4, body))
    (message,) = PulledMessages().show(result, binary=False)
    assert (message.body, message.queue_offset) == (body, "4")
    assert shown(result, binary=True)[0]["body"] == body


@pytest.mark.parametrize("whole_record_crc", [True, False])
def test_damaged_records_are_reported_and_have_no_receipt(whole_record_crc: bool) -> None:
    broken = bytearray(record(5, b"good", whole_record_crc=whole_record_crc))
    broken[broken.index(b"good")] ^= 1
    result = pulled(record(4) + bytes(broken) + record(7))
    assert [message["queue_offset"] for message in shown(result, binary=False)] == ["4", "7"]
    reason = "record_mismatch" if whole_record_crc else "body_mismatch"
    (damaged,) = damaged_view(result, binary=False)["damaged"]
    assert damaged == {
        "broker": "broker-a",
        "queue_offset": "5",
        "stored_id": decode_record(record(5)).stored_id[:-4] + f"{5_000:04X}",
        "reason": f"checksum: {reason}",
    }
    assert damaged_view(pulled(record(4)), binary=True) == {}


def test_a_body_that_can_not_be_decompressed_is_damage() -> None:
    plain = bytearray(record(4, b"z" * 999, whole_record_crc=False))
    plain[39] |= 1  # sysFlag says that it is compressed.
    result = pulled(bytes(plain) + record(5))
    assert [one.queue_offset for one in result.damaged] == [4]
    assert len(result.messages) == 1


@pytest.mark.parametrize("topic", ["T", "t" * 127])
def test_a_message_shows_the_topic_of_its_record(topic: str) -> None:
    assert shown(pulled(record(4, topic=topic)), binary=False)[0]["topic"] == topic
