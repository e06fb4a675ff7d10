"""MessageStore: the one face of the store that others see.

How a message goes in: `put` appends its record to the CommitLog and gives it the next offset of its queue; once a
turn of its loop the caller hands what was put to the operating system (`write_out`) and asks for a flush
(`request_flush`), is told how far the disk has it (`on_flushed`, in the flush thread), calls `dispatch`, which builds
ConsumeQueue and index and tells who waits (`on_arrival`), and answers the sender. With ASYNC_FLUSH it dispatches and
answers as soon as that is written.

What keeps it whole: one lock for each store, an abort file while it runs, recovery at start (recovery.py), a mark
with the format's version and the checksum boundary, and `maintain`, called about every 100 ms, for everything that
has time: flushing derived files, checkpoint, retention, files made ahead.

Concurrency: everything is called from one thread. Two workers exist, one that syncs the CommitLog and one that syncs
derived files, makes files ahead and removes old ones; neither touches a record.
"""

from collections.abc import Callable, Iterator

from gantry.runtime.clock import Clock
from gantry.runtime.files import FileSystem
from gantry.runtime.telemetry import logger
from gantry.runtime.workers import ThreadWorker, Worker
from services.broker.store.backlog import BacklogReader
from services.broker.store.checkpoint import StoreCheckpoint
from services.broker.store.commitlog import CommitLog
from services.broker.store.consumequeuestore import ConsumeQueueStore
from services.broker.store.dispatch import Dispatcher, OnArrival
from services.broker.store.entry import EntryMaker
from services.broker.store.errors import StoreError, StoreFullError, StoreUnusableError, StoreWriteError
from services.broker.store.flush import DerivedFlush, GroupCommit
from services.broker.store.indexservice import IndexService
from services.broker.store.reader import Reader
from services.broker.store.recovery import Recovery
from services.broker.store.results import RecoveryReport, StoreState
from services.broker.store.retention import Retention
from services.broker.store.settings import StoreSettings
from services.broker.store.storefolder import StoreFolder
from services.broker.store.writer import Writer

_RETRY_MS = 1000

log = logger("broker.store")


class MessageStore:
    """A store.

    Args:
        settings: Of this store.
        files: Where it lies.
        clock: Wall time for what is stored, monotonic time for intervals.
        store_host: The broker's packed address, put into every record; may be set again (`store_host`) before the
            first put, when a port becomes known.
        on_arrival: Told (topic, queue id, max offset, units) of messages that can be read now; units as in a ConsumeQueue.
        on_flushed: Told how far the CommitLog is on the disk, in the flush thread.
        on_flush_failed: Told once, in the flush thread, that nothing will be reported as flushed any more.
        physical_memory_bytes: Of the machine; decides what counts as "in memory" for pulls.
        process_id: Written into the abort file, for people.
        flush_worker: And `chores_worker`: threads of their own by default.
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        files: FileSystem,
        clock: Clock,
        store_host: bytes = bytes(8),
        on_arrival: OnArrival | None = None,
        on_flushed: Callable[[int], None] | None = None,
        on_flush_failed: Callable[[str], None] | None = None,
        physical_memory_bytes: int = 8 << 30,
        process_id: int = 0,
        flush_worker: Worker | None = None,
        chores_worker: Worker | None = None,
    ) -> None:
        self.settings = settings
        self._files = files
        self._clock = clock
        self._process_id = process_id
        self._on_flush_failed = on_flush_failed
        self._flush_worker = flush_worker or ThreadWorker("store-flush")
        self._chores = chores_worker or ThreadWorker("store-chores")
        self._folder = StoreFolder(files, settings.root_dir)
        self._log = CommitLog(files, settings, self._chores, store_host)
        self._queues = ConsumeQueueStore(files, settings)
        self._index = IndexService(files, settings, clock)
        index = self._index if settings.message_index_enable else None
        self._entries = EntryMaker(self._queues, settings)
        self._dispatcher = Dispatcher(self._log, self._queues, index, self._entries, on_arrival=on_arrival)
        self._group_commit = GroupCommit(
            self._log, settings, self._flush_worker, on_flushed=on_flushed, on_failed=self._flush_failed
        )
        self._retention = Retention(
            files, settings, clock, self._chores, commit_log=self._log, queues=self._queues, index=index
        )
        self._reader = Reader(self._log, self._queues, index, settings, physical_memory_bytes)
        self._writer = Writer(self._log, self._queues, settings, clock, self._entries, self._dispatcher.pending)
        self.put = self._writer.put
        self.put_batch = self._writer.put_batch
        self.get = self._reader.get
        self.stored_at = self._reader.stored_at
        self.offset_by_time = self._reader.offset_by_time
        self.query = self._reader.query
        backlog = BacklogReader(self._log, self._queues)
        self.unit_rows = backlog.unit_rows
        self.find_message = backlog.find_message
        self.proven_stored_at = backlog.stored_at
        self.expires_at = self._retention.expires_at
        self._derived: DerivedFlush | None = None
        self._checkpoint: StoreCheckpoint | None = None
        self._recovery: RecoveryReport | None = None
        self._is_stopped = False
        self._retried_at_ms = 0

    # Life.

    def start(self, *, thorough: bool = False) -> RecoveryReport:
        """Open the store, recover it and make it writable.

        Args:
            thorough: Check the whole log against everything derived from it (`repair`).

        Raises:
            StoreLockedError: Another process runs on it.
            StoreFormatError: A later release wrote it, or its mark is broken.
            CorruptStoreError: A file has an impossible size.
            StoreUnusableError: The disk refused. All four are StartupErrors, whose message is for a person.
        """
        try:
            report = self._start(thorough=thorough)
        except StoreFullError as error:
            self._close()
            raise StoreUnusableError(self.settings.root_dir, OSError(None, str(error))) from error
        except OSError as error:
            self._close()
            raise StoreUnusableError(self.settings.root_dir, error) from error
        except StoreError:
            self._close()
            raise
        self._recovery = report
        self._retention.look_at_disk()
        self._refresh()
        return report

    def _start(self, *, thorough: bool) -> RecoveryReport:
        folder = self._folder
        folder.open()
        thorough_load = thorough or not folder.is_clean
        self._log.files.load()
        self._queues.load(thorough=thorough_load)
        strangers = self._index.load()
        folder.begin(self._process_id)
        self._checkpoint = StoreCheckpoint(self._files, folder.checkpoint_path)
        self._log.mark = folder.mark
        recovery = Recovery(
            self._files,
            self._log,
            self._queues,
            self._index if self.settings.message_index_enable else None,
            entries=self._entries,
            checkpoint=self._checkpoint,
            folder=folder,
            is_thorough=thorough,
        )
        report = recovery.run(tuple(strangers))
        self._dispatcher.start_at(report.log_end_offset, self._log.stored_at_ms)
        self._group_commit.stored_at_ms = self._log.stored_at_ms
        self._derived = DerivedFlush(
            self._files,
            self.settings,
            self._chores,
            commit_log=self._log,
            group_commit=self._group_commit,
            queues=self._queues,
            index=self._index,
            checkpoint=self._checkpoint,
            dispatched=lambda: (self._dispatcher.offset, self._dispatcher.stored_at_ms),
        )
        self._derived.flush_now()
        if self._derived.failure is not None:
            raise OSError(None, self._derived.failure)
        # Only now: until everything is on the disk, another crash must find the mark that was there before.
        folder.mark_opened(report.log_min_offset, report.log_end_offset, self.settings.record_checksum)
        self._log.mark = folder.mark
        self._log.prepare_next()
        log.info("store open", **{key: value for key, value in report._asdict().items() if value})
        return report

    def stop(self) -> bool:
        """Flush and dispatch everything, write checkpoint and mark, take the abort file away, and close.

        Returns:
            Whether that was possible. If not, the abort file stays and the next start recovers.
        """
        is_clean = False
        was_stopped, self._is_stopped = self._is_stopped, True
        self._writer.refusal = "the store is not running"
        if self._recovery is not None and self._derived is not None and not was_stopped:
            self.write_out()
            self._group_commit.flush_now()
            self._dispatcher.run(self._log.confirm_offset)
            self._derived.flush_now()
            self._retention.finish()
            is_clean = (
                self._group_commit.failure is None
                and self._derived.failure is None
                and self._dispatcher.offset == self._log.next_offset
            )
            if is_clean:
                is_clean = self._end()
        self._close()
        return is_clean

    def _end(self) -> bool:
        try:
            self._folder.end(self._log.next_offset)
        except OSError as error:
            log.warning("the stop can't be noted; the next start recovers", reason=str(error))
            return False
        return True

    def _close(self) -> None:
        self._flush_worker.close()
        self._chores.close()
        self._log.close()
        self._queues.close()
        self._index.close()
        if self._checkpoint is not None:
            self._checkpoint.close()
        self._folder.close()

    # Writing; `put` and `put_batch` are the Writer's, bound here so that the hot path has no detour.

    @property
    def store_host(self) -> bytes:
        """Return the packed address that is put into every record."""
        return self._log.store_host

    @store_host.setter
    def store_host(self, packed: bytes) -> None:
        self._log.store_host = packed

    def write_out(self) -> int:
        """Hand what was put to the operating system; once a turn of the caller's loop, before anybody is told.

        Returns:
            Everything before this offset survives the process. Less than what was put: the disk refused, whether the
            rest was written is unknown, `on_flush_failed` was told why, and nothing is taken any more.
        """
        try:
            self._log.write_out()
        except StoreWriteError as error:
            self._writer.refusal = str(error)
            self._group_commit.fail(str(error))
        return self._log.wrote_offset

    def request_flush(self) -> None:
        """Have what was put so far synced soon; `on_flushed` tells. Once a turn of the caller's loop."""
        self.write_out()
        self._group_commit.request()

    def dispatch(self) -> int:
        """Make what is confirmed readable, and tell who waits for it; return the number of records."""
        self.write_out()
        count = self._dispatcher.run(self._log.confirm_offset)
        if self._dispatcher.failure is not None:
            self._refresh()
        return count

    def maintain(self) -> None:
        """Do what is due: flushing, checkpoint, retention, files made ahead. Call it about every 100 ms."""
        assert self._derived is not None, "the store is started first"
        now_ms = self._clock.monotonic_ms()
        self.write_out()
        self._group_commit.tick(now_ms)
        if self._dispatcher.failure is not None:
            self._dispatcher.run(self._log.confirm_offset)
        self._derived.tick(now_ms)
        self._retention.tick(now_ms, self._durable_offset())
        if now_ms - self._retried_at_ms >= _RETRY_MS:
            self._retried_at_ms = now_ms
            self._log.retry_next()
        self._refresh()

    def clean_expired(self) -> int:
        """Remove expired files now and in the next rounds, whatever the hour; return how many went now."""
        return self._retention.run_by_hand(self._durable_offset())

    def _durable_offset(self) -> int:
        """Return up to where everything derived from the log is on the disk too."""
        return self._checkpoint.value.confirm_physical_offset if self._checkpoint is not None else 0

    def _refresh(self) -> None:
        """Decide whether anything can be stored."""
        if self._recovery is None or self._is_stopped:
            return
        retention, derived = self._retention, self._derived
        reason = self._group_commit.failure or (derived.failure if derived is not None else None)
        if reason is None and retention.is_disk_full:
            reason = (
                f"the disk is {retention.disk_percent} % full, nothing is stored above "
                f"{self.settings.disk_space_warning_level_ratio} %"
            )
        if reason is None and self._dispatcher.failure is not None:
            reason = f"messages can't be made readable: {self._dispatcher.failure}"
        self._writer.refusal = reason

    def _flush_failed(self, reason: str) -> None:
        self._writer.refusal = reason
        if self._on_flush_failed is not None:
            self._on_flush_failed(reason)

    # Reading; what goes by queues is the Reader's and the BacklogReader's, `expires_at` is Retention's.

    @property
    def min_physical_offset(self) -> int:
        """Return the first byte of the CommitLog that is still there."""
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Return where the next record goes."""
        return self._log.next_offset

    @property
    def flushed_offset(self) -> int:
        """Return how far the CommitLog is on the disk."""
        return self._log.flushed_offset

    @property
    def confirm_offset(self) -> int:
        """Return how far the CommitLog may be dispatched and read."""
        return self._log.confirm_offset

    @property
    def dispatched_offset(self) -> int:
        """Return how far the CommitLog is dispatched."""
        return self._dispatcher.offset

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the first offset of a queue that can be read; 0 for a queue that is not there."""
        queue = self._queues.find(topic, queue_id)
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the offset the next message of a queue can be read at; 0 for a queue that is not there."""
        queue = self._queues.find(topic, queue_id)
        return queue.max_offset if queue is not None else 0

    def record_at(self, physical_offset: int) -> bytes | None:
        """Return the record at a physical offset, if one that proves itself lies there and may be read."""
        return self._log.record(physical_offset)

    def earliest_stored_at(self) -> int | None:
        """Return the store time of the oldest message there is, or None."""
        return self._log.first_stored_at()

    def queues(self) -> Iterator[tuple[str, int]]:
        """Iterate over topic and queue id of every queue."""
        return iter(list(self._queues.table))

    def delete_topic(self, topic: str) -> None:
        """Remove a topic's queues; its records stay in the CommitLog until their files go. Waits for the disk."""
        # Dispatched only after its queues are gone, a message would begin a new queue at its old offset, and hide
        # what a topic of the same name has before it.
        self.write_out()
        self._group_commit.flush_now()
        self._dispatcher.run(self._log.confirm_offset)
        # What is left where the disk refuses points to queues that are about to be gone; it is in the log.
        self._dispatcher.pending.clear()
        self._folder.deleted.add(topic, self._log.next_offset, self._clock.now_ms(), log_min=self._log.min_offset)
        self._chores.submit(self._queues.drop_topic(topic)).result()

    def state(self) -> StoreState:
        """Return how the store does."""
        refusal = self._writer.refusal
        return StoreState(
            writable=refusal is None,
            reason=refusal or "",
            disk_percent=self._retention.disk_percent,
            min_physical_offset=self._log.min_offset,
            max_physical_offset=self._log.next_offset,
            flushed_offset=self._log.flushed_offset,
            confirm_offset=self._log.confirm_offset,
            dispatched_offset=self._dispatcher.offset,
            dispatch_behind_bytes=self._log.confirm_offset - self._dispatcher.offset,
            lost_bytes=self._recovery.lost_bytes if self._recovery is not None else 0,
            damaged_reads=self._reader.damaged_reads,
            skipped_units=sum(queue.skipped for queue in self._queues),
            hanged_files=self._retention.hanged_files,
            recovery=self._recovery,
        )
