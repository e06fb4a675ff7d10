"""The stream client against a scripted gateway, on virtual time."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from websockets.exceptions import ConnectionClosedError
from websockets.frames import Close

from gantry.http import (
    GantryConnectionError,
    GantryProblem,
    GantryProtocolError,
    OutgoingMessage,
    Problem,
    StreamClient,
    StreamClosedError,
    Subscription,
)
from gantry.http.handshake import Socket
from gantry.http.streamframes import StreamCoding, Welcome
from gantry.runtime.rng import Rng
from tests.unit.gantry.http.messages import message

PROBLEM = {"type": "https://x/forbidden", "title": "no", "status": 403, "detail": "no right"}


class FakeSocket:
    """The gateway's side of one connection."""

    def __init__(self, coding: StreamCoding) -> None:
        self._coding = coding
        self._frames: asyncio.Queue[dict[str, Any] | int | bytes] = asyncio.Queue()
        self.received: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], list[dict[str, Any]]] = lambda _: []
        self.closed: int | None = None

    def push(self, *frames: dict[str, Any] | bytes) -> None:
        for frame in frames:
            self._frames.put_nowait(frame)

    def drop(self, code: int) -> None:
        self.closed = code
        self._frames.put_nowait(code)

    async def recv(self) -> bytes | str:
        frame = await self._frames.get()
        if isinstance(frame, int):
            self._frames.put_nowait(frame)
            raise ConnectionClosedError(Close(frame, "why") if frame != 1006 else None, None)
        return frame if isinstance(frame, bytes) else self._coding.encode(frame)

    async def send(self, message: bytes | str) -> None:
        if self.closed is not None:
            raise ConnectionClosedError(None, None)
        frame = msgspec.json.decode(message) if isinstance(message, str) else msgspec.msgpack.decode(message)
        self.received.append(frame)
        self.push(*self.answer(frame))

    async def close(self, code: int = 1000) -> None:
        self.drop(code)


class Gateway:
    """Opens connections that answer by `script`. Errors in `refusals` come first, one for each attempt."""

    def __init__(self) -> None:
        self.sockets: list[FakeSocket] = []
        self.refusals: list[Exception] = []
        self.opened_at: list[float] = []

    async def open(
        self,
        url: str,
        coding: StreamCoding,
        *,
        headers: Mapping[str, str],
        hello: Mapping[str, object],
        timeout_s: float,
    ) -> tuple[Socket, Welcome]:
        self.url, self.headers, self.hello = url, headers, hello
        if self.refusals:
            raise self.refusals.pop(0)
        socket = FakeSocket(coding)
        number = len(self.sockets)
        socket.answer = lambda frame: self.script(socket, number, frame)
        self.sockets.append(socket)
        self.opened_at.append(asyncio.get_running_loop().time())
        return socket, Welcome(f"session-{number}", "client", {"publishes_pending_max": 2}, 20_000)

    def script(self, socket: FakeSocket, number: int, frame: dict[str, Any]) -> list[dict[str, Any]]:
        if frame["type"] == "subscribe":
            name = f"s{number}-{len(socket.received)}"
            queues = [{"broker": "b", "queue_id": 0, "next_offset": 0}]
            return [
                {"type": "subscribed", "id": frame["id"], "subscription": name},
                {"type": "assigned", "subscription": name, "queues": queues},
                batch(name, 0),
            ]
        if frame["type"] in ("pause", "resume", "credit", "unsubscribe") or "id" in frame:
            return [state(frame["subscription"], id=frame["id"])]
        return []

    def client(self, **options: Any) -> StreamClient:
        return StreamClient("http://gw/", "key", rng=Rng(1), opener=self.open, **options)


def batch(subscription: str, *offsets: int) -> dict[str, Any]:
    messages = [message(offset) for offset in offsets]
    receipt = f"{offsets[0]}-{offsets[-1]}"
    return {"type": "messages", "subscription": subscription, "receipt": receipt, "messages": messages}


def state(subscription: str, **fields: Any) -> dict[str, Any]:
    credit = {"messages": 5, "bytes": 6}
    frame = {"type": "state", "subscription": subscription, "in_flight": 1, "credit": credit, "reason": "credit"}
    return frame | fields


async def subscribed(client: StreamClient) -> Subscription:
    return await client.subscribe("G", "T", start="first", credit_messages=10, batch=3)


async def test_subscribing_and_consuming() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        subscription = await subscribed(client)
        assert gateway.url == "ws://gw/v1/stream"
        assert gateway.headers == {"Authorization": "Bearer key"}
        assert (subscription.group, subscription.topic, subscription.is_open) == ("G", "T", True)
        assert [queue.queue_id for queue in await subscription.wait_assigned()] == [0]
        first = await anext(aiter(subscription))
        assert [each.queue_offset for each in first.messages] == [0]
        gateway.sockets[0].push(batch("s0-1", 1, 2), batch("unknown", 5), {"type": "welcome2", "x": 1})
        second = await subscription.next(timeout_ms=100)
        assert second is not None
        await subscription.ack(first)
        await subscription.ack(second.messages)
        assert await subscription.next(timeout_ms=100) is None
        sent = [frame for frame in gateway.sockets[0].received if frame["type"] == "ack"]
        assert sent == [{"type": "ack", "subscription": "s0-1", "receipts": ["0-0", "r1", "r2"]}]
    assert gateway.sockets[0].received[0] == {
        "type": "subscribe", "group": "G", "topic": "T", "filter": "*", "from": "first",
        "credit": {"messages": 10}, "batch": 3, "order": "concurrent", "id": 1,
    }  # fmt: skip
    with pytest.raises(StopAsyncIteration):
        await anext(aiter(subscription))


async def test_control_frames_are_answered() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        subscription = await subscribed(client)
        await subscription.pause()
        await subscription.resume()
        assert (await subscription.add_credit(messages=3)).messages == 5
        got = await anext(aiter(subscription))
        await subscription.ack(got.messages)
        await subscription.ack(got, wait=True)
        assert subscription.state is not None
        await subscription.ack(got)
        await subscription.nack(got.messages, delay="5s")
        await subscription.nack(got)
        await subscription.unsubscribe()
        assert not subscription.is_open
        await subscription.ack(got)
        await subscription.nack(got)
        nacks = [frame for frame in gateway.sockets[0].received if frame["type"] == "nack"]
        assert [(frame["receipts"], frame.get("delay")) for frame in nacks] == [
            ([message.receipt for message in got.messages], "5s"),
            ([got.receipt], None),
        ]
        kinds = [frame["type"] for frame in gateway.sockets[0].received]
        assert kinds == ["subscribe", "pause", "resume", "credit", "ack", "ack", "ack", "nack", "nack", "unsubscribe"]
        await subscription.unsubscribe()


async def test_errors_without_a_call_are_kept_for_the_subscription() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        subscription = await subscribed(client)
        error = {"type": "error", "subscription": "s0-1", "problem": PROBLEM}
        gateway.sockets[0].push(error, error | {"receipt": "1.1", "id": 77}, {"type": "error", "problem": PROBLEM})
        await asyncio.sleep(0.1)
        assert [problem.name for problem in subscription.problems] == ["forbidden"] * 2


async def test_a_refused_subscription_raises() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        gateway.sockets[0].answer = lambda frame: [{"type": "error", "id": frame["id"], "problem": PROBLEM}]
        with pytest.raises(GantryProblem, match="no right"):
            await subscribed(client)


@pytest.mark.parametrize("coding", ["msgpack", "json"])
async def test_publishing(coding: str) -> None:
    gateway = Gateway()
    async with gateway.client(coding=coding) as client:
        counts = {"stored": 1, "not_stored": 0, "unknown": 0}
        result = {"outcome": "stored", "queue_offset": 7 if coding == "msgpack" else "7"}
        gateway.sockets[0].answer = lambda frame: [
            {"type": "published", "id": frame["id"], "results": [result]} | counts
        ]
        answer = await client.publish("T", [OutgoingMessage(b"\xff", tag="A")])
        assert (answer.stored, answer.results[0].queue_offset) == (1, 7)
        (item,) = gateway.sockets[0].received[0]["messages"]
        assert item == {"body": b"\xff" if coding == "msgpack" else "/w==", "tag": "A"} | (
            {} if coding == "msgpack" else {"encoding": "base64"}
        )


async def test_concurrent_publishes_stay_within_the_limit_of_the_gateway() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        gateway.sockets[0].answer = lambda _: []
        publishes = [asyncio.ensure_future(client.publish("T", [OutgoingMessage("x")])) for _ in range(5)]
        await asyncio.sleep(1)
        assert len(gateway.sockets[0].received) == 2
        for publish in publishes:
            publish.cancel()
        await asyncio.wait(publishes)


async def test_a_missing_answer_is_a_timeout() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        gateway.sockets[0].answer = lambda _: []
        with pytest.raises(GantryConnectionError, match="within 10 s") as caught:
            await client.publish("T", [OutgoingMessage("x")])
        assert caught.value.outcome == "unknown"


async def test_a_broken_connection_is_reopened_and_subscribed_again() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        subscription = await subscribed(client)
        old = await anext(aiter(subscription))
        gateway.sockets[0].push(batch("s0-1", 1))
        gateway.refusals = [GantryConnectionError("away", outcome="not_stored"), GantryProtocolError("proxy")]
        await asyncio.sleep(0.001)
        gateway.sockets[0].answer = lambda _: []
        publish = asyncio.ensure_future(client.publish("T", [OutgoingMessage("x")]))
        await asyncio.sleep(0.001)
        gateway.sockets[0].drop(1006)
        with pytest.raises(GantryConnectionError) as caught:
            await publish
        assert caught.value.outcome == "unknown"
        with pytest.raises(GantryConnectionError) as caught:
            await client.publish("T", [OutgoingMessage("x")])
        assert caught.value.outcome == "not_stored"
        await subscription.ack(old)
        again = await anext(aiter(subscription))
        assert (again.session, client.connections_count) == ("session-1", 2)
        assert subscription.name == "s1-1"
        await subscription.ack(old)
        await subscription.ack(again)
        await asyncio.sleep(0.01)
        acks = [frame["receipts"] for frame in gateway.sockets[1].received if frame["type"] == "ack"]
        assert acks == [["0-0"]]


async def test_the_pauses_between_attempts_grow() -> None:
    gateway = Gateway()
    async with gateway.client():
        gateway.refusals = [GantryConnectionError("away", outcome="not_stored")] * 9
        gateway.sockets[0].drop(1006)
        await asyncio.sleep(60)
        # 0.1 + 0.2 + … + 6.4 + 10 + 10 + 10 s, each changed by up to 30 %.
        assert 20 < gateway.opened_at[1] < 60


async def test_a_goodbye_tells_when_to_reconnect() -> None:
    gateway = Gateway()
    async with gateway.client():
        gateway.sockets[0].push({"type": "goodbye", "retry": True, "after_ms": 5_000, "reason": "restart"})
        gateway.sockets[0].drop(1012)
        await asyncio.sleep(10)
        assert gateway.opened_at[1] > 3.4


@pytest.mark.parametrize(
    ("code", "goodbye"),
    [(4401, None), (4400, {"retry": False}), (1011, {"retry": False})],
)
async def test_some_close_codes_are_final(code: int, goodbye: dict[str, Any] | None) -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        subscription = await subscribed(client)
        await anext(aiter(subscription))
        if goodbye is not None:
            gateway.sockets[0].push({"type": "goodbye", "after_ms": 0, "reason": "enough"} | goodbye)
        gateway.sockets[0].drop(code)
        with pytest.raises(StreamClosedError) as caught:
            await anext(aiter(subscription))
        assert caught.value.code == code
        with pytest.raises(StreamClosedError):
            await client.publish("T", [OutgoingMessage("x")])
        with pytest.raises(StreamClosedError):
            await subscription.wait_assigned()
    assert len(gateway.sockets) == 1


async def test_a_client_without_reconnect_ends() -> None:
    gateway = Gateway()
    async with gateway.client(reconnect=False) as client:
        subscription = await subscribed(client)
        gateway.sockets[0].drop(1006)
        await asyncio.sleep(1)
        with pytest.raises(StreamClosedError):
            await client.publish("T", [])
        assert not subscription.is_open


@pytest.mark.parametrize(
    ("refusal", "raised"),
    [
        (GantryProblem(Problem("x/unauthenticated", "t", 401)), GantryProblem),
        (StreamClosedError(4401, "ticket"), StreamClosedError),
    ],
)
async def test_a_refused_reconnect_ends_the_client(refusal: Exception, raised: type[Exception]) -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        subscription = await subscribed(client)
        await anext(aiter(subscription))
        busy = GantryProblem(Problem("x/overloaded", "t", 503, retryable=True))
        gateway.refusals = [busy, StreamClosedError(1012, "restart"), refusal]
        gateway.sockets[0].drop(1006)
        with pytest.raises(raised):
            await anext(aiter(subscription))


async def test_a_subscription_that_is_refused_after_a_reconnect() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        subscription = await subscribed(client)
        await anext(aiter(subscription))
        problems = [PROBLEM | {"status": 503, "retryable": True}, PROBLEM]
        script = gateway.script

        def refuse(socket: FakeSocket, number: int, frame: dict[str, Any]) -> list[dict[str, Any]]:
            return [{"type": "error", "id": frame["id"], "problem": problems.pop(0)}]

        gateway.script = refuse  # type: ignore[method-assign]
        gateway.sockets[0].drop(1006)
        with pytest.raises(GantryProblem, match="no right"):
            await anext(aiter(subscription))
        gateway.script = script  # type: ignore[method-assign]
        await client.subscribe("G", "T")


async def test_a_connection_that_breaks_while_subscribing_again() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        subscription = await subscribed(client)
        await anext(aiter(subscription))
        script, gateway.script = gateway.script, lambda *_: []  # type: ignore[method-assign]
        gateway.sockets[0].drop(1006)
        await asyncio.sleep(0.5)
        gateway.script = script  # type: ignore[method-assign]
        gateway.sockets[1].drop(1006)
        assert (await anext(aiter(subscription))).session == "session-2"


async def test_a_connection_that_ends_with_the_answer_to_a_subscribe() -> None:
    gateway = Gateway()
    async with gateway.client(reconnect=False) as client:
        script = gateway.script

        def answer_and_end(socket: FakeSocket, number: int, frame: dict[str, Any]) -> list[dict[str, Any]]:
            socket.push(*script(socket, number, frame)[:1])
            socket.drop(1006)
            return []

        gateway.script = answer_and_end  # type: ignore[method-assign]
        subscription = await subscribed(client)
        assert not subscription.is_open
        with pytest.raises(StreamClosedError):
            await asyncio.wait_for(anext(aiter(subscription)), 60)


async def test_a_connection_that_breaks_before_a_subscribe_is_tried_again() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        subscription = await subscribed(client)
        await anext(aiter(subscription))
        script = gateway.script

        def refuse_once(socket: FakeSocket, number: int, frame: dict[str, Any]) -> list[dict[str, Any]]:
            if number == 1:
                return [{"type": "error", "id": frame["id"], "problem": PROBLEM | {"status": 503, "retryable": True}}]
            return script(socket, number, frame)

        gateway.script = refuse_once  # type: ignore[method-assign]
        gateway.sockets[0].drop(1006)
        await asyncio.sleep(0.3)
        gateway.sockets[1].drop(1006)
        await asyncio.sleep(10)
        kinds = [[frame["type"] for frame in socket.received] for socket in gateway.sockets]
        assert kinds == [["subscribe"], ["subscribe"], ["subscribe"]]


async def test_a_subscription_whose_caller_no_longer_waits_is_ended() -> None:
    gateway = Gateway()
    async with gateway.client(timeout_ms=1_000) as client:
        script, gateway.script = gateway.script, lambda *_: []  # type: ignore[method-assign]
        with pytest.raises(GantryConnectionError):
            await subscribed(client)
        gateway.script = script  # type: ignore[method-assign]
        gateway.sockets[0].push({"type": "subscribed", "id": 1, "subscription": "s9"})
        await asyncio.sleep(0.1)
        sent = [frame for frame in gateway.sockets[0].received if frame["type"] == "unsubscribe"]
        assert [frame["subscription"] for frame in sent] == ["s9"]


async def test_a_subscription_of_a_cancelled_caller_is_ended() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        asked = asyncio.create_task(subscribed(client))
        script = gateway.script

        def answer_and_cancel(socket: FakeSocket, number: int, frame: dict[str, Any]) -> list[dict[str, Any]]:
            if frame["type"] == "subscribe":
                asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, asked.cancel)
            return script(socket, number, frame) if "id" in frame else []

        gateway.script = answer_and_cancel  # type: ignore[method-assign]
        await asyncio.sleep(0.1)
        assert asked.cancelled()
        sent = [frame for frame in gateway.sockets[0].received if frame["type"] == "unsubscribe"]
        assert [frame["subscription"] for frame in sent] == ["s0-1"]


async def test_a_subscription_that_ends_while_it_is_renewed() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        subscription = await subscribed(client)
        await anext(aiter(subscription))
        script, gateway.script = gateway.script, lambda *_: []  # type: ignore[method-assign]
        gateway.sockets[0].drop(1006)
        await asyncio.sleep(0.3)
        gateway.script = script  # type: ignore[method-assign]
        (asked,) = gateway.sockets[1].received
        await subscription.unsubscribe()
        gateway.sockets[1].push({"type": "subscribed", "id": asked["id"], "subscription": "s9"})
        await asyncio.sleep(0.1)
        assert [frame["type"] for frame in gateway.sockets[1].received] == ["subscribe", "unsubscribe"]
        assert not subscription.is_open


async def test_a_frame_that_can_not_be_read_breaks_the_connection() -> None:
    gateway = Gateway()
    async with gateway.client() as client:
        gateway.sockets[0].push(b"\xc1")
        await asyncio.sleep(1)
        assert client.connections_count == 2
        assert gateway.sockets[0].closed == 1002


async def test_a_ticket_is_in_the_url_and_works_once() -> None:
    gateway = Gateway()
    async with StreamClient("https://gw", ticket="a b", opener=gateway.open) as client:
        assert gateway.url == "wss://gw/v1/stream?ticket=a%20b"
        gateway.sockets[0].drop(1006)
        await asyncio.sleep(1)
        with pytest.raises(StreamClosedError):
            await client.publish("T", [])
