import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.errors import CorruptRecordError, InvalidMessageError
from gantry.model.message import (
    RESERVED_PROPERTIES,
    Address,
    CrcState,
    Message,
    MessageQueue,
    PropertyName,
    StoredMessage,
    decode_properties,
    encode_properties,
    find_property,
    join_properties,
    remove_property,
)
from gantry.model.propertyname import is_reserved_property

# The legal characters of a property: all except the two separators and lone surrogates.
legal = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8)


def reference_decode(text: str) -> dict[str, str]:
    """Decode by the rules of the format, piece by piece."""
    found = {}
    for piece in text.split("\x02"):
        if len(piece) >= 3 and "\x01" in piece:
            name, value = piece.split("\x01", 1)
            if name and value:
                found[name] = value
    return found


@given(st.dictionaries(legal, legal))
def test_properties_there_and_back(properties: dict[str, str]) -> None:
    data = encode_properties(properties)
    assert decode_properties(data) == properties
    assert decode_properties(memoryview(data)) == properties
    assert decode_properties(data.removesuffix(b"\x02")) == properties


@given(st.text(st.sampled_from("ab\x01\x02é😀"), max_size=30))
def test_any_text_decodes_by_the_rules(text: str) -> None:
    data = text.encode()
    decoded = decode_properties(data)
    assert decoded == reference_decode(text)
    for name in ("a", "b", "ab", "é", "zz"):
        assert find_property(data, name.encode()) == decoded.get(name)


@given(st.binary(max_size=60))
def test_any_bytes_decode(data: bytes) -> None:
    decode_properties(data)


@given(st.dictionaries(legal, legal, min_size=1))
def test_one_property_is_removed(properties: dict[str, str]) -> None:
    name = next(iter(properties))
    data = remove_property(encode_properties(properties), name.encode())
    assert decode_properties(data) == {key: value for key, value in properties.items() if key != name}
    assert remove_property(data, b"nobody has this") is data


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"": "x"}, "empty"),
        ({"a": ""}, "empty"),
        ({"ok": "1", "a\x01": "x"}, "0x01"),
        ({"a": "x\x02b\x01y"}, "0x02"),
        ({"a": "\ud800"}, "UTF-8"),
        ({"\udfff": "x"}, "UTF-8"),
    ],
)
def test_properties_that_would_decode_differently_are_refused(properties: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidMessageError, match=reason):
        encode_properties(properties)


@given(st.dictionaries(st.text(max_size=4), st.text(max_size=4)))
def test_properties_are_refused_or_decode_unchanged(properties: dict[str, str]) -> None:
    try:
        data = encode_properties(properties)
    except InvalidMessageError:
        return
    assert decode_properties(data) == properties


def test_joining_adds_the_missing_separator() -> None:
    assert join_properties(b"a\x011", b"b\x012\x02") == b"a\x011\x02b\x012\x02"
    assert join_properties(b"a\x011\x02", b"b\x012") == b"a\x011\x02b\x012"
    assert join_properties(b"", b"b\x012") == b"b\x012"
    assert join_properties(b"a\x011", b"") == b"a\x011"


def stored(properties: dict[str, str], *, body: bytes = b"x", sys_flag: int = 0) -> StoredMessage:
    host = Address("10.0.0.5", 10911)
    return StoredMessage("T", 0, 1, 4096, 100, 0, 0, sys_flag, 1, host, 2, host, 0, 0, body, properties, 1, CrcState.OK)


def test_a_message_has_its_tag_keys_and_unique_key() -> None:
    message = Message("T", b"x", {"TAGS": "A", "KEYS": "k1  k2 ", "UNIQ_KEY": "U"})
    assert (message.tag, message.keys, message.unique_key) == ("A", ("k1", "k2"), "U")
    bare = Message("T", b"x")
    assert (bare.tag, bare.keys, bare.unique_key) == (None, (), None)


def test_a_stored_message_has_its_tag_keys_and_ids() -> None:
    message = stored({"TAGS": "A", "KEYS": "k", "UNIQ_KEY": "U"})
    assert (message.tag, message.keys, message.message_id) == ("A", ("k",), "U")
    assert message.stored_id == "0A00000500002A9F0000000000001000"
    assert stored({}).message_id == message.stored_id
    assert message.inflated_body() == b"x"
    assert not message.is_compressed
    with pytest.raises(CorruptRecordError):
        stored({}, sys_flag=0x1).inflated_body()


def test_queues_sort_as_clients_sort_them() -> None:
    queues = [
        MessageQueue("T", "b", 0),
        MessageQueue("T", "a", 10),
        MessageQueue("T", "a", 9),
        MessageQueue("S", "z", 5),
    ]
    assert [(queue.topic, queue.broker_name, queue.queue_id) for queue in sorted(queues)] == [
        ("S", "z", 5),
        ("T", "a", 9),
        ("T", "a", 10),
        ("T", "b", 0),
    ]


def test_successful_send_statuses() -> None:
    assert [state for state in CrcState if state.is_good] == [CrcState.OK, CrcState.BODY_ONLY]


def test_reserved_names() -> None:
    assert {"KEYS", "TAGS", "1ST_POP_TIME", "__CRC32#", "__SHARDINGKEY"} < RESERVED_PROPERTIES
    assert "gantry.model.propertyname" not in RESERVED_PROPERTIES
    assert is_reserved_property(PropertyName.DELAY)
    assert is_reserved_property("__RMQ.TRANSIENT.x")
    assert not is_reserved_property("mine")
