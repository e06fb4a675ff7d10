"""Limits, timeouts and the lifetime of a channel, on virtual time."""

import asyncio

import pytest

from gantry.model.address import Address
from gantry.remoting.aio import Channel, ChannelLimits, RemotingServer, Reply, ServerLimits
from gantry.remoting.aio.endpoint import socket_address
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand, encode_frame
from gantry.remoting.errors import BackpressureError, RequestTimeoutError
from tests.support.connectionpair import ConnectionPair, RawPeer, join
from tests.support.virtualtime import VirtualClock

ECHO, LATER = 1, 2
SECOND_MS = 1000


def echo(channel: Channel, request: RemotingCommand) -> Reply:
    return RemotingCommand.response_to(request, 0, body=request.body)


class Fixture:
    """A server whose LATER requests stay unanswered, and the events that its owner received."""

    def __init__(self, limits: ServerLimits | None = None, clock: VirtualClock | None = None) -> None:
        self.clock = clock or VirtualClock()
        self.waiting: list[tuple[Channel, RemotingCommand]] = []
        self.opened: list[Channel] = []
        self.closed: list[Channel] = []
        self.bugs: list[AssertionError] = []
        self.server = RemotingServer(
            name="broker-a",
            handlers={ECHO: echo, LATER: self.later},
            clock=self.clock,
            limits=limits,
            on_connect=self.opened.append,
            on_close=self.closed.append,
            on_bug=self.bugs.append,
        )

    def later(self, channel: Channel, request: RemotingCommand) -> Reply:
        self.waiting.append((channel, request))
        return None

    def pair(self, limits: ChannelLimits | None = None) -> ConnectionPair:
        return ConnectionPair(self.server, self.clock, limits=limits)

    def raw(self) -> RawPeer:
        peer = RawPeer()
        join(peer, self.server.channel())
        return peer


def request(code: int = ECHO, body: bytes | None = None) -> RemotingCommand:
    return RemotingCommand.request(code, body=body)


async def test_all_replies_to_one_read_are_one_write():
    pair = Fixture().pair()

    await asyncio.gather(*[pair.client.request(request(), SECOND_MS) for _ in range(50)])

    assert pair.client_transport.written_calls == 1
    assert pair.server_transport.written_calls == 1


async def test_large_requests_do_not_wait_for_the_end_of_the_turn():
    fixture = Fixture()
    pair = fixture.pair()
    body = bytes(40_000)
    requests = [pair.client.start_request(request(LATER, body), SECOND_MS) for _ in range(5)]
    assert pair.client_transport.written_calls == 2, "two replies in each write"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert pair.client_transport.written_calls == 3, "the fifth reply is written at the end of the turn"
    with pytest.raises(RequestTimeoutError) as caught:
        await requests[0]
    assert caught.value.sent
    await asyncio.gather(*requests, return_exceptions=True)


async def test_late_replies_of_one_turn_are_one_write():
    fixture = Fixture()
    pair = fixture.pair()
    requests = asyncio.gather(*[pair.client.request(request(LATER), SECOND_MS) for _ in range(50)])
    await asyncio.sleep(0.01)

    for channel, asked in fixture.waiting:
        channel.reply(asked, RemotingCommand(code=0))
    await requests

    assert pair.server_transport.written_calls == 1


async def test_an_idle_connection_is_closed_and_a_busy_one_is_not():
    fixture = Fixture()
    idle, busy = fixture.pair(), fixture.pair()

    for _ in range(5):
        await asyncio.sleep(50)
        await busy.client.request(request(), SECOND_MS)

    assert fixture.closed == [idle.server]
    assert idle.server.close_reason == "idle for 120000 ms"
    assert idle.client.closed
    assert fixture.server.counters.closed_idle == 1
    assert not busy.client.closed


async def test_requests_beyond_the_in_flight_limit_are_answered_busy():
    fixture = Fixture(ServerLimits(in_flight_max=3))
    pair = fixture.pair()
    first = [asyncio.ensure_future(pair.client.request(request(LATER), SECOND_MS)) for _ in range(3)]
    await asyncio.sleep(0)

    refused = await pair.client.request(request(), SECOND_MS)
    for channel, asked in fixture.waiting:
        channel.reply(asked, RemotingCommand(code=0))
    await asyncio.gather(*first)

    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert refused.remark == "[OVERLOAD]system busy, start flow control for a while"
    assert fixture.server.counters.refused_in_flight == 1
    assert (await pair.client.request(request(), SECOND_MS)).code == 0


async def test_a_request_answered_twice_is_a_bug():
    fixture = Fixture()
    pair = fixture.pair()
    asked = asyncio.ensure_future(pair.client.request(request(LATER), SECOND_MS))
    await asyncio.sleep(0.01)
    channel, command = fixture.waiting[0]
    channel.reply(command, RemotingCommand(code=0))
    await asked

    with pytest.raises(AssertionError, match="answered twice"):
        channel.reply(command, RemotingCommand(code=0))


async def test_an_assertion_in_a_handler_reaches_the_owner():
    fixture = Fixture()

    def failing(channel: Channel, asked: RemotingCommand) -> Reply:
        raise AssertionError("never")

    fixture.server._owner.handlers = {ECHO: failing}
    response = await fixture.pair().client.request(request(), SECOND_MS)

    assert response.code == ResponseCode.SYSTEM_ERROR
    assert [str(bug) for bug in fixture.bugs] == ["never"]


async def test_a_fallback_takes_codes_without_a_handler():
    fixture = Fixture()
    fixture.server._owner.fallback = echo

    assert (await fixture.pair().client.request(request(999, b"x"), SECOND_MS)).body == b"x"


async def test_a_coroutine_that_fails_is_answered():
    fixture = Fixture()

    async def failing(channel: Channel, asked: RemotingCommand) -> Reply:
        await asyncio.sleep(1)
        raise ValueError("no")

    async def quiet(channel: Channel, asked: RemotingCommand) -> Reply:
        return None

    fixture.server._owner.handlers = {ECHO: failing, LATER: quiet}
    pair = fixture.pair()

    response = await pair.client.request(request(), 5 * SECOND_MS)
    pair.client.send_one_way(request(LATER))
    await asyncio.sleep(1)

    assert (response.code, response.remark) == (1, "ValueError: no")
    assert pair.server.in_flight_count == 0


async def test_a_request_of_ours_times_out_within_a_sweep():
    fixture = Fixture()
    pair = fixture.pair()
    started_ms = fixture.clock.monotonic_ms()

    with pytest.raises(RequestTimeoutError):
        await pair.client.request(request(LATER), 250)

    assert 250 <= fixture.clock.monotonic_ms() - started_ms <= 350
    assert pair.endpoint.counters.timed_out_requests == 1
    fixture.waiting[0][0].reply(fixture.waiting[0][1], RemotingCommand(code=0))
    await asyncio.sleep(0.01)
    assert pair.endpoint.counters.unknown_responses == 1


async def test_a_cancelled_request_leaves_nothing_behind():
    fixture = Fixture()
    pair = fixture.pair()
    task = asyncio.ensure_future(pair.client.request(request(LATER), SECOND_MS))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(2)

    assert len(pair.client._pending) == 0
    assert pair.endpoint.counters.timed_out_requests == 0


async def test_our_own_requests_are_limited():
    pair = Fixture().pair(ChannelLimits(pending_max=2))
    futures = [pair.client.start_request(request(LATER), 100) for _ in range(2)]

    with pytest.raises(BackpressureError, match="2 requests wait") as caught:
        pair.client.start_request(request(), 100)

    assert not caught.value.sent
    assert all(
        isinstance(error, RequestTimeoutError) for error in await asyncio.gather(*futures, return_exceptions=True)
    )


async def test_our_own_bytes_are_limited():
    pair = Fixture().pair(ChannelLimits(write_buffer_high_bytes=1000, write_buffer_bytes_max=10_000_000))
    pair.server_transport.pause_reading()

    def flood() -> None:
        for _ in range(20):
            pair.client.send_one_way(request(body=bytes(1_000_000)))

    with pytest.raises(BackpressureError, match="bytes already wait to be sent"):
        flood()
    await asyncio.sleep(0.01)
    with pytest.raises(BackpressureError, match="bytes already wait to be sent"):
        await pair.client.request(request(), SECOND_MS)
    assert not pair.client.closed

    pair.server_transport.resume_reading()
    await asyncio.sleep(0.01)
    assert (await pair.client.request(request(), SECOND_MS)).code == 0


async def test_a_server_does_not_read_from_a_peer_that_does_not_read():
    fixture = Fixture(ServerLimits(write_buffer_high_bytes=30_000))
    pair = fixture.pair()
    pair.client_transport.pause_reading()
    body = bytes(2_500)
    requests = [asyncio.ensure_future(pair.client.request(request(body=body), 50 * SECOND_MS)) for _ in range(400)]
    await asyncio.sleep(1)

    assert pair.server_transport.get_write_buffer_size() < 75_000
    assert pair.server._deferred
    more = asyncio.ensure_future(pair.client.request(request(body=b"last"), 50 * SECOND_MS))
    await asyncio.sleep(1)
    pair.client_transport.resume_reading()

    assert [response.body for response in await asyncio.gather(*requests)] == [body] * 400
    assert (await more).body == b"last"


class BusyClock(VirtualClock):
    """A clock that also advances while a handler works."""

    worked_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.worked_ms


@pytest.mark.parametrize(
    ("asked_bytes", "answered_bytes", "is_frame"),
    [
        pytest.param(9_000, 1, False, id="large requests, such as batches"),
        pytest.param(1, 9_000, False, id="large answers, such as those of pulls"),
        pytest.param(1, 9_000, True, id="large answers that are complete frames"),
    ],
)
async def test_slow_requests_let_other_channels_take_turns(asked_bytes, answered_bytes, is_frame):
    clock = BusyClock()
    fixture = Fixture(clock=clock)
    done: list[bytes] = []

    def work(channel: Channel, asked: RemotingCommand) -> Reply:
        clock.worked_ms += 2
        done.append(asked.body_bytes[:1])
        answer = RemotingCommand.response_to(asked, 0, body=bytes(answered_bytes))
        return encode_frame(answer) if is_frame else answer

    fixture.server._owner.handlers = {ECHO: work}
    slow, other = fixture.pair(), fixture.pair()
    slow.server_transport.pause_reading()
    body = b"s" * asked_bytes
    answers = [asyncio.ensure_future(slow.client.request(request(body=body), SECOND_MS)) for _ in range(20)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    slow.server_transport.resume_reading()  # All 20 come in one read,
    await asyncio.sleep(0)
    answers.append(asyncio.ensure_future(other.client.request(request(body=b"o"), SECOND_MS)))  # and then this one.
    await asyncio.gather(*answers)

    assert done.count(b"s") == 20
    assert done.index(b"o") <= 10


async def test_a_channel_that_closes_between_its_turns_does_no_more():
    clock = BusyClock()
    fixture = Fixture(clock=clock)
    done: list[RemotingCommand] = []

    def work(channel: Channel, asked: RemotingCommand) -> Reply:
        clock.worked_ms += 10
        done.append(asked)
        return None

    fixture.server._owner.handlers = {LATER: work}
    pair = fixture.pair()
    pair.server.data_received(b"".join(encode_frame(request(LATER, bytes(9_000))) for _ in range(9)))
    assert (len(done), len(pair.server._deferred)) == (1, 8)
    pair.server.abort("test")
    await asyncio.sleep(0.01)

    assert len(done) == 1


async def test_a_peer_that_never_reads_is_disconnected():
    fixture = Fixture(ServerLimits(write_buffer_high_bytes=1000, write_buffer_bytes_max=100_000))
    pair = fixture.pair()
    pair.client_transport.pause_reading()

    for _ in range(20):
        pair.server.send_one_way(request(body=bytes(9_000)))
        await asyncio.sleep(0.01)

    assert fixture.closed == [pair.server]
    assert fixture.server.counters.closed_slow == 1


async def test_a_close_that_the_peer_does_not_read_is_aborted():
    fixture = Fixture()
    pair = fixture.pair()
    pair.client_transport.pause_reading()
    pair.server.send_one_way(request(body=bytes(1000)))
    pair.server.close("test")
    await asyncio.sleep(1)
    assert not fixture.closed

    await asyncio.sleep(10)

    assert fixture.closed == [pair.server]
    assert pair.server.close_reason == "test"


async def test_connections_beyond_the_limit_are_refused():
    fixture = Fixture(ServerLimits(connections_max=2))
    pairs = [fixture.pair() for _ in range(3)]
    await asyncio.sleep(1)

    assert [pair.client.closed for pair in pairs] == [False, False, True]
    assert fixture.opened == [pairs[0].server, pairs[1].server]
    assert fixture.closed == []
    assert fixture.server.counters.connections_refused == 1
    pairs[0].client.close("done")
    await asyncio.sleep(1)
    assert not fixture.pair().client.closed
    assert fixture.closed == [pairs[0].server]


async def test_a_stop_answers_requests_in_flight_and_refuses_new_ones():
    fixture = Fixture()
    pair = fixture.pair()
    asked = asyncio.ensure_future(pair.client.request(request(LATER), 10 * SECOND_MS))
    await asyncio.sleep(0.01)
    stopping = asyncio.ensure_future(fixture.server.stop(drain_ms=5_000))
    await asyncio.sleep(1)

    refused = await pair.client.request(request(), SECOND_MS)
    late = fixture.pair()
    fixture.waiting[0][0].reply(fixture.waiting[0][1], RemotingCommand(code=0, body=b"answered"))
    await stopping

    assert (await asked).body == b"answered"
    assert (refused.code, refused.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, "broker-a is stopping")
    assert late.client.closed
    assert pair.client.closed
    assert fixture.closed == [pair.server]
    assert fixture.server.channels == []


async def test_stopping_does_not_wait_for_ever():
    fixture = Fixture()
    pair = fixture.pair()
    pair.client.start_request(request(LATER), SECOND_MS).cancel()
    pair.client_transport.pause_reading()
    pair.server.send_one_way(request(body=bytes(1000)))
    await asyncio.sleep(0.01)
    started_ms = fixture.clock.monotonic_ms()

    await fixture.server.stop(drain_ms=2_000)

    assert fixture.clock.monotonic_ms() - started_ms <= 2_000 + 2 * ServerLimits().linger_ms
    assert fixture.closed == [pair.server]


async def test_a_handler_that_closes_ends_the_processing_of_later_requests():
    fixture = Fixture()
    seen: list[int] = []

    def closing(channel: Channel, asked: RemotingCommand) -> Reply:
        seen.append(asked.opaque)
        channel.close("enough")
        return None

    fixture.server._owner.handlers = {ECHO: closing}
    peer = fixture.raw()
    peer.transport.write(b"".join(encode_frame(RemotingCommand(code=ECHO, opaque=i)) for i in range(5)))
    await asyncio.sleep(1)

    assert seen == [0]
    assert peer.is_lost


async def test_nothing_is_sent_on_a_closed_channel():
    fixture = Fixture()
    pair = fixture.pair()
    asked = pair.client.start_request(request(LATER), SECOND_MS)
    await asyncio.sleep(0.01)
    channel, command = fixture.waiting[0]
    pair.client.close("done")
    pair.client.close("twice")
    pair.client.send_one_way(request())
    await asyncio.sleep(1)

    channel.reply_frame(command, b"")
    channel.leave_unanswered(command)

    assert pair.client.close_reason == "done"
    assert asked.exception() is not None
    assert fixture.server.counters.dropped_replies == 1
    assert repr(pair.client) == "<Channel 127.0.0.1:50000 to 127.0.0.1:10911 closed>"


@pytest.mark.parametrize(
    ("name", "address"),
    [
        (("10.0.0.1", 5), Address("10.0.0.1", 5)),
        (("::1", 5, 0, 0), Address("::1", 5)),
        (("::ffff:10.0.0.1", 5, 0, 0), Address("10.0.0.1", 5)),
        ("/tmp/socket", Address("", 0)),
        (None, Address("", 0)),
    ],
)
def test_peer_addresses_fit_records(name: object, address: Address):
    assert socket_address(name) == address


async def test_a_coroutine_may_answer_with_a_frame_and_later_frames_may_too():
    fixture = Fixture()

    async def framing(channel: Channel, asked: RemotingCommand) -> Reply:
        return encode_frame(RemotingCommand.response_to(asked, 0, body=b"frame"))

    fixture.server._owner.handlers = {ECHO: framing, LATER: fixture.later}
    pair = fixture.pair()
    assert (await pair.client.request(request(), SECOND_MS)).body == b"frame"

    waiting = asyncio.ensure_future(pair.client.request(request(LATER), SECOND_MS))
    await asyncio.sleep(0.01)
    channel, asked = fixture.waiting[0]
    channel.reply_frame(asked, encode_frame(RemotingCommand.response_to(asked, 7)))

    assert (await waiting).code == 7
    assert pair.server.in_flight_count == 0


async def test_answers_to_one_way_requests_are_dropped():
    fixture = Fixture()
    pair = fixture.pair()
    pair.client.send_one_way(request(LATER))
    await asyncio.sleep(0.01)
    channel, asked = fixture.waiting[0]

    channel.reply(asked, RemotingCommand(code=0))
    channel.reply_frame(asked, b"")
    channel.leave_unanswered(asked)
    await asyncio.sleep(0.01)

    assert pair.server_transport.written_calls == 0


async def test_a_coroutine_that_answers_twice_is_counted():
    fixture = Fixture()

    async def twice(channel: Channel, asked: RemotingCommand) -> Reply:
        channel.reply(asked, RemotingCommand(code=0))
        return RemotingCommand.response_to(asked, 0)

    fixture.server._owner.handlers = {ECHO: twice}

    assert (await fixture.pair().client.request(request(), SECOND_MS)).code == 0
    assert fixture.server.counters.handler_errors == 1


async def test_requests_that_arrive_while_others_are_held_wait_behind_them():
    fixture = Fixture(ServerLimits(write_buffer_high_bytes=1000))
    pair = fixture.pair()
    pair.client_transport.pause_reading()
    first = [asyncio.ensure_future(pair.client.request(request(body=bytes(2000)), SECOND_MS)) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert len(pair.server._deferred) == 2

    # A socket may deliver bytes that it has already read after reading was paused.
    pair.server.data_received(encode_frame(RemotingCommand(code=LATER, opaque=99)))
    assert len(pair.server._deferred) == 3
    pair.client_transport.resume_reading()
    await asyncio.gather(*first)

    assert [asked.opaque for _, asked in fixture.waiting] == [99]


async def test_bytes_after_closing_are_ignored():
    fixture = Fixture()
    pair = fixture.pair()
    pair.server.close("test")

    pair.server.data_received(encode_frame(RemotingCommand(code=LATER)))
    pair.server.resume_writing()

    assert fixture.waiting == []


async def test_a_close_whose_flush_disconnects_the_peer_ends():
    fixture = Fixture(ServerLimits(write_buffer_high_bytes=10, write_buffer_bytes_max=100))
    pair = fixture.pair()
    pair.client_transport.pause_reading()
    pair.server.send_one_way(request(body=bytes(200)))

    pair.server.close("test")
    await asyncio.sleep(1)

    assert pair.server.close_reason == "peer does not read"
    assert fixture.closed == [pair.server]


async def test_a_server_without_connections_stops_at_once():
    fixture = Fixture()

    await fixture.server.stop()
    fixture.server.reload_tls()

    assert fixture.server.counters.snapshot()["connections_opened"] == 0


async def test_unfinished_frames_of_all_connections_together_are_limited():
    fixture = Fixture(ServerLimits(buffered_bytes_max=5_000_000))
    small = fixture.raw()
    small.transport.write(encode_frame(request(body=bytes(1000)))[:-1])
    peers = [fixture.raw() for _ in range(3)]
    for peer in peers:
        peer.transport.write(encode_frame(request(body=bytes(3_000_000)))[:2_000_000])
    await asyncio.sleep(1)

    assert sum(peer.is_lost for peer in peers) == 1
    assert fixture.server.counters.closed_overfull == 1
    small.transport.write(b"\0")
    await asyncio.sleep(1)
    assert small.received
    for peer in peers:
        peer.transport.close()
    await asyncio.sleep(1)
    assert fixture.server._endpoint.buffered_bytes == 0


async def test_connections_with_much_input_are_read_in_turn():
    fixture = Fixture()
    bulk, small = fixture.raw(), fixture.raw()
    bulk.transport.write(encode_frame(request(LATER, bytes(8 << 20))))
    small.transport.write(encode_frame(request(LATER)))
    await asyncio.sleep(1)
    first, last = [asked.body for _, asked in fixture.waiting]
    assert first is None, "it waited for all requests of the other connection"
    assert last == bytes(8 << 20)


async def test_a_client_whose_requests_are_blocked_still_reads_large_answers():
    """The peer may wait until the client reads its answers."""
    fixture = Fixture()
    pair = fixture.pair()
    asked = asyncio.ensure_future(pair.client.request(request(LATER), 60 * SECOND_MS))
    await asyncio.sleep(0.01)
    pair.server_transport.pause_reading()
    waiting = asyncio.ensure_future(pair.client.request(request(body=bytes(6 << 20)), 60 * SECOND_MS))
    await asyncio.sleep(0.01)
    [(channel, first)] = fixture.waiting
    channel.reply(first, RemotingCommand(code=0, body=bytes(4 << 20)))
    assert len((await asked).body_bytes) == 4 << 20
    pair.server_transport.resume_reading()
    assert (await waiting).code == 0
