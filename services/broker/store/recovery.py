"""Recovery: what a start does before the store is served, after an orderly stop and after a crash.

1. Choose where to begin. After an orderly stop: the file with the last record that any queue knows. After a crash:
   the file up to which the checkpoint says that everything derived is on the disk, or an earlier one if a queue has
   units that were never written.
2. Go through the log from there. Every record that proves itself is put where it belongs: units that differ are set
   right, index entries (those from there on were dropped, since they may be torn) are added. Where queue offsets are skipped, because their records are lost,
   filler stands in their place, so that readers go over them and later messages keep their offsets.
3. Find the end of the log: behind the last record, or behind the last place of which a unit of our own proves that a
   record had been stored there (that record is damaged, not torn: its queue offset is not given away again).
4. Cut what promises more than there is, wipe what a crash left behind the end, sync everything, write a checkpoint.

Records behind a hole are kept although a power cut may have left them there without anybody having been told that
they were stored: from here they can't be told from acknowledged ones behind damage, and showing a message whose
sender got no answer is allowed, losing one is not (ADR-0004).

Every step may be cut off by another crash and done again: nothing is wiped that proved itself.
"""

from gantry.model.names import SCHEDULE_TOPIC
from gantry.model.record import RECORD_BYTES_MIN, RecordHead
from gantry.runtime.files import FileSystem
from gantry.storeformat.layout import FILLER_UNIT, UNIT, Checkpoint
from gantry.storeformat.resync import examine
from services.broker.store.checkpoint import StoreCheckpoint
from services.broker.store.claims import is_believable
from services.broker.store.commitlog import CommitLog
from services.broker.store.consumequeue import ConsumeQueue, is_message_unit
from services.broker.store.consumequeuestore import ConsumeQueueStore
from services.broker.store.entry import Entry, EntryMaker
from services.broker.store.indexservice import IndexService
from services.broker.store.logscan import first_head
from services.broker.store.mappedfile import MappedFile, remove_file
from services.broker.store.results import RecoveryReport
from services.broker.store.storefolder import StoreFolder

INDEX_ROUND_MAX = 1024


class Recovery:
    """One recovery of one store.

    Args:
        entries: Says what a record means to queues and index.
        folder: Says whether the last stop was orderly, whether the checkpoint's confirm offset means what we mean by
            it, and which records are of deleted topics: they mean nothing to queues and index.
        is_thorough: Go through the whole log, whatever checkpoint and queues say.
    """

    def __init__(
        self,
        files: FileSystem,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        index: IndexService | None,
        *,
        entries: EntryMaker,
        checkpoint: StoreCheckpoint,
        folder: StoreFolder,
        is_thorough: bool = False,
    ) -> None:
        self._files = files
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._entries = entries
        self._deleted = folder.deleted
        self._checkpoint = checkpoint
        self._is_clean = folder.is_clean
        self._is_ours = folder.is_ours
        self._is_thorough = is_thorough
        self._start = 0
        self._scan_end = 0
        self._records = 0
        self._lost: list[tuple[int, int]] = []
        self._lost_bytes = 0
        self._seen: dict[ConsumeQueue, int] = {}
        self._to_index: list[Entry] = []
        self._mended = self._cut = self._skipped = self._removed = self._torn = 0

    def run(self, foreign_index_files: tuple[str, ...] = ()) -> RecoveryReport:
        """Recover.

        Raises:
            StoreFullError: There is no room for a file that has to be built again.
            OSError: The disk refused.
        """
        self._begin_at(self._first_start())
        index_gone = self._mend_index()
        while (earlier := self._go_through()) is not None:
            self._begin_at(earlier)
        end = self._find_end()
        self._finish_queues(end)
        if self._index is not None:
            self._index.write_headers()
        self._wipe_behind(end)
        self._log.open_at(end)
        self._queues.correct_min(self._log.min_offset)
        return RecoveryReport(
            was_clean=self._is_clean,
            log_min_offset=self._log.min_offset,
            log_end_offset=end,
            scanned_from=self._start,
            records=self._records,
            lost=tuple(self._lost),
            torn_bytes=self._torn,
            units_mended=self._mended,
            units_skipped=self._skipped,
            units_cut=self._cut,
            index_entries_mended=index_gone,
            files_removed=self._removed,
            foreign_index_files=foreign_index_files,
        )

    def _files_end(self) -> int:
        last = self._log.files.last
        return last.end if last is not None else 0

    def _begin_at(self, start: int) -> None:
        """Begin there; if the checkpoint says that this is not needed, correct it before anything is changed.

        Otherwise another crash could leave half of what is mended before the checkpoint's offset, and the recovery
        after it would not look there.
        """
        self._start = start
        value = self._checkpoint.value
        if self._is_ours:
            if start < self._file_start(value.confirm_physical_offset):
                self._checkpoint.write(Checkpoint(confirm_physical_offset=start))
        elif value != Checkpoint() and start < self._start_by_time():
            self._checkpoint.write(Checkpoint())

    def _mend_index(self) -> int:
        """Drop the index entries that the scan puts back, and what is torn; return how many went."""
        if self._index is None or (self._is_clean and not self._is_thorough):
            return 0
        gone = self._index.mend(self._start, self._is_record)
        if not self._is_ours and not self._is_thorough and len(self._index) > 0:
            # RocketMQ syncs index files when they are full: what is missing may be older than its checkpoint.
            self._begin_at(min(self._start, self._file_start(self._index.last_update[1])))
        return gone

    def _is_record(self, offset: int) -> bool:
        file = self._log.files.find(offset)
        if file is None:
            return False
        at, end = offset - file.start, len(file.memory)
        return examine(file.memory, at, end=end, base=file.start, mark=self._log.mark).problem is None

    # Where to begin.

    def _first_start(self) -> int:
        first = self._log.files.first
        if first is None or self._is_thorough:
            return self._log.min_offset
        if self._is_clean:
            known_end = self._queues.max_physical_offset
            starts = [file.start for file in self._log.files if file.start < known_end]
            return starts[-1] if starts else first.start
        if all(len(queue.files) == 0 for queue in self._queues):
            return self._log.min_offset
        # Ours says an offset; RocketMQ's only times, and a clock may be set back.
        start = self._checkpoint.value.confirm_physical_offset if self._is_ours else self._start_by_time()
        for queue in self._queues:
            blank = queue.find_blank()
            if blank is not None:
                start = min(start, self._offset_before(queue, blank))
        return self._file_start(start)

    def _start_by_time(self) -> int:
        """Return the newest file that begins with a record old enough for the checkpoint, or the first file."""
        limit_ms = self._checkpoint.value.min_timestamp
        for file in reversed(list(self._log.files)):
            head = first_head(file, self._log.mark)
            if head is not None and 0 < head.stored_at_ms <= limit_ms:
                return file.start
        return self._log.min_offset

    def _offset_before(self, queue: ConsumeQueue, index: int) -> int:
        """Return where the last message of a queue before an index lies, or the log's beginning."""
        for before in range(index - 1, queue.min_offset - 1, -1):
            unit = queue.unit(before)
            if is_message_unit(unit.physical_offset, unit.size_bytes):
                return unit.physical_offset
        return self._log.min_offset

    def _file_start(self, offset: int) -> int:
        """Return the start of the file that holds an offset, else of the next one there is, else of the last one."""
        files = self._log.files
        file = files.find(offset) or files.following(offset) or files.last
        return file.start if file is not None else 0

    # Going through the log.

    def _go_through(self) -> int | None:
        """Put every record where it belongs; return an earlier place to begin if a queue turns out to need it."""
        self._records = self._lost_bytes = self._skipped = 0
        self._lost.clear()
        self._seen.clear()
        self._to_index.clear()
        for each in self._queues:
            each.skipped = 0
        indexed_to = self._index.last_update[1] if self._index is not None else self._files_end()
        scan = self._log.scan(self._note_lost)
        for at, head, _ in scan.records(self._start, self._files_end()):
            self._records += 1
            self._log.stored_at_ms = head.stored_at_ms
            if self._deleted.covers(head.topic, at, head.stored_at_ms):
                continue
            # What the index has already needs no keys looked up.
            entry = self._entries.from_record(head, with_keys=at >= indexed_to)
            if entry is None:
                continue
            queue = entry.queue
            if queue is not None:
                if not is_believable(
                    self._log,
                    queue,
                    head,
                    expected=self._seen.get(queue),
                    scan_start=self._start,
                    lost_bytes=self._lost_bytes,
                ):
                    self._note_lost(at, at + head.size_bytes)
                    continue
                earlier = self._place(queue, entry, head)
                if earlier is not None:
                    return earlier
            if at >= indexed_to:
                self._to_index.append(entry)
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

    def _place(self, queue: ConsumeQueue, entry: Entry, head: RecordHead) -> int | None:
        index = entry.queue_offset
        expected = self._seen.get(queue)
        if expected is None:
            earlier = self._look_back(queue, index)
            if earlier is not None:
                return earlier
        elif index < expected:
            # The queue began anew: its topic was deleted and made again. What it had before is gone for good.
            self._cut += queue.max_offset - index
            self._remove(queue.cut(index))
        elif index > expected:
            self._fill(queue, expected, index)
        before = queue.skipped
        unit = UNIT.pack(head.physical_offset, head.size_bytes, self._tags_code(queue, entry))
        if len(queue.files) == 0:
            self._queues.make_folder(queue)
        if queue.put_right(index, unit):
            self._mended += 1
        self._skipped += queue.skipped - before
        self._seen[queue] = index + 1
        return None

    @staticmethod
    def _tags_code(queue: ConsumeQueue, entry: Entry) -> int:
        """Return a unit's last field; when a delayed message is due was decided by the delay levels of its time."""
        if entry.topic == SCHEDULE_TOPIC and entry.queue_offset < queue.max_offset:
            unit = queue.unit(entry.queue_offset)
            if unit[:2] == entry[:2]:
                return unit.tags_code
        return entry.tags_code

    def _look_back(self, queue: ConsumeQueue, index: int) -> int | None:
        """Check what a queue says just before its first record of this scan; return where to begin instead, or None.

        A queue without any file begins late: its topic was deleted, and only the log remembers.
        """
        if len(queue.files) == 0:
            return None
        missing = index - queue.max_offset
        if missing > 0 and missing * RECORD_BYTES_MIN > self._lost_bytes:
            earlier = self._file_start(self._offset_before(queue, queue.max_offset))
            if earlier < self._start:
                return earlier
        before = min(index, queue.max_offset)
        while before > queue.min_offset:
            unit = queue.unit(before - 1)
            if unit.is_valid and (unit.is_filler or unit.physical_offset < self._start):
                break
            if not unit.is_valid:
                earlier = self._file_start(self._offset_before(queue, before - 1))
                if earlier < self._start:
                    return earlier
            before -= 1
        self._fill(queue, before, min(index, queue.max_offset))
        return None

    def _fill(self, queue: ConsumeQueue, start: int, end: int) -> None:
        """Put filler where the records are lost."""
        for index in range(start, min(end, queue.max_offset)):
            if queue.put_right(index, FILLER_UNIT):
                queue.skipped += 1
            self._skipped += 1

    # The end.

    def _find_end(self) -> int:
        end = self._scan_end
        stop = self._log.mark.clean_stop_offset
        if self._is_clean and stop is not None and stop <= self._files_end():
            end = max(end, stop)
        for queue in self._queues:
            for index in range(self._tail_start(queue), queue.max_offset):
                unit = queue.unit(index)
                if (
                    is_message_unit(unit.physical_offset, unit.size_bytes)
                    and unit.physical_offset >= self._scan_end
                    and self._was_written(unit.physical_offset, unit.size_bytes)
                ):
                    end = max(end, unit.physical_offset + unit.size_bytes)
        self._lost = [(start, stop) for start, stop in self._lost if start < self._scan_end]
        if end > self._scan_end:
            self._lost.append((self._scan_end, end))
        return end

    def _was_written(self, offset: int, size: int) -> bool:
        """Say whether a record of ours lay there: a unit is made only of what is flushed, and bytes are there.

        Not in the part that Apache RocketMQ wrote: it leaves units behind that it has cut off.
        """
        file = self._log.files.find(offset)
        if file is None or offset + size > file.end or not self._log.mark.demands_record_crc(offset):
            return False
        at = offset - file.start
        return file.memory[at : at + 8] != bytes(8) and file.memory[at + size - 8 : at + size] != bytes(8)

    def _tail_start(self, queue: ConsumeQueue) -> int:
        """Return the first unit behind those whose records were seen, or lie before the scan."""
        seen = self._seen.get(queue)
        if seen is not None:
            return seen
        index = queue.max_offset
        while index > queue.min_offset:
            unit = queue.unit(index - 1)
            if unit.is_valid and (unit.is_filler or unit.physical_offset < self._start):
                break
            index -= 1
        return index

    def _finish_queues(self, end: int) -> None:
        """Let the units behind the last record seen be filler where a record was lost, and cut the others."""
        for queue in self._queues:
            for index in range(self._tail_start(queue), queue.max_offset):
                unit = queue.unit(index)
                is_message = is_message_unit(unit.physical_offset, unit.size_bytes)
                if (is_message and self._is_lost(unit.physical_offset, end)) or unit.is_filler:
                    self._fill(queue, index, index + 1)
                    continue
                self._cut += queue.max_offset - index
                self._remove(queue.cut(index))
                break
            queue.next_offset = queue.max_offset

    def _is_lost(self, offset: int, end: int) -> bool:
        return offset < end and any(start <= offset < stop for start, stop in self._lost)

    def _wipe_behind(self, end: int) -> None:
        files = self._log.files
        file = files.find(end)
        if file is not None:
            self._torn += file.zero_from(end - file.start)
        dropped = files.drop_from(files.start_of(end) + files.file_size)
        for file in dropped:
            written = file.written_range(0)
            if written is not None:
                self._torn += written[1] - written[0]
            else:
                self._removed -= 1  # Only made ahead.
        self._remove(dropped)
        if dropped:
            self._files.sync_dir(files.folder)
        for file in files:
            # What was read may only be in memory: it must not be dispatched, read and then lost in a power cut.
            if file.end > self._start:
                file.sync()

    def _remove(self, dropped: list[MappedFile]) -> None:
        for file in dropped:
            file.close()
            remove_file(self._files, file.path)
            self._removed += 1
