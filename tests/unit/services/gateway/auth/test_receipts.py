"""Receipts: what a gateway signed is read again by any gateway, for the same group, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.popreceipt import PopReceipt
from services.gateway.auth.receipts import RECEIPT_LENGTH_MAX, Receipt, open_receipt, sign_receipt

KEY = bytes(range(32))
RECEIPT = Receipt("ORDERS", 3, PopReceipt(4, 1_700_000_000_000, 60_000, 3, "1", "broker-a", 0, 5))
TEXT = sign_receipt(KEY, "billing", RECEIPT)


def test_a_receipt_is_read_as_it_was_signed():
    assert open_receipt(KEY, "billing", TEXT) == RECEIPT


def test_a_receipt_with_the_longest_names_is_within_the_limit():
    pop = PopReceipt(2**63 - 1, 2**62, 2**61, 999, "2", "b" * 255, 2**31 - 1, 2**63 - 1)
    text = sign_receipt(KEY, "g" * 255, Receipt("%RETRY%" + "t" * 248, 2**31 - 1, pop))
    assert len(text) <= RECEIPT_LENGTH_MAX
    assert open_receipt(KEY, "g" * 255, text) is not None


@pytest.mark.parametrize("group", ["", "billin", "billing2", "Billing", "billing\nORDERS"])
def test_a_receipt_is_none_of_another_group(group):
    assert open_receipt(KEY, group, TEXT) is None


def test_a_receipt_is_none_of_another_installation():
    assert open_receipt(bytes(32), "billing", TEXT) is None


@given(st.data())
def test_a_changed_receipt_is_refused(data):
    at = data.draw(st.integers(0, len(TEXT) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda character: character != TEXT[at]))
    assert open_receipt(KEY, "billing", TEXT[:at] + other + TEXT[at + 1 :]) is None


@pytest.mark.parametrize(
    "change", [lambda t: t[:-1], lambda t: t + "A", lambda t: t + "=", lambda t: " " + t, str.lower]
)
def test_a_receipt_is_taken_only_as_it_was_given(change):
    assert open_receipt(KEY, "billing", change(TEXT)) is None


@given(st.text(max_size=2_000))
def test_any_other_text_is_refused(text):
    assert open_receipt(KEY, "billing", text) is None
