"""MessageStore: the interface of the store.

The way of a message: `put` appends its record to the CommitLog and gives it the next offset of its queue. Once per turn
of its loop, the caller hands the records to the operating system (`write_out`) and asks for a flush (`request_flush`).
The flush thread reports the offset up to which the log is on the disk (`on_flushed`). The caller then calls `dispatch`,
which builds ConsumeQueue and index and notifies waiting consumers (`on_arrival`), and answers the sender. With
ASYNC_FLUSH it dispatches and answers as soon as the records are written.

These parts protect the store: locks, an abort file while the store runs, recovery at start (recovery.py), and the
manifest, a file with the format's version and the offset from which records have a checksum. `maintain`, called every 100 ms,
does the work that is not urgent: it flushes derived files, writes the checkpoint, runs retention, creates files ahead.

Concurrency: one thread makes all calls, and waits for a worker only at start and stop. Three workers, which handle no
records: one syncs the CommitLog, one creates its files ahead, one syncs ConsumeQueues and index and removes old files.
"""

from collections.abc import Callable, Iterator

from gantry.runtime.clock import Clock
from gantry.runtime.files import FileSystem
from gantry.runtime.openfiles import OpenFiles
from gantry.runtime.workers import ThreadWorker, Worker
from services.broker.store.backlog import BacklogReader
from services.broker.store.dispatch import Dispatcher, OnArrival
from services.broker.store.dispatchrequest import DispatchRequestMaker
from services.broker.store.durability.checkpoint import StoreCheckpoint
from services.broker.store.durability.derivedsync import DerivedSync
from services.broker.store.durability.flush import DerivedFlush, GroupCommit
from services.broker.store.errors import StoreError, StoreFullError, StoreUnusableError, StoreWriteError
from services.broker.store.files.pages import Pages
from services.broker.store.files.removal import FileRemover
from services.broker.store.folder.storefolder import StoreFolder
from services.broker.store.folder.watch import StoreWatch
from services.broker.store.index.indexservice import IndexService
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.log.logreader import LogReader
from services.broker.store.metrics import StoreMetrics
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore
from services.broker.store.reader import Reader
from services.broker.store.recovery.misplacedfiles import reject_misplaced_files
from services.broker.store.recovery.recovery import Recovery
from services.broker.store.recovery.scanstart import derived_state
from services.broker.store.recovery.uncachedstart import drop_unsynced
from services.broker.store.results import RecoveryReport
from services.broker.store.retention import Retention
from services.broker.store.settings import StoreLimits, StoreSettings
from services.broker.store.topicdeletion import TopicDeletion
from services.broker.store.writeblockers import WriteBlockers
from services.broker.store.writer import Writer


class MessageStore:
    """A store: puts, reads and flushes messages. Its parts' methods are attributes: `put` (Writer), `get` (Reader), ….

    Args:
        settings: The store's settings.
        limits: Limits that only tests change.
        files: The file system that holds the store.
        clock: Wall time for store times, monotonic time for intervals.
        store_host: The broker's packed address in every record; may be set again before the first put (`store_host`).
        on_arrival: Called with (topic, queue id, max offset, units) of new readable messages; units as in a queue file.
        on_flushed: Called in the flush thread with the offset up to which the CommitLog is on the disk.
        on_flush_failed: Called once, in any thread, with the reason why nothing will be reported as flushed any more.
        physical_memory_bytes: The machine's memory in bytes; decides which messages count as "in memory" for pulls.
        on_lost: Called once, in any thread, with the reason why the store is lost (ownership.py); the process should end.
        process_id: The process id for the abort file and, while the store starts or stops, for the manifest.
        open_files_max: The limit for open files of ConsumeQueues and index.
        flush_worker: Syncs the CommitLog; each of the three workers is by default a thread of its own.
        making_worker: Creates files of the CommitLog ahead.
        chores_worker: Syncs derived files and removes files.

    Attributes:
        files: The file system for all other files in the store's folder; it changes nothing once the store is lost.
        lost_reason: Returns why the store is lost, or None.
        state: Returns the store's state.
    """

    def __init__(
        self,
        settings: StoreSettings,
        *,
        limits: StoreLimits = StoreLimits(),  # noqa: B008 - frozen
        files: FileSystem,
        clock: Clock,
        store_host: bytes = bytes(8),
        on_arrival: OnArrival | None = None,
        on_flushed: Callable[[int], None] | None = None,
        on_flush_failed: Callable[[str], None] | None = None,
        on_lost: Callable[[str], None] | None = None,
        physical_memory_bytes: int = 8 << 30,
        process_id: int = 0,
        open_files_max: int = 1024,
        flush_worker: Worker | None = None,
        making_worker: Worker | None = None,
        chores_worker: Worker | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self._process_id = process_id
        self._flush_worker = flush_worker or ThreadWorker("store-flush")
        self._making_worker = making_worker or ThreadWorker("store-making")
        self._chores = chores_worker or ThreadWorker("store-chores")
        self._folder = StoreFolder(files, settings.store_path_root_dir)
        self._owner = self._folder.ownership
        self.lost_reason = self._owner.lost_reason
        self.files = files = self._folder.files
        self._pages = Pages()
        self._log = CommitLog(files, settings, limits, self._making_worker, store_host)
        self._pool = OpenFiles(files, open_files_max)
        self._queues = ConsumeQueueStore(self._pool, settings, self._pages)
        self._index = IndexService(self._pool, settings, clock)
        self._sync = DerivedSync(self._pool, settings, queues=self._queues, index=self._index)
        index = self._index if settings.message_index_enable else None
        self._requests = DispatchRequestMaker(self._queues, settings)
        deleted = self._folder.deleted
        self._dispatcher = Dispatcher(self._log, self._queues, index, self._requests, deleted, on_arrival=on_arrival)
        self._group_commit = GroupCommit(
            self._log, settings, self._flush_worker, on_flushed=on_flushed, is_still_owned=self._owner.is_still_owned
        )
        self._remover = FileRemover(files, self._chores)
        self.retention = Retention(
            files, settings, clock, self._remover, commit_log=self._log, queues=self._queues, index=index
        )
        self._deletion = TopicDeletion(
            files, settings, clock, self._remover, commit_log=self._log, queues=self._queues, folder=self._folder
        )
        self._watch = StoreWatch(self._owner, self._log)
        self._writer = Writer(
            self._log, self._queues, settings, limits, clock, self._requests, self._dispatcher.pending, self._deletion
        )
        self.put = self._writer.put
        self.put_batch = self._writer.put_batch
        self.wait_for_replicas = self._log.wait_for_replicas
        self._log_reader = LogReader(self._log, self._pages)
        log, queues = self._log, self._queues
        self._bind(
            Reader(log, self._log_reader, queues, index, settings, clock=clock, memory_bytes=physical_memory_bytes)
        )
        self.expires_at = self.retention.expires_at
        self.delete_topic, self.mark_deletion_saved = self._deletion.delete, self._deletion.mark_saved
        self.unsaved_deletions, self.is_dead = deleted.unsaved, deleted.covers
        self._listen(on_flush_failed, on_lost)
        self._derived: DerivedFlush | None = None
        self._checkpoint: StoreCheckpoint | None = None

    def _bind(self, reader: Reader) -> None:
        """Make the readers' methods attributes of the store, because one more call would cost the hot paths time."""
        self._reader = reader
        self.get = reader.get
        self.min_offset = reader.min_offset
        self.max_offset, self.next_offset = reader.max_offset, reader.next_offset
        self.stored_at = reader.stored_at
        self.offset_by_time = reader.offset_by_time
        self.query = reader.query
        self.search = reader.search
        self.records = reader.records
        self.index_last_update = reader.index_last_update
        self.record_at, self.headed_record_at = self._log_reader.record, self._log_reader.headed_record
        self.earliest_stored_at = self._log_reader.first_stored_at
        self.attempt = self._pages.attempt
        backlog = BacklogReader(self._log, self._log_reader, self._queues, self._clock)
        self.find_message, self.find_accepted = backlog.find_message, backlog.find_accepted
        self.unit_rows, self.units, self.heads = backlog.unit_rows, backlog.units, backlog.heads
        self.set_delay_levels = self._requests.set_delay_levels
        self.verified_stored_at = backlog.stored_at

    def _listen(self, on_flush_failed: Callable[[str], None] | None, on_lost: Callable[[str], None] | None) -> None:
        """Create the parts that observe all others."""
        self._metrics = StoreMetrics(
            commit_log=self._log,
            queues=self._queues,
            dispatcher=self._dispatcher,
            retention=self.retention,
            remover=self._remover,
            writer=self._writer,
            reader=self._reader,
        )
        self.state = self._metrics.state
        self._write_blockers = WriteBlockers(
            folder=self._folder,
            commit_log=self._log,
            writer=self._writer,
            group_commit=self._group_commit,
            dispatcher=self._dispatcher,
            retention=self.retention,
            chores=self._chores,
            on_flush_failed=on_flush_failed,
            on_lost=on_lost,
        )
        self._group_commit.on_failed = self._write_blockers.flush_failed
        self._owner.on_lost = self._write_blockers.lost

    def start(self, *, thorough: bool = False) -> RecoveryReport:
        """Open the store, recover it and make it writable.

        Args:
            thorough: Whether to check everything and repair a broken manifest, as `gantry store repair` does.

        Raises:
            StoreLockedError: Another process runs on the store.
            StoreFormatError: A later release wrote the store, or its manifest is broken.
            CorruptStoreError: A file has an impossible size.
            UnsyncedStoreError: After a crash, the disk can't write, or can't read, the content of a file.
            StoreUnusableError: The disk failed. All these errors are StartupErrors, whose message is for a person.
        """
        try:
            report = self._start(thorough=thorough)
        except (StoreError, OSError) as caught:
            error = self._owner.explain(caught)
            self._close()
            if isinstance(error, OSError | StoreFullError | StoreWriteError):
                raise StoreUnusableError(self.settings.store_path_root_dir, error) from caught
            raise
        self._metrics.recovery = report
        self._write_blockers.is_running = True
        self.retention.measure_disk()
        self._write_blockers.refresh()
        return report

    def _start(self, *, thorough: bool) -> RecoveryReport:
        folder = self._folder
        folder.open(is_repair=thorough)
        drop_unsynced(self.files, self.settings, folder)
        self._sync.open()
        self._log.files.load()
        self._queues.load(thorough=thorough or not folder.is_clean, on_repair=lambda: folder.begin(self._process_id))
        self._log.manifest = folder.manifest
        reject_misplaced_files(self._queues, self._log, checkpoint=folder.read_checkpoint())
        self._index.load()
        folder.begin(self._process_id)
        self._checkpoint = StoreCheckpoint(self.files, folder.checkpoint_path, self._owner.require)
        self._deletion.finish_dead()
        recovery = Recovery(
            self.files,
            self._log,
            self._queues,
            self._index,
            with_index=self.settings.message_index_enable,
            request_maker=self._requests,
            checkpoint=self._checkpoint,
            folder=folder,
            derived_sync=self._sync,
            now_ms=self._clock.now_ms(),
            is_thorough=thorough,
        )
        report = recovery.run()
        self._dispatcher.start_at(report.log_end_offset, self._log.stored_at_ms)
        self._group_commit.stored_at_ms = self._log.stored_at_ms
        self._derived = DerivedFlush(
            self._sync,
            self.settings,
            self._chores,
            commit_log=self._log,
            group_commit=self._group_commit,
            index=self._index,
            checkpoint=self._checkpoint,
            dispatched=lambda: self._dispatcher.done(self.retention.settled_offset),
            on_failed=self._write_blockers.note_failed_flush,
        )
        self._write_blockers.derived = self._derived
        self._derived.flush_now()
        if self._derived.failure is not None:
            raise OSError(None, self._derived.failure)
        # Only now: until everything is on the disk, another crash must find the manifest as it was before.
        folder.mark_opened(report, derived_state(self._queues, self._index), self.settings.enabled_append_prop_crc)
        self._log.manifest = folder.manifest
        self._log.wait_for_room()
        return report

    def stop(self) -> bool:
        """Flush and dispatch everything, write checkpoint and manifest, remove the abort file, and close.

        Returns:
            Whether it succeeded. If not, the abort file stays and the next start recovers. A lost store is not changed.
        """
        is_clean = False
        was_running, self._write_blockers.is_running = self._write_blockers.is_running, False
        self._writer.refusal = "the store is not running"
        self._remover.is_stopping = True
        if was_running and self._derived is not None and self._owner.is_still_owned():
            self.write_out()
            self._group_commit.flush_now()
            self._dispatcher.run(self._log.confirm_offset)
            self._derived.flush_now()
            is_clean = (
                (self._group_commit.failure or self._derived.failure) is None
                and self._dispatcher.offset == self._log.next_offset
                and self._pool.recreated_count == 0
                and self._folder.end(self._log.next_offset, derived_state(self._queues, self._index))
            )
        self._close()
        return is_clean

    def _close(self) -> None:
        self._flush_worker.close()
        self._making_worker.close()
        self._chores.close()
        self._remover.close()
        self._log.close()
        self._index.close()
        self._pool.close()
        self._sync.close()
        if self._checkpoint is not None:
            self._checkpoint.close()
        self._folder.close()

    @property
    def store_host(self) -> bytes:
        """Return the packed address that every record contains."""
        return self._log.store_host

    @store_host.setter
    def store_host(self, packed: bytes) -> None:
        self._log.store_host = packed

    def write_out(self) -> int:
        """Hand all records that were put to the operating system; once per turn of the caller's loop, before any reply.

        Returns:
            The offset before which everything survives the process. If it is less than the end of the last put, the
            disk failed: the rest may be lost, `on_flush_failed` got the reason, and the store takes no more messages.
        """
        try:
            self._log.write_out()
        except StoreWriteError as error:
            self._writer.refusal = str(error)
            self._group_commit.fail(str(error))
        return self._log.wrote_offset

    def request_flush(self) -> None:
        """Request a sync of all records put so far, once per turn of the caller's loop; `on_flushed` reports it."""
        self.write_out()
        self._group_commit.request()

    def dispatch(self, rounds_max: int | None = None) -> int:
        """Make confirmed messages readable, in up to `rounds_max` rounds; notify consumers; return the record count."""
        self.write_out()
        if self._owner.lost is not None:
            return 0
        count = self._dispatcher.run(self._log.confirm_offset, rounds_max)
        if self._dispatcher.failure is not None:
            self._write_blockers.refresh()
        return count

    def maintain(self) -> None:
        """Do all due work: flushing, checkpoint, retention, files ahead. Call it about every 100 ms."""
        now_ms = self._clock.monotonic_ms()
        self._watch.tick(now_ms)
        if self._owner.lost is None:
            try:
                self._run_due(now_ms)
            except OSError:
                if self._owner.is_still_owned():
                    raise

    def _run_due(self, now_ms: int) -> None:
        assert self._derived is not None, "the store is started first"
        self.write_out()
        self._log_reader.tick()
        self._pages.tick()
        self._group_commit.tick(now_ms)
        if self._dispatcher.failure is not None:
            self._dispatcher.run(self._log.confirm_offset)
        self._derived.tick(now_ms)
        self.retention.tick(now_ms, self._derived.durable_offset)
        self._write_blockers.refresh()

    def clean_expired(self) -> int:
        """Remove expired files now and in the next rounds of retention, at any hour; return the number removed now."""
        assert self._derived is not None, "the store is started first"
        return self.retention.run_by_hand(self._derived.durable_offset) if self._owner.is_still_owned() else 0

    @property
    def min_physical_offset(self) -> int:
        """Return the offset of the CommitLog's first byte that still exists."""
        return self._log.min_offset

    @property
    def max_physical_offset(self) -> int:
        """Return the offset of the next record, the end of the CommitLog."""
        return self._log.next_offset

    @property
    def flushed_offset(self) -> int:
        """Return the offset up to which the CommitLog is on the disk."""
        return self._log.flushed_offset

    @property
    def confirm_offset(self) -> int:
        """Return the offset up to which the CommitLog may be dispatched and read."""
        return self._log.confirm_offset

    @property
    def dispatched_offset(self) -> int:
        """Return the offset up to which the CommitLog is dispatched."""
        return self._dispatcher.offset

    def queues(self) -> Iterator[tuple[str, int]]:
        """Iterate over topic and queue id of every queue."""
        return iter(list(self._queues.table))
