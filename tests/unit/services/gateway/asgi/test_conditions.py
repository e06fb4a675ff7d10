"""Conditions and coding: what a caller expects, and in what it wants its answer."""

import pytest

from services.gateway.asgi.call import ByteBudget, Call
from services.gateway.asgi.conditions import expectation_of
from services.gateway.db.repositories import Expectation
from services.gateway.errors import ProblemError


def call(**headers: str) -> Call:
    pairs = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    return Call({"headers": list(pairs.items())}, None, pairs, ByteBudget(0))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, Expectation()),
        ({"if_match": "*"}, Expectation(exists=True)),
        ({"if_match": '"3"'}, Expectation(version=3)),
        ({"if_match": "3"}, Expectation(version=3)),
        ({"if_none_match": "*"}, Expectation(exists=False)),
    ],
)
def test_conditions(headers, expected):
    assert expectation_of(call(**headers)) == expected


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"if_match": '"x"'}, 400),
        ({"if_match": 'W/"3"'}, 400),
        ({"if_match": '"1", "2"'}, 400),
        ({"if_none_match": '"3"'}, 400),
        ({"if_match": "*", "if_none_match": "*"}, 412),
    ],
)
def test_conditions_that_can_not_be(headers, status):
    with pytest.raises(ProblemError) as caught:
        expectation_of(call(**headers))
    assert caught.value.status == status


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
def test_message_pack_is_given_to_who_prefers_it(accept, is_msgpack):
    assert call(accept=accept).wants_msgpack is is_msgpack
