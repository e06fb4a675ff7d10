"""Streams against a real stack: name server, two brokers, Postgres and a gateway, all processes."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from gantry.client.admin import Admin
from gantry.client.engine import ClientEngine
from gantry.client.settings import ClientSettings
from gantry.http import (
    AsyncGantryClient,
    GantryConnectionError,
    GantryError,
    GantryProblem,
    Message,
    OutgoingMessage,
    StreamClient,
    StreamClosedError,
    Subscription,
)
from gantry.http.results import ConsumeRights, KeyLimits, Rights
from gantry.remoting.bodies import ConsumerRunningInfo
from gantry.remoting.codes import RequestCode
from gantry.remoting.headers.client import GetConsumerRunningInfoHeader
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.stack import Stack, environment
from tests.unit.services.gateway.ws.streams import check_frame

# The supervisor restarts a killed gateway after a pause, on a machine that may be busy.
DEADLINE_S = 90.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=2) as running:
        yield running


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncGantryClient]:
    async with AsyncGantryClient.from_stack(stack.directory) as made:
        yield made


_names = iter(range(1_000_000))


@pytest.fixture
async def topic(client: AsyncGantryClient) -> str:
    name = f"WS_{os.getpid()}_{next(_names)}"
    await client.put_topic(name, read_queues=2, write_queues=2)
    return name


async def eventually(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait for a condition with a deadline."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if await condition():
                return
            await asyncio.sleep(0.05)


async def send(client: AsyncGantryClient, topic: str, count: int, *, prefix: str = "", **fields: Any) -> set[str]:
    """Send messages and return their bodies."""
    bodies = [f"{topic} {prefix} {number}" for number in range(count)]
    result = await client.send_batch(topic, [OutgoingMessage(body, **fields) for body in bodies])
    assert result.stored == count, result
    return set(bodies)


async def receive(subscription: Subscription, count: int, *, ack: bool = True) -> list[Message]:
    """Return that many messages."""
    messages: list[Message] = []
    while len(messages) < count:
        batch = await subscription.next(timeout_ms=int(DEADLINE_S * 1_000))
        assert batch is not None, f"{len(messages)} of {count} came; {subscription.problems}"
        messages += batch.messages
        if ack:
            await subscription.ack(batch)
    return messages


async def committed(client: AsyncGantryClient, group: str, topic: str) -> int:
    return sum(row.committed_offset or 0 for row in await client.get_offsets(group, topic=topic))


async def raw_socket(
    stack: Stack, subprotocol: str = "gantry.v1.json", *, key: str | None = None, **options: Any
) -> ClientConnection:
    facts = stack.facts
    return await connect(
        facts["http"].replace("http", "ws") + "/v1/stream",
        subprotocols=[Subprotocol(subprotocol)],
        additional_headers={"Authorization": f"Bearer {key or facts['api_key']}"},
        proxy=None,
        **options,
    )


async def frame_of(socket: ClientConnection) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(await socket.recv())
    check_frame(frame)
    return frame


@pytest.mark.parametrize("coding", ["msgpack", "json"])
async def test_push_ack_and_commit(stack: Stack, client: AsyncGantryClient, topic: str, coding: str) -> None:
    group = f"G_{topic}"
    async with StreamClient.from_stack(stack.directory, coding=coding, client_name="test") as stream:
        subscription = await stream.subscribe(group, topic, start="first")
        assert len(await subscription.wait_assigned()) == 4
        bodies = await send(client, topic, 100, tag="A", keys=["k1", "k2"], properties={"p": "ü"})
        messages = await receive(subscription, 100)
        assert {message.text for message in messages} == bodies
        one = messages[0]
        assert (one.topic, one.tag, one.keys, one.properties) == (topic, "A", ["k1", "k2"], {"p": "ü"})
        found = await client.get_message(one.stored_id)
        assert (found.body, found.born_at, found.size) == (one.body, one.born_at, one.size)
        await eventually(lambda: _is(committed(client, group, topic), 100))
        clients = await client.list_clients(group)
        assert [each.client_id for each in clients] == [stream.welcome.client_id if stream.welcome else ""]
    await eventually(lambda: _is_empty(client.list_clients(group)))


async def _is(found: Awaitable[int], expected: int) -> bool:
    return await found == expected


async def _is_empty(found: Awaitable[list[Any]]) -> bool:
    return not await found


async def test_a_group_that_is_deleted_under_a_stream_stays_deleted(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    gone, kept, later = (f"{kind}_{topic}" for kind in ("GONE", "KEPT", "LATER"))
    async with StreamClient.from_stack(stack.directory, client_name="test") as stream:
        ended = await stream.subscribe(gone, topic, start="first")
        going_on = await stream.subscribe(kept, topic, start="first")
        bodies = await send(client, topic, 20)
        assert {message.text for message in await receive(ended, 20)} == bodies
        await client.delete_group(gone)
        with pytest.raises(GantryProblem, match="was deleted") as caught:
            await asyncio.wait_for(anext(ended), DEADLINE_S)
        assert caught.value.status == 404
        await stream.subscribe(later, topic, start="first")  # All brokers get a heart-beat of the stream.
        with pytest.raises(GantryProblem, match=gone) as missing:
            await client.get_group(gone)
        assert missing.value.status == 404
        assert {message.text for message in await receive(going_on, 20)} == bodies
        again = await stream.subscribe(gone, topic, start="first")
        assert {message.text for message in await receive(again, 20)} == bodies


async def test_unacknowledged_messages_are_delivered_again(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    group = f"G_{topic}"
    bodies = await send(client, topic, 40)
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(group, topic, start="first")
        first = await receive(subscription, 40, ack=False)
        await subscription.ack(first[:1], wait=True)
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(group, topic, start="last")
        again = await receive(subscription, 39)
        assert {message.text for message in again} == bodies - {first[0].text}
    await eventually(lambda: _is(committed(client, group, topic), 40))


async def test_two_streams_share_the_queues_and_take_over(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    group = f"G_{topic}"
    async with StreamClient.from_stack(stack.directory) as second_stream:
        async with StreamClient.from_stack(stack.directory) as first_stream:
            first = await first_stream.subscribe(group, topic, start="first")
            second = await second_stream.subscribe(group, topic, start="first")
            await eventually(lambda: _true(len(first.assigned) == len(second.assigned) == 2))
            bodies = set()
            for queue in await client.list_queues(topic):
                target = {"broker": queue.broker, "id": queue.queue_id}
                bodies |= await send(client, topic, 50, prefix=f"{queue.broker}/{queue.queue_id}", queue=target)
            # The first stream takes messages and acknowledges none of them; then its connection ends.
            assert await first.next(timeout_ms=10_000) is not None
        messages = await receive(second, 200)
        assert {message.text for message in messages} == bodies
        await eventually(lambda: _true(len(second.assigned) == 4))


async def test_a_broker_can_ask_which_queues_a_stream_has(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    group = f"G_{topic}"
    streams = [StreamClient.from_stack(stack.directory, client_name=name) for name in ("first", "second")]
    engine = ClientEngine(ClientSettings(namesrv=tuple(stack.facts["namesrv"])), clock=SystemClock(), rng=Rng())
    await engine.start()

    async def queues_of(client_id: str, address: str) -> set[tuple[str, int]]:
        header = GetConsumerRunningInfoHeader(consumer_group=group, client_id=client_id, jstack_enable=False)
        answer = await engine.call(address, RequestCode.GET_CONSUMER_RUNNING_INFO, header)
        info = ConsumerRunningInfo.decode(answer.body_bytes)
        # The retry topic may be joined a moment later.
        assert {(one.topic, one.sub_string) for one in info.subscriptions} - {(f"%RETRY%{group}", "*")} == {
            (topic, "*")
        }
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
        assert {queue.topic for queue in info.queues} <= {topic, f"%RETRY%{group}"}
        return {(queue.broker_name, queue.queue_id) for queue in info.queues if queue.topic == topic}

    try:
        async with streams[0], streams[1]:
            subscribed = [await stream.subscribe(group, topic, start="first") for stream in streams]
            await eventually(lambda: _true(all(len(each.assigned) == 2 for each in subscribed)))
            for address in (await Admin(engine).masters(["broker-a", "broker-b"])).values():
                for stream, each in zip(streams, subscribed, strict=True):
                    assert stream.welcome is not None
                    expected = {(queue.broker, queue.queue_id) for queue in each.assigned}
                    assert await queues_of(stream.welcome.client_id, address) == expected
    finally:
        await engine.stop()


async def _true(value: bool) -> bool:
    return value


async def test_filters(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    await send(client, topic, 20, tag="OTHER")
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(f"G_{topic}", topic, start="first", expression="AA || UA")
        for tag in ("AA", "UA", "DL"):
            await send(client, topic, 10, tag=tag)
        messages = await receive(subscription, 20)
        assert {message.tag for message in messages} == {"AA", "UA"}
        assert await subscription.next(timeout_ms=300) is None


async def test_sql_filters_streams_and_reads(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    heavy = "weight > 5 AND origin IN ('EWR', 'JFK')"
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(f"G_{topic}", topic, start="first", expression={"sql": heavy})
        messages = [
            OutgoingMessage(str(number), properties={"weight": str(number), "origin": ("EWR", "LGA")[number % 2]})
            for number in range(20)
        ]
        assert (await stream.publish(topic, messages)).stored == 20
        wanted = sorted(str(number) for number in range(6, 20, 2))
        assert sorted(message.text for message in await receive(subscription, len(wanted))) == wanted
        assert await subscription.next(timeout_ms=300) is None
        with pytest.raises(GantryProblem, match="filter/sql: at character 8: LIKE is not supported"):
            await stream.subscribe(f"H_{topic}", topic, start="first", expression={"sql": "origin LIKE 'E%'"})
    queues = await client.list_queues(topic)
    reads = [await client.read_queue(topic, queue.broker, queue.queue_id, sql=heavy) for queue in queues]
    assert sorted(message.text for read in reads for message in read.messages) == wanted
    with pytest.raises(GantryProblem, match="sql: at character 9: the expression ends too early"):
        await client.read_queue(topic, queues[0].broker, queues[0].queue_id, sql="weight >")


@pytest.mark.parametrize("coding", ["msgpack", "json"])
async def test_publishing(stack: Stack, client: AsyncGantryClient, topic: str, coding: str) -> None:
    async with StreamClient.from_stack(stack.directory, coding=coding) as stream:
        good, bad = OutgoingMessage(b"\xff\x00", idempotency_key="A" * 32), OutgoingMessage("x", tag="no tag")
        results = await asyncio.gather(*(stream.publish(topic, [good, bad]) for _ in range(5)))
        for result in results:
            assert (result.stored, result.not_stored) == (1, 1)
            stored, refused = result.results
            assert (stored.message_id, stored.outcome) == ("A" * 32, "stored")
            assert refused.problem is not None
            assert refused.problem.status == 400
        message = await client.get_message(results[0].results[0].stored_id or "")
        assert message.body == b"\xff\x00"
        with pytest.raises(GantryProblem) as caught:
            await stream.publish("NO_SUCH_TOPIC", [good])
        assert (caught.value.name, caught.value.outcome) == ("unknown-topic", "not_stored")
        with pytest.raises(GantryProblem) as caught:
            await stream.subscribe("G", "NO_SUCH_TOPIC")
        assert caught.value.status == 404


async def test_a_stream_needs_a_valid_key_or_ticket(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    url = stack.facts["http"]
    with pytest.raises(GantryProblem) as caught:
        await StreamClient(url, "gk_wrong").open()
    assert (caught.value.status, caught.value.name) == (401, "unauthenticated")
    ticket = (await client.create_ticket()).ticket
    async with StreamClient(url, ticket=ticket) as stream:
        assert (await stream.publish(topic, [OutgoingMessage("x")])).stored == 1
    for wrong in (ticket, "nonsense"):
        with pytest.raises(StreamClosedError) as closed:
            await StreamClient(url, ticket=wrong).open()
        assert closed.value.code == 4401


async def test_rights_are_checked_until_they_end(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    rights = Rights(publish=[topic], consume=ConsumeRights(topics=["OTHER*"], groups=["*"]))
    key = await client.create_key("ws", rights)
    async with StreamClient(stack.facts["http"], key.key) as stream:
        assert (await stream.publish(topic, [OutgoingMessage("x")])).stored == 1
        for refused in (stream.subscribe("G", topic), stream.publish("OTHER", [OutgoingMessage("x")])):
            with pytest.raises(GantryProblem) as caught:
                await refused
            assert caught.value.status == 403
        await client.revoke_key(key.id)

        async def is_over() -> bool:
            try:
                await stream.publish(topic, [OutgoingMessage("x")])
            except StreamClosedError as closed:
                return closed.code == 4401
            except GantryConnectionError:
                return False  # The connection ended just now.
            return False

        await eventually(is_over)


async def test_unimplemented_and_invalid_frames_are_refused(stack: Stack, topic: str) -> None:
    async with await raw_socket(stack) as socket:
        assert (await frame_of(socket))["type"] == "welcome"
        for frame, status in (
            ({"type": "subscribe", "group": "G", "topic": topic, "mode": "broadcasting"}, 501),
            ({"type": "subscribe", "group": "G", "topic": topic, "filter": {"sql": "a >"}}, 400),
            ({"type": "nack", "subscription": "s1", "receipts": ["1.1"]}, 404),
            ({"type": "subscribe", "group": "G", "topic": topic, "colour": "red"}, 400),
            ({"type": "dance"}, 400),
            ({"type": "ack", "subscription": "s9", "receipts": ["1.1"]}, 404),
        ):
            await socket.send(json.dumps({**frame, "id": status}))
            error = await frame_of(socket)
            assert (error["id"], error["problem"]["status"]) == (status, status)
        await socket.send("not JSON")
        assert (await frame_of(socket))["type"] == "goodbye"
        await socket.wait_closed()
        assert socket.close_code == 4400


async def frames_until(socket: ClientConnection, *types: str) -> list[dict[str, Any]]:
    """Return the next frames up to the first of one of these types."""
    frames = [await frame_of(socket)]
    while frames[-1]["type"] not in types:
        frames.append(await frame_of(socket))
    return frames


async def test_a_live_tail_shows_new_messages_of_all_queues_without_a_group(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    await send(client, topic, 5, prefix="before", tag="A")
    async with await raw_socket(stack) as socket:
        await frame_of(socket)
        tail = {"type": "subscribe", "id": 1, "mode": "tail", "topic": topic, "filter": {"sql": "TAGS = 'A'"}}
        await socket.send(json.dumps(tail))
        assigned = (await frames_until(socket, "assigned"))[-1]
        assert len(assigned["queues"]) == 4, "two queues on each of two brokers"
        wanted = await send(client, topic, 40, tag="A")
        await send(client, topic, 40, prefix="other", tag="B")
        bodies: set[str] = set()
        while len(bodies) < 40:
            bodies |= {message["body"] for message in (await frames_until(socket, "messages"))[-1]["messages"]}
        assert bodies == wanted
        assert not [group for group in await client.list_groups(system=True) if "TAIL" in group.group.upper()]
        await client.put_topic(topic, read_queues=4, write_queues=4)
        assert len((await frames_until(socket, "assigned"))[-1]["queues"]) == 8, "new queues are followed"
        await client.delete_topic(topic)
        error = (await frames_until(socket, "error"))[-1]
        while error["problem"]["status"] != 404:  # Pulls may fail before the topic is known to be gone.
            error = (await frames_until(socket, "error"))[-1]
        assert error["problem"]["type"] == "https://gantry.dev/problems/unknown-topic"
        assert (await frames_until(socket, "state"))[-1]["reason"] == "unsubscribed"


async def test_a_live_tail_may_begin_in_the_past_and_needs_the_right_to_read_only(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    wanted = await send(client, topic, 300)
    reader = await client.create_key("reader", Rights(consume=ConsumeRights(topics=[topic])))
    async with await raw_socket(stack, key=reader.key) as socket:
        await frame_of(socket)
        await socket.send(json.dumps({"type": "subscribe", "mode": "tail", "topic": topic, "from": "first"}))
        bodies: list[str] = []
        while len(bodies) < 300:
            bodies += [message["body"] for message in (await frames_until(socket, "messages"))[-1]["messages"]]
        assert (set(bodies), len(bodies)) == (wanted, 300)
        await socket.send(json.dumps({"type": "subscribe", "id": 2, "mode": "tail", "topic": "OTHER"}))
        assert (await frames_until(socket, "error"))[-1]["problem"]["status"] == 403


async def test_the_largest_messages_come_over_a_stream(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    """A message of 4 MiB is larger than everything that a stream pulls ahead; it held up its queue for ever."""
    sizes = [1, 4 << 20, 1, 2 << 20, 4 << 20, 1]
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(f"G_{topic}", topic, start="first")
        async with await raw_socket(stack, max_size=None) as socket:
            await frame_of(socket)
            await socket.send(json.dumps({"type": "subscribe", "mode": "tail", "topic": topic}))
            await frames_until(socket, "assigned")
            for size in sizes:
                await client.send(topic, OutgoingMessage("x" * size))
            assert sorted(len(message.body) for message in await receive(subscription, len(sizes))) == sorted(sizes)
            tailed: list[int] = []
            while len(tailed) < len(sizes):
                found = (await frames_until(socket, "messages"))[-1]["messages"]
                tailed += [len(message["body"]) for message in found]
            assert sorted(tailed) == sorted(sizes)


async def test_frames_that_are_too_large(stack: Stack) -> None:
    async with await raw_socket(stack, compression=None) as socket:
        limits = (await frame_of(socket))["limits"]
        await socket.send("x" * (limits["frame_bytes_max"] + 1))
        assert (await frame_of(socket))["type"] == "goodbye"
        await socket.wait_closed()
        assert socket.close_code == 4429


async def test_a_gateway_that_restarts_loses_nothing(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    group = f"G_{topic}"
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(group, topic, start="first")
        bodies = await send(client, topic, 50)
        seen = {message.text for message in await receive(subscription, 50)}
        for number, how in enumerate((signal.SIGTERM, signal.SIGKILL)):
            connections = stream.connections_count
            os.kill(stack.pid_of("gateway-0"), how)
            await eventually(lambda before=connections: _true(stream.connections_count > before))  # type: ignore[misc]
            more = [OutgoingMessage(f"{topic} after {number} {index}") for index in range(50)]

            async def is_sent(messages: list[OutgoingMessage] = more) -> bool:
                try:
                    return (await client.send_batch(topic, messages)).stored == len(messages)
                except GantryError:
                    return False  # Any error of a gateway that is starting is acceptable.

            await eventually(is_sent)
            bodies |= {str(message.body) for message in more}
            while seen != bodies:
                seen |= {message.text for message in await receive(subscription, 1)}

        async def is_committed() -> bool:
            # Messages whose acknowledgement the killed gateway did not commit come again, perhaps after the newer ones.
            batch = await subscription.next(timeout_ms=200)
            if batch is not None:
                assert {message.text for message in batch.messages} <= bodies
                await subscription.ack(batch)
            return await committed(client, group, topic) >= 150

        await eventually(is_committed)


async def test_a_broker_that_is_killed_and_restarted(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(f"G_{topic}", topic, start="first")
        await subscription.wait_assigned()
        bodies = await send(client, topic, 40)
        seen = {message.text for message in await receive(subscription, 40)}
        assert seen == bodies
        os.kill(stack.pid_of("broker-b"), signal.SIGKILL)
        await eventually(lambda: _true(subscription.state is not None and subscription.state.reason == "waiting"))
        target = {"broker": "broker-b", "id": 0}

        async def is_sent() -> bool:
            result = await client.send_batch(topic, [OutgoingMessage("back", queue=target)])
            return result.stored == 1

        await eventually(is_sent)
        while "back" not in seen:
            seen |= {message.text for message in await receive(subscription, 1)}


class InOrder:
    """Orderly consumers that share one record of what they have handled."""

    def __init__(self, group: str, topic: str) -> None:
        self.handled: dict[tuple[str, int], int] = {}
        """Queue → number of its messages that were handled, from offset 0 on without a gap."""
        self.repeated = 0
        self.returned: set[tuple[str, int, int]] = set()
        self._group = group
        self._topic = topic

    @property
    def count(self) -> int:
        """Number of different messages that were handled."""
        return sum(self.handled.values())

    async def consume(self, stream: StreamClient) -> None:
        """Handle each message once it comes, and return every seventieth one of a queue the first time."""
        subscription = await stream.subscribe(self._group, self._topic, start="first", batch=3, order="orderly")
        async for batch in subscription:
            for message in batch.messages:
                queue, offset = (message.broker, message.queue_id), message.queue_offset
                assert offset <= self.handled.get(queue, 0), "no message is handled before the one in front of it"
                if offset % 70 == 69 and (*queue, offset) not in self.returned:
                    self.returned.add((*queue, offset))
                    await subscription.nack([message], delay="10ms")
                    break
                if offset < self.handled.get(queue, 0):
                    self.repeated += 1  # Its ack was on the way when the stream before was closed.
                self.handled[queue] = max(self.handled.get(queue, 0), offset + 1)
                await asyncio.sleep(0.002)
                await subscription.ack([message])


async def test_orderly_consumers_take_queues_over_without_reordering(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    messages = [OutgoingMessage(f"{number}", ordering_key=f"k{number % 50}") for number in range(1_200)]
    assert (await client.send_batch(topic, messages[:1_000])).stored == 1_000
    record = InOrder(f"G_{topic}", topic)
    streams = [StreamClient.from_stack(stack.directory, client_name=f"orderly {number}") for number in range(3)]
    tasks: list[asyncio.Task[None]] = []

    async def reached(count: int) -> bool:
        failures = [task.exception() for task in tasks if task.done() and task.exception() is not None]
        assert not any(isinstance(failure, AssertionError) for failure in failures), failures
        return record.count >= count

    try:
        for number, stream in enumerate(streams):
            await stream.open()
            tasks.append(asyncio.ensure_future(record.consume(stream)))
            goal = record.count + 150
            await eventually(lambda goal=goal: reached(goal))
            if number == 1:
                await streams[0].close()
        assert (await client.send_batch(topic, messages[1_000:])).stored == 200
        await streams[1].close()
        await eventually(lambda: reached(1_200))
    finally:
        for stream in streams:
            await stream.close()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert (record.count, len(record.handled)) == (1_200, 4)
    assert len(record.returned) >= 8
    assert record.repeated <= 2 * 3 * 4, "at most the batches in flight at the two closes come again"


async def test_a_key_limits_its_streams_and_their_publishes(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    limits = KeyLimits(connections=1, messages_per_s=10)
    made = await client.create_key("limited", Rights(publish=[topic]), limits=limits)
    async with StreamClient(stack.facts["http"], made.key) as stream:
        assert (await stream.publish(topic, [OutgoingMessage("x")] * 30)).stored == 30
        with pytest.raises(GantryProblem, match="messages_per_s") as refused:
            await stream.publish(topic, [OutgoingMessage("x")])
        assert (refused.value.problem.status, refused.value.problem.outcome) == (429, "not_stored")
        with pytest.raises(GantryProblem, match="connections") as second:
            await StreamClient(stack.facts["http"], made.key).open()
        assert second.value.problem.status == 429
        # The stream follows a change of the limits.
        await client.change_key(made.id, limits=KeyLimits())
        assert (await stream.publish(topic, [OutgoingMessage("x")])).stored == 1
        await client.rotate_key(made.id, overlap="0s")

        async def is_closed() -> bool:
            try:
                await stream.publish(topic, [OutgoingMessage("x")])
            except GantryError:
                return True
            return False

        await eventually(is_closed)


async def test_the_command_line_tails_a_topic(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    await send(client, topic, 20, tag="A")
    command = [sys.executable, "-m", "gantry.cli", "tail", topic, "--from", "first", "--filter", "A", "--limit", "20"]
    running = await asyncio.create_subprocess_exec(
        *command, "--json", "--data", str(stack.directory), stdout=asyncio.subprocess.PIPE, env=environment()
    )
    async with asyncio.timeout(DEADLINE_S):
        printed, _ = await running.communicate()
    assert running.returncode == 0
    lines = [json.loads(line) for line in printed.splitlines()]
    assert {line["body"] for line in lines} == {f"{topic}  {number}" for number in range(20)}


async def test_the_client_library_tails_a_topic_while_it_consumes_another(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    async with StreamClient.from_stack(stack.directory) as stream:
        tail = await stream.tail(topic)
        await tail.wait_assigned()
        wanted = await send(client, topic, 50)
        assert {message.text for message in await receive(tail, 50)} == wanted
        await client.delete_topic(topic)
        with pytest.raises(GantryProblem, match="unknown-topic"):
            async with asyncio.timeout(DEADLINE_S):
                await anext(tail)
