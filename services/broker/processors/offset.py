"""Requests about offsets: of groups (14, 15) and of queues (29 to 32)."""

from collections.abc import Mapping

from gantry.model.record import parse_head
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import (
    GetEarliestStoreTimeHeader,
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    SearchOffsetHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetHeader,
)
from services.broker.assembly import Broker
from services.broker.coldreader import ColdReader
from services.broker.offsetcommits import OffsetCommits
from services.broker.processors.reading import reading
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.registry.groups import GroupTable
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.topics import TopicTable
from services.broker.resetfence import QueueKey, ResetFence, Sender
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import Boundary

_NO_TIME = -1


class OffsetProcessor:
    """Answers requests of groups and tools about offsets.

    Args:
        recent_bytes: Largest distance in bytes from the end of the CommitLog at which a message is recent (request 14).
    """

    def __init__(
        self,
        *,
        topics: TopicTable,
        groups: GroupTable,
        offsets: OffsetTable,
        commits: OffsetCommits,
        fence: ResetFence,
        store: MessageStore,
        recent_bytes: int,
        cold: ColdReader,
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._store = store
        self._commits = commits
        self._fence = fence
        self._recent_bytes = recent_bytes
        self._cold = cold

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.UPDATE_CONSUMER_OFFSET: self.update_consumer_offset,
                code.GET_MAX_OFFSET: self.max_offset,
                code.GET_MIN_OFFSET: self.min_offset,
                code.QUERY_CONSUMER_OFFSET: reading(self._cold, self.query_consumer_offset),
                code.SEARCH_OFFSET_BY_TIMESTAMP: reading(self._cold, self.search_offset),
                code.GET_EARLIEST_MSG_STORETIME: reading(self._cold, self.earliest_store_time),
            }
        )

    def query_consumer_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """14: return the committed offset of a group on a queue.

        A group without a committed offset begins at 0 if the queue still has its first message and this message is
        recent. So a group that is created shortly after its topic misses no message, although it asked only for new
        ones.
        """
        header = QueryConsumerOffsetHeader.from_ext(request.ext_fields)
        _check_queue_id(header.queue_id)
        key = QueueKey(header.topic, header.consumer_group, header.queue_id)
        self._fence.note(channel, key.group)
        epoch = self._fence.read(channel, key) if self._fence.is_armed else None
        offset = self._offsets.find(*key)
        if offset is None:
            if header.set_zero_if_not_found is False:
                raise RefusalError(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, do not set to zero, maybe this group boot first"
                )
            if not self._is_new_queue(header.topic, header.queue_id):
                raise RefusalError(
                    ResponseCode.QUERY_NOT_FOUND, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
                )
            offset = 0
        return RemotingCommand.response_to(
            request, ResponseCode.SUCCESS, OffsetResponseHeader(offset=offset, gantry_reset_epoch=epoch)
        )

    def update_consumer_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """15: store an offset, even if it is smaller than the old one, unless offsetcommits.py refuses it."""
        header = UpdateConsumerOffsetHeader.from_ext(request.ext_fields)
        _check_queue_id(header.queue_id)
        if self._groups.find(header.consumer_group) is None:
            raise RefusalError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {header.consumer_group} not exist!")
        if self._topics.find(header.topic) is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"Topic {header.topic} not exist!")
        sender = Sender(channel, header.gantry_reset_epoch, waits=not request.is_one_way)
        self._commits.commit(header.topic, header.consumer_group, header.queue_id, header.commit_offset, sender)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    def search_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """29: return the offset that belongs to a store time."""
        header = SearchOffsetHeader.from_ext(request.ext_fields)
        _check_queue_id(header.queue_id)
        boundary = Boundary.UPPER if header.is_upper else Boundary.LOWER
        offset = self._store.offset_by_time(header.topic, header.queue_id, header.timestamp, boundary)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, OffsetResponseHeader(offset=offset))

    def max_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """30: return the next offset to be written; 0 for a queue that does not exist."""
        header = GetMaxOffsetHeader.from_ext(request.ext_fields)
        _check_queue_id(header.queue_id)
        offset = self._store.max_offset(header.topic, header.queue_id)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, OffsetResponseHeader(offset=offset))

    def min_offset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """31: return the first offset that can be read; 0 for a queue that does not exist."""
        header = GetMinOffsetHeader.from_ext(request.ext_fields)
        _check_queue_id(header.queue_id)
        offset = self._store.min_offset(header.topic, header.queue_id)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, OffsetResponseHeader(offset=offset))

    def earliest_store_time(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """32: return the store time of the first readable message of a queue; -1 if there is none."""
        header = GetEarliestStoreTimeHeader.from_ext(request.ext_fields)
        _check_queue_id(header.queue_id)
        topic, queue_id = header.topic, header.queue_id
        stored_at_ms = self._store.stored_at(topic, queue_id, self._store.min_offset(topic, queue_id))
        return RemotingCommand.response_to(
            request,
            ResponseCode.SUCCESS,
            TimestampResponseHeader(timestamp=_NO_TIME if stored_at_ms is None else stored_at_ms),
        )

    def _is_new_queue(self, topic: str, queue_id: int) -> bool:
        if self._store.min_offset(topic, queue_id) > 0:
            return False
        first = self._store.get(topic, queue_id, 0, 1, max_bytes=1)
        if not first.records:
            return False
        written_since = self._store.max_physical_offset - parse_head(first.records[0], 0).physical_offset
        return written_since <= self._recent_bytes


def _check_queue_id(queue_id: int) -> None:
    if queue_id < 0:
        raise RefusalError(ResponseCode.INVALID_PARAMETER, f"queueId={queue_id}: is negative")


def build(broker: Broker) -> OffsetProcessor:
    """Build the processor from the broker's parts."""
    tables = broker.tables
    return OffsetProcessor(
        topics=tables.topics,
        groups=tables.groups,
        offsets=tables.offsets,
        commits=broker.commits,
        fence=broker.fence,
        store=broker.store,
        recent_bytes=broker.recent_bytes,
        cold=broker.core.cold,
    )
