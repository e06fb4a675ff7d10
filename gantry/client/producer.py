"""Producer: sends messages, retries them if that is safe, and reports their outcomes.

Theory of operation. A send has a time-out for all its attempts together. If an attempt gets no answer, or a code after
which another broker may succeed, the producer tries again elsewhere, with the same message id. A send whose queue is
chosen (by the caller, a selector or an ordering key) has one attempt, because it must not go to another queue. The
reported outcome covers all attempts (errors.py).

If the chosen queue's broker is not in the route, the producer loads a newer route once. If the broker is still missing,
the producer refuses the send at once and never takes another queue instead.

Concurrency: the event loop's thread, any number of sends at once. A cancelled send may have been stored.

Source: RocketMQ 5.3 DefaultMQProducerImpl.
"""

from collections.abc import Callable, Sequence

from gantry.client.engine import ClientEngine
from gantry.client.errors import (
    BrokerError,
    BrokerUnavailableError,
    ClientError,
    InvalidArgumentError,
    NoAnswerError,
    NoRouteError,
    NotWritableError,
    Outcome,
    RequestTimeoutError,
    SendError,
    no_answer,
    outcome_of,
    refused_send,
    send_error,
)
from gantry.client.queueselector import QueueSelector
from gantry.client.sendrequest import (
    BatchSendResult,
    EncodedSend,
    SendResult,
    build_request,
    check_body,
    check_flag,
    check_send_topic,
    encode_message_properties,
    prepare_batch,
    read_result,
)
from gantry.client.sendtarget import ANY_QUEUE, QueueChoice, SendTargets, Target
from gantry.model.compression import compress
from gantry.model.errors import InvalidNameError
from gantry.model.message import Message, MessageQueue
from gantry.model.names import check_group
from gantry.model.propertyname import PropertyName
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import LocalProtocolError, RequestFailedError

# Errors that end a send before or between its attempts.
_NOT_SENT_ERRORS = (NoRouteError, BrokerUnavailableError, NotWritableError, BrokerError, NoAnswerError)

# The broker pushes such a message to the client that asked (requestreply.py).
_REPLY_CODE = RequestCode.SEND_REPLY_MESSAGE_V2

SendCallback = Callable[[SendResult | None, SendError | None], None]


class Producer:
    """Sends for one producer group over an engine."""

    def __init__(self, engine: ClientEngine, group: str) -> None:
        """Make a producer. Raises InvalidArgumentError for a group name that is not valid."""
        try:
            check_group(group)
        except InvalidNameError as error:
            raise InvalidArgumentError(error.field, error.value, error.reason) from None
        self.group = group
        self._engine = engine
        self._settings = settings = engine.settings
        self._clock = engine.clock
        self._transport = engine.transport
        self._targets = SendTargets(engine)
        self._default_nums = settings.default_topic_queue_nums if settings.auto_create_topics else None
        self._is_started = False

    async def start(self) -> None:
        """Join the producer group; the next heart-beats tell the brokers."""
        self._engine.heartbeats.add_producer(self._engine.client_id, self.group)
        self._is_started = True

    async def close(self) -> None:
        """Leave the group, without waiting for sends in progress."""
        if self._is_started:
            self._is_started = False
            await self._engine.heartbeats.remove_producer(self._engine.client_id, self.group)

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and return its position.

        Args:
            message: The message. Its UNIQ_KEY is its id; a message without one gets a new one.
            queue: The queue to send to.
            ordering_key: Key whose messages all go to the same queue; stored as __SHARDINGKEY.
            selector: Chooses one of the writable queues. At most one of `queue`, `ordering_key` and `selector` may be
                set.
            timeout_ms: Time-out for all attempts together; None for the setting.

        Raises:
            InvalidArgumentError: The message is not valid; nothing was sent.
            NotStartedError: The engine does not run.
            SendError: The message was not stored, or its outcome is unknown.
        """
        choice = QueueChoice(queue, ordering_key, selector)
        choice.check(message.topic)
        prepared = await self._prepare(message, ordering_key)
        return (await self._send_with_retries(prepared, choice, timeout_ms, retries_refusals=True)).results()[0]

    def send_async(
        self,
        message: Message,
        callback: SendCallback,
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Start to send a message; `callback` is called later with the result or the error.

        Unlike `send`, this tries again only after an attempt without an answer. A broker's refusal goes straight to the
        callback.

        Raises:
            InvalidArgumentError, NotStartedError: As `send`, if the producer can detect the error at once.
        """
        self._engine.check_running()
        self._check(message)
        choice = QueueChoice(queue, ordering_key, selector)
        choice.check(message.topic)

        async def deliver() -> None:
            try:
                prepared = await self._prepare(message, ordering_key)
                result = await self._send_with_retries(prepared, choice, timeout_ms, retries_refusals=False)
            except SendError as error:
                callback(None, error)
            except ClientError as error:
                callback(None, send_error(error))
            else:
                callback(result.results()[0], None)

        self._engine.tasks.spawn(deliver())

    async def send_one_way(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        selector: QueueSelector | None = None,
    ) -> str:
        """Send a message without an answer; return its id. The outcome stays unknown.

        Raises:
            InvalidArgumentError, NotStartedError: As `send`.
            SendError: The message was certainly not sent.
        """
        choice = QueueChoice(queue, ordering_key, selector)
        choice.check(message.topic)
        prepared = await self._prepare(message, ordering_key)
        await self._send_one_way(prepared, choice)
        return prepared.message_ids[0]

    async def send_batch(
        self,
        topic: str,
        items: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic in one request to one queue. The broker stores all of them or none.

        Args:
            topic: The topic of all items.
            items: The messages, in the order that they will have in the queue. Their bodies are sent without
                compression.
            queue: The queue to send to; None for any queue, with retries on other queues.
            timeout_ms: Time-out for all attempts together; None for the setting.

        Returns:
            One result for each item, in their order.

        Raises:
            InvalidArgumentError: An item is not valid, or all together are too large; nothing was sent.
            NotStartedError: The engine does not run.
            SendError: The send failed; the outcome applies to all items.
        """
        check_send_topic(topic)
        make = self._engine.unique_keys.make
        ids = [None if PropertyName.UNIQ_KEY in item.properties else make() for item in items]
        prepared = prepare_batch(topic, items, ids, body_bytes_max=self._settings.body_bytes_max)
        choice = QueueChoice(queue)
        choice.check(topic)
        return (await self._send_with_retries(prepared, choice, timeout_ms, retries_refusals=True)).results()

    async def send_prepared(
        self, prepared: EncodedSend, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> BatchSendResult:
        """Send a prepared message or batch in one request to one queue; return the position.

        Args:
            prepared: A message or a batch that is checked and encoded already; it is not checked again.
            queue: The queue to send to; None for any queue, with retries on other queues.
            timeout_ms: Time-out for all attempts together; None for the setting.

        Raises:
            InvalidArgumentError: The queue is not of this topic, or the request is too large; nothing was sent.
            NotStartedError: The engine does not run.
            SendError: The send failed; the outcome applies to all messages.
        """
        self._engine.check_running()
        choice = ANY_QUEUE if queue is None else QueueChoice(queue)
        choice.check(prepared.topic)
        return await self._send_with_retries(prepared, choice, timeout_ms, retries_refusals=True)

    async def send_prepared_one_way(self, prepared: EncodedSend, *, queue: MessageQueue | None = None) -> None:
        """Send a prepared message or batch without an answer. Raises the errors of `send_one_way`."""
        choice = QueueChoice(queue)
        choice.check(prepared.topic)
        await self._send_one_way(prepared, choice)

    async def queue_for_key(self, topic: str, ordering_key: str) -> MessageQueue:
        """Return the queue of an ordering key. Callers use it to group messages into batches.

        Raises:
            InvalidArgumentError: The name is not a valid topic name.
            SendError: No route is known.
        """
        try:
            info = await self._targets.publish_info(topic, timeout_ms=self._settings.send_timeout_ms)
        except _NOT_SENT_ERRORS as error:
            raise send_error(error) from None
        if not info.ordering_queues:
            raise send_error(NotWritableError(topic, is_transient=False))
        return info.queue_for_key(ordering_key)

    async def _send_one_way(self, prepared: EncodedSend, choice: QueueChoice) -> None:
        try:
            info = await self._targets.publish_info(prepared.topic, timeout_ms=self._settings.send_timeout_ms)
            target = await self._targets.find(prepared.topic, info, choice, last_broker=None)
            await self._engine.invoke_one_way(target.address, self._request(prepared, target.queue, one_way=True))
        except _NOT_SENT_ERRORS as error:
            raise send_error(error) from None

    def _check(self, message: Message) -> None:
        check_send_topic(message.topic)
        check_body(message.body, self._settings.body_bytes_max)
        check_flag(message.flag)

    async def _prepare(self, message: Message, ordering_key: str | None) -> EncodedSend:
        settings = self._settings
        self._check(message)
        body, sys_flag = message.body, 0
        if settings.compress_over_bytes and len(body) >= settings.compress_over_bytes:
            kind, level = settings.compression, settings.compression_level
            if len(body) < settings.compress_in_thread_over_bytes:
                compressed = compress(body, kind, level)
            else:
                compressed = await self._engine.in_thread(compress, body, kind, level)
            if len(compressed) < len(body):
                body, sys_flag = compressed, kind.sys_flag
        message_id = message.properties.get(PropertyName.UNIQ_KEY)
        made_id = self._engine.unique_keys.make() if message_id is None else None
        properties = encode_message_properties(message, made_id, ordering_key).decode()
        return EncodedSend(
            _REPLY_CODE if message.properties.get(PropertyName.MSG_TYPE) == "reply" else RequestCode.SEND_MESSAGE_V2,
            message.topic,
            body,
            properties,
            sys_flag,
            message.flag,
            (message_id or made_id or "",),
        )

    async def _send_with_retries(
        self, prepared: EncodedSend, choice: QueueChoice, timeout_ms: int | None, *, retries_refusals: bool
    ) -> BatchSendResult:
        clock, targets, topic = self._clock, self._targets, prepared.topic
        timeout_ms = self._settings.send_timeout_ms if timeout_ms is None else timeout_ms
        deadline_ms = clock.monotonic_ms() + timeout_ms
        attempts_left = self._settings.send_attempts_max if choice.is_free else 1
        outcomes: list[Outcome] = []
        last_broker: str | None = None
        try:
            info = self._engine.cached_publish_info(topic) or await targets.publish_info(topic, timeout_ms=timeout_ms)
            while True:
                target = targets.find_known(info, choice, last_broker=last_broker)
                if target is None:
                    target = await targets.find(topic, info, choice, last_broker=last_broker)
                info, last_broker = target.info, target.queue.broker_name
                attempts_left -= 1
                result = await self._attempt(prepared, target, deadline_ms)
                if isinstance(result, BatchSendResult):
                    if (observer := self._engine.send_observer) is not None:
                        cost_ms = clock.monotonic_ms() - (deadline_ms - timeout_ms)
                        observer.sent(self.group, prepared, result, at_ms=clock.now_ms() - cost_ms, cost_ms=cost_ms)
                    return result
                error = result
                outcomes.append(outcome_of(error)[0])
                refused = error.disposition if isinstance(error, BrokerError) else None
                left_ms = deadline_ms - clock.monotonic_ms()
                may_retry = refused is None or (retries_refusals and refused.retry)
                if not attempts_left or left_ms <= 0 or not may_retry:
                    if refused is None or refused.refresh_route:
                        targets.refresh_soon(topic)
                    raise send_error(error, outcomes[:-1])
                if refused is not None and refused.refresh_route:
                    info = await targets.refreshed(topic, info, timeout_ms=left_ms)
        except _NOT_SENT_ERRORS as error:
            raise send_error(error, outcomes) from None

    async def _attempt(
        self, prepared: EncodedSend, target: Target, deadline_ms: int
    ) -> BatchSendResult | BrokerError | NoAnswerError:
        started_ms = self._clock.monotonic_ms()
        queue, address = target.queue, target.address
        if started_ms >= deadline_ms:
            return RequestTimeoutError(address, "the time for all attempts is over", sent=False)
        request = self._request(prepared, queue)
        try:
            response = await self._transport.invoke(address, request, timeout_ms=deadline_ms - started_ms)
            result = read_result(prepared, queue, response)
        except RequestFailedError as error:
            self._targets.failed(queue.broker_name)
            return no_answer(error)
        except LocalProtocolError as error:
            raise InvalidArgumentError("message", len(prepared.body), f"bytes can't be sent: {error}") from None
        except ValueError as error:
            # The answer says that the message is stored, but not where. The client can't rely on any part of the
            # answer, and a retry may store the message twice.
            raise send_error(BrokerError(ResponseCode.SYSTEM_ERROR, str(error), address)) from None
        if result is None:
            self._targets.failed(queue.broker_name)
            return refused_send(response.code, response.remark, address)
        self._targets.answered(queue.broker_name, started_ms=started_ms)
        return result

    def _request(self, prepared: EncodedSend, queue: MessageQueue, *, one_way: bool = False) -> RemotingCommand:
        return build_request(
            prepared,
            queue,
            producer_group=self.group,
            now_ms=self._clock.now_ms(),
            default_topic_queue_nums=self._default_nums,
            one_way=one_way,
        )
