"""Commits of offsets, by a separate request (15) and within pulls (11).

Apache RocketMQ stores every commit. This broker refuses a commit, and keeps the old offset, if the commit could
make a group skip messages or names a queue that does not exist:

- The topic is unknown (17), or has no such queue (29). A queue that the topic had before it was made smaller exists as
  long as it holds messages.
- The offset is past the end of the queue (29). A consumer has such an offset only from the time before a crash that
  lost messages, or from another broker. The group would skip the messages that fill the queue up to this offset.
- The table of offsets is full, and the group has no offset on the topic yet (1).
- The offset comes from before a reset of the group's offset (21; resetfence.py).

Most commits are one-way, and a commit within a pull has no reply of its own. So the broker counts the refused commits,
and logs at most one a second.
"""

from gantry.remoting.codes import ResponseCode
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.broker.refusal import RefusalError
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.topics import TopicTable
from services.broker.resetfence import QueueKey, ResetFence, Sender
from services.broker.store.messagestore import MessageStore

log = logger("broker.offsets")

LOG_INTERVAL_MS = 1_000


class OffsetCommits:
    """Checks and stores commits.

    Concurrency: the loop's thread.
    """

    def __init__(
        self, *, topics: TopicTable, offsets: OffsetTable, store: MessageStore, fence: ResetFence, clock: Clock
    ) -> None:
        self._topics = topics
        self._fence = fence
        self._offsets = offsets
        self._store = store
        self._clock = clock
        self._logged_at_ms = -LOG_INTERVAL_MS
        self.refused_count = 0
        """Number of refused commits; exported to Prometheus."""

    def commit(self, topic: str, group: str, queue_id: int, offset: int, sender: Sender | None = None) -> None:
        """Store an offset. A negative one is ignored.

        Args:
            topic: Topic of the queue.
            group: The group.
            queue_id: The queue.
            offset: The offset.
            sender: The consumer that commits; None for the broker itself.

        Raises:
            RefusalError: The offset was not stored, for one of the reasons in the module's docstring.
        """
        if offset < 0:
            return
        end = self._store.max_offset(topic, queue_id)
        # A queue that holds messages exists, whatever the configuration says. Nearly every commit takes this path.
        refusal = None if 0 < offset <= end else self._refusal(topic, queue_id, offset, end)
        if refusal is None and sender is not None:
            refusal = self._refusal_of_reset(sender, QueueKey(topic, group, queue_id), offset)
        if refusal is None:
            assert offset <= end, f"group {group}: {offset} is past the end {end} of queue {queue_id} of topic {topic}"
            if self._offsets.commit(topic, group, queue_id, offset, self._clock.now_ms()):
                return
            remark = f"group {group} on topic {topic}: the table of committed offsets is full"
            refusal = RefusalError(ResponseCode.SYSTEM_ERROR, f"{remark}; the offset was not stored")
        self.refused_count += 1
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._logged_at_ms >= LOG_INTERVAL_MS:
            self._logged_at_ms = now_ms
            log.warning(
                "commit refused", group=group, topic=topic, reason=refusal.remark, refused_so_far=self.refused_count
            )
        raise refusal

    def _refusal_of_reset(self, sender: Sender, key: QueueKey, offset: int) -> RefusalError | None:
        reset = self._fence.refused(sender, key, offset)
        if reset is None:
            return None
        return RefusalError(
            ResponseCode.PULL_OFFSET_MOVED,
            f"commitOffset={offset}: the offset of group {key.group} in queue {key.queue_id} of topic {key.topic} was "
            f"reset to {reset.offset} after the consumer had read its own; the offset was not stored",
        )

    def _refusal(self, topic: str, queue_id: int, offset: int, end: int) -> RefusalError | None:
        config = self._topics.find(topic)
        if config is None:
            return RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {topic} not exist!")
        count = max(config.read_queue_nums, config.write_queue_nums)
        if queue_id >= count and end == 0:
            return RefusalError(ResponseCode.INVALID_PARAMETER, f"queueId={queue_id}: topic {topic} has {count} queues")
        if offset > end:
            return RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"commitOffset={offset}: queue {queue_id} of topic {topic} ends at {end}; the offset was not stored",
            )
        return None
