"""The bytes of op messages, and what is read from damaged ones."""

from typing import Any

import pytest

from gantry.model.address import Address, pack_host
from gantry.model.message import CrcState, StoredMessage
from gantry.storeformat.opmessages import decode_op, op_offset_size
from services.broker.transaction.messages import op_message, real_queue

HOST = Address("10.0.0.5", 10911)


def stored(**changes: Any) -> StoredMessage:
    """Return a stored message."""
    values: dict[str, Any] = {
        "topic": "T", "queue_id": 0, "queue_offset": 0, "physical_offset": 0, "size_bytes": 0, "body_crc": 0, "flag": 0,
        "sys_flag": 0, "born_at_ms": 0, "born_host": HOST, "stored_at_ms": 0, "store_host": HOST, "reconsume_times": 0,
        "prepared_transaction_offset": 0, "body": b"", "properties": {}, "version": 1, "crc": CrcState.OK,
    }  # fmt: skip
    return StoredMessage(**{**values, **changes})


def test_an_op_message_lists_offsets_with_a_comma_after_each() -> None:
    message = op_message([7, 1000, 12], store_host=pack_host(HOST), now_ms=5)
    assert message.body == b"7,1000,12,"
    assert len(message.body) == sum(map(op_offset_size, (7, 1000, 12)))
    assert message.properties == {"WAIT": "true", "TAGS": "d"}


@pytest.mark.parametrize(
    ("body", "offsets"),
    [
        (b"123,124,", [123, 124]),
        (b"123", [123]),  # Release 4 writes one offset.
        (b"", []),
        (b"1,x,-2, 3,4", [1, 4]),
        (b"9" * 5000 + b",5,", [5]),
        (b"\xff\xfe,6", [6]),
    ],
)
def test_the_offsets_of_an_op_message_are_read(body: bytes, offsets: list[int]) -> None:
    assert decode_op(stored(body=body, properties={"TAGS": "d"})) == offsets
    assert decode_op(stored(body=body, properties={"TAGS": "r"})) == []


@pytest.mark.parametrize(
    ("properties", "queue"),
    [
        ({"REAL_TOPIC": "T", "REAL_QID": "3"}, ("T", 3)),
        ({"REAL_TOPIC": "T", "REAL_QID": "x"}, None),
        ({"REAL_TOPIC": "T", "REAL_QID": "-1"}, None),
        ({"REAL_TOPIC": "T", "REAL_QID": str(2**31)}, None),
        ({"REAL_QID": "3"}, None),
    ],
)
def test_the_queue_of_a_half_message(properties: dict[str, str], queue: tuple[str, int] | None) -> None:
    assert real_queue(stored(properties=properties)) == queue
