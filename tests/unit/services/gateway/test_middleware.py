"""What happens to every request: its id, who sent it, what it may be, and what goes wrong with it."""

import asyncio
import json

import pytest

from gantry.client.errors import RequestTimeoutError
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.router import Route, Router
from services.gateway.auth.keyring import KeyRecord, KeyRing, digest_of
from services.gateway.errors import TOO_LARGE
from services.gateway.metrics import GatewayMetrics
from services.gateway.middleware import Front
from services.gateway.routes.send import send_routes
from services.gateway.schemas.rights import ALL_RIGHTS
from services.gateway.settings import REQUEST_BYTES_MAX
from tests.support.virtualtime import FakeClock

KEY = (b"authorization", b"Bearer gk_x")
JSON = (b"content-type", b"application/json")


class Answered:
    def __init__(self, messages):
        start, body = messages
        self.status = start["status"]
        self.headers = dict(start["headers"])
        self.content = body["body"]

    @property
    def problem(self):
        assert self.headers[b"content-type"] == b"application/problem+json"
        return json.loads(self.content)


class Peer:
    """Makes requests of a Front."""

    def __init__(self, routes, **settings):
        keys = KeyRing()
        keys.replace([KeyRecord("key-1", digest_of("gk_x"), "n", ALL_RIGHTS)])
        self.metrics = GatewayMetrics()
        self.is_stopping = False
        limits = {"in_flight_max": 10, "body_bytes_total_max": 2 * REQUEST_BYTES_MAX, "access_log": False, **settings}
        self.front = Front(
            Router(routes), keys, self.metrics, clock=FakeClock(), is_stopping=lambda: self.is_stopping, **limits
        )

    async def ask(self, method, path, *headers, body=(b"",), query=b"", key=True):
        parts = [{"type": "http.request", "body": part, "more_body": True} for part in body]
        parts[-1]["more_body"] = False
        sent = []

        async def receive():
            return parts.pop(0) if parts else {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": query,
            "headers": [*headers, *([KEY] if key else [])],
        }
        await self.front(scope, receive, send)
        return Answered(sent) if sent else None


async def echo(call):
    return json_answer({"query": dict(call.query), "body": len(await call.read_body())})


async def broken(call):
    raise KeyError("secret")


async def slow_broker(call):
    raise RequestTimeoutError("127.0.0.1:10911", "no answer", sent=True)


async def for_ever(call):
    await asyncio.sleep(3_600)
    return Answer(200)


ROUTES = [
    Route("POST", "/v1/echo", echo, frozenset({"limit"})),
    Route("GET", "/v1/broken", broken),
    Route("GET", "/v1/slow", slow_broker),
    Route("GET", "/v1/ever", for_ever),
    Route("GET", "/public", echo, is_public=True),
    Route("POST", "/v1/send", echo, is_send=True),
]


@pytest.fixture
def peer():
    return Peer(ROUTES)


async def test_a_request_keeps_its_id_or_gets_one(peer):
    answer = await peer.ask("POST", "/v1/echo", (b"x-request-id", b"mine-1"))
    assert answer.headers[b"x-request-id"] == b"mine-1"
    first, second = [(await peer.ask("POST", "/v1/echo")).headers[b"x-request-id"] for _ in range(2)]
    assert first != second
    for bad in (b"", b"a b", b"\xff", b"x" * 129):
        answer = await peer.ask("POST", "/v1/echo", (b"x-request-id", bad))
        assert (answer.status, answer.problem["field"]) == (400, "X-Request-Id")


async def test_nobody_learns_paths_without_a_key(peer):
    for method, path in (("GET", "/v1/nope"), ("POST", "/v1/echo"), ("PUT", "/v1/echo"), ("GET", "/v1/%ff")):
        answer = await peer.ask(method, path, key=False)
        assert (answer.status, answer.headers[b"www-authenticate"]) == (401, b'Bearer realm="gantry"')
    assert (await peer.ask("GET", "/public", key=False)).status == 200
    assert (await peer.ask("GET", "/v1/nope")).status == 404
    assert (await peer.ask("PUT", "/v1/echo")).headers[b"allow"] == b"OPTIONS, POST"
    assert (await peer.ask("OPTIONS", "/v1/echo")).status == 204


async def test_queries_are_read_strictly(peer):
    assert json.loads((await peer.ask("POST", "/v1/echo", query=b"limit=5")).content)["query"] == {"limit": "5"}
    assert (await peer.ask("POST", "/v1/echo", query=b"limits=5")).problem["field"] == "limits"


@pytest.mark.parametrize("name", [b"content-type", b"idempotency-key", b"gantry-tag", b"x-request-id"])
async def test_headers_that_must_be_single_are(peer, name):
    answer = await peer.ask("POST", "/v1/echo", (name, b"a"), (name, b"a"))
    assert (answer.status, answer.problem["type"].rpartition("/")[2]) == (400, "duplicate")
    assert (await peer.ask("POST", "/v1/echo", (b"accept", b"a"), (b"accept", b"b"))).status == 200


async def test_a_body_is_bounded_before_it_is_read(peer):
    length = str(REQUEST_BYTES_MAX + 1).encode()
    assert (await peer.ask("POST", "/v1/echo", (b"content-length", length))).problem["status"] == TOO_LARGE.status
    chunks = [b"x" * (1 << 20)] * 9
    answer = await peer.ask("POST", "/v1/echo", (b"transfer-encoding", b"chunked"), body=chunks)
    assert answer.status == 413
    answer = await peer.ask("POST", "/v1/echo", (b"transfer-encoding", b"chunked"), body=chunks[:8])
    assert json.loads(answer.content)["body"] == REQUEST_BYTES_MAX
    assert (await peer.ask("POST", "/v1/echo", (b"content-encoding", b"gzip"))).status == 415


async def test_a_send_says_its_outcome_whatever_is_wrong(peer):
    for headers, key in (((), False), (((b"content-length", b"99999999"),), True), (((b"x-request-id", b" "),), True)):
        answer = await peer.ask("POST", "/v1/send", *headers, key=key)
        assert answer.status >= 400
        assert answer.problem["outcome"] == "not_stored"


async def test_a_bug_is_a_500_that_tells_nothing_and_is_counted(peer):
    answer = await peer.ask("GET", "/v1/broken")
    assert (answer.status, answer.problem["retryable"]) == (500, True)
    assert b"secret" not in answer.content
    assert peer.metrics.faults == 1
    assert (await peer.ask("GET", "/v1/slow")).status == 504
    assert peer.metrics.faults == 1


async def test_too_many_at_once_are_refused():
    peer = Peer(ROUTES, in_flight_max=2)
    waiting = [asyncio.ensure_future(peer.ask("GET", "/v1/ever")) for _ in range(2)]
    await asyncio.sleep(0)
    answer = await peer.ask("POST", "/v1/echo")
    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1")
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert (await peer.ask("POST", "/v1/echo")).status == 200


async def test_large_bodies_are_bounded_all_together():
    peer = Peer(ROUTES, body_bytes_total_max=REQUEST_BYTES_MAX)
    held = peer.front._budget
    held.take(REQUEST_BYTES_MAX - 1_000)
    assert (await peer.ask("POST", "/v1/echo", (b"content-length", b"100000"))).status == 503
    assert (await peer.ask("POST", "/v1/echo", (b"content-length", b"10"))).status == 200
    held.give(REQUEST_BYTES_MAX - 1_000)
    assert (await peer.ask("POST", "/v1/echo", (b"content-length", b"100000"))).status == 200
    assert held.used_bytes == 0


async def test_what_is_cut_off_while_stopping_is_told_so(peer):
    for stopping, status in ((True, 503), (False, None)):
        peer.is_stopping = stopping
        task = asyncio.ensure_future(peer.ask("GET", "/v1/ever"))
        await asyncio.sleep(0)
        task.cancel()
        if status is None:
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            assert (await task).status == status


async def test_a_caller_who_has_gone_gets_no_answer(peer):
    async def gone():
        return {"type": "http.disconnect"}

    sent = []
    scope = {"method": "POST", "path": "/v1/echo", "raw_path": b"/v1/echo", "query_string": b"", "headers": [KEY]}
    await peer.front(scope, gone, sent.append)
    assert sent == []


class RecordingSender:
    """Takes messages as SendMessages does."""

    def __init__(self):
        self.messages = []

    def check_topic(self, topic):
        pass

    async def send_one(self, topic, message):
        self.messages.append(message)
        return {"outcome": "stored", "message_id": "ID"}

    async def send_many(self, topic, items, request_id):
        return [{"outcome": "stored"} for _ in items]


TRACE_PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_a_raw_body_brings_its_metadata_in_headers():
    sender = RecordingSender()
    peer = Peer(send_routes(sender))
    headers = [
        (b"content-type", b"text/csv; charset=latin-1"),
        (b"gantry-tag", b"A%41"),
        (b"gantry-keys", b"k1, k%2C2"),
        (b"gantry-property-origin", b"%E4%BD%A0"),
        (b"gantry-ordering-key", b"N1"),
        (b"traceparent", TRACE_PARENT.encode()),
        (b"idempotency-key", b"order-42"),
    ]
    assert (await peer.ask("POST", "/v1/topics/T/messages", *headers, body=(b"\xff",))).status == 201
    [message] = sender.messages
    assert (message.body, message.tag, message.keys, message.ordering_key) == (b"\xff", "AA", ["k1", "k,2"], "N1")
    assert message.properties == {
        "origin": "你",
        "content-type": "text/csv; charset=latin-1",
        "traceparent": TRACE_PARENT,
    }
    assert message.idempotency_key == "order-42"


@pytest.mark.parametrize("value", ["", "00-1-2-01", TRACE_PARENT.upper(), TRACE_PARENT + "x", "\xff"])
async def test_a_traceparent_that_is_none_costs_no_message(value):
    sender = RecordingSender()
    answer = await Peer(send_routes(sender)).ask(
        "POST", "/v1/topics/T/messages", (b"traceparent", value.encode("latin-1")), body=(b"x",)
    )
    assert answer.status == 201
    assert not sender.messages[0].properties


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("messages", [(b"gantry-colour", b"red")], b"x", 400),
        ("messages", [(b"gantry-property-", b"x")], b"x", 400),
        ("messages", [(b"gantry-tag", b"%ff")], b"x", 400),
        ("messages", [(b"gantry-tag", b"\xff")], b"x", 400),
        ("messages", [(b"gantry-property-content-type", b"x"), (b"content-type", b"text/plain")], b"x", 400),
        ("messages", [(b"idempotency-key", b"a b")], b"x", 400),
        ("messages", [JSON, (b"gantry-tag", b"A")], b'{"body": "a"}', 400),
        ("messages", [JSON], b'{"body": "a", "idempotency_key": "k"}', 400),
        ("messages", [(b"content-type", b"application/json; charset=utf-16")], b"{}", 415),
        ("messages", [(b"content-type", b"Application/JSON; charset=UTF-8")], b'{"body": "a"}', 201),
        ("messages:batch", [JSON, (b"idempotency-key", b"k")], b'{"messages": [{"body": "a"}]}', 400),
        ("messages:batch", [JSON, (b"gantry-tag", b"k")], b'{"messages": [{"body": "a"}]}', 400),
        ("messages:batch", [(b"content-type", b"text/plain")], b"x", 415),
        ("messages:batch", [], b"x", 415),
        ("messages:batch", [(b"content-type", b"application/x-ndjson")], b'{"body": "a"}\n', 200),
    ],
)
async def test_requests_to_send_are_read_strictly(path, headers, body, status):
    peer = Peer(send_routes(RecordingSender()))
    answer = await peer.ask("POST", f"/v1/topics/T/{path}", *headers, body=(body,))
    assert answer.status == status
    if status >= 400:
        assert answer.problem["outcome"] == "not_stored"
