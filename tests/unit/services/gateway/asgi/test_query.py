"""Query parameters: the gateway rejects unknown, repeated and invalid ones."""

import pytest

from gantry.model.errors import InvalidValueError
from services.gateway.asgi.query import duration_of, flag_of, integer, limit_of, parse_query, time_of
from services.gateway.errors import ProblemError

ALLOWED = frozenset({"limit", "filter", "wait", "at", "system"})


def test_parameters_are_decoded():
    assert parse_query(b"limit=5&filter=AA%20||%20UA+x&&wait=", ALLOWED) == {
        "limit": "5",
        "filter": "AA || UA x",
        "wait": "",
    }


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"limit=5&limit=5", "duplicate"),
        (b"limit=5&l%69mit=6", "duplicate"),
        (b"limits=5", "unknown-parameter"),
        (b"=5", "unknown-parameter"),
        (b"limit", None),
        (b"filter=%ff", "malformed-path"),
        (b"filter=%", "malformed-path"),
        (b"%ff=1", "malformed-path"),
    ],
)
def test_unknown_and_invalid_parameters_are_refused(raw, kind):
    if kind is None:
        assert parse_query(raw, ALLOWED) == {"limit": ""}
        return
    with pytest.raises(ProblemError) as caught:
        parse_query(raw, ALLOWED)
    assert caught.value.kind.name == kind
    assert caught.value.field


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "1.0", "01", "1e3", " 1", "1_000", "\uff13", "0x1", "9" * 20, str(2**63)]
)
def test_integers_are_plain_digits(text):
    with pytest.raises(ProblemError):
        integer(text, "offset")


def test_typed_parameters():
    assert integer("0", "n") == 0
    assert integer(str(2**63 - 1), "offset") == 2**63 - 1
    assert limit_of({}) == 100
    assert limit_of({"limit": "1000"}) == 1_000
    for bad in ("0", "1001"):
        with pytest.raises(ProblemError):
            limit_of({"limit": bad})
    assert flag_of({"system": "true"}, "system")
    assert not flag_of({}, "system")
    with pytest.raises(ProblemError):
        flag_of({"system": "1"}, "system")
    assert duration_of({"wait": "PT1.5S"}, "wait", default_ms=0, max_ms=2_000) == 1_500
    with pytest.raises(InvalidValueError):
        duration_of({"wait": "3s"}, "wait", default_ms=0, max_ms=2_000)
    with pytest.raises(InvalidValueError):
        time_of({}, "at")
