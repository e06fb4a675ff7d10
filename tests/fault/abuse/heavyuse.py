"""Heavy use: permitted requests at full speed. Other keys must still get their share."""

import asyncio
import json
from typing import Any

from websockets.exceptions import WebSocketException

from tests.fault.abuse.attack import GROUP, MIB, TOPIC, Attack

_BATCH = json.dumps({"messages": [{"body": "x"}] * 1_000}).encode()


async def batches_at_full_speed(attack: Attack) -> None:
    """Send batches of a thousand messages on 16 connections, each batch as soon as the previous one is answered."""
    head = ("Content-Type: application/json", f"Content-Length: {len(_BATCH)}")
    request = attack.target.head(f"POST /v1/topics/{TOPIC}/messages:batch", *head) + _BATCH
    async with asyncio.TaskGroup() as group:
        for _ in range(16):
            group.create_task(attack.repeat(lambda: request))


async def sends_at_full_speed(attack: Attack) -> None:
    """Send small messages on 64 connections, each message as soon as the previous one is answered."""
    body = b'{"body": "hello"}'
    head = ("Content-Type: application/json", f"Content-Length: {len(body)}")
    request = attack.target.head(f"POST /v1/topics/{TOPIC}/messages", *head) + body
    async with asyncio.TaskGroup() as group:
        for _ in range(64):
            group.create_task(attack.repeat(lambda: request))


async def streams_that_publish_at_full_speed(attack: Attack) -> None:
    """Publish frames of a hundred messages on 20 streams, with four unanswered frames on each."""
    text = json.dumps({"type": "publish", "id": 1, "topic": TOPIC, "messages": [{"body": "x"}] * 100})

    async def one() -> None:
        async with attack.stream() as stream:
            for _ in range(4):
                await stream.send(text)
            async for answer in stream:
                if json.loads(answer)["type"] != "ping":
                    attack.begun.set()
                    await stream.send(text)

    await attack.many(20, lambda: _counted(attack, one))


async def streams_that_take_at_full_speed(attack: Attack) -> None:
    """Take and acknowledge all messages of a sender, on 50 streams with one group each."""
    head = ("Content-Type: application/json", f"Content-Length: {len(_BATCH)}")
    fill = attack.target.head(f"POST /v1/topics/{TOPIC}/messages:batch", *head) + _BATCH

    async def one(number: int) -> None:
        subscribe = {
            "type": "subscribe", "id": 1, "group": f"{GROUP}-{number}", "topic": TOPIC, "from": "first", "batch": 1_000,
            "credit": {"messages": 100_000, "bytes": 256 * MIB},
        }  # fmt: skip
        async with attack.stream() as stream:
            await stream.send(json.dumps(subscribe))
            async for text in stream:
                given = json.loads(text)
                if given["type"] == "messages":
                    attack.begun.set()
                    ack = {"type": "ack", "subscription": given["subscription"], "receipts": [given["receipt"]]}
                    await stream.send(json.dumps(ack))

    async with asyncio.TaskGroup() as group:
        group.create_task(attack.repeat(lambda: fill, pause_s=0.1))
        for number in range(50):
            group.create_task(attack.many(1, lambda number=number: _counted(attack, lambda: one(number))))


async def _counted(attack: Attack, one: Any) -> None:
    try:
        await one()
    except (OSError, WebSocketException, TimeoutError) as error:
        attack.answers[f"stream: {type(error).__name__}"] += 1
        await asyncio.sleep(1)
