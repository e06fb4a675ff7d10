"""Verifies the CommitLog: every record, every gap and the tail; also collects what each queue must hold.

The meaning of the bytes after the last record depends on the context. After a crash they are the append that was
interrupted, and recovery drops them. After an orderly stop they are left over from an earlier cut and harmless, unless
a unit or the manifest shows that the log reached further.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from gantry.model import sysflag
from gantry.storeformat.blankfile import is_blank_file
from gantry.storeformat.commitlog import Damage, Tail
from gantry.storeformat.findings import Report
from gantry.storeformat.resync import LogRecord
from gantry.storeformat.scan import StoreReader, usual_size

KIND = "commitlog"

OnProgress = Callable[[int, int], None]
"""Called now and then with the number of bytes read so far and the total."""


@dataclass(slots=True)
class QueueRecords:
    """The records of one queue in the log since its offsets last restarted (the deletion of a topic restarts them)."""

    first: int
    last: int
    count: int


@dataclass(slots=True)
class LogFacts:
    """The facts about the log that the other verifications need."""

    start: int = 0
    end: int = 0
    damages: list[Damage] = field(default_factory=list)
    tail: Tail | None = None
    last_stored_at_ms: int = 0
    queues: dict[tuple[bytes, int], QueueRecords] = field(default_factory=dict)
    _damage_starts: list[int] = field(default_factory=list)

    def is_damaged(self, physical_offset: int) -> bool:
        """Return whether an offset lies in damaged bytes."""
        if not self._damage_starts and self.damages:
            self._damage_starts = [damage.start for damage in self.damages]
        at = bisect_right(self._damage_starts, physical_offset) - 1
        return at >= 0 and physical_offset < self.damages[at].end

    def add(self, record: LogRecord) -> None:
        """Count a record for its queue."""
        head = record.head
        kind = head.sys_flag & sysflag.TRANSACTION_MASK
        if kind in (sysflag.TRANSACTION_PREPARED, sysflag.TRANSACTION_ROLLBACK) or head.sys_flag & sysflag.INNER_BATCH:
            return  # Such a record is in no queue, or in a batch queue.
        key = (head.topic, head.queue_id)
        known = self.queues.get(key)
        if known is None or head.queue_offset <= known.last:
            self.queues[key] = QueueRecords(head.queue_offset, head.queue_offset, 1)
        else:
            known.last = head.queue_offset
            known.count += 1


def verify_log(reader: StoreReader, report: Report, on_progress: OnProgress | None = None) -> LogFacts:
    """Read the whole log and report problems with its bytes, except for the tail, which `verify_tail` checks."""
    _verify_files(reader, report)
    facts = LogFacts(start=reader.log_start)
    scan = reader.scan()
    total = sum(file.size_bytes for file in reader.log_files)
    names: dict[int, str] = {}
    for record in scan:
        if on_progress is not None and scan.records_count % 1024 == 0:
            on_progress(record.offset - facts.start, total)
        if record.crc.is_good:
            facts.add(record)
        else:
            head = record.head
            topic = head.topic.decode("utf-8", "replace")
            names[record.offset] = f" (topic {topic}, queue {head.queue_id}, queue offset {head.queue_offset})"
    facts.damages = scan.damages
    for damage in scan.damages:
        owner = names.get(damage.start, "")
        text = f"no readable record{owner}: {damage.reason}"
        report.problem(KIND, damage.path, text, offset=damage.start, size_bytes=damage.size_bytes)
        report.damaged_bytes += damage.size_bytes
    facts.end, facts.tail, facts.last_stored_at_ms = scan.end, scan.tail, scan.last_stored_at_ms
    report.min_offset, report.max_offset, report.records = facts.start, facts.end, scan.records_count
    return facts


def verify_tail(reader: StoreReader, facts: LogFacts, report: Report, *, units_end: int, units_at_end: bool) -> None:
    """Decide what the bytes after the last record mean, and report them.

    Args:
        reader: The store.
        facts: The facts about the store's log.
        report: The report to add to.
        units_end: The greatest end of a record that a unit points to.
        units_at_end: Whether a unit points exactly to the end of the log, where there is no record.
    """
    tail = facts.tail
    manifest_end = reader.manifest.clean_stop_offset if reader.manifest else None
    expected = max(units_end, manifest_end or 0)
    path = tail.path if tail else reader.path(KIND)
    is_lost = expected > facts.end and not (tail is not None and tail.is_older)
    if is_lost and reader.has_abort:
        # Units may have reached the disk before their records did. A record that begins but does not end is worse if it
        # was dispatched: it was complete once.
        is_lost = units_at_end and tail is not None and tail.is_record_like
    if is_lost:
        lost = expected - facts.end
        reason = f": {tail.reason}" if tail else ""
        text = f"records at the end of the log are missing or unreadable{reason}"
        report.problem(KIND, path, text, offset=facts.end, size_bytes=lost)
        report.damaged_bytes += lost
    elif tail is not None and tail.size_bytes:
        if reader.has_abort and not tail.is_older:
            text = "a torn append follows the last record; recovery drops it"
        else:
            text = "the bytes after the last record are left over from records that were cut earlier"
        report.note(KIND, path, text, offset=facts.end, size_bytes=tail.size_bytes)


def _verify_files(reader: StoreReader, report: Report) -> None:
    usual = usual_size([file.size_bytes for file in reader.log_files if not is_blank_file(reader.files, file.path)])
    for file in reader.log_files:
        if not usual or file.size_bytes == usual:
            continue
        if reader.has_abort and file.size_bytes < usual and is_blank_file(reader.files, file.path):
            report.note(KIND, file.path, "the broker crashed while it made the file; recovery removes it")
            continue
        text = f"the file has {file.size_bytes} bytes, the others have {usual}"
        report.problem(KIND, file.path, text, offset=file.start, size_bytes=abs(usual - file.size_bytes))
