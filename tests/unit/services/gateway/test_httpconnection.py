"""One HTTP connection without its socket: its answers, their order, and the number of writes."""

import asyncio
from typing import Any

import pytest

from services.gateway.httpconnection import LAST_READ_S
from services.gateway.requesthead import split_target
from tests.unit.services.gateway.wires import GET, House, connect, echo, settle


async def test_an_answer_is_one_write():
    connection, wire = connect(echo)
    connection.data_received(b"POST /a?b=c HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc")
    await settle()
    assert wire.writes == [b"HTTP/1.1 200 OK\r\npath: /a\r\ncontent-length: 3\r\n\r\nabc"]
    assert not wire.is_closing()


async def test_a_body_may_arrive_in_pieces():
    connection, wire = connect(echo)
    for byte in b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc":
        assert wire.writes == []
        connection.data_received(bytes([byte]))
        await settle()
    assert wire.writes[0].endswith(b"\r\n\r\nabc")


async def test_a_large_body_is_not_read_from_the_socket_before_the_application_reads():
    may_read = asyncio.Event()

    async def later(scope: Any, receive: Any, send: Any) -> None:
        await may_read.wait()
        await echo(scope, receive, send)

    connection, wire = connect(later)
    connection.data_received(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n" + bytes(70_000))
    await settle()
    assert wire.is_paused
    may_read.set()
    await settle()
    assert not wire.is_paused
    connection.data_received(bytes(30_000))
    await settle()
    assert wire.writes[0].endswith(bytes(100_000))


async def test_pipelined_requests_are_answered_in_order():
    connection, wire = connect(echo)
    connection.data_received(b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in range(3)))
    assert wire.is_paused
    await settle()
    await settle()
    assert [write.split(b"\r\n")[1] for write in wire.writes] == [b"path: /0", b"path: /1", b"path: /2"]
    assert not wire.is_paused


@pytest.mark.parametrize("reads_body", [True, False])
async def test_reading_pauses_while_pipelined_requests_wait(reads_body: bool):
    """Otherwise a caller who sends without end would fill the memory, with one read of requests for each answer."""
    answered: list[bytes] = []
    resumed_after: list[int] = []

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if reads_body:
            await receive()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        answered.append(scope["raw_path"])
        await send({"type": "http.response.body", "body": b""})

    connection, wire = connect(answer)
    resume = wire.resume_reading

    def resume_reading() -> None:
        resumed_after.append(len(answered))
        resume()

    wire.resume_reading = resume_reading  # type: ignore[method-assign]
    connection.data_received(GET * 50)
    for _ in range(500):
        await asyncio.sleep(0)
    assert len(wire.writes) == 50
    assert resumed_after == [50]
    assert not wire.is_paused


async def test_head_has_no_body():
    async def greet(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        await send({"type": "http.response.body", "body": b"hello"})

    connection, wire = connect(greet)
    connection.data_received(GET.replace(b"GET", b"HEAD"))
    await settle()
    assert wire.writes == [b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"]


@pytest.mark.parametrize(
    "request_bytes", [GET.replace(b"1.1", b"1.0"), GET.replace(b"host: x", b"host: x\r\nconnection: close")]
)
async def test_connection_close_is_confirmed(request_bytes):
    connection, wire = connect(echo)
    connection.data_received(request_bytes)
    await settle()
    assert b"\r\nconnection: close\r\n\r\n" in wire.writes[0]
    assert wire.is_closing()


async def test_expect_100_continue_is_answered():
    connection, wire = connect(echo)
    connection.data_received(b"POST /a HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\n")
    await settle()
    assert wire.writes == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    connection.data_received(b"a")
    await settle()
    assert wire.writes[1].endswith(b"\r\n\r\na")


async def test_a_caller_of_http_1_0_gets_no_100_continue():
    connection, wire = connect(echo)
    connection.data_received(b"POST /a HTTP/1.0\r\nexpect: 100-continue\r\ncontent-length: 1\r\n\r\na")
    await settle()
    assert wire.writes[0].startswith(b"HTTP/1.1 200 OK\r\n")


async def test_a_disconnect_reaches_the_application():
    seen: list[str] = []

    async def wait(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([(await receive())["type"], (await receive())["type"]])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    connection, wire = connect(wait)
    connection.data_received(GET)
    await settle()
    connection.connection_lost(None)
    await settle()
    assert seen == ["http.request", "http.disconnect"]
    assert wire.writes == []


async def test_a_header_with_a_line_end_is_never_written():
    async def tricked(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b\r\nset-cookie: c")]})
        await send({"type": "http.response.body", "body": b""})

    connection, wire = connect(tricked)
    connection.data_received(GET)
    await settle()
    assert wire.writes[0].startswith(b"HTTP/1.1 500")
    assert b"set-cookie" not in wire.writes[0]
    assert wire.is_closing()


async def test_an_application_that_fails_or_does_not_answer_ends_only_the_connection():
    async def fail(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("no")

    async def say_nothing(scope: Any, receive: Any, send: Any) -> None:
        return

    for app, writes_count in ((fail, 1), (say_nothing, 0)):
        connection, wire = connect(app)
        connection.data_received(GET)
        await settle()
        assert len(wire.writes) == writes_count
        assert wire.is_closing()


async def test_an_idle_connection_is_closed():
    house = House(echo, keep_alive_ms=5_000)
    sweeper = house.sweeper
    connection, wire = house.connect()
    connection.data_received(GET)
    await settle()
    answered_at = connection.loop.time()
    sweeper.sweep(answered_at + 4.9)
    assert not wire.is_closing()
    sweeper.sweep(answered_at + 5.1)
    assert wire.is_closing()
    assert len(wire.writes) == 1


async def test_a_stop_waits_for_the_answer_and_then_closes():
    connection, wire = connect(echo)
    connection.data_received(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n")
    await settle()
    connection.shutdown()
    assert not wire.is_closing()
    connection.data_received(b"a")
    await settle()
    assert b"connection: close" in wire.writes[0]
    assert wire.is_closing()


async def test_a_stop_answers_requests_received_but_not_read_yet():
    house = House(echo)
    idle, kept_alive, silent = house.connect(), house.connect(), house.connect()
    kept_alive[0].data_received(GET)
    await settle()
    house.server.drain()
    for connection, _ in (idle, kept_alive, silent):
        connection.shutdown()
    for connection, _ in (idle, kept_alive):
        connection.data_received(GET)
    await settle()
    for _, wire in (idle, kept_alive):
        assert wire.writes[-1].startswith(b"HTTP/1.1 200")
        assert b"connection: close" in wire.writes[-1]
        assert wire.is_closing()
    assert not silent[1].is_closing()
    await asyncio.sleep(LAST_READ_S)
    assert silent[1].is_closing()


async def test_a_client_with_unanswered_requests_can_read_the_answers():
    """A close with unread bytes resets the connection, and the answer before it could be lost."""
    connection, wire = connect(echo)
    connection.data_received(GET + GET.replace(b"host: x", b"host: x\r\nconnection: close") + GET * 3)
    await settle()
    assert [b"connection: close" in answer for answer in wire.writes] == [False, True]
    assert (wire.is_ended, wire.is_closing()) == (True, False)


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (b"/a/b", (b"/a/b", "/a/b", b"")),
        (b"/a%2Fb?c=d?e", (b"/a%2Fb", "/a/b", b"c=d?e")),
        (b"//a?", (b"//a", "//a", b"")),
        (b"/a#b?c", (b"/a", "/a", b"")),
        (b"http://host:1/a?b", (b"/a", "/a", b"b")),
        (b"http://host", (b"", "", b"")),
    ],
)
def test_a_target_is_split(target, parts):
    assert split_target(target) == parts
