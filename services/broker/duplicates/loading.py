"""Reads the keys of all windows from the store after a start.

The queues of the topics with a window, and the queues in which their messages may wait, are read from the moment at which
the oldest window begins. Their records are read in the order of the log, so the tables become what they were before the
stop or the crash: recovery has dispatched every record of the log, and a record that did not survive does not count. The
sends to these topics wait meanwhile; all others do not.

A table holds a limited number of keys. If a topic has many more messages in its window, the reading begins later.

Concurrency: one task in the loop's thread, in slices of some ms.
"""

import asyncio
import heapq
from functools import partial
from typing import Final

from gantry.model.names import TRANS_OP_HALF_TOPIC
from gantry.model.record import RecordHead, decode_record
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import UNIT
from gantry.storeformat.opmessages import decode_op
from services.broker.coldreader import ColdReader
from services.broker.duplicates.freeing import FreedKeys
from services.broker.duplicates.keyed import EVENT_TOPICS, WAITING_TOPICS, KeyedMessage, keyed_message
from services.broker.duplicates.window import DuplicateWindow, DuplicateWindows
from services.broker.store.messagestore import MessageStore
from services.broker.turns import PAUSE_S

SLICE_COUNT: Final = 512
SLICE_BYTES: Final = 8 << 20
"""Limits of the records of one slice: about 3 ms of the loop's time, and an eighth of what one cold read may fetch."""
_UNITS_AT_ONCE: Final = 1_024
_MARGIN: Final = 2
"""At least this multiple of a table's limit is read: some records may not count."""
_SEARCH_STEP_MS: Final = 1_000
_OP_TOPIC: Final = TRANS_OP_HALF_TOPIC.encode()

log = logger("broker.duplicates")


class _Source:
    """The unread units of one queue: start and size of their records, the next one last."""

    __slots__ = ("end", "offset", "queue_id", "topic", "units")

    def __init__(self, topic: str, queue_id: int, offset: int, end: int) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.end = end
        self.units: list[tuple[int, int]] = []


class WindowLoader:
    """Fills the windows that exist at the start, once."""

    def __init__(self, windows: DuplicateWindows, store: MessageStore, cold: ColdReader, clock: Clock) -> None:
        self._windows = windows
        self._store = store
        self._cold = cold
        self._clock = clock
        self._freed = FreedKeys(windows)

    async def run(self) -> None:
        """Read the keys, and let the sends begin.

        Raises:
            ColdReadsBusyError, StoreReadError, OSError: The disk can't read; the caller tries again.
        """
        waiting = [window for window in self._windows.all() if not window.ready.is_set()]
        if not waiting:
            return
        began_ms = self._clock.monotonic_ms()
        for window in waiting:
            window.table.clear()  # An earlier attempt may have filled a part of it.
        self._freed = FreedKeys(self._windows)
        sources = await self._sources(waiting)
        read = await self._read(sources)
        for window in waiting:
            window.loaded()
        log.info(
            "duplicate windows are read",
            topics=len(waiting),
            messages=read,
            keys=sum(window.table.count for window in waiting),
            took_ms=self._clock.monotonic_ms() - began_ms,
        )

    async def _sources(self, waiting: list[DuplicateWindow]) -> list[_Source]:
        by_topic = {window.topic: window for window in waiting}
        queues: dict[str, list[int]] = {}
        for topic, queue_id in self._store.queues():
            if topic in by_topic or topic in WAITING_TOPICS or topic in EVENT_TOPICS:
                queues.setdefault(topic, []).append(queue_id)
        now_ms = self._clock.now_ms()
        longest_ms = max(window.table.window_ms for window in waiting)
        sources: list[_Source] = []
        for topic, queue_ids in queues.items():
            window = by_topic.get(topic)
            if window is None:
                sources += await self._from(topic, queue_ids, now_ms - longest_ms)
            else:
                sources += await self._newest(window, queue_ids, now_ms)
        return sources

    async def _from(self, topic: str, queue_ids: list[int], from_ms: int) -> list[_Source]:
        """Return the queues of a topic from a store time on."""
        sources = []
        for queue_id in queue_ids:
            find = partial(self._store.offset_by_time, topic, queue_id, from_ms)
            offset = await self._cold.run(self, find)
            sources.append(_Source(topic, queue_id, offset, self._store.max_offset(topic, queue_id)))
            await asyncio.sleep(0)
        return sources

    async def _newest(self, window: DuplicateWindow, queue_ids: list[int], now_ms: int) -> list[_Source]:
        """Return the queues of a topic from the moment on that its table can hold."""
        low_ms, high_ms = now_ms - window.table.window_ms, now_ms
        least = _MARGIN * window.table.keys_max
        sources = await self._from(window.topic, queue_ids, low_ms)
        while _count(sources) > _MARGIN * least and high_ms - low_ms > _SEARCH_STEP_MS:
            middle_ms = (low_ms + high_ms) // 2
            later = await self._from(window.topic, queue_ids, middle_ms)
            if _count(later) >= least:
                low_ms, sources = middle_ms, later
            else:
                high_ms = middle_ms
        return sources

    async def _read(self, sources: list[_Source]) -> int:
        """Read the records of all sources in the order of the log. Return their number."""
        heap: list[tuple[int, int]] = []
        for number, source in enumerate(sources):
            await self._refill(source)
            if source.units:
                heap.append((source.units[-1][0], number))
        heapq.heapify(heap)
        count = 0
        while heap:
            chunk: list[tuple[int, int]] = []
            size = 0
            while heap and len(chunk) < SLICE_COUNT and size < SLICE_BYTES:
                _, number = heap[0]
                source = sources[number]
                chunk.append(source.units.pop())
                size += chunk[-1][1]
                if not source.units:
                    await self._refill(source)
                if source.units:
                    heapq.heapreplace(heap, (source.units[-1][0], number))
                else:
                    heapq.heappop(heap)
            await self._add(chunk)
            count += len(chunk)
        return count

    async def _refill(self, source: _Source) -> None:
        while not source.units and source.offset < source.end:
            wanted = min(_UNITS_AT_ONCE, source.end - source.offset)
            find = partial(self._store.units, source.topic, source.queue_id, source.offset, wanted)
            low, _, data = await self._cold.run(self, find)
            if not data:
                if source.offset >= low:
                    return
                source.offset = low  # Retention has removed the beginning.
                continue
            source.offset += len(data) // UNIT.size
            source.units = [(at, size) for at, size, _ in UNIT.iter_unpack(data)]
            source.units.reverse()

    async def _add(self, chunk: list[tuple[int, int]]) -> None:
        heads = await self._cold.run(self, partial(self._store.heads, chunk))
        for head in heads:
            if head is None:
                continue
            keyed = keyed_message(head)
            if keyed is not None:
                self._add_key(head, keyed)
            elif head.topic == _OP_TOPIC:
                record = await self._cold.run(self, partial(self._store.record_at, head.physical_offset))
                if record is not None:
                    self._freed.ended(decode_op(decode_record(record, check_crc=False)))
            else:
                self._freed.passed(head)
        await asyncio.sleep(PAUSE_S)

    def _add_key(self, head: RecordHead, keyed: KeyedMessage) -> None:
        window = self._windows.find(keyed.topic)
        if window is None or window.ready.is_set():
            return
        if self._store.is_dead(keyed.topic.encode(), head.physical_offset, head.stored_at_ms):
            return
        digest, at_ms = window.digest(keyed.key), head.stored_at_ms
        known = window.table.find(digest, at_ms)
        if known is not None:
            # The broker took this message as new, so it had freed the key before.
            window.table.remove(digest, known.physical_offset, known.delivery_second)
        place = (head.physical_offset, keyed.queue_id, head.queue_offset, at_ms, keyed.delivery_second)
        window.table.add(digest, *place)
        window.table.sweep(at_ms)
        self._freed.counted(head, keyed)


def _count(sources: list[_Source]) -> int:
    return sum(source.end - source.offset for source in sources)
