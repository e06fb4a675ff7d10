"""The topics of a group's failed messages: %RETRY%group and %DLQ%group.

The retry topic is created together with the group. The topic of dead letters is created with the first dead letter.
Clients may write dead letters but not read them, so that no consumer gets them by accident; a tool that reads them uses
the group TOOLS_CONSUMER (processors/pull.py).

No message goes to a topic that is not on disk yet: after a crash, the message would have no topic.
"""

from collections.abc import Awaitable, Callable

from gantry.model import names
from gantry.model.group import SubscriptionGroup
from gantry.model.topic import Perm, TopicConfig
from gantry.remoting.codes import ResponseCode
from services.broker.refusal import RefusalError
from services.broker.registry.groups import GroupTable
from services.broker.registry.persistence import NotSavedError
from services.broker.registry.topics import TOPICS_MAX, TopicTable


class RetryTopics:
    """Creates the topics.

    Args:
        topics: The topics of the broker.
        groups: The groups of the broker.
        create_topic: Creates a topic unless it exists, and waits until it is on disk. Raises NotSavedError.

    Concurrency: the loop's thread.
    """

    def __init__(
        self, topics: TopicTable, groups: GroupTable, create_topic: Callable[[TopicConfig], Awaitable[None]]
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._create_topic = create_topic
        # The start has read these topics from the disk.
        self._saved = {topic for topic in topics.all() if names.is_retry_topic(topic) or names.is_dlq_topic(topic)}

    def topic_changed(self, topic: str) -> None:
        """Forget a topic that was deleted."""
        if self._topics.find(topic) is None:
            self._saved.discard(topic)

    def group_changed(self, group: str, now_ms: int) -> None:
        """Create the retry topic of a new group. It is saved together with the group."""
        config = self._groups.find(group)
        if config is None or config.retry_queue_nums < 1 or names.is_system_group(group):
            return
        if len(names.retry_topic(group)) <= names.RETRY_TOPIC_LENGTH_MAX and len(self._topics) < TOPICS_MAX:
            self._topics.ensure_retry(group, config.retry_queue_nums, now_ms)

    def find(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic that is on disk, or None."""
        return self._topics.find(topic) if topic in self._saved else None

    async def ensure(self, config: TopicConfig) -> None:
        """Create a topic unless it exists, and wait until it is on disk.

        Raises:
            RefusalError: The topic is being deleted, there are too many topics, or the disk failed.
        """
        topic = config.topic_name
        if self._topics.is_closed(topic):
            raise RefusalError(ResponseCode.SYSTEM_BUSY, f"topic {topic} is being deleted; it can be made again soon")
        if self._topics.find(topic) is None and len(self._topics) >= TOPICS_MAX:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"topic[{topic}] not exist: there are {TOPICS_MAX} topics")
        try:
            await self._create_topic(config)
        except NotSavedError as error:
            raise RefusalError(ResponseCode.SERVICE_NOT_AVAILABLE, f"topic {topic} was not made: {error}") from None
        self._saved.add(topic)


def retry_topic_of(group: SubscriptionGroup) -> TopicConfig:
    """Return the retry topic of a group that has none."""
    queue_nums = max(1, group.retry_queue_nums)
    return TopicConfig(names.retry_topic(group.group_name), queue_nums, queue_nums, int(Perm.READ | Perm.WRITE))


def dlq_topic_of(group: str) -> TopicConfig:
    """Return the topic of dead letters of a group that has none."""
    return TopicConfig(names.dlq_topic(group), 1, 1, int(Perm.WRITE))
