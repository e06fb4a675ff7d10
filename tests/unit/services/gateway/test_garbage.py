"""A closed connection is freed at once: the garbage collector rarely examines old objects when there are millions.

A client that reconnects all the time would fill the memory with ended connections.
"""

import gc
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.frames import Opcode

from tests.unit.services.gateway.test_streamprotocol import Line, wire_of
from tests.unit.services.gateway.wires import GET, House, settle
from tests.unit.services.gateway.ws.peers import Service

OURS = ("services.", "gantry.", "uvicorn.", "websockets.", "httptools.")

HEADS = {
    "nothing": b"",
    "a part of a head": b"GET /a HT",
    "one request": GET,
    "a request that is answered with the next behind it": GET + GET,
    "a body that does not end": b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc",
    "a body that is not framed as it should be": b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nx",
    "no host": b"GET /a HTTP/1.1\r\n\r\n",
    "no HTTP": b"\0\1\2\3",
    "an unknown transfer coding": b"GET /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: x\r\n\r\n",
    "an unknown upgrade": b"GET /a HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
    "a proxy's request": b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n",
    "a handshake without a key": b"GET /a HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    "a handshake with a body": b"GET /a HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
    b"content-length: 9\r\n\r\n",
    "a handshake with a header that is too long": b"GET /a HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\n"
    b"connection: upgrade\r\nx: " + b"x" * 9_000 + b"\r\n\r\n",
    "a head that is too large": b"GET /a HTTP/1.1\r\nhost: x\r\n" + b"x: y\r\n" * 20_000,
}  # fmt: skip


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer once the body is complete."""
    while (message := await receive())["type"] == "http.request":
        if not message["more_body"]:
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})


@contextmanager
def no_garbage() -> Iterator[None]:
    """Assert that the block leaves no object of ours to the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not {name: count for name, count in left.items() if name.startswith(OURS)}


@pytest.mark.parametrize("sent", HEADS.values(), ids=HEADS)
async def test_a_closed_http_connection_leaves_no_garbage(sent: bytes):
    house = House(answer)
    await settle()
    with no_garbage():
        connection, wire = house.connect()
        if sent:
            connection.data_received(sent)
        await settle()
        connection.connection_lost(None)
        wire.connection = None
        await settle()
        del connection, wire


async def open_and_end(service: Service, house: House, *, used: bool, ends: str) -> None:
    """Open a stream, use it or not, and close it from one side or the other."""
    if ends == "unknown ticket":
        line = Line(service, key=None, query="?ticket=x", house=house)
        await line.until(lambda: line.close_code)
    else:
        line = await Line(service, house=house).welcomed()
    if used:
        subscribe = {"type": "subscribe", "id": 1, "topic": "T", "group": "G"}
        line.send(wire_of(Opcode.TEXT, json.dumps(subscribe).encode()))
        await line.until(lambda: line.told("messages"))
        publish = {"type": "publish", "id": 2, "topic": "T", "messages": [{"body": "x"}]}
        line.send(wire_of(Opcode.TEXT, json.dumps(publish).encode()))
        await line.until(lambda: line.told("published"))
    if ends == "close frame":
        line.send(wire_of(Opcode.CLOSE, b"\x03\xe8"))
        await line.until(line.wire.is_closing)
    elif ends == "no frame":
        line.send(wire_of(Opcode.TEXT, b"{"))
        await line.until(lambda: line.close_code)
    await line.hang_up()
    line.wire.connection = line.wire.protocol = None
    service.consumers.members.clear()


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("ends", ["hang-up", "close frame", "no frame", "unknown ticket"])
async def test_a_closed_stream_leaves_no_garbage(used: bool, ends: str):
    service = Service(messages=100)
    house = House(service.endpoint)
    await open_and_end(service, house, used=False, ends=ends)
    with no_garbage():
        await open_and_end(service, house, used=used and ends != "unknown ticket", ends=ends)
