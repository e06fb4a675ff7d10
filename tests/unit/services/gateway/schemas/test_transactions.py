"""The body of a transaction's begin."""

import json

import pytest
from msgspec import UNSET

from gantry.model.errors import InvalidValueError
from services.gateway.schemas.transactions import read_transaction


def read(**fields):
    return read_transaction(json.dumps({"body": "b", "group": "TX", **fields}).encode())


def test_a_transaction_is_a_message_with_a_group():
    new = read(tag="AA", keys=["k"], check_immunity="1500ms")
    assert (new.group, new.immunity_s) == ("TX", 2)
    assert (new.message.body, new.message.tag, new.message.keys) == ("b", "AA", ["k"])
    assert (read().immunity_s, read().message.tag) == (None, UNSET)


def test_a_body_may_be_any_json():
    assert bytes(read(body={"a": 1}, encoding="json").message.body) == b'{"a": 1}'


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"group": ""}, "/group"),
        ({"group": "a b"}, "/group"),
        ({"group": 1}, "/group"),
        ({"group": "CID_RMQ_SYS_TRANS"}, "/group"),
        ({"one_way": False}, "/one_way"),
        ({"idempotency_key": "k"}, "/idempotency_key"),
        ({"check_immunity": "999ms"}, "/check_immunity"),
        ({"check_immunity": "25h"}, "/check_immunity"),
        ({"check_immunity": "x"}, "/check_immunity"),
        ({"other": 1}, "/other"),
        ({"keys": "k"}, "/keys"),
    ],
)
def test_a_field_that_can_not_be_used_is_named(fields, field):
    with pytest.raises(InvalidValueError) as caught:
        read(**fields)
    assert caught.value.field == field


def test_a_repeated_key_is_refused():
    with pytest.raises(InvalidValueError, match="twice"):
        read_transaction(b'{"body": "b", "group": "A", "group": "B"}')


def test_a_missing_group_is_named():
    with pytest.raises(InvalidValueError) as caught:
        read_transaction(b'{"body": "b"}')
    assert caught.value.field == "/group"
