"""The last store time, for a recovery that reads no record: the checkpoint's time, if it is plausible.

No checksum covers the checkpoint. One flipped bit in a time could move all later store times thousands of years ahead.
"""

from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import Checkpoint
from services.broker.store.log.commitlog import AHEAD_OF_CLOCK_MS_MAX, CommitLog
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore

log = logger("broker.store")


def last_stored_ms(checkpoint: Checkpoint, commit_log: CommitLog, queues: ConsumeQueueStore, *, now_ms: int) -> int:
    """Return the time of the last record before the checkpoint's offset.

    If the checkpoint's time is too far ahead of the clock, return the time of the newest record that a queue knows.
    Without such a record, return the clock's time. The clock is the last choice because it may be far behind.
    """
    # A sync may have ended after the first time was noted. The second time is the time of the last dispatched record.
    noted_ms = max(checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp)
    if noted_ms - now_ms <= AHEAD_OF_CLOCK_MS_MAX:
        return noted_ms
    units = (found[1] for queue in queues if (found := queue.newest_message()) is not None)
    offsets = sorted((unit.physical_offset for unit in units), reverse=True)
    head = next(filter(None, map(commit_log.find_head, offsets)), None)
    taken_ms = head.stored_at_ms if head is not None else now_ms
    if taken_ms < noted_ms:
        log.warning("a time in the checkpoint is too late; it is left out", noted_ms=noted_ms, stored_at_ms=taken_ms)
    return taken_ms
