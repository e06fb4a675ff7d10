import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gantry.model.message import MessageQueue
from gantry.remoting.bodies import fastjson
from gantry.remoting.bodies.fastjson import (
    DEPTH_MAX,
    RELAXED_BYTES_MAX,
    MessageQueueBean,
    decode_json,
    encode_json,
    integer_keys,
    queue_keys,
    queue_table,
    to_strict_json,
)
from gantry.remoting.errors import BodyError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, st.sampled_from([None, 1]))
def test_strict_json_is_left_as_it_is(value: Any, indent: int | None):
    assert json.loads(to_strict_json(json.dumps(value, indent=indent).encode())) == value


@pytest.mark.parametrize(
    ("relaxed", "strict"),
    [
        (b'{0:"a",1:"b"}', {"0": "a", "1": "b"}),
        (b"{-1 : 2}", {"-1": 2}),
        (b'{"t":{0:{1:[{2:3}]}}}', {"t": {"0": {"1": [{"2": 3}]}}}),
        (b'{{"a":1}:2}', [[{"a": 1}, 2]]),
        (b'{{"a":1}:{"x":[1]},{"a":2}:{}}', [[{"a": 1}, {"x": [1]}], [{"a": 2}, {}]]),
        (b'{{0:1}:{{"b":1}:2}}', [[{"0": 1}, [[{"b": 1}, 2]]]]),
        (b'{"a":{},"b":[]}', {"a": {}, "b": []}),
        (b'{"a:{0:1}":"{1:2}"}', {"a:{0:1}": "{1:2}"}),
        (b'{"a\\"":1}', {'a"': 1}),
    ],
)
def test_fastjsons_keys_are_rewritten(relaxed: bytes, strict: Any):
    assert json.loads(to_strict_json(relaxed)) == strict


@pytest.mark.parametrize(
    "data",
    [
        b"}",
        b"]",
        b"{:1}",
        b"{,}",
        b"{a:1}",
        b"{1.5:1}",
        b"{[1]:2}",
        b'{"a"::1}',
        b'{"a",1}',
        b"{0:1:2}",
        b"[1:2]",
        b",",
        b":",
    ],
)
def test_tokens_out_of_place_are_refused(data: bytes):
    with pytest.raises(BodyError, match="out of place at byte"):
        to_strict_json(data)


@pytest.mark.parametrize(
    "data", [b'{"a":1', b'{"a', b"[1,]", b"{0:1,}", b'{{"a":1}:2,}', b"{0:}", b"[}", b"nul", b"\xff", b""]
)
def test_invalid_json_is_refused(data: bytes):
    with pytest.raises(BodyError):
        decode_json(dict[str, int], data)


def test_depth_is_limited():
    deep = b'{"a":' * DEPTH_MAX + b"{0:1}" + b"}" * DEPTH_MAX

    with pytest.raises(BodyError, match=f"deeper than {DEPTH_MAX}"):
        to_strict_json(deep)
    with pytest.raises(BodyError):
        decode_json(dict[str, Any], b'{"a":' * 100_000)


def test_only_bodies_that_need_the_relaxed_parser_have_a_size_limit():
    large = b'{"a":"' + b"x" * RELAXED_BYTES_MAX + b'"}'

    assert decode_json(dict[str, str], large)["a"]
    with pytest.raises(BodyError, match="at most"):
        decode_json(dict[str, str], large[:-1] + b',{"b":1}:"x"}')


def test_a_value_of_the_wrong_type_is_named_with_its_path():
    with pytest.raises(BodyError, match="body MessageQueueBean at queueId: Expected `int`, got `str`") as caught:
        MessageQueueBean.decode(b'{"brokerName":"b","queueId":"x","topic":"T"}')
    assert (caught.value.kind, caught.value.field) == ("MessageQueueBean", "queueId")

    with pytest.raises(BodyError, match="missing required field `topic`") as caught:
        MessageQueueBean.decode(b'{"brokerName":"b","queueId":1}')
    assert caught.value.field == ""


def test_a_value_of_the_wrong_type_is_also_named_after_rewriting():
    with pytest.raises(BodyError, match="Expected `int`, got `str`"):
        decode_json(dict[int, int], b'{0:"x"}')


def test_keys_are_written_raw():
    queue = MessageQueue("T", "broker-a", 0)

    assert encode_json(integer_keys({0: "a", 1: "b"})) == b'{0:"a",1:"b"}'
    assert encode_json(queue_keys([(queue, 5)])) == b'{{"brokerName":"broker-a","queueId":0,"topic":"T"}:5}'
    assert encode_json(queue_keys([])) == b"{}"


def test_queue_tables_are_decoded_in_each_form():
    queue = MessageQueue("T", "broker-a", 0)
    kind = list[tuple[MessageQueueBean, int]] | dict[str, int]
    inner = '{"brokerName":"broker-a","queueId":0,"topic":"T"}'

    for data in ("{" + inner + ":5}", json.dumps({inner: 5})):
        assert queue_table(decode_json(kind, data.encode())) == {queue: 5}  # type: ignore[arg-type]
    assert queue_table({}) == {}
    with pytest.raises(BodyError):
        queue_table({"broker-a:0": 5})


def test_decoders_are_cached():
    decode_json(dict[str, int], b"{}")

    assert dict[str, int] in fastjson._decoders


@pytest.mark.parametrize("text", ["{1:2", ",7:", "a,-3:b{0:c", '\\",1:'])
def test_a_text_that_looks_like_an_integer_key_stays_as_it_is(text: str):
    quoted = json.dumps(text)
    data = f'{{"t":{{0:{quoted},1:"b"}}}}'.encode()
    assert decode_json(dict[str, dict[int, str]], data) == {"t": {0: text, 1: "b"}}


def test_large_tables_with_integer_keys_are_read_whole():
    table = {f"TOPIC_{number}@GROUP": dict.fromkeys(range(16), 2**40 + number) for number in range(25_000)}
    data = b"{%s}" % b",".join(
        b'"%s":{%s}' % (key.encode(), b",".join(b"%d:%d" % pair for pair in queues.items()))
        for key, queues in table.items()
    )
    assert len(data) > RELAXED_BYTES_MAX
    assert decode_json(dict[str, dict[int, int]], data) == table
