import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.remoting.bodies import decode_properties_text, encode_properties_text
from gantry.remoting.errors import BodyError

keys = st.text("abcXYZ019_.", min_size=1, max_size=10)


@given(st.dictionaries(keys, st.text(max_size=20).map(lambda text: text.lstrip(" \t\f"))))
def test_encoding_round_trips(properties: dict[str, str]):
    assert decode_properties_text(encode_properties_text(properties)) == properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("a=1\nb=2", {"a": "1", "b": "2"}),
        ("a=1\r\nb=2\r", {"a": "1", "b": "2"}),
        ("# c\n! d\n\n  a = 1 ", {"a": "1 "}),
        ("a:1\nb 2\nc", {"a": "1", "b": "2", "c": ""}),
        ("a=b=c", {"a": "b=c"}),
        ("a\\=b=c\\\\d", {"a=b": "c\\d"}),
        ("a=1\\\n   2", {"a": "12"}),
        ("a=1\\", {"a": "1"}),
        ("a=\\u4e2d\\t\\x\\", {"a": "中\tx"}),
        ("a=1\na=2", {"a": "2"}),
    ],
)
def test_java_syntax_is_read(text: str, properties: dict[str, str]):
    assert decode_properties_text(text.encode()) == properties


@pytest.mark.parametrize("data", [b"a=\xff", b"a=\\u12", b"a=\\uxyz1"])
def test_properties_that_java_refuses_are_refused(data: bytes):
    with pytest.raises(BodyError, match="properties"):
        decode_properties_text(data)
