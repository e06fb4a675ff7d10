"""A stream's connection over a fake transport: the cost of floods and unfinished messages, and how they end."""

import asyncio
import base64
import gc
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import CLIENT, Protocol

from services.gateway.metrics import GatewayMetrics
from services.gateway.settings import GatewaySettings
from services.gateway.streamprotocol import CLOSE_TIMEOUT_S, StreamProtocol
from tests.unit.services.gateway.wires import House
from tests.unit.services.gateway.ws.peers import KEY, THIRD_KEY, Service

MIB = 1024 * 1024


def wire_of(opcode: Opcode, data: bytes = b"", *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


class Line:
    """A client of a whole stream endpoint: writes bytes, and reads frames out of the bytes that the endpoint wrote."""

    def __init__(
        self,
        service: Service,
        *,
        key: str | None = KEY,
        query: str = "",
        behind_head: bytes = b"",
        house: House | None = None,
    ) -> None:
        house = house or House(service.endpoint)
        self.metrics: GatewayMetrics = house.metrics
        self.connection, self.wire = house.connect()
        self._client = Protocol(CLIENT)
        self._read = 0
        lines = [
            f"GET /v1/stream{query} HTTP/1.1",
            "Host: x",
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: " + base64.b64encode(bytes(16)).decode(),
            "Sec-WebSocket-Protocol: gantry.v1.json",
            *([f"Authorization: Bearer {key}"] if key else []),
        ]
        self.connection.data_received("\r\n".join([*lines, "", ""]).encode() + behind_head)
        self.stream: StreamProtocol = self.wire.protocol
        self.wire.connection = self.stream
        self._tasks = set(house.server.server_state.tasks)
        self.frames: list[Frame] = []
        self._head = b""

    def send(self, data: bytes) -> None:
        self.stream.data_received(data)

    def read(self) -> list[Frame]:
        """Return all frames that were written so far."""
        writes = b"".join(self.wire.writes[self._read :])
        self._read = len(self.wire.writes)
        if not self._head:
            if not writes:
                return []
            head, _, writes = (self._head + writes).partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 101"), head
            self._head = head
        if writes:
            self._client.receive_data(writes)
            self.frames += [frame for frame in self._client.events_received() if isinstance(frame, Frame)]
        return self.frames

    def told(self, kind: str) -> dict[str, Any] | None:
        """Return the first frame of a type, if it arrived."""
        found = [json.loads(bytes(frame.data)) for frame in self.read() if frame.opcode is Opcode.TEXT]
        return next((frame for frame in found if frame["type"] == kind), None)

    @property
    def close_code(self) -> int | None:
        codes = [Close.parse(frame.data).code for frame in self.read() if frame.opcode is Opcode.CLOSE]
        return codes[0] if codes else None

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(300):
            while not condition():  # noqa: ASYNC110 # It is seen in what was written, and time is virtual.
                await asyncio.sleep(0.01)

    async def welcomed(self) -> "Line":
        await self.until(lambda: self.told("welcome"))
        return self

    async def hang_up(self) -> None:
        self.stream.connection_lost(None)
        await asyncio.wait(self._tasks)


@pytest.fixture
async def service() -> Service:
    return Service()


def held(service: Service) -> int:
    return service.quotas.body_bytes.used


async def test_after_the_goodbye_nothing_is_stored_and_the_connection_ends_soon(service: Service) -> None:
    """Fragments were once collected for ten seconds, even for strangers with a wrong ticket."""
    line = Line(service, key=None, query="?ticket=x")
    await line.until(lambda: line.close_code)
    assert line.told("goodbye") is not None
    assert line.close_code == 4401
    line.send(wire_of(Opcode.TEXT, b"x" * MIB, fin=False))
    for _ in range(14):
        line.send(wire_of(Opcode.CONT, b"x" * MIB, fin=False))
    assert line.stream.frames == []
    assert line.stream._reader.held_bytes == 0
    await line.until(lambda: not line.wire.is_paused)  # The peer's close frame is still accepted.
    assert not line.wire.is_closing()
    await asyncio.sleep(CLOSE_TIMEOUT_S + 0.1)
    assert line.wire.is_closing()
    await line.hang_up()


async def test_the_endpoint_finds_the_connection_behind_a_middleware(service: Service) -> None:
    async def middleware(scope: Any, receive: Any, send: Any) -> None:
        async def wrapped() -> Any:
            return await receive()

        await service.endpoint(scope, wrapped, send)

    line = await Line(service, house=House(middleware)).welcomed()
    assert line.stream._is_open
    await line.hang_up()


async def test_the_peers_close_frame_ends_the_connection_at_once(service: Service) -> None:
    line = Line(service, key=None, query="?ticket=x")
    await line.until(lambda: line.close_code)
    line.send(wire_of(Opcode.TEXT, b"x" * 100) + wire_of(Opcode.CLOSE, Close(4401, "").serialize()))
    assert line.wire.is_closing()
    await line.hang_up()


async def test_a_closed_connection_is_aborted_if_the_peer_reads_nothing(service: Service) -> None:
    line = await Line(service).welcomed()
    line.wire.takes = False
    line.send(wire_of(Opcode.CLOSE, Close(1000, "").serialize()))
    await asyncio.sleep(CLOSE_TIMEOUT_S + 0.1)
    assert line.wire.is_aborted
    await line.hang_up()


@pytest.mark.parametrize("query", ["", "?ticket=x"])
async def test_nothing_is_read_before_the_handshake_is_answered(service: Service, query: str) -> None:
    line = Line(service, key=None, query=query, behind_head=wire_of(Opcode.PING, b"p") * 40_000)
    assert line.wire.is_paused
    assert line.stream._reader.next_frame() is not None, "the first frame is still unread"
    await line.until(line.wire.is_closing)
    assert not any(frame.opcode is Opcode.PONG for frame in (line.read() if query else []))
    await line.hang_up()


@pytest.mark.parametrize(
    "flood",
    [wire_of(Opcode.PONG), wire_of(Opcode.PING), wire_of(Opcode.CONT, b"", fin=False), wire_of(Opcode.CONT, b"x", fin=False)],
    ids=["pong", "ping", "empty fragment", "tiny fragment"],
)  # fmt: skip
async def test_the_rate_of_small_frames_is_limited(service: Service, flood: bytes) -> None:
    line = await Line(service).welcomed()
    first = wire_of(Opcode.TEXT, b"{", fin=False) if flood[0] & 0x0F == Opcode.CONT else b""
    line.send(first + flood * 40_000)
    assert line.close_code is None, "other connections are read in between"
    await line.until(lambda: line.close_code)
    goodbye = line.told("goodbye")
    assert goodbye is not None
    assert "in a second" in goodbye["reason"]
    assert line.close_code == 4429
    assert line.metrics.refused_connections["stream_frame_rate"] == 1
    assert len([frame for frame in line.frames if frame.opcode is Opcode.PONG]) <= 10
    await line.hang_up()


async def test_occasional_pings_and_large_fragments_are_accepted(service: Service) -> None:
    line = await Line(service).welcomed()
    text = json.dumps({"type": "publish", "id": 1, "topic": "T", "messages": [{"body": "x" * 600_000}]}).encode()
    for at in range(0, len(text), 1_000):
        kind = Opcode.CONT if at else Opcode.TEXT
        line.send(wire_of(kind, text[at : at + 1_000], fin=at + 1_000 >= len(text)))
    await line.until(lambda: line.told("published"))
    for _ in range(10):
        line.send(wire_of(Opcode.PING, b"p") * 100)
        await asyncio.sleep(1.0)
    assert line.close_code is None
    assert [bytes(frame.data) for frame in line.read() if frame.opcode is Opcode.PONG].count(b"p") >= 10
    await line.hang_up()


async def test_a_read_of_many_messages_does_not_block_the_loop(service: Service) -> None:
    line = await Line(service).welcomed()
    ack = wire_of(Opcode.TEXT, b'{"type": "credit", "subscription": "s", "messages": 1, "bytes": 1, "id": 1}')
    line.send(ack * 1_000)
    assert line.wire.is_paused
    turns = 0
    while not line.stream.queue.empty() or line.stream._reader.held_bytes:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 20
    assert not line.wire.is_paused
    await line.hang_up()


async def test_only_the_newest_ping_is_answered_once_the_client_reads(service: Service) -> None:
    """Each ping was once answered into the transport's buffer, without limit."""
    line = await Line(service).welcomed()
    line.wire.takes = False
    written = len(line.wire.writes)
    for number in range(100):
        line.send(wire_of(Opcode.PING, b"%0125d" % number))
    assert line.wire.unsent_bytes <= line.wire.high_bytes + 200
    line.wire.takes = True
    line.wire.take_all()
    pongs = [frame for frame in line.read() if frame.opcode is Opcode.PONG]
    assert len(line.wire.writes) - written < 60
    assert int(bytes(pongs[-1].data)) == 99
    await line.hang_up()


async def test_unfinished_messages_of_a_key_are_limited_and_others_continue() -> None:
    service = Service(settings=GatewaySettings(key_body_bytes_max=8 * MIB))
    first, *others = [await Line(service).welcomed() for _ in range(10)]
    stranger = await Line(service, key=THIRD_KEY).welcomed()
    for number in range(8):
        for line in (first, *others):
            if not line.wire.is_paused:
                line.send(wire_of(Opcode.CONT if number else Opcode.TEXT, b"x" * (MIB // 4), fin=False))
        await asyncio.sleep(0.01)  # Each connection is read in its turn.
    assert held(service) == service.quotas.body_bytes.held_by("key-1") <= 11 * MIB
    assert [line.wire.is_paused for line in others] == [line.stream.waits_for_room for line in others]
    assert others[-1].wire.is_paused
    assert not first.wire.is_paused, "otherwise all would wait for each other"
    stranger.send(wire_of(Opcode.TEXT, b'{"type": "publish", "id": 1, "topic": "T", "messages": [{"body": "x"}]}'))
    await stranger.until(lambda: stranger.told("published"))
    await first.hang_up()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not others[0].wire.is_paused
    for line in (*others, stranger):
        await line.hang_up()
    assert held(service) == 0


async def test_a_message_that_never_ends_ends_its_stream() -> None:
    service = Service(settings=GatewaySettings(key_body_bytes_max=8 * MIB), message_timeout_ms=10_000)
    slow, waiting = await Line(service).welcomed(), await Line(service).welcomed()
    slow.send(wire_of(Opcode.TEXT, b"x" * 9 * MIB, fin=False))
    waiting.send(wire_of(Opcode.TEXT, b"x" * 5_000, fin=False))
    assert waiting.stream.waits_for_room
    await slow.until(lambda: slow.close_code)
    goodbye = slow.told("goodbye")
    assert goodbye is not None
    assert (slow.close_code, goodbye["retry"]) == (4408, True)
    assert held(service) < 6_000
    await waiting.until(lambda: waiting.close_code)
    for line in (slow, waiting):
        await line.hang_up()
    assert held(service) == 0


async def test_a_stream_without_memory_for_its_frame_gets_a_goodbye() -> None:
    service = Service(settings=GatewaySettings(key_body_bytes_max=8 * MIB), message_timeout_ms=10_000)
    service.quotas.body_bytes.take_back("key-1", 9 * MIB)
    line = await Line(service).welcomed()
    line.send(wire_of(Opcode.TEXT, b"x" * 5_000, fin=False))
    await line.until(lambda: line.close_code)
    goodbye = line.told("goodbye")
    assert goodbye is not None
    assert (line.close_code, goodbye["retry"]) == (4429, True)
    assert "room" in goodbye["reason"]
    await line.hang_up()


async def test_a_stream_continues_when_a_request_releases_memory() -> None:
    service = Service(settings=GatewaySettings(key_body_bytes_max=8 * MIB))
    body = service.quotas.bodies.of_key("key-1")
    body.grow(8 * MIB)
    line = await Line(service).welcomed()
    frame = wire_of(
        Opcode.TEXT,
        json.dumps({"type": "publish", "id": 1, "topic": "T", "messages": [{"body": "x" * 9_000}]}).encode(),
    )
    line.send(frame[:5_000])
    assert line.wire.is_paused
    body.close()
    await line.until(lambda: not line.wire.is_paused)
    line.send(frame[5_000:])
    await line.until(lambda: line.told("published"))
    await line.hang_up()


async def test_publishes_that_wait_for_brokers_count_and_delay_later_frames() -> None:
    service = Service(settings=GatewaySettings(key_body_bytes_max=8 * MIB))
    lines = [await Line(service).welcomed() for _ in range(10)]
    frame = wire_of(
        Opcode.TEXT,
        json.dumps({"type": "publish", "id": 1, "topic": "T", "messages": [{"body": "x" * MIB}]}).encode(),
    )
    for line in lines:
        line.send(frame[:5_000])
    for line in lines:
        line.send(frame[5_000:])
    await asyncio.sleep(0.01)
    assert held(service) > 8 * MIB
    assert all(line.wire.is_paused for line in lines[5:])
    for line in lines:
        await line.until(lambda line=line: line.told("published"))  # type: ignore[misc]
    for line in lines:
        await line.hang_up()
    assert held(service) == 0


async def test_a_text_frame_that_is_not_utf8_gets_a_goodbye(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    for text in (b"\xff\xfe", b'{"type": "publish", "topic": "T", "messages": [{"body": "\xff"}]}'):
        line = await Line(service).welcomed()
        line.send(wire_of(Opcode.TEXT, text))
        await line.until(lambda line=line: line.close_code)  # type: ignore[misc]
        goodbye = line.told("goodbye")
        assert goodbye is not None
        assert "UTF-8" in goodbye["reason"]
        assert line.close_code == 4400
        await line.hang_up()
    assert not caplog.records


async def test_a_client_with_an_unread_pong_is_not_disconnected(service: Service) -> None:
    line = await Line(service).welcomed()
    service.quotas.body_bytes.take_back("key-1", 999 * MIB)
    line.send(wire_of(Opcode.TEXT, b"x" * 5_000, fin=False))
    assert line.wire.is_paused
    await asyncio.sleep(45)
    assert line.close_code is None
    service.quotas.body_bytes.give("key-1", 999 * MIB)
    await line.hang_up()


async def test_a_processed_frame_does_not_stay_in_memory_until_the_next(service: Service) -> None:
    """Each stream kept its last frame, of up to 8 MiB."""
    line = await Line(service).welcomed()
    tracemalloc.start()
    text = json.dumps({"type": "publish", "id": 1, "topic": "T", "messages": [{"body": "x" * 4 * MIB}]}).encode()
    line.send(wire_of(Opcode.TEXT, text))
    del text
    await line.until(lambda: line.told("published"))
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < MIB
    await line.hang_up()
