"""Large requests with very many values: parsed in slices with the same result, or refused without being parsed."""

import asyncio
import json
import struct
from base64 import b64encode
from binascii import a2b_base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.errors import InvalidValueError
from services.gateway.schemas import dense
from services.gateway.schemas.dense import (
    DENSE_BYTES_MIN,
    FIELDS_BYTES_MAX,
    VALUES_AT_ONCE_MAX,
    VALUES_MAX,
    in_slices,
    is_dense,
    read_json_batch,
    read_json_lines,
    read_json_message,
    read_packed_frames,
    read_packed_message,
)
from services.gateway.schemas.outgoing import (
    BATCH_MESSAGES_MAX,
    BLANK_BYTES_MAX,
    TextMessage,
    read_message,
    read_packed,
)

DENSE = b'{"a":1},' * VALUES_AT_ONCE_MAX
FIELDS = b'"tag":"T","keys":["k"],"properties":{"p":"v"},"ordering_key":"o"'


def finish(slices):
    """Return the result and the number of slices."""
    count = 1
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            return stop.value, count
        count += 1


def refusal(slices):
    with pytest.raises(InvalidValueError) as caught:
        finish(slices)
    return getattr(caught.value, "problem", "invalid-field"), caught.value.field


def frame(packed):
    return struct.pack(">I", len(packed)) + packed


@pytest.mark.parametrize(
    "body",
    [
        b"[" + DENSE + b"1]",
        b'"' + b'\\"\\u00e9,' * VALUES_AT_ONCE_MAX + b'"',
        b'{"a":{"b":[' + DENSE + b'{}]},"\\u0063":"\\"{}:,"}',
    ],
)
def test_a_dense_message_is_read_in_slices_with_the_same_result(body):
    text = b"{" + FIELDS + b',"body": ' + body + b"}"
    assert is_dense(text)
    message, count = finish(read_json_message(text))
    assert message == read_message(text)
    assert count >= 3


def test_many_objects_are_searched_in_many_slices():
    _, few = finish(read_json_message(b'{"encoding":"json","body":[' + DENSE + b"1]}"))
    _, many = finish(read_json_message(b'{"encoding":"json","body":[' + DENSE * 8 + b"1]}"))
    assert many > 6 * few


@pytest.mark.parametrize(
    ("text", "problem", "field"),
    [
        (b'{"body":[%b{"x":1,"x":2}]}' % DENSE, "duplicate", "/"),
        (b'{"body":[%b{"x":1,"\\u0078":2}]}' % DENSE, "duplicate", "/"),
        (b'{"body":[%b{"x":{"y":[]},"x" : 2}]}' % DENSE, "duplicate", "/"),
        (b'{"tag":"a","body":[%b1],"tag":"b"}' % DENSE, "duplicate", "/"),
        (b'{"body":[%b1],"properties":{"a":"b","a":"c"}}' % DENSE, "duplicate", "/"),
        (b'{"body":[%b1],"tag":5}' % DENSE, "invalid-field", "/tag"),
        (b'{"body":[%b1],"colour":5}' % DENSE, "unknown-field", "/colour"),
        (b'{"tag":"T","keys":[%b"a"]}' % (b'"a",' * VALUES_AT_ONCE_MAX), "invalid-field", "/body"),
        (b'{"body":[%b1' % DENSE, "malformed-body", "body"),
        (
            b'{"body":"a","properties":{%b"z":"z"}}' % (b'"k":"v",' * (FIELDS_BYTES_MAX // 8)),
            "invalid-field",
            "/properties",
        ),
        (b'{"body":[%b1]}' % (b"1," * VALUES_MAX), "too-large", "/"),
        (b'{"encoding":"json","body":[%b1]}' % (b'"aaaaaaaaaaaaaaaaaa",' * 220_000), "too-large", "/body"),
        (b'{"body":["%b",%b1]}' % (b"a" * 5_000_000, DENSE), "too-large", "/body"),
    ],
)
def test_a_dense_message_is_refused_for_the_same_reasons(text, problem, field):
    assert refusal(read_json_message(text)) == (problem, field)


def test_a_dense_batch_costs_a_slice_for_each_64_kib():
    item = {"body": "a", "properties": {f"k{number}": "v" for number in range(500)}}
    text = json.dumps({"messages": [item] * 200 + [{"tag": "x"}]}).encode()
    items, count = finish(read_json_batch(text))
    assert [isinstance(item, InvalidValueError) for item in items] == [False] * 200 + [True]
    assert items[200].field == "/messages/200/body"
    assert count > len(text) // (2 * DENSE_BYTES_MIN)
    lines, count = finish(read_json_lines(b"\n \n".join([json.dumps(item).encode()] * 200)))
    assert (len(lines), lines[0].properties) == (200, item["properties"])
    assert count > len(text) // (2 * DENSE_BYTES_MIN)


def test_a_large_batch_of_texts_is_read_in_slices():
    """A thousand messages of 8 kB were once read in one slice, because they hold few values."""
    text = json.dumps({"messages": [{"body": "x:" * 4_000, "tag": "T"}] * 900 + [{"tag": "x"}]}).encode()
    assert not is_dense(text)
    items, count = finish(read_json_batch(text))
    assert items[:900] == [read_message(json.dumps({"body": "x:" * 4_000, "tag": "T"}).encode())] * 900
    assert items[900].field == "/messages/900/body"
    assert count > len(text) // (2 * DENSE_BYTES_MIN)


@pytest.mark.parametrize("body", ['"%s"' % ("a:" * 800_000), '["%s"]' % ("a:" * 800_000)])
def test_a_large_message_is_read_with_the_same_result(body):
    text = b'{%b,"encoding":"json","body" : %b}' % (FIELDS, body.encode())
    message, count = finish(read_json_message(text))
    assert (message, count >= 3) == (read_message(text), True)


@pytest.mark.parametrize("field", ["tag", "delay", "encoding", "ordering_key", "deliver_at"])
def test_a_field_of_megabytes_is_refused_without_decoding(field):
    text = b'{"body":"x","%b":"%b"}' % (field.encode(), b" " * 7_000_000)
    assert refusal(read_json_message(text)) == ("invalid-field", f"/{field}")


def test_the_name_of_an_unknown_field_is_shortened():
    with pytest.raises(InvalidValueError) as caught:
        finish(read_json_message(b'{"body":"x","%b":1}' % (b"n" * 7_000_000)))
    assert caught.value.problem == "unknown-field"
    assert len(caught.value.field) < 300
    assert len(str(caught.value)) < 500


def in_base64(body: str, **fields: str) -> bytes:
    return json.dumps({**fields, "encoding": "base64", "body": body}).encode()


@pytest.mark.parametrize("size", [100_000, 3_000_001, 4_194_302, 4_194_303, 4_194_304])
def test_a_long_body_in_base64_is_decoded_in_slices(size):
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    message, count = finish(read_json_message(in_base64(b64encode(data).decode(), tag="T")))
    assert (message.body, message.encoding, message.tag) == (data, msgspec.UNSET, "T")
    assert count > size // 1_000_000


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("A" * 5_500_000 + "!", "invalid-field"),
        ("!" + "A" * 5_500_000, "invalid-field"),
        ("A" * 300_000 + "=" + "A" * 300_000, "invalid-field"),
        ("A" * 300_001, "invalid-field"),
        ("A" * 300_000 + "AA==AAAA", "invalid-field"),
        ("A" * 5_592_412, "too-large"),
    ],
)
def test_a_long_body_that_is_not_base64_or_too_large_is_refused(body, problem):
    assert refusal(read_json_message(in_base64(body))) == (problem, "/body")


@given(st.text("AB=!", max_size=40), st.integers(1, 4))
def test_base64_in_slices_equals_base64(text, groups):
    """The slices accept exactly the texts that the whole decoder accepts."""
    message = TextMessage(encoding="base64", body=text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dense, "DENSE_BYTES_MIN", 0)
        patched.setattr(dense, "_BASE64_CHARACTERS", 4 * groups)
        try:
            whole = a2b_base64(text, strict_mode=True)
        except ValueError:
            assert refusal(dense.decode_base64_in_slices(message, "")) == ("invalid-field", "/body")
        else:
            assert finish(dense.decode_base64_in_slices(message, ""))[0].body == whole


def test_a_batch_of_too_many_values_is_refused():
    assert refusal(read_json_batch(b'{"messages":[%b{}]}' % (b"[]," * VALUES_MAX))) == ("too-large", "/messages")


def test_blank_lines_are_ignored_but_their_number_is_limited():
    assert len(finish(read_json_lines(b"\n" * (BLANK_BYTES_MAX - 9) + b'{"body":"a"}\n \r\n'))[0]) == 1
    assert refusal(read_json_lines(b"\n" * (BLANK_BYTES_MAX + 1) + b'{"body":"a"}')) == ("too-large", "body")
    spread = (b'{"body":"a"}' + b"\n" * (BLANK_BYTES_MAX // 4)) * 5
    assert refusal(read_json_lines(spread)) == ("too-large", "body")
    assert refusal(read_json_lines(b'{"body":"a"}\n' * (BATCH_MESSAGES_MAX + 1))) == ("too-large", "/messages")


@pytest.mark.parametrize("body", ["é" * DENSE_BYTES_MIN, b"\x00" * DENSE_BYTES_MIN])
def test_a_large_packed_message_is_read_with_the_same_result(body):
    packed = msgspec.msgpack.encode({"tag": "T", "body": body, "keys": ["k"], "properties": {"p": "v"}})
    message, count = finish(read_packed_message(packed))
    assert message == read_packed(packed)
    assert count == 2


@pytest.mark.parametrize(
    ("packed", "problem", "field"),
    [
        (b"\x81\xa4body\xdd\x00\x80\x00\x00" + b"\xc0" * 0x800000, "too-large", "/messages/0/body"),
        (b"\x81\xa4body\xdd\x00\x10\x00\x00" + b"\x80" * 0x100000, "too-large", "/messages/0/body"),
        (b"\x82\xa4body\xa1a\xa4keys\xdd\x00\x08\x00\x00" + b"\xa1a" * 0x80000, "invalid-field", "/messages/0/keys"),
        (
            b"\x83\xa3tag\xa1a\xa4body\xc6\x00\x02\x00\x00" + bytes(0x20000) + b"\xa3tag\xa1b",
            "duplicate",
            "/messages/0",
        ),
        (b"\x82\xa4body\xc6\x00\x02\x00\x00" + bytes(0x20000) + b"\xa3tag\x05", "invalid-field", "/messages/0/tag"),
        (b"\x81\xa4body\xc6\x00\x02\x00\x00" + bytes(0x10000), "malformed-body", "/messages/0"),
    ],
)
def test_a_large_packed_message_is_refused_before_its_values_are_created(packed, problem, field):
    [error], _ = finish(read_packed_frames(frame(packed)))
    assert getattr(error, "problem", "invalid-field") == problem
    assert error.field.startswith(field)


async def test_other_tasks_run_between_the_slices():
    ran = 0

    async def neighbour():
        nonlocal ran
        while True:
            ran += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(neighbour())
    await in_slices(read_json_message(b'{"encoding":"json","body":[' + DENSE * 4 + b"1]}"))
    task.cancel()
    assert ran > 20
