"""Finds files in a queue's folder that can't belong to the queue because somebody put them there; rejects the start.

A queue that continued after such a file would begin at an offset that is far too large, and this could not be undone. A
file is checked if one is missing in front of it, or if its number is greater than the CommitLog allows. (A queue offset
stands for as many earlier records of the queue, and each record has a minimal size.) A store that nobody changed has no
such file, so the check costs only some comparisons for each queue.

A blank file with a possible number is accepted: a crash may leave it, and recovery removes it.
"""

from gantry.model.record import RECORD_BYTES_MIN
from gantry.storeformat.layout import UNIT_SIZE_BYTES, Checkpoint
from services.broker.store.errors import MisplacedError
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.queues.consumequeue import ConsumeQueue
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore
from services.broker.store.queues.queuefile import QueueFile


def reject_misplaced_files(queues: ConsumeQueueStore, commit_log: CommitLog, *, checkpoint: Checkpoint) -> None:
    """Reject a start if a queue has such a file.

    Args:
        queues: The loaded queues.
        commit_log: The CommitLog, with loaded files and a known manifest.
        checkpoint: The checkpoint; like the manifest, it says how far the log reached, in case the last files are gone.

    Raises:
        MisplacedError: Names the file.
    """
    manifest, last = commit_log.manifest, commit_log.files.last
    log_end = max(
        last.end if last is not None else 0,
        checkpoint.confirm_physical_offset,
        manifest.clean_stop_offset or 0,
        manifest.opened_offset or 0,
    )
    for queue in queues:
        for file in queue.files.behind_holes():
            _check(queue, file, commit_log, log_end, has_hole=True)
        first, newest = queue.files.first, queue.files.last
        if first is not None and newest is not None and not _is_possible(newest.start // UNIT_SIZE_BYTES, log_end):
            _check(queue, first, commit_log, log_end, has_hole=False)


def _check(queue: ConsumeQueue, file: QueueFile, commit_log: CommitLog, log_end: int, *, has_hole: bool) -> None:
    found = queue.first_message_unit(file.start // UNIT_SIZE_BYTES, min(file.end // UNIT_SIZE_BYTES, queue.max_offset))
    if found is None:
        if not _is_possible(file.start // UNIT_SIZE_BYTES, log_end):
            raise MisplacedError(file.path, f"the CommitLog ends at {log_end}, too early for a queue this long")
        return
    index, unit = found
    head = commit_log.find_head(unit.physical_offset)
    has_crc = head is not None and head.has_record_crc
    if head is not None and has_crc and (head.topic, head.queue_id) == (queue.topic_bytes, queue.queue_id):
        if head.queue_offset != index:
            raise MisplacedError(
                file.path, f"what it says of queue offset {index} is true of {head.queue_offset}: it is a copy"
            )
    elif (has_crc or has_hole) and not _is_possible(index, log_end):
        # A queue of Apache RocketMQ may begin at any offset. If it has no hole and its records are gone, it is
        # accepted.
        raise MisplacedError(file.path, f"the CommitLog ends at {log_end}, too early for a queue this long")


def _is_possible(index: int, log_end: int) -> bool:
    """Return whether a queue may have reached an offset; without a log every offset is possible."""
    return log_end == 0 or index * RECORD_BYTES_MIN <= log_end
