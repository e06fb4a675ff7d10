"""Paths are matched segment by segment, decoded strictly, and nothing is redirected."""

import pytest

from services.gateway.asgi.router import Route, Router
from services.gateway.errors import ProblemError


async def endpoint(call):
    raise NotImplementedError


ROUTER = Router(
    [
        Route("GET", "/v1/topics", endpoint),
        Route("PUT", "/v1/topics/{topic}", endpoint),
        Route("GET", "/v1/topics/{topic}", endpoint),
        Route("POST", "/v1/topics/{topic}/messages:batch", endpoint),
        Route("GET", "/v1/topics/{topic}/queues/{broker}/{queue_id}/messages", endpoint),
        Route("POST", "/v1/tickets", endpoint),
    ]
)


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        (b"/v1/topics", {}),
        (b"/v1/topics/FLIGHTS", {"topic": "FLIGHTS"}),
        (b"/v1/topics/%25RETRY%25g", {"topic": "%RETRY%g"}),
        (b"/v1/topics/a%2Fb", {"topic": "a/b"}),
        (b"/v1/topics/%E4%BD%A0", {"topic": "你"}),
        (b"/v1/topics/+", {"topic": "+"}),
        (b"/v1/topics/T/messages%3Abatch", {"topic": "T"}),
        (b"/v1/topics/T/queues/b/0/messages", {"topic": "T", "broker": "b", "queue_id": "0"}),
    ],
)
def test_a_path_is_found_with_its_parameters(path, parameters):
    for _ in range(2):  # The second time from the cache.
        assert ROUTER.find(path).parameters == parameters


def test_a_name_goes_before_a_parameter_where_both_lead_somewhere():
    router = Router(
        [Route("GET", path, endpoint) for path in ("/jobs/{job}/runs", "/jobs/lag/rows", "/jobs/{job}/rows/{row}")]
    )
    for path, parameters in (
        (b"/jobs/lag/rows", {}),
        (b"/jobs/lag/runs", {"job": "lag"}),
        (b"/jobs/lag/rows/7", {"job": "lag", "row": "7"}),
        (b"/jobs/other/runs", {"job": "other"}),
    ):
        assert router.find(path).parameters == parameters
    for path in (b"/jobs/other/rows", b"/jobs/lag", b"/jobs/lag/rows/"):
        with pytest.raises(ProblemError, match="there is nothing at"):
            router.find(path)


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"/",
        b"/v1",
        b"/v1/topics/",
        b"/v1//topics",
        b"//v1/topics",
        b"/v1/topics/T/",
        b"/v1/topics//messages:batch",
        b"/v1/topics/T/messages",
        b"/v1/topics/T/messages:Batch",
        b"/v1/topics/T/messages%253Abatch",
        b"/v1%2Ftopics",
        b"/V1/topics",
        b"/v1/topics;a=b",
        b"v1/topics",
    ],
)
def test_anything_else_is_nothing(path):
    with pytest.raises(ProblemError) as caught:
        ROUTER.find(path)
    assert caught.value.kind.name == "not-found"


@pytest.mark.parametrize("path", [b"/v1/topics/%ff", b"/v1/topics/%", b"/v1/topics/%1", b"/v1/topics/%zz", b"/%C0%AF"])
def test_an_escape_that_is_not_utf8_is_refused(path):
    with pytest.raises(ProblemError) as caught:
        ROUTER.find(path)
    assert (caught.value.kind.name, caught.value.status) == ("malformed-path", 400)


def test_a_wrong_method_names_the_right_ones():
    with pytest.raises(ProblemError) as caught:
        ROUTER.find(b"/v1/topics/T").route_for("POST")
    assert (caught.value.status, caught.value.headers) == (405, {"Allow": "GET, HEAD, OPTIONS, PUT"})
    with pytest.raises(ProblemError) as caught:
        ROUTER.find(b"/v1/tickets").route_for("HEAD")
    assert caught.value.headers == {"Allow": "OPTIONS, POST"}
    assert ROUTER.find(b"/v1/topics").route_for("HEAD").method == "GET"


def test_the_cache_of_paths_is_bounded():
    router = Router([Route("GET", "/v1/topics/{topic}", endpoint)])
    for number in range(8_200):
        router.find(b"/v1/topics/%d" % number)
    assert router.find(b"/v1/topics/1").parameters == {"topic": "1"}
    assert len(router._found) <= 8_192


def test_a_path_is_shown_as_it_was_written():
    for path, said in ((b"*", "path: '*' does not start with /"), (b"/%ff", "path: '%ff' is not UTF-8")):
        with pytest.raises(ProblemError) as caught:
            Router([]).find(path)
        assert caught.value.detail == said
