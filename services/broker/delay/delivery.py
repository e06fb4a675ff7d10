"""Delivers the waiting messages of the delay levels to their topics.

Theory of operation. A timer runs `run` every 100 ms. Each level has a position in its queue of the schedule topic: the
first unit that is not delivered. If this unit is due, the level reads the due units and their records, and appends each
message to its topic. A slice reads at most SLICE_COUNT records and SLICE_BYTES, which takes about 2 ms of the loop's
time. Then the loop is free for all other work, and the next level has its turn. So many due messages delay sends only
a little, and a level with many messages does not delay the other levels.

    queue of a level   delivered, durable │ delivered, in flight │ due │ waits
                       progress ──────────▲            position ─▲

Durability: a delivered message is in flight until its record is on the disk and may be read. Only then the progress
moves, which delayOffset.json keeps. A crash may deliver the messages after the progress twice, and loses none.

A message is discarded, counted and logged if its topic was deleted (perhaps made again), if its record is damaged, or if
the store can't take it any more. It never stops the messages behind it. If the store takes no messages at all, the level tries again
after 100 ms.

Concurrency: the loop's thread. `run` is called by one timer.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from gantry.model.delaylevel import LEVELS_COUNT_MAX
from gantry.model.names import SCHEDULE_TOPIC, TRANS_HALF_TOPIC
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import UNIT_SIZE_BYTES
from services.broker.coldreader import ColdReader, ColdReadsBusyError
from services.broker.delay.levels import (
    AHEAD_MS_MAX,
    DueUnits,
    WaitingMessage,
    due_units,
    read_waiting,
)
from services.broker.durabilitywaiters import DurabilityWaiters
from services.broker.registry.delayoffsets import DelayOffsetTable
from services.broker.registry.topics import TopicTable
from services.broker.stats import BrokerStats
from services.broker.store.errors import StoreReadError
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus

INTERVAL_MS: Final = 100
SLICE_COUNT: Final = 64
SLICE_BYTES: Final = 256 * 1024
IN_FLIGHT_MAX: Final = 4096
"""Largest number of delivered messages of a level whose records are not on the disk yet."""
RETRY_AFTER_READ_MS: Final = 10_000
"""Pause of a level whose queue or records can't be read, as in RocketMQ."""
LEVELS_MIN: Final = 18
"""RocketMQ's number of levels. Their queues may hold messages even if `messageDelayLevel` has fewer levels now."""
# The shortest sleep that the event loop can make.
_PAUSE_S = 0.001
_UNKNOWN_MS = -1
_REFUSED_FOR_GOOD = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)

log = logger("broker.delay")


class _Level:
    """The position of one level."""

    __slots__ = ("due_at_ms", "in_flight", "number", "position", "rests_until_ms")

    def __init__(self, number: int, position: int) -> None:
        self.number = number
        self.position = position
        # Due time of the message at the position; _UNKNOWN_MS if it has to be read.
        self.due_at_ms = _UNKNOWN_MS
        # Physical end of each delivered record, and the position after its message.
        self.in_flight: deque[tuple[int, int]] = deque()
        self.rests_until_ms = 0

    @property
    def queue_id(self) -> int:
        return self.number - 1


class DelayedDelivery:
    """Delivers due messages.

    Args:
        store: The store.
        cold: Reader of what is not in memory.
        waiters: They write, flush and dispatch the appended records.
        topics: The topics that exist.
        offsets: The progress of the levels.
        stats: Statistics of the topics that get the messages.
        clock: The clock.
        delays_ms: Function that returns the current lengths of the levels.

    Attributes:
        delivered_count: Number of delivered messages.
        discarded_count: Number of messages that could not be delivered and were given up.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        cold: ColdReader,
        waiters: DurabilityWaiters,
        topics: TopicTable,
        offsets: DelayOffsetTable,
        stats: BrokerStats,
        clock: Clock,
        delays_ms: Callable[[], tuple[int, ...]],
    ) -> None:
        self._store = store
        self._cold = cold
        self._waiters = waiters
        self._topics = topics
        self._offsets = offsets
        self._stats = stats
        self._clock = clock
        self._delays_ms = delays_ms
        self.delivered_count = 0
        self.discarded_count = 0
        self._discarded: Counter[str] = Counter()
        used = [queue_id + 1 for topic, queue_id in store.queues() if topic == SCHEDULE_TOPIC]
        count = max([LEVELS_MIN, *(number for number in used if number <= LEVELS_COUNT_MAX)])
        self._levels = [self._open(number) for number in range(1, count + 1)]

    def waiting_count(self) -> int:
        """Return the number of messages that wait for their time."""
        return sum(self._end(level) - level.position for level in self._levels)

    def late_ms(self) -> int:
        """Return how long the message that waits longest is overdue, in ms; 0 if none is."""
        due_at_ms = [level.due_at_ms for level in self._levels if level.due_at_ms != _UNKNOWN_MS]
        return max(0, self._clock.now_ms() - min(due_at_ms)) if due_at_ms else 0

    async def run(self) -> None:
        """Deliver everything that is due, in slices. Return when nothing more is due."""
        # Most levels are empty most of the time, and this runs many times a second.
        busy = [level for level in self._levels_of_now() if level.in_flight or level.position < self._end(level)]
        while busy:
            busy = [level for level in busy if await self._deliver(level)]

    def _levels_of_now(self) -> list[_Level]:
        """Return all levels, also those that a change of the setting or a store of another broker has added."""
        while len(self._levels) < len(self._delays_ms()):
            self._levels.append(self._open(len(self._levels) + 1))
        return self._levels

    def _open(self, number: int) -> _Level:
        """Return a level at its progress. An offset outside its queue is corrected, as in RocketMQ.

        This happens before the first message is stored: otherwise new messages could take the places before an offset
        that lies beyond the queue, and would be skipped.
        """
        level = _Level(number, self._offsets.offsets.get(number, 0))
        self._correct(level, self._store.min_offset(SCHEDULE_TOPIC, level.queue_id), self._end(level))
        return level

    def _correct(self, level: _Level, low: int, high: int) -> None:
        position = min(max(level.position, low), high)
        if position == level.position:
            return
        log.warning(
            "the progress of a delay level lay outside its queue and was corrected",
            delay_level=level.number,
            offset=level.position,
            corrected=position,
        )
        level.position, level.due_at_ms = position, _UNKNOWN_MS
        if not level.in_flight:
            self._offsets.correct(level.number, position)

    def _end(self, level: _Level) -> int:
        return self._store.max_offset(SCHEDULE_TOPIC, level.queue_id)

    async def _deliver(self, level: _Level) -> bool:
        """Deliver one slice of a level. Return whether more may be due now."""
        self._confirm(level)
        now_ms = self._clock.now_ms()
        if level.due_at_ms > now_ms or len(level.in_flight) >= IN_FLIGHT_MAX:
            return False
        if level.position >= self._end(level) or self._clock.monotonic_ms() < level.rests_until_ms:
            return False
        try:
            due, records = await self._cold.run(self, lambda: self._read(level, now_ms))
        except (ColdReadsBusyError, StoreReadError, OSError) as error:
            level.rests_until_ms = self._clock.monotonic_ms() + RETRY_AFTER_READ_MS
            log.warning("a delay level can't be read, and rests", delay_level=level.number, reason=str(error))
            return False
        count = self._append_all(level, due, records)
        self._report_discarded(level)
        level.due_at_ms = _next_due(due, count)
        if count:
            await asyncio.sleep(_PAUSE_S)
        # A slice that ended early was refused by the store; the next run tries again.
        return count > 0 and count == len(records)

    def _confirm(self, level: _Level) -> None:
        """Move the progress over the messages whose delivered records are safe.

        With ASYNC_FLUSH, a record may be read before it is on the disk. The progress waits for the disk all the same,
        because the waiting message is on the disk, and must not be lost in a power failure.
        """
        in_flight = level.in_flight
        safe_offset = min(self._store.flushed_offset, self._store.confirm_offset)
        now_ms = self._clock.now_ms()
        while in_flight and in_flight[0][0] <= safe_offset:
            self._offsets.advance(level.number, in_flight.popleft()[1], now_ms)
        if len(in_flight) >= IN_FLIGHT_MAX:
            self._store.request_flush()

    def _read(self, level: _Level, now_ms: int) -> tuple[DueUnits, list[bytes | None]]:
        """Read the due units at a level's position, and as many of their records as a slice takes."""
        low, high, data = self._store.units(SCHEDULE_TOPIC, level.queue_id, level.position, SLICE_COUNT)
        if not data:
            self._correct(level, low, high)
            return DueUnits([], [], None), []
        assert len(data) % UNIT_SIZE_BYTES == 0, f"{len(data)} bytes are no units"
        latest_ms = now_ms + max(AHEAD_MS_MAX, *self._delays_ms())
        due = due_units(data, now_ms, latest_ms)
        return due, self._store.records(due.physical_offsets, SLICE_BYTES)

    def _append_all(self, level: _Level, due: DueUnits, records: list[bytes | None]) -> int:
        """Append the messages of a slice to their topics. Return how many units are done."""
        for index, record in enumerate(records):
            physical_end = self._append(level, record)
            if physical_end is None:
                return index
            level.position += 1
            level.in_flight.append((physical_end, level.position))
        return len(records)

    def _append(self, level: _Level, record: bytes | None) -> int | None:
        """Append one message. Return the physical end after which it is done; None if the store takes nothing now."""
        message = read_waiting(record, level.queue_id, level.position)
        if message is None:
            # A unit without a message stands for one that was lost to damage, which recovery has reported.
            return self._discard(level, "the record is damaged or removed")
        config = None if self._topics.is_closed(message.topic) else self._topics.find(message.topic)
        if config is None or message.topic == TRANS_HALF_TOPIC:
            return self._discard(level, f"topic {message.topic!r} does not exist")
        head = message.head
        if self._store.is_dead(message.topic.encode(), head.physical_offset, head.stored_at_ms):
            return self._discard(level, f"topic {message.topic!r} was deleted and made again")
        queue_id = message.queue_id
        if queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            # The topic has fewer queues than at the time of the send. No consumer reads the others.
            queue_id %= max(1, config.write_queue_nums)
        status, at, _, _, end, reason = self._put(message, queue_id)
        if status in _REFUSED_FOR_GOOD:
            return self._discard(level, reason or status.value)
        if status is not PutStatus.OK:
            return None
        self._waiters.appended()
        flow = self._stats.put_flow(message.topic, self._clock.now_ms())
        flow.messages += 1
        flow.calls += 1
        flow.size_bytes += end - at
        self.delivered_count += 1
        return end

    def _put(self, message: WaitingMessage, queue_id: int) -> tuple[PutStatus, int, int, int, int, str]:
        head = message.head
        return self._store.put(
            message.topic,
            queue_id,
            message.body,
            head.properties,
            born_at_ms=head.born_at_ms,
            born_host=head.born_host,
            flag=head.flag,
            sys_flag=head.sys_flag,
            reconsume_times=head.reconsume_times,
        )

    def _discard(self, level: _Level, reason: str) -> int:
        self.discarded_count += 1
        self._discarded[reason] += 1
        # It is done together with the messages before it.
        return level.in_flight[-1][0] if level.in_flight else 0

    def _report_discarded(self, level: _Level) -> None:
        for reason, count in self._discarded.items():
            log.warning(
                "delayed messages are discarded",
                delay_level=level.number,
                before=level.position,
                count=count,
                reason=reason,
            )
        self._discarded.clear()


def _next_due(due: DueUnits, count: int) -> int:
    """Return the due time of the unit after the first `count` ones, as far as it is known."""
    if count < len(due.due_at_ms):
        return due.due_at_ms[count]
    return _UNKNOWN_MS if due.next_due_at_ms is None else due.next_due_at_ms
