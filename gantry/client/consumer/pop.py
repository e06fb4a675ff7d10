"""PopConsumer: takes messages from a broker for a time, and acknowledges them with their receipts.

The broker keeps the position of the group and knows which messages are out. A message that is not acknowledged within
its invisible time is given out again.

Source: RocketMQ 5.3 MQClientAPIImpl (popMessageAsync, ackMessageAsync, changeInvisibleTimeAsync).
"""

import contextlib
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from gantry.client.answers import read_body, read_header
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError, InvalidArgumentError
from gantry.model.errors import InvalidExpressionError, InvalidIdError, InvalidNameError, RecordError
from gantry.model.group import SUB_ALL, SubscriptionData, parse_tag_expression
from gantry.model.message import MessageQueue, StoredMessage
from gantry.model.names import check_group
from gantry.model.popreceipt import (
    NOT_RETRY,
    ORDER_REVIVE_QUEUE,
    PopReceipt,
    decode_order_counts,
    decode_pop_receipt,
    decode_start_offsets,
    encode_pop_receipt,
)
from gantry.model.propertyname import PropertyName
from gantry.model.record import iter_records
from gantry.remoting.bodies.pop import (
    OFFSETS_SPAN_MAX,
    BatchAck,
    BatchAckRequest,
    BatchAckResponse,
    encode_offsets,
)
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.pop import (
    ANY_QUEUE,
    FROM_MAX,
    FROM_MIN,
    AckMessageHeader,
    ChangeInvisibleTimeHeader,
    ChangeInvisibleTimeResponseHeader,
    NotificationHeader,
    NotificationResponseHeader,
    PopMessageHeader,
    PopMessageResponseHeader,
)

MESSAGES_MAX: Final = 32
"""The largest number of messages that a broker gives to one pop."""
INVISIBLE_MS_DEFAULT: Final = 60_000
# A broker may answer a held pop late, as it may a held pull.
_HELD_GRACE_MS: Final = 10_000


class PopStatus(enum.StrEnum):
    """The broker's answer to a pop, under RocketMQ's names.

    Attributes:
        FOUND: The broker read messages. Those with only the same hash of the tag are left out of the result.
        NO_NEW_MSG: There is no message for the group now, nor within the poll time.
        POLLING_FULL: There is no message now, and too many requests wait already for the broker to hold this one.
    """

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    POLLING_FULL = "POLLING_FULL"


_STATUSES: dict[int, PopStatus] = {
    ResponseCode.SUCCESS: PopStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PopStatus.NO_NEW_MSG,
    ResponseCode.POLLING_TIMEOUT: PopStatus.NO_NEW_MSG,
    ResponseCode.POLLING_FULL: PopStatus.POLLING_FULL,
}


class PoppedMessage(NamedTuple):
    """A message and its receipt.

    Attributes:
        message: The message, under the topic to which it was sent.
        receipt: The receipt.
        deliveries: Number of deliveries to the group so far, this one included.
        first_popped_at_ms: The time of the first delivery.
    """

    message: StoredMessage
    receipt: PopReceipt
    deliveries: int
    first_popped_at_ms: int


@dataclass(frozen=True, slots=True)
class PopResult:
    """The messages of a pop.

    Attributes:
        status: The broker's answer.
        messages: The messages that match the expression.
        left_count: Number of messages that are left in the queues that the broker looked at.
    """

    status: PopStatus
    messages: Sequence[PoppedMessage] = ()
    left_count: int = 0


class PopConsumer:
    """Pops messages for one consumer group, through the connections of an engine.

    All calls raise NotStartedError if the engine does not run, BrokerError if the broker refuses or its answer can't be
    read, NoAnswerError if there is no answer, and BrokerUnavailableError or NoRouteError if there is no way to it. After
    a NoAnswerError, the broker may have taken the messages or the acknowledgement.

    Concurrency: the event loop's thread, any number of calls at once.

    Attributes:
        group: The consumer group.
    """

    def __init__(self, engine: ClientEngine, group: str) -> None:
        """Make a consumer; the broker is not asked. Raises InvalidArgumentError for an invalid group name."""
        try:
            check_group(group)
        except InvalidNameError as error:
            raise InvalidArgumentError(error.field, error.value, error.reason) from None
        self.group = group
        self._engine = engine

    async def pop(
        self,
        topic: str,
        broker_name: str,
        *,
        queue_id: int = ANY_QUEUE,
        max_messages: int = MESSAGES_MAX,
        invisible_ms: int = INVISIBLE_MS_DEFAULT,
        poll_ms: int = 0,
        expression: str | SubscriptionData = SUB_ALL,
        from_max: bool = False,
        order: bool = False,
        attempt_id: str | None = None,
        replay_only: bool = False,
    ) -> PopResult:
        """Take messages of a topic from one broker.

        A message whose tag only has the same hash as a wanted tag is acknowledged at once and left out.

        Args:
            topic: The topic.
            broker_name: The broker set.
            queue_id: The queue; ANY_QUEUE for all of them.
            max_messages: The largest number of messages.
            invisible_ms: Time for which the messages are hidden from other consumers of the group.
            poll_ms: Time for which the broker may hold the request if there is no message; 0 for an answer at once.
            expression: Tags separated by `||`, `*` for all, or a parsed subscription.
            from_max: Whether a group that has no offset yet starts after the last message.
            order: Whether a queue gives no messages while earlier ones of it are not acknowledged.
            attempt_id: Name of the pop. If it is repeated, it gets the same messages again (RocketMQ: if it is ordered).
            replay_only: Whether to get only messages of an earlier pop of this name. Gantry's broker knows this.
        """
        subscription = self._subscription(topic, expression)
        header = PopMessageHeader(
            consumer_group=self.group,
            topic=topic,
            queue_id=queue_id,
            max_msg_nums=max_messages,
            invisible_time=invisible_ms,
            poll_time=poll_ms,
            born_time=self._engine.clock.now_ms(),
            init_mode=FROM_MAX if from_max else FROM_MIN,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
            order=order,
            attempt_id=attempt_id,
            gantry_replay=True if replay_only else None,
        )
        address = await self._address(topic, broker_name)
        response = await self._engine.invoke(
            address,
            RemotingCommand.request(RequestCode.POP_MESSAGE, header),
            timeout_ms=poll_ms + _HELD_GRACE_MS if poll_ms > 0 else self._engine.settings.admin_timeout_ms,
        )
        status = _STATUSES.get(response.code)
        if status is None:
            raise BrokerError(response.code, response.remark, address)
        if status is not PopStatus.FOUND:
            return PopResult(status)
        answer = read_header(PopMessageResponseHeader, response, address)
        popped = _read_messages(response.body_bytes, answer, broker_name, address)
        # An SQL92 expression has no tags; the broker's filter is exact then.
        is_exact = not subscription.tags_set
        wanted = [item for item in popped if is_exact or subscription.matches_tag(item.message.tag)]
        if len(wanted) < len(popped):
            unwanted = [(topic, item.receipt) for item in popped if not subscription.matches_tag(item.message.tag)]
            # If this fails, they are given out again after their invisible time, and left out again.
            with contextlib.suppress(ClientError):
                await self.batch_ack(broker_name, unwanted)
        return PopResult(status, wanted, answer.rest_num)

    async def ack(self, topic: str, receipt: PopReceipt, *, timeout_ms: int | None = None) -> None:
        """Acknowledge a message of a topic. On return, the group does not get it again."""
        header = AckMessageHeader(
            consumer_group=self.group,
            topic=receipt.real_topic(topic, self.group),
            queue_id=receipt.queue_id,
            extra_info=encode_pop_receipt(receipt),
            offset=receipt.queue_offset,
        )
        address = await self._address(topic, receipt.broker_name)
        await self._engine.call(address, RequestCode.ACK_MESSAGE, header, timeout_ms=timeout_ms)

    async def batch_ack(
        self, broker_name: str, receipts: Sequence[tuple[str, PopReceipt]], *, timeout_ms: int | None = None
    ) -> Mapping[int, BrokerError]:
        """Acknowledge many messages of one broker with one request.

        Args:
            broker_name: The broker set, which all receipts name.
            receipts: Topics and receipts.
            timeout_ms: Time-out of the request.

        Returns:
            The indexes of the refused receipts, with the reasons. RocketMQ's broker does not report them.
        """
        if not receipts:
            return {}
        # By topic and all of a receipt but its queue offset.
        groups: dict[tuple[str, tuple[Any, ...]], list[int]] = {}
        for index, (topic, receipt) in enumerate(receipts):
            span = receipt[-1] - receipt[0]
            if receipt.broker_name != broker_name or not 0 <= span < OFFSETS_SPAN_MAX:
                raise InvalidArgumentError("receipts", encode_pop_receipt(receipt), f"is none of broker {broker_name}")
            groups.setdefault((topic, receipt[:-1]), []).append(index)
        acks = [
            _batch_ack(self.group, topic, receipts[indexes[0]][1], [receipts[index][1][-1] for index in indexes])
            for (topic, _), indexes in groups.items()
        ]
        address = await self._address(receipts[0][0], broker_name)
        request = RemotingCommand.request(
            RequestCode.BATCH_ACK_MESSAGE, body=BatchAckRequest(acks=acks, broker_name=broker_name).encode()
        )
        timeout_ms = self._engine.settings.admin_timeout_ms if timeout_ms is None else timeout_ms
        response = await self._engine.invoke(address, request, timeout_ms=timeout_ms)
        if not response.body:
            if response.code != ResponseCode.SUCCESS:
                raise BrokerError(response.code, response.remark, address)
            return {}
        refused: dict[int, BrokerError] = {}
        members = list(groups.values())
        for refusal in read_body(BatchAckResponse.decode, response, address).refused:
            for index in members[refusal.ack] if 0 <= refusal.ack < len(members) else ():
                if refusal.offset in (None, receipts[index][1].queue_offset):
                    refused[index] = BrokerError(refusal.code, refusal.remark, address)
        return refused

    async def change_invisible_time(
        self, topic: str, receipt: PopReceipt, invisible_ms: int, *, timeout_ms: int | None = None
    ) -> PopReceipt:
        """Hide a message for a time from now on: longer, or shorter so that it is given out again soon.

        Returns:
            The new receipt. The old one is not valid any more.
        """
        header = ChangeInvisibleTimeHeader(
            consumer_group=self.group,
            topic=receipt.real_topic(topic, self.group),
            queue_id=receipt.queue_id,
            extra_info=encode_pop_receipt(receipt),
            offset=receipt.queue_offset,
            invisible_time=invisible_ms,
        )
        address = await self._address(topic, receipt.broker_name)
        response = await self._engine.call(
            address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header, timeout_ms=timeout_ms
        )
        answer = read_header(ChangeInvisibleTimeResponseHeader, response, address)
        return receipt._replace(
            # The check point of a pop in order is that of the whole pop.
            start_offset=receipt.start_offset if receipt.is_order else receipt.queue_offset,
            popped_at_ms=answer.pop_time,
            invisible_ms=answer.invisible_time,
            revive_queue_id=ORDER_REVIVE_QUEUE if receipt.is_order else answer.revive_qid,
        )

    async def wait_for_message(
        self,
        topic: str,
        broker_name: str,
        *,
        poll_ms: int,
        expression: str | SubscriptionData = SUB_ALL,
        order: bool = False,
    ) -> bool | None:
        """Wait until a broker has a message for the group, and take none.

        Args:
            topic: The topic.
            broker_name: The broker set.
            poll_ms: Time for which the broker may hold the request.
            expression: The messages that are wanted, as for a pop.
            order: Whether the pop that follows is one in order.

        Returns:
            Whether there is a message; None if too many requests wait at the broker for it to hold this one.
        """
        subscription = self._subscription(topic, expression)
        header = NotificationHeader(
            consumer_group=self.group,
            topic=topic,
            queue_id=ANY_QUEUE,
            poll_time=poll_ms,
            born_time=self._engine.clock.now_ms(),
            order=order,
            exp_type=subscription.expression_type,
            exp=subscription.sub_string,
        )
        address = await self._address(topic, broker_name)
        timeout_ms = poll_ms + _HELD_GRACE_MS
        response = await self._engine.call(address, RequestCode.NOTIFICATION, header, timeout_ms=timeout_ms)
        answer = read_header(NotificationResponseHeader, response, address)
        return None if answer.polling_full and not answer.has_msg else answer.has_msg

    async def _address(self, topic: str, broker_name: str) -> str:
        return await self._engine.queue_address(MessageQueue(topic, broker_name, 0))

    @staticmethod
    def _subscription(topic: str, expression: str | SubscriptionData) -> SubscriptionData:
        if isinstance(expression, SubscriptionData):
            return expression
        try:
            return parse_tag_expression(topic, expression)
        except InvalidExpressionError as error:
            raise InvalidArgumentError(error.field, error.value, error.reason) from None


def _batch_ack(group: str, topic: str, pop: PopReceipt, offsets: Sequence[int]) -> BatchAck:
    return BatchAck(
        mask=encode_offsets(pop.start_offset, offsets),
        group=group,
        invisible_ms=pop.invisible_ms,
        popped_at_ms=pop.popped_at_ms,
        queue_id=pop.queue_id,
        retry=pop.retry,
        revive_queue_id=pop.revive_queue_id,
        start_offset=pop.start_offset,
        topic=topic,
    )


def _read_messages(
    body: bytes, answer: PopMessageResponseHeader, broker_name: str, address: str
) -> list[PoppedMessage]:
    try:
        starts = decode_start_offsets(answer.start_offset_info)
        counts = decode_order_counts(answer.order_count_info)
        return [_popped(message, answer, starts, counts, broker_name) for message in iter_records(memoryview(body))]
    except (InvalidIdError, RecordError, KeyError) as error:
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"its answer can't be read: {error}", address) from None


def _popped(
    message: StoredMessage,
    answer: PopMessageResponseHeader,
    starts: Mapping[tuple[str, int], int],
    counts: Mapping[tuple[str, int, int | None], int],
    broker_name: str,
) -> PoppedMessage:
    text = message.properties.get(PropertyName.POP_CK)
    if text is None:
        receipt = PopReceipt(
            starts[NOT_RETRY, message.queue_id],
            answer.pop_time,
            answer.invisible_time,
            answer.revive_qid,
            NOT_RETRY,
            broker_name,
            message.queue_id,
            message.queue_offset,
        )
    else:
        receipt = decode_pop_receipt(text)
    count = message.reconsume_times
    if counts:
        of_queue = counts.get((NOT_RETRY, message.queue_id, None), count)
        count = counts.get((NOT_RETRY, message.queue_id, message.queue_offset), of_queue)
    first = message.properties.get(PropertyName.FIRST_POP_TIME, "")
    return PoppedMessage(message, receipt, count + 1, int(first) if first.isdigit() else answer.pop_time)
