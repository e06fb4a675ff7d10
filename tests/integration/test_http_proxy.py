"""The clients and the environment's proxies: a proxy of our own on loopback records its requests."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gantry.http import AsyncGantryClient, GantryClient, GantryConnectionError, GantryProblem
from gantry.http.handshake import open_stream
from gantry.http.streamframes import JsonCoding


class Listener:
    """Answers 503 to every request, and records its first line."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked.append((await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")[0].decode())
        writer.write(b"HTTP/1.1 503 Nobody\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    made = Listener()
    server = await asyncio.start_server(made.handle, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()
    await server.wait_closed()


async def ask_all(url: str) -> None:
    """Request the topics with both clients, and open a stream; all of these fail."""

    def ask() -> None:
        with GantryClient(url) as client, pytest.raises(GantryProblem):
            client.list_topics()

    await asyncio.to_thread(ask)
    async with AsyncGantryClient(url) as client:
        with pytest.raises(GantryProblem):
            await client.list_topics()
    stream = url.replace("http", "ws") + "/v1/stream"
    with pytest.raises((GantryProblem, GantryConnectionError)):
        await open_stream(stream, JsonCoding(), headers={}, hello={}, timeout_s=10)


async def test_this_machine_is_called_directly(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    await ask_all(f"http://127.0.0.1:{listener.port}")
    topics = "GET /v1/topics?limit=1000 HTTP/1.1"
    assert listener.asked == [topics, topics, "GET /v1/stream HTTP/1.1"]


async def test_others_are_asked_through_the_proxy(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{listener.port}")
    monkeypatch.delenv("no_proxy", raising=False)
    await ask_all("http://gateway.invalid")
    topics = "GET http://gateway.invalid/v1/topics?limit=1000 HTTP/1.1"
    assert listener.asked == [topics, topics, "CONNECT gateway.invalid:80 HTTP/1.1"]
