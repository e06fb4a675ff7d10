"""Verifies the ConsumeQueues: each unit must point to a record with the same position, and no unit may be missing."""

from dataclasses import dataclass

from gantry.model.errors import RecordError
from gantry.model.javahash import tags_code
from gantry.model.message import find_property
from gantry.model.names import LMQ_PREFIX, SCHEDULE_TOPIC
from gantry.model.record import RecordHead, parse_head
from gantry.storeformat.blankfile import is_blank_file
from gantry.storeformat.consumequeue import PlacedUnit, QueueFiles
from gantry.storeformat.findings import Report
from gantry.storeformat.layout import UNIT_SIZE_BYTES
from gantry.storeformat.scan import StoreReader
from gantry.storeformat.verifylog import LogFacts, QueueRecords

KIND = "consumequeue"

# A tags code below this is the address of a unit of a consumequeue_ext file.
_EXT_ADDRESS_MAX = -(1 << 31) - 1


@dataclass(slots=True)
class UnitFacts:
    """Facts about the units that the verification of the log's tail needs."""

    end: int = 0
    """The greatest end of a record that a unit points to."""
    is_at_log_end: bool = False
    """Whether a unit points exactly to the end of the log."""
    lagging: int = 0
    """The number of missing units that recovery will write."""


def verify_queues(reader: StoreReader, facts: LogFacts, report: Report) -> UnitFacts:
    """Check all queues; the expected effects of a crash are counted, not reported as problems."""
    found = UnitFacts()
    unseen = dict(facts.queues)
    for queue in reader.queues():
        records = unseen.pop((queue.topic.encode(), queue.queue_id), None)
        _QueueCheck(reader, facts, report, found, queue, records=records).run()
    for (topic, queue_id), records in unseen.items():
        name = topic.decode("utf-8", "replace")
        if reader.has_abort:
            found.lagging += records.count
            continue
        text = f"{records.count} records of topic {name}, queue {queue_id} have no queue; was the topic deleted?"
        report.note(KIND, reader.path(KIND, name, str(queue_id)), text)
    if found.lagging:
        text = f"units not written yet: {found.lagging}; recovery writes them"
        report.note(KIND, reader.path(KIND), text, size_bytes=found.lagging * UNIT_SIZE_BYTES)
    return found


class _QueueCheck:
    """The check of one queue."""

    def __init__(
        self,
        reader: StoreReader,
        facts: LogFacts,
        report: Report,
        found: UnitFacts,
        queue: QueueFiles,
        *,
        records: QueueRecords | None,
    ) -> None:
        self._reader = reader
        self._facts = facts
        self._report = report
        self._found = found
        self._queue = queue
        self._records = records
        self._topic = queue.topic.encode()
        self._is_lmq = queue.topic.startswith(LMQ_PREFIX)
        self._min_live: int | None = None
        self._beyond = 0
        self._first_beyond: int | None = None

    def run(self) -> None:
        report, queue = self._report, self._queue
        report.queues += 1
        self._check_files()
        scan = self._reader.units(queue)
        for placed in scan:
            report.units += 1
            problem = self._check_unit(placed)
            if problem is not None and self._is_leftover(placed):
                self._count_beyond(placed)
            elif problem is not None:
                text = f"unit {placed.queue_offset} of {queue.topic}/{queue.queue_id} {problem}"
                report.problem(KIND, placed.path, text, offset=placed.queue_offset, size_bytes=UNIT_SIZE_BYTES)
        if scan.missing_bytes is not None:
            start, end = scan.missing_bytes
            text = f"the file with units {start // UNIT_SIZE_BYTES} to {end // UNIT_SIZE_BYTES - 1} is missing"
            report.problem(KIND, queue.path, text, offset=start // UNIT_SIZE_BYTES, size_bytes=end - start)
        start = queue.files[0].start // UNIT_SIZE_BYTES if queue.files else 0
        begins_late = scan.min_offset is not None and scan.min_offset == self._min_live and scan.min_offset > start
        self._check_completeness(scan.max_offset, is_cut=scan.missing_bytes is not None, begins_late=begins_late)
        self._judge_units_beyond()

    def _check_files(self) -> None:
        for file in self._queue.files:
            if self._reader.has_abort and is_blank_file(self._reader.files, file.path):
                continue  # The broker crashed while it created the file, or before any of its data was on the disk.
            odd = file.size_bytes % UNIT_SIZE_BYTES or file.size_bytes != self._queue.files[0].size_bytes
            if odd:
                text = f"the file has {file.size_bytes} bytes, the queue's first file {self._queue.files[0].size_bytes}"
                offset = file.start // UNIT_SIZE_BYTES
                self._report.problem(KIND, file.path, text, offset=offset, size_bytes=file.size_bytes)

    def _check_unit(self, placed: PlacedUnit) -> str | None:
        """Return what is wrong with a unit, or None."""
        unit, facts = placed.unit, self._facts
        if unit.physical_offset < facts.start:
            # The record's file was deleted by age. Such units may only stand before all others.
            return None if self._min_live is None else f"points to {unit.physical_offset}, which is deleted"
        if self._min_live is None:
            self._min_live = placed.queue_offset
        self._found.end = max(self._found.end, unit.physical_offset + unit.size_bytes)
        if unit.physical_offset >= facts.end:
            self._found.is_at_log_end |= unit.physical_offset == facts.end
            self._count_beyond(placed)
            return None
        if facts.is_damaged(unit.physical_offset):
            return None  # Reported with the damage.
        head = head_at(self._reader, unit.physical_offset)
        if head is None:
            return f"points to {unit.physical_offset}, where no record starts"
        return self._compare(placed, head)

    def _is_leftover(self, placed: PlacedUnit) -> bool:
        """Return whether the unit stands after the queue's last record in a store whose log was cut once."""
        tail = self._facts.tail
        if tail is None or not tail.is_older:
            return False
        return self._records is None or placed.queue_offset > self._records.last

    def _count_beyond(self, placed: PlacedUnit) -> None:
        self._beyond += 1
        if self._first_beyond is None:
            self._first_beyond = placed.queue_offset

    def _compare(self, placed: PlacedUnit, head: RecordHead) -> str | None:
        unit, queue = placed.unit, self._queue
        at = unit.physical_offset
        if head.size_bytes != unit.size_bytes:
            return f"says {unit.size_bytes} bytes, the record at {at} has {head.size_bytes}"
        if self._is_lmq:
            return None  # Light queues share the records of other topics.
        if head.topic != self._topic or head.queue_id != queue.queue_id:
            return f"points to {at}, a record of {head.topic.decode('utf-8', 'replace')}/{head.queue_id}"
        if head.queue_offset != placed.queue_offset:
            return f"points to {at}, a record with queue offset {head.queue_offset}"
        if unit.tags_code <= _EXT_ADDRESS_MAX:
            return None
        if queue.topic == SCHEDULE_TOPIC and find_property(head.properties, b"DELAY"):
            is_right = unit.tags_code >= head.stored_at_ms  # A deliver time; the delay levels are a setting.
        else:
            is_right = unit.tags_code == tags_code(find_property(head.properties, b"TAGS"))
        return None if is_right else f"has tags code {unit.tags_code}, which is not that of the record at {at}"

    def _check_completeness(self, max_offset: int, *, is_cut: bool, begins_late: bool) -> None:
        records = self._records
        if records is None or is_cut:
            return
        path, name = self._queue.path, f"{self._queue.topic}/{self._queue.queue_id}"
        missing = records.last + 1 - max(max_offset, records.first)
        if missing > 0 and self._reader.has_abort:
            self._found.lagging += missing
        elif missing > 0:
            text = f"{missing} units of {name} are missing from queue offset {max_offset} on"
            self._report.problem(KIND, path, text, offset=max_offset, size_bytes=missing * UNIT_SIZE_BYTES)
        if self._min_live is not None and records.first < self._min_live:
            text = f"the units of {name} begin with {self._min_live}, its records with {records.first}"
            place = {"offset": records.first, "size_bytes": (self._min_live - records.first) * UNIT_SIZE_BYTES}
            if begins_late:
                # A crash interrupted the deletion of the topic. The queue was rebuilt from the rest of the log, with
                # filler in front.
                self._report.note(KIND, path, f"{text}; was the topic deleted?", **place)
            else:
                self._report.problem(KIND, path, text, **place)

    def _judge_units_beyond(self) -> None:
        if not self._beyond or self._reader.has_abort:
            return
        tail = self._facts.tail
        name = f"{self._queue.topic}/{self._queue.queue_id}"
        place = {"offset": self._first_beyond, "size_bytes": self._beyond * UNIT_SIZE_BYTES}
        if tail is not None and tail.is_older:
            text = f"{self._beyond} units of {name} are left over from records that were cut earlier"
            self._report.note(KIND, self._queue.path, text, **place)
        else:
            text = f"{self._beyond} units of {name} point behind the end of the log"
            self._report.problem(KIND, self._queue.path, text, **place)


def head_at(reader: StoreReader, physical_offset: int) -> RecordHead | None:
    """Return the record that starts at an offset; the pass over the log has already checked the checksums."""
    for file in reader.log_files:
        if file.start <= physical_offset < file.end:
            memory = reader.memory(file.path)
            try:
                head = parse_head(memory, physical_offset - file.start)
            except RecordError:
                return None
            return head if head.physical_offset == physical_offset else None
    return None
