"""The check that a record may have the place in a queue that it claims, if no checksum covers its head.

Records of Apache RocketMQ carry a checksum of their body only. A flipped bit in topic, queue id or queue offset
produces a valid record that claims the place of another one. If recovery believed it, a second message would be lost.
The ConsumeQueue is the second source. If it has no answer, the order of the log decides: a queue's offsets are
consecutive.
"""

from gantry.model.record import RECORD_BYTES_MIN, RecordHead
from gantry.storeformat.layout import ConsumeQueueUnit
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.queues.consumequeue import ConsumeQueue, is_message_unit
from services.broker.store.recordcheck import is_valid_record


def has_plausible_place(
    log: CommitLog,
    queue: ConsumeQueue,
    head: RecordHead,
    *,
    expected: int | None,
    scan_start: int,
    lost_bytes: int,
) -> bool:
    """Return whether a record may have the place that it claims.

    Args:
        log: The CommitLog.
        queue: The queue that the record claims to belong to.
        head: The record's head.
        expected: The queue offset after this queue's last record in this scan; None for the queue's first record.
        scan_start: The physical offset at which the scan began.
        lost_bytes: The number of damaged bytes in this scan so far; they may have held records of this queue.
    """
    if head.has_record_crc:
        return True
    index = head.queue_offset
    if index < 0:
        return False
    if index < queue.max_offset:
        unit = queue.unit(index)
        if is_message_unit(unit.physical_offset, unit.size_bytes):
            if unit.physical_offset == head.physical_offset:
                return True
            if _is_record_valid(log, queue, index, unit):
                return False  # Another record has this place, as the queue confirms.
    if expected is None:
        if queue.is_blank:
            return True
        expected = queue.first_from(scan_start)
    if index == expected:
        return True
    if expected < queue.max_offset and queue.unit(expected).physical_offset == head.physical_offset:
        return False  # The queue has it at another offset: the record's own queue offset is damaged.
    # Offsets have gaps where records are lost, and restart when a topic was deleted and created again.
    return index == 0 or 0 < index - expected <= lost_bytes // RECORD_BYTES_MIN


def _is_record_valid(log: CommitLog, queue: ConsumeQueue, index: int, unit: ConsumeQueueUnit) -> bool:
    """Return whether the log has the record that a unit promises."""
    offset, size = unit.physical_offset, unit.size_bytes
    file = log.files.find(offset)
    if file is None or offset + size > file.end:
        return False
    record = file.try_read(offset - file.start, size)
    return record is not None and is_valid_record(
        record, offset, queue.queue_id, index, queue.topic_bytes, log.manifest
    )
