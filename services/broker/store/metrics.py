"""The store's state in figures, for metrics and tools."""

from services.broker.store.dispatch import Dispatcher
from services.broker.store.files.removal import FileRemover
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore
from services.broker.store.reader import Reader
from services.broker.store.results import RecoveryReport, StoreState
from services.broker.store.retention import Retention
from services.broker.store.writer import Writer


class StoreMetrics:
    """Collects figures from the store's parts.

    Concurrency: the store's thread.

    Attributes:
        recovery: The report of the store's start; None before the start.
    """

    def __init__(
        self,
        *,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        dispatcher: Dispatcher,
        retention: Retention,
        remover: FileRemover,
        writer: Writer,
        reader: Reader,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._dispatcher = dispatcher
        self._retention = retention
        self._remover = remover
        self._writer = writer
        self._reader = reader
        self.recovery: RecoveryReport | None = None

    def state(self) -> StoreState:
        """Return the store's state."""
        refusal, log, recovery = self._writer.refusal, self._log, self.recovery
        return StoreState(
            writable=refusal is None,
            reason=refusal or "",
            full_reason=log.full_reason or "",
            disk_percent=self._retention.disk_percent,
            min_physical_offset=log.min_offset,
            max_physical_offset=log.next_offset,
            flushed_offset=log.flushed_offset,
            confirm_offset=log.confirm_offset,
            dispatched_offset=self._dispatcher.offset,
            dispatch_behind_bytes=log.confirm_offset - self._dispatcher.offset,
            lost_bytes=recovery.lost_bytes if recovery is not None else 0,
            damaged_reads=self._reader.damaged_reads,
            skipped_units=self._queues.skipped_units,
            removed_files_in_use=self._remover.in_use_count,
            recovery=recovery,
        )
