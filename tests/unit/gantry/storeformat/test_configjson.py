import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.storeformat.configjson import UnreadableConfigError, parse_config, read_config
from tests.support.memfilesystem import MemFileSystem
from tests.support.virtualtime import FakeClock

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(values)
def test_plain_json_is_parsed(value: object) -> None:
    assert parse_config(json.dumps(value).encode()) == value


@given(st.dictionaries(st.integers(), values, max_size=4))
def test_integer_keys_need_no_quotes(table: dict[int, object]) -> None:
    text = "{" + ",".join(f"\t{key} :{json.dumps(value)}\n" for key, value in table.items()) + "}"
    assert parse_config(text.encode()) == {str(key): value for key, value in table.items()}


def test_texts_that_look_like_keys_are_unchanged() -> None:
    assert parse_config(b'{0:"{1:2}",3:{"a,4:":"\\"{5:6"}}') == {"0": "{1:2}", "3": {"a,4:": '"{5:6'}}


@pytest.mark.parametrize("data", [b"", b" \n", b"{", b'{"a"', b"\xff\xfe", b"{a:1}", b"{1:}", b"[" * 100_000, b'"' * 9])
def test_broken_input_is_reported(data: bytes) -> None:
    with pytest.raises(ValueError, match="is not JSON"):
        parse_config(data)


@given(st.binary(max_size=40))
def test_any_bytes_parse_or_are_broken(data: bytes) -> None:
    try:
        parse_config(data)
    except ValueError:
        return


def test_the_backup_is_read_if_the_file_is_broken_or_missing() -> None:
    files = MemFileSystem(FakeClock())
    files.make_dirs("/c")
    assert read_config(files, "/c/a.json", parse_config) is None
    files.write("/c/a.json.bak", b'{"x":1}')
    for main, problem in ((None, "is missing"), (b"", "is empty"), (b"\0\0", "is empty"), (b"{", "is not JSON")):
        if main is not None:
            files.write("/c/a.json", main)
        found = read_config(files, "/c/a.json", parse_config)
        assert found is not None
        assert (found.content, found.path, found.data) == ({"x": 1}, "/c/a.json.bak", b'{"x":1}')
        assert str(found.problem).startswith(problem)
    files.write("/c/a.json", b'{"x":2}')
    found = read_config(files, "/c/a.json", parse_config)
    assert found is not None
    assert (found.content, found.problem) == ({"x": 2}, None)


def test_a_broken_file_with_a_broken_backup_names_both() -> None:
    files = MemFileSystem(FakeClock())
    files.make_dirs("/c")
    files.write("/c/a.json", b"{")
    files.write("/c/a.json.bak", b"")
    with pytest.raises(UnreadableConfigError) as caught:
        read_config(files, "/c/a.json", parse_config)
    assert caught.value.path == "/c/a.json"
    assert caught.value.reasons.keys() == {"/c/a.json", "/c/a.json.bak"}
    assert not caught.value.is_empty
    files.write("/c/a.json", b" ")
    with pytest.raises(UnreadableConfigError) as caught:
        read_config(files, "/c/a.json", parse_config)
    assert caught.value.is_empty


@pytest.mark.parametrize("text", ['{"a":1,"a":1}', '[{"b":{0:1,"0":2}}]', '{"x":{"a":1},"a":{"c":1,"\\u0063":2}}'])
def test_a_repeated_key_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="twice in one object"):
        parse_config(text.encode())


def test_texts_that_are_not_unicode_are_an_error() -> None:
    assert parse_config(rb'{"\ud83d\ude00":"\\ud800"}') == {"\U0001f600": "\\ud800"}
    for text in (rb'{"\ud800":1}', rb'["\uDC00"]', rb'{"a":"\ud800x"}'):
        with pytest.raises(ValueError, match="surrogate"):
            parse_config(text)
