"""The first and the last message of each span that a reset repeats or skips, so that people see what they are about to do."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.errors import RecordError
from gantry.model.message import MessageQueue
from services.gateway.usecases.consuming.resetplan import QueueMove
from services.gateway.usecases.reading.messages import ReadMessage, read_message
from services.gateway.usecases.reading.read import READER_GROUP, read_records

QUEUES_MAX: Final = 64
"""Largest number of queues whose messages are read."""
BYTES_MAX: Final = 1024 * 1024
"""Largest size of all messages together; a person reads no more, and encoding them takes a few ms."""
_AT_ONCE: Final = 4


class Previews:
    """Reads the messages. A message that can't be read is left out, since a reset does not depend on it."""

    def __init__(self, engine: ClientEngine) -> None:
        self._puller = PullConsumer(engine, READER_GROUP)

    async def fill(self, moves: Sequence[QueueMove]) -> tuple[list[QueueMove], bool]:
        """Return the moves with their messages, and whether some were left out because of a limit."""
        room = asyncio.Semaphore(_AT_ONCE)
        left_bytes, is_truncated, queues = BYTES_MAX, False, 0

        async def read(queue: MessageQueue, offset: int) -> ReadMessage | None:
            nonlocal left_bytes, is_truncated
            async with room:
                if left_bytes <= 0:
                    is_truncated = True
                    return None
                message = await self._read(queue, offset)
            if message is None:
                return None
            left_bytes -= len(message.body)
            if left_bytes < 0:
                is_truncated = True
                return None
            return message

        async def one(move: QueueMove) -> QueueMove:
            nonlocal is_truncated, queues
            first, end = move.span()
            if first >= end:
                return move
            queues += 1
            if queues > QUEUES_MAX:
                is_truncated = True
                return move
            return replace(move, first=await read(move.queue, first), last=await read(move.queue, end - 1))

        filled = await asyncio.gather(*(one(move) for move in moves))
        return filled, is_truncated

    async def _read(self, queue: MessageQueue, offset: int) -> ReadMessage | None:
        try:
            found = await self._puller.pull(queue, offset, max_messages=1, max_bytes=1)
            if found.status is not PullStatus.FOUND:
                return None
            records = read_records(found.body, queue, offset, found.next_offset).messages
            return read_message(records[0], queue.broker_name) if records else None
        except (ClientError, RecordError):
            return None
