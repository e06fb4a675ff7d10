"""Deletes a topic from all places where the broker keeps it: queues, configuration, committed offsets, statistics.

A crash at any point leaves either the topic with all its messages, or no topic and no offsets of it:

    step                                    state after a crash that follows the step
    close the name, so that no request      the topic
    creates the topic again
    make the store's note durable           no topic: the start sees that the note is unsaved, and removes the
                                            topic from the tables that still have it
    remove the topic's files                the same
    save topics.json, consumerOffset.json   the same
    mark the note as saved                  no topic; from now on, a topic with the name is a new one
    open the name

The tables keep the topic until the note is durable, because a table may be saved at any time. Without a note, the old
messages would belong to the next topic of the name.
"""

import asyncio
from collections.abc import Awaitable, Callable

from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.persistence import NotSavedError
from services.broker.registry.topics import TopicTable
from services.broker.stats import BrokerStats
from services.broker.store.messagestore import MessageStore

log = logger("broker.topics")


class TopicDeletion:
    """Deletes topics.

    Args:
        saved: Function that waits until topics and offsets are on disk. Raises NotSavedError.

    Concurrency: the loop's thread.
    """

    def __init__(
        self,
        *,
        topics: TopicTable,
        offsets: OffsetTable,
        store: MessageStore,
        stats: BrokerStats,
        clock: Clock,
        saved: Callable[[], Awaitable[None]],
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._store = store
        self._stats = stats
        self._clock = clock
        self._saved = saved
        self._under_way: dict[str, asyncio.Event] = {}

    async def delete(self, topic: str, *, is_left: bool = False) -> bool:
        """Delete a topic. Return False if there is none.

        Args:
            topic: The topic.
            is_left: Whether to delete queues and offsets even if there is no topic to which they belong.

        Raises:
            NotSavedError: The disk failed, or the broker is stopping. The name stays closed until a repeated call
                succeeds, or until the next start. The next start finishes the deletion if the store's note is durable.
                Otherwise it still has the topic.
        """
        while (running := self._under_way.get(topic)) is not None:
            await running.wait()
        if self._topics.find(topic) is None and not self._topics.is_closed(topic) and not is_left:
            return False
        ended = self._under_way[topic] = asyncio.Event()
        try:
            await self._delete(topic)
        finally:
            del self._under_way[topic]
            ended.set()
        return True

    async def _delete(self, topic: str) -> None:
        self._topics.close(topic)
        try:
            if not await asyncio.wrap_future(self._store.delete_topic(topic)):
                raise NotSavedError(f"topic {topic} is being deleted while the broker stops; the next start ends that")
            self._forget(topic)
            await self._saved()
            await asyncio.wrap_future(self._store.mark_deletion_saved(topic))
        except OSError as error:
            raise NotSavedError(f"the deletion of topic {topic} did not end, repeat it: {error}") from error
        self._topics.open(topic)

    def finish_unsaved(self, save: Callable[[], None]) -> None:
        """Finish the deletions that a crash or a stop interrupted. This is part of the start and may wait for the disk.

        Args:
            save: Function that saves the tables. If it raises OSError, the names stay closed.
        """
        topics = self._store.unsaved_deletions()
        for topic in topics:
            log.warning("a deletion that was cut off is finished", topic=topic)
            self._topics.close(topic)
            self._forget(topic)
        try:
            if topics:
                save()
            for topic in topics:
                self._store.mark_deletion_saved(topic).result()
                self._topics.open(topic)
        except OSError as error:
            log.warning("deletions can't be saved; delete the topics again", topics=topics, reason=str(error))

    def _forget(self, topic: str) -> None:
        self._topics.remove(topic, self._clock.now_ms())
        self._offsets.remove_topic(topic)
        self._stats.forget_topic(topic)
