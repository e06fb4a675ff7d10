"""The flights once more, by REST pull: four workers of one group, spread over the gateways, take and ack messages.

A worker has no session and no queue of its own: it pulls, works, and acks with the receipts that it got. It may ack at
another gateway, and it may be replaced at any moment: a message that is not acked within its invisible time comes again.
"""

import asyncio
import itertools
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from gantry.http import AsyncGantryClient, GantryConnectionError, GantryProblem, Message

WORKERS: Final = 4
PULL_MESSAGES: Final = 256
WAIT_MS: Final = 2_000
INVISIBLE_MS: Final = 30_000
# If the group has no message for this long, the missing ones will not come.
SILENCE_MS_MAX: Final = 60_000
RETRY_AFTER_MS: Final = 500
SHOWN_MAX: Final = 5


class PullCheck:
    """Compares the messages that the workers take with those that were sent.

    Attributes:
        again_count: Deliveries of messages that came before: their worker was too slow, or its ack was lost.
        foreign_count: Messages of other runs.
    """

    def __init__(self, bodies: Mapping[str, bytes]) -> None:
        """Make it for the bodies that were sent, by message id."""
        self._bodies = bodies
        self._taken: set[str] = set()
        self.again_count = 0
        self.foreign_count = 0
        self.differences: list[str] = []

    @property
    def taken_count(self) -> int:
        """Number of messages that came."""
        return len(self._taken)

    @property
    def is_complete(self) -> bool:
        """Whether every message came."""
        return self.taken_count == len(self._bodies)

    def take(self, message: Message) -> None:
        """Check a message."""
        body = self._bodies.get(message.message_id)
        if body is None:
            self.foreign_count += 1
        elif message.message_id in self._taken:
            self.again_count += 1
        else:
            self._taken.add(message.message_id)
            if body != message.body:
                self.differences.append(f"message {message.message_id}: sent {body!r}, pulled {message.body!r}")

    def report(self) -> list[str]:
        """Return the differences; the list is empty if all is well."""
        missing = sorted(self._bodies.keys() - self._taken)
        found = [f"{len(missing)} messages are missing: {', '.join(missing[:SHOWN_MAX])} …"] if missing else []
        return found + self.differences


async def pull_all(clients: Sequence[AsyncGantryClient], topic: str, group: str, check: PullCheck) -> None:
    """Pull with four workers until all messages came, or no more come. Workers take turns with the gateways."""
    async with asyncio.TaskGroup() as tasks:
        for _, client in zip(range(WORKERS), itertools.cycle(clients), strict=False):
            tasks.create_task(work(client, topic, group, check))


async def work(client: AsyncGantryClient, topic: str, group: str, check: PullCheck) -> None:
    """Pull, check and ack messages."""
    attempt, silent_ms = str(uuid.uuid4()), 0
    while not check.is_complete and silent_ms < SILENCE_MS_MAX:
        try:
            pulled = await client.pull(
                group,
                topic,
                max_messages=PULL_MESSAGES,
                wait_ms=WAIT_MS,
                invisible_ms=INVISIBLE_MS,
                attempt_id=attempt,
            )
            for message in pulled.messages:
                check.take(message)
            if pulled.messages:
                await client.ack(group, [message.receipt for message in pulled.messages])
        except (GantryConnectionError, GantryProblem) as error:
            if isinstance(error, GantryProblem) and not error.retryable:
                raise
            # Under the same name, the next pull gets the messages again that this one got.
            await asyncio.sleep(RETRY_AFTER_MS / 1_000)
            silent_ms += RETRY_AFTER_MS
            continue
        attempt = str(uuid.uuid4())
        silent_ms = 0 if pulled.messages else silent_ms + WAIT_MS
