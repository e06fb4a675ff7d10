"""Searches of a topic: messages by the time of storing, by tags or SQL92, and by what a group has not consumed.

A search reads the queues of the topic at the same time and merges their messages by the time of storing, the oldest
first. A page ends if it is full, or if the search has looked at enough; its cursor has the position in each queue. A queue
that can't be read is named with the reason, because its messages are unknown.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from gantry.client.errors import ClientError
from gantry.model.errors import InvalidValueError
from gantry.model.message import MessageQueue
from gantry.remoting.bodies.queuestates import QueueState
from gantry.runtime.clock import Clock
from services.gateway.errors import BROKER_ERROR, ProblemError, invalid, problem_of
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.schemas.filters import Filter, subscription_of
from services.gateway.usecases.reading.fairgate import FairGate
from services.gateway.usecases.reading.lanes import Lane, LaneHeap, Positions, decode_positions, encode_positions
from services.gateway.usecases.reading.messages import ReadMessage
from services.gateway.usecases.reading.read import Caller, QueueReader
from services.gateway.usecases.reading.results import MissingQueue, SearchPage

QUEUES_MAX: Final = 512
"""Limit of a topic's queues in a search: the cursor has the position in each of them."""
SCANNED_MAX: Final = 500_000
EFFORT_MS: Final = 2_000
PAGE_BYTES_MAX: Final = 4 * 1024 * 1024
_LANES_BYTES_MAX: Final = 16 * 1024 * 1024
_READ_MAX: Final = 64
_READERS: Final = 16
# Each search may hold lanes, a page and a few reads in memory: 30 MiB, or more with large compressed messages.
SEARCHES_AT_ONCE: Final = 4
_SERVER_ERROR: Final = 500
_DIGEST_LENGTH: Final = 16


@dataclass(frozen=True, slots=True)
class Search:
    """The messages that a search looks for.

    Attributes:
        topic: The topic.
        wanted: The tags or the SQL92 expression.
        from_ms: The first store time; None for the first message.
        to_ms: The first store time that is too late; None for no end.
        group: The group that must not have consumed the messages; None for any message.
    """

    topic: str
    wanted: Filter = "*"
    from_ms: int | None = None
    to_ms: int | None = None
    group: str | None = None

    @property
    def listing(self) -> str:
        """The name of the search in its cursors: a cursor of another search is rejected."""
        return f"messages.{sha256(repr(self).encode()).hexdigest()[:_DIGEST_LENGTH]}"

    def accepts(self, message: ReadMessage) -> bool:
        """Return whether a message was stored within the time of the search."""
        at_ms = message.record.stored_at_ms
        return (self.from_ms is None or at_ms >= self.from_ms) and (self.to_ms is None or at_ms < self.to_ms)


class TopicSearch:
    """Searches topics. The caller checks the rights.

    Concurrency: the event loop's thread; a few tasks for each search.
    """

    def __init__(self, reader: QueueReader, *, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._gate = FairGate(SEARCHES_AT_ONCE)

    @asynccontextmanager
    async def page(
        self, search: Search, cursor: str | None, *, limit: int, caller: Caller
    ) -> AsyncIterator[SearchPage]:
        """Search a page of at most `limit` messages. The caller writes its answer within the block.

        Raises:
            InvalidValueError: The cursor is not one of this search, or the filter is not valid.
            ProblemError: 400: the topic has too many queues; 404: the topic does not exist; 503: it can't be read.
            ClientError: A broker rejects the filter.
        """
        subscription_of(search.wanted, search.topic, self._clock.now_ms(), field="filter")
        positions = {} if cursor is None else _positions_of(cursor, search)
        async with self._gate.enter(caller.key_id):
            caller.require_presence()
            caller.require_room()
            yield await _PageSearch(self._reader, self._clock, search, positions, limit=limit, caller=caller).run()


class _PageSearch:
    """The work for one page."""

    def __init__(
        self, reader: QueueReader, clock: Clock, search: Search, positions: Positions, *, limit: int, caller: Caller
    ) -> None:
        self._reader = reader
        self._search = search
        self._positions = positions
        self._limit = limit
        self._caller = caller
        self._clock = clock
        self._deadline_ms = clock.monotonic_ms() + EFFORT_MS
        self._page = SearchPage()
        self._lanes: list[Lane] = []
        self._lanes_bytes = 0
        self._lanes_max = 1

    async def run(self) -> SearchPage:
        """Search the page."""
        queues = await self._reader.states(self._search.topic, self._search.group)
        if len(queues) > QUEUES_MAX:
            raise invalid(
                "topic",
                self._search.topic,
                f"has {len(queues)} queues, and a search reads at most {QUEUES_MAX}; its queues can be read one by one",
            )
        self._lanes_max = max(1, len(queues))
        waiting = iter(queues)
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(_READERS, len(queues))):
                    tasks.create_task(self._open_lanes(waiting))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        # A lane that is still unread may have the oldest message, so nothing is taken before it is read.
        if not any(lane.head_ms is None and lane.needs_read() for lane in self._lanes):
            await self._take_messages()
        self._page.missing.sort(key=lambda one: (one.queue.broker_name, one.queue.queue_id))
        if any(not lane.is_finished for lane in self._lanes):
            ended = {(lane.queue.broker_name, lane.queue.queue_id): lane.position for lane in self._lanes}
            # A queue that was missing this time keeps its position.
            text = encode_positions({**self._positions, **ended})
            self._page.next_cursor = encode_cursor(self._search.listing, text)
        return self._page

    async def _open_lanes(self, waiting: Iterator[tuple[MessageQueue, QueueState | None]]) -> None:
        """Open lanes until no queue is left, and read each until its first message is known."""
        for queue, state in waiting:
            reason = _why_unknown(state, self._search.group)
            if reason is not None:
                self._page.missing.append(MissingQueue(queue, reason))
                continue
            assert state is not None, "a queue without a state has a reason"
            try:
                lane = await self._open(queue, state)
                if lane is None:
                    continue
                await self._read(lane, is_first=True)
            except (ProblemError, ClientError) as error:
                self._note_failure(queue, error)
                continue
            self._lanes.append(lane)
            self._lanes_bytes += lane.size_bytes
            if self._lanes_bytes > _LANES_BYTES_MAX:
                self._lanes_bytes -= lane.size_bytes
                lane.drop()

    async def _open(self, queue: MessageQueue, state: QueueState) -> Lane | None:
        """Return the lane of a queue; None if the search has nothing to read there."""
        position = self._positions.get((queue.broker_name, queue.queue_id))
        search, start, end = self._search, max(state.min_offset, position or 0), state.max_offset
        if search.group is not None:
            start = max(start, state.committed_offset or 0)
        if start < end and search.from_ms is not None and position is None:
            start = max(start, await self._reader.find_offset(queue, search.from_ms, "lower"))
        if start < end and search.to_ms is not None:
            end = min(end, await self._reader.find_offset(queue, search.to_ms, "lower"))
        if start >= end and position is None:
            return None
        return Lane(queue, start, max(start, end))

    async def _read(self, lane: Lane, *, is_first: bool = False) -> None:
        """Read a lane until it has a message, its queue ends, or the search has looked at enough.

        The first read of a lane is always done, so that each page makes progress.
        """
        while lane.needs_read() and (is_first or not self._is_enough()):
            is_first = False
            left = self._limit - len(self._page.messages)
            count = min(_READ_MAX, max(1, -(-left // self._lanes_max)), lane.end - lane.next_offset)
            async with self._reader.read(
                lane.queue, lane.next_offset, limit=count, wait_ms=0, wanted=self._search.wanted, caller=self._caller
            ) as read:
                self._page.scanned += max(0, min(read.next_offset, lane.end) - lane.next_offset)
                self._page.damaged += read.damaged
                found = [
                    message
                    for message in read.messages
                    if message.record.queue_offset < lane.end and self._search.accepts(message)
                ]
                if read.next_offset <= lane.next_offset:
                    detail = f"the broker has nothing at offset {lane.next_offset}, though the queue ends at {lane.end}"
                    raise ProblemError(BROKER_ERROR, detail)
                lane.add(found, min(read.next_offset, lane.end))

    async def _take_messages(self) -> None:
        """Take messages in the order of their times until the page is full or the search has looked at enough."""
        heap, messages, size_bytes = LaneHeap(self._lanes), self._page.messages, 0
        while (lane := heap.first()) is not None and len(messages) < self._limit and size_bytes < PAGE_BYTES_MAX:
            if lane.needs_read():
                try:
                    # A lane that has dropped its messages is read whatever the search has looked at.
                    await self._read(lane, is_first=lane.head_ms is not None)
                except (ProblemError, ClientError) as error:
                    self._note_failure(lane.queue, error)
                    return
            else:
                messages.append(lane.take())
                size_bytes += len(messages[-1].body)
                if lane.needs_read():
                    continue
            if lane.needs_read():
                return
            heap.update_first()

    def _is_enough(self) -> bool:
        return self._page.scanned >= SCANNED_MAX or self._clock.monotonic_ms() >= self._deadline_ms

    def _note_failure(self, queue: MessageQueue, error: ProblemError | ClientError) -> None:
        """Note a queue that can't be read now. Raises the error if it is one of the search itself."""
        problem = problem_of(error)
        if problem.status < _SERVER_ERROR:
            raise error
        self._page.missing.append(MissingQueue(queue, problem.detail))


def _why_unknown(state: QueueState | None, group: str | None) -> str | None:
    """Return the reason for which the messages of a queue are unknown; None if they can be read."""
    if state is None:
        return "its broker does not answer"
    if group is not None and state.committed_offset is None and state.max_offset > state.min_offset:
        return f"group {group} has never committed an offset here, so it is unknown what it has consumed"
    if not state.readable and state.max_offset > state.min_offset:
        return "the queue may not be read"
    return None


def _positions_of(cursor: str, search: Search) -> Positions:
    try:
        return decode_positions(decode_cursor(cursor, search.listing))
    except InvalidValueError:
        raise InvalidValueError("cursor", cursor, "is not a cursor of this search; repeat all its parameters") from None
