"""A stream endpoint with fakes behind it: a peer that speaks ASGI, a group, a publisher."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from gantry.client.errors import BrokerError, ClientError, ConnectionFailedError, RequestTimeoutError
from gantry.model.group import ConsumeFromWhere
from gantry.model.message import MessageQueue
from gantry.model.names import is_retry_topic
from gantry.remoting.codes import ResponseCode
from gantry.runtime.rng import Rng
from services.gateway.asgi.call import CONNECTION
from services.gateway.auth.keyring import KeyRecord, KeyRing, digest_of
from services.gateway.auth.tickets import Tickets
from services.gateway.errors import UNKNOWN_TOPIC, ProblemError
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.schemas.outgoing import Item
from services.gateway.schemas.rights import ALL_RIGHTS, Rights
from services.gateway.settings import GatewaySettings
from services.gateway.turns import Turn
from services.gateway.usecases.sending.results import BatchReport
from services.gateway.ws.endpoint import StreamEndpoint
from services.gateway.ws.inbound import Charge
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.opening import UnreportedReading
from services.gateway.ws.ports import OnChange, OnReset, Pulled, TailPull
from services.gateway.ws.producers import StreamProducers
from tests.support.callers import callers_of
from tests.support.pulledrecords import pulled
from tests.support.sendresults import stored_messages
from tests.support.virtualtime import VirtualClock
from tests.unit.services.gateway.ws.streams import check_frame

KEY = "gk_test"
OTHER_KEY = "gk_metrics"
THIRD_KEY = "gk_third"


class FakeMembership:
    """A queue of some messages; pulls past the end wait."""

    consume_timeout_ms = 60_000

    def __init__(
        self, on_change: OnChange, on_reset: OnReset, messages: int, on_deleted: Callable[[], None], *, group: str
    ) -> None:
        self.on_change = on_change
        self.on_deleted = on_deleted
        self.group = group
        self.is_refused = False
        self.on_reset = on_reset
        self.messages = messages
        self.commits: list[tuple[int, int]] = []
        self.is_left = False
        self.hanging = ""
        self.failures = 0
        self.moved_to: int | None = None
        self.reset_to: int | None = None
        self.pulls = 0
        self.commit_s = 0.0
        self.sent_back: list[tuple[int, int | None, bool]] = []

    async def pull(self, queue: MessageQueue, offset: int, *, messages_max: int, bytes_max: int, waits: bool) -> Pulled:
        self.pulls += 1
        await asyncio.sleep(0.001)
        if self.is_refused:
            raise BrokerError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "was deleted", "broker-a")
        if self.failures:
            self.failures -= 1
            raise ConnectionFailedError("broker-a", "refused", sent=False)
        if self.moved_to is not None:
            moved_to, self.moved_to = self.moved_to, None
            return Pulled(b"", moved_to, is_moved=True)
        if self.reset_to is not None:
            reset_to, self.reset_to = self.reset_to, None
            self.on_reset(queue, reset_to)
            return Pulled(b"", reset_to, is_reset=True)
        if offset >= self.messages:
            await asyncio.sleep(15 if waits else 0)
            return Pulled(b"", offset)
        end = min(offset + messages_max, self.messages)
        return Pulled(pulled(range(offset, end), queue_id=queue.queue_id), end, is_behind=end < self.messages)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        if queue.broker_name == self.hanging:
            await asyncio.sleep(5)
            raise RequestTimeoutError(queue.broker_name, "no answer", sent=True)
        await asyncio.sleep(self.commit_s)
        self.commits.append((queue.queue_id, offset))

    async def send_back(
        self,
        queue: MessageQueue,
        offsets: Sequence[int],
        *,
        delay_ms: int | None,
        is_dead: bool,
        failures: Mapping[int, int],
    ) -> dict[int, ClientError | ProblemError]:
        await asyncio.sleep(0.001)
        if self.failures:
            self.failures -= 1
            return dict.fromkeys(offsets, ConnectionFailedError("broker-a", "refused", sent=False))
        self.sent_back += [(offset, delay_ms, is_dead) for offset in offsets]
        return {}

    async def leave(self) -> None:
        self.is_left = True


class FakeConsumers:
    """Groups that every client may join, at once or after a while."""

    def __init__(self, *, messages: int = 0, queues: int = 1) -> None:
        self.messages = messages
        self.queues = queues
        self.members: list[FakeMembership] = []
        self.retries: list[FakeMembership] = []
        self.deleted: set[str] = set()
        self.asked = 0

    def trace(self, group: str) -> None:
        return None

    async def exists(self, group: str) -> bool:
        self.asked += 1
        await asyncio.sleep(0.001)
        return group not in self.deleted

    async def join(
        self,
        client_id: str,
        group: str,
        data: Any,
        *,
        on_change: OnChange,
        on_reset: OnReset,
        on_deleted: Callable[[], None],
        **_: Any,
    ) -> FakeMembership:
        await asyncio.sleep(0.01)
        if data.topic == "NONE":
            raise ProblemError(UNKNOWN_TOPIC, "topic: 'NONE' does not exist")
        member = FakeMembership(on_change, on_reset, self.messages, on_deleted, group=group)
        if is_retry_topic(data.topic):
            self.retries.append(member)
            await on_change([], [])
            return member
        self.members.append(member)
        await on_change([(MessageQueue(data.topic, "broker-a", number), 0) for number in range(self.queues)], [])
        return member


class FakeTails:
    """Topics whose queues hold some messages; pulls past the end wait. The topic NONE does not exist."""

    def __init__(self) -> None:
        self.ends: dict[MessageQueue, int] = {MessageQueue("T", "broker-a", 0): 10}
        self.is_deleted = False
        self.failing: set[str] = set()

    async def queues(self, topic: str, *, refresh: bool) -> list[MessageQueue]:
        if topic == "NONE" or self.is_deleted:
            raise ProblemError(UNKNOWN_TOPIC, f"topic: {topic!r} does not exist", field="topic")
        return list(self.ends)

    async def start_of(self, queue: MessageQueue, start: ConsumeFromWhere, start_at_ms: int | None) -> int:
        if queue.broker_name in self.failing:
            raise ConnectionFailedError(queue.broker_name, "refused", sent=False)
        return self.ends[queue] if start is ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET else 0

    async def pull(
        self, queue: MessageQueue, offset: int, wanted: Any, *, messages_max: int, bytes_max: int, waits: bool
    ) -> TailPull:
        for _ in range(1_500 if waits else 0):
            if offset < self.ends[queue]:
                break
            await asyncio.sleep(0.01)
        end = self.ends[queue]
        if offset >= end:
            return TailPull(Pulled(b"", offset), end)
        to = min(offset + messages_max, end)
        data = pulled(range(offset, to), queue_id=queue.queue_id)
        return TailPull(Pulled(data, to, is_behind=to < end), end)


class FakePublisher:
    """Stores every message slowly, except those of topic FULL."""

    def __init__(self) -> None:
        self.stored = 0
        self.on_begin: Callable[[str], None] = lambda _: None

    def check_topic(self, topic: str) -> None:
        pass

    async def send_many(self, topic: str, items: Sequence[Item], *, turn: Turn) -> BatchReport:
        self.on_begin(topic)
        await asyncio.sleep(0.05)
        if topic == "FULL":
            raise ProblemError(UNKNOWN_TOPIC, "topic: 'FULL' does not exist")
        self.stored += len(items)
        return stored_messages(topic, len(items))


class Service:
    """An endpoint over fakes."""

    def __init__(
        self, *, messages: int = 0, queues: int = 1, settings: GatewaySettings | None = None, **limits: int
    ) -> None:
        self.keys = KeyRing()
        self.keys.replace(
            [
                KeyRecord("key-1", digest_of(KEY), "all", ALL_RIGHTS),
                KeyRecord("key-2", digest_of(OTHER_KEY), "metrics", Rights(metrics=True)),
                KeyRecord("key-3", digest_of(THIRD_KEY), "all", ALL_RIGHTS),
            ]
        )
        clock = VirtualClock()
        self.quotas = Limits(settings or GatewaySettings())
        self.tickets = Tickets(callers_of(self.keys, clock), self.quotas.tickets, clock=clock)
        self.metrics = GatewayMetrics()
        self.consumers = FakeConsumers(messages=messages, queues=queues)
        self.tails = FakeTails()
        self.publisher = FakePublisher()
        self.producers = StreamProducers()
        self.endpoint = StreamEndpoint(
            callers=callers_of(self.keys, clock),
            tickets=self.tickets,
            consumers=self.consumers,
            tails=self.tails,
            publisher=self.publisher,
            producers=self.producers,
            metrics=self.metrics,
            clock=clock,
            rng=Rng(1),
            limits=StreamLimits(**limits),
            quotas=self.quotas,
        )


class FakeTransport:
    """The transport that uvicorn writes to."""

    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


class FakeConnection(UnreportedReading):
    """A stream's connection as the endpoint sees it; it reads without limits."""

    def __init__(self, transport: FakeTransport) -> None:
        self.transport = transport
        self.writable = asyncio.Event()
        self.writable.set()

    def open(self, charge: Charge, *, small_frames_per_s_max: int) -> None:
        """Read on."""


class Peer:
    """A WebSocket client at the other side of ASGI."""

    def __init__(
        self,
        service: Service,
        *,
        key: str | None = KEY,
        query: bytes = b"",
        subprotocols: Sequence[str] = ("gantry.v1.json",),
        headers: Sequence[tuple[bytes, bytes]] = (),
        address: str = "192.0.2.1",
        on_frame: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._on_frame = on_frame
        self.transport = FakeTransport()
        all_headers = list(headers)
        if key is not None:
            all_headers.append((b"authorization", f"Bearer {key}".encode()))
        self._scope = {
            "type": "websocket",
            "client": (address, 50_000),
            "headers": all_headers,
            "query_string": query,
            "subprotocols": list(subprotocols),
            "extensions": {"websocket.http.response": {}, CONNECTION: FakeConnection(self.transport)},
        }
        self._to_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._to_server.put_nowait({"type": "websocket.connect"})
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        self.task = asyncio.ensure_future(service.endpoint(self._scope, self._next_event, self._receive))

    @property
    def waiting(self) -> int:
        """Return how many of our frames the server has not read."""
        return self._to_server.qsize()

    async def event(self) -> dict[str, Any]:
        """Return the server's next event."""
        return await self.events.get()

    async def frame(self) -> dict[str, Any]:
        """Return the next frame."""
        event = await self.event()
        assert event["type"] == "websocket.send", event
        decode = msgspec.json.decode if "text" in event else msgspec.msgpack.decode
        frame: dict[str, Any] = decode(event.get("text") or event["bytes"])
        check_frame(frame)
        return frame

    async def frames_until(self, kind: str) -> list[dict[str, Any]]:
        """Return frames up to the first of this type."""
        frames = [await self.frame()]
        while frames[-1]["type"] != kind:
            frames.append(await self.frame())
        return frames

    async def welcomed(self) -> "Peer":
        """Read past the handshake and the welcome."""
        assert (await self.event())["type"] == "websocket.accept"
        assert (await self.frame())["type"] == "welcome"
        return self

    def say(self, **frame: Any) -> None:
        """Send a frame."""
        text = msgspec.json.encode({name.rstrip("_"): value for name, value in frame.items()}).decode()
        self._to_server.put_nowait({"type": "websocket.receive", "text": text})

    def send_event(self, **event: Any) -> None:
        """Send the server an event."""
        self._to_server.put_nowait(event)

    async def hang_up(self) -> None:
        """Close, and wait until the server has finished."""
        self.send_event(type="websocket.disconnect", code=1000)
        await self.task

    async def _next_event(self) -> dict[str, Any]:
        return await self._to_server.get()

    async def _receive(self, event: dict[str, Any]) -> None:
        await self.is_reading.wait()
        self._on_frame(len(event.get("text") or event.get("bytes") or b""))
        self.events.put_nowait(event)
