"""Recovery: the work of a start before the store serves requests, after an orderly stop and after a crash.

1. Choose the offset at which to begin (scanstart.py).
2. Read the log from there. Put every valid record where it belongs: correct units that differ, and add index entries.
   (The index entries from there on were dropped, because they may be torn.) If queue offsets are skipped because their
   records are lost, put filler in their place, so readers skip them and later messages keep their offsets.
3. Find the end of the log. It is after the last record, or after the last position where a Gantry unit proves that a
   record was stored. Such a record is damaged, not torn: its queue offset is not used again.
4. Cut units that promise more than the log has, set bytes after the end to zero, sync everything, and write a
   checkpoint. After a failed flush, or if the disk can't read a part of the last file, continue in a new file.

Recovery keeps records after a hole. A power cut may have left them there although they were never acknowledged. But
recovery can't tell them from acknowledged records after damage. It is allowed to show a message that was not
acknowledged; it is not allowed to lose an acknowledged one (ADR-0004).

Another crash may interrupt any step. The next start then repeats the step: no step erases a valid record.
"""

from gantry.model.record import RECORD_BYTES_MIN, RecordHead
from gantry.runtime.files import FileSystem
from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import FILLER_UNIT, UNIT, Checkpoint
from services.broker.store.dispatchrequest import DispatchRequest, DispatchRequestMaker
from services.broker.store.durability.checkpoint import StoreCheckpoint
from services.broker.store.durability.derivedsync import DerivedSync
from services.broker.store.files.mappedfile import DroppedFiles, remove_file
from services.broker.store.folder.storefolder import StoreFolder
from services.broker.store.index.indexservice import IndexService
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.queues.consumequeue import ConsumeQueue, is_message_unit
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore
from services.broker.store.recovery.indexgap import IndexGap
from services.broker.store.recovery.logend import LogEnd
from services.broker.store.recovery.plausibility import has_plausible_place
from services.broker.store.recovery.scanstart import ScanStart
from services.broker.store.recovery.storetimes import last_stored_ms
from services.broker.store.results import RecoveryReport

INDEX_ROUND_MAX = 1024

log = logger("broker.store")


class Recovery:
    """One recovery of one store.

    Args:
        with_index: Whether to repair the index, too; otherwise it is not changed.
        request_maker: Derives the entries for queues and index from records.
        folder: Says whether the last stop was orderly, whether the checkpoint's confirm offset has Gantry's meaning,
            and which records belong to deleted topics: queues and index get no entries for them.
        derived_sync: Makes queues and index durable.
        now_ms: Wall time.
        is_thorough: Whether to read the whole log, regardless of checkpoint and queues.
    """

    def __init__(
        self,
        files: FileSystem,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        index_files: IndexService,
        *,
        with_index: bool,
        request_maker: DispatchRequestMaker,
        checkpoint: StoreCheckpoint,
        folder: StoreFolder,
        derived_sync: DerivedSync,
        now_ms: int,
        is_thorough: bool = False,
    ) -> None:
        self._files = files
        self._log = commit_log
        self._queues = queues
        self._index = index_files if with_index else None
        self._maker = request_maker
        self._deleted = folder.deleted
        self._checkpoint = checkpoint
        self._is_clean = folder.is_clean
        self._is_ours = folder.is_ours
        self._failed_flush = folder.failed_flush
        self._derived_sync = derived_sync
        self._now_ms = now_ms
        self._is_thorough = is_thorough
        self._where = ScanStart(commit_log, queues, checkpoint=checkpoint, folder=folder)
        self._checkpoint_offset, self._is_offset_checksummed = folder.checkpoint_offset()
        self._log_end = LogEnd(commit_log, checkpoint_offset=self._checkpoint_offset)
        self._index_gap = IndexGap(commit_log, index_files, folder)
        self._start = 0
        self._scan_end = 0
        self._records = 0
        self._lost: list[tuple[int, int]] = []
        self._lost_bytes = 0
        self._seen: dict[ConsumeQueue, int] = {}
        self._to_index: list[DispatchRequest] = []
        self._missing: tuple[tuple[int, int], ...] = ()
        self._repaired = self._cut = self._skipped = self._removed = self._torn = 0

    def run(self) -> RecoveryReport:
        """Recover.

        Raises:
            StoreFullError: There is no room for a file that must be rebuilt.
            StoreWriteError: The disk failed to write the end of a file that is given up.
            CorruptStoreError: The disk can't read too many parts of the log.
            OSError: The disk failed.
        """
        if self._is_ours:
            # If recovery reads no record, no record before the confirm offset is newer than this time.
            value, now_ms = self._checkpoint.value, self._now_ms
            self._log.stored_at_ms = last_stored_ms(value, self._log, self._queues, now_ms=now_ms)
        flushed_at_ms = self._log.stored_at_ms
        self._begin_at(self._where.choose(is_thorough=self._is_thorough))
        index_gone = self._repair_index()
        while (earlier := self._scan_log()) is not None:
            self._begin_at(earlier)
        end = self._find_end()
        self._missing = self._log_end.missing(end)
        self._finish_queues(end)
        if self._index is not None:
            self._index.write_headers()
        self._zero_after(end)
        self._open_at(end)
        self._log.open_times(flushed_at_ms, now_ms=self._now_ms)
        self._queues.correct_min(self._log.min_offset)
        report = RecoveryReport(
            was_clean=self._is_clean,
            log_min_offset=self._log.min_offset,
            log_end_offset=self._log.next_offset,
            scanned_from=self._start,
            records=self._records,
            lost=tuple(self._lost),
            torn_bytes=self._torn,
            units_mended=self._repaired,
            units_skipped=self._skipped,
            units_cut=self._cut,
            index_entries_mended=index_gone,
            files_removed=self._removed,
            index_missing=self._index_gap.left,
            missing=self._missing,
            unreadable=tuple(self._log_end.unreadable),
            flush_failed=self._failed_flush.reason if self._failed_flush is not None else "",
            acknowledged_lost=self._acknowledged_lost(),
        )
        _log_report(report)
        return report

    def _begin_at(self, start: int) -> None:
        """Begin at an offset; if the checkpoint reaches further, correct it before anything else is changed.

        Otherwise another crash could leave half-done repairs before the checkpoint's offset, and the recovery after
        that crash would not look there.
        """
        self._start = start
        self._log_end.read_from(start)
        value, count = self._checkpoint.value, self._checkpoint.count
        if self._is_ours:
            if start < value.confirm_physical_offset:
                is_of_start = count is not None and count.confirm_physical_offset == start
                self._checkpoint.write(Checkpoint(confirm_physical_offset=start), count if is_of_start else None)
        elif value != Checkpoint() and start < self._where.by_time():
            self._checkpoint.write(Checkpoint())

    def _repair_index(self) -> int:
        """Drop the index entries that the scan will add again, and torn ones; return the number of dropped entries."""
        if self._index is None:
            return 0
        is_repaired = self._is_thorough or not self._is_clean or self._index_gap.is_missing_behind(self._start)
        begin = self._index_gap.rebuild_from(self._start, is_repaired=is_repaired)
        if begin < self._start:
            self._begin_at(begin)
        elif not is_repaired:
            return 0
        is_synced = self._is_ours and self._start <= self._checkpoint_offset
        gone = self._index.repair(self._start, self._log.find_head, is_synced=is_synced)
        if not self._is_ours and not self._is_thorough and len(self._index) > 0:
            # RocketMQ syncs index files when they are full, so missing entries may be older than its checkpoint.
            self._begin_at(min(self._start, self._where.file_start(self._index.last_update[1])))
        return gone

    # Reading the log.

    def _scan_log(self) -> int | None:
        """Put every record where it belongs; return an earlier offset to begin at if a queue needs it, or None."""
        self._records = self._lost_bytes = self._skipped = 0
        self._lost.clear()
        self._seen.clear()
        self._to_index.clear()
        for each in self._queues:
            each.skipped = 0
        indexed_to = self._index.last_update[1] if self._index is not None else self._log_end.files_end
        scan = self._log.scan(self._note_lost)
        for at, head, _ in scan.records(self._start, self._log_end.files_end):
            self._records += 1
            self._log.stored_at_ms = head.stored_at_ms
            if self._deleted.covers(head.topic, at, head.stored_at_ms):
                continue
            # Records that the index already has need no lookup of keys.
            request = self._maker.from_record(head, with_keys=at >= indexed_to)
            if request is None:
                continue
            queue = request.queue
            if queue is not None:
                if not has_plausible_place(
                    self._log,
                    queue,
                    head,
                    expected=self._seen.get(queue),
                    scan_start=self._start,
                    lost_bytes=self._lost_bytes,
                ):
                    self._note_lost(at, at + head.size_bytes)
                    continue
                earlier = self._place(queue, request, head)
                if earlier is not None:
                    return earlier
            if at >= indexed_to:
                self._to_index.append(request)
                if len(self._to_index) >= INDEX_ROUND_MAX:
                    self._index_entries()
        self._index_entries()
        self._scan_end = scan.end
        return None

    def _index_entries(self) -> None:
        if self._index is not None:
            self._index.put_all(self._to_index)
        self._to_index.clear()

    def _note_lost(self, start: int, end: int) -> None:
        self._lost.append((start, end))
        self._lost_bytes += end - start

    def _place(self, queue: ConsumeQueue, request: DispatchRequest, head: RecordHead) -> int | None:
        index = request.queue_offset
        expected = self._seen.get(queue)
        if expected is None:
            earlier = self._find_earlier_start(queue, index)
            if earlier is not None:
                return earlier
        elif index < expected:
            # The queue restarted: its topic was deleted and created again. The queue's earlier messages are gone for
            # good.
            self._cut += queue.max_offset - index
            self._remove(queue.truncate(index))
        elif index > expected:
            self._fill(queue, expected, index)
        if queue.is_blank and index > 0:
            # The queue's first file was created ahead of a message that never came: the queue begins where the log
            # says.
            self._remove(queue.truncate(0))
        before = queue.skipped
        unit = UNIT.pack(head.physical_offset, head.size_bytes, request.tags_code_in(queue))
        if len(queue.files) == 0:
            self._queues.make_folder(queue)
        if queue.repair_unit(index, unit):
            self._repaired += 1
        self._skipped += queue.skipped - before
        self._seen[queue] = index + 1
        return None

    def _find_earlier_start(self, queue: ConsumeQueue, index: int) -> int | None:
        """Check a queue's units before its first record of this scan; return an earlier offset to begin at, or None.

        In a store of RocketMQ, a queue without any unit may begin late: its topic was deleted, and only the log shows
        it.
        """
        if queue.is_blank and not self._is_ours:
            return None
        missing = index - queue.max_offset
        if missing > 0 and missing * RECORD_BYTES_MIN > self._lost_bytes:
            earlier = self._where.file_start(self._where.before(queue, queue.max_offset))
            if earlier < self._start:
                gap = {"path": queue.files.folder, "units": queue.max_offset, "found_offset": index, "start": earlier}
                log.warning("a ConsumeQueue lacks units: the CommitLog is read from further back to build them", **gap)
                return earlier
        before = min(index, queue.max_offset)
        while before > queue.min_offset:
            unit = queue.unit(before - 1)
            if unit.is_valid and (unit.is_filler or unit.physical_offset < self._start):
                break
            if not unit.is_valid:
                earlier = self._where.file_start(self._where.before(queue, before - 1))
                if earlier < self._start:
                    return earlier
            before -= 1
        self._fill(queue, before, min(index, queue.max_offset))
        return None

    def _fill(self, queue: ConsumeQueue, start: int, end: int) -> None:
        """Put filler at the offsets of lost records."""
        for index in range(start, min(end, queue.max_offset)):
            if queue.repair_unit(index, FILLER_UNIT):
                queue.skipped += 1
            self._skipped += 1

    # Finding the end.

    def _find_end(self) -> int:
        end = self._scan_end
        stop = self._log.manifest.clean_stop_offset
        if self._is_clean and stop is not None and self._log_end.is_plausible(stop):
            end = max(end, stop)
        for queue in self._queues:
            found = queue.first_message_unit(self._tail_start(queue), queue.max_offset)
            while found is not None:
                index, unit = found
                if unit.physical_offset >= self._scan_end and self._log_end.was_written(
                    unit.physical_offset, unit.size_bytes
                ):
                    end = max(end, unit.physical_offset + unit.size_bytes)
                found = queue.first_message_unit(index + 1, queue.max_offset)
        end = self._log_end.behind(end)
        self._lost = [(start, stop) for start, stop in self._lost if start < self._scan_end]
        if end > self._scan_end:
            self._lost.append((self._scan_end, end))
        return end

    def _tail_start(self, queue: ConsumeQueue) -> int:
        """Return the first unit after those whose records were read, or lie before the scan."""
        seen = self._seen.get(queue)
        if seen is not None:
            return seen
        for index in queue.present_before(queue.max_offset):
            unit = queue.unit(index)
            if unit.is_valid and (unit.is_filler or unit.physical_offset < self._start):
                return index + 1
        return queue.min_offset

    def _finish_queues(self, end: int) -> None:
        """For units after the last record read: put filler where a record was lost, and cut the others."""
        for queue in self._queues:
            for index in range(self._tail_start(queue), queue.max_offset):
                unit = queue.unit(index)
                is_message = is_message_unit(unit.physical_offset, unit.size_bytes)
                if (is_message and self._is_lost(unit.physical_offset, end)) or unit.is_filler:
                    self._fill(queue, index, index + 1)
                    continue
                self._cut += queue.max_offset - index
                self._remove(queue.truncate(index))
                break
            queue.next_offset = queue.max_offset

    def _is_lost(self, offset: int, end: int) -> bool:
        return offset < end and any(start <= offset < stop for start, stop in self._lost)

    def _acknowledged_lost(self) -> tuple[int, int] | None:
        """Return the range at the log's end that was acknowledged but is not on the disk, or None."""
        # One flipped bit of the field must not look like a disk that lost data.
        known = self._checkpoint_offset if self._is_offset_checksummed else 0
        if self._failed_flush is not None and self._failed_flush.acknowledged_offset is not None:
            known = max(known, self._failed_flush.acknowledged_offset)
        is_lost = not self._is_clean and self._scan_end < known and self._log_end.is_plausible(known)
        return (self._scan_end, known) if is_lost else None

    def _open_at(self, end: int) -> None:
        """Let the log continue at its end, or in a new file if the current one has proved unreliable."""
        self._log.open_at(end)
        if self._failed_flush is not None or self._log_end.needs_new_file(end):
            self._log.start_new_file()

    def _zero_after(self, end: int) -> None:
        files = self._log.files
        file = files.find(end)
        if file is not None:
            self._torn += file.zero_from(end - file.start)
        dropped = files.drop_from(files.start_of(end) + files.file_size)
        if dropped:
            # The cut units come first: a unit that points to a missing file would mean that somebody removed the file.
            self._derived_sync.sync_now()
        for file in dropped:
            written = file.written_range(0)
            if written is not None:
                self._torn += written[1] - written[0]
            else:
                self._removed -= 1  # The file was only created ahead.
        self._remove(dropped)
        if dropped:
            self._files.sync_dir(files.folder)
        for file in files:
            # The data that was read may only be in memory. It must not be dispatched, read and then lost in a power
            # cut.
            if file.end > self._start:
                file.sync()

    def _remove(self, dropped: DroppedFiles) -> None:
        for file in dropped:
            file.close()
            remove_file(self._files, file.path)
            self._removed += 1


def _log_report(report: RecoveryReport) -> None:
    """Log the report, and the losses that a person must know of."""
    log.info("store recovered", **{key: value for key, value in report._asdict().items() if value})
    for start, end in report.missing:
        log.error("files of the CommitLog are missing; their messages are lost", start=start, end=end)
    if report.acknowledged_lost is not None:
        start, end = report.acknowledged_lost
        log.error("the disk does not have what was acknowledged", start=start, end=end, bytes=end - start)
