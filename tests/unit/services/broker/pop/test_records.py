"""The records of the revive topic, byte for byte as Apache RocketMQ 5.3.3 wrote them."""

import pytest

from gantry.model.address import Address, pack_host
from gantry.model.message import StoredMessage
from gantry.model.record import decode_record, encode_record
from services.broker.newmessage import NewMessage
from services.broker.pop.records import (
    AckBody,
    CheckPointBody,
    CheckPointKey,
    OrderBody,
    ack_record,
    check_point_record,
    order_record,
    read_record,
)

HOST = pack_host(Address("127.0.0.1", 20911))
NOW_MS = 1795255654600
KEY = CheckPointKey("GoldenPop", "GID_Golden_PopRaw", 0, 4, 1795255654580)
CHECK_POINT = (
    b'{"bm":0,"bn":"golden-a","c":"GID_Golden_PopRaw","d":[0,1,2,3],"it":15000,"n":4,"pt":1795255654580,"q":0,'
    b'"reviveTime":1795255669580,"ro":0,"so":4,"t":"GoldenPop"}'
)
ACK = b'{"ao":4,"bn":"golden-a","c":"GID_Golden_PopRaw","pt":1795255654580,"q":0,"so":4,"t":"GoldenPop"}'
BATCH_ACK = (
    b'{"ao":-1,"aol":[6,7],"bn":"golden-a","c":"GID_Golden_PopRaw","pt":1795255654580,"q":0,"so":4,"t":"GoldenPop"}'
)


def stored(tag: str, body: bytes) -> StoredMessage:
    properties = f"TAGS\x01{tag}\x02".encode()
    return decode_record(encode_record(0, 0, 0, 0, 0, 1, HOST, 1, HOST, 0, 0, body, b"revive", properties))


def described(message: NewMessage) -> tuple[bytes, str, str]:
    assert message.properties["TIMER_DELIVER_MS"] == str(NOW_MS)
    return message.body, message.properties["TAGS"], message.properties["UNIQ_KEY"]


def test_a_check_point_is_that_of_apache() -> None:
    record = check_point_record(KEY, [4, 5, 6, 7], 15000, "golden-a", now_ms=NOW_MS, host=HOST)
    name = "GoldenPop@0@4@GID_Golden_PopRaw@1795255654580@golden-a@ck"
    assert described(record) == (CHECK_POINT, "ck", name)
    read = read_record(stored("ck", CHECK_POINT))
    assert isinstance(read, CheckPointBody)
    assert (read.offsets(), read.it, read.pt, read.so) == ([4, 5, 6, 7], 15000, 1795255654580, 4)


@pytest.mark.parametrize(
    ("offsets", "body", "tag", "name"),
    [
        ([4], ACK, "ack", "GoldenPop@0@4@GID_Golden_PopRaw@1795255654580@golden-a@ack"),
        ([6, 7], BATCH_ACK, "bAck", "GoldenPop@0@-1@GID_Golden_PopRaw@1795255654580@golden-a@ack"),
    ],
)
def test_an_acknowledgement_is_that_of_apache(offsets: list[int], body: bytes, tag: str, name: str) -> None:
    record = ack_record(KEY, offsets, "golden-a", now_ms=NOW_MS, host=HOST)
    assert described(record) == (body, tag, name)
    read = read_record(stored(tag, body))
    assert isinstance(read, AckBody)
    assert list(read.offsets()) == offsets


def test_an_old_check_point_without_distances_has_consecutive_messages() -> None:
    read = read_record(stored("ck", b'{"c":"g","it":1,"n":3,"pt":1,"q":0,"so":7,"t":"T"}'))
    assert isinstance(read, CheckPointBody)
    assert read.offsets() == [7, 8, 9]


def test_the_state_of_an_ordered_queue_is_read_as_written() -> None:
    record = order_record(("T", "g", 3), {"o": [1]}, 9, now_ms=NOW_MS, host=HOST)
    read = read_record(stored("order", record.body))
    assert read == OrderBody(c="g", info={"o": [1]}, next_offset=9, q=3, t="T")


@pytest.mark.parametrize(
    ("tag", "body"),
    [
        ("x", CHECK_POINT),
        ("ck", b"{}"),
        ("ck", b"no"),
        ("ck", CHECK_POINT.replace(b'"n":4', b'"n":5000')),
        ("ack", b"[]"),
    ],
)
def test_anything_else_is_ignored(tag: str, body: bytes) -> None:
    assert read_record(stored(tag, body)) is None
