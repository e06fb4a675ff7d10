"""Streams as producers: those that said hello with producer groups are asked about open transactions."""

import asyncio
from collections.abc import Collection
from typing import Final, Protocol

from gantry.runtime.telemetry import logger
from services.gateway.usecases.transactions.checking import TransactionCheck
from services.gateway.ws.producing import Done

log = logger("gateway.ws")

ANSWER_TIMEOUT_S: Final = 10.0
"""Time for an answer. Then the next stream is asked."""
ASKED_MAX: Final = 3
"""Limit of streams that are asked in one check. The broker checks again later."""


class ProducingStream(Protocol):
    """A stream that answers questions."""

    def may_ask(self, check: TransactionCheck) -> bool:
        """Return whether the stream can be asked."""
        ...

    def ask(self, check: TransactionCheck, done: Done) -> None:
        """Send the question; `done` is called with the answer, or with None if the stream ends."""
        ...

    def drop(self, transaction: str) -> None:
        """Stop waiting for an answer."""
        ...


class StreamProducers:
    """The producing streams of this gateway, as one way to ask the producers of a group.

    Concurrency: the event loop's thread.
    """

    def __init__(self) -> None:
        # Group → streams, used as an ordered set: the one that was asked last is at the end.
        self._streams: dict[str, dict[ProducingStream, None]] = {}

    def add(self, stream: ProducingStream, groups: Collection[str]) -> None:
        """Add a stream."""
        for group in groups:
            self._streams.setdefault(group, {})[stream] = None

    def remove(self, stream: ProducingStream, groups: Collection[str]) -> None:
        """Remove a stream."""
        for group in groups:
            streams = self._streams.get(group, {})
            streams.pop(stream, None)
            if not streams:
                self._streams.pop(group, None)

    def groups(self) -> Collection[str]:
        """Return the groups that have a stream."""
        return list(self._streams)

    async def ask(self, check: TransactionCheck) -> bool | None:
        """Ask the streams of the group, in turn, until one knows. Return whether to commit; None if none knows."""
        asked_count = 0
        for stream in list(self._streams.get(check.group, ())):
            streams = self._streams.get(check.group, {})
            # Streams that can't be asked are not counted: otherwise those of a key without the right would hide others.
            if stream not in streams or not stream.may_ask(check):
                continue
            del streams[stream]
            streams[stream] = None
            decision = await _ask(stream, check)
            if decision is not None:
                return decision
            asked_count += 1
            if asked_count == ASKED_MAX:
                break
        return None


async def _ask(stream: ProducingStream, check: TransactionCheck) -> bool | None:
    answer: asyncio.Future[bool | None] = asyncio.get_running_loop().create_future()

    def done(decision: bool | None) -> None:
        if not answer.done():
            answer.set_result(decision)

    check.is_asked = True
    stream.ask(check, done)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            return await answer
    except TimeoutError:
        log.info("a check was not answered in time", transaction=check.transaction, group=check.group)
        return None
    finally:
        stream.drop(check.transaction)
