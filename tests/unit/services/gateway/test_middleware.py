"""Processing of every request: its id, its authentication, its limits, and its errors."""

import asyncio
import json

import pytest

from gantry.client.errors import RequestTimeoutError
from services.gateway.app import make_application
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.operation import Operation
from services.gateway.auth.keyring import KeyRecord, KeyRing, digest_of
from services.gateway.errors import TOO_LARGE
from services.gateway.features.limits import limit_routes
from services.gateway.features.send import send_routes
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.schemas.rights import ALL_RIGHTS
from services.gateway.settings import BODY_RESERVE_PART, REQUEST_BYTES_MAX, GatewaySettings
from tests.support.callers import callers_of
from tests.support.sendresults import stored_messages
from tests.support.virtualtime import FakeClock

KEY = (b"authorization", b"Bearer gk_x")
JSON = (b"content-type", b"application/json")
RAW = (b"content-type", b"application/octet-stream")


class Answered:
    def __init__(self, messages):
        start, body = messages
        self.status = start["status"]
        self.headers = dict(start["headers"])
        self.content = body["body"]

    @property
    def json(self):
        return json.loads(self.content)

    @property
    def problem(self):
        assert self.headers[b"content-type"] == b"application/problem+json"
        return json.loads(self.content)


class Peer:
    """Sends requests to an HttpApp."""

    def __init__(self, routes, *, limits=None, **settings):
        self.keys = keys = KeyRing()
        keys.replace([KeyRecord("key-1", digest_of("gk_x"), "n", ALL_RIGHTS)])
        self.metrics = GatewayMetrics()
        self.is_stopping = False
        settings = GatewaySettings(**{"public_contract": False, **settings})
        settings.check()
        self.limits = limits or Limits(settings)
        self.front = make_application(
            routes,
            callers_of(keys, FakeClock()),
            self.metrics,
            clock=FakeClock(),
            limits=self.limits,
            is_stopping=lambda: self.is_stopping,
            access_log=False,
            cors_origins=settings.cors_origins,
            is_public_contract=settings.public_contract,
        )

    async def stall(self, method, path, *headers):
        """Send a head, and never a body."""
        never = asyncio.Event()
        scope = {"method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
        await self.front({"type": "http", "headers": [*headers, KEY], **scope}, never.wait, never.wait)

    async def ask(
        self, method, path, *headers, body=(b"",), query=b"", key=True, address="192.0.2.1", last=lambda: None
    ):
        """Send a request; `last` is called before the last part of its body is sent."""
        parts = [{"type": "http.request", "body": part, "more_body": True} for part in body]
        parts[-1]["more_body"] = False
        sent = []

        async def receive():
            if len(parts) == 1:
                last()
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
            "client": (address, 50_000),
        }
        await self.front(scope, receive, send)
        return Answered(sent) if sent else None


async def echo(call):
    return json_answer({"query": dict(call.query), "body": len(await call.read_body())})


async def look(call):
    """Wait for an event as a long poll does; here the event is the rest of the request's body."""
    await call._receive()
    return json_answer({"messages": ["secret"]})


async def broken(call):
    raise KeyError("secret")


async def slow_broker(call):
    raise RequestTimeoutError("127.0.0.1:10911", "no answer", sent=True)


async def for_ever(call):
    await asyncio.sleep(3_600)
    return Answer(200)


async def wait_for_ever(call):
    with call.waiting():
        await asyncio.sleep(3_600)
    return Answer(200)


ROUTES = [
    Operation("POST", "/v1/echo", echo, frozenset({"limit"})),
    Operation("GET", "/v1/look", look),
    Operation("PUT", "/v1/look", look),
    Operation("GET", "/v1/broken", broken),
    Operation("GET", "/v1/slow", slow_broker),
    Operation("GET", "/v1/ever", for_ever),
    Operation("GET", "/v1/wait", wait_for_ever),
    Operation("GET", "/v1/probe", echo, is_probe=True),
    Operation("GET", "/public", echo, is_public=True),
    Operation("POST", "/v1/send", echo, is_send=True),
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


async def test_paths_are_not_revealed_without_a_key(peer):
    for method, path in (("GET", "/v1/nope"), ("POST", "/v1/echo"), ("PUT", "/v1/echo"), ("GET", "/v1/%ff")):
        answer = await peer.ask(method, path, key=False)
        assert (answer.status, answer.headers[b"www-authenticate"]) == (401, b'Bearer realm="gantry"')
    assert (await peer.ask("GET", "/public", key=False)).status == 200
    assert (await peer.ask("GET", "/v1/nope")).status == 404
    assert (await peer.ask("PUT", "/v1/echo")).headers[b"allow"] == b"OPTIONS, POST"
    assert (await peer.ask("OPTIONS", "/v1/echo")).status == 204
    twice = (b"if-match", b"*")
    assert (await peer.ask("OPTIONS", "/v1/echo", twice, twice)).problem["field"] == "if-match"
    assert (await peer.ask("OPTIONS", "/v1/echo", (b"x-request-id", b"a b"))).status == 400


@pytest.mark.parametrize("path", ["/v1/nope", "/v1/%ff"])
async def test_a_refused_request_that_may_be_a_send_says_not_stored(peer, path):
    assert (await peer.ask("POST", path)).problem["outcome"] == "not_stored"
    assert "outcome" not in (await peer.ask("GET", path)).problem


@pytest.mark.parametrize("body", [(b"x",), (b"x", b"y"), (b"x" * (64 << 10),)])
async def test_a_key_that_is_revoked_while_the_body_arrives_is_rejected(peer, body):
    def revoke():
        peer.keys.remove("key-1")

    answer = await peer.ask("POST", "/v1/send", body=body, last=revoke)
    assert (answer.status, answer.headers[b"www-authenticate"]) == (401, b'Bearer realm="gantry"')
    assert (answer.problem["outcome"], answer.problem["retryable"]) == ("not_stored", False)


async def test_a_key_that_another_gateway_revoked_is_rejected_too(peer):
    answer = await peer.ask("POST", "/v1/echo", body=(b"x", b"y"), last=lambda: peer.keys.replace([]))
    assert answer.status == 401
    assert "outcome" not in answer.problem


async def test_a_read_that_waited_returns_nothing_to_a_key_that_was_revoked_meanwhile(peer):
    assert (await peer.ask("GET", "/v1/look")).status == 200
    answer = await peer.ask("GET", "/v1/look", last=lambda: peer.keys.replace([]))
    assert (answer.status, b"secret" in answer.content) == (401, False)


async def test_a_finished_change_is_reported_even_if_the_key_was_revoked_meanwhile(peer):
    assert (await peer.ask("PUT", "/v1/look", last=lambda: peer.keys.remove("key-1"))).status == 200


async def test_queries_are_read_strictly(peer):
    assert json.loads((await peer.ask("POST", "/v1/echo", query=b"limit=5")).content)["query"] == {"limit": "5"}
    assert (await peer.ask("POST", "/v1/echo", query=b"limits=5")).problem["field"] == "limits"


@pytest.mark.parametrize("name", [b"content-type", b"idempotency-key", b"gantry-tag", b"x-request-id"])
async def test_headers_that_must_be_single_are_not_repeated(peer, name):
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


async def test_every_refusal_of_a_send_has_an_outcome(peer):
    for headers, key in (((), False), (((b"content-length", b"99999999"),), True), (((b"x-request-id", b" "),), True)):
        answer = await peer.ask("POST", "/v1/send", *headers, key=key)
        assert answer.status >= 400
        assert answer.problem["outcome"] == "not_stored"


async def test_an_internal_error_is_a_500_without_details_and_is_counted(peer):
    answer = await peer.ask("GET", "/v1/broken")
    assert (answer.status, answer.problem["retryable"]) == (500, True)
    assert b"secret" not in answer.content
    assert peer.metrics.faults == 1
    assert (await peer.ask("GET", "/v1/slow")).status == 504
    assert peer.metrics.faults == 1


async def begin(peer, path, count):
    tasks = [asyncio.ensure_future(peer.ask("GET", path)) for _ in range(count)]
    await asyncio.sleep(0)
    return tasks


async def end(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("settings", "status"), [({"in_flight_max": 2}, 503), ({"key_in_flight_max": 2}, 429)], ids=["all", "key"]
)
async def test_too_many_requests_at_once_are_refused(settings, status):
    peer = Peer(ROUTES, **settings)
    waiting = await begin(peer, "/v1/ever", 2)
    answer = await peer.ask("POST", "/v1/echo")
    assert (answer.status, answer.headers[b"retry-after"]) == (status, b"1")
    for path in ("/v1/probe", "/public"):
        assert (await peer.ask("GET", path)).status == 200, "the health check is always answered"
    await end(waiting)
    assert (await peer.ask("POST", "/v1/echo")).status == 200
    assert peer.limits.requests.used == 0


async def test_waiting_requests_do_not_block_others():
    peer = Peer(ROUTES, in_flight_max=2, key_in_flight_max=2, key_long_polls_max=3)
    waiting = await begin(peer, "/v1/wait", 2)
    waiting += await begin(peer, "/v1/wait", 1)
    assert (peer.limits.requests.used, peer.limits.long_polls.used) == (0, 3)
    assert (await peer.ask("POST", "/v1/echo")).status == 200
    answer = await peer.ask("GET", "/v1/wait")
    assert (answer.status, answer.problem["detail"]) == (
        429,
        "long_polls: key key-1 has 3, and 1 more would exceed its limit of 3",
    )
    await end(waiting)
    assert (peer.limits.requests.used, peer.limits.long_polls.used) == (0, 0)


async def test_the_sum_of_large_bodies_is_bounded():
    peer = Peer(ROUTES)
    quota = peer.limits.bodies.by_key
    others = [peer.limits.bodies.of_key(f"key-of-others-{number}") for number in range(4)]
    large_bytes_max = quota.total_max - quota.total_max // BODY_RESERVE_PART
    for body in others:
        body.grow(large_bytes_max // 4 - 10_000)
    for parts in ((bytes(100_000),), (bytes(50_000), bytes(50_000))):
        assert (await peer.ask("POST", "/v1/echo", body=parts)).status == 503
    assert (await peer.ask("POST", "/v1/echo", body=(b"small",))).status == 200
    for body in others:
        body.close()
    for parts in ((bytes(100_000),), (bytes(50_000), bytes(50_000))):
        assert (await peer.ask("POST", "/v1/echo", body=parts)).json == {"query": {}, "body": 100_000}
    assert quota.used == 0


async def test_a_declared_length_takes_nothing_of_the_budget(peer):
    declared = asyncio.ensure_future(peer.stall("POST", "/v1/echo", (b"content-length", b"8388608")))
    await asyncio.sleep(0)
    assert peer.limits.requests.used == 1
    assert peer.limits.bodies.by_key.used == 0
    declared.cancel()
    await asyncio.gather(declared, return_exceptions=True)


async def test_a_request_cancelled_by_the_stop_is_answered_503(peer):
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


async def test_a_disconnected_caller_gets_no_answer(peer):
    async def gone():
        return {"type": "http.disconnect"}

    sent = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/echo",
        "raw_path": b"/v1/echo",
        "query_string": b"",
        "headers": [KEY],
    }
    await peer.front(scope, gone, sent.append)
    assert sent == []


class RecordingSender:
    """Accepts messages as SendMessages does."""

    def __init__(self):
        self.messages = []

    def check_topic(self, topic):
        pass

    def detects_duplicates(self, topic):
        return False

    async def send_one(self, topic, message):
        self.messages.append(message)
        return stored_messages(topic, 1).results[0]

    async def send_many(self, topic, items, *, turn):
        return stored_messages(topic, len(items))


TRACE_PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_a_raw_body_has_its_metadata_in_headers():
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
async def test_an_invalid_traceparent_is_dropped_and_the_message_stored(value):
    sender = RecordingSender()
    answer = await Peer(send_routes(sender)).ask(
        "POST", "/v1/topics/T/messages", RAW, (b"traceparent", value.encode("latin-1")), body=(b"x",)
    )
    assert answer.status == 201
    assert sender.messages[0].properties == {"content-type": "application/octet-stream"}


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("messages", [], b'{"body": "hello"}', 415),
        ("messages", [(b"content-type", b"")], b'{"body": "hello"}', 415),
        ("messages", [(b"content-type", b" ; charset=utf-8")], b'{"body": "hello"}', 415),
        ("messages", [(b"content-type", b"application/x-www-form-urlencoded")], b'{"body": "hello"}', 415),
        ("messages", [(b"content-type", b"multipart/form-data; boundary=x")], b'{"body": "hello"}', 415),
        ("messages", [RAW, (b"gantry-colour", b"red")], b"x", 400),
        ("messages", [RAW, (b"gantry-property-", b"x")], b"x", 400),
        ("messages", [RAW, (b"gantry-tag", b"%ff")], b"x", 400),
        ("messages", [RAW, (b"gantry-tag", b"\xff")], b"x", 400),
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


@pytest.mark.parametrize("named", [[], [(b"content-type", b"application/x-www-form-urlencoded")]])
async def test_a_form_is_refused_with_advice(named):
    sender = RecordingSender()
    answer = await Peer(send_routes(sender)).ask("POST", "/v1/topics/T/messages", *named, body=(b'{"body": "hello"}',))
    assert (answer.status, answer.problem["field"], sender.messages) == (415, "Content-Type", [])
    assert "-H 'Content-Type: application/json'" in answer.problem["detail"]


LIMITS = "/v1/limits"


def limited(**settings):
    made = GatewaySettings(**settings)
    limits = Limits(made)
    routes = [*ROUTES, *limit_routes(limits, made, stream={"batch_max": 1_000}, clock=FakeClock())]
    return Peer(routes, limits=limits)


async def test_a_caller_sees_its_limits_and_its_usage():
    peer = limited(key_in_flight_max=5, key_long_polls_max=7)
    waiting = await begin(peer, "/v1/wait", 2)
    shown = json.loads((await peer.ask("GET", LIMITS)).content)
    assert shown["key"] == {
        "requests": {"max": 5, "used": 1, "all_max": 2_000},
        "long_polls": {"max": 7, "used": 2, "all_max": 4_000},
        "streams": {"max": 500, "used": 0, "all_max": 2_000},
        "waiting_queues": {"max": 8_192, "used": 0, "all_max": 32_768},
        "tickets": {"max": 500, "used": 0, "all_max": 10_000},
        "unsent_bytes": {"max": 32 << 20, "used": 0, "all_max": 64 << 20},
        "body_bytes": {"max": 16 << 20, "used": 0, "all_max": 64 << 20},
        "requests_per_s": {"max": None, "left": None},
    }
    assert shown["address"] == {
        "streams": {"max": 1_000, "used": 0, "all_max": 2_000},
        "connections": {"max": 5_000, "used": 0, "all_max": 10_000},
        "unsent_bytes": {"max": 8 << 20, "used": 0, "all_max": 32 << 20},
        "body_bytes": {"max": 2 << 20, "used": 0, "all_max": 16 << 20},
        "requests_per_s": {"max": None, "left": None},
    }
    assert shown["request"]["bytes_max"] == REQUEST_BYTES_MAX
    assert shown["stream"] == {"batch_max": 1_000}
    await end(waiting)


async def test_every_answer_has_the_rate_if_one_is_set():
    peer = limited(key_requests_per_s=3, address_requests_per_s=4)
    answer = await peer.ask("GET", LIMITS)
    assert answer.headers[b"ratelimit-policy"] == b'"address";q=4;w=1, "key";q=3;w=1'
    assert answer.headers[b"ratelimit"] == b'"address";r=3;t=1, "key";r=2;t=1'
    assert json.loads(answer.content)["key"]["requests_per_s"] == {"max": 3, "left": 2}
    assert [(await peer.ask("GET", LIMITS)).status for _ in range(3)] == [200, 200, 429]
    answer = await peer.ask("GET", "/v1/nope", key=False)
    assert (answer.status, answer.headers[b"retry-after"]) == (429, b"1"), "the rate of the address, also without a key"
    assert answer.headers[b"ratelimit"] == b'"address";r=0;t=1'
    assert (await peer.ask("GET", "/v1/probe")).status == 200
    assert b"ratelimit" not in (await peer.ask("GET", "/v1/probe")).headers


async def test_a_64_of_ipv6_is_one_address_for_rates():
    peer = limited(address_requests_per_s=2)
    told = [(await peer.ask("GET", LIMITS, address=f"2001:db8::{number}")).status for number in range(3)]
    assert told == [200, 200, 429]
    assert (await peer.ask("GET", LIMITS, address="2001:db8:1::1")).status == 200


async def test_without_rates_answers_have_no_rate_headers():
    assert b"ratelimit" not in (await Peer(ROUTES).ask("POST", "/v1/echo")).headers


ORIGIN = (b"origin", b"https://console.example")
PREFLIGHT = (b"access-control-request-method", b"POST")


async def test_a_listed_origin_may_call_and_read_answers():
    peer = Peer(ROUTES, cors_origins=("https://console.example",))
    asked = (b"access-control-request-headers", b"Authorization, content-type, X-Other, Gantry-Tag, gantry-\xff")
    answer = await peer.ask("OPTIONS", "/v1/echo", ORIGIN, PREFLIGHT, asked, key=False)
    assert answer.status == 204
    assert answer.headers[b"access-control-allow-origin"] == b"https://console.example"
    assert answer.headers[b"access-control-allow-methods"] == b"OPTIONS, POST"
    assert answer.headers[b"access-control-allow-headers"] == b"authorization, content-type, gantry-tag"
    for answer in (await peer.ask("POST", "/v1/echo", ORIGIN), await peer.ask("POST", "/v1/echo", ORIGIN, key=False)):
        assert answer.headers[b"access-control-allow-origin"] == b"https://console.example"
        assert answer.headers[b"vary"] == b"Origin"
        exposed = answer.headers[b"access-control-expose-headers"].decode().split(", ")
        assert {"ETag", "Location", "X-Request-Id", "RateLimit", "Retry-After"} <= set(exposed)
        assert b"access-control-allow-credentials" not in answer.headers


async def test_another_origin_may_not():
    peer = Peer(ROUTES, cors_origins=("https://console.example",))
    other = (b"origin", b"https://console.example.evil")
    assert (await peer.ask("OPTIONS", "/v1/echo", other, PREFLIGHT, key=False)).status == 401
    answer = await peer.ask("POST", "/v1/echo", other)
    assert (answer.status, answer.headers[b"vary"]) == (200, b"Origin")
    assert not any(name.startswith(b"access-control") for name in answer.headers)


async def test_a_wildcard_origin_is_never_allowed_with_credentials():
    peer = Peer(ROUTES, cors_origins=("*",))
    answer = await peer.ask("POST", "/v1/echo", ORIGIN)
    assert answer.headers[b"access-control-allow-origin"] == b"*"
    assert b"access-control-allow-credentials" not in answer.headers


async def test_without_the_setting_no_page_may_call():
    answer = await Peer(ROUTES).ask("OPTIONS", "/v1/echo", ORIGIN, PREFLIGHT)
    assert not any(name.startswith(b"access-control") for name in answer.headers)


async def test_options_need_no_key_where_the_contract_is_public():
    open_peer, closed = Peer(ROUTES, public_contract=True), Peer(ROUTES)
    assert (await open_peer.ask("OPTIONS", "/v1/echo", key=False)).headers[b"allow"] == b"OPTIONS, POST"
    assert (await open_peer.ask("OPTIONS", "/v1/nowhere", key=False)).status == 404
    assert (await open_peer.ask("POST", "/v1/echo", key=False)).status == 401
    assert (await open_peer.ask("POST", "/v1/nowhere", key=False)).status == 401
    assert (await closed.ask("OPTIONS", "/v1/echo", key=False)).status == 401
