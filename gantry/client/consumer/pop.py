"""PopConsumer: takes messages from a broker for a time, and acknowledges them with their receipts.

The broker keeps the position of the group and knows which messages are out. A message that is not acknowledged within
its invisible time is given out again.

Source: RocketMQ 5.3 MQClientAPIImpl (popMessageAsync, ackMessageAsync, changeInvisibleTimeAsync).
"""

import contextlib
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from gantry.client.answers import read_body, read_header
from gantry.client.consumer.popacks import AckPart, ack_request, refused_offsets
from gantry.client.consumer.popanswer import PoppedMessage, PoppedRecords, read_popped
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError, InvalidArgumentError
from gantry.model.errors import InvalidExpressionError, InvalidIdError, InvalidNameError, RecordError
from gantry.model.group import SUB_ALL, SubscriptionData, parse_tag_expression
from gantry.model.message import MessageQueue
from gantry.model.names import check_group
from gantry.model.popreceipt import ORDER_REVIVE_QUEUE, PopPart, PopReceipt, encode_pop_receipt
from gantry.remoting.bodies.pop import BatchAckResponse, TakenMessage, TakenMessages, TakenPlace, TakenQuery
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
_NOTHING: Final = PoppedRecords(b"", ())


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
        """Take messages of a topic from one broker, and decode them. The arguments are those of `pop_records`."""
        status, popped = await self.pop_records(
            topic,
            broker_name,
            queue_id=queue_id,
            max_messages=max_messages,
            invisible_ms=invisible_ms,
            poll_ms=poll_ms,
            expression=expression,
            from_max=from_max,
            order=order,
            attempt_id=attempt_id,
            replay_only=replay_only,
        )
        return PopResult(status, tuple(map(popped.message, popped.records)), popped.left_count)

    async def pop_records(
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
    ) -> tuple[PopStatus, PoppedRecords]:
        """Take messages of a topic from one broker, as records.

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
            return status, _NOTHING
        answer = read_header(PopMessageResponseHeader, response, address)
        try:
            popped = read_popped(response.body_bytes, answer, broker_name)
        except (InvalidIdError, RecordError, KeyError) as error:
            raise BrokerError(ResponseCode.SYSTEM_ERROR, f"its answer can't be read: {error}", address) from None
        if subscription.tags_set:  # An SQL92 expression has no tags; the broker's filter is exact then.
            popped = await self._leave_out(topic, broker_name, popped, subscription)
        return status, popped

    async def _leave_out(
        self, topic: str, broker_name: str, popped: PoppedRecords, subscription: SubscriptionData
    ) -> PoppedRecords:
        """Acknowledge messages with other tags, and return the others."""
        matches = [subscription.matches_tag(popped.tag(record)) for record in popped.records]
        if all(matches):
            return popped
        # If this fails, they are given out again after their invisible time, and left out again.
        with contextlib.suppress(ClientError):
            unwanted = [record for record, is_wanted in zip(popped.records, matches, strict=True) if not is_wanted]
            await self.batch_ack(broker_name, [(topic, record.receipt) for record in unwanted])
        wanted = [record for record, is_wanted in zip(popped.records, matches, strict=True) if is_wanted]
        return replace(popped, records=wanted)

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
        # By topic and all of a receipt but its queue offset.
        groups: dict[tuple[str, PopPart], list[int]] = {}
        for index, (topic, receipt) in enumerate(receipts):
            groups.setdefault((topic, receipt.part), []).append(index)
        acks = [
            AckPart(topic, part, [receipts[index][1].queue_offset for index in indexes])
            for (topic, part), indexes in groups.items()
        ]
        refused = await self.ack_parts(broker_name, acks, timeout_ms=timeout_ms)
        if not refused:
            return {}
        return {
            index: refused[number, receipts[index][1].queue_offset]
            for number, indexes in enumerate(groups.values())
            for index in indexes
            if (number, receipts[index][1].queue_offset) in refused
        }

    async def ack_parts(
        self, broker_name: str, parts: Sequence[AckPart], *, timeout_ms: int | None = None
    ) -> Mapping[tuple[int, int], BrokerError]:
        """Acknowledge many messages of one broker with one request.

        Returns:
            The refused messages, by index of the part and queue offset, with the reasons.
        """
        if not parts:
            return {}
        body = ack_request(self.group, broker_name, parts).encode()
        address = await self._address(parts[0].topic, broker_name)
        request = RemotingCommand.request(RequestCode.BATCH_ACK_MESSAGE, body=body)
        timeout_ms = self._engine.settings.admin_timeout_ms if timeout_ms is None else timeout_ms
        response = await self._engine.invoke(address, request, timeout_ms=timeout_ms)
        if not response.body:
            if response.code != ResponseCode.SUCCESS:
                raise BrokerError(response.code, response.remark, address)
            return {}
        answer = read_body(BatchAckResponse.decode, response, address)
        return {
            place: BrokerError(refusal.code, refusal.remark, address)
            for place, refusal in refused_offsets(parts, answer)
        }

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

    async def taken(
        self, topic: str, broker_name: str, places: Sequence[tuple[int, int]]
    ) -> Mapping[tuple[int, int], TakenMessage]:
        """Return which messages of a topic the group has taken and has not acknowledged.

        Only Gantry's broker knows this; the error of another one has the code REQUEST_CODE_NOT_SUPPORTED.

        Args:
            topic: The topic that stores the messages, which may be a pop retry topic.
            broker_name: The broker set.
            places: Queue ids and queue offsets of the messages, at most TAKEN_PLACES_MAX.

        Returns:
            The taken ones by queue id and queue offset.
        """
        wanted = [TakenPlace(queue_id=queue_id, offset=offset) for queue_id, offset in places]
        body = TakenQuery(consumer_group=self.group, topic=topic, places=wanted).encode()
        address = await self._address(topic, broker_name)
        response = await self._engine.call(address, RequestCode.GANTRY_TAKEN_MESSAGES, body=body)
        messages = read_body(TakenMessages.decode, response, address).messages
        return {(one.queue_id, one.offset): one for one in messages}

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
