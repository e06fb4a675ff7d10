"""Paths are matched segment by segment, decoded strictly, and nothing is redirected: Starlette's router behind ours."""

import json

import pytest
from starlette.routing import Route

from services.gateway.app import make_application
from services.gateway.asgi.answer import json_answer
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.paths import routing_path
from services.gateway.auth.keyring import KeyRecord, KeyRing, digest_of
from services.gateway.errors import ProblemError
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.middleware import PATHS_CACHED_MAX, BarePaths
from services.gateway.schemas.rights import ALL_RIGHTS
from services.gateway.settings import GatewaySettings
from tests.support.callers import callers_of
from tests.support.virtualtime import FakeClock


async def endpoint(call):
    return json_answer({"parameters": call.path_params, "template": call.path_label})


ROUTES = [
    Operation("GET", "/v1/topics", endpoint),
    Operation("PUT", "/v1/topics/{topic}", endpoint),
    Operation("GET", "/v1/topics/{topic}", endpoint),
    Operation("POST", "/v1/topics/{topic}/messages", endpoint, is_bare=True),
    Operation("POST", "/v1/topics/{topic}/messages:batch", endpoint),
    Operation("GET", "/v1/topics/{topic}/queues/{broker}/{queue_id}/messages", endpoint),
    Operation("POST", "/v1/tickets", endpoint),
]


def application(routes):
    keys = KeyRing()
    keys.replace([KeyRecord("key-1", digest_of("gk_x"), "n", ALL_RIGHTS)])
    limits, clock = Limits(GatewaySettings()), FakeClock()
    return make_application(
        routes,
        callers_of(keys, clock),
        GatewayMetrics(),
        clock=clock,
        limits=limits,
        access_log=False,
        is_stopping=lambda: False,
    )


APP = application(ROUTES)


async def ask(method, raw_path, app=APP):
    """Return status, headers and body of the answer to a request with a key."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": "", "raw_path": raw_path, "query_string": b""}
    await app({**scope, "headers": [(b"authorization", b"Bearer gk_x")]}, receive, send)
    start, body = sent
    return start["status"], dict(start["headers"]), json.loads(body["body"] or b"null")


@pytest.mark.parametrize(
    ("method", "path", "parameters"),
    [
        ("GET", b"/v1/topics", {}),
        ("GET", b"/v1/topics/FLIGHTS", {"topic": "FLIGHTS"}),
        ("GET", b"/v1/topics/%25RETRY%25g", {"topic": "%RETRY%g"}),
        ("GET", b"/v1/topics/%252F", {"topic": "%2F"}),
        ("GET", b"/v1/topics/a%2Fb", {"topic": "a/b"}),
        ("GET", b"/v1/topics/a%0A", {"topic": "a\n"}),
        ("GET", b"/v1/topics/%E4%BD%A0", {"topic": "你"}),
        ("GET", b"/v1/topics/+", {"topic": "+"}),
        ("GET", b"/v1/topics/..", {"topic": ".."}),
        ("POST", b"/v1/topics/T/messages%3Abatch", {"topic": "T"}),
        ("POST", b"/v1/topics/a%2Fb/messages", {"topic": "a/b"}),
        ("POST", b"/v1/topics/%25DLQ%25g/messages", {"topic": "%DLQ%g"}),
        ("GET", b"/v1/topics/T/queues/b/0/messages", {"topic": "T", "broker": "b", "queue_id": "0"}),
    ],
)
async def test_a_path_is_found_with_its_parameters(method, path, parameters):
    for _ in range(2):  # The second time, bare operations come from the cache.
        status, _, found = await ask(method, path)
        assert (status, found["parameters"]) == (200, parameters)


async def test_a_name_goes_before_a_parameter_where_both_lead_somewhere():
    templates = ("/jobs/{job}/runs", "/jobs/lag/rows", "/jobs/{job}/rows/{row}")
    app = application([Operation("GET", path, endpoint) for path in templates])
    for path, parameters in (
        (b"/jobs/lag/rows", {}),
        (b"/jobs/lag/runs", {"job": "lag"}),
        (b"/jobs/lag/rows/7", {"job": "lag", "row": "7"}),
        (b"/jobs/other/runs", {"job": "other"}),
    ):
        assert (await ask("GET", path, app))[2]["parameters"] == parameters
    for path in (b"/jobs/other/rows", b"/jobs/lag", b"/jobs/lag/rows/"):
        status, _, problem = await ask("GET", path, app)
        assert (status, "there is nothing at" in problem["detail"]) == (404, True)


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
        b"/v1/topics//messages",
        b"/v1/topics/T/messages/",
        b"/v1/topics/T/messages%0A",
        b"/v1/topics/T/messages:Batch",
        b"/v1/topics/T/messages%253Abatch",
        b"/v1%2Ftopics",
        b"/v1/topics%0A",
        b"/V1/topics",
        b"/v1/topics;a=b",
        b"/v1/./topics",
        b"/v1/x/../topics",
        b"v1/topics",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_anything_else_is_nothing(method, path):
    status, _, problem = await ask(method, path)
    assert (status, problem["type"].rpartition("/")[2]) == (404, "not-found")


@pytest.mark.parametrize(
    "path",
    [b"/v1/topics/%ff", b"/v1/topics/%", b"/v1/topics/%1", b"/v1/topics/%zz", b"/%C0%AF", b"/v1/topics/%ff/messages"],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_an_escape_that_is_not_utf8_is_refused(method, path):
    status, _, problem = await ask(method, path)
    assert (status, problem["type"].rpartition("/")[2]) == (400, "malformed-path")


async def test_a_wrong_method_names_the_right_ones():
    status, headers, _ = await ask("POST", b"/v1/topics/T")
    assert (status, headers[b"allow"]) == (405, b"GET, HEAD, OPTIONS, PUT")
    status, headers, _ = await ask("HEAD", b"/v1/tickets")
    assert (status, headers[b"allow"]) == (405, b"OPTIONS, POST")
    status, headers, _ = await ask("GET", b"/v1/topics/T/messages")
    assert (status, headers[b"allow"]) == (405, b"OPTIONS, POST"), "a bare operation is in the table, too"
    assert (await ask("HEAD", b"/v1/topics"))[0] == 200


async def test_the_cache_of_paths_is_bounded():
    paths = BarePaths([Operation("POST", "/v1/topics/{topic}", endpoint)])

    def find(number):
        scope = {"type": "http", "method": "POST", "raw_path": b"/v1/topics/%d" % number}
        assert paths.find(scope) is not None
        return scope["path_params"]

    for number in range(PATHS_CACHED_MAX + 8):
        find(number)
    assert find(1) == {"topic": "1"}
    assert len(paths._found) <= PATHS_CACHED_MAX


def test_a_path_is_shown_as_it_was_written():
    for path, said in ((b"*", "path: '*' does not start with /"), (b"/%ff", "path: '%ff' is not UTF-8")):
        with pytest.raises(ProblemError) as caught:
            routing_path(path)
        assert caught.value.detail == said


def test_an_operation_is_a_route_of_starlette():
    [first, *_] = APP.routes
    assert isinstance(first, Route)
    assert (first.path, first.methods) == ("/v1/topics", {"GET", "HEAD"})
    topic = next(route for route in APP.routes if route.path == "/v1/topics/{topic}")
    assert topic.url_path_for("endpoint", topic="a/b") == "/v1/topics/a%2Fb"
