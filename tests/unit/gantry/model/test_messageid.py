from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.address import Address
from gantry.model.errors import InvalidIdError
from gantry.model.messageid import decode_stored_id, encode_stored_id


@given(st.ip_addresses(), st.integers(0, 65_535), st.integers(0, 2**63 - 1))
def test_there_and_back(ip: object, port: int, physical: int) -> None:
    address = Address(str(ip), port)
    assert decode_stored_id(encode_stored_id(address, physical)) == (address, physical)
    assert decode_stored_id(encode_stored_id(address, physical).lower()) == (address, physical)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "0 characters"),
        ("0A00000500002A9F000000000000100", "31 characters"),
        ("0A00000500002A9F00000000000010GG", "no hex digits"),
        ("0A00000500002A9F 000000000001000", "no hex digits"),
        ("0A000005FFFFFFFF0000000000001000", "port"),
        ("0A00000500002A9FF000000000001000", "negative offset"),
        ("\u0660" * 32, "no hex digits"),
    ],
)
def test_invalid_ids_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidIdError, match=reason) as caught:
        decode_stored_id(text)
    assert caught.value.field == "stored_id"


@given(st.text(max_size=60))
def test_any_text_is_an_id_or_refused(text: str) -> None:
    with suppress(InvalidIdError):
        decode_stored_id(text)
