"""Offsets of queues and of consumer groups; the queue's master answers."""

from gantry.client.answers import H, read_header
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError
from gantry.model.message import MessageQueue
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import EncodableHeader, RemotingCommand
from gantry.remoting.headers.offset import (
    GetEarliestStoreTimeHeader,
    GetMaxOffsetHeader,
    GetMinOffsetHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    SearchOffsetHeader,
    TimestampResponseHeader,
    UpdateConsumerOffsetHeader,
)

BY_HAND = 2**63 - 1
"""Epoch of a commit that was not derived from anything that was read: no reset is newer."""
LOWER = "LOWER"
UPPER = "UPPER"


class Offsets:
    """Reads and writes offsets over an engine.

    Every call raises BrokerUnavailableError if the master is away, BrokerError if it refuses, NoAnswerError if it does
    not answer, and NoRouteError for a topic that does not exist.
    """

    def __init__(self, engine: ClientEngine) -> None:
        self._engine = engine

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the first readable offset."""
        header = GetMinOffsetHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, header)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the last message, where the next message will be written."""
        header = GetMaxOffsetHeader(topic=queue.topic, queue_id=queue.queue_id)
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, header)

    async def search_offset(self, queue: MessageQueue, at_ms: int, boundary: str = LOWER) -> int:
        """Return the offset for a moment (wall ms).

        LOWER: the first message stored at that moment or later; the max offset if there is none. UPPER: the last one
        stored at that moment or earlier; the min offset if there is none.
        """
        header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=at_ms, boundary_type=boundary)
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def earliest_stored_at_ms(self, queue: MessageQueue) -> int | None:
        """Return the store time (wall ms) of the first readable message, or None for an empty queue."""
        header = GetEarliestStoreTimeHeader(topic=queue.topic, queue_id=queue.queue_id)
        answer = await self._call(TimestampResponseHeader, queue, RequestCode.GET_EARLIEST_MSG_STORETIME, header)
        at_ms = answer.timestamp
        return None if at_ms < 0 else at_ms

    async def committed_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return a group's committed offset on a queue, or None if it has never committed one.

        The request tells the broker not to answer 0 for a young queue, as it does for RocketMQ's own clients.
        """
        return (await self.committed(group, queue))[0]

    async def committed(self, group: str, queue: MessageQueue) -> tuple[int | None, int]:
        """Return a group's committed offset, and the epoch of its latest reset; None and 0 if there is none."""
        header = QueryConsumerOffsetHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
        )
        try:
            answer = await self._call(OffsetResponseHeader, queue, RequestCode.QUERY_CONSUMER_OFFSET, header)
        except BrokerError as error:
            if error.code == ResponseCode.QUERY_NOT_FOUND:
                return None, 0
            raise
        return None if answer.offset < 0 else answer.offset, answer.gantry_reset_epoch or 0

    async def commit_offset(
        self, group: str, queue: MessageQueue, offset: int, *, one_way: bool = False, epoch: int | None = None
    ) -> None:
        """Commit a group's offset. With `one_way`, the caller does not learn whether the broker received it.

        Args:
            group: The group.
            queue: The queue.
            offset: The offset.
            one_way: Whether to wait for no answer.
            epoch: Epoch of the latest reset that the caller knows, 0 if it knows of none; a broker of Gantry refuses
                the commit if there is a newer one. BY_HAND for an offset that somebody has chosen. None: the broker
                judges by what the connection has read.
        """
        assert offset >= 0, offset
        header = UpdateConsumerOffsetHeader(
            consumer_group=group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
            gantry_reset_epoch=epoch,
        )
        address = await self._engine.queue_address(queue)
        if one_way:
            command = RemotingCommand.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, one_way=True)
            await self._engine.invoke_one_way(address, command)
        else:
            await self._engine.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, header)

    async def _offset(self, queue: MessageQueue, code: int, header: EncodableHeader) -> int:
        return (await self._call(OffsetResponseHeader, queue, code, header)).offset

    async def _call(self, kind: type[H], queue: MessageQueue, code: int, header: EncodableHeader) -> H:
        address = await self._engine.queue_address(queue)
        return read_header(kind, await self._engine.call(address, code, header), address)
