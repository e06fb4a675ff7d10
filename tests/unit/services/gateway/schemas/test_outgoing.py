"""Messages to send are validated strictly, and one bad message does not affect the others."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.errors import InvalidValueError
from services.gateway.schemas.outgoing import read_batch, read_frames, read_items, read_lines, read_message
from services.gateway.schemas.reading import DuplicateError, TooLargeError, UnknownFieldError, UnreadableError


def kinds(items):
    return [type(item).__name__ for item in items]


def frame(value) -> bytes:
    data = msgspec.msgpack.encode(value)
    return len(data).to_bytes(4, "big") + data


def test_a_text_message_keeps_exactly_its_fields():
    message = read_message(b'{"body": "a:b", "tag": "AA", "keys": ["k"], "properties": {"x": "y"}}')
    assert (message.body, message.tag, message.keys, message.properties) == ("a:b", "AA", ["k"], {"x": "y"})
    assert message.delay is msgspec.UNSET


def test_a_json_body_is_kept_as_the_client_wrote_it():
    message = read_message(b'{"body": {"n": 1.10, "big": 123456789012345678901234567890}, "encoding": "json"}')
    assert bytes(message.body) == b'{"n": 1.10, "big": 123456789012345678901234567890}'


@pytest.mark.parametrize(
    ("text", "error", "field"),
    [
        (b'{"body": "a", "body": "b"}', DuplicateError, "/"),
        (b'{"body": "a", "b\\u006fdy": "b"}', DuplicateError, "/"),
        (b'{"body": "a:b", "tag": "x", "tag": "x"}', DuplicateError, "/"),
        (b'{"body": "a\\u003ab", "properties": {"x": "1", "x": "2"}}', DuplicateError, "/"),
        (b'{"body": "\\n", "tag": "x", "tag": "y"}', DuplicateError, "/"),
        (b'{"body": {"x": 1, "x": 2}, "encoding": "json"}', DuplicateError, "/"),
        (b'{"body": "a", "tga": "x"}', UnknownFieldError, "/tga"),
        (b'{"body": "a", "queue": {"broker": "b", "id": 1, "x": 1}}', UnknownFieldError, "/queue/x"),
        (b'{"tag": "x"}', InvalidValueError, "/body"),
        (b'{"body": "a", "keys": ["a", 1]}', InvalidValueError, "/keys/1"),
        (b'{"body": "a", "queue": {"broker": "b", "id": -1}}', InvalidValueError, "/queue/id"),
        (b'{"body": "a"', UnreadableError, "body"),
        (b'{"body": "\xff"}', UnreadableError, "body"),
        (b'{"body": "a"} {"body": "b"}', UnreadableError, "body"),
        (b'{"body":' + b"[" * 100_000, UnreadableError, "body"),
        (b"[]", InvalidValueError, "/"),
        (b"", UnreadableError, "body"),
    ],
)
def test_a_bad_message_is_refused_by_field(text, error, field):
    with pytest.raises(error) as caught:
        read_message(text)
    assert caught.value.field == field


def test_a_batch_returns_the_errors_of_bad_items_at_their_index():
    text = (
        b'{"messages": [{"body": "ok:1"}, {"body": "a", "body": "b"}, {"bdy": 1}, 3,'
        b' {"body": {"a": 1}, "encoding": "json"}, {"body": "\xff"}, {"body": "last"}]}'
    )
    assert kinds(read_batch(text)) == [
        "TextMessage",
        "DuplicateError",
        "UnknownFieldError",
        "WrongTypeError",
        "RawMessage",
        "UnreadableError",
        "TextMessage",
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b'{"messages": []}', InvalidValueError),
        (b"{}", InvalidValueError),
        (b'{"messages": [{"body": "a"}], "more": 1}', UnknownFieldError),
        (b'{"messages": [{"body": "a"}], "messages": [{"body": "b"}]}', DuplicateError),
        (b'{"messages": [], "messages": [{"body": "b"}]}', DuplicateError),
        (b'{"messages": [{"body": "a"}', UnreadableError),
        (b'{"messages": [' + b",".join([b'{"body":"x"}'] * 1_001) + b"]}", TooLargeError),
        (b'{"messages": [' + b",".join([b"1"] * 100_000) + b"]}", TooLargeError),
    ],
)
def test_an_invalid_batch_is_refused_as_a_whole(text, error):
    with pytest.raises(error):
        read_batch(text)


def test_a_thousand_messages_are_a_batch():
    assert len(read_batch(b'{"messages": [' + b",".join([b'{"body":"{x}"}'] * 1_000) + b"]}")) == 1_000


def test_lines_are_read_one_by_one():
    items = read_lines(b'{"body": "a"}\r\n\n  \n{"body": "b"} {"body": "c"}\n{"body":\n"d"}\n{"body": "e"}')
    assert kinds(items) == ["TextMessage", "UnreadableError", "UnreadableError", "WrongTypeError", "TextMessage"]
    with pytest.raises(InvalidValueError):
        read_lines(b"\n\n")
    with pytest.raises(TooLargeError):
        read_lines(b'{"body":"a"}\n' * 1_001)


def test_frames_carry_bytes_and_texts():
    items = read_frames(frame({"body": b"\xff"}) + frame({"body": "t", "tag": "x"}) + frame({"bdy": 1}))
    assert kinds(items) == ["PackedMessage", "PackedMessage", "UnknownFieldError"]
    assert items[0].body == b"\xff"


@pytest.mark.parametrize("cut", [1, 3, 5, -1])
def test_frames_whose_lengths_do_not_add_up_are_refused_as_a_whole(cut):
    whole = frame({"body": "a"}) + frame({"body": "b"})
    with pytest.raises(UnreadableError):
        read_frames(whole[:cut])


@pytest.mark.parametrize(
    "data",
    [
        b"\x82\xa4body\xa1a\xa4body\xa1b",
        b"\x82\xa4body\xa1a\xd9\x04body\xa1b",
        b"\x82\xa4body\xa1a\xaaproperties\x82\xa1x\xa11\xa1x\xa12",
        b"\xde\x00\x02\xa4body\x82\xa1k\x01\xa1k\x02\xa8encoding\xa4json",
    ],
)
def test_a_packed_map_with_a_repeated_key_is_refused(data):
    assert kinds(read_items([data], packed=True)) == ["DuplicateError"]


def test_a_packed_map_may_have_a_longer_encoding_than_necessary():
    assert kinds(read_items([b"\xde\x00\x01\xd9\x04body\xda\x00\x01a"], packed=True)) == ["PackedMessage"]


TEXTS = st.text(max_size=8)
MESSAGES = st.fixed_dictionaries(
    {"body": TEXTS},
    optional={
        "tag": TEXTS,
        "keys": st.lists(TEXTS, max_size=2),
        "properties": st.dictionaries(TEXTS, TEXTS, max_size=3),
    },
)


@given(st.lists(MESSAGES, min_size=1, max_size=5), st.booleans(), st.sampled_from([None, 1]), st.data())
def test_exactly_the_repeated_keys_are_found(messages, ascii_only, indent, data):
    """Exactly the repeated keys are found, with any spacing and any escapes."""
    texts = [json.dumps(message, ensure_ascii=ascii_only, indent=indent) for message in messages]
    spoiled = data.draw(st.none() | st.integers(0, len(messages) - 1))
    if spoiled is not None:
        name = data.draw(st.sampled_from(sorted(messages[spoiled])))
        again = json.dumps({name: messages[spoiled][name]}, ensure_ascii=ascii_only)[1:-1]
        texts[spoiled] = texts[spoiled][: texts[spoiled].rindex("}")] + "," + again + "}"
    items = read_batch(('{"messages":[' + ",".join(texts) + "]}").encode())
    assert [type(item) is DuplicateError for item in items] == [index == spoiled for index in range(len(messages))]
