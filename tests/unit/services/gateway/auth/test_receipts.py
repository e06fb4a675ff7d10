"""Receipts: what a gateway signed is read again by any gateway, for the same group, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.popreceipt import PopReceipt
from services.gateway.auth.receipts import RECEIPT_LENGTH_MAX, Receipt, Receipts

KEY = bytes(range(32))
RECEIPT = Receipt("ORDERS", 3, PopReceipt(4, 1_700_000_000_000, 60_000, 3, "1", "broker-a", 0, 5))
TEXT = Receipts(KEY, "billing").sign(RECEIPT)
VERSION_1 = "AW_3ylrjqL-Wb-JKNmLkNNRPUkRFUlMKMwo0IDE3MDAwMDAwMDAwMDAgNjAwMDAgMyAxIGJyb2tlci1hIDAgNQ"
"""The same receipt, as gateways made it before version 2."""


def open_receipt(key: bytes, group: str, text: str) -> Receipt | None:
    return Receipts(key, group).open(text)


def test_a_receipt_is_read_as_it_was_signed():
    assert open_receipt(KEY, "billing", TEXT) == RECEIPT


def test_a_receipt_of_version_1_is_read_too():
    assert open_receipt(KEY, "billing", VERSION_1) == RECEIPT
    assert TEXT != VERSION_1


@pytest.mark.parametrize("length", range(6))
def test_receipts_of_one_request_are_made_and_read_one_by_one(length):
    receipts = [
        Receipt(f"T{'x' * length}", times, PopReceipt(4, 5, 6, 7, retry, f"b{times}", 1, 2**62 + times))
        for times, retry in enumerate("0120")
    ]
    made, read = Receipts(KEY, "g"), Receipts(KEY, "g")
    texts = [made.sign(receipt) for receipt in receipts]
    assert [read.open(text) for text in texts] == receipts
    assert len(set(texts)) == len(texts)
    assert all("=" not in text for text in texts)


@pytest.mark.parametrize("change", [{"revive_queue_id": 2**40}, {"queue_id": 2**33}, {"broker_name": "b" * 256}])
def test_a_receipt_that_does_not_fit_the_numbers_is_made_as_text(change):
    receipt = RECEIPT._replace(pop=RECEIPT.pop._replace(**change))
    text = Receipts(KEY, "billing").sign(receipt)
    assert open_receipt(KEY, "billing", text) == receipt


def test_a_receipt_with_the_longest_names_is_within_the_limit():
    pop = PopReceipt(2**63 - 1, 2**62, 2**61, 999, "2", "b" * 255, 2**31 - 1, 2**63 - 1)
    text = Receipts(KEY, "g" * 255).sign(Receipt("%RETRY%" + "t" * 248, 2**31 - 1, pop))
    assert len(text) <= RECEIPT_LENGTH_MAX
    assert open_receipt(KEY, "g" * 255, text) is not None


@pytest.mark.parametrize("group", ["", "billin", "billing2", "Billing", "billing\nORDERS"])
def test_a_receipt_is_none_of_another_group(group):
    assert open_receipt(KEY, group, TEXT) is None


def test_a_receipt_is_none_of_another_installation():
    assert open_receipt(bytes(32), "billing", TEXT) is None


@pytest.mark.parametrize("text", [TEXT, VERSION_1])
@given(data=st.data())
def test_a_changed_receipt_is_refused(text, data):
    at = data.draw(st.integers(0, len(text) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda character: character != text[at]))
    assert open_receipt(KEY, "billing", text[:at] + other + text[at + 1 :]) is None


@pytest.mark.parametrize("text", [TEXT, VERSION_1])
@pytest.mark.parametrize(
    "change", [lambda t: t[:-1], lambda t: t + "A", lambda t: t + "=", lambda t: " " + t, str.lower]
)
def test_a_receipt_is_taken_only_as_it_was_given(text, change):
    assert open_receipt(KEY, "billing", change(text)) is None


@given(st.text(max_size=2_000))
def test_any_other_text_is_refused(text):
    assert open_receipt(KEY, "billing", text) is None
