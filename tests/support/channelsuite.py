"""Tests that every pair of channels must pass, whatever the transport: run over memory and over sockets.

Subclass ChannelSuite and give it a fixture `link`: an async function that takes the handlers of the server and of the
dialled side, and the limits of both, and returns a Link.
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from gantry.remoting.aio import Channel, RemotingServer, Reply
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import ConnectionLostError, HeaderError, LocalProtocolError, RequestTimeoutError

ECHO, DEFERRED, SLOW, ONE_WAY, WRONG, BROKEN, SILENT, ASK_BACK, BIG, RAW = range(1, 11)
TIMEOUT_MS = 5_000


class Link(NamedTuple):
    """A server and a channel dialled to it."""

    server: RemotingServer
    client: Channel
    send_raw: Callable[[bytes], Awaitable[bytes]]


class Service:
    """Handlers of every kind."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Channel, RemotingCommand]] = []
        self.one_ways: list[RemotingCommand] = []
        self._arrived = asyncio.Event()

    async def wait_for_requests(self, count: int) -> None:
        """Wait until `count` requests wait for `answer_all`."""
        while len(self.waiting) < count:
            self._arrived.clear()
            await self._arrived.wait()

    def handlers(self) -> dict[int, Callable[[Channel, RemotingCommand], Reply | Awaitable[Reply]]]:
        """Return the handlers by request code."""
        return {
            ECHO: self.echo, DEFERRED: self.deferred, SLOW: self.slow, ONE_WAY: self.one_way, WRONG: self.wrong,
            BROKEN: self.broken, SILENT: self.silent, ASK_BACK: self.ask_back, BIG: self.big, RAW: self.raw,
        }  # fmt: skip

    def echo(self, channel: Channel, request: RemotingCommand) -> Reply:
        return RemotingCommand.response_to(request, 0, body=request.body, ext=request.ext_fields)

    def deferred(self, channel: Channel, request: RemotingCommand) -> Reply:
        self.waiting.append((channel, request))
        self._arrived.set()
        return None

    def answer_all(self) -> None:
        while self.waiting:  # The last first: order must not matter.
            channel, request = self.waiting.pop()
            channel.reply(request, RemotingCommand(code=0, body=request.body))

    async def slow(self, channel: Channel, request: RemotingCommand) -> Reply:
        await asyncio.sleep(0.01)
        return RemotingCommand.response_to(request, 0, body=b"slow")

    def one_way(self, channel: Channel, request: RemotingCommand) -> Reply:
        self.one_ways.append(request)
        return RemotingCommand.response_to(request, 0)

    def wrong(self, channel: Channel, request: RemotingCommand) -> Reply:
        raise HeaderError("queueId", "x", "not a number")

    def broken(self, channel: Channel, request: RemotingCommand) -> Reply:
        raise ZeroDivisionError("by zero")

    def silent(self, channel: Channel, request: RemotingCommand) -> Reply:
        channel.leave_unanswered(request)
        return None

    async def ask_back(self, channel: Channel, request: RemotingCommand) -> Reply:
        answer = await channel.request(RemotingCommand.request(ECHO, body=b"back"), TIMEOUT_MS)
        return RemotingCommand.response_to(request, 0, body=answer.body_bytes + b"!")

    def big(self, channel: Channel, request: RemotingCommand) -> Reply:
        return RemotingCommand.response_to(request, 0, body=bytes(20_000_000))

    def raw(self, channel: Channel, request: RemotingCommand) -> Reply:
        header = b'{"code":0,"flag":1,"opaque":%d}' % request.opaque
        return struct.pack(">II", 4 + len(header), len(header)) + header


Linker = Callable[..., Awaitable[Link]]


class ChannelSuite:
    """The tests."""

    @pytest.fixture
    def service(self) -> Service:
        return Service()

    async def test_a_request_gets_its_answer(self, link: Linker, service: Service):
        client = (await link(service.handlers())).client

        response = await client.request(RemotingCommand.request(ECHO, body=b"hello", ext={"a": "1"}), TIMEOUT_MS)

        assert (response.code, response.body, response.ext_fields) == (0, b"hello", {"a": "1"})

    async def test_many_requests_at_once_each_get_their_own(self, link: Linker, service: Service):
        client = (await link(service.handlers())).client

        requests = [client.request(RemotingCommand.request(ECHO, body=b"%d" % i), TIMEOUT_MS) for i in range(300)]
        responses = await asyncio.gather(*requests)

        assert [response.body for response in responses] == [b"%d" % i for i in range(300)]

    async def test_answers_may_come_later_and_in_any_order(self, link: Linker, service: Service):
        server, client, _ = await link(service.handlers())
        requests = [
            asyncio.ensure_future(client.request(RemotingCommand.request(DEFERRED, body=b"%d" % i), TIMEOUT_MS))
            for i in range(10)
        ]
        await service.wait_for_requests(10)
        assert [channel.in_flight_count for channel in server.channels] == [10]

        service.answer_all()

        assert [(await request).body for request in requests] == [b"%d" % i for i in range(10)]
        assert [channel.in_flight_count for channel in server.channels] == [0]

    async def test_a_coroutine_may_answer(self, link: Linker, service: Service):
        client = (await link(service.handlers())).client

        assert (await client.request(RemotingCommand.request(SLOW), TIMEOUT_MS)).body == b"slow"

    async def test_a_frame_may_answer(self, link: Linker, service: Service):
        client = (await link(service.handlers())).client

        assert (await client.request(RemotingCommand.request(RAW), TIMEOUT_MS)).code == 0

    async def test_one_way_requests_arrive_in_order_and_get_no_answer(self, link: Linker, service: Service):
        server, client, _ = await link(service.handlers())

        for i in range(5):
            client.send_one_way(RemotingCommand.request(ONE_WAY, body=b"%d" % i))
        await client.request(RemotingCommand.request(ECHO), TIMEOUT_MS)

        assert [request.body for request in service.one_ways] == [b"%d" % i for i in range(5)]
        assert all(request.is_one_way for request in service.one_ways)
        assert [channel.in_flight_count for channel in server.channels] == [0]

    async def test_either_side_may_ask(self, link: Linker, service: Service):
        client = (await link(service.handlers(), client_handlers={ECHO: service.echo})).client

        assert (await client.request(RemotingCommand.request(ASK_BACK), TIMEOUT_MS)).body == b"back!"

    async def test_an_unknown_code_is_answered_3(self, link: Linker, service: Service):
        server, client, _ = await link(service.handlers())

        response = await client.request(RemotingCommand.request(9999), TIMEOUT_MS)

        assert response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert response.remark == " request type 9999 not supported"
        assert server.counters.unsupported_requests == 1

    async def test_a_request_that_fails_affects_no_other(self, link: Linker, service: Service):
        server, client, _ = await link(service.handlers())

        codes = (WRONG, BROKEN, BIG, ECHO)
        responses = await asyncio.gather(*[client.request(RemotingCommand.request(code), TIMEOUT_MS) for code in codes])

        assert [response.code for response in responses] == [1, 1, 1, 0]
        assert responses[0].remark == "header field queueId = 'x': not a number"
        assert responses[1].remark == "ZeroDivisionError: by zero"
        assert "at most 16777216" in (responses[2].remark or "")
        assert (server.counters.bad_requests, server.counters.handler_errors) == (1, 2)

    async def test_bodies_of_megabytes(self, link: Linker, service: Service):
        client = (await link(service.handlers())).client
        body = bytes(range(256)) * 20_000

        responses = await asyncio.gather(
            *[client.request(RemotingCommand.request(ECHO, body=body), TIMEOUT_MS) for _ in range(4)]
        )

        assert all(response.body == body for response in responses)

    async def test_a_command_larger_than_a_frame_is_not_sent(self, link: Linker, service: Service):
        client = (await link(service.handlers())).client

        with pytest.raises(LocalProtocolError):
            await client.request(RemotingCommand.request(ECHO, body=bytes(20_000_000)), TIMEOUT_MS)
        assert (await client.request(RemotingCommand.request(ECHO), TIMEOUT_MS)).code == 0

    async def test_a_missing_answer_is_a_timeout_and_a_late_one_is_dropped(self, link: Linker, service: Service):
        _, client, _ = await link(service.handlers())

        with pytest.raises(RequestTimeoutError, match="no answer in time") as caught:
            await client.request(RemotingCommand.request(DEFERRED), 50)
        assert caught.value.sent
        service.answer_all()

        assert (await client.request(RemotingCommand.request(ECHO), TIMEOUT_MS)).code == 0

    async def test_a_request_may_be_left_unanswered(self, link: Linker, service: Service):
        server, client, _ = await link(service.handlers())

        with pytest.raises(RequestTimeoutError):
            await client.request(RemotingCommand.request(SILENT), 50)

        assert [channel.in_flight_count for channel in server.channels] == [0]

    async def test_requests_fail_when_the_server_goes(self, link: Linker, service: Service):
        server, client, _ = await link(service.handlers())
        request = asyncio.ensure_future(client.request(RemotingCommand.request(DEFERRED), TIMEOUT_MS))
        await service.wait_for_requests(1)

        service.waiting[0][0].close("test")

        with pytest.raises(ConnectionLostError, match="closed by the peer") as caught:
            await request
        assert caught.value.sent
        with pytest.raises(ConnectionLostError) as caught:
            await client.request(RemotingCommand.request(ECHO), TIMEOUT_MS)
        assert not caught.value.sent
        service.answer_all()
        assert server.counters.dropped_replies == 1

    async def test_an_answer_given_before_the_close_arrives(self, link: Linker, service: Service):
        server, client, _ = await link(service.handlers())
        request = asyncio.ensure_future(
            client.request(RemotingCommand.request(DEFERRED, body=bytes(1_000_000)), TIMEOUT_MS)
        )
        await service.wait_for_requests(1)
        channel = service.waiting[0][0]

        service.answer_all()
        channel.close("test")

        assert len((await request).body_bytes) == 1_000_000
        assert server.counters.connections_opened == 1

    @pytest.mark.parametrize(
        ("data", "counter"),
        [
            (b"GET / HTTP/1.1\r\n\r\n", "frames_too_large"),
            (struct.pack(">II", 0x01000000, 2) + b"{}", "frames_too_large"),
            (struct.pack(">II", 6, 2) + b"{]", "protocol_errors"),
            (struct.pack(">II", 6, 0x05000002) + b"{}", "protocol_errors"),
            (b"\0\0", None),
        ],
    )
    async def test_bytes_that_are_no_frame_end_only_their_own_connection(
        self, link: Linker, service: Service, data: bytes, counter: str | None
    ):
        server, client, send_raw = await link(service.handlers())

        assert await send_raw(data) == b""

        assert (await client.request(RemotingCommand.request(ECHO), TIMEOUT_MS)).code == 0
        assert server.counters.protocol_errors == 1
        assert counter is None or server.counters.snapshot()[counter] == 1
        assert len(server.channels) == 1

    async def test_good_frames_before_garbage_are_answered(self, link: Linker, service: Service):
        _, _, send_raw = await link(service.handlers())
        header = b'{"code":1,"opaque":7}'
        frame = struct.pack(">II", 4 + len(header), len(header)) + header

        received = await send_raw(frame + b"garbage!")

        assert b'"opaque":7' in received
