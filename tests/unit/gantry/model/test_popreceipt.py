"""The receipt of a popped message and the parts of it in the response to a pop."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.errors import InvalidIdError
from gantry.model.popreceipt import (
    NOT_RETRY,
    PopReceipt,
    decode_message_offsets,
    decode_order_counts,
    decode_pop_receipt,
    decode_start_offsets,
    encode_message_offsets,
    encode_order_counts,
    encode_pop_receipt,
    encode_start_offsets,
)

# A text that Apache RocketMQ 5.3.3 wrote.
APACHE = "4 1795255654580 15000 3 0 golden-a 0 5"
NUMBERS = st.integers(0, 2**61)


def test_a_receipt_of_apache_is_read() -> None:
    receipt = decode_pop_receipt(APACHE)
    assert receipt == PopReceipt(4, 1795255654580, 15000, 3, NOT_RETRY, "golden-a", 0, 5)
    assert receipt.expires_at_ms == 1795255669580
    assert encode_pop_receipt(receipt) == APACHE


@given(
    st.builds(PopReceipt, NUMBERS, NUMBERS, NUMBERS, NUMBERS, st.sampled_from("012"), st.just("b"), NUMBERS, NUMBERS)
)
def test_every_receipt_is_read_as_written(receipt: PopReceipt) -> None:
    assert decode_pop_receipt(encode_pop_receipt(receipt)) == receipt


@pytest.mark.parametrize(
    "text",
    [
        "", "x", APACHE + " 1", APACHE[:-2], " " + APACHE, APACHE.replace(" 0 golden", " 3 golden"),
        "-4" + APACHE[1:], APACHE + "\n", "4" * 20 + APACHE[1:], APACHE[:-1] + "9" * 19, "٤" + APACHE[1:],
        APACHE.replace("golden-a", "g" * 1024),
    ],
)  # fmt: skip
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidIdError, match="extraInfo"):
        decode_pop_receipt(text)


def test_the_topic_of_a_retry_is_that_of_the_group() -> None:
    topics = [PopReceipt(0, 0, 0, 0, retry, "b", 0, 0).real_topic("T", "g") for retry in "012"]
    assert topics == ["T", "%RETRY%g_T", "%RETRY%g+T"]


def test_the_parts_of_a_response_are_read_as_written() -> None:
    starts = [("0", 1, 0), ("1", 0, 7)]
    assert encode_start_offsets(starts) == "0 1 0;1 0 7"
    assert decode_start_offsets("0 1 0;1 0 7") == {("0", 1): 0, ("1", 0): 7}
    assert encode_message_offsets([("0", 1, [0, 2]), ("1", 0, [7])]) == "0 1 0,2;1 0 7"
    assert decode_message_offsets("0 1 0,2;1 0 7") == {("0", 1): [0, 2], ("1", 0): [7]}
    text = encode_order_counts([("0", 1, None, 2), ("0", 1, 5, 1)])
    assert text == "0 1 2;0 qo1%5 1"
    assert decode_order_counts(text) == {("0", 1, None): 2, ("0", 1, 5): 1}
    assert decode_start_offsets(None) == decode_message_offsets("") == decode_order_counts("") == {}


@pytest.mark.parametrize("text", ["0 1", "0 1 x", "0 x 1", "0 1 -1", "0 1 " + "1" * 20])
def test_parts_that_are_not_numbers_are_refused(text: str) -> None:
    for decode in (decode_start_offsets, decode_message_offsets, decode_order_counts):
        with pytest.raises(InvalidIdError):
            decode(text)
