"""The offset at which recovery begins to read the CommitLog: the latest one that is known to be safe.

- After an orderly stop of Gantry: the end of the log at the stop. Queues and index were flushed with the log. The
  manifest holds their sizes, so later changes of the store are noticed.
- After any other orderly stop: the start of the file with the last record that any queue knows.
- The whole log, if queues have lost units or files that they had at Gantry's last orderly stop or, after a crash, at
  the last checkpoint. Also the whole log, if a queue has a hole after an orderly stop: a file was removed or emptied.
- After a crash: the checkpoint's confirm offset, because the records before it and everything derived from them are on
  the disk. The start of its file, if no valid record begins or ends there, or if the last flush failed. The whole log,
  if the offset lies beyond the log, or nothing at all confirms it. In a store that Apache RocketMQ left: the start of a
  file that is old enough for the checkpoint's times. An earlier offset, if a queue has units that were never written,
  or a repaired file.
"""

from gantry.model.record import BLANK_BYTES_MIN, RECORD_MAGIC_V1, RECORD_MAGIC_V2, peek
from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import UNIT_SIZE_BYTES, Checkpoint, ConfirmOffset
from gantry.storeformat.manifest import DerivedState
from gantry.storeformat.resync import examine, is_filler
from services.broker.store.durability.checkpoint import StoreCheckpoint
from services.broker.store.folder.storefolder import StoreFolder
from services.broker.store.index.indexservice import IndexService
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.log.logscan import find_head
from services.broker.store.queues.consumequeue import ConsumeQueue, is_message_unit
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore

log = logger("broker.store")


class ScanStart:
    """Chooses the offset to begin at; changes nothing.

    Args:
        folder: Says whether the last stop was orderly, and what its manifest and checkpoint mean.
    """

    def __init__(
        self,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        *,
        checkpoint: StoreCheckpoint,
        folder: StoreFolder,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._checkpoint = checkpoint
        self._folder = folder

    def choose(self, *, is_thorough: bool) -> int:
        """Return the physical offset at which to begin; the log's first offset for a thorough start."""
        files, folder = self._log.files, self._folder
        first = files.first
        if first is None or is_thorough:
            return self._log.min_offset
        if self.is_untouched():
            stop = folder.manifest.clean_stop_offset
            assert stop is not None, "an untouched store has a clean stop"
            return stop
        if self._has_lost_units():
            return first.start
        if folder.is_clean and self._has_hole():
            log.warning("files between others of a ConsumeQueue are missing: the whole CommitLog is read to build them")
            return first.start
        if folder.is_clean and not self._queues.was_repaired:
            known_end = self._queues.max_physical_offset
            starts = [file.start for file in files if file.start < known_end]
            return starts[-1] if starts else first.start
        if all(queue.is_blank for queue in self._queues):
            return first.start
        # Gantry's checkpoint has an offset. RocketMQ's has only times, and a clock may be set back.
        if folder.is_ours and not self._is_possible_offset(folder.checkpoint_offset()):
            log.warning("the checkpoint's offset can't be right: the whole CommitLog is read")
            return first.start
        confirmed = start = folder.checkpoint_offset().offset if folder.is_ours else self.by_time()
        for queue in self._queues:
            blank = queue.find_blank()
            if blank is None and queue.files.was_repaired:
                blank = queue.max_offset  # The queue's last units may be missing.
            if blank is not None:
                start = min(start, self.before(queue, blank))
        if start < confirmed:
            log.warning("ConsumeQueues have blank units: the CommitLog is read from further back", start=start)
        elif folder.is_ours and folder.failed_flush is None and self._is_border(start):
            return start
        return self.file_start(start)

    def _is_possible_offset(self, confirmed: ConfirmOffset) -> bool:
        """Return whether the scan may begin at the checkpoint's offset: it is in the log, and at a record's border."""
        first, last = self._log.files.first, self._log.files.last
        if first is None or last is None or confirmed.offset <= first.start:
            return True
        return confirmed.offset <= last.end and (confirmed.is_checksummed or self._is_border(confirmed.offset))

    def is_untouched(self) -> bool:
        """Return whether the store is as Gantry left it at an orderly stop; then none of the log has to be read."""
        manifest, folder = self._folder.manifest, self._folder
        stop = manifest.clean_stop_offset
        return (
            folder.is_clean
            and stop is not None
            and self._checkpoint.value.confirm_physical_offset == stop
            and self._has_all_of(manifest.clean_stop_derived)
            and not self._queues.was_repaired
            and not self._has_hole()
            and self._log.files.find(stop - 1) is not None
        )

    def _has_all_of(self, before: DerivedState | None) -> bool:
        """Return whether the queues are as they were.

        A stop may come before the removal of expired files. indexgap.py checks the index.
        """
        now = derived_state(self._queues)
        return (
            before is not None
            and (before.queues, before.units) == (now.queues, now.units)
            and before.files <= now.files
        )

    def _has_hole(self) -> bool:
        """Return whether a queue has a hole, and the CommitLog still has a message after the hole.

        If the log has none, there is nothing to rebuild, and the next start would look again.
        """
        for queue in self._queues:
            for file in queue.files.behind_holes():
                found = queue.first_message_unit(file.start // UNIT_SIZE_BYTES, queue.max_offset)
                if found is not None and found[1].physical_offset >= self._log.min_offset:
                    return True
        return False

    def _has_lost_units(self) -> bool:
        """Return whether queues lack units of the last count. Deletions can explain it; retention never can.

        Also return True if they lack files and retention does not explain it: missing units before the last file do not
        change a queue's end.
        """
        folder = self._folder
        if not folder.is_ours or (folder.is_clean and self._was_changed_by_others()):
            return False
        before = self._counted_last()
        if before is None:
            return False
        offset, units_before, files_before = before
        if folder.is_clean:
            now = derived_state(self._queues)
            units, files = now.units, now.files
        else:
            units, files = self._held_before(offset)
        if units >= units_before and files >= files_before:
            return False
        log.warning(
            "files of ConsumeQueues are missing or empty: the whole CommitLog is read to build them",
            units=units,
            units_before=units_before,
            files=files,
            files_before=files_before,
        )
        return True

    def _counted_last(self) -> tuple[int, int, int] | None:
        """Return offset, units and files of the last count of the queues; files are 0 if they must not be compared.

        After a crash this is the checkpoint's count, at most two of its intervals old. The checkpoint has no count if
        an earlier release wrote it, or if a start went further back and did not finish. Then this is the count of the
        last start, or of the stop before.
        """
        manifest, deleted, count = self._folder.manifest, self._folder.deleted, self._checkpoint.count
        stop, opened = manifest.clean_stop_derived, manifest.opened_derived
        if count is not None and not self._folder.is_clean:
            offset, units, files, log_min, deletions = count
            # Retention removes files of queues only after it has removed files of the log.
            return (
                None
                if deleted.has_uncounted(offset, deletions)
                else (offset, units, files if log_min == self._log.min_offset else 0)
            )
        if stop is not None:
            return manifest.clean_stop_offset or 0, stop.units, stop.files if self._folder.is_clean else 0
        if opened is not None and not (manifest.opened_offset is not None and deleted.has_recent()):
            return manifest.opened_offset or 0, opened.units, 0
        return None

    def _held_before(self, physical_offset: int) -> tuple[int, int]:
        """Return the sum of the queues' max offsets when the log ended at an offset, and the number of their files."""
        units = files = 0
        for queue in self._queues:
            index = queue.first_from(physical_offset)
            while index < queue.max_offset and queue.unit(index).is_filler:
                index += 1  # Filler stands at the end of a queue if its last records were lost.
            units += index
            files += queue.files.count_before(index * UNIT_SIZE_BYTES)
        return units, files

    def _was_changed_by_others(self) -> bool:
        """Return whether another broker ran on the store after Gantry's orderly stop and changed checkpoint or log.

        A checkpoint that is missing or cut short has no content and is no sign of another broker: another broker would
        write the time of its last flush.
        """
        stop, checkpoint = self._folder.manifest.clean_stop_offset, self._checkpoint.value
        assert stop is not None, "the last one on the store was us, and stopped in order"
        return any(self._read(stop, 8)) or (checkpoint != Checkpoint() and checkpoint.confirm_physical_offset != stop)

    def _is_border(self, offset: int) -> bool:
        """Return whether a valid record begins or ends at an offset, or the filler of a file begins there."""
        newest = (found[1] for queue in self._queues if (found := queue.newest_message()) is not None)
        return self._is_valid_record(offset) or any(
            unit.physical_offset + unit.size_bytes == offset and self._is_valid_record(unit.physical_offset)
            for unit in newest
        )

    def _is_valid_record(self, offset: int) -> bool:
        """Return whether a valid record, or the filler of a file, begins at an offset."""
        file, head = self._log.files.find(offset), self._read(offset, BLANK_BYTES_MIN)
        if file is None or not head:
            return False
        size, magic = peek(head, 0)
        if magic not in {RECORD_MAGIC_V1, RECORD_MAGIC_V2}:
            return is_filler(head, 0, end=file.end - offset)
        data = self._read(offset, size)
        return bool(data) and examine(data, 0, end=size, base=offset, manifest=self._log.manifest).problem is None

    def _read(self, offset: int, size: int) -> bytearray:
        """Return bytes of one file; empty if missing or unreadable. Reading the map could end the process."""
        file = self._log.files.find(offset)
        if file is None or not 0 < size <= file.end - offset:
            return bytearray()
        try:
            return bytearray(file.file.read(offset - file.start, size))
        except OSError:
            return bytearray()

    def by_time(self) -> int:
        """Return the start of the newest file whose first record is old enough for the checkpoint, else of the log."""
        limit_ms = self._checkpoint.value.min_timestamp
        for file in reversed(list(self._log.files)):
            head = find_head(file, 0, self._log.manifest)
            if head is not None and 0 < head.stored_at_ms <= limit_ms:
                return file.start
        return self._log.min_offset

    def before(self, queue: ConsumeQueue, index: int) -> int:
        """Return the physical offset of a queue's last message before an index, or the log's first offset."""
        for before in queue.present_before(index):
            unit = queue.unit(before)
            if is_message_unit(unit.physical_offset, unit.size_bytes):
                return unit.physical_offset
        return self._log.min_offset

    def file_start(self, offset: int) -> int:
        """Return the start of the file that contains an offset; otherwise of the next file, or of the last one."""
        files = self._log.files
        file = files.find(offset) or files.following(offset) or files.last
        return file.start if file is not None else 0


def derived_state(queues: ConsumeQueueStore, index: IndexService | None = None) -> DerivedState:
    """Return the current size of the queues and, if an index is given, the offset up to which it reaches."""
    filled = [queue for queue in queues if not queue.is_blank]
    units, files = sum(queue.max_offset for queue in filled), sum(len(queue.files) for queue in filled)
    return DerivedState(len(filled), units, 0 if index is None else index.last_update[1], files)
