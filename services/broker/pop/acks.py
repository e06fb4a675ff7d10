"""Acknowledgements and changed invisible times: 200051, 200151 and 200053.

A receipt is checked against the table of check points, so one that is forged, of another broker, expired or used before
is refused and changes nothing: 13 if it can't be one of this broker, 208 if its message is not out under it any more.

The acknowledgements of one turn of the loop are one record for each check point. The reply follows when the record is
durable.

Concurrency: the loop's thread.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Never

from gantry.model.errors import InvalidIdError
from gantry.model.names import RETRY_PREFIX
from gantry.model.popreceipt import ORDER_REVIVE_QUEUE, PopReceipt, decode_pop_receipt, real_topic
from gantry.remoting.aio.channel import Channel
from gantry.remoting.bodies.pop import BatchAck, BatchAckRequest, BatchAckResponse, RefusedAck
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import BodyError
from gantry.remoting.headers.pop import AckMessageHeader, ChangeInvisibleTimeHeader, ChangeInvisibleTimeResponseHeader
from gantry.runtime.clock import Clock
from services.broker.durabilitywaiters import DurabilityWaiters, Outcome
from services.broker.pop.ackreplies import reply_acked, reply_changed
from services.broker.pop.checkpoints import CheckPoint, CheckPointTable
from services.broker.pop.order import OrderInfo, OrderTable, acknowledge, show_at
from services.broker.pop.polling import PopPolling
from services.broker.pop.positions import Positions, QueueKey
from services.broker.pop.records import CheckPointKey
from services.broker.pop.revivelog import ReviveLog
from services.broker.processors.table import PlainHandler
from services.broker.refusal import FAQ, RefusalError
from services.broker.registry.topics import TopicTable
from services.broker.store.messagestore import MessageStore

INVISIBLE_MS_MAX: Final = 12 * 3_600_000
"""Longest invisible time, as in the gRPC protocol of RocketMQ. Its broker has no limit for remoting."""
ACKS_MAX: Final = 4096
"""Limit of messages in one request 200151."""

_Item = tuple[CheckPoint, Sequence[int]]
_Failed = Mapping[CheckPoint, RefusalError]
_Done = Callable[[Outcome, _Failed], None]


class AckProcessor:
    """Answers acknowledgements and changes of invisible times.

    Attributes:
        acked: Number of acknowledged messages.
        refused: Number of refused receipts.
    """

    def __init__(
        self,
        *,
        topics: TopicTable,
        store: MessageStore,
        points: CheckPointTable,
        positions: Positions,
        orders: OrderTable,
        revive_log: ReviveLog,
        polling: PopPolling,
        waiters: DurabilityWaiters,
        broker_name: str,
        clock: Clock,
    ) -> None:
        self._topics = topics
        self._store = store
        self._points = points
        self._positions = positions
        self._orders = orders
        self._log = revive_log
        self._polling = polling
        self._waiters = waiters
        self._broker_name = broker_name
        self._clock = clock
        self._batch: dict[CheckPoint, list[int]] = {}
        self._batch_done: list[_Done] = []
        self.acked = 0
        self.refused = 0

    def plain_handlers(self) -> Mapping[int, PlainHandler]:
        """Return the handler of each request code."""
        code = RequestCode
        return {
            code.ACK_MESSAGE: self.ack,
            code.BATCH_ACK_MESSAGE: self.batch_ack,
            code.CHANGE_MESSAGE_INVISIBLETIME: self.change,
        }

    def ack(self, channel: Channel, request: RemotingCommand) -> None:
        """200051: one message is done."""
        header = AckMessageHeader.from_ext(request.ext_fields)
        receipt = self._receipt(header)
        self._check(header.topic, receipt.queue_id, receipt.queue_offset)
        if receipt.is_order:
            queue = (header.topic, header.consumer_group, receipt.queue_id)
            end = self._ack_in_order(queue, receipt.queue_offset, receipt.popped_at_ms)
            self._waiters.wait(end, reply_acked, channel, request, None)
            return
        point = self._find(header.topic, header.consumer_group, receipt)
        # At once, so that a second acknowledgement of the message is refused.
        self._points.mark(point, receipt.queue_offset)

        def done(outcome: Outcome, failed: _Failed) -> None:
            reply_acked(outcome, channel, request, failed.get(point))

        self._enqueue([(point, [receipt.queue_offset])], done)

    def batch_ack(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """200151: many messages are done. The response says which receipts are refused, and why."""
        acks = BatchAckRequest.decode(request.body_bytes).acks if request.body else None
        if not acks:
            raise RefusalError(ResponseCode.NO_MESSAGE, "acks: the request names no message")
        refused: list[RefusedAck] = []
        items: list[_Item] = []
        offsets_of: list[Sequence[int]] = []
        number = end = 0
        for index, ack in enumerate(acks):
            try:
                offsets_of.append(ack.offsets())
            except BodyError as error:
                raise RefusalError(ResponseCode.MESSAGE_ILLEGAL, f"acks[{index}]: {error}") from None
            number += len(offsets_of[-1])
            if number > ACKS_MAX:
                raise RefusalError(
                    ResponseCode.MESSAGE_ILLEGAL, f"acks: more than {ACKS_MAX} messages; none is acknowledged"
                )
        for index, (ack, offsets) in enumerate(zip(acks, offsets_of, strict=True)):
            for offset in self._take_of_batch(ack, offsets, items):
                try:
                    if ack.revive_queue_id == ORDER_REVIVE_QUEUE:
                        end = self._ack_of_batch_in_order(ack, offset)
                    else:
                        self._refuse_of_batch(ack, offset)
                except RefusalError as error:
                    refused.append(RefusedAck(ack=index, code=int(error.code), offset=offset, remark=error.remark))
        if not items and not end:
            code = refused[0].code if refused else ResponseCode.NO_MESSAGE
            remark = refused[0].remark if refused else "acks: the request names no message"
            return RemotingCommand.response_to(
                request, code, remark=remark, body=BatchAckResponse(refused=refused).encode()
            )
        indexes = {
            (
                real_topic(ack.topic, ack.group, ack.retry),
                ack.group,
                ack.queue_id,
                ack.start_offset,
                ack.popped_at_ms,
            ): at
            for at, ack in enumerate(acks)
        }

        def done(outcome: Outcome, failed: _Failed) -> None:
            for point, offsets in items if failed else ():
                if point in failed:
                    index, error = indexes[point.key], failed[point]
                    refused.extend(
                        RefusedAck(ack=index, code=int(error.code), offset=offset, remark=error.remark)
                        for offset in offsets
                    )
            body = BatchAckResponse(refused=refused).encode() if refused else None
            reply_acked(outcome, channel, request, None, body)

        if items:
            self._enqueue(items, done)
        else:
            self._waiters.wait(end, lambda outcome: done(outcome, {}))
        return None

    def change(self, channel: Channel, request: RemotingCommand) -> None:
        """200053: hide a message for a time from now on."""
        header = ChangeInvisibleTimeHeader.from_ext(request.ext_fields)
        if not 0 <= header.invisible_time <= INVISIBLE_MS_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER,
                f"invisibleTime={header.invisible_time}: is not within 0 and {INVISIBLE_MS_MAX}",
            )
        receipt = self._receipt(header)
        self._check(header.topic, receipt.queue_id, receipt.queue_offset)
        now_ms = self._clock.now_ms()
        if receipt.is_order:
            response, end = self._change_in_order(header, receipt, now_ms)
            self._waiters.wait(end, reply_changed, channel, request, response)
            return
        point, offset = self._find(header.topic, header.consumer_group, receipt), receipt.queue_offset
        key = CheckPointKey(header.topic, header.consumer_group, receipt.queue_id, offset, now_ms)
        while self._points.find(key) is not None:
            key = key._replace(popped_at_ms=key.popped_at_ms + 1)
        changed, end = self._log.append_check_point(key, [offset], header.invisible_time, point.revive_queue_id)
        self._points.mark(point, offset)
        response = ChangeInvisibleTimeResponseHeader(
            pop_time=key.popped_at_ms, invisible_time=header.invisible_time, revive_qid=point.revive_queue_id
        )
        reply = partial(reply_changed, channel=channel, request=request, response=response)
        self._waiters.wait(end, self._changed, reply, changed, point)

    def _changed(
        self, outcome: Outcome, reply: Callable[[Outcome], None], changed: CheckPoint, before: CheckPoint
    ) -> None:
        changed.is_stored = True
        if outcome is Outcome.DURABLE:
            # Not earlier: a power failure may tear a gap into the log, and keep only the acknowledgement. If there is
            # none, a start sees that the new check point covers the message.
            with contextlib.suppress(RefusalError):
                self._log.append_ack(before, changed.offsets)
                self._waiters.appended()
        reply(outcome)

    def _receipt(self, header: AckMessageHeader | ChangeInvisibleTimeHeader) -> PopReceipt:
        try:
            receipt = decode_pop_receipt(header.extra_info)
        except InvalidIdError as error:
            raise self._refusal(ResponseCode.MESSAGE_ILLEGAL, str(error)) from None
        if (receipt.queue_id, receipt.queue_offset) != (header.queue_id, header.offset):
            raise self._refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"extraInfo={header.extra_info}: is not the receipt of offset {header.offset} of queue {header.queue_id}",
            )
        if receipt.broker_name != self._broker_name:
            raise self._refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"extraInfo={header.extra_info}: is a receipt of broker {receipt.broker_name}, not of {self._broker_name}",
            )
        return receipt

    def _check(self, topic: str, queue_id: int, offset: int) -> None:
        config = self._topics.find(topic)
        if config is None:
            raise self._refusal(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please! {FAQ}")
        if not 0 <= queue_id < config.read_queue_nums:
            raise self._refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{config.read_queue_nums}]",
            )
        low, high = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        if not low <= offset <= high:
            raise self._refusal(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic}@{queue_id}, commit:{offset}, store:{low}~{high}",
            )

    def _find(self, topic: str, group: str, receipt: PopReceipt) -> CheckPoint:
        """Return the check point of a message that is out under a receipt. Raises RefusalError."""
        point = self._point(topic, group, receipt)
        if point is None or not point.has(receipt.queue_offset):
            raise self._gone(topic, group, receipt.queue_id, receipt.queue_offset)
        return point

    def _point(self, topic: str, group: str, receipt: PopReceipt) -> CheckPoint | None:
        """Return the unfinished check point of a receipt, or None."""
        key = CheckPointKey(topic, group, receipt.queue_id, receipt.start_offset, receipt.popped_at_ms)
        point = self._points.find(key)
        if point is None or not point.is_stored:
            return None
        is_same = (point.invisible_ms, point.revive_queue_id) == (receipt.invisible_ms, receipt.revive_queue_id)
        return point if is_same else None

    def _take_of_batch(self, ack: BatchAck, offsets: Sequence[int], items: list[_Item]) -> Sequence[int]:
        """Take the messages of a pop and queue that are out as done, and return the others.

        They are marked at once, so that a second acknowledgement of a message is refused.
        """
        if not offsets or ack.revive_queue_id == ORDER_REVIVE_QUEUE:
            return offsets
        topic, receipt = self._receipt_of_batch(ack, offsets[0])
        point = self._point(topic, ack.group, receipt)
        if point is None:
            return offsets
        config = self._topics.find(topic)
        if config is None or not 0 <= ack.queue_id < config.read_queue_nums:
            return offsets
        low, high = self._store.min_offset(topic, ack.queue_id), self._store.max_offset(topic, ack.queue_id)
        inside = offsets if low <= offsets[0] <= offsets[-1] <= high else [at for at in offsets if low <= at <= high]
        taken = self._points.take(point, inside)
        if taken:
            items.append((point, taken))
        return () if len(taken) == len(offsets) else sorted(set(offsets).difference(taken))

    def _refuse_of_batch(self, ack: BatchAck, offset: int) -> Never:
        """Raise the RefusalError of a message that `_take_of_batch` has left."""
        topic, receipt = self._receipt_of_batch(ack, offset)
        self._check(topic, ack.queue_id, offset)
        raise self._gone(topic, ack.group, receipt.queue_id, offset)

    def _receipt_of_batch(self, ack: BatchAck, offset: int) -> tuple[str, PopReceipt]:
        """Return the topic that has a message of a batch, and its receipt."""
        topic = ack.topic if ack.topic.startswith(RETRY_PREFIX) else real_topic(ack.topic, ack.group, ack.retry)
        receipt = PopReceipt(
            ack.start_offset, ack.popped_at_ms, ack.invisible_ms, ack.revive_queue_id, ack.retry, self._broker_name,
            ack.queue_id, offset,
        )  # fmt: skip
        return topic, receipt

    def _gone(self, topic: str, group: str, queue_id: int, offset: int) -> RefusalError:
        return self._refusal(
            ResponseCode.NO_MESSAGE,
            f"offset {offset} of queue {queue_id} of topic {topic} is not out under this receipt of group {group}: it is "
            "acknowledged, or its invisible time is over",
        )

    def _refusal(self, code: ResponseCode, remark: str) -> RefusalError:
        self.refused += 1
        return RefusalError(code, remark)

    def _enqueue(self, items: list[_Item], done: _Done) -> None:
        if not self._batch_done:
            asyncio.get_running_loop().call_soon(self._flush)
        for point, offsets in items:
            self._batch.setdefault(point, []).extend(offsets)
        self._batch_done.append(done)

    def _flush(self) -> None:
        """Append the acknowledgements of this turn of the loop."""
        batch, self._batch = self._batch, {}
        requests, self._batch_done = self._batch_done, []
        failed: dict[CheckPoint, RefusalError] = {}
        end = 0
        for point, offsets in batch.items():
            try:
                end = self._log.append_ack(point, offsets)
                self.acked += len(offsets)
            except RefusalError as error:
                failed[point] = error
                for offset in offsets:
                    self._points.mark(point, offset, done=False)
        if end:
            self._waiters.wait(end, _complete, requests, failed)
        else:
            _complete(Outcome.DURABLE, requests, failed)

    def _state(self, queue: QueueKey, offset: int, popped_at_ms: int) -> OrderInfo:
        info = self._orders.find(queue)
        if info is None or info.popped_at_ms != popped_at_ms or offset not in info.left():
            raise self._gone(queue[0], queue[1], queue[2], offset)
        return info

    def _ack_of_batch_in_order(self, ack: BatchAck, offset: int) -> int:
        self._check(ack.topic, ack.queue_id, offset)
        return self._ack_in_order((ack.topic, ack.group, ack.queue_id), offset, ack.popped_at_ms)

    def _ack_in_order(self, queue: QueueKey, offset: int, popped_at_ms: int) -> int:
        """Acknowledge a message that was popped in order; return the physical end of the record. Raises RefusalError."""
        info = acknowledge(self._state(queue, offset, popped_at_ms), offset)
        next_offset = info.next_offset()
        position = self._positions.get(queue, next_offset)
        end = self._log.append_order(queue, info.encode(), next_offset)
        self._orders.put(queue, info)
        position.next_offset = position.chain = next_offset
        position.pending += 1
        self.acked += 1

        def done(outcome: Outcome) -> None:
            self._positions.stored(queue, position, next_offset, is_durable=outcome is Outcome.DURABLE)
            if not info.left():
                self._polling.wake_one(queue[0], queue[1])
                self._polling.wake()

        self._waiters.wait(end, done)
        return end

    def _change_in_order(
        self, header: ChangeInvisibleTimeHeader, receipt: PopReceipt, now_ms: int
    ) -> tuple[ChangeInvisibleTimeResponseHeader, int]:
        queue = (header.topic, header.consumer_group, receipt.queue_id)
        info = self._state(queue, receipt.queue_offset, receipt.popped_at_ms)
        visible_at_ms = now_ms + header.invisible_time
        info = show_at(info, receipt.queue_offset, visible_at_ms, now_ms)
        end = self._log.append_order(queue, info.encode(), info.next_offset())
        self._orders.put(queue, info)
        response = ChangeInvisibleTimeResponseHeader(
            pop_time=info.popped_at_ms,
            invisible_time=visible_at_ms - info.popped_at_ms,
            revive_qid=ORDER_REVIVE_QUEUE,
        )
        return response, end


def _complete(outcome: Outcome, requests: list[_Done], failed: _Failed) -> None:
    for done in requests:
        done(outcome, failed)
