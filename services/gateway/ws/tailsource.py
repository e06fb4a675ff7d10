"""Reads topics for live tails: through the gateway's reader of queues, and pulls as the group that reads every topic."""

from collections.abc import Sequence

from gantry.client.consumer.pull import PullConsumer
from gantry.client.engine import ClientEngine
from gantry.model.group import ConsumeFromWhere, SubscriptionData
from gantry.model.message import MessageQueue
from gantry.model.topic import Perm
from services.gateway.usecases.reading.read import READER_GROUP, QueueReader
from services.gateway.ws.consumers import SUSPEND_MS, pulled_of
from services.gateway.ws.ports import TailPull


class TopicTails:
    """The topics as tails see them.

    Concurrency: the event loop's thread.
    """

    def __init__(self, engine: ClientEngine, reader: QueueReader) -> None:
        self._reader = reader
        self._puller = PullConsumer(engine, READER_GROUP)

    async def queues(self, topic: str, *, refresh: bool) -> Sequence[MessageQueue]:
        """Return the readable queues of a topic. Raises ProblemError (404, 503)."""
        route = await self._reader.route(topic, refresh=refresh)
        return [
            MessageQueue(topic, data.broker_name, queue_id)
            for data in route.queue_datas
            if data.perm & Perm.READ
            for queue_id in range(data.read_queue_nums)
        ]

    async def start_of(self, queue: MessageQueue, start: ConsumeFromWhere, start_at_ms: int | None) -> int:
        """Return the offset at which a tail begins. Raises ClientError."""
        if start_at_ms is not None:
            return max(0, await self._puller.search_offset(queue, start_at_ms))
        if start is ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET:
            return max(0, await self._puller.min_offset(queue))
        return await self._puller.max_offset(queue)

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        wanted: SubscriptionData,
        *,
        messages_max: int,
        bytes_max: int,
        waits: bool,
    ) -> TailPull:
        """Pull messages; with `waits`, the broker may hold the pull while there are none. Raises ClientError."""
        found = await self._puller.pull(
            queue,
            offset,
            max_messages=messages_max,
            max_bytes=bytes_max,
            expression=wanted,
            suspend_ms=SUSPEND_MS if waits else 0,
            wide_messages=messages_max,
        )
        return TailPull(pulled_of(found), found.max_offset)
