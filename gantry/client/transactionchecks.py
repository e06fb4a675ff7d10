"""The broker's questions about open transactions (request 39), and the answers of the application.

The broker asks one producer of the group, not necessarily the one that sent the half message. So the application must
find out from its own data whether its part of the transaction succeeded. A check that is not answered comes again.

Concurrency: the event loop's thread.

Source: RocketMQ 5.3 DefaultMQProducerImpl.checkTransactionState.
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable
from typing import Final

from gantry.model import sysflag
from gantry.model.errors import CorruptRecordError, TornRecordError
from gantry.model.message import StoredMessage
from gantry.model.propertyname import PropertyName
from gantry.model.record import decode_record
from gantry.remoting.aio import Channel
from gantry.remoting.codes import RequestCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import BackpressureError, LocalProtocolError
from gantry.remoting.headers import CheckTransactionStateHeader, EndTransactionHeader
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger

log = logger("client.transactions")

CHECKS_MAX: Final = 2_000
"""Limit of checks that wait for the application. Further checks are dropped, unless their group has CHECKS_AT_ONCE or
fewer; the broker asks again."""
CHECKS_AT_ONCE: Final = 16
"""Number of checks of one group that the application answers at the same time. Each group has places of its own, so a
group whose producers are silent delays no other one."""


class Decision(enum.IntEnum):
    """The end of a transaction, with the numbers of the protocol."""

    COMMIT = sysflag.TRANSACTION_COMMIT
    """The message is delivered."""
    ROLLBACK = sysflag.TRANSACTION_ROLLBACK
    """The message is never delivered."""
    UNKNOWN = sysflag.TRANSACTION_NONE
    """The transaction stays open, and the broker asks later."""


CheckListener = Callable[[StoredMessage], Awaitable[Decision]]
"""Returns the decision about a half message, which has the topic and queue of the message itself."""


class TransactionChecks:
    """The listeners of the producer groups of this process, and the answers to checks.

    Attributes:
        dropped_count: Number of checks that were dropped, because too many waited or nobody listens.
    """

    def __init__(self, tasks: TaskSet) -> None:
        self.dropped_count = 0
        self._tasks = tasks
        self._groups: dict[str, _Group] = {}
        self._waiting_count = 0

    def listen(self, group: str, listener: CheckListener) -> Callable[[], None]:
        """Answer the checks of a group with a listener. Return a function that ends this."""
        joined = self._groups.setdefault(group, _Group(group))
        joined.listeners.append(listener)

        def stop() -> None:
            joined.listeners.remove(listener)
            if not joined.listeners and self._groups.get(group) is joined:
                del self._groups[group]

        return stop

    def answer(self, channel: Channel, request: RemotingCommand) -> None:
        """Ask the listener of the message's group, and send its decision. Raises HeaderError."""
        header = CheckTransactionStateHeader.from_ext(request.ext_fields)
        try:
            half = decode_record(request.body_bytes)
        except (CorruptRecordError, TornRecordError) as error:
            log.warning("a check holds no valid message", peer=channel.address, reason=str(error))
            return
        group = self._groups.get(half.properties.get(PropertyName.PGROUP, ""))
        if group is None or (self._waiting_count >= CHECKS_MAX and group.waiting_count >= CHECKS_AT_ONCE):
            self.dropped_count += 1
            return
        self._waiting_count += 1
        group.waiting_count += 1
        self._tasks.spawn(self._decide(channel, header, half, group, group.listeners[0]))

    async def _decide(
        self,
        channel: Channel,
        header: CheckTransactionStateHeader,
        half: StoredMessage,
        group: "_Group",
        listener: CheckListener,
    ) -> None:
        remark = None
        try:
            async with group.slots:
                decision = await listener(half)
        except Exception as error:  # boundary: the error of an application must not end the client.
            log.exception("the application can't decide a transaction", group=group.name, message_id=half.message_id)
            decision, remark = Decision.UNKNOWN, f"checkLocalTransactionState Exception: {error!r}"[:512]
        finally:
            self._waiting_count -= 1
            group.waiting_count -= 1
            assert self._waiting_count >= 0, f"{self._waiting_count} checks wait"
        request = end_transaction(
            group.name,
            decision,
            queue_offset=header.tran_state_table_offset,
            physical_offset=header.commit_log_offset,
            message_id=half.message_id,
            transaction_id=header.transaction_id,
            topic=half.topic,
            broker_name=header.broker_name,
            from_check=True,
            remark=remark,
        )
        try:
            channel.send_one_way(request)
        except (BackpressureError, LocalProtocolError) as error:
            log.warning("a decision can't be sent; the broker asks again", group=group.name, reason=str(error))


class _Group:
    """A producer group with listeners.

    Attributes:
        name: Its name.
        listeners: Its listeners, at least one.
        waiting_count: Number of its checks without a decision.
        slots: Places for checks that its listener is asked about.
    """

    __slots__ = ("listeners", "name", "slots", "waiting_count")

    def __init__(self, name: str) -> None:
        self.name = name
        self.listeners: list[CheckListener] = []
        self.waiting_count = 0
        self.slots = asyncio.Semaphore(CHECKS_AT_ONCE)


def end_transaction(
    group: str,
    decision: Decision,
    *,
    queue_offset: int,
    physical_offset: int,
    message_id: str,
    transaction_id: str | None,
    topic: str | None = None,
    broker_name: str | None = None,
    from_check: bool = False,
    one_way: bool = True,
    remark: str | None = None,
) -> RemotingCommand:
    """Return the request (37) that ends a transaction.

    Args:
        group: The producer group.
        decision: The decision.
        queue_offset: Queue offset of the half message.
        physical_offset: Physical offset of the half message.
        message_id: UNIQ_KEY of the message.
        transaction_id: Id of the transaction that the broker gave.
        topic: Topic of the message.
        broker_name: Name of the broker set, which the proxies of RocketMQ need.
        from_check: Whether this answers a check.
        one_way: Whether no reply is wanted.
        remark: The error of the application, for the broker's log.
    """
    header = EndTransactionHeader(
        producer_group=group,
        tran_state_table_offset=queue_offset,
        commit_log_offset=physical_offset,
        commit_or_rollback=int(decision),
        msg_id=message_id,
        from_transaction_check=from_check,
        transaction_id=transaction_id,
        topic=topic,
        broker_name=broker_name,
    )
    request = RemotingCommand.request(RequestCode.END_TRANSACTION, header, one_way=one_way)
    request.remark = remark
    return request
