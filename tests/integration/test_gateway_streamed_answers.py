"""Answers in several pieces: files and other streamed responses of Starlette, over real connections."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from structlog.testing import capture_logs

from gantry.runtime.clock import SystemClock
from services.gateway.auth.keyring import KeyRing
from services.gateway.bootstrap import Gateway
from services.gateway.core import Core, Feature, build_core
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.server import bind, make_server
from services.gateway.settings import GatewaySettings

LARGE = bytes(range(256)) * 4_096  # 1 MiB: sixteen pieces of a file, more than the sockets hold.


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[tuple[str, int]]:
    """Serve an application as a gateway does."""
    settings = GatewaySettings()
    listener = bind("127.0.0.1", 0)
    address: tuple[str, int] = listener.getsockname()
    server = make_server(app, settings, Limits(settings, SystemClock()), GatewayMetrics(), KeyRing())
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    await server.is_up.wait()
    try:
        yield address
    finally:
        server.stop()
        await serving


def client(address: tuple[str, int]) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{address[0]}:{address[1]}")


def streaming(pieces: Callable[[], AsyncIterator[bytes]], **options: Any) -> Starlette:
    """Return an application that streams at `/` and gives a short answer at `/next`."""

    async def stream(request: Request) -> StreamingResponse:
        return StreamingResponse(pieces(), **options)

    async def short(request: Request) -> PlainTextResponse:
        return PlainTextResponse("next")

    return Starlette(routes=[Route("/", stream), Route("/next", short)])


async def raw(address: tuple[str, int], request: bytes) -> bytes:
    """Return everything that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    async with asyncio.timeout(20):
        answer = await reader.read(-1)
    writer.close()
    return answer


async def three_pieces() -> AsyncIterator[bytes]:
    for piece in (b"one", b"", b"three"):
        yield piece


async def test_a_feature_with_static_files_is_one_line(tmp_path: Path) -> None:
    """A console plugs in here: the files pass the middleware of every answer."""
    (tmp_path / "app.js").write_bytes(LARGE)
    (tmp_path / "index.html").write_text("<h1>x</h1>")

    def pages_feature(core: Core) -> Feature:
        return Feature([Mount("/pages", StaticFiles(directory=tmp_path, html=True))])

    core = build_core(GatewaySettings(), process_id=1)
    async with (
        served(Gateway(core, [pages_feature(core)]).application()) as address,
        client(address) as http,
    ):
        large = await http.get("/pages/app.js")
        assert (large.status_code, large.content) == (200, LARGE)
        assert large.headers["x-request-id"]
        part = await http.get("/pages/app.js", headers={"range": "bytes=5-300000"})
        assert (part.status_code, part.content) == (206, LARGE[5:300_001])
        unchanged = await http.get("/pages/app.js", headers={"if-none-match": large.headers["etag"]})
        assert (unchanged.status_code, unchanged.content) == (304, b"")
        head = await http.head("/pages/app.js")
        assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(LARGE)), b"")
        assert (await http.get("/pages/")).text == "<h1>x</h1>"
        assert (await http.get("/pages/none.js")).status_code in {401, 404}
        assert (await http.get("/pages/%2e%2e/secret")).status_code in {401, 404}


async def test_pieces_without_a_length_are_chunks_and_the_connection_goes_on() -> None:
    async with served(streaming(three_pieces)) as address:
        request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /next HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = await raw(address, request)
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert rest.startswith(b"3\r\none\r\n5\r\nthree\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"next")


async def test_http_1_0_gets_pieces_until_the_connection_ends() -> None:
    async with served(streaming(three_pieces)) as address:
        answer = await raw(address, b"GET / HTTP/1.0\r\nHost: x\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert body == b"onethree"


async def test_no_byte_of_a_body_follows_the_head_that_was_asked_for() -> None:
    async with served(Starlette(routes=[Route("/", lambda request: StreamingResponse(three_pieces()))])) as address:
        answer = await raw(address, b"HEAD / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.endswith(b"\r\n\r\n")
    assert answer.count(b"\r\n\r\n") == 1


async def test_an_answer_that_is_shorter_than_announced_ends_with_its_connection() -> None:
    async with served(streaming(three_pieces, headers={"content-length": "9"})) as address:
        answer = await raw(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /next HTTP/1.1\r\nHost: x\r\n\r\n")
    assert answer.endswith(b"\r\n\r\nonethree")


async def test_an_answer_that_is_longer_than_announced_is_cut() -> None:
    async with served(streaming(three_pieces, headers={"content-length": "5"})) as address:
        request = b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /next HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        answer = await raw(address, request)
    assert b"\r\n\r\nonethHTTP/1.1 200 OK\r\n" in answer
    assert answer.endswith(b"next")


async def test_an_answer_that_breaks_off_ends_with_its_connection() -> None:
    async def breaks() -> AsyncIterator[bytes]:
        yield b"one"
        raise RuntimeError("the source is gone")

    # Without it, structlog would spend seconds on a drawing of the stack.
    with capture_logs() as logged:
        await ask_twice(breaks)
    assert [entry["event"] for entry in logged] == ["the application failed"] * 2


async def ask_twice(pieces: Callable[[], AsyncIterator[bytes]]) -> None:
    async with served(streaming(pieces)) as address:
        answer = await raw(address, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.endswith(b"\r\n\r\n3\r\none\r\n")
        with pytest.raises(httpx.RemoteProtocolError):
            async with client(address) as http:
                await http.get("/")


async def test_a_stream_waits_for_a_reader_that_takes_nothing_and_ends_when_it_leaves() -> None:
    made = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal made
        while True:
            made += 1
            yield bytes(65_536)

    async def until_it_rests() -> int:
        async with asyncio.timeout(20):
            before = -1
            while made != before:
                before = made
                await asyncio.sleep(0.2)
        return made

    async with served(streaming(endless)) as address:
        with socket.socket() as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            idle.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(idle, address)
            await loop.sock_sendall(idle, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            waiting = await until_it_rests()
        assert waiting * 65_536 <= 16 << 20, "the server waits for the socket, and keeps no more than that"
        assert await until_it_rests() <= waiting + 2, "nothing is made for a caller that has gone"
