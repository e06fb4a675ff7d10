"""A stream's connection without the client library, so that a test can send any bytes."""

import asyncio
import json
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

from gantry.http import AsyncGantryClient
from tests.support.stack import Stack
from tests.unit.services.gateway.ws.streams import check_frame

DEADLINE_S = 60.0


async def open_socket(stack: Stack, *, key: str | None = None, query: str = "", **options: Any) -> ClientConnection:
    """Open a stream with the stack's key or another one, or with a query instead; the welcome is the next frame."""
    facts = stack.facts
    headers = {} if query else {"Authorization": f"Bearer {key or facts['api_key']}"}
    return await connect(
        f"{facts['http'].replace('http', 'ws')}/v1/stream{query}",
        subprotocols=[Subprotocol("gantry.v1.json")],
        additional_headers=headers,
        compression=None,
        proxy=None,
        **options,
    )


async def next_frame(socket: ClientConnection) -> dict[str, Any]:
    """Return the next frame, checked against its schema."""
    async with asyncio.timeout(DEADLINE_S):
        frame: dict[str, Any] = json.loads(await socket.recv())
    check_frame(frame)
    return frame


async def frames_until(socket: ClientConnection, kind: str, **fields: Any) -> list[dict[str, Any]]:
    """Return frames up to the first of this type with these fields."""
    frames = [await next_frame(socket)]
    while frames[-1]["type"] != kind or any(frames[-1].get(name) != value for name, value in fields.items()):
        frames.append(await next_frame(socket))
    return frames


async def exchange(socket: ClientConnection, **frame: Any) -> list[dict[str, Any]]:
    """Send a frame; return all frames with its id up to the one that ends the answer, without message frames."""
    frame = {"id": "x", **{name.rstrip("_"): value for name, value in frame.items()}}
    await socket.send(json.dumps(frame))
    answers: list[dict[str, Any]] = []
    while True:
        answer = await next_frame(socket)
        if answer.get("id") == frame["id"]:
            answers.append(answer)
            if answer["type"] != "error" or "receipt" not in answer:
                return answers


async def wait_committed(client: AsyncGantryClient, group: str, topic: str, expected: int) -> None:
    """Wait until the sum of the group's offsets has this value."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            rows = await client.get_offsets(group, topic=topic)
            if sum(row.committed_offset or 0 for row in rows) == expected:
                return
            await asyncio.sleep(0.05)
