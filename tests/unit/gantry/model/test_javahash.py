import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model import javahash
from gantry.model.javahash import index_key_hash, java_hash, tags_code


def reference(text: str) -> int:
    """The hash by its definition, one UTF-16 unit at a time."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


any_text = st.text(st.characters(), max_size=200)


@given(any_text)
def test_the_hash_equals_that_of_java(text: str) -> None:
    assert java_hash(text) == reference(text)


@given(st.text("abc01", min_size=60, max_size=700))
def test_the_hash_of_long_ascii_texts_is_combined_from_pieces(text: str) -> None:
    assert java_hash(text) == reference(text)


@given(st.text(max_size=20), any_text)
def test_index_hash_is_the_absolute_hash_of_topic_and_key(topic: str, key: str) -> None:
    for _ in range(2):  # The second call uses the cache.
        expected = abs(reference(f"{topic}#{key}"))
        assert index_key_hash(topic, key) == (expected if expected < 1 << 31 else 0)


def test_the_smallest_number_becomes_zero_since_it_has_no_absolute_value() -> None:
    assert java_hash("polygenelubricants") == -(1 << 31)
    key = find_key_with_the_smallest_hash("T")
    assert java_hash(f"T#{key}") == -(1 << 31)
    assert index_key_hash("T", key) == 0


def find_key_with_the_smallest_hash(topic: str) -> str:
    # Any 32-bit number can be written in base 31 with digits above 32, which gives a key with the wanted hash.
    length = 7
    base = java_hash(f"{topic}#") * pow(31, length)
    floor = sum(64 * 31**place for place in range(length))
    rest = ((1 << 31) - base - floor) % (1 << 32)
    digits = []
    for _ in range(length):
        rest, digit = divmod(rest, 31)
        digits.append(chr(64 + digit))
    assert rest == 0
    return "".join(reversed(digits))


@pytest.mark.parametrize(("tag", "code"), [(None, 0), ("", 0), ("TagA", 2598919), ("polygenelubricants", -(1 << 31))])
def test_the_tags_code_is_the_hash_of_the_tag(tag: str | None, code: int) -> None:
    assert tags_code(tag) == code


def test_cache_of_heads_is_bounded() -> None:
    for number in range(javahash._HEADS_MAX + 10):
        index_key_hash("T", f"{number:08d}AAAA")
    assert len(javahash._heads) <= javahash._HEADS_MAX
    assert index_key_hash("T", "00000000AAAA") == abs(reference("T#00000000AAAA"))
