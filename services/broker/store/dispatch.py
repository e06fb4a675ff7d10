"""Dispatch: builds ConsumeQueues and index from the CommitLog, up to the confirm offset and never ahead of it.

The writer of a record adds the data that dispatch needs to a list in memory, so dispatch reads nothing back. The list
is limited. Dispatch parses the log for a backlog that exceeds the list, and after a start. Both ways produce the same
bytes.

A round takes some records, adds their keys to the index, and writes each queue's new units in one piece. Then it
notifies the consumers that wait for messages. If a file can't be created, the round is undone: the dispatched offset
stays, and dispatch parses the log again from there. To write the same units and keys twice changes nothing.

If a record's topic has been deleted meanwhile, the record gets no unit. Its queue is no longer in the table. When
dispatch parses the log, the notes of deletions tell it which records to skip.
"""

from collections import deque
from collections.abc import Callable

from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import UNIT, QueueCount
from services.broker.store.dispatchrequest import DispatchRequest, DispatchRequestMaker, PlainDispatchRequest
from services.broker.store.errors import StoreFullError
from services.broker.store.folder.deletedtopics import DeletedTopics
from services.broker.store.index.indexservice import IndexService
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.queues.consumequeue import ConsumeQueue
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore

OnArrival = Callable[[str, int, int, bytes], None]

ROUND_MAX = 512
"""Limit for the records of a round: about 3 ms."""
log = logger("broker.store.dispatch")


class Dispatcher:
    """Builds ConsumeQueues and index from the CommitLog.

    Attributes:
        offset: The dispatched offset: every record before it is dispatched.
        stored_at_ms: The store time of the last dispatched record.
        failure: The reason why dispatch is stopped, or None.
        lost_bytes: The number of bytes of the log that dispatch skipped because they held no valid record.
        pending: The records that are appended and not yet dispatched, as plain tuples; gaps are allowed.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexService | None,
        request_maker: DispatchRequestMaker,
        deleted: DeletedTopics,
        *,
        on_arrival: OnArrival | None,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._on_arrival = on_arrival
        self._maker = request_maker
        self._deleted = deleted
        self.offset = 0
        self.stored_at_ms = 0
        self.failure: str | None = None
        self.lost_bytes = 0
        self.pending: deque[PlainDispatchRequest] = deque()
        self._arrivals: list[tuple[str, int, int, bytes]] = []

    def start_at(self, offset: int, stored_at_ms: int) -> None:
        """Set the offset up to which recovery has dispatched."""
        self.offset = offset
        self.stored_at_ms = stored_at_ms
        self.pending.clear()

    def done(self, settled_offset: int) -> tuple[int, int, QueueCount | None]:
        """Return the dispatched offset, its store time, and the size of the queues.

        Args:
            settled_offset: The log's first offset if no queue has a file to be removed; -1 if a queue may have one.

        Returns:
            The count of the queues is None if a round was undone, because the round may have written some of its units.
        """
        queues, count = self._queues, None
        if self.failure is None:
            count = QueueCount(self.offset, queues.units, queues.files, settled_offset, self._deleted.number)
        return self.offset, self.stored_at_ms, count

    def run(self, limit: int, rounds_max: int | None = None) -> int:
        """Dispatch the records before `limit`; return the number of records.

        Args:
            limit: The confirm offset.
            rounds_max: The limit for rounds; None for no limit.
        """
        count = rounds = 0
        while self.offset < limit and rounds != rounds_max:
            rounds += 1
            start, stored_at_ms = self.offset, self.stored_at_ms
            try:
                count += self._round(limit)
            except (StoreFullError, OSError) as error:  # For a file, or for its folder.
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
            pending.popleft()  # The record was dispatched from the log, after a round that was undone.
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
        taken: list[PlainDispatchRequest] = []
        while pending and len(taken) < ROUND_MAX:
            request = pending[0]
            at, size, queue, queue_offset, tags_code, _, _, _, stored_at_ms = request
            if at != offset or at + size > limit:
                break
            pending.popleft()
            taken.append(request)
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
            request = None if is_dead else self._maker.from_record(head)
            if request is not None:
                if self._index is not None:
                    self._index.put(request.topic, request.unique_key, request.keys, at, request.stored_at_ms)
                if request.queue is not None:
                    self._add_unit(request, touched)
            self.stored_at_ms = head.stored_at_ms
            count += 1
            if count >= ROUND_MAX:
                self.offset = at + head.size_bytes
                return count
        self.offset = stop
        return count

    def _add_unit(self, request: DispatchRequest, touched: list[ConsumeQueue]) -> None:
        queue = request.queue
        assert queue is not None
        if queue.pending and queue.pending_from + len(queue.pending) != request.queue_offset:
            self._write_units(queue)  # Records in between were lost.
            queue.pending.clear()
        if not queue.pending:
            if queue not in touched:
                touched.append(queue)
            queue.pending_from = request.queue_offset
        queue.pending.append(UNIT.pack(request.physical_offset, request.size_bytes, request.tags_code))

    def _write_units(self, queue: ConsumeQueue) -> None:
        if queue.pending and self._queues.holds(queue):
            units = b"".join(queue.pending)
            self._queues.append(queue, queue.pending_from, units)
            self._arrivals.append((queue.topic, queue.queue_id, queue.pending_from + len(queue.pending), units))

    def _count_lost(self, start: int, end: int) -> None:
        self.lost_bytes += end - start
        log.error("skipped damaged records", start=start, end=end)
