"""Refusals of a connection and the answers to the requests around them: unknown, broken and slow clients."""

import asyncio
import json
from typing import Any

import pytest

from services.gateway.errors import ProblemError
from services.gateway.httpconnection import BODY_WIRE_BYTES_MAX
from services.gateway.requesthead import HEAD_BYTES_MAX
from tests.unit.services.gateway.wires import GET, House, Wire, connect, echo, settle

UPGRADES = ["foo", "h2c", "websocket, foo", "foo\r\nupgrade: websocket"]
FRAMED = [
    (b"content-length: 25", b"GET /no HTTP/1.1\r\nHost: x"),
    (b"transfer-encoding: chunked", b"a\r\nGET /no HT\r\n4\r\nTP/1\r\n0\r\n\r\n"),
]
HANDSHAKE = (
    b"GET /v1/stream HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


def problem_in(write: bytes) -> dict[str, Any]:
    """Return the problem of an answer that closes its connection; its header and member must agree on the id."""
    head, _, body = write.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    problem: dict[str, Any] = json.loads(body)
    assert f"x-request-id: {problem['request_id']}\r\n".encode() in head + b"\r\n"
    assert problem["request_id"] != "none"
    return problem


def paths(wire: Wire) -> list[bytes]:
    return [line for write in wire.writes for line in write.split(b"\r\n") if line.startswith(b"path: ")]


class Held:
    """An application that answers when the test says so."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.may_answer.wait()
        await echo(scope, receive, send)


@pytest.mark.parametrize("step", [1, 7, 10_000])
@pytest.mark.parametrize(("framing", "body"), FRAMED)
@pytest.mark.parametrize("upgrade", UPGRADES)
async def test_the_body_after_an_unknown_upgrade_is_no_request(upgrade, framing, body, step):
    connection, wire = connect(echo)
    head = b"POST /a HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: %b\r\n%b\r\n\r\n"
    data = (head % (upgrade.encode(), framing) + body) * 2 + GET.replace(b"/a", b"/b")
    for start in range(0, len(data), step):
        connection.data_received(data[start : start + step])
        await settle()
    await settle()
    assert paths(wire) == [b"path: /a", b"path: /a", b"path: /b"]
    sent = b"GET /no HTTP/1.1\r\nHost: x" if b"length" in framing else b"GET /no HTTP/1"
    assert [write.partition(b"\r\n\r\n")[2] for write in wire.writes] == [sent, sent, b""]


async def test_connect_is_refused_and_later_bytes_are_no_request():
    connection, wire = connect(echo)
    connection.data_received(b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n" + GET)
    await settle()
    assert (problem_in(wire.writes[0])["status"], len(wire.writes), wire.is_ended) == (405, 1, True)


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (b"content-length: 5\r\n\r\nhello", 400),
        (b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"x: %b\r\n\r\n" % (b"a" * 9_000), 431),
        (b"x: y\r\n" * 200 + b"\r\n", 431),
        (b"sec-websocket-version: 13\r\n\r\n", 400),
        (b"sec-websocket-protocol: \x80\r\n\r\n", 400),
        (b"origin: a\r\norigin: b\r\n\r\n", 400),
    ],
)
async def test_an_invalid_handshake_is_a_problem(more, status):
    connection, wire = connect(echo)
    connection.data_received(HANDSHAKE + b"x-request-id: mine\r\n" + more)
    await settle()
    problem = problem_in(wire.writes[0])
    assert (problem["status"], problem["request_id"], wire.protocol) == (status, "mine", None)


@pytest.mark.parametrize(
    ("written", "instead", "status", "field"),
    [
        (b"GET /", b"POST /", 405, "method"),
        (b"version: 13", b"version: 8", 400, "Sec-WebSocket-Version"),
        (b"sec-websocket-version: 13\r\n", b"", 400, "Sec-WebSocket-Version"),
        (b"AAAAAAAAAAAAAAAAAAAAAA==", b"short", 400, "Sec-WebSocket-Key"),
        (b"HTTP/1.1", b"HTTP/1.0", 400, "Upgrade"),
    ],
)
async def test_a_refused_handshake_names_the_error(written, instead, status, field):
    connection, wire = connect(echo)
    connection.data_received(HANDSHAKE.replace(written, instead) + b"\r\n")
    problem = problem_in(wire.writes[0])
    assert (problem["status"], problem["field"]) == (status, field)


async def test_a_handshake_has_a_deadline_after_the_hand_over_too():
    house = House(Held(), header_timeout_ms=10_000)
    connection, wire = house.connect()
    connection.data_received(HANDSHAKE + b"\r\n")
    await settle()
    handed_over = connection.loop.time()
    house.sweeper.sweep(handed_over + 9)
    assert not wire.writes
    house.sweeper.sweep(handed_over + 11)
    assert (problem_in(wire.writes[0])["status"], wire.is_closing()) == (408, True)
    wire.protocol.connection_lost(None)
    assert house.metrics.refused_connections == {"slow_handshake": 1}


async def test_a_handshake_does_not_overtake_an_answer():
    held = Held()
    connection, wire = connect(held)
    connection.data_received(GET + HANDSHAKE + b"\r\n")
    await settle()
    assert (wire.writes, wire.protocol) == ([], None)
    held.may_answer.set()
    await settle()
    assert wire.writes[0].startswith(b"HTTP/1.1 200")
    assert problem_in(wire.writes[1])["status"] == 409


@pytest.mark.parametrize(
    "rest", [b"\x00garbage\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nx: %b\r\n\r\n" % (b"y" * 70_000)]
)
async def test_a_refusal_waits_for_earlier_answers_and_has_the_outcome_unknown(rest):
    held = Held()
    connection, wire = connect(held)
    connection.data_received(GET + GET.replace(b"/a", b"/b") + rest)
    await settle()
    assert wire.writes == []
    held.may_answer.set()
    await settle()
    await settle()
    assert paths(wire) == [b"path: /a", b"path: /b"]
    assert problem_in(wire.writes[2])["outcome"] == "unknown"
    assert (len(wire.writes), wire.is_ended) == (3, True)


async def test_a_slow_head_waits_for_the_answer_before_it():
    held = Held()
    house = House(held)
    connection, wire = house.connect()
    connection.data_received(GET + b"GET /b")
    await settle()
    house.sweeper.sweep(connection.loop.time() + 60)
    house.sweeper.sweep(connection.loop.time() + 61)
    assert wire.writes == []
    held.may_answer.set()
    await settle()
    assert paths(wire) == [b"path: /a"]
    assert (problem_in(wire.writes[1])["status"], problem_in(wire.writes[1])["outcome"]) == (408, "unknown")
    assert house.metrics.refused_connections == {"slow_head": 1}


@pytest.mark.parametrize(
    "started", [b"GET /c HTTP/1.1\r\nho", b"POST /c HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc"]
)
async def test_time_in_which_the_gateway_does_not_read_does_not_count_for_the_caller(started):
    """A request behind a long poll was answered 408, because its rest lay unread in the socket."""
    held = Held()
    house = House(held, header_timeout_ms=10_000, body_timeout_ms=10_000)
    connection, wire = house.connect()
    connection.data_received(GET + GET.replace(b"/a", b"/b") + started)
    assert wire.is_paused
    await asyncio.sleep(25)
    house.sweeper.sweep(connection.loop.time())
    held.may_answer.set()
    await settle()
    await settle()
    assert paths(wire)[:2] == [b"path: /a", b"path: /b"]
    # The time counts from here on, whenever the sweeper runs.
    house.sweeper.sweep(connection.loop.time() + 9)
    assert house.metrics.refused_connections == {}
    house.sweeper.sweep(connection.loop.time() + 11)
    assert len(house.metrics.refused_connections) == 1


async def test_a_body_that_the_application_does_not_read_is_not_late():
    held = Held()
    house = House(held, body_timeout_ms=10_000)
    connection, wire = house.connect()
    connection.data_received(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + bytes(70_000))
    assert wire.is_paused
    await asyncio.sleep(25)
    house.sweeper.sweep(connection.loop.time())
    assert house.metrics.refused_connections == {}
    held.may_answer.set()
    await settle()
    connection.data_received(bytes(30_000))
    await settle()
    assert paths(wire) == [b"path: /a"]


@pytest.mark.parametrize("bad_chunk", [True, False])
async def test_a_body_that_fails_is_answered_by_its_own_request(bad_chunk):
    told: list[ProblemError] = []

    async def read(scope: Any, receive: Any, send: Any) -> None:
        try:
            await echo(scope, receive, send)
        except ProblemError as error:
            told.append(error)
            await send({"type": "http.response.start", "status": error.status, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    house = House(read)
    connection, wire = house.connect()
    connection.data_received(b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc")
    await settle()
    if bad_chunk:
        connection.data_received(b"\r\nzz\r\n")
    else:
        house.sweeper.sweep(connection.loop.time() + 61)
    await settle()
    assert wire.writes == [b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n\r\n"] or not bad_chunk
    assert len(wire.writes) == len(told) == 1
    assert (wire.is_ended, wire.is_closing()) == (True, False)


async def refuse_at_once(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("more", [b"connection: close", b"expect: 100-continue"])
async def test_an_early_answer_is_not_cut_off_while_the_body_arrives(more):
    house = House(refuse_at_once)
    connection, wire = house.connect()
    connection.data_received(b"POST /a HTTP/1.1\r\nhost: x\r\n%b\r\ncontent-length: 9\r\n\r\nGET" % more)
    await settle()
    assert wire.writes[0].startswith(b"HTTP/1.1 401")
    assert b"connection: close" in wire.writes[0]
    assert (wire.is_ended, wire.is_closing()) == (True, False)
    began = connection.loop.time()
    house.sweeper.sweep(began + 1.5)
    connection.data_received(b"abcdef" + GET)
    assert not wire.is_closing()
    await settle()
    house.sweeper.sweep(began + 3)
    assert (wire.is_closing(), len(wire.writes)) == (True, 1)


async def test_lingering_has_an_end():
    house = House(refuse_at_once, body_timeout_ms=10_000)
    connection, wire = house.connect()
    connection.data_received(b"POST /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 9\r\n\r\n")
    await settle()
    connection.heard_at = connection.loop.time() + 11
    house.sweeper.sweep(connection.loop.time() + 11)
    assert wire.is_closing()


async def test_an_endless_body_is_cut_off():
    connection, wire = connect(refuse_at_once)
    connection.data_received(b"POST /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 999999999\r\n\r\n")
    await settle()
    part = bytes(4 << 20)
    for _ in range(BODY_WIRE_BYTES_MAX // len(part)):
        connection.data_received(part)
        assert not wire.is_aborted
    connection.data_received(part)
    assert wire.is_aborted


async def test_a_client_that_reads_no_answers_is_disconnected_and_a_slow_one_is_not():
    house = House(echo, write_timeout_ms=30_000)
    connection, wire = house.connect()
    connection.data_received(GET)
    await settle()
    now = connection.loop.time()
    for second in range(100):
        wire.unsent_bytes = 1_000_000 - second
        house.sweeper.sweep(now + second)
    assert not wire.is_aborted
    for second in range(100, 129):
        house.sweeper.sweep(now + second)
    assert not wire.is_aborted
    house.sweeper.sweep(now + 130)
    assert wire.is_aborted
    assert house.metrics.refused_connections == {"slow_reader": 1}


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /a HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nhost: x\r\nhost: x\r\n\r\n", 400),
        (b"GET /a\r\n\r\n", 400),
        (b"GET /a HTTP/0.9\r\nhost: x\r\n\r\n", 400),
        (b"GET /a HTTP/2.0\r\nhost: x\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n", 501),
        (b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"POST /a HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 501),
        (b"GET /a HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n" % (b"y" * HEAD_BYTES_MAX), 431),
        (b"GET /%b HTTP/1.1\r\nhost: x\r\n\r\n" % (b"y" * HEAD_BYTES_MAX), 431),
        (GET + b"GET /a HTTP/1.1\r\nhost: x\r\nx: %b\r\n\r\n" % (b"y" * HEAD_BYTES_MAX), 431),
    ],
)
async def test_heads_that_are_refused(head, status):
    connection, wire = connect(echo)
    connection.data_received(head + GET)
    await settle()
    await settle()
    before = 1 if head.startswith(GET) else 0
    assert problem_in(wire.writes[before])["status"] == status
    assert len(wire.writes) == before + 1


async def test_http_1_0_needs_no_host():
    connection, wire = connect(echo)
    connection.data_received(b"GET /a HTTP/1.0\r\n\r\n")
    await settle()
    assert wire.writes[0].startswith(b"HTTP/1.1 200")


async def test_a_short_head_after_a_long_body_in_one_read_is_short():
    connection, wire = connect(echo)
    body = bytes(HEAD_BYTES_MAX)
    connection.data_received(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body + GET[:-2])
    connection.data_received(GET[-2:])
    await settle()
    await settle()
    assert paths(wire) == [b"path: /a", b"path: /a"]


async def test_trailers_are_no_headers():
    seen: list[list[tuple[bytes, bytes]]] = []

    async def look(scope: Any, receive: Any, send: Any) -> None:
        await echo(scope, receive, send)
        seen.append(scope["headers"])

    connection, _ = connect(look)
    connection.data_received(
        b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nauthorization: Bearer x\r\n\r\n"
    )
    await settle()
    assert seen == [[(b"host", b"x"), (b"transfer-encoding", b"chunked")]]


async def test_a_draining_server_ends_each_connection_with_its_next_answer():
    held = Held()
    house = House(held)
    under_way, idle = house.connect(), house.connect()
    under_way[0].data_received(GET)
    await settle()
    house.server.drain()
    late = house.connect()
    idle[0].data_received(GET)
    late[0].data_received(GET)
    await settle()
    held.may_answer.set()
    await settle()
    for _, wire in (under_way, idle, late):
        assert wire.writes[0].startswith(b"HTTP/1.1 200")
        assert b"\r\nconnection: close\r\n" in wire.writes[0]
        assert wire.is_closing()


@pytest.mark.parametrize(
    ("sent", "outcome"),
    [
        (b"POST /v1/topics/T/messages HTTP/1.1\r\ncontent-length: 5\r\n\r\n", "not_stored"),
        (b"POST /v1/topics/T/messages HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000, "not_stored"),
        (b"POST /v1/topics/T/messages HTTP/1.1\r\nhost: x\r\n\0: y\r\n\r\n", "not_stored"),
        (b"GET /v1/topics/T HTTP/1.1\r\n\r\n", None),
        (b"GET /v1/topics HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000, None),
    ],
    ids=["no host", "too large", "no header", "a read without a host", "a read that is too large"],
)
async def test_a_send_refused_before_it_is_read_says_not_stored(sent, outcome):
    connection, wire = connect(echo)
    connection.data_received(sent)
    await settle()
    assert json.loads(wire.writes[0].partition(b"\r\n\r\n")[2]).get("outcome") == outcome


CONSOLE, OTHER = "https://console.example", "https://other.example"
LONG_HEAD = b"GET /a HTTP/1.1\r\nhost: x\r\n%b\r\nx-long: " + b"y" * 70_000


@pytest.mark.parametrize(
    ("origins", "line", "allowed"),
    [
        ((CONSOLE, OTHER), b"origin: https://console.example", CONSOLE),
        (("*",), b"origin: https://any.example", "*"),
        ((CONSOLE, OTHER), b"origin: https://evil.example", None),
        ((), b"origin: https://console.example", None),
        # The body has not arrived yet.
        ((CONSOLE,), b"x: y", CONSOLE),
        (("*",), b"x: y", "*"),
        ((CONSOLE, OTHER), b"x: y", None),
    ],
)
async def test_a_web_page_can_read_a_refusal_of_its_head(origins, line, allowed):
    connection, wire = connect(echo, cors_origins=origins)
    connection.data_received(LONG_HEAD % line)
    head = wire.writes[0].partition(b"\r\n\r\n")[0]
    assert head.startswith(b"HTTP/1.1 431")
    expected = [] if allowed is None else [b"access-control-allow-origin: " + allowed.encode()]
    assert [each for each in head.split(b"\r\n") if each.startswith(b"access-control-allow")] == expected
    assert (b"access-control-expose-headers: " in head) == (allowed is not None)
    assert (b"vary: Origin" in head) == (origins not in ((), ("*",)))


async def test_a_web_page_can_read_that_there_are_too_many_connections():
    house = House(echo, connections_max=1, cors_origins=(CONSOLE,))
    busy, _ = house.connect()
    busy.data_received(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n")
    _, wire = house.connect()
    assert wire.writes[0].startswith(b"HTTP/1.1 503")
    assert b"access-control-allow-origin: https://console.example\r\n" in wire.writes[0]


async def test_a_web_page_can_read_a_refusal_that_waits_for_the_answer_before_it():
    may_answer = asyncio.Event()

    async def later(scope: Any, receive: Any, send: Any) -> None:
        await may_answer.wait()
        await echo(scope, receive, send)

    connection, wire = connect(later, cors_origins=(CONSOLE, OTHER))
    connection.data_received(GET)
    connection.data_received(LONG_HEAD % b"origin: https://other.example")
    await settle()
    may_answer.set()
    await settle()
    assert b"access-control-allow-origin: https://other.example\r\n" in wire.writes[-1]
    assert wire.writes[-1].startswith(b"HTTP/1.1 431")
