"""Requests that reset and compare offsets of groups: 222, 303, 308, 314, and Gantry's own, 900020 and 900022.

A group whose members are connected in broadcasting mode is refused: each of its instances keeps its own offsets in a
file, and the broker's offsets of the group mean nothing to them.
"""

from collections.abc import Collection, Mapping
from typing import Final

from gantry.model.group import MessageModel
from gantry.model.message import MessageQueue
from gantry.model.topic import TopicConfig
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.bodies import resets as bodies
from gantry.remoting.bodies.fastjson import queue_bean
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.reset import (
    RESET_QUEUES_MAX,
    RESETS_AT_ONCE,
    CloneGroupOffsetHeader,
    ConsumeTimeSpanHeader,
    CorrectionOffsetHeader,
    ResetOffsetHeader,
    ResetQueuesHeader,
    ResetsHeader,
)
from services.broker.assembly import Broker
from services.broker.processors.reading import read_cold
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError

_NO_TIME: Final = -1
_NO_OFFSET: Final = -1
# RocketMQ answers 308 with Java's Long.MAX_VALUE where the compared group is behind all others.
_INT64_MAX: Final = 2**63 - 1
_QUEUES_AT_ONCE: Final = 4
_QUEUES_A_SLICE: Final = 32


class OffsetResetProcessor:
    """Answers the requests.

    Concurrency: the loop's thread. All offsets of one request change in one turn of the loop.
    """

    def __init__(self, broker: Broker) -> None:
        tables = broker.tables
        self._topics, self._groups = tables.topics, tables.groups
        self._offsets, self._consumers = tables.offsets, tables.consumers
        self._resets = broker.resets
        self._store = broker.store
        self._clock = broker.clock
        self._cold, self._turns = broker.core.cold, broker.core.turns
        self._broker_name = broker.identity.name

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.INVOKE_BROKER_TO_RESET_OFFSET: self.reset,
                code.QUERY_CONSUME_TIME_SPAN: self.time_spans,
                code.QUERY_CORRECTION_OFFSET: self.correction,
                code.CLONE_GROUP_OFFSET: self.clone,
                code.GANTRY_RESET_QUEUES: self.reset_queues,
                code.GANTRY_RESETS: self.resets,
            }
        )

    async def reset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """222: reset all queues of a topic by time, or one queue by time or offset; return the new offsets."""
        header = ResetOffsetHeader.from_ext(request.ext_fields)
        topic, group = header.topic, header.group
        config = self._check(topic, group)
        queue_id = _NO_OFFSET if header.queue_id is None else header.queue_id
        offset = _NO_OFFSET if header.offset is None else header.offset
        if queue_id >= 0 and offset != _NO_OFFSET:
            self._check_range(topic, queue_id, offset)
            targets = {queue_id: offset}
        else:
            queue_ids = [queue_id] if queue_id >= 0 else range(config.read_queue_nums)
            targets = await self._by_time(channel, topic, queue_ids, header.timestamp)
        if not header.is_force:
            for number, target in targets.items():
                committed = self._offsets.find(topic, group, number)
                targets[number] = target if committed is None else min(target, committed)
        if not targets:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, f"topic {topic} has no readable queue; nothing was reset")
        self._check(topic, group)  # The topic may have been deleted while the queues were searched.
        self._resets.apply(topic, group, targets)
        await self._resets.durable()
        table = {MessageQueue(topic, self._broker_name, number): target for number, target in targets.items()}
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=bodies.ResetOffsets(table).encode())

    async def time_spans(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """303: return the store times of the first, the last and the last consumed message of each queue."""
        header = ConsumeTimeSpanHeader.from_ext(request.ext_fields)
        config = self._find_topic(header.topic)
        spans: list[bodies.QueueTimeSpan] = []

        def work() -> list[bodies.QueueTimeSpan]:
            some = range(len(spans), min(len(spans) + _QUEUES_AT_ONCE, config.write_queue_nums))
            self._turns.spend(len(some) / _QUEUES_A_SLICE)
            return [self._time_span(header.topic, header.group, queue_id) for queue_id in some]

        while len(spans) < config.write_queue_nums:
            spans += await read_cold(self._cold, channel, work, turns=self._turns)
        body = bodies.ConsumeTimeSpans(consume_time_span_set=spans).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    def correction(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """308: return the smallest committed offset of all groups in each queue, for groups that start late.

        A queue in which the compared group is behind all others gets the largest number that there is.
        """
        header = CorrectionOffsetHeader.from_ext(request.ext_fields)
        ignored = set((header.filter_groups or "").split(","))
        smallest: dict[int, int] = {}
        for group in self._offsets.groups_of(header.topic):
            if group in ignored:
                continue
            for queue_id, offset in self._offsets.queues(header.topic, group).items():
                if offset >= self._store.min_offset(header.topic, queue_id):
                    smallest[queue_id] = min(smallest.get(queue_id, _INT64_MAX), offset)
        for queue_id, offset in self._offsets.queues(header.topic, header.compare_group).items():
            if smallest.get(queue_id, _INT64_MAX) > offset:
                smallest[queue_id] = _INT64_MAX
        body = bodies.CorrectionOffsets(smallest).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    async def clone(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """314: set the offsets of a group to those of another."""
        header = CloneGroupOffsetHeader.from_ext(request.ext_fields)
        source, group = header.src_group, header.dest_group
        topics = [header.topic] if header.topic else self._offsets.topics_of(source)
        live = self._consumers.find(source)
        for topic in topics:
            is_left = live is not None and topic not in live.subscriptions and not header.offline
            if self._topics.find(topic) is None or is_left:
                continue
            offsets = self._offsets.queues(topic, source)
            if offsets:
                self._check(topic, group)
                self._resets.apply(topic, group, dict(offsets))
        await self._resets.durable()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS)

    def resets(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900022: list the resets after an epoch, so that reports tell them apart from consumption."""
        header = ResetsHeader.from_ext(request.ext_fields)
        table, left = self._offsets.resets, RESET_QUEUES_MAX
        made = table.made_after(header.after_epoch, RESETS_AT_ONCE + 1)
        answered: list[bodies.MadeReset] = []
        for epoch, topic, group in made[:RESETS_AT_ONCE]:
            # All rows of the pair are examined.
            left -= max(1, table.queue_count(topic, group))
            if left < 0 and answered:
                break
            queues = [
                bodies.MovedQueue(queue_id=number, from_offset=reset.from_offset, offset=reset.offset)
                for number, reset in table.queues_of(topic, group, epoch).items()
            ]
            answered.append(bodies.MadeReset(epoch=epoch, topic=topic, group=group, queues=queues))
        body = bodies.MadeResets(resets=answered, more=len(answered) < len(made)).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    async def reset_queues(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900020: reset these queues to these offsets, or undo a reset: all queues or none (docs/formats/remoting.md)."""
        header = ResetQueuesHeader.from_ext(request.ext_fields)
        topic, group = header.topic, header.consumer_group
        asked = bodies.ResetQueues.decode(request.body_bytes)
        if not 1 <= len(asked.queues) <= RESET_QUEUES_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER, f"queues: {len(asked.queues)} is not within 1 and {RESET_QUEUES_MAX}"
            )
        if len({queue.queue_id for queue in asked.queues}) < len(asked.queues):
            raise RefusalError(ResponseCode.INVALID_PARAMETER, "queues: a queue is named twice")
        config = self._check(topic, group)
        results = [self._result(topic, group, queue, config) for queue in asked.queues]
        epoch = None
        if not asked.dry_run and all(result.problem is None for result in results):
            epoch = self._resets.apply(topic, group, {result.queue_id: result.offset for result in results}).epoch
            await self._resets.durable()
        body = bodies.ResetResults(epoch=epoch, queues=results).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    def _result(self, topic: str, group: str, queue: bodies.ResetQueue, config: TopicConfig) -> bodies.ResetResult:
        queue_id = queue.queue_id
        low, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        committed = self._offsets.find(topic, group, queue_id)
        offset, problem = queue.offset, None
        if not 0 <= queue_id < max(config.read_queue_nums, config.write_queue_nums) and not end:
            problem = bodies.NO_QUEUE
        elif queue.undo_epoch is not None:
            reset = self._offsets.resets.find(topic, group, queue_id, self._clock.now_ms())
            if reset is None or reset.epoch < queue.undo_epoch:
                problem = bodies.UNKNOWN_RESET
            elif reset.epoch != queue.undo_epoch:
                problem = bodies.SUPERSEDED
            elif committed != reset.offset:
                problem = bodies.CONSUMED
            elif reset.from_offset is None and self._consumers.find(group) is not None:
                # A connected consumer can't be told that there is no offset.
                problem = bodies.HAS_MEMBERS
            else:
                # Retention may have removed the messages at the old offset.
                offset = None if reset.from_offset is None else min(max(reset.from_offset, low), end)
        elif offset is None or not low <= offset <= end:
            problem = bodies.OUT_OF_RANGE
        return bodies.ResetResult(
            queue_id=queue_id,
            from_offset=committed,
            offset=offset if problem is None else None,
            min_offset=low,
            max_offset=end,
            problem=problem,
        )

    def _check(self, topic: str, group: str) -> TopicConfig:
        config = self._find_topic(topic)
        if self._groups.find(group) is None:
            raise RefusalError(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {group} not exist!")
        live = self._consumers.find(group)
        if live is not None and live.message_model == MessageModel.BROADCASTING:
            raise RefusalError(
                ResponseCode.NO_PERMISSION,
                f"group {group} is connected in broadcasting mode: each instance keeps its own offsets; nothing was reset",
            )
        return config

    def _find_topic(self, topic: str) -> TopicConfig:
        config = self._topics.find(topic)
        if config is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        return config

    def _check_range(self, topic: str, queue_id: int, offset: int) -> None:
        low, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        if not low <= offset <= end:
            raise RefusalError(
                ResponseCode.SYSTEM_ERROR,
                f"Target offset {offset} not in consume queue range [{low}-{end}] of queue {queue_id} of topic {topic}",
            )

    async def _by_time(self, channel: Channel, topic: str, queue_ids: Collection[int], at_ms: int) -> dict[int, int]:
        targets: dict[int, int] = {}
        for queue_id in queue_ids:
            if at_ms < 0:
                targets[queue_id] = self._store.max_offset(topic, queue_id)
                continue

            def search(queue_id: int = queue_id) -> int:
                self._turns.spend(1 / _QUEUES_A_SLICE)
                return self._store.offset_by_time(topic, queue_id, at_ms)

            targets[queue_id] = await read_cold(self._cold, channel, search, turns=self._turns)
        return targets

    def _time_span(self, topic: str, group: str, queue_id: int) -> bodies.QueueTimeSpan:
        def stored_at(offset: int) -> int | None:
            return self._store.stored_at(topic, queue_id, offset) if 0 <= offset < end else None

        end = self._store.max_offset(topic, queue_id)
        consumed = self._offsets.find(topic, group, queue_id) or 0
        first = stored_at(self._store.min_offset(topic, queue_id))
        last_consumed = stored_at(consumed - 1) if consumed > 0 else first
        next_stored = stored_at(consumed)
        last = stored_at(end - 1)
        return bodies.QueueTimeSpan(
            message_queue=queue_bean(MessageQueue(topic, self._broker_name, queue_id)),
            min_time_stamp=_NO_TIME if first is None else first,
            max_time_stamp=_NO_TIME if last is None else last,
            consume_time_stamp=_NO_TIME if last_consumed is None else last_consumed,
            delay_time=0 if next_stored is None else max(0, self._clock.now_ms() - next_stored),
        )


def build(broker: Broker) -> OffsetResetProcessor:
    """Build the processor from the broker's parts."""
    return OffsetResetProcessor(broker)
