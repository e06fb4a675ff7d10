"""Flushing: the group commit of the CommitLog, and the slower flush of the files derived from it.

Group commit: `request` wakes the worker, which syncs everything written by then and reports how far the disk has the
log. All puts of one turn of the event loop, and all puts during a sync, share the next sync.

After a failed sync the content of the disk is unknown, and Linux may report the error only once: a retry could
"succeed" over lost pages. The bytes are therefore never reported as flushed, and the store takes no more writes. Only a
new start, which reads the disk (uncachedstart.py), makes the store writable again.

There are two flushes of derived files. The frequent one syncs files with at least a few unsynced pages. The thorough
one runs less often: it syncs all files and the folders, and then writes the checkpoint.
"""

from collections.abc import Callable
from concurrent.futures import Future

from gantry.runtime.errors import describe_os_error
from gantry.runtime.failpoints import Failpoint, hit
from gantry.runtime.telemetry import logger
from gantry.runtime.workers import Worker
from gantry.storeformat.layout import Checkpoint, QueueCount
from services.broker.store.durability.checkpoint import StoreCheckpoint
from services.broker.store.durability.derivedsync import DerivedSync
from services.broker.store.index.indexservice import IndexService
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.settings import StoreSettings

PAGE_BYTES = 4096

log = logger("broker.store.flush")


class GroupCommit:
    """Syncs the CommitLog.

    Args:
        commit_log: The log.
        settings: The flush mode and the intervals.
        worker: Runs the syncs.
        on_flushed: Called in the worker with the offset up to which the log is on the disk.
        is_still_owned: Called after each sync; returns whether this broker owns the store. Before it returns False, `fail`
            is called.

    Concurrency: `request` and `tick` are called by the store's thread, `_round` runs in the worker, `fail` in either.

    Attributes:
        failure: The reason why nothing will ever be reported as flushed again, or None.
        on_failed: Called once with that reason.
        stored_at_ms: The store time of the last record on the disk.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        settings: StoreSettings,
        worker: Worker,
        *,
        on_flushed: Callable[[int], None] | None,
        is_still_owned: Callable[[], bool],
    ) -> None:
        self._log = commit_log
        self._worker = worker
        self._still_ours = is_still_owned
        self._is_sync = settings.is_sync_flush
        self._interval_ms = settings.flush_interval_commit_log
        self._pages_min = settings.flush_commit_log_least_pages
        self._thorough_ms = settings.flush_commit_log_thorough_interval
        self._on_flushed = on_flushed
        self.on_failed: Callable[[str], None] = lambda reason: None
        self._is_scheduled = False
        self._future: Future[None] | None = None
        self._ticked_at_ms = 0
        self._thorough_at_ms = 0
        self.failure: str | None = None
        self.stored_at_ms = commit_log.stored_at_ms

    def fail(self, reason: str) -> None:
        """Report nothing as flushed any more."""
        if self.failure is None:
            self.failure = reason
            log.critical("nothing is stored any more", reason=reason, flushed_offset=self._log.flushed_offset)
            self.on_failed(reason)

    def request(self) -> None:
        """Start a sync of everything written so far; return at once."""
        if self._is_scheduled or self.failure is not None or self._log.flushed_offset >= self._log.wrote_offset:
            return
        if self._future is not None and self._future.done():
            self._future.result()  # An exception of the round is a bug and must not go unseen.
        self._is_scheduled = True
        self._future = self._worker.submit(self._round)

    def tick(self, monotonic_ms: int) -> None:
        """Flush at the intervals of ASYNC_FLUSH; with SYNC_FLUSH, flush anything that was written without a request."""
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
        # Cleared first: a request that comes from here on may concern bytes that this round does not include.
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
            self.fail(f"the CommitLog can't be flushed: {describe_os_error(error)}")
            return
        hit(Failpoint.STORE_AFTER_SYNC)
        if not self._still_ours():
            return  # The synced file is no longer at its path, or another broker writes to it, too.
        log_.flushed_offset = target
        self.stored_at_ms = stored_at_ms
        if self._on_flushed is not None:
            self._on_flushed(target)


class DerivedFlush:
    """Syncs ConsumeQueues and index files, and then writes the checkpoint.

    Args:
        dispatched: Returns the dispatched offset, its store time, and the count of the queues at that offset, or None
            if the count is not known.
        on_failed: Called once, in the store's thread, with the reason why no derived file will be flushed any more.

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
        self._interval_ms = settings.flush_interval_consume_queue
        self._thorough_ms = settings.flush_consume_queue_thorough_interval
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
        """Return the offset up to which everything derived from the log is on the disk, too."""
        return self._checkpoint.value.confirm_physical_offset

    def tick(self, monotonic_ms: int) -> None:
        """Start a flush if one is due and none is running."""
        self._collect(wait=False)
        if self._future is not None or self.failure is not None:
            return
        if monotonic_ms - self._thorough_at_ms >= self._thorough_ms:
            self._thorough_at_ms = self._ticked_at_ms = monotonic_ms
            self._future = self._worker.submit(self._full_sync_job())
        elif monotonic_ms - self._ticked_at_ms >= self._interval_ms:
            self._ticked_at_ms = monotonic_ms
            job = self._sync.due_job()
            if job is not None:
                self._future = self._worker.submit(job)

    def flush_now(self) -> None:
        """Flush thoroughly and wait for it; for start and stop."""
        self._collect(wait=True)
        if self.failure is None:
            self._future = self._worker.submit(self._full_sync_job())
            self._collect(wait=True)

    def _collect(self, *, wait: bool) -> None:
        future = self._future
        if future is None or not (wait or future.done()):
            return
        self._future = None
        try:
            future.result()
        except OSError as error:
            # Linux reports a failed write-back once. As with the CommitLog, a retry could "succeed" over lost pages.
            self.failure = f"derived files can't be flushed: {describe_os_error(error)}"
            log.critical("flush failed", reason=self.failure)
            self._on_failed(self.failure)
        finally:
            self._sync.settle()

    def _full_sync_job(self) -> Callable[[], None]:
        """Return the job that syncs everything dispatched by now, and then writes the checkpoint."""
        flushed_at_ms = self._group_commit.stored_at_ms  # Read before the offset: the worker sets the time after it.
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
            # The flush comes before the checkpoint: a checkpoint ahead of its files would hide a torn tail.
            hit(Failpoint.STORE_BEFORE_CHECKPOINT)
            if (value, count) != (checkpoint.value, checkpoint.count):
                checkpoint.write(value, count)

        return job

    def _confirmed(self, offset: int, counted: QueueCount | None) -> tuple[int, QueueCount | None]:
        """Return the offset up to which the disk will have everything after the sync, and the queues' count there.

        With ASYNC_FLUSH, the log is dispatched further than it is flushed. But queues can be counted only at the
        dispatched offset. The checkpoint therefore contains the previous count, and recovery after a crash reads that
        much more.
        """
        flushed_offset, before = self._log.flushed_offset, self._counted
        self._counted = counted
        for count in (counted, before):
            if count is not None and count.confirm_physical_offset <= flushed_offset:
                return count.confirm_physical_offset, count
        return min(offset, flushed_offset), None
