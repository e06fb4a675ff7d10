"""Requests of tools for figures.

They ask for the queues of a topic (202), the progress of a group in them (208), one counter (315), all counters of a topic
or a group (900033), and the state of all queues of a topic (900000).
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from gantry.model.message import MessageQueue
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    ConsumeStats,
    OffsetWrapper,
    TopicOffset,
    TopicStatsTable,
)
from gantry.remoting.bodies.queuestates import QueueState, QueueStates
from gantry.remoting.bodies.statistics import (
    DEAD,
    DELIVERED,
    ROWS_MAX,
    SENT_BACK,
    STORED,
    FlowRow,
    FlowRows,
    FlowWindow,
)
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import GetConsumeStatsHeader, GetTopicStatsHeader, ViewBrokerStatsDataHeader
from gantry.remoting.headers.broker import StatisticsHeader
from gantry.remoting.headers.queuestates import QueueStatesHeader
from gantry.runtime.clock import Clock
from services.broker.assembly import Broker
from services.broker.coldreader import ColdReader
from services.broker.identity import BrokerIdentity
from services.broker.processors.reading import read_cold
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.registry.consumers import ConsumerTable
from services.broker.registry.offsets import OffsetTable
from services.broker.registry.topics import TopicTable
from services.broker.stats import (
    DLQ_PUT_NUMS,
    GROUP_GET_NUMS,
    SNDBCK_PUT_NUMS,
    TOPIC_PUT_NUMS,
    BrokerStats,
    Flow,
    Window,
)
from services.broker.store.messagestore import MessageStore
from services.broker.turns import Turns

Q = TypeVar("Q")
R = TypeVar("R")

_NEVER = 0
# A row takes 10 to 20 µs if the last record of the queue is small. It takes 4 ms if that record has 4 MiB, because its
# checksum is verified.
_QUEUES_AT_ONCE = 4
_QUEUES_A_SLICE = 32


class StatisticsProcessor:
    """Answers requests of tools for figures."""

    def __init__(
        self,
        *,
        topics: TopicTable,
        offsets: OffsetTable,
        consumers: ConsumerTable,
        store: MessageStore,
        stats: BrokerStats,
        identity: BrokerIdentity,
        clock: Clock,
        cold: ColdReader,
        turns: Turns,
    ) -> None:
        self._topics = topics
        self._offsets = offsets
        self._consumers = consumers
        self._store = store
        self._stats = stats
        self._identity = identity
        self._clock = clock
        self._cold = cold
        self._turns = turns

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.GET_TOPIC_STATS_INFO: self.topic_stats,
                code.GET_CONSUME_STATS: self.consume_stats,
                code.VIEW_BROKER_STATS_DATA: self.view,
                code.GANTRY_QUEUE_STATES: self.queue_states,
                code.GANTRY_STATISTICS: self.traffic,
            }
        )

    async def topic_stats(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """202: return offsets and last store times of a topic's queues, even if only readable or only writable."""
        topic = GetTopicStatsHeader.from_ext(request.ext_fields).topic
        config = self._topics.find(topic)
        if config is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")

        def row(queue_id: int) -> tuple[MessageQueue, TopicOffset]:
            max_offset = self._store.max_offset(topic, queue_id)
            stored_at_ms = self._store.stored_at(topic, queue_id, max_offset - 1) if max_offset > 0 else None
            return self._queue(topic, queue_id), TopicOffset(
                min_offset=self._store.min_offset(topic, queue_id),
                max_offset=max_offset,
                last_update_timestamp=stored_at_ms or _NEVER,
            )

        queue_ids = range(max(config.read_queue_nums, config.write_queue_nums))
        table = dict(await self._in_slices(channel, queue_ids, row))
        put_tps = self._stats.put_tps(topic, self._clock.now_ms())
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=TopicStatsTable(table, put_tps).encode())

    async def consume_stats(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """208: return the progress of a group in the queues of its topics. An unknown group gets an empty table."""
        header = GetConsumeStatsHeader.from_ext(request.ext_fields)
        group = header.consumer_group
        if header.topic:
            wanted = [header.topic]
        elif header.topic_list:
            wanted = [topic for topic in header.topic_list.split(";") if topic]
        else:
            wanted = self._offsets.topics_of(group)
        live = self._consumers.find(group)
        queues: list[tuple[str, int]] = []
        tps = 0.0
        for topic in wanted:
            config = self._topics.find(topic)
            # A topic that the group no longer reads would show a lag that no consumer reduces.
            if config is None or (live is not None and live.subscriptions and topic not in live.subscriptions):
                continue
            queues += [(topic, queue_id) for queue_id in range(config.read_queue_nums)]
            tps += self._stats.get_tps(topic, group, self._clock.now_ms())
        table = dict(await self._in_slices(channel, queues, lambda queue: self._offsets_of(group, *queue)))
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=ConsumeStats(table, tps).encode())

    def view(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """315: return one counter over the last minute, hour and day."""
        header = ViewBrokerStatsDataHeader.from_ext(request.ext_fields)
        windows = self._stats.find(header.stats_name, header.stats_key, self._clock.now_ms())
        if windows is None:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR, f"The stats <{header.stats_name}> <{header.stats_key}> not exist"
            )
        minute, hour, day = (_item(window) for window in windows)
        body = BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    def traffic(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900033: return all counters of a topic, or of a group, over the last minute, hour and day."""
        header = StatisticsHeader.from_ext(request.ext_fields)
        topic, group = header.topic or None, header.consumer_group or None
        if topic is None and group is None:
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "topic: neither a topic nor a consumerGroup is given")
        now_ms = self._clock.now_ms()
        found = list(itertools.islice(self._stats.flows_of(topic, group), ROWS_MAX + 1))
        rows = [_row(*flow, now_ms=now_ms) for flow in found[:ROWS_MAX]]
        body = FlowRows(rows=rows, is_truncated=len(found) > ROWS_MAX).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    async def queue_states(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900000: return the state of every queue of a topic in one reply (docs/formats/remoting.md)."""
        header = QueueStatesHeader.from_ext(request.ext_fields)
        topic, group = header.topic, header.consumer_group
        config = self._topics.find(topic)
        if config is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")

        def state(queue_id: int) -> QueueState:
            max_offset = self._store.max_offset(topic, queue_id)
            committed = self._offsets.find(topic, group, queue_id) if group else None
            return QueueState(
                queue_id=queue_id,
                readable=queue_id < config.read_queue_nums,
                writable=queue_id < config.write_queue_nums,
                min_offset=self._store.min_offset(topic, queue_id),
                max_offset=max_offset,
                last_stored_at=self._store.stored_at(topic, queue_id, max_offset - 1) if max_offset else None,
                committed_offset=committed,
                committed_stored_at=self._store.stored_at(topic, queue_id, committed - 1) if committed else None,
            )

        queue_ids = range(max(config.read_queue_nums, config.write_queue_nums))
        queues = await self._in_slices(channel, queue_ids, state)
        body = QueueStates(broker_name=self._identity.name, queues=queues).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    async def _in_slices(self, channel: Channel, queues: Sequence[Q], row: Callable[[Q], R]) -> list[R]:
        """Return one row for each queue, made in slices.

        There may be thousands of queues, and each row verifies the record of the queue's last message.
        """
        rows: list[R] = []

        def work() -> list[R]:
            some = queues[len(rows) : len(rows) + _QUEUES_AT_ONCE]
            self._turns.spend(len(some) / _QUEUES_A_SLICE)
            return [row(queue) for queue in some]

        while len(rows) < len(queues):
            rows += await read_cold(self._cold, channel, work, turns=self._turns)
        return rows

    def _offsets_of(self, group: str, topic: str, queue_id: int) -> tuple[MessageQueue, OffsetWrapper]:
        consumed = self._offsets.find(topic, group, queue_id) or 0
        stored_at_ms = self._store.stored_at(topic, queue_id, consumed - 1) if consumed > 0 else None
        return self._queue(topic, queue_id), OffsetWrapper(
            broker_offset=self._store.max_offset(topic, queue_id),
            consumer_offset=consumed,
            pull_offset=max(consumed, self._offsets.pulled(topic, group, queue_id) or 0),
            last_timestamp=stored_at_ms or _NEVER,
        )

    def _queue(self, topic: str, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._identity.name, queue_id)


def _item(window: Window) -> BrokerStatsItem:
    return BrokerStatsItem(sum=window.sum, tps=window.tps, avgpt=window.average)


_KINDS = {TOPIC_PUT_NUMS: STORED, GROUP_GET_NUMS: DELIVERED, SNDBCK_PUT_NUMS: SENT_BACK, DLQ_PUT_NUMS: DEAD}


def _row(name: str, topic: str, group: str | None, flow: Flow, *, now_ms: int) -> FlowRow:
    windows = [
        FlowWindow(messages=messages.sum, bytes=size.sum, elapsed_ms=messages.elapsed_ms)
        for messages, size in zip(flow.windows(now_ms), flow.windows(now_ms, size=True), strict=True)
    ]
    minute, hour, day = windows
    return FlowRow(kind=_KINDS[name], topic=topic, group=group, minute=minute, hour=hour, day=day)


def build(broker: Broker) -> StatisticsProcessor:
    """Build the processor from the broker's parts."""
    tables, core = broker.tables, broker.core
    return StatisticsProcessor(
        topics=tables.topics,
        offsets=tables.offsets,
        consumers=tables.consumers,
        store=broker.store,
        stats=broker.stats,
        identity=broker.identity,
        clock=broker.clock,
        cold=core.cold,
        turns=core.turns,
    )
