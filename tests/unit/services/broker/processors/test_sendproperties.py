"""Items of a batch: properties cached from earlier items give the same result as a full parse."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gantry.model.message import decode_properties
from services.broker.processors.sendproperties import SendProperties
from services.broker.refusal import RefusalError
from tests.support.brokerunit import IDENTITY

KEY = b"UNIQ_KEY\x01%032d\x02"
PIECES = st.sampled_from(
    [
        KEY % 1, KEY % 2, b"UNIQ_KEY\x01short\x02", b"UNIQ_KEY\x01\x02", b"TAGS\x01a\x02", b"TAGS\x01b\x02", b"TAGS\x01\x02",
        b"KEYS\x01k l\x02", b"WAIT\x01false\x02", b"MSG_REGION\x01x\x02", b"__CRC32#\x011\x02", b"DELAY\x011\x02",
        b"p\x01UNIQ_KEY\x01q\x02", b"TAGS\x01\xff\x02", b"TAGS\x01open", b"\x02", b"x",
    ]
)  # fmt: skip
SHARED = st.sampled_from([b"", b"WAIT\x01true\x02", b"TAGS\x01shared\x02"])


def fresh() -> SendProperties:
    return SendProperties(IDENTITY, lambda: "MADE")


def outcome(properties: SendProperties, data: bytes, shared: bytes) -> Any:
    try:
        return properties.complete_item(data, shared)
    except RefusalError as error:
        return error.code, error.remark


@given(st.lists(st.tuples(st.lists(PIECES, max_size=4).map(b"".join), SHARED), min_size=1, max_size=12))
def test_earlier_items_do_not_change_the_result(items: list[tuple[bytes, bytes]]) -> None:
    seasoned = fresh()
    for data, shared in items * 2:
        assert outcome(seasoned, data, shared) == outcome(fresh(), data, shared)


@given(st.lists(PIECES, max_size=4).map(b"".join), SHARED)
def test_tag_and_keys_match_the_stored_properties(rest: bytes, shared: bytes) -> None:
    properties = fresh()
    for data in (KEY % 7 + rest, KEY % 8 + rest):
        try:
            stored, tag, keys, unique_key = properties.complete_item(data, shared)
        except RefusalError:
            return
        decoded = decode_properties(stored)
        assert tag is None or tag == decoded.get("TAGS", "")
        assert keys is None or keys == decoded.get("KEYS", "")
        assert unique_key == decoded["UNIQ_KEY"]
