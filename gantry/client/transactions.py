"""TransactionProducer: sends half messages, and ends their transactions.

Theory of operation. `send_transaction` sends the half message, runs the part of the application, and sends the decision
in a one-way request. If the decision is lost, the broker asks a producer of the group (transactionchecks.py), so each
producer has a listener. `send_half` and `decide` are the two steps on their own, for callers that keep the decision
themselves; `decide` waits for the broker's reply.

The half message is sent like any other message. A send without an answer is tried again, perhaps on another broker, and
leaves a second half message then. The broker asks about it too: the listener must give one answer for one message id.

Concurrency: the event loop's thread, any number of transactions at once.

Source: RocketMQ 5.3 DefaultMQProducerImpl.sendMessageInTransaction and endTransaction.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError, InvalidArgumentError
from gantry.client.producer import Producer
from gantry.client.sendrequest import SendResult, SendStatus
from gantry.client.sendtarget import ANY_QUEUE, QueueChoice
from gantry.client.transactionchecks import CheckListener, Decision, end_transaction
from gantry.model import sysflag
from gantry.model.errors import InvalidIdError
from gantry.model.message import Message, MessageQueue
from gantry.model.messageid import decode_stored_id
from gantry.model.propertyname import PropertyName
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.telemetry import logger

log = logger("client.transactions")

Execute = Callable[[SendResult], Awaitable[Decision]]
"""Runs the application's part of a transaction and returns the decision."""


class TransactionResult(NamedTuple):
    """The half message of a transaction, and the decision that was sent for it."""

    half: SendResult
    decision: Decision


class TransactionProducer(Producer):
    """Sends transactional messages for one producer group."""

    def __init__(self, engine: ClientEngine, group: str, check: CheckListener) -> None:
        """Make a producer whose listener answers checks. Raises InvalidArgumentError for an invalid group name."""
        super().__init__(engine, group)
        self._listener = check
        self._stop_listening: Callable[[], None] | None = None

    async def start(self) -> None:
        """Join the producer group and answer its checks; the next heart-beats tell the brokers."""
        if self._stop_listening is None:
            self._stop_listening = self._engine.transaction_checks.listen(self.group, self._listener)
        await super().start()

    async def close(self) -> None:
        """Leave the group, without waiting for transactions in progress. Other producers of the group are asked."""
        if self._stop_listening is not None:
            self._stop_listening()
            self._stop_listening = None
        await super().close()

    async def send_transaction(
        self, message: Message, execute: Execute, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> TransactionResult:
        """Send a half message, run the application's part, and send the decision.

        The half message must be stored as durably as the broker promises. Otherwise `execute` does not run, and the
        decision is ROLLBACK.

        Args:
            message: The message. A delay is removed from it.
            execute: The application's part. If it raises an error, the transaction stays open and the error is raised
                here; the broker asks the listener later.
            queue: The queue to send to; None for any queue.
            timeout_ms: Time-out for the send; None for the setting.

        Raises:
            InvalidArgumentError, NotStartedError, SendError: As `Producer.send`; `execute` did not run.
        """
        half = await self.send_half(message, queue=queue, timeout_ms=timeout_ms)
        if half.status is not SendStatus.SEND_OK:
            await self._end(half, Decision.ROLLBACK, remark=f"the half message got {half.status}")
            return TransactionResult(half, Decision.ROLLBACK)
        try:
            decision = await execute(half)
        except Exception as error:  # boundary: whatever the application raises, the transaction stays open.
            await self._end(half, Decision.UNKNOWN, remark=f"executeLocalTransactionBranch exception: {error!r}"[:512])
            raise
        await self._end(half, decision)
        return TransactionResult(half, decision)

    async def send_half(
        self, message: Message, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendResult:
        """Send a half message and return its place: the queue of the message itself, and the offset in the half topic.

        Raises:
            InvalidArgumentError, NotStartedError, SendError: As `Producer.send`.
        """
        self._engine.check_running()
        choice = ANY_QUEUE if queue is None else QueueChoice(queue)
        choice.check(message.topic)
        properties = {name: value for name, value in message.properties.items() if name != PropertyName.DELAY}
        properties |= {PropertyName.TRAN_MSG: "true", PropertyName.PGROUP: self.group}
        prepared = await self._prepare(replace(message, properties=properties), None)
        prepared = prepared._replace(sys_flag=prepared.sys_flag | sysflag.TRANSACTION_PREPARED)
        return (await self._send_with_retries(prepared, choice, timeout_ms, retries_refusals=True)).results()[0]

    async def decide(self, half: SendResult, decision: Decision, *, timeout_ms: int | None = None) -> None:
        """Commit or roll back, and return when the broker has made the decision durable.

        A call without an answer may be repeated: the broker carries out one decision.

        Raises:
            InvalidArgumentError: The decision is UNKNOWN, or the half message has no valid stored id.
            BrokerError: The broker refused; code 200 or 201 if it has committed or rolled back already.
            NoAnswerError: There is no answer; the decision may have been carried out.
            NotStartedError, NoRouteError, BrokerUnavailableError: The decision was not sent.
        """
        if decision is Decision.UNKNOWN:
            raise InvalidArgumentError("decision", decision, "is neither COMMIT nor ROLLBACK")
        address = await self._engine.queue_address(half.queue)
        timeout_ms = self._settings.send_timeout_ms if timeout_ms is None else timeout_ms
        response = await self._engine.invoke(
            address, self._decision(half, decision, one_way=False), timeout_ms=timeout_ms
        )
        if response.code != ResponseCode.SUCCESS:
            raise BrokerError(response.code, response.remark, address)

    async def _end(self, half: SendResult, decision: Decision, *, remark: str | None = None) -> None:
        """Send a decision without waiting for a reply. If it is lost, the broker asks."""
        try:
            request = self._decision(half, decision, one_way=True, remark=remark)
            await self._engine.invoke_one_way(await self._engine.queue_address(half.queue), request)
        except ClientError as error:
            log.warning("a decision was not sent; the broker asks", message_id=half.message_id, reason=str(error))

    def _decision(
        self, half: SendResult, decision: Decision, *, one_way: bool, remark: str | None = None
    ) -> RemotingCommand:
        try:
            _, physical_offset = decode_stored_id(half.stored_id)
        except InvalidIdError as error:
            raise InvalidArgumentError("half", half.stored_id, error.reason) from None
        return end_transaction(
            self.group,
            decision,
            queue_offset=half.queue_offset,
            physical_offset=physical_offset,
            message_id=half.message_id,
            transaction_id=half.transaction_id,
            topic=half.queue.topic,
            broker_name=half.queue.broker_name,
            one_way=one_way,
            remark=remark,
        )
