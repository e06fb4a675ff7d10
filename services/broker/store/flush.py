"""Flushing: the group commit of the CommitLog, and the slower rhythm of everything that is derived from it.

Group commit: `request` wakes the worker, which syncs what was written by then and tells how far that reaches. All
puts of one turn of the event loop, and all that come while a sync runs, share the next one.

When a sync fails nobody knows what is on the disk, and Linux may report the error only once: trying again could
"succeed" over lost pages. So the bytes are never reported as flushed, the store takes no more writes, and only a new
start, which reads what the disk has (unproven.py), makes it writable again.

Derived files are synced every so often with a few pages' patience, and now and then thoroughly: then folders too,
and the checkpoint is written behind them.
"""

from collections.abc import Callable
from concurrent.futures import Future

from gantry.runtime.errors import os_reason
from gantry.runtime.failpoints import Failpoint, hit
from gantry.runtime.telemetry import logger
from gantry.runtime.workers import Worker
from gantry.storeformat.layout import Checkpoint, QueueCount
from services.broker.store.checkpoint import StoreCheckpoint
from services.broker.store.commitlog import CommitLog
from services.broker.store.derivedsync import DerivedSync
from services.broker.store.indexservice import IndexService
from services.broker.store.settings import StoreSettings

PAGE_BYTES = 4096

log = logger("broker.store.flush")


class GroupCommit:
    """Syncs the CommitLog.

    Args:
        commit_log: The log.
        settings: Mode and rhythm.
        worker: Runs the syncs.
        on_flushed: Told how far the log is on the disk, in the worker.
        still_ours: Asked after each sync; once it says no, `fail` has been called.

    Concurrency: `request` and `tick` are called by the store's thread, `_round` runs in the worker, `fail` in either.

    Attributes:
        failure: Why nothing will ever be reported as flushed again, or None.
        on_failed: Told once why.
        stored_at_ms: Store time of the last record on the disk.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        settings: StoreSettings,
        worker: Worker,
        *,
        on_flushed: Callable[[int], None] | None,
        still_ours: Callable[[], bool],
    ) -> None:
        self._log = commit_log
        self._worker = worker
        self._still_ours = still_ours
        self._is_sync = settings.is_sync_flush
        self._interval_ms = settings.flush_interval_commit_log_ms
        self._pages_min = settings.flush_commit_log_least_pages
        self._thorough_ms = settings.flush_commit_log_thorough_interval_ms
        self._on_flushed = on_flushed
        self.on_failed: Callable[[str], None] = lambda reason: None
        self._is_scheduled = False
        self._future: Future[None] | None = None
        self._ticked_at_ms = 0
        self._thorough_at_ms = 0
        self.failure: str | None = None
        self.stored_at_ms = commit_log.stored_at_ms

    def fail(self, reason: str) -> None:
        """Report nothing any more."""
        if self.failure is None:
            self.failure = reason
            log.critical("nothing is stored any more", reason=reason, flushed_offset=self._log.flushed_offset)
            self.on_failed(reason)

    def request(self) -> None:
        """Have everything written so far synced; returns at once."""
        if self._is_scheduled or self.failure is not None or self._log.flushed_offset >= self._log.wrote_offset:
            return
        if self._future is not None and self._future.done():
            self._future.result()  # What the round raised is our bug or the broker's, and must not go unseen.
        self._is_scheduled = True
        self._future = self._worker.submit(self._round)

    def tick(self, monotonic_ms: int) -> None:
        """Keep ASYNC_FLUSH's rhythm; with SYNC_FLUSH, see to it that nothing stays unflushed unasked."""
        is_due = self._log.is_flush_due
        if not is_due and monotonic_ms - self._ticked_at_ms < self._interval_ms:
            return
        self._ticked_at_ms = monotonic_ms
        pages = self._log.wrote_offset // PAGE_BYTES - self._log.flushed_offset // PAGE_BYTES
        is_thorough = monotonic_ms - self._thorough_at_ms >= self._thorough_ms
        if is_due or self._is_sync or is_thorough or pages >= self._pages_min:
            self.request()
        if is_thorough:
            self._thorough_at_ms = monotonic_ms

    def flush_now(self) -> None:
        """Sync everything and wait for it; for start and stop."""
        if self.failure is None:
            self._worker.submit(self._round).result()

    def _round(self) -> None:
        # Cleared first: a request that comes from here on may be about bytes this round does not see.
        self._is_scheduled = False
        log_ = self._log
        stored_at_ms = log_.stored_at_ms
        target = log_.wrote_offset
        if target <= log_.flushed_offset or self.failure is not None:
            return
        hit(Failpoint.STORE_BEFORE_SYNC)
        try:
            for file in log_.unflushed_files():
                file.sync()
        except OSError as error:
            self.fail(f"the CommitLog can't be flushed: {os_reason(error)}")
            return
        hit(Failpoint.STORE_AFTER_SYNC)
        if not self._still_ours():
            return  # The synced file is not at its path any more, or another broker writes to it, too.
        log_.flushed_offset = target
        self.stored_at_ms = stored_at_ms
        if self._on_flushed is not None:
            self._on_flushed(target)


class DerivedFlush:
    """Syncs ConsumeQueues and index files, and writes the checkpoint behind them.

    Args:
        dispatched: Returns physical offset and store time up to which everything is dispatched, and how much the
            queues hold then; None if that can't be said.
        on_failed: Told once why nothing derived will be flushed any more, in the store's thread.

    Concurrency: the store's thread, with one job at a time in the worker.
    """

    def __init__(
        self,
        sync: DerivedSync,
        settings: StoreSettings,
        worker: Worker,
        *,
        commit_log: CommitLog,
        group_commit: GroupCommit,
        index: IndexService,
        checkpoint: StoreCheckpoint,
        dispatched: Callable[[], tuple[int, int, QueueCount | None]],
        on_failed: Callable[[str], None],
    ) -> None:
        self._sync = sync
        self._worker = worker
        self._interval_ms = settings.flush_interval_consume_queue_ms
        self._thorough_ms = settings.flush_consume_queue_thorough_interval_ms
        self._log = commit_log
        self._group_commit = group_commit
        self._index = index
        self._checkpoint = checkpoint
        self._dispatched = dispatched
        self._counted: QueueCount | None = None
        self._on_failed = on_failed
        self._future: Future[None] | None = None
        self._ticked_at_ms = 0
        self._thorough_at_ms = 0
        self.failure: str | None = None

    @property
    def durable_offset(self) -> int:
        """Return up to where everything derived from the log is on the disk too."""
        return self._checkpoint.value.confirm_physical_offset

    def tick(self, monotonic_ms: int) -> None:
        """Start a flush if one is due and none runs."""
        self._collect(wait=False)
        if self._future is not None or self.failure is not None:
            return
        if monotonic_ms - self._thorough_at_ms >= self._thorough_ms:
            self._thorough_at_ms = self._ticked_at_ms = monotonic_ms
            self._future = self._worker.submit(self._thorough())
        elif monotonic_ms - self._ticked_at_ms >= self._interval_ms:
            self._ticked_at_ms = monotonic_ms
            job = self._sync.ripe_job()
            if job is not None:
                self._future = self._worker.submit(job)

    def flush_now(self) -> None:
        """Flush thoroughly and wait for it; for start and stop."""
        self._collect(wait=True)
        if self.failure is None:
            self._future = self._worker.submit(self._thorough())
            self._collect(wait=True)

    def _collect(self, *, wait: bool) -> None:
        future = self._future
        if future is None or not (wait or future.done()):
            return
        self._future = None
        try:
            future.result()
        except OSError as error:
            # Linux reports a failed write-back once: as with the CommitLog, trying again could "succeed" over lost pages.
            self.failure = f"derived files can't be flushed: {os_reason(error)}"
            log.critical("flush failed", reason=self.failure)
            self._on_failed(self.failure)
        finally:
            self._sync.settle()

    def _thorough(self) -> Callable[[], None]:
        """Return the job that syncs everything dispatched by now, and then says so in the checkpoint."""
        flushed_at_ms = self._group_commit.stored_at_ms  # Before the offset, as the worker sets them.
        offset, stored_at_ms, counted = self._dispatched()
        confirmed, count = self._confirmed(offset, counted)
        value = Checkpoint(
            physic_msg_timestamp=flushed_at_ms,
            logics_msg_timestamp=stored_at_ms,
            index_msg_timestamp=self._index.full_end_at_ms,
            confirm_physical_offset=confirmed,
        )
        sync, checkpoint = self._sync.thorough_job(), self._checkpoint

        def job() -> None:
            sync()
            # Flushed before the checkpoint is written: a checkpoint ahead of its files would hide a torn tail.
            hit(Failpoint.STORE_BEFORE_CHECKPOINT)
            if (value, count) != (checkpoint.value, checkpoint.count):
                checkpoint.write(value, count)

        return job

    def _confirmed(self, offset: int, counted: QueueCount | None) -> tuple[int, QueueCount | None]:
        """Return up to where everything is on the disk once all that is dispatched is synced, and the count up to there.

        With ASYNC_FLUSH the log is dispatched further than it is flushed, and queues can be counted only as far as they
        are dispatched. So the checkpoint says what was counted the time before, and a crash costs reading that much more.
        """
        flushed_offset, before = self._log.flushed_offset, self._counted
        self._counted = counted
        for count in (counted, before):
            if count is not None and count.confirm_physical_offset <= flushed_offset:
                return count.confirm_physical_offset, count
        return min(offset, flushed_offset), None
