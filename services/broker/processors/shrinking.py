"""Closing the last queues of a topic for readers (900034), when all groups have consumed them.

The last check and the change are one step of the loop. A message that a producer with an old route stores in such a queue
therefore comes before the check, and prevents the change, or after it, and is refused: the topic has no such queue then.

Messages count from the moment in which they are put, before they are on the disk and readable.

A group counts if it has a committed offset in the topic, or is connected and subscribes to it, or if the request names it:
then it consumes the topic on another broker. If there is none, messages prevent the change until they expire: a group may
still come to consume them.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final

from gantry.model.group import MessageModel
from gantry.model.names import is_system_group
from gantry.model.topic import TopicConfig
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.bodies.shrinking import BLOCKS_MAX, QueueBlock, Shrinking
from gantry.remoting.bodies.tables import GroupList
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.topic import ShrinkTopicHeader
from gantry.runtime.clock import Clock
from services.broker.assembly import Broker
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.registry.consumers import ConsumerTable
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.topics import TopicTable
from services.broker.store.messagestore import MessageStore

QUEUES_MAX: Final = 4_096
"""Limit of the queues that one request closes: the last check looks at all of them in one step of the loop."""
# About a millisecond of work.
_LOOKUPS_AT_ONCE: Final = 1_000
# The shortest sleep that the event loop can make.
_PAUSE_S: Final = 0.001


class ShrinkProcessor:
    """Answers request 900034."""

    def __init__(
        self,
        *,
        topics: TopicTable,
        offsets: OffsetTable,
        consumers: ConsumerTable,
        store: MessageStore,
        clock: Clock,
        wait_until_announced: Callable[[], Awaitable[None]],
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._store = store
        self._clock = clock
        self._wait_until_announced = wait_until_announced

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        return replying_to_refusals({RequestCode.GANTRY_SHRINK_TOPIC: self.shrink})

    async def shrink(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900034: close the queues from a number on, or only tell what prevents it (docs/formats/remoting.md)."""
        header = ShrinkTopicHeader.from_ext(request.ext_fields)
        topic, wanted = header.topic, header.queue_nums
        config = self._topics.find(topic)
        if config is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if wanted < 1:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, f"queueNums={wanted}: is less than 1")
        if max(config.read_queue_nums, config.write_queue_nums) - wanted > QUEUES_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER, f"queueNums={wanted}: would close more than {QUEUES_MAX} queues at once"
            )
        named = GroupList.decode(request.body_bytes).group_list if request.body_bytes else ()
        blocks, ends = await self._find_blocks(config, wanted, named)
        is_allowed = not blocks and config.write_queue_nums <= wanted < config.read_queue_nums
        # From here on there is no pause. If a message came meanwhile, the caller asks again.
        if is_allowed and not header.dry_run and self._is_unchanged(config, ends):
            config = dataclasses.replace(config, read_queue_nums=wanted)
            self._topics.put(config, self._clock.now_ms())
            await self._wait_until_announced()
        body = Shrinking(
            blocks=blocks, read_queue_nums=config.read_queue_nums, write_queue_nums=config.write_queue_nums
        ).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    async def _find_blocks(
        self, config: TopicConfig, first: int, named: Iterable[str]
    ) -> tuple[list[QueueBlock], dict[int, int]]:
        """Return what is not consumed in the queues from the first one on, and the end of each of these queues."""
        topic = config.topic_name
        groups = self._groups_of(topic, named)
        blocks: list[QueueBlock] = []
        ends: dict[int, int] = {}
        looked_up = 0
        for queue_id in range(first, max(config.read_queue_nums, config.write_queue_nums)):
            ends[queue_id] = end = self._store.next_offset(topic, queue_id)
            start = self._store.min_offset(topic, queue_id)
            if start < end:
                blocks += self._blocks_of(topic, queue_id, start, end, groups)
            looked_up += 1 + len(groups)
            if looked_up > _LOOKUPS_AT_ONCE:
                looked_up = 0
                await asyncio.sleep(_PAUSE_S)
            if len(blocks) >= BLOCKS_MAX:
                break
        return blocks[:BLOCKS_MAX], ends

    def _blocks_of(
        self, topic: str, queue_id: int, start: int, end: int, groups: Mapping[str, bool]
    ) -> Iterator[QueueBlock]:
        if not groups:
            yield QueueBlock(group=None, queue_id=queue_id, unconsumed=end - start)
        for group, keeps_offsets in groups.items():
            if keeps_offsets:
                yield QueueBlock(group=group, queue_id=queue_id, unconsumed=None)
                continue
            unconsumed = end - max(start, self._offsets.find(topic, group, queue_id) or 0)
            if unconsumed > 0:
                yield QueueBlock(group=group, queue_id=queue_id, unconsumed=unconsumed)

    def _is_unchanged(self, config: TopicConfig, ends: Mapping[int, int]) -> bool:
        topic = config.topic_name
        if self._topics.is_closed(topic) or self._topics.find(topic) != config:
            return False
        return all(self._store.next_offset(topic, queue_id) == end for queue_id, end in ends.items())

    def _groups_of(self, topic: str, named: Iterable[str]) -> dict[str, bool]:
        """Return the groups that consume a topic, and whether their offsets are kept by their clients."""
        found: dict[str, bool] = {}
        for group in sorted({*self._consumers.groups_of(topic), *self._offsets.groups_of(topic), *named}):
            if not is_system_group(group):
                live = self._consumers.find(group)
                found[group] = live is not None and live.message_model == MessageModel.BROADCASTING
        return found


def build(broker: Broker) -> ShrinkProcessor:
    """Build the processor from the broker's parts."""
    return ShrinkProcessor(
        topics=broker.tables.topics,
        offsets=broker.tables.offsets,
        consumers=broker.tables.consumers,
        store=broker.store,
        clock=broker.clock,
        wait_until_announced=broker.wait_until_topics_announced,
    )
