"""`gantry tail`: the form of messages."""

import json

import msgspec

from gantry.cli.livetail import message_fields
from gantry.http.results import Message
from tests.unit.gantry.http.messages import message


def test_bodies_that_are_text_are_shown_as_text_and_others_as_base64() -> None:
    text = msgspec.convert(message(7, body=b"caf\xc3\xa9"), Message)
    shown = message_fields(text)
    assert (shown["body"], shown["encoding"], shown["queue_offset"], "receipt" in shown) == ("café", "text", "7", False)
    binary = message_fields(msgspec.convert(message(8, body=b"\xff\x00"), Message))
    assert (binary["body"], binary["encoding"]) == ("/wA=", "base64")
    json.dumps([shown, binary])
