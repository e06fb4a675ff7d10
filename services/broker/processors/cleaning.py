"""Requests of tools that remove old data now: expired files (329), files of queues (306), unused topics (316), and all (900032).

Expired files of the CommitLog are removed regardless of the hour, one batch after the other. The files of a queue follow
when their messages are gone. Unlike in RocketMQ, a queue keeps its end: its next message gets the next offset, so that
committed offsets stay valid (ADR 0044). A topic is unused if it has queues, but no configuration.
"""

import asyncio
from collections.abc import Collection, Mapping

from gantry.model.names import is_system_topic
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.bodies.cleaning import EXPIRED_FILES, EXPIRED_QUEUES, UNUSED_TOPICS, WHAT, Clean, Cleaned
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.telemetry import logger
from services.broker.assembly import Broker
from services.broker.identity import BrokerIdentity
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.registry.topics import TopicTable
from services.broker.store.messagestore import MessageStore
from services.broker.topicdeletion import TopicDeletion

log = logger("broker.cleaning")

# The shortest sleep that the event loop can make. Between two batches, other requests are answered.
_PAUSE_S = 0.001


class CleaningProcessor:
    """Removes old data on demand. One request at a time; others wait."""

    def __init__(
        self, *, topics: TopicTable, store: MessageStore, deletion: TopicDeletion, identity: BrokerIdentity
    ) -> None:
        self._topics = topics
        self._store = store
        self._deletion = deletion
        self._identity = identity
        self._cleaning = asyncio.Lock()

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.DELETE_EXPIRED_COMMITLOG: self.clean_log,
                code.CLEAN_EXPIRED_CONSUMEQUEUE: self.clean_queues,
                code.CLEAN_UNUSED_TOPIC: self.clean_topics,
                code.GANTRY_CLEAN: self.clean,
            }
        )

    async def clean_log(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """329: remove expired files of the CommitLog."""
        return await self._reply(request, [EXPIRED_FILES])

    async def clean_queues(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """306: remove the files of queues whose messages are gone."""
        return await self._reply(request, [EXPIRED_QUEUES])

    async def clean_topics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """316: remove queues and committed offsets of topics that have no configuration."""
        return await self._reply(request, [UNUSED_TOPICS])

    async def clean(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900032: remove some of this, or only tell what would be removed (docs/formats/remoting.md)."""
        wanted = Clean.decode(request.body_bytes)
        unknown = [name for name in wanted.what if name not in WHAT]
        if unknown or not wanted.what:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER, f"what={wanted.what}: is not a list of {', '.join(WHAT)}"
            )
        cleaned = self._find(wanted.what) if wanted.dry_run else await self._clean(wanted.what)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=cleaned.encode())

    async def _reply(self, request: RemotingCommand, what: Collection[str]) -> RemotingCommand:
        await self._clean(what)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    def _find(self, what: Collection[str]) -> Cleaned:
        files, size_bytes = self._store.retention.count_expired() if EXPIRED_FILES in what else (0, 0)
        return Cleaned(
            log_files=files,
            log_bytes=size_bytes,
            min_physical_offset=self._store.min_physical_offset,
            topics=self._unused_topics() if UNUSED_TOPICS in what else [],
        )

    async def _clean(self, what: Collection[str]) -> Cleaned:
        async with self._cleaning:
            before, queue_files = self._store.min_physical_offset, self._store.retention.expired_queue_files
            log_files = await self._clean_log() if EXPIRED_FILES in what else 0
            log_bytes = self._store.min_physical_offset - before if log_files else 0
            topics = await self._clean_topics() if UNUSED_TOPICS in what else []
            if EXPIRED_QUEUES in what:
                await self._clean_queues()
            # Removal of expired files begins with the queues, too.
            queue_files = self._store.retention.expired_queue_files - queue_files
        cleaned = Cleaned(
            log_files=log_files,
            log_bytes=log_bytes,
            min_physical_offset=self._store.min_physical_offset,
            queue_files=queue_files,
            topics=topics,
        )
        log.info("cleaned by request", what=list(what), log_files=log_files, queue_files=queue_files, topics=topics)
        return cleaned

    async def _clean_log(self) -> int:
        count = 0
        while removed := self._store.clean_expired():
            count += removed
            await asyncio.sleep(_PAUSE_S)
        return count

    async def _clean_queues(self) -> None:
        is_left = True
        while is_left:
            is_left = self._store.lost_reason() is None and self._store.retention.expire_queues()
            await asyncio.sleep(_PAUSE_S)

    async def _clean_topics(self) -> list[str]:
        topics = self._unused_topics()
        for topic in topics:
            log.warning("a topic without configuration is removed", topic=topic)
            await self._deletion.delete(topic, is_left=True)
        return topics

    def _unused_topics(self) -> list[str]:
        """Return the topics that have queues, but no configuration, and are not the system's."""
        cluster, broker = self._identity.cluster, self._identity.name
        found = dict.fromkeys(topic for topic, _ in self._store.queues())
        return sorted(
            topic
            for topic in found
            if self._topics.find(topic) is None
            and not self._topics.is_closed(topic)
            and not is_system_topic(topic, cluster, broker)
        )


def build(broker: Broker) -> CleaningProcessor:
    """Build the processor from the broker's parts."""
    return CleaningProcessor(
        topics=broker.tables.topics, store=broker.store, deletion=broker.deletion, identity=broker.identity
    )
