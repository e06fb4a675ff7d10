"""Accepting connections: those in the backlog wait only a few turns of the event loop."""

import asyncio
import contextlib
import socket
from typing import Any

import uvloop

from services.gateway.auth.keyring import KeyRing
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.server import bind, make_server
from services.gateway.settings import GatewaySettings

WAITING = 160


async def nobody(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("no request is expected")


async def turns_until_all_are_accepted() -> int:
    """Return the number of turns in which a server accepts all connections that wait when it starts."""
    settings = GatewaySettings()
    listener = bind("127.0.0.1", 0)
    listener.listen(WAITING)
    with contextlib.ExitStack() as waiting:
        for _ in range(WAITING):
            waiting.enter_context(socket.create_connection(listener.getsockname()))
        server = make_server(nobody, settings, Limits(settings), GatewayMetrics(), KeyRing())
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        await server.is_up.wait()
        turns = 0
        async with asyncio.timeout(30):
            while len(server.server_state.connections) < WAITING:
                await asyncio.sleep(0)
                turns += 1
    server.stop()
    await serving
    return turns


def test_a_burst_of_connections_is_accepted_in_a_few_turns_of_the_loop() -> None:
    """It once took a turn for each one, so a stranger who connected without end kept others out of a busy gateway."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        turns = runner.run(turns_until_all_are_accepted())
    assert turns <= WAITING / 5


def test_a_stopped_server_accepts_no_connection() -> None:
    async def start_and_stop() -> tuple[str, int]:
        settings = GatewaySettings()
        listener = bind("127.0.0.1", 0)
        address: tuple[str, int] = listener.getsockname()
        server = make_server(nobody, settings, Limits(settings), GatewayMetrics(), KeyRing())
        serving = asyncio.ensure_future(server.serve(sockets=[listener]))
        await server.is_up.wait()
        server.stop()
        await serving
        return address

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        address = runner.run(start_and_stop())
        with contextlib.closing(socket.socket()) as connection:
            assert connection.connect_ex(address) != 0
