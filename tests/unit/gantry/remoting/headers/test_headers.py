import contextlib

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gantry.remoting import headers
from gantry.remoting.errors import HeaderError
from gantry.remoting.headers import (
    GetMaxOffsetHeader,
    PullMessageHeader,
    PullMessageResponseHeader,
    SearchOffsetHeader,
    SendMessageHeader,
    SendMessageHeaderV2,
    read_send_header,
)

ALL = [
    kind for name in headers.__all__ if isinstance(kind := getattr(headers, name), type) and kind is not headers.Header
]
SEND = {
    "a": "PG", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "1700000000000", "h": "0", "i": "K\x01v\x02",
    "j": "2", "k": "false", "l": "16", "m": "true", "n": "broker-a",
}  # fmt: skip


VALUES = {
    "str": st.text(max_size=10),
    "bool": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "None": st.none(),
}


def built(kind: type[headers.Header]) -> st.SearchStrategy[headers.Header]:
    """Return headers with any values; the narrower of the two integer ranges fits all."""
    fields = {}
    for field in msgspec.structs.fields(kind):
        names = {word for word in VALUES if word in str(field.type)}
        fields[field.name] = st.one_of([VALUES[name] for name in sorted(names)])
    return st.builds(kind, **fields)


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@settings(max_examples=15)
@given(data=st.data())
def test_encoding_round_trips(kind: type[headers.Header], data: st.DataObject):
    header = data.draw(built(kind))

    ext = header.to_ext()

    assert all(type(value) is str for value in ext.values())
    assert kind.from_ext(ext) == header
    assert kind.from_ext(ext | {"ReqT": "0", "OnsChannel": "ALIYUN"}) == header


@given(st.data())
def test_anything_is_read_or_refused_by_name(data: st.DataObject):
    kind = data.draw(st.sampled_from(ALL))
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    values = st.text(max_size=8) | st.sampled_from(["", "0", "true", "null", "NaN", "-1", "1e9", " 1", "1_0"])
    ext = data.draw(st.dictionaries(st.sampled_from(names), values)) if names else {}

    with contextlib.suppress(HeaderError):
        assert kind.from_ext(ext) is not None


def test_both_forms_of_a_send_are_equal():
    short = read_send_header(310, SEND)
    long = read_send_header(10, SendMessageHeader.to_ext(short) | short_to_long(short))

    assert isinstance(short, SendMessageHeader)
    assert isinstance(short, SendMessageHeaderV2)
    assert short.to_ext() == SEND
    assert long.to_ext_v2() == SEND
    assert read_send_header(320, SEND) == short


def short_to_long(header: SendMessageHeader) -> dict[str, str]:
    fields = {name: getattr(header, name) for name in header.__struct_fields__}
    return SendMessageHeader(**fields).to_ext()


def test_optional_fields_of_a_send_may_be_absent():
    required = {key: SEND[key] for key in "abcdefgh"}

    assert read_send_header(310, required).to_ext() == required


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("e", None, "header field e is missing: the request needs it"),
        ("e", "x", r"header field e = 'x': Expected `int`"),
        ("e", "", "header field e = ''"),
        ("e", "1.5", "header field e = '1.5'"),
        ("e", "2147483648", "header field e = '2147483648': Expected `int` <= 2147483647"),
        ("g", "9223372036854775808", "header field g = '9223372036854775808'"),
        ("g", "9" * 5000, "header field g = '999"),
        ("k", "maybe", "header field k = 'maybe': Expected `bool`"),
        ("j", "many", "header field j = 'many': Expected `int`"),
    ],
)
def test_a_wrong_field_is_named_with_its_value(field: str, value: str | None, message: str):
    ext = {key: text for key, text in (SEND | {field: value}).items() if text is not None}

    with pytest.raises(HeaderError, match=message) as caught:
        read_send_header(310, ext)

    assert (caught.value.field, caught.value.value) == (field, value)
    assert len(str(caught.value)) < 300


def test_a_wrong_field_behind_absent_ones_is_found():
    ext = {key: SEND[key] for key in "abcdefgh"} | {"m": "perhaps"}

    with pytest.raises(HeaderError, match="header field m = 'perhaps'"):
        read_send_header(320, ext)


def test_pull_headers_have_the_names_of_the_protocol():
    header = PullMessageHeader("g", "T", 0, 1, 32, 2, -1, 15_000, 7, proxy_froward_client_id="c")

    assert header.to_ext()["proxyFrowardClientId"] == "c"
    assert PullMessageResponseHeader(0, 1, 2, 3, 4, 5, 6, 7).to_ext() == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "1", "minOffset": "2", "maxOffset": "3",
        "offsetDelta": "4", "topicSysFlag": "5", "groupSysFlag": "6", "forbiddenType": "7",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("boundary", "is_upper"), [(None, False), ("LOWER", False), ("lower", False), ("Upper", True), ("x", False)]
)
def test_any_boundary_other_than_upper_is_lower(boundary: str | None, is_upper: bool):
    assert SearchOffsetHeader("T", 0, 1, boundary).is_upper is is_upper


@pytest.mark.parametrize(("text", "value"), [("true", True), ("TRUE", True), ("false", False), ("False", False)])
def test_booleans_are_read_in_any_case(text: str, value: bool):
    assert GetMaxOffsetHeader.from_ext({"topic": "T", "queueId": "0", "committed": text}).committed is value
