"""Commits of offsets, by a request of their own (15) and within pulls (11).

Apache RocketMQ stores what it is told. Here a commit is refused, and the offset before it stays, if it could make a
group pass over messages, or names a queue that is not there:

- The topic is unknown (17), or has no such queue (29). A queue that a topic had before it was made smaller counts as
  long as it holds messages.
- The offset lies beyond the queue's end (29). A consumer knows such an offset only from before a crash that took
  messages, or from another broker; the messages that fill the queue up to it would never be read.
- The table of offsets is full, and the group has none of the topic yet (1).

Most commits are one-way, and those within pulls have no answer of their own. So the broker counts the refused ones and
logs one of them a second.
"""

from gantry.remoting.codes import ResponseCode
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.broker.processors.refusal import RefusalError
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.topics import TopicTable
from services.broker.store.messagestore import MessageStore

log = logger("broker.offsets")

LOG_INTERVAL_MS = 1_000


class OffsetCommits:
    """Checks and stores commits.

    Concurrency: the loop's thread.
    """

    def __init__(self, *, topics: TopicTable, offsets: OffsetTable, store: MessageStore, clock: Clock) -> None:
        self._topics = topics
        self._offsets = offsets
        self._store = store
        self._clock = clock
        self._logged_at_ms = -LOG_INTERVAL_MS
        self.refused_count = 0
        """Refused so far; shown to Prometheus."""

    def commit(self, topic: str, group: str, queue_id: int, offset: int) -> None:
        """Store an offset; a negative one is ignored.

        Raises:
            RefusalError: It was not stored, as the module says.
        """
        if offset < 0:
            return
        end = self._store.max_offset(topic, queue_id)
        # A queue that holds messages is there, whatever its topic says; nearly every commit goes this way.
        refusal = None if 0 < offset <= end else self._refusal(topic, queue_id, offset, end)
        if refusal is None:
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
