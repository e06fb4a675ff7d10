"""Errors of JSON that can't be read name the actual reason, the place and the value."""

import msgspec
import pytest

from gantry.model.errors import InvalidValueError
from services.gateway.schemas.configs import TopicChange
from services.gateway.schemas.keys import NewKey
from services.gateway.schemas.outgoing import read_message
from services.gateway.schemas.reading import EXPLAINED_BYTES_MAX, read_json
from services.gateway.schemas.receiving import PullRequest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "body: is empty, where JSON is expected"),
        (b'{"body": "a"', '\'{"body": "a"\' ends too early (byte 12)'),
        (b'{"body": "a",}', "body: '}' can't be read: JSON is malformed: trailing comma in object (byte 13)"),
        (b'{"body":"a"}{"x":1}', "body: '{\"x\":1}' follows the end of the JSON value (byte 12)"),
        (b'{"body":"ab\xff"}', "is not UTF-8: invalid start byte at byte 11"),
        (b'{"body":"\\ud800"}', "is half of a character"),
        (b'{"body":"a","tag":5}', "/tag: must be a text, found 5"),
        (b'{"body":"a","delay_level":99}', "/delay_level: must be a whole number <= 18, found 99"),
        (b'{"body":"a","queue":{"broker":"b","id":-1}}', "/queue/id: must be a whole number >= 0, found -1"),
        (b"[]", "/: must be an object, found []"),
        (b"null", "/: must be an object, found null"),
        (b'{"body":"x"} x', "body: 'x' follows the end of the JSON value (byte 13)"),
        (b'{"body":"x","one_way":1}', "/one_way: must be true or false, found 1"),
        (b'{"tag":"a"}', "/body: is missing"),
        (b'{"body":%b}' % (b"[" * 9_000), "body: '{\"body\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[' is nested too deeply"),
    ],
)
def test_an_error_names_the_reason_the_place_and_the_value(text, said):
    with pytest.raises(InvalidValueError) as caught:
        read_message(text)
    assert said in str(caught.value)


def test_a_long_text_is_not_parsed_again_for_its_error():
    with pytest.raises(InvalidValueError) as caught:
        read_message(b'{"body":"%b","tag":5}' % (b"a" * EXPLAINED_BYTES_MAX))
    assert str(caught.value) == "/tag: must be a text, and is a whole number"


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        (TopicChange, b'{"perm":"zz"}', '/perm: must be one of rw, r, w, none, found "zz"'),
        (TopicChange, b'{"colour":"red"}', "/colour: there is no such field"),
        (TopicChange, b'{"brokers":5}', "/brokers: must be a list or null, found 5"),
        (
            TopicChange,
            b'{"brokers":["a/b"]}',
            '/brokers/0: must be a text of visible ASCII characters without /, found "a/b"',
        ),
        (
            PullRequest,
            b'{"topic":"T","attempt_id":"a b"}',
            '/attempt_id: must be a text of 1 to 128 visible ASCII characters, found "a b"',
        ),
        (
            NewKey,
            b'{"name":"\\u0001","rights":{}}',
            '/name: must be a text without control characters, found "\\u0001"',
        ),
        (
            NewKey,
            b'{"name":"n","rights":{"publish":["a b"]}}',
            '/rights/publish/0: must be a text of letters, digits, *, %, |, _ and -, found "a b"',
        ),
    ],
)
def test_a_refused_value_names_the_allowed_ones(kind, text, said):
    with pytest.raises(InvalidValueError) as caught:
        read_json(text, msgspec.json.Decoder(kind))
    assert str(caught.value) == said
