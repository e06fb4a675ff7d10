"""Actions of strangers and careless clients against a gateway. Run one: python -m tests.fault.abuse.attacks NAME.

Each attack runs until the process is told to end. It has an address of its own (127.0.0.2), so that it does not share
other clients' limits. It prints the number of answers by status as one line of JSON.
"""

import asyncio
import base64
import json
import os
import random
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

from websockets.exceptions import WebSocketException

from tests.fault.abuse import heavyuse
from tests.fault.abuse.attack import BEGUN_S_MAX, GROUP, MIB, TOPIC, Attack, Target, frame, message


async def idle_sockets(attack: Attack) -> None:
    """Open more connections than the gateway accepts, and send nothing."""
    await attack.many(10_050, attack.send_and_hold)


async def half_handshakes(attack: Attack) -> None:
    """Begin WebSocket handshakes that can't be answered: a body, a coding, a huge header, many headers."""
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13")
    key = "Sec-WebSocket-Key: " + base64.b64encode(bytes(16)).decode()
    shapes = [
        (*upgrade, key, "Content-Length: 100"),
        (*upgrade, key, "Transfer-Encoding: chunked"),
        (*upgrade, key, "X-Long: " + "x" * 9_000),
        (*upgrade, key, *(f"X-{number}: y" for number in range(200))),
        upgrade,
    ]

    async def one() -> None:
        head = attack.target.head("GET /v1/stream", *random.choice(shapes), keyed=random.random() < 0.5)
        await attack.send_and_hold(head)

    await attack.many(1_000, one)


async def slow_heads(attack: Attack) -> None:
    """Send request heads one byte at a time."""

    async def one() -> None:
        async with attack.connection() as (reader, writer):
            for byte in attack.target.head("GET /v1/topics", "X-Long: " + "x" * 1_000):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(1)
                if reader.at_eof():
                    return
            await attack.answer(reader)

    await attack.many(500, one)


async def smuggled_requests(attack: Attack) -> None:
    """Hide a request in the body of an upgrade request."""
    inner = attack.target.head("DELETE /v1/topics/NEIGHBOUR", keyed=False)

    def request() -> bytes:
        upgrade = random.choice(("foo", "h2c", "websocket, foo"))
        return (
            attack.target.head(
                f"POST /v1/topics/{TOPIC}/messages",
                f"Upgrade: {upgrade}",
                "Connection: Upgrade, HTTP2-Settings",
                "Content-Type: application/octet-stream",
                f"Content-Length: {len(inner)}",
            )
            + inner
        )

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(attack.repeat(request, pause_s=0.01))
        group.create_task(
            attack.many(4, lambda: attack.send_and_hold(attack.target.head("CONNECT evil:443", keyed=False)))
        )


async def long_polls(attack: Attack) -> None:
    """Hold 2,000 long polls at the end of one queue, and now and then send a message that wakes all of them."""
    target = attack.target
    path = f"/v1/topics/{TOPIC}/queues/{target.broker}/0/messages"
    wait = target.head(f"GET {path}?offset={target.offset_end}&wait=30s")
    elsewhere = target.head(f"GET {path.replace('/0/', '/1/')}?offset=0&wait=30s&filter=NEVER")
    waker = message(target, 100, queue=0)

    async with asyncio.TaskGroup() as group:
        group.create_task(attack.many(1_000, lambda: attack.send_and_hold(wait)))
        group.create_task(attack.many(1_000, lambda: attack.send_and_hold(elsewhere)))
        group.create_task(attack.repeat(lambda: waker, pause_s=5.0))


async def readers_that_take_nothing(attack: Attack) -> None:
    """Request large answers and never read them."""
    target = attack.target
    path = f"/v1/topics/{TOPIC}/queues/{target.broker}/0/messages?offset=0&limit=32"
    request = target.head(f"GET {path}")
    async with asyncio.TaskGroup() as group:
        group.create_task(attack.repeat(lambda: message(target, 3 * MIB, queue=0), pause_s=2.0))
        group.create_task(attack.many(200, lambda: attack.send_and_hold(request * 20, reads=False)))


async def streams_that_take_nothing(attack: Attack) -> None:
    """Subscribe with the largest credit, and never read."""
    target = attack.target
    subscribe = {
        "type": "subscribe", "id": "1", "group": GROUP, "topic": TOPIC, "from": "first", "batch": 1_000,
        "credit": {"messages": 100_000, "bytes": 256 * MIB},
    }  # fmt: skip

    async def one() -> None:
        try:
            async with attack.stream() as stream:
                await stream.send(json.dumps(subscribe))
                stream.transport.pause_reading()
                await asyncio.sleep(120)
        except (OSError, WebSocketException, TimeoutError) as error:
            attack.answers[f"stream: {type(error).__name__}"] += 1
            await asyncio.sleep(1)

    async with asyncio.TaskGroup() as group:
        group.create_task(attack.repeat(lambda: message(target, MIB, queue=None), pause_s=0.5))
        group.create_task(attack.many(50, one))


async def publishers_that_read_nothing(attack: Attack) -> None:
    """Publish batches of a thousand messages on streams, and never read the answers.

    The rate is low: this attack does not test how senders share a broker's time.
    """
    text = json.dumps({"type": "publish", "id": 1, "topic": TOPIC, "messages": [{"body": "x"}] * 1_000})

    async def one() -> None:
        try:
            async with attack.stream() as stream:
                stream.transport.pause_reading()
                for _ in range(256):
                    await stream.send(text)
                    await asyncio.sleep(2)
        except (OSError, WebSocketException, TimeoutError) as error:
            attack.answers[f"stream: {type(error).__name__}"] += 1
            await asyncio.sleep(1)

    await attack.many(10, one)


async def endless_fragments(attack: Attack) -> None:
    """Send messages on streams and never finish them: without a key, after a close frame, and with a key."""
    part = frame(0x0, bytes(64 * 1024), fin=False)

    async def one() -> None:
        async with attack.connection() as (reader, writer):
            writer.write(attack.target.stream_head(keyed=random.random() < 0.5))
            await attack.answer(reader)
            writer.write(frame(0x1, b"{", fin=False))
            for _ in range(15 * 16):
                writer.write(part)
                await writer.drain()
            await asyncio.sleep(30)

    await attack.many(60, one)


async def pong_floods(attack: Attack) -> None:
    """Send empty pongs, pings and fragments at full speed, also directly after the handshake."""
    floods = [frame(0xA) * 20_000, frame(0x9) * 20_000, frame(0x1, fin=False) + frame(0x0, fin=False) * 20_000]

    async def one() -> None:
        flood = random.choice(floods)
        async with attack.connection() as (reader, writer):
            writer.write(attack.target.stream_head(keyed=random.random() < 0.5) + flood)
            await attack.answer(reader)
            while not reader.at_eof():
                writer.write(flood)
                await writer.drain()

    await attack.many(4, one)


async def pings_without_reading(attack: Attack) -> None:
    """Send the largest pings and never read the answers: all at once, and as fast as the gateway allows."""
    ping = frame(0x9, bytes(125))

    async def one() -> None:
        async with attack.connection() as (reader, writer):
            writer.write(attack.target.stream_head(keyed=True))
            await attack.answer(reader)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            for _ in range(600):
                writer.write(ping * random.choice((10, 10, 10, 10_000)))
                await writer.drain()
                await asyncio.sleep(0.1)

    await attack.many(20, one)


async def bodies_that_never_come(attack: Attack) -> None:
    """Declare bodies of 8 MiB and send one byte of each."""
    head = attack.target.head(
        f"POST /v1/topics/{TOPIC}/messages", "Content-Type: application/octet-stream", f"Content-Length: {8 * MIB}"
    )
    await attack.many(300, lambda: attack.send_and_hold(head, b"x"))


async def bodies_one_byte_short(attack: Attack) -> None:
    """Send bodies of 8 MiB without their last byte."""
    head = attack.target.head(
        f"POST /v1/topics/{TOPIC}/messages", "Content-Type: text/plain", f"Content-Length: {8 * MIB}"
    )
    body = bytes(8 * MIB - 1)
    await attack.many(40, lambda: attack.send_and_hold(head, body))


async def reads_of_large_messages(attack: Attack) -> None:
    """Read a message of 4 MiB by its id and by its key 40 times a second, and never read the answers."""
    target = attack.target
    # Each control character takes six bytes in JSON.
    body = b"\x01" * (4 * MIB)
    headers = ("Content-Type: text/plain", "Gantry-Keys: large", f"Content-Length: {len(body)}")
    request = target.head(f"POST /v1/topics/{TOPIC}/messages", *headers) + body
    stored_id = ""
    while not stored_id:
        async with attack.connection() as (reader, writer):
            for _ in range(4):
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
                answer = json.loads(await reader.readexactly(length))
                stored_id = answer.get("stored_id", stored_id)
    paths = (f"/v1/messages/{stored_id}", f"/v1/topics/{TOPIC}/messages?key=large&limit=1000")

    async def one() -> None:
        async with attack.connection() as (_, writer):
            writer.write(target.head(f"GET {random.choice(paths)}"))
            await writer.drain()
            await asyncio.sleep(1)

    await attack.many(40, one)


async def bodies_after_the_answer(attack: Attack) -> None:
    """Continue to send after a refusal: without a key, and with a body that is too large."""
    target = attack.target
    shapes = [
        target.head("POST /v1/topics/X/messages", f"Content-Length: {64 * MIB}", keyed=False),
        target.head("POST /v1/topics/X/messages", f"Content-Length: {64 * MIB}"),
    ]
    junk = bytes(64 * 1024)

    async def one() -> None:
        async with attack.connection() as (reader, writer):
            writer.write(random.choice(shapes))
            for _ in range(1_024):
                writer.write(junk)
                await writer.drain()
                await asyncio.sleep(0.01)
            await attack.answer(reader)

    await attack.many(20, one)


async def bodies_of_absurd_shape(attack: Attack) -> None:
    """Send bodies of up to 8 MiB that are slow to parse: hundreds of thousands of properties, deep lists, many keys."""
    target = attack.target
    properties = json.dumps({"body": "x", "properties": {f"p{number}": "v" for number in range(400_000)}}).encode()
    deep = b'{"encoding": "json", "body": ' + b"[" * 2_000_000 + b"]" * 2_000_000 + b"}"
    flat = b'{"encoding": "json", "body": [' + b"1," * 3_000_000 + b"1]}"
    keys = json.dumps({"body": "x", "keys": [str(number) for number in range(500_000)]}).encode()
    bodies = [body for body in (properties, deep, flat, keys) if len(body) <= 8 * MIB]

    def request() -> bytes:
        body = random.choice(bodies)
        path = random.choice((f"/v1/topics/{TOPIC}/messages", f"/v1/topics/{TOPIC}/messages:batch"))
        return target.head(f"POST {path}", "Content-Type: application/json", f"Content-Length: {len(body)}") + body

    async with asyncio.TaskGroup() as group:
        for _ in range(2):
            group.create_task(attack.repeat(request))


async def scattered_acks(attack: Attack) -> None:
    """Take everything that streams deliver, acknowledge it singly in any order, and acknowledge unknown messages too."""
    target = attack.target
    subscribe = {
        "type": "subscribe", "id": "1", "group": GROUP, "topic": TOPIC, "from": "first", "batch": 1_000,
        "credit": {"messages": 10_000, "bytes": 256 * MIB},
    }  # fmt: skip

    async def one() -> None:
        try:
            async with attack.stream() as stream:
                await stream.send(json.dumps(subscribe))
                receipts: list[str] = []
                name = ""
                async for text in stream:
                    frame = json.loads(text)
                    name = frame.get("subscription", name)
                    if frame["type"] == "messages":
                        attack.begun.set()
                        receipts += [message["receipt"] for message in frame["messages"]]
                    if len(receipts) >= 5_000:
                        random.shuffle(receipts)
                        acks = [*receipts[:4_000], *(f"{number}.{number}" for number in range(4_000))]
                        receipts = receipts[4_000:]
                        await stream.send(json.dumps({"type": "ack", "subscription": name, "receipts": acks}))
        except (OSError, WebSocketException, TimeoutError) as error:
            attack.answers[f"stream: {type(error).__name__}"] += 1
            await asyncio.sleep(1)

    async def fill() -> None:
        items = ", ".join('{"body": "x"}' for _ in range(1_000))
        body = f'{{"messages": [{items}]}}'.encode()
        head = ("Content-Type: application/json", f"Content-Length: {len(body)}")
        await attack.repeat(lambda: target.head(f"POST /v1/topics/{TOPIC}/messages:batch", *head) + body, pause_s=0.5)

    async with asyncio.TaskGroup() as group:
        group.create_task(fill())
        for _ in range(2):
            group.create_task(attack.many(1, one))


async def tickets(attack: Attack) -> None:
    """Request tickets and never use them."""
    request = attack.target.head("POST /v1/tickets", "Content-Length: 0")
    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(attack.repeat(lambda: request, pause_s=0.002))


async def wrong_keys(attack: Attack) -> None:
    """Try random keys."""

    def request() -> bytes:
        line = f"GET /v1/topics/{random.randrange(1 << 30)}"
        return attack.target.head(line, f"Authorization: Bearer gk_{random.getrandbits(256):x}", keyed=False)

    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(attack.repeat(request, pause_s=0.01))


ATTACKS: Final[dict[str, Callable[[Attack], Awaitable[None]]]] = {
    attack.__name__: attack
    for attack in (
        idle_sockets,
        half_handshakes,
        slow_heads,
        smuggled_requests,
        long_polls,
        readers_that_take_nothing,
        streams_that_take_nothing,
        publishers_that_read_nothing,
        endless_fragments,
        pong_floods,
        pings_without_reading,
        bodies_that_never_come,
        bodies_one_byte_short,
        reads_of_large_messages,
        bodies_after_the_answer,
        bodies_of_absurd_shape,
        scattered_acks,
        tickets,
        wrong_keys,
    )
}
HEAVY_USE: Final[dict[str, Callable[[Attack], Awaitable[None]]]] = {
    use.__name__: use
    for use in (
        heavyuse.sends_at_full_speed,
        heavyuse.batches_at_full_speed,
        heavyuse.streams_that_publish_at_full_speed,
        heavyuse.streams_that_take_at_full_speed,
    )
}


async def _run(name: str, facts: dict[str, Any]) -> None:
    attack = Attack(Target(**facts))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    work = asyncio.ensure_future((ATTACKS | HEAVY_USE)[name](attack))
    ended = asyncio.ensure_future(stop.wait())
    begun = asyncio.ensure_future(attack.begun.wait())
    # Other attacks may keep this one out from the start; its start does not wait for a connection.
    await asyncio.wait({work, ended, begun}, timeout=BEGUN_S_MAX, return_when=asyncio.FIRST_COMPLETED)
    print("begun", flush=True)
    await asyncio.wait({work, ended}, return_when=asyncio.FIRST_COMPLETED)
    if work.done():
        work.result()
    print(json.dumps(attack.answers), flush=True)
    os._exit(0)  # The kernel closes thousands of sockets at once.


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.nice(10)  # The attack shares the machine with the gateway, as a stranger's would not.
    asyncio.run(_run(sys.argv[1], json.load(sys.stdin)))


if __name__ == "__main__":
    main()
