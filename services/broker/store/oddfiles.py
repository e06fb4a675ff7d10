"""Files in a queue's folder that can't be the queue's, since somebody put them there: the start is refused.

A queue that went on behind such a file would begin absurdly late, and nobody could take that back. A file is looked at
if one is missing in front of it, or if its number is greater than the CommitLog allows: a queue offset stands for as
many records of the queue in front of it, and each has its least size. Neither is so in a store that nobody touched, so
that this costs some comparisons a queue.

A blank file whose number is possible is let be: a crash may leave it, and recovery removes it.
"""

from gantry.model.record import RECORD_BYTES_MIN
from gantry.storeformat.layout import UNIT_SIZE_BYTES, Checkpoint
from services.broker.store.commitlog import CommitLog
from services.broker.store.consumequeue import ConsumeQueue
from services.broker.store.consumequeuestore import ConsumeQueueStore
from services.broker.store.errors import MisplacedError
from services.broker.store.queuefile import QueueFile


def refuse_odd_files(queues: ConsumeQueueStore, commit_log: CommitLog, *, checkpoint: Checkpoint) -> None:
    """Refuse a start if a queue has such a file.

    Args:
        queues: They are loaded.
        commit_log: Its files are loaded, and its mark is known.
        checkpoint: Says, like the mark, how far the log reached, should its last files be gone.

    Raises:
        MisplacedError: Names the file.
    """
    mark, last = commit_log.mark, commit_log.files.last
    log_end = max(
        last.end if last is not None else 0,
        checkpoint.confirm_physical_offset,
        mark.clean_stop_offset or 0,
        mark.opened_offset or 0,
    )
    for queue in queues:
        for file in queue.files.behind_holes():
            _check(queue, file, commit_log, log_end, has_hole=True)
        first, newest = queue.files.first, queue.files.last
        if first is not None and newest is not None and not _is_possible(newest.start // UNIT_SIZE_BYTES, log_end):
            _check(queue, first, commit_log, log_end, has_hole=False)


def _check(queue: ConsumeQueue, file: QueueFile, commit_log: CommitLog, log_end: int, *, has_hole: bool) -> None:
    found = queue.first_sound(file.start // UNIT_SIZE_BYTES, min(file.end // UNIT_SIZE_BYTES, queue.max_offset))
    if found is None:
        if not _is_possible(file.start // UNIT_SIZE_BYTES, log_end):
            raise MisplacedError(file.path, f"the CommitLog ends at {log_end}, too early for a queue this long")
        return
    index, unit = found
    head = commit_log.find_head(unit.physical_offset)
    is_proven = head is not None and head.has_record_crc
    if head is not None and is_proven and (head.topic, head.queue_id) == (queue.topic_bytes, queue.queue_id):
        if head.queue_offset != index:
            raise MisplacedError(
                file.path, f"what it says of queue offset {index} is true of {head.queue_offset}: it is a copy"
            )
    elif (is_proven or has_hole) and not _is_possible(index, log_end):
        # A queue of Apache RocketMQ may begin with any offset: one without a hole, whose records are gone, is believed.
        raise MisplacedError(file.path, f"the CommitLog ends at {log_end}, too early for a queue this long")


def _is_possible(index: int, log_end: int) -> bool:
    """Say whether a queue may have reached an offset; nothing is known without a log."""
    return log_end == 0 or index * RECORD_BYTES_MIN <= log_end
