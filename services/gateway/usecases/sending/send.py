"""Sends one message or a batch. Each message has a result of its own.

The messages of a batch are grouped by their queue. Each group is sent in as few remoting requests as possible, because
one request for many messages costs less than many requests. Messages without an ordering key or queue form one group:
they go to any queue, and are sent again to another broker after a failure. The messages of one queue keep their order:
its requests are sent one after the other, and after a request that was not stored, the later ones are not sent.

Concurrency: the event loop's thread, any number of calls at once. A cancelled call may have stored messages.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError, NoRouteError, Outcome, SendError
from gantry.client.producer import Producer
from gantry.client.routecache import PublishInfo
from gantry.model import sysflag
from gantry.model.errors import InvalidValueError
from gantry.model.message import MessageQueue
from gantry.model.names import NOT_ALLOWED_SEND_TOPICS, check_topic, is_dlq_topic, is_retry_topic, is_system_topic
from gantry.model.names import TRACE_TOPIC as OPEN_SYSTEM_TOPIC
from gantry.remoting.codes import ResponseCode
from services.gateway.errors import (
    BROKER_ERROR,
    BROKER_TIMEOUT,
    BROKER_UNAVAILABLE,
    NAMESRV_UNAVAILABLE,
    NOT_STORED,
    STORED,
    TOO_MANY,
    UNKNOWN,
    ProblemError,
    problem_of,
    reserved_name,
)
from services.gateway.metrics import GatewayMetrics
from services.gateway.schemas.outgoing import Item, Sendable
from services.gateway.turns import MESSAGE_BYTES, Turn
from services.gateway.usecases.sending.batchcall import (
    FREE_MESSAGES_MAX,
    BatchCall,
    body_length,
    held_back,
    is_one_message_at_fault,
    name_time,
    placed_error,
    single_request,
)
from services.gateway.usecases.sending.drained import DrainedTopics
from services.gateway.usecases.sending.preparing import PreparedMessage, prepare
from services.gateway.usecases.sending.results import (
    BatchReport,
    OneWayMessage,
    PlacedMessage,
    SentMessage,
    placed_messages,
)
from services.gateway.usecases.sending.unknownqueues import Topics, UnknownQueues
from services.gateway.usecases.sending.windows import TopicWindows

# Largest number of requests of one batch that are sent at the same time, to different queues.
REQUESTS_PENDING_MAX: Final = 8
_TOPICS_CHECKED_MAX: Final = 4_096
_KEY_TOPICS_MAX: Final = 256
_KEYS_OF_TOPIC_MAX: Final = 16_384
_NO_KEYS: Final[tuple[PublishInfo | None, dict[str, MessageQueue]]] = (None, {})


class SendMessages:
    """Sends the messages of REST calls and of WebSocket streams."""

    def __init__(
        self,
        producer: Producer,
        engine: ClientEngine,
        metrics: GatewayMetrics,
        *,
        topics: Topics,
        windows: TopicWindows,
    ) -> None:
        """Make the use case.

        Args:
            producer: Sends the requests.
            engine: Knows the routes of topics, and makes unique keys.
            metrics: Counts the messages by outcome.
            topics: Gives the reason why a topic has no route, or a broker is missing from it.
            windows: Knows which topics have a duplicate window.
        """
        self._producer = producer
        self._engine = engine
        self._unique_keys = engine.unique_keys
        self._metrics = metrics
        self._topics = topics
        self._windows = windows
        self._drained = DrainedTopics(engine, topics.observed_homes)
        self._checked: set[str] = set()
        # Topic → its publish info, and the queues of keys in it. Hashing a key takes as long as all other work on its
        # message.
        self._queues_by_key: dict[str, tuple[PublishInfo | None, dict[str, MessageQueue]]] = {}

    def check_topic(self, topic: str) -> None:
        """Raise InvalidNameError for an invalid topic name, ProblemError (403) for a topic that takes no sends."""
        if topic in self._checked:
            return
        check_topic(topic)
        reserved = is_system_topic(topic) and topic != OPEN_SYSTEM_TOPIC
        if reserved or topic in NOT_ALLOWED_SEND_TOPICS or is_retry_topic(topic) or is_dlq_topic(topic):
            raise reserved_name("topic", topic, outcome=NOT_STORED)
        if len(self._checked) < _TOPICS_CHECKED_MAX:
            self._checked.add(topic)

    def detects_duplicates(self, topic: str) -> bool:
        """Return whether messages with a key were sent to a topic that had a duplicate window."""
        return self._windows.is_known_on(topic)

    async def send_one(self, topic: str, message: Sendable) -> SentMessage:
        """Send a message.

        Args:
            topic: The destination. The caller has passed it to `check_topic` and has checked its own right to publish.
            message: The message.

        Returns:
            The result. Its outcome is `unknown` if the broker stored the message less safely than it promises, or if
            the message was one-way.

        Raises:
            ProblemError: The message was not stored, or its outcome is unknown; `outcome` says which.
        """
        try:
            prepared = prepare(message, self._unique_keys.make)
        except InvalidValueError as error:
            raise problem_of(error, outcome=NOT_STORED) from None
        queue = await self.find_queue(topic, message, prepared)
        request = single_request(topic, prepared)
        self._metrics.sent_bytes += len(prepared.body)
        result: SentMessage
        try:
            if prepared.one_way:
                await self._producer.send_prepared_one_way(request, queue=queue)
                result = OneWayMessage(prepared.message_id)
            else:
                sent = await self._producer.send_prepared(request, queue=queue)
                (result,) = placed_messages(sent, is_delayed=prepared.is_delayed)
        except ClientError as error:
            problem = await self._refused(topic, error, prepared)
            self._metrics.sent[problem.outcome or NOT_STORED] += 1
            raise problem from None
        self._metrics.sent[result.outcome] += 1
        return result

    async def find_queue(self, topic: str, message: Sendable, prepared: PreparedMessage) -> MessageQueue | None:
        """Return the queue of a message, None for any queue. Raises ProblemError: the message can't be sent."""
        info = self._engine.cached_publish_info(topic)
        if info is None:
            info = await self._find_route(topic)
        if prepared.ordering_key is None and prepared.queue is None and not prepared.has_key:
            return None
        return await self._queue_of(info, prepared, lambda: self._unknown_queues(topic, (message,)))

    async def send_half(self, topic: str, prepared: PreparedMessage, queue: MessageQueue | None) -> PlacedMessage:
        """Send the half message of a transaction, which has the properties of one. Raises ProblemError as `send_one`."""
        request = single_request(topic, prepared)._replace(sys_flag=sysflag.TRANSACTION_PREPARED)
        self._metrics.sent_bytes += len(prepared.body)
        try:
            (result,) = placed_messages(await self._producer.send_prepared(request, queue=queue))
        except ClientError as error:
            problem = await self._refused(topic, error, prepared)
            self._metrics.sent[problem.outcome or NOT_STORED] += 1
            raise problem from None
        self._metrics.sent[result.outcome] += 1
        return result

    async def send_many(self, topic: str, items: Sequence[Item], *, turn: Turn) -> BatchReport:
        """Send a batch. A message that fails does not affect the other messages.

        Args:
            topic: The destination. The caller has passed it to `check_topic` and has checked its own right to publish.
            items: The messages, and errors in the place of those that could not be read (schemas/outgoing.py).
            turn: Waits for a turn of the event loop; a batch takes several.

        Raises:
            ProblemError: No message was stored: the topic does not exist, or no name server answers.
        """
        info = self._engine.cached_publish_info(topic) or await self._find_route(topic)
        call = BatchCall(topic, items, turn=turn)
        anywhere, by_queue, single = await self._sort(call, info)
        works: list[Awaitable[None]] = [
            self._send(call, None, indexes) for indexes in call.split(anywhere, FREE_MESSAGES_MAX)
        ]
        works += [
            # One request if possible: the broker stores all messages of a request or none, so none has to be held back.
            self._send_in_order(call, queue, call.split(indexes, len(indexes)))
            for queue, indexes in by_queue.items()
        ]
        works += [
            self._send_one_way(call, index, queue) if call.prepared[index].one_way else self._send(call, queue, [index])
            for index, queue in single
        ]
        if len(works) == 1:
            await works[0]
        elif works:
            await _bounded_gather(works)
        report = call.report()
        self._count(call, report)
        return report

    async def _sort(
        self, call: BatchCall, info: PublishInfo
    ) -> tuple[list[int], dict[MessageQueue, list[int]], list[tuple[int, MessageQueue | None]]]:
        anywhere: list[int] = []
        by_queue: dict[MessageQueue, list[int]] = {}
        # One-way and delayed messages, each in a request of its own.
        single: list[tuple[int, MessageQueue | None]] = []
        await call.turn(len(call.items) * MESSAGE_BYTES)
        make_id = iter(self._unique_keys.make_many(len(call.items))).__next__
        prepared_bytes = 0
        unknown = self._unknown_queues(call.topic, call.items)
        for index, item in enumerate(call.items):
            if prepared_bytes > _PREPARED_BYTES_AT_ONCE_MAX:
                # A thousand messages with as many properties as allowed take a fifth of a second.
                await call.turn(prepared_bytes)
                prepared_bytes = 0
            try:
                if isinstance(item, InvalidValueError):
                    raise item
                prepared = prepare(item, make_id)
                prepared_bytes += MESSAGE_BYTES + len(prepared.properties)
                prepared_bytes += len(prepared.body) // _BODY_BYTES_A_PROPERTY_BYTE
                call.add(index, prepared)
                queue = None
                if prepared.ordering_key is not None or prepared.queue is not None or prepared.has_key:
                    queue = await self._queue_of(info, prepared, lambda: unknown, at=f"/messages/{index}")
            except (InvalidValueError, ProblemError) as error:
                prepared_bytes += _REFUSED_BYTES + body_length(item)
                call.fail(index, problem_of(placed_error(error, item, index), outcome=NOT_STORED))
                continue
            if prepared.one_way or prepared.is_delayed:
                single.append((index, queue))
            elif queue is None:
                anywhere.append(index)
            else:
                by_queue.setdefault(queue, []).append(index)
        return anywhere, by_queue, single

    async def _send_in_order(self, call: BatchCall, queue: MessageQueue, groups: list[list[int]]) -> None:
        for number, indexes in enumerate(groups, 1):
            await self._send(call, queue, indexes)
            if number < len(groups) and not call.are_stored(indexes):
                # Later messages must not overtake messages that may have to be sent again.
                for index in itertools.chain.from_iterable(groups[number:]):
                    call.fail(index, held_back(queue))
                return

    async def _send(self, call: BatchCall, queue: MessageQueue | None, indexes: list[int]) -> None:
        count_bytes = len(indexes) * MESSAGE_BYTES
        await call.turn(count_bytes + sum([len(call.prepared[index].body) for index in indexes]))
        try:
            placement = await self._producer.send_prepared(call.request(indexes), queue=queue)
        except ClientError as error:
            if len(indexes) > 1 and is_one_message_at_fault(error):
                # The broker refuses a whole request because of one message. Send each message in its own request.
                for index in indexes:
                    await self._send(call, queue, [index])
                return
            for index in indexes:
                call.fail(index, await self._refused(call.topic, error, call.prepared[index], f"/messages/{index}"))
            return
        await call.turn(count_bytes)
        is_delayed = call.prepared[indexes[0]].is_delayed
        call.finish(indexes, placed_messages(placement, is_delayed=is_delayed))

    async def _send_one_way(self, call: BatchCall, index: int, queue: MessageQueue | None) -> None:
        prepared = call.prepared[index]
        try:
            await self._producer.send_prepared_one_way(single_request(call.topic, prepared), queue=queue)
        except ClientError as error:
            call.fail(index, await self._refused(call.topic, error, prepared))
        else:
            call.finish([index], [OneWayMessage(prepared.message_id)])

    async def _queue_of(
        self, info: PublishInfo, prepared: PreparedMessage, unknown: Callable[[], UnknownQueues], at: str = ""
    ) -> MessageQueue | None:
        """Return the queue of a message, whether its broker is up or not; None for any queue."""
        if prepared.ordering_key is not None:
            return self._queue_for_key(info, prepared.ordering_key)
        if prepared.queue is None:
            if not await self._windows.is_on(info):
                return None
            # The queue follows from the key, so that a message that is sent again reaches the broker that may have it.
            if not info.ordering_queues:
                raise _no_queue(info.topic)
            return info.queue_for_key(prepared.message_id)
        queue = MessageQueue(info.topic, prepared.queue.broker, prepared.queue.id)
        if queue not in info.ordering_queues:
            await unknown().require(queue, at)
        return queue

    def _unknown_queues(self, topic: str, items: Collection[Item]) -> UnknownQueues:
        return UnknownQueues(items, lambda: self._find_route(topic, refresh=True), topic=topic, topics=self._topics)

    def _queue_for_key(self, info: PublishInfo, key: str) -> MessageQueue:
        known_for, queues = self._queues_by_key.get(info.topic, _NO_KEYS)
        if known_for is not info:
            # The route has changed, so the queue of any key may have changed.
            if len(self._queues_by_key) >= _KEY_TOPICS_MAX:
                self._queues_by_key.clear()
            queues = {}
            self._queues_by_key[info.topic] = (info, queues)
        queue = queues.get(key)
        if queue is None:
            if not info.ordering_queues:
                raise _no_queue(info.topic)
            queue = info.queue_for_key(key)
            if len(queues) < _KEYS_OF_TOPIC_MAX:
                queues[key] = queue
        return queue

    async def _find_route(self, topic: str, *, refresh: bool = False) -> PublishInfo:
        try:
            try:
                return await self._engine.publish_info(topic, refresh=refresh)
            except NoRouteError:
                problem = await self._topics.absence(topic)
            try:
                # The missing brokers may have registered in the meantime.
                return await self._engine.publish_info(topic, refresh=True)
            except NoRouteError:
                problem.outcome = NOT_STORED
                raise problem from None
        except ClientError as error:
            raise no_name_server(error, outcome=NOT_STORED) from None

    async def _refused(self, topic: str, error: ClientError, prepared: PreparedMessage, at: str = "") -> ProblemError:
        if isinstance(error, SendError) and error.outcome is Outcome.NOT_STORED and _is_topic_missing(error.cause):
            problem = problem_of(await self._topics.absence(topic), outcome=NOT_STORED)
        else:
            problem = await self._drained.problem(topic, error) or problem_of(error, outcome=NOT_STORED)
        name_time(problem, prepared, at)
        if problem.outcome == UNKNOWN:
            problem.message_id = prepared.message_id
        return problem

    def _count(self, call: BatchCall, report: BatchReport) -> None:
        sent = self._metrics.sent
        sent[STORED] += report.stored
        sent[NOT_STORED] += report.not_stored
        sent[UNKNOWN] += report.unknown
        self._metrics.sent_bytes += sum([len(prepared.body) for prepared in call.prepared.values()])


def _no_queue(topic: str) -> ProblemError:
    detail = f"topic: {topic} has no queue that can be written"
    return ProblemError(BROKER_UNAVAILABLE, detail, outcome=NOT_STORED)


def _is_topic_missing(error: ClientError) -> bool:
    """Return whether an attempt failed because the broker, or every name server, does not have the topic."""
    missed = isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST
    return missed or isinstance(error, NoRouteError)


def no_name_server(error: ClientError, *, outcome: str | None = None) -> ProblemError:
    """Return the problem of a route that no name server could give."""
    from_client = problem_of(error, outcome=outcome)
    if from_client.kind not in _NO_ANSWER_KINDS:
        return from_client
    return ProblemError(NAMESRV_UNAVAILABLE, from_client.detail, outcome=outcome)


# About 1 ms of work. A refused message counts as a long one, because the work that it took is unknown.
_PREPARED_BYTES_AT_ONCE_MAX: Final = 16 * 1024
_REFUSED_BYTES: Final = 1_024
# Copying a byte of a body is cheaper than checking a byte of properties by this factor.
_BODY_BYTES_A_PROPERTY_BYTE: Final = 16

_NO_ANSWER_KINDS: Final = (BROKER_UNAVAILABLE, BROKER_TIMEOUT, BROKER_ERROR, TOO_MANY)


async def _bounded_gather(works: Sequence[Awaitable[None]]) -> None:
    room = asyncio.Semaphore(REQUESTS_PENDING_MAX)

    async def bounded(work: Awaitable[None]) -> None:
        async with room:
            await work

    await asyncio.gather(*(bounded(work) for work in works))
