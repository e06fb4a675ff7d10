"""Dispatch: from the CommitLog to ConsumeQueues and index, behind the confirm offset and never ahead of it.

Who appends a record remembers here what dispatch needs of it, so that nothing is read back. What is remembered is
bounded: of a backlog beyond it, and after a start, the log itself is parsed. Both ways end in the same bytes.

A round takes some records, puts their keys into the index, and writes each queue's new units in one piece; then
those who wait for messages are told. If a file can't be made the round is given back: the dispatched offset stays, the
log is parsed again from there, and writing the same units and keys twice changes nothing.

Records of a topic that was deleted meanwhile get no units: their queue is forgotten, and where the log is parsed the
notes of deletions say so.
"""

from collections import deque
from collections.abc import Callable

from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import UNIT, QueueCount
from services.broker.store.commitlog import CommitLog
from services.broker.store.consumequeue import ConsumeQueue
from services.broker.store.consumequeuestore import ConsumeQueueStore
from services.broker.store.deletedtopics import DeletedTopics
from services.broker.store.entry import Entry, EntryMaker, PlainEntry
from services.broker.store.errors import StoreFullError
from services.broker.store.indexservice import IndexService

OnArrival = Callable[[str, int, int, bytes], None]

ROUND_MAX = 512
"""Records of a round: about 3 ms."""
log = logger("broker.store.dispatch")


class Dispatcher:
    """Builds what is derived from the CommitLog.

    Attributes:
        offset: Everything before it is dispatched.
        stored_at_ms: Store time of the last record dispatched.
        failure: Why dispatch stands still, or None.
        lost_bytes: Bytes of the log that were gone over since they held no sound record.
        pending: What was appended and not yet dispatched, as plain tuples; gaps are allowed.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexService | None,
        entries: EntryMaker,
        deleted: DeletedTopics,
        *,
        on_arrival: OnArrival | None,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._on_arrival = on_arrival
        self._entries = entries
        self._deleted = deleted
        self.offset = 0
        self.stored_at_ms = 0
        self.failure: str | None = None
        self.lost_bytes = 0
        self.pending: deque[PlainEntry] = deque()
        self._arrivals: list[tuple[str, int, int, bytes]] = []

    def start_at(self, offset: int, stored_at_ms: int) -> None:
        """Say up to where recovery has dispatched."""
        self.offset = offset
        self.stored_at_ms = stored_at_ms
        self.pending.clear()

    def done(self, settled_offset: int) -> tuple[int, int, QueueCount | None]:
        """Return physical offset and store time up to which everything is dispatched, and what the queues hold.

        Args:
            settled_offset: The log's first offset if no queue has a file that goes; -1 if one may have.

        Returns:
            No count where a round was given back, since it may have written some of its units.
        """
        queues, count = self._queues, None
        if self.failure is None:
            count = QueueCount(self.offset, queues.units, queues.files, settled_offset, self._deleted.number)
        return self.offset, self.stored_at_ms, count

    def run(self, limit: int, rounds_max: int | None = None) -> int:
        """Dispatch what is before `limit`, the confirm offset; return the number of records.

        Args:
            limit: Where the confirmed part of the log ends.
            rounds_max: Stop after so many rounds; None for as many as it takes.
        """
        count = rounds = 0
        while self.offset < limit and rounds != rounds_max:
            rounds += 1
            start, stored_at_ms = self.offset, self.stored_at_ms
            try:
                count += self._round(limit)
            except (StoreFullError, OSError) as error:  # A file, or the folder for it.
                self.offset, self.stored_at_ms = start, stored_at_ms
                if self.failure is None:
                    log.warning("dispatch stands still", reason=str(error), offset=start)
                self.failure = str(error)
                break
            self.failure = None
        return count

    def _round(self, limit: int) -> int:
        pending = self.pending
        while pending and pending[0][0] < self.offset:
            pending.popleft()  # Dispatched from the log, after a round that was given back.
        touched: list[ConsumeQueue] = []
        self._arrivals = []
        try:
            if pending and pending[0][0] == self.offset:
                count = self._take_pending(limit, touched)
            else:
                count = self._take_log(min(limit, pending[0][0]) if pending else limit, touched)
            for queue in touched:
                self._write_units(queue)
        finally:
            for queue in touched:
                queue.pending.clear()
            if self._index is not None:
                self._index.write_headers()
        if self._on_arrival is not None:
            for arrival in self._arrivals:
                self._on_arrival(*arrival)
        return count

    def _take_pending(self, limit: int, touched: list[ConsumeQueue]) -> int:
        pending, pack = self.pending, UNIT.pack
        offset = self.offset
        taken: list[PlainEntry] = []
        while pending and len(taken) < ROUND_MAX:
            entry = pending[0]
            at, size, queue, queue_offset, tags_code, _, _, _, stored_at_ms = entry
            if at != offset or at + size > limit:
                break
            pending.popleft()
            taken.append(entry)
            offset = at + size
            if queue is not None:
                units = queue.pending
                if not units:
                    touched.append(queue)
                    queue.pending_from = queue_offset
                units.append(pack(at, size, tags_code))
        assert taken, f"the confirm offset {limit} lies inside the record at {offset}"
        if self._index is not None:
            self._index.put_all(taken)
        self.offset = offset
        self.stored_at_ms = stored_at_ms
        return len(taken)

    def _take_log(self, stop: int, touched: list[ConsumeQueue]) -> int:
        count = 0
        for at, head, _ in self._log.scan(self._count_lost).records(self.offset, stop):
            is_dead = self._deleted.covers(head.topic, at, head.stored_at_ms)
            entry = None if is_dead else self._entries.from_record(head)
            if entry is not None:
                if self._index is not None:
                    self._index.put(entry.topic, entry.unique_key, entry.keys, at, entry.stored_at_ms)
                if entry.queue is not None:
                    self._add_unit(entry, touched)
            self.stored_at_ms = head.stored_at_ms
            count += 1
            if count >= ROUND_MAX:
                self.offset = at + head.size_bytes
                return count
        self.offset = stop
        return count

    def _add_unit(self, entry: Entry, touched: list[ConsumeQueue]) -> None:
        queue = entry.queue
        assert queue is not None
        if queue.pending and queue.pending_from + len(queue.pending) != entry.queue_offset:
            self._write_units(queue)  # Something in between was lost.
            queue.pending.clear()
        if not queue.pending:
            if queue not in touched:
                touched.append(queue)
            queue.pending_from = entry.queue_offset
        queue.pending.append(UNIT.pack(entry.physical_offset, entry.size_bytes, entry.tags_code))

    def _write_units(self, queue: ConsumeQueue) -> None:
        if queue.pending and self._queues.holds(queue):
            units = b"".join(queue.pending)
            self._queues.append(queue, queue.pending_from, units)
            self._arrivals.append((queue.topic, queue.queue_id, queue.pending_from + len(queue.pending), units))

    def _count_lost(self, start: int, end: int) -> None:
        self.lost_bytes += end - start
        log.error("damaged records were gone over", start=start, end=end)
