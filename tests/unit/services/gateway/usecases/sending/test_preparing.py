"""Preparing a message: its id, its encoded properties, and the reasons for refusals."""

import json

import pytest

from gantry.model.errors import InvalidValueError
from gantry.model.message import decode_properties
from gantry.model.propertyname import RESERVED_PROPERTIES
from services.gateway.schemas.outgoing import read_items, read_message
from services.gateway.schemas.reading import TooLargeError
from services.gateway.usecases.sending.preparing import USER_PROPERTIES_BYTES_MAX, prepare


def prepared(**fields):
    return prepare(read_message(json.dumps({"body": "b", **fields}).encode()), lambda: "ID")


def test_all_fields_become_properties():
    message = prepared(tag="AA", keys=["k1", "k2"], properties={"origin": "EWR", "ünï": "日本"}, ordering_key="N1")
    assert decode_properties(message.properties.encode()) == {
        "UNIQ_KEY": "ID",
        "TAGS": "AA",
        "KEYS": "k1 k2",
        "origin": "EWR",
        "ünï": "日本",
        "__SHARDINGKEY": "N1",
    }
    assert (message.message_id, message.ordering_key, message.one_way) == ("ID", "N1", False)
    assert decode_properties(prepared().properties.encode()) == {"UNIQ_KEY": "ID"}


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ({"body": "ü"}, "ü".encode()),
        ({"body": "AAEC", "encoding": "base64"}, b"\x00\x01\x02"),
        ({"body": {"a": 1}, "encoding": "json"}, b'{"a": 1}'),
        ({"body": "a", "encoding": "json"}, b'"a"'),
        ({"body": None, "encoding": "json"}, b"null"),
        ({"body": "{}", "encoding": "text"}, b"{}"),
    ],
)
def test_bodies(fields, body):
    assert prepared(**fields).body == body


def test_bodies_of_messagepack():
    texts = [b"\x81\xa4body\xc4\x01\xff", b"\x82\xa4body\x81\xa1a\x01\xa8encoding\xa4json", b"\x81\xa4body\xa1t"]
    assert [prepare(item, lambda: "ID").body for item in read_items(texts, packed=True)] == [b"\xff", b'{"a":1}', b"t"]
    [both] = read_items([b"\x82\xa4body\xc4\x01\xff\xa8encoding\xa4text"], packed=True)
    with pytest.raises(InvalidValueError):
        prepare(both, lambda: "ID")


def test_an_idempotency_key_becomes_the_id():
    assert prepared(idempotency_key="0123456789abcdefABCDEF0123456789").message_id == "0123456789abcdefABCDEF0123456789"
    digest = "B6E8F2AE0F1E7F8B0C0E6A3F4C2D5E91"
    assert len(prepared(idempotency_key="order-42").message_id) == len(digest)
    assert prepared(idempotency_key="order-42").message_id == prepared(idempotency_key="order-42").message_id


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"body": ""}, "/body"),
        ({"body": 1}, "/body"),
        ({"body": "a", "encoding": "utf-8"}, "/encoding"),
        ({"body": "a", "encoding": "base64"}, "/body"),
        ({"body": "AA E=", "encoding": "base64"}, "/body"),
        ({"body": "ü", "encoding": "base64"}, "/body"),
        ({"body": 1, "encoding": "base64"}, "/body"),
        ({"tag": ""}, "/tag"),
        ({"tag": "a b"}, "/tag"),
        ({"tag": "a|b"}, "/tag"),
        ({"tag": "a\u0001"}, "/tag"),
        ({"keys": ["a", "b c"]}, "/keys/1"),
        ({"keys": [""]}, "/keys/0"),
        ({"keys": ["a\u00a0"]}, "/keys/0"),
        ({"properties": {"": "v"}}, "/properties"),
        ({"properties": {"n": ""}}, "/properties/n"),
        ({"properties": {"n\u0001": "v"}}, "/properties"),
        ({"properties": {"n": "v\u0002"}}, "/properties/n"),
        ({"properties": {"__RMQ.TRANSIENT.x": "v"}}, "/properties/__RMQ.TRANSIENT.x"),
        ({"properties": {"TAGS": "v"}}, "/properties/TAGS"),
        ({"properties": {"n": "v" * (USER_PROPERTIES_BYTES_MAX - 2)}}, "/properties"),
        ({"properties": {"n": "v" * USER_PROPERTIES_BYTES_MAX}}, "/properties/n"),
        ({"tag": " " * (USER_PROPERTIES_BYTES_MAX + 1)}, "/tag"),
        ({"keys": [" " * USER_PROPERTIES_BYTES_MAX, "a"]}, "/keys"),
        ({"ordering_key": "a" * (USER_PROPERTIES_BYTES_MAX + 1)}, "/ordering_key"),
        ({"ordering_key": ""}, "/ordering_key"),
        ({"ordering_key": "a\u0002"}, "/ordering_key"),
        ({"ordering_key": "a", "queue": {"broker": "b", "id": 0}}, "/queue"),
        ({"delay": "10s", "delay_level": 3}, "/delay"),
        ({"delay": "soon"}, "/delay"),
        ({"delay": "41d"}, "/delay"),
        ({"deliver_at": "tomorrow"}, "/deliver_at"),
    ],
)
def test_messages_that_can_not_be_stored_are_refused_by_field(fields, field):
    with pytest.raises(InvalidValueError) as caught:
        prepared(**fields)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("fields", "name", "value"),
    [
        ({"delay": "10s"}, "TIMER_DELAY_MS", "10000"),
        ({"delay": "P40D"}, "TIMER_DELAY_MS", "3456000000"),
        ({"delay_level": 3}, "DELAY", "3"),
        ({"deliver_at": "2030-01-01T00:00:00.5Z"}, "TIMER_DELIVER_MS", "1893456000500"),
        ({"deliver_at": "1969-01-01T00:00:00Z"}, "TIMER_DELIVER_MS", "0"),
    ],
)
def test_a_delay_becomes_a_property_of_the_broker(fields, name, value):
    message = prepared(**fields)
    assert decode_properties(message.properties.encode())[name] == value
    assert message.is_delayed
    assert not prepared().is_delayed


@pytest.mark.parametrize("name", sorted(RESERVED_PROPERTIES))
def test_reserved_property_names_are_refused(name):
    with pytest.raises(InvalidValueError) as caught:
        prepared(properties={"fine": "v", name: "1"})
    assert (caught.value.field, caught.value.value) == (f"/properties/{name}", name)


def test_a_body_of_four_mebibytes_is_the_largest():
    assert len(prepared(body="x" * 4_194_304).body) == 4_194_304
    with pytest.raises(TooLargeError):
        prepared(body="x" * 4_194_305)
