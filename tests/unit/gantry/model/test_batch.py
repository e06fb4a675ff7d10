from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.batch import BatchItem, decode_batch, encode_batch
from gantry.model.errors import CorruptRecordError, InvalidMessageError

items = st.lists(
    st.tuples(st.integers(-(2**31), 2**31 - 1), st.binary(max_size=40), st.binary(max_size=40)), max_size=5
)


@given(items)
def test_there_and_back(batch: list[tuple[int, bytes, bytes]]) -> None:
    body = encode_batch(batch)
    assert decode_batch(body) == [BatchItem(*item) for item in batch]
    assert decode_batch(memoryview(body)) == [BatchItem(*item) for item in batch]


@given(items, st.integers(0), st.integers(0, 255))
def test_any_changed_byte_decodes_or_is_corrupt(batch: list[tuple[int, bytes, bytes]], at: int, value: int) -> None:
    body = bytearray(encode_batch(batch))
    if body:
        body[at % len(body)] = value
    with suppress(CorruptRecordError):
        decode_batch(bytes(body))


@given(st.binary(max_size=80))
def test_any_bytes_decode_or_are_corrupt(body: bytes) -> None:
    with suppress(CorruptRecordError):
        decode_batch(body)


@pytest.mark.parametrize("cut", range(1, 29))
def test_a_cut_batch_is_corrupt(cut: int) -> None:
    with pytest.raises(CorruptRecordError):
        decode_batch(encode_batch([(0, b"abc", b"k\x01v\x02")])[:-cut])


def test_a_value_too_large_for_its_field_is_refused() -> None:
    with pytest.raises(InvalidMessageError, match="flag"):
        encode_batch([(2**31, b"", b"")])
    with pytest.raises(InvalidMessageError, match="properties"):
        encode_batch([(0, b"", b"x" * 32_768)])
