"""Streams with careless or hostile clients against a real stack: their own limits, and the effect on others."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.typing import Subprotocol

from gantry.http import AsyncGantryClient, GantryProblem, OutgoingMessage, StreamClient
from gantry.http.results import Rights
from services.gateway.ws.delivery import SLOW_BYTES
from tests.integration.rawstream import DEADLINE_S, exchange, frames_until, next_frame, open_socket, wait_committed
from tests.support.stack import Stack

_names = iter(range(1_000_000))


PER_KEY_MAX, PER_ADDRESS_MAX, STREAMS_MAX = 6, 9, 12
TICKETS_PER_KEY_MAX = 20
LIMITS = {
    "GANTRY_GATEWAY_KEY_TICKETS_MAX": str(TICKETS_PER_KEY_MAX),
    "GANTRY_GATEWAY_KEY_STREAMS_MAX": str(PER_KEY_MAX),
    "GANTRY_GATEWAY_ADDRESS_STREAMS_MAX": str(PER_ADDRESS_MAX),
    "GANTRY_GATEWAY_STREAMS_MAX": str(STREAMS_MAX),
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=1, environment=LIMITS) as running:
        yield running


@pytest.fixture
async def client(stack: Stack) -> AsyncIterator[AsyncGantryClient]:
    async with AsyncGantryClient.from_stack(stack.directory) as made:
        yield made


@pytest.fixture
async def topic(client: AsyncGantryClient) -> str:
    name = f"WSA_{os.getpid()}_{next(_names)}"
    await client.put_topic(name, read_queues=1, write_queues=1)
    return name


async def consume(socket: ClientConnection, group: str, topic: str) -> list[str]:
    """Subscribe from the start and return the receipt of the first frame, and those of its messages."""
    await exchange(socket, type="subscribe", group=group, topic=topic, from_="first")
    frame = (await frames_until(socket, "messages"))[-1]
    return [frame["receipt"], *(message["receipt"] for message in frame["messages"])]


async def test_a_stale_receipt_commits_nothing(stack: Stack, client: AsyncGantryClient, topic: str) -> None:
    group = f"G_{topic}"
    await client.send_batch(topic, [OutgoingMessage(str(number)) for number in range(5)])
    async with await open_socket(stack) as socket:
        stale = await consume(socket, group, topic)
    async with await open_socket(stack) as socket:
        fresh = await consume(socket, group, topic)
        assert len(stale) == len(fresh) == 6
        for receipt in stale:
            answers = await exchange(socket, type="ack", id="stale", subscription="s1", receipts=[receipt])
            assert [frame.get("problem", {}).get("status") for frame in answers] == [410, None]
            assert answers[-1]["in_flight"] == 5
        answers = await exchange(socket, type="ack", id="fresh", subscription="s1", receipts=fresh[1:4])
        assert [(frame["type"], frame["in_flight"]) for frame in answers] == [("state", 2)]
        await socket.close()
    await wait_committed(client, group, topic, 3)


def problem_of(refused: InvalidStatus) -> dict[str, Any]:
    """Return the problem of a refused handshake, whose headers must agree with it."""
    answer = refused.response
    problem: dict[str, Any] = json.loads(answer.body or b"")
    assert answer.status_code == problem["status"]
    assert answer.headers["x-request-id"] == problem["request_id"] != "none"
    return problem


async def test_streams_of_one_key_leave_room_for_others(stack: Stack, client: AsyncGantryClient) -> None:
    keys = [(await client.create_key(f"streams-{number}", Rights(publish=["*"]))).key for number in range(3)]
    other_address = {"local_addr": ("127.0.0.2", 0)}
    async with AsyncExitStack() as opened:

        async def fill(count: int, **options: Any) -> InvalidStatus:
            for _ in range(count):
                await opened.enter_async_context(await open_socket(stack, **options))
            with pytest.raises(InvalidStatus) as caught:
                await open_socket(stack, **options)
            assert int(caught.value.response.headers["Retry-After"]) >= 1
            return caught.value

        assert problem_of(await fill(PER_KEY_MAX, key=keys[0]))["status"] == 429
        problem = problem_of(await fill(PER_ADDRESS_MAX - PER_KEY_MAX, key=keys[1]))
        assert (problem["status"], "127.0.0.1" in problem["detail"]) == (429, True)
        full = problem_of(await fill(STREAMS_MAX - PER_ADDRESS_MAX, key=keys[2], **other_address))
        assert (full["status"], full["retryable"]) == (503, True)
        ticket = (await client.create_ticket()).ticket
        socket = await open_socket(stack, query=f"?ticket={ticket}")
        goodbye = await next_frame(socket)
        assert (goodbye["type"], goodbye["retry"]) == ("goodbye", True)
        await socket.wait_closed()
        assert socket.close_code == 4429
    metrics = await metrics_of(stack)
    for of, reached in (("key", "share"), ("address", "share"), ("address", "total")):
        refused = f'gantry_gateway_limit_refused_total{{limit="streams",of="{of}",reached="{reached}"}}'
        assert float(metrics.partition(refused)[2].split()[0]) >= 1
    # The ticket is unused, and there is room again.
    socket = await open_socket(stack, query=f"?ticket={ticket}")
    assert (await next_frame(socket))["type"] == "welcome"
    await socket.close()


async def metrics_of(stack: Stack) -> str:
    facts = stack.facts
    async with httpx.AsyncClient(trust_env=False) as http:
        headers = {"Authorization": f"Bearer {facts['api_key']}"}
        return (await http.get(f"{facts['http']}/metrics", headers=headers)).text


@pytest.mark.parametrize(
    ("query", "subprotocol", "kind"),
    [
        ("?ticket=x", "gantry.v1.json", "invalid-field"),
        ("", "mqtt", "invalid-field"),
        ("?a=b", "", "unknown-parameter"),
    ],
)
async def test_a_refused_handshake_is_a_problem(stack: Stack, query: str, subprotocol: str, kind: str) -> None:
    facts = stack.facts
    for path, expected in (("/v1/stream" + query, (400, kind)), ("/v1/elsewhere", (404, "not-found"))):
        with pytest.raises(InvalidStatus) as caught:
            await connect(
                facts["http"].replace("http", "ws") + path,
                subprotocols=[Subprotocol(subprotocol or "gantry.v1.json")],
                additional_headers={"Authorization": f"Bearer {facts['api_key']}"},
                proxy=None,
            )
        problem = problem_of(caught.value)
        assert (problem["status"], problem["type"].rpartition("/")[2]) == expected


@pytest.mark.parametrize(
    "lines",
    [
        [b"Content-Length: 3", b"", b"abc"],
        [b"Transfer-Encoding: chunked", b"", b"0", b"", b""],
        [b"X: " + b"x" * 9_000, b"", b""],
        [*(b"X-%d: 1" % number for number in range(200)), b"", b""],
        [b"Sec-WebSocket-Version: 12", b"", b""],
    ],
)
async def test_a_handshake_that_can_not_be_read_is_answered(stack: Stack, lines: list[bytes]) -> None:
    host, _, port = stack.facts["http"].rpartition("/")[2].partition(":")
    head = b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(20):
        writer.write(head + b"\r\n".join(lines))
        answer, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    problem = json.loads(body)
    assert answer.startswith(b"HTTP/1.1 4")
    assert b"x-request-id: " + problem["request_id"].encode() in answer


async def counted(stack: Stack, name: str) -> float:
    lines = (await metrics_of(stack)).splitlines()
    return next((float(line.split()[1]) for line in lines if line.startswith(f"gantry_gateway_{name} ")), 0.0)


def rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


async def test_streams_without_reads_take_little_memory_for_any_subscriptions(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    """Each stream once held a pull of 256 KiB for each of its queues."""
    queues, readers = 48, 5
    await client.put_topic(topic, read_queues=queues, write_queues=queues)
    await client.send_batch(topic, [OutgoingMessage("warm")])
    for number in range(queues):
        batch = [OutgoingMessage(b"x" * 32_768, queue={"broker": "broker-a", "id": number}) for _ in range(12)]
        assert (await client.send_batch(topic, batch)).stored == 12
    pid = stack.pid_of("gateway-0")
    credit = {"messages": 100_000, "bytes": 256 << 20}
    before = 0.0
    with ExitStack() as opened:
        for number in range(readers):
            socket = await open_socket(stack, max_queue=1, ping_interval=None)
            # A client that does not read can't complete the close handshake either.
            opened.callback(socket.transport.abort)
            frame = {
                "type": "subscribe",
                "group": f"G{number}_{topic}",
                "topic": topic,
                "from": "first",
                "credit": credit,
            }
            await socket.send(json.dumps(frame))
            await wait_until_nothing_flows(stack)
            before = before or rss_mib(pid)
        grown = rss_mib(pid) - before
    # Allowance for free memory that Python keeps: with the first reader's, it was 60 MiB and more.
    assert grown <= (readers - 1) * 3, f"{readers - 1} more readers of {queues} queues"


async def wait_until_nothing_flows(stack: Stack) -> None:
    """Wait until all readers have received their share and messages above it were dropped."""
    pushed = -1.0
    async with asyncio.timeout(DEADLINE_S):
        while True:
            before, pushed = pushed, await counted(stack, "stream_messages_total")
            held = await counted(stack, "stream_held_bytes")
            if before == pushed > 0 and held <= PER_KEY_MAX * SLOW_BYTES:
                return
            await asyncio.sleep(1.5)


async def unsent_of_keys(stack: Stack) -> float:
    shown = 'gantry_gateway_limit_used{limit="unsent_bytes",of="key"}'
    return float((await metrics_of(stack)).partition(f"\n{shown} ")[2].split()[0])


async def stored_in_the_end(stack: Stack, client: AsyncGantryClient, topic: str) -> int:
    """Wait until no further published message is stored and answers wait; return the number of stored messages."""
    stored = -1
    async with asyncio.timeout(DEADLINE_S):
        while True:
            (queue,) = await client.list_queues(topic)
            unsent = await unsent_of_keys(stack)
            assert unsent <= 4 * 1024 * 1024
            # The system's buffers take some megabytes of answers first.
            if queue.max_offset == stored and unsent > 0:
                return stored
            stored = queue.max_offset or 0
            await asyncio.sleep(0.5)


async def test_a_publisher_that_reads_no_answers_takes_little_memory_and_gets_them_later(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    publishes, size = 120, 1_000
    pid = stack.pid_of("gateway-0")
    async with await open_socket(stack, max_queue=1, ping_interval=None) as socket:
        await exchange(socket, type="publish", id=0, topic=topic, messages=[{"body": "x"}] * size)
        before = rss_mib(pid)
        socket.transport.pause_reading()

        async def publish_all() -> None:
            for number in range(1, publishes):
                frame = {"type": "publish", "id": number, "topic": topic, "messages": [{"body": "x"}] * size}
                await socket.send(json.dumps(frame))

        publishing = asyncio.ensure_future(publish_all())
        assert await stored_in_the_end(stack, client, topic) < publishes * size
        grown = rss_mib(pid) - before
        print(f"grown by {grown:.0f} MiB")
        assert grown <= 40
        neighbour = await client.create_key("neighbour", Rights(publish=["*"]))
        async with AsyncGantryClient(stack.facts["http"], neighbour.key) as other:
            assert (await other.send_batch(topic, [OutgoingMessage("n")] * size)).stored == size
        socket.transport.resume_reading()
        answered = [(await next_frame(socket)) for _ in range(1, publishes)]
        assert sorted(frame["id"] for frame in answered) == list(range(1, publishes))
        assert {frame["stored"] for frame in answered} == {size}
        await publishing
    async with asyncio.timeout(DEADLINE_S):
        while True:
            if await unsent_of_keys(stack) == 0:
                break
            await asyncio.sleep(0.05)


async def raw_stream(stack: Stack, *, key: str | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stream byte by byte, with a key or a wrong ticket."""
    host, _, port = stack.facts["http"].rpartition("/")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    identity = "" if key is None else f"\r\nAuthorization: Bearer {key}"
    writer.write(
        f"GET /v1/stream{'?ticket=x' if key is None else ''} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: gantry.v1.json\r\n"
        f"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=={identity}\r\n\r\n".encode()
    )
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
    return reader, writer


def client_frame(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    return Frame(Opcode(opcode), payload, fin).serialize(mask=True)


async def test_messages_that_are_never_complete_take_little_memory(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    """They once took 15 MiB each, even after the goodbye for a wrong ticket."""
    greedy = await client.create_key("fragments", Rights(publish=["*"]))
    pid = stack.pid_of("gateway-0")
    before, most = rss_mib(pid), 0.0
    part = client_frame(0, b"x" * 65_536, fin=False)

    async def send_on(key: str | None) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            _, writer = await raw_stream(stack, key=key)
            try:
                writer.write(client_frame(1, b"{", fin=False))
                for _ in range(15 * 16):
                    writer.write(part)
                    await writer.drain()
                await asyncio.sleep(60)
            finally:
                writer.transport.abort()

    keys = [None] * 40 + [greedy.key] * PER_KEY_MAX
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(send_on(key)) for key in keys]
        for _ in range(20):
            await asyncio.sleep(0.2)
            most = max(most, rss_mib(pid))
            assert (await client.send_batch(topic, [OutgoingMessage("n")])).stored == 1
        for task in tasks:
            task.cancel()
    assert most - before <= 80, "46 streams sent 15 MiB each"


async def test_pings_of_a_client_that_reads_nothing_take_no_memory(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    pid = stack.pid_of("gateway-0")
    reader, writer = await raw_stream(stack, key=stack.facts["api_key"])
    await client.send_batch(topic, [OutgoingMessage("warm")])
    before = rss_mib(pid)
    flood = client_frame(9, b"x" * 125) * 2_000
    with suppress(OSError):
        async with asyncio.timeout(DEADLINE_S):
            while not reader.at_eof():
                writer.write(flood)
                await writer.drain()
    assert rss_mib(pid) - before <= 20
    writer.transport.abort()
    assert 'refused_connections_total{reason="stream_frame_rate"}' in await metrics_of(stack)


async def test_tickets_of_one_key_are_bounded(stack: Stack, client: AsyncGantryClient) -> None:
    greedy = await client.create_key("tickets", Rights(publish=["*"]))
    async with AsyncGantryClient(stack.facts["http"], greedy.key) as other:
        for _ in range(TICKETS_PER_KEY_MAX):
            await other.create_ticket()
        with pytest.raises(GantryProblem) as caught:
            await other.create_ticket()
    assert (caught.value.status, caught.value.name) == (429, "too-many")
    await client.create_ticket()
    refused = 'gantry_gateway_limit_refused_total{limit="tickets",of="key",reached="share"}'
    assert f"{refused} 1.0" in await metrics_of(stack)
    nothing = await client.create_key("nothing", Rights(metrics=True))
    async with AsyncGantryClient(stack.facts["http"], nothing.key) as other:
        with pytest.raises(GantryProblem) as caught:
            await other.create_ticket()
    assert caught.value.status == 403


async def test_a_group_is_made_only_where_its_beginning_is_given(
    stack: Stack, client: AsyncGantryClient, topic: str
) -> None:
    group = f"G_{topic}"
    await client.send_batch(topic, [OutgoingMessage(str(number)) for number in range(5)])
    async with await open_socket(stack) as socket:
        (answer,) = await exchange(socket, type="subscribe", group=group, topic=topic)
        assert (answer["problem"]["status"], answer["problem"]["type"].rpartition("/")[2]) == (404, "unknown-group")
        assert "`from`" in answer["problem"]["detail"]
        (answer,) = await exchange(socket, type="subscribe", group=group, topic="NO_SUCH_TOPIC", from_="last")
        assert answer["problem"]["type"].endswith("/unknown-topic")
        with pytest.raises(GantryProblem) as caught:
            await client.get_group(group)
        assert caught.value.status == 404
        (answer,) = await exchange(socket, type="subscribe", group=group, topic=topic, from_="last")
        assert (answer["type"], answer["skipped"]) == ("subscribed", "5")
        assert (await client.get_group(group)).group == group
    async with await open_socket(stack) as socket:
        (answer,) = await exchange(socket, type="subscribe", group=group, topic=topic)
        assert (answer["type"], "skipped" in answer) == ("subscribed", False)
    async with StreamClient.from_stack(stack.directory) as stream:
        subscription = await stream.subscribe(f"{group}_2", topic, start="last")
        assert subscription.skipped == 5
        subscription = await stream.subscribe(f"{group}_3", topic, start="first")
        assert subscription.skipped == 0
