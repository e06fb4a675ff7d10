"""The reasons why the store takes no messages, and how long each of them lasts.

reason                              the store takes messages again
the CommitLog can't be written      after the next start
a flush has failed                  after the next start
the store is lost (ownership.py)    never in this process, which should end
the disk is too full                when there is room
dispatch stands still               when dispatch continues
"""

from collections.abc import Callable

from gantry.runtime.workers import Worker
from gantry.storeformat.flushnote import FailedFlush
from services.broker.store.dispatch import Dispatcher
from services.broker.store.durability.flush import DerivedFlush, GroupCommit
from services.broker.store.folder.storefolder import StoreFolder
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.retention import Retention
from services.broker.store.writer import Writer


class WriteBlockers:
    """Collects the reasons and passes them to the writer.

    Args:
        chores: Writes the note of a failed flush.
        on_flush_failed: Called once when nothing will be reported as flushed any more.
        on_lost: Called once when the store is lost.

    Concurrency: `refresh` in the store's thread, the other methods in any thread.

    Attributes:
        derived: The flush of derived files; None before it exists.
        is_running: Whether the store has started and is not stopping.
    """

    def __init__(
        self,
        *,
        folder: StoreFolder,
        commit_log: CommitLog,
        writer: Writer,
        group_commit: GroupCommit,
        dispatcher: Dispatcher,
        retention: Retention,
        chores: Worker,
        on_flush_failed: Callable[[str], None] | None,
        on_lost: Callable[[str], None] | None,
    ) -> None:
        self._folder = folder
        self._log = commit_log
        self._writer = writer
        self._group_commit = group_commit
        self._dispatcher = dispatcher
        self._retention = retention
        self._chores = chores
        self._on_flush_failed = on_flush_failed
        self._on_lost = on_lost
        self.derived: DerivedFlush | None = None
        self.is_running = False

    def refresh(self) -> None:
        """Decide whether the store can take messages."""
        if not self.is_running:
            return
        reason = self._group_commit.failure or (self.derived.failure if self.derived is not None else None)
        reason = reason or self._retention.refusal
        if reason is None and self._dispatcher.failure is not None:
            reason = f"messages can't be made readable: {self._dispatcher.failure}"
        self._writer.refusal = reason

    def flush_failed(self, reason: str) -> None:
        """Take no more messages: it is unknown which part of the CommitLog is on the disk."""
        self._writer.refusal = reason
        self.note_failed_flush(reason)
        if self._on_flush_failed is not None:
            self._on_flush_failed(reason)

    def note_failed_flush(self, reason: str) -> None:
        """Leave a note for the next start, unless another broker owns the store by now."""
        if self._folder.ownership.lost is None:
            failed = FailedFlush(reason, self._log.flushed_offset, self._log.confirm_offset)
            self._chores.submit(lambda: self._folder.note_failed_flush(failed))

    def lost(self, reason: str) -> None:
        """Stop all writes to open files; other files can't be opened for writing from now on (OwnedFiles)."""
        self._log.failure = reason
        self._group_commit.fail(reason)
        if self._on_lost is not None:
            self._on_lost(reason)
