"""What is said about JSON that can't be read: the real reason, where it is, and the value."""

import pytest

from gantry.model.errors import InvalidValueError
from services.gateway.schemas.outgoing import read_message
from services.gateway.schemas.reading import EXPLAINED_BYTES_MAX


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "body: '' is empty, where JSON is expected"),
        (b'{"body": "a"', "truncated (byte 12)"),
        (b'{"body": "a",}', "body: '}' can't be read: JSON is malformed: trailing comma in object (byte 13)"),
        (b'{"body":"a"}{"x":1}', "body: '\"x\":1}' can't be read: JSON is malformed: trailing characters (byte 13)"),
        (b'{"body":"ab\xff"}', "is not UTF-8: invalid start byte at byte 11"),
        (b'{"body":"\\ud800"}', "stands alone"),
        (b'{"body":"a","tag":5}', "/tag: expected `str`, got `int`, found 5"),
        (b'{"body":"a","delay_level":99}', "/delay_level: expected `int` <= 18, found 99"),
        (b'{"body":"a","queue":{"broker":"b","id":-1}}', "/queue/id: expected `int` >= 0, found -1"),
        (b"[]", "/: expected `object`, got `array`, found []"),
        (b'{"tag":"a"}', "/body: is missing"),
        (b'{"body":%b}' % (b"[" * 9_000), "body: '{\"body\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[' is nested too deeply"),
    ],
)
def test_an_error_names_the_reason_the_place_and_the_value(text, said):
    with pytest.raises(InvalidValueError) as caught:
        read_message(text)
    assert said in str(caught.value)


def test_a_long_text_is_not_read_again_to_be_explained():
    with pytest.raises(InvalidValueError) as caught:
        read_message(b'{"body":"%b","tag":5}' % (b"a" * EXPLAINED_BYTES_MAX))
    assert str(caught.value) == "/tag: expected `str`, got `int`"
