"""Deletes a topic's queues. The store's thread does not wait for the disk.

    store's thread          worker                      after a crash
    drop the queues
                            note the deletion           before the note: the topic with all its messages
                            remove files, in slices     after the note: no topic; the start removes the rest
    the future is done

The store's thread hands the note to the worker that syncs derived files, before any later flush. The worker therefore
writes the note before any checkpoint whose offset lies after the deletion. Such a checkpoint needs the note, because
the dead queues were not synced for it.

Records of the topic that are appended and not dispatched yet build no queue. Dispatch skips entries of dropped queues.
When it reads the log it checks the notes, as recovery does. A stopped dispatch therefore makes no difference.

The store takes no messages for the topic until the files are gone, because its new queues would have files of the same
names. For the same reason the worker first takes the topic's expired files from the remover, where they may wait behind
files of the CommitLog.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Final

from gantry.runtime.clock import Clock
from gantry.runtime.files import FileSystem
from gantry.runtime.telemetry import logger
from gantry.runtime.workers import submit_slices
from gantry.storeformat.layout import CONSUME_QUEUE_DIR, UNIT, UNIT_SIZE_BYTES
from services.broker.store.files.removal import SLICE_FILES_MAX, FileRemover
from services.broker.store.folder.storefolder import StoreFolder
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.queues.consumequeue import ConsumeQueue, is_message_unit
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore
from services.broker.store.settings import StoreSettings

_UNITS_AT_ONCE: Final = 4096

log = logger("broker.store")


class TopicDeletion:
    """Deletes topics.

    Concurrency: the store's thread, except for `_removing`, which runs in the worker.

    Attributes:
        under_way: The topics whose files are not gone yet, or could not be removed; perhaps also topics whose files are
            gone.
    """

    def __init__(
        self,
        files: FileSystem,
        settings: StoreSettings,
        clock: Clock,
        remover: FileRemover,
        *,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        folder: StoreFolder,
    ) -> None:
        self._files = files
        self._top = f"{settings.store_path_root_dir}/{CONSUME_QUEUE_DIR}"
        self._clock = clock
        self._log = commit_log
        self._queues = queues
        self._folder = folder
        self._deleted = folder.deleted
        self._remover = remover
        self.under_way: dict[str, Future[bool]] = {}

    def delete(self, topic: str) -> "Future[bool]":
        """Drop a topic's queues, note the deletion and remove the files.

        Returns:
            A future. Its result is True when the deletion is done, and False when the store stops before; the next
            start then does the rest. It raises OSError if files could not be removed. Then the store takes no messages
            for the topic until a repeated call has removed them, or until the next start.

        Raises:
            OSError: The store is lost; nothing has changed.
        """
        self._folder.ownership.require()
        running = self.under_way.get(topic)
        if running is not None and not running.done():
            return running
        for done in [name for name, each in self.under_way.items() if each.done() and each.exception() is None]:
            del self.under_way[done]
        self._queues.forget_topic(topic)
        deleted_at_ms = max(self._clock.now_ms(), self._log.appended_at_ms)
        note = self._deleted.add(topic, self._log.next_offset, deleted_at_ms, log_min=self._log.min_offset)
        noted = self._remover.worker.submit(lambda: _note(note, topic))
        slices = self._removing(noted, topic)
        future = submit_slices(self._remover.worker, slices, lambda: not self._remover.is_stopping)
        self.under_way[topic] = future
        return future

    def refusal(self, topic: str) -> str | None:
        """Return why nothing is stored for a topic, or None."""
        future = self.under_way.get(topic)
        if future is None:
            return None
        if not future.done():
            return f"topic {topic} is being deleted"
        error = future.exception()
        if error is not None:
            return f"topic {topic} was deleted, and its files can't be removed: {error}"
        del self.under_way[topic]
        return None

    def mark_saved(self, topic: str) -> "Future[None]":
        """Note that the broker's tables are saved without a deleted topic. The future raises OSError."""
        return self._remover.worker.submit(self._deleted.mark_saved(topic))

    def finish_dead(self) -> None:
        """Remove the queues of deleted topics that a crash or a stop left; part of the start, before recovery.

        Raises:
            OSError: The disk failed.
        """
        dead = [queue for queue in self._queues if self._is_dead(queue)]
        for queue in dead:
            self._queues.forget(queue)
            _remove_folder(self._files, queue.files.folder)
        for topic in {queue.topic for queue in dead}:
            if not self._files.list_dir(f"{self._top}/{topic}"):
                self._files.remove_dir(f"{self._top}/{topic}")
        if dead:
            self._files.sync_dir(self._top)
            log.info("queues of deleted topics are removed", count=len(dead))

    def _is_dead(self, queue: ConsumeQueue) -> bool:
        """Return whether all units of a queue are from before its topic's deletion.

        One later unit is enough for False, because a topic is created again only after all its files are gone. A unit
        that a crash tore may point anywhere before. If no unit is whole, recovery builds the queue from the log.
        """
        deletion = self._deleted.find(queue.topic_bytes)
        if deletion is None:
            return False
        index = queue.min_offset
        while (index := queue.next_present(index)) < queue.max_offset:
            units = queue.units(index, _UNITS_AT_ONCE)
            for offset, size, _ in UNIT.iter_unpack(units):
                if offset >= deletion.log_end and is_message_unit(offset, size):
                    return False
            index += len(units) // UNIT_SIZE_BYTES
        newest = queue.newest_message()
        offset = newest[1].physical_offset if newest is not None else 0
        return newest is None or self._deleted.covers(queue.topic_bytes, offset, self._stored_at(offset))

    def _stored_at(self, offset: int) -> int:
        """Return a record's store time, or 0 if there is no valid record."""
        head = self._log.find_head(offset)
        return head.stored_at_ms if head is not None else 0

    def _removing(self, noted: "Future[None]", topic: str) -> Iterator[None]:
        noted.result()  # Already done; it raises only for a bug.
        files, folder, count = self._files, f"{self._top}/{topic}", 0
        self._remover.give_up(folder)
        for name in files.list_dir(folder):
            inner = f"{folder}/{name}"
            for file in files.list_dir(inner):
                files.remove(f"{inner}/{file}")
                count += 1
                if count % SLICE_FILES_MAX == 0:
                    yield
            if files.is_dir(inner):
                files.remove_dir(inner)
        if files.is_dir(folder):
            files.remove_dir(folder)
            files.sync_dir(self._top)


def _note(note: Callable[[], None], topic: str) -> None:
    try:
        note()
    except OSError as error:
        # This does not stop the deletion, which is also a way to get room on a full disk.
        log.warning("a deletion can't be noted; messages may be back", topic=topic, reason=str(error))


def _remove_folder(files: FileSystem, folder: str) -> None:
    for name in files.list_dir(folder):
        files.remove(f"{folder}/{name}")
    if files.is_dir(folder):
        files.remove_dir(folder)
