"""PullConsumer: reads queues from explicit offsets; it does not store a position itself.

Source: RocketMQ 5.3 PullAPIWrapper and DefaultMQPullConsumerImpl.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from gantry.client.answers import read_header
from gantry.client.consumer.offsets import LOWER, Offsets
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, InvalidArgumentError
from gantry.model.errors import InvalidExpressionError, InvalidNameError
from gantry.model.group import SUB_ALL, SubscriptionData, parse_tag_expression
from gantry.model.message import MessageQueue, StoredMessage
from gantry.model.names import check_group
from gantry.model.record import iter_records
from gantry.model.sysflag import PullSysFlag
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.pull import PullMessageHeader, PullMessageResponseHeader

# The default number of messages of a pull, as in RocketMQ, whose brokers return at most 32 by default.
MESSAGES_DEFAULT = 32
# A broker looks every 5 s for held pulls whose time has passed, so its answer may come 5 s after the suspend time. The
# rest is for the way of request and answer.
_HELD_GRACE_MS = 10_000

_SYS_FLAG = PullSysFlag.build(subscription=True)
_SYS_FLAG_SUSPEND = PullSysFlag.build(subscription=True, suspend=True)


class PullStatus(enum.StrEnum):
    """The broker's answer to a pull, under RocketMQ's names.

    Attributes:
        FOUND: The broker returned records; those whose tag only has the same hash as a wanted tag are among them.
        NO_NEW_MSG: The queue has no message at the offset yet, nor within the suspend time.
        NO_MATCHED_MSG: The broker read messages, and none of them matches. Pull again at once at the next offset.
        OFFSET_ILLEGAL: The offset is before the first readable message or after the queue's end. The next offset is the
            one that the broker suggests instead.
    """

    FOUND = "FOUND"
    NO_NEW_MSG = "NO_NEW_MSG"
    NO_MATCHED_MSG = "NO_MATCHED_MSG"
    OFFSET_ILLEGAL = "OFFSET_ILLEGAL"


_STATUSES: dict[int, PullStatus] = {
    ResponseCode.SUCCESS: PullStatus.FOUND,
    ResponseCode.PULL_NOT_FOUND: PullStatus.NO_NEW_MSG,
    ResponseCode.PULL_RETRY_IMMEDIATELY: PullStatus.NO_MATCHED_MSG,
    ResponseCode.PULL_OFFSET_MOVED: PullStatus.OFFSET_ILLEGAL,
}


@dataclass(frozen=True, slots=True)
class PullResult:
    """The messages of a pull and the offset of the next one.

    The broker filters by the hashes of tags. So `body` may hold records whose tag has the same hash as a wanted tag.
    `messages` leaves them out. A caller that reads `body` directly has to leave them out too.

    Attributes:
        status: The broker's answer.
        body: Consecutive records; empty unless the status is FOUND.
        next_offset: The offset of the next pull.
        min_offset: The first readable offset of the queue when the broker answered.
        max_offset: The offset after the queue's last readable message at that moment.
        suggest_broker_id: The member of the set that the broker suggests for the next pull: 0 is the master.
        subscription: The parsed expression of the pull.
        reset_epoch: Epoch of the reset of the group's offset because of which the status is OFFSET_ILLEGAL; None if
            there is another reason.
    """

    status: PullStatus
    body: memoryview
    next_offset: int
    min_offset: int
    max_offset: int
    suggest_broker_id: int
    subscription: SubscriptionData
    reset_epoch: int | None = None

    def messages(self) -> Iterator[StoredMessage]:
        """Yield the messages that match the subscription.

        Raises:
            RecordError: The iterator reached a damaged record, so the position of the next record is unknown.
        """
        if self.subscription.is_all:
            return iter_records(self.body)
        matches = self.subscription.matches_tag
        return (message for message in iter_records(self.body) if matches(message.tag))


class PullConsumer:
    """Pulls messages for one consumer group, through the connections of an engine.

    The methods for offsets raise the errors that the class Offsets lists.

    Concurrency: the event loop's thread, any number of pulls at once. A cancelled pull moves no offset.

    Attributes:
        group: The consumer group.
        offsets: The calls for offsets, also for other groups.
    """

    def __init__(self, engine: ClientEngine, group: str) -> None:
        """Make a consumer; the broker is not asked. Raises InvalidArgumentError for an invalid group name."""
        try:
            check_group(group)
        except InvalidNameError as error:
            raise InvalidArgumentError(error.field, error.value, error.reason) from None
        self.group = group
        self.offsets = Offsets(engine)
        self._engine = engine

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_messages: int = MESSAGES_DEFAULT,
        max_bytes: int | None = None,
        expression: str | SubscriptionData = SUB_ALL,
        suspend_ms: int = 0,
        broker_id: int | None = None,
        wide_messages: int | None = None,
        epoch: int | None = None,
    ) -> PullResult:
        """Read messages from a queue, and do not commit an offset.

        Args:
            queue: The queue.
            offset: Offset of the first message to read.
            max_messages: Largest number of messages to read; the broker has a limit of its own.
            max_bytes: Approximate largest size of the answer; None for the broker's limit.
            expression: Tags separated by `||`, `*` for all, or a subscription (`sql_subscription` for SQL92).
            suspend_ms: Time for which the broker may hold the pull if there is no message yet; 0 for an answer at once.
            broker_id: The preferred member of the set; another one may answer. None: only the master may answer.
            wide_messages: Replaces `max_messages` on Gantry's brokers, whose limits by count do not apply to it. Other
                brokers ignore it.
            epoch: Epoch of the latest reset of the group's offset that the caller knows, 0 if it knows of none. None:
                the broker judges by what the connection has read.

        Raises:
            InvalidArgumentError: An argument is not valid.
            NoRouteError, BrokerUnavailableError: The topic has no route, or the set no member that may answer now.
            BrokerError: The broker refused, or its answer can't be read.
            NoAnswerError: The broker did not answer in time, or the connection broke.
        """
        if offset < 0:
            raise InvalidArgumentError("offset", offset, "is below 0")
        if max_messages <= 0:
            raise InvalidArgumentError("max_messages", max_messages, "is not above 0")
        subscription = self._subscription(queue.topic, expression)
        header = PullMessageHeader(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=max_messages,
            sys_flag=_SYS_FLAG_SUSPEND if suspend_ms > 0 else _SYS_FLAG,
            commit_offset=0,
            suspend_timeout_millis=max(0, suspend_ms),
            sub_version=subscription.sub_version,
            subscription=subscription.sub_string,
            expression_type=subscription.expression_type,
            max_msg_bytes=max_bytes,
            gantry_max_msg_nums=wide_messages,
            gantry_reset_epoch=epoch,
        )
        address = await self._engine.queue_address(queue, broker_id=broker_id)
        response = await self._engine.invoke(
            address,
            RemotingCommand.request(RequestCode.PULL_MESSAGE, header),
            timeout_ms=suspend_ms + _HELD_GRACE_MS if suspend_ms > 0 else self._engine.settings.admin_timeout_ms,
        )
        status = _STATUSES.get(response.code)
        if status is None:
            raise BrokerError(response.code, response.remark, address)
        return _result(status, response, address, subscription)

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the queue's first readable message."""
        return await self.offsets.min_offset(queue)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset after the queue's last message: that of the next message to be written."""
        return await self.offsets.max_offset(queue)

    async def search_offset(self, queue: MessageQueue, at_ms: int, boundary: str = LOWER) -> int:
        """Return the offset for a moment (wall ms).

        LOWER: the first message stored at that moment or later; the max offset if there is none. UPPER: the last one
        stored at that moment or earlier; the min offset if there is none.
        """
        return await self.offsets.search_offset(queue, at_ms, boundary)

    async def committed_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset on a queue, or None if it has never committed one."""
        return await self.offsets.committed_offset(self.group, queue)

    async def commit_offset(self, queue: MessageQueue, offset: int) -> None:
        """Commit the group's offset on a queue. Raises InvalidArgumentError for a negative offset."""
        if offset < 0:
            raise InvalidArgumentError("offset", offset, "is below 0")
        await self.offsets.commit_offset(self.group, queue, offset)

    def _subscription(self, topic: str, expression: str | SubscriptionData) -> SubscriptionData:
        if isinstance(expression, SubscriptionData):
            return expression
        try:
            return parse_tag_expression(topic, expression)
        except InvalidExpressionError as error:
            raise InvalidArgumentError(error.field, error.value, error.reason) from None


def _result(status: PullStatus, response: RemotingCommand, address: str, subscription: SubscriptionData) -> PullResult:
    """Return the result of a pull. Raises BrokerError if the answer can't be read."""
    answer = read_header(PullMessageResponseHeader, response, address)
    return PullResult(
        status=status,
        body=memoryview(response.body_bytes if status is PullStatus.FOUND else b""),
        next_offset=answer.next_begin_offset,
        min_offset=answer.min_offset,
        max_offset=answer.max_offset,
        suggest_broker_id=answer.suggest_which_broker_id,
        subscription=subscription,
        reset_epoch=answer.gantry_reset_epoch,
    )
