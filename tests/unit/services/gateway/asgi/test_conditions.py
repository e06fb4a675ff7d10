"""Conditional requests and content negotiation."""

import pytest

from services.gateway.asgi.call import Call
from services.gateway.asgi.conditions import etag_of, expectation_of, shown_answer
from services.gateway.db.repositories import Expectation
from services.gateway.errors import ProblemError


def call(**headers: str) -> Call:
    pairs = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return Call({"type": "http", "headers": list(pairs.items())}, None, None)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, Expectation()),
        ({"if_match": "*"}, Expectation(exists=True)),
        ({"if_match": '"3"'}, Expectation(version=3)),
        ({"if_match": "3"}, Expectation(version=3)),
        ({"if_match": '"3-5f3b9a01"'}, Expectation(version=3)),
        ({"if_none_match": "*"}, Expectation(exists=False)),
    ],
)
def test_conditions(headers, expected):
    assert expectation_of(call(**headers)) == expected


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"if_match": '"x"'}, 400),
        ({"if_match": 'W/"3"'}, 412),
        ({"if_match": 'W/"3-5f3b9a01"'}, 412),
        ({"if_match": "W/3"}, 400),
        ({"if_match": '"1", "2"'}, 400),
        ({"if_none_match": '"3"'}, 400),
        ({"if_match": "*", "if_none_match": "*"}, 412),
    ],
)
def test_invalid_conditions(headers, status):
    with pytest.raises(ProblemError) as caught:
        expectation_of(call(**headers))
    assert caught.value.status == status


VIEW = {"topic": "T"}
ETAG = etag_of(VIEW, 3)


@pytest.mark.parametrize(
    ("none_match", "status"),
    [
        ("*", 304),
        ("TAG", 304),
        ("W/TAG", 304),
        ("BARE", 304),
        ("3", 200),
        ('"other", W/TAG', 304),
        ('"other",TAG', 304),
        ('"3"', 200),
        ('"4-00000000"', 200),
        ('""', 200),
    ],
)
def test_a_matching_tag_gets_304(none_match, status):
    header = none_match.replace("TAG", ETAG).replace("BARE", ETAG.strip('"'))
    answer = shown_answer(call(if_none_match=header), VIEW, 3)
    assert (answer.status_code, dict(answer.raw_headers)[b"etag"].decode()) == (status, ETAG)
    assert bool(answer.body) is (status == 200)


@pytest.mark.parametrize("none_match", ["x", "", '"a" "b"', 'w/"a"', ",".join(['"a"'] * 33)])
def test_if_none_match_that_is_no_list_of_tags(none_match):
    with pytest.raises(ProblemError) as caught:
        shown_answer(call(if_none_match=none_match), VIEW, 3)
    assert (caught.value.status, caught.value.field) == (400, "If-None-Match")


def test_without_postgres_there_is_no_tag_to_compare():
    assert shown_answer(call(if_none_match="*"), VIEW, None).status_code == 200


def test_another_view_of_the_same_version_has_another_tag():
    other = etag_of({**VIEW, "state": "pending"}, 3)
    assert other != ETAG
    assert expectation_of(call(if_match=other)) == expectation_of(call(if_match=ETAG))


@pytest.mark.parametrize(
    ("accept", "is_msgpack"),
    [
        ("application/msgpack", True),
        ("application/json, application/msgpack", True),
        ("application/json, application/msgpack;q=0.5", False),
        ("application/msgpack;q=0", False),
        ("application/msgpack;q=x", False),
        ("application/msgpack, */*", True),
        ("*/*", False),
        ("application/json", False),
    ],
)
def test_a_client_that_prefers_message_pack_gets_it(accept, is_msgpack):
    assert call(accept=accept).wants_msgpack is is_msgpack
