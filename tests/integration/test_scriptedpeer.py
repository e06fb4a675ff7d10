"""The scripted transport of unit tests and the same scripts on a socket: both give the same results."""

from collections.abc import AsyncIterator

import pytest

from gantry.remoting.aio import RemotingClient
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import ConnectError, ConnectionLostError, RequestTimeoutError
from gantry.runtime.clock import SystemClock
from tests.support.scriptedpeer import Script, ScriptedPeer, ScriptedTransport, in_turn, ok, refuse


def scripts() -> dict[int, Script]:
    return {
        1: lambda request: ok(request, ext={"a": "b"}, body=b"body"),
        2: refuse(17, "no such thing"),
        3: lambda request: None,
        4: lambda request: ConnectionLostError("x", "broken", sent=True),
        5: in_turn(refuse(2), ok),
    }


@pytest.fixture(params=["memory", "socket"])
async def peer(request: pytest.FixtureRequest) -> AsyncIterator[tuple[RemotingClient | ScriptedTransport, str]]:
    if request.param == "memory":
        transport = ScriptedTransport()
        transport.at("peer:1", scripts())
        yield transport, "peer:1"
        return
    server, client = ScriptedPeer(scripts()), RemotingClient(clock=SystemClock())
    yield client, await server.start()
    await client.close()
    await server.stop()


async def test_answers_are_returned(peer):
    transport, address = peer
    answer = await transport.invoke(address, RemotingCommand.request(1, ext={"x": "y"}), timeout_ms=2_000)
    assert (answer.code, answer.ext_fields, answer.body, answer.is_response) == (0, {"a": "b"}, b"body", True)
    answer = await transport.invoke(address, RemotingCommand.request(2), timeout_ms=2_000)
    assert (answer.code, answer.remark) == (17, "no such thing")
    codes = [(await transport.invoke(address, RemotingCommand.request(5), timeout_ms=2_000)).code for _ in range(3)]
    assert codes == [2, 0, 0]
    assert (await transport.invoke(address, RemotingCommand.request(99), timeout_ms=2_000)).code == 3


async def test_timeouts_and_broken_connections_say_that_the_peer_may_have_received_it(peer):
    transport, address = peer
    with pytest.raises(RequestTimeoutError) as late:
        await transport.invoke(address, RemotingCommand.request(3), timeout_ms=200)
    assert late.value.sent
    with pytest.raises(ConnectionLostError) as lost:
        await transport.invoke(address, RemotingCommand.request(4), timeout_ms=2_000)
    assert lost.value.sent


async def test_a_refused_connection_means_certainly_not_sent(peer):
    transport, _ = peer
    with pytest.raises(ConnectError) as refused:
        await transport.invoke("127.0.0.1:1", RemotingCommand.request(1), timeout_ms=2_000)
    assert not refused.value.sent
    with pytest.raises(ConnectError):
        await transport.invoke_one_way("127.0.0.1:1", RemotingCommand.request(1, one_way=True))


async def test_one_way_requests_are_seen(peer):
    transport, address = peer
    await transport.invoke_one_way(address, RemotingCommand.request(1, one_way=True))
    assert (await transport.invoke(address, RemotingCommand.request(2), timeout_ms=2_000)).code == 17
