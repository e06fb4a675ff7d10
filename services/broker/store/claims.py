"""Whether a record may have the place in a queue that it claims, where no checksum covers its head.

Records of Apache RocketMQ carry a checksum of their body only. A flipped bit in topic, queue id or queue offset gives
a record that proves itself and claims another's place: believing it would cost a second message. The ConsumeQueue is
the other witness. Where it says nothing, the order of the log decides: a queue's offsets follow each other.
"""

from gantry.model.record import RECORD_BYTES_MIN, RecordHead
from gantry.storeformat.layout import ConsumeQueueUnit
from services.broker.store.commitlog import CommitLog
from services.broker.store.consumequeue import ConsumeQueue, is_message_unit
from services.broker.store.proof import is_sound


def is_believable(
    log: CommitLog,
    queue: ConsumeQueue,
    head: RecordHead,
    *,
    expected: int | None,
    scan_start: int,
    lost_bytes: int,
) -> bool:
    """Say whether a record may be put where it says.

    Args:
        log: The CommitLog.
        queue: The queue the record claims to be of.
        head: The record's.
        expected: The queue offset behind the last record of this queue in this scan; None for the first one.
        scan_start: Where the scan began.
        lost_bytes: What was damaged in this scan so far: it may have held records of this queue.
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
            if _holds(log, queue, index, unit):
                return False  # Another record has this place, and the queue knows it.
    if expected is None:
        if queue.is_blank:
            return True
        expected = queue.first_from(scan_start)
    if index == expected:
        return True
    if expected < queue.max_offset and queue.unit(expected).physical_offset == head.physical_offset:
        return False  # The queue says where it belongs: its own queue offset is damaged.
    # Offsets are skipped where records are lost, and begin anew when a topic was deleted and made again.
    return index == 0 or 0 < index - expected <= lost_bytes // RECORD_BYTES_MIN


def _holds(log: CommitLog, queue: ConsumeQueue, index: int, unit: ConsumeQueueUnit) -> bool:
    """Say whether the record that a unit promises is there."""
    offset, size = unit.physical_offset, unit.size_bytes
    file = log.files.find(offset)
    if file is None or offset + size > file.end:
        return False
    record = file.try_read(offset - file.start, size)
    return record is not None and is_sound(record, offset, queue.queue_id, index, queue.topic_bytes, log.mark)
