"""The channel suite over memory, in whole and in small pieces."""

import asyncio
from collections.abc import Mapping

import pytest

from gantry.remoting.aio import Handler, RemotingServer
from tests.support.channelsuite import ChannelSuite, Link, Linker
from tests.support.connectionpair import ConnectionPair, RawPeer, join
from tests.support.virtualtime import VirtualClock


class TestOverMemory(ChannelSuite):
    @pytest.fixture(params=[256_000, 1000])
    def link(self, request: pytest.FixtureRequest) -> Linker:
        async def make(handlers: Mapping[int, Handler], client_handlers: Mapping[int, Handler] | None = None) -> Link:
            clock = VirtualClock()
            server = RemotingServer(name="server", handlers=handlers, clock=clock)
            pair = ConnectionPair(server, clock, handlers=client_handlers, chunk_bytes=request.param)

            async def send_raw(data: bytes) -> bytes:
                peer = RawPeer()
                join(peer, server.channel(), chunk_bytes=request.param)
                peer.transport.write(data)
                await asyncio.sleep(1)
                peer.transport.close()
                await asyncio.sleep(1)
                return bytes(peer.received)

            return Link(server, pair.client, send_raw)

        return make
