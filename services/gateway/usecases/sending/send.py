"""Sending: one message or many, each with its outcome.

A call's messages are sorted by the queue they must go to, then sent in frames: one request of remoting for many
messages, so that their cost is shared. Messages without an ordering key or queue go together, to any queue, and are tried
again on another broker. Those of one queue stay in their order: its frames are sent one after the other, and once one
was not stored, what is behind it is not sent.

Concurrency: the event loop's thread, any number of calls at once. A call that is cancelled may have stored something.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final, Protocol

from gantry.client.errors import BrokerError, ClientError, NoRouteError, Outcome, SendError
from gantry.client.routecache import PublishInfo
from gantry.client.sendrequest import BatchSendResult, EncodedSend
from gantry.model.errors import InvalidValueError
from gantry.model.message import MessageQueue
from gantry.model.names import NOT_ALLOWED_SEND_TOPICS, check_topic, is_dlq_topic, is_retry_topic, is_system_topic
from gantry.model.names import TRACE_TOPIC as OPEN_SYSTEM_TOPIC
from gantry.model.uniqkey import UniqueKeyGenerator
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
from services.gateway.usecases.sending.preparing import PreparedMessage, prepare
from services.gateway.usecases.sending.sendframes import (
    FREE_MESSAGES_MAX,
    BatchCall,
    Result,
    batch_frame,
    body_length,
    count_outcomes,
    held_back,
    is_one_message_at_fault,
    placed_error,
    result_views,
    single_frame,
)
from services.gateway.usecases.sending.unknownqueues import UnknownQueues

# Of one call, at a time: beside each other to different queues.
FRAMES_UNDER_WAY_MAX: Final = 8
_TOPICS_CHECKED_MAX: Final = 4_096
_KEY_TOPICS_MAX: Final = 256
_KEYS_OF_TOPIC_MAX: Final = 16_384
_NO_KEYS: Final[tuple[PublishInfo | None, dict[str, MessageQueue]]] = (None, {})


class Sender(Protocol):
    """What is needed of gantry.client's producer."""

    async def send_prepared(
        self,
        prepared: EncodedSend,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> BatchSendResult:
        """Send a message or batch and return where it is. Raises SendError, InvalidArgumentError, NotStartedError."""
        ...

    async def send_prepared_one_way(self, prepared: EncodedSend, *, queue: MessageQueue | None = None) -> None:
        """Send and want no answer. Raises SendError, InvalidArgumentError, NotStartedError."""
        ...


class Routes(Protocol):
    """What is needed of gantry.client's engine."""

    def cached_publish_info(self, topic: str) -> PublishInfo | None:
        """Return what is known of a topic."""
        ...

    async def publish_info(self, topic: str, *, refresh: bool = False) -> PublishInfo:
        """Return what a producer needs of a topic. Raises ClientError."""
        ...


class Topics(Protocol):
    """Tells a topic that does not exist from one whose brokers are away (presence.py)."""

    async def absence(self, name: str) -> ProblemError:
        """Return the problem of a topic without a route: 404 or 503."""
        ...

    async def find_away(self, name: str, brokers: Collection[str]) -> Collection[str]:
        """Return those of the brokers that may hold the topic and are away. Raises ProblemError (503)."""
        ...


class SendMessages:
    """Sends for everybody: REST and WebSocket."""

    def __init__(
        self,
        sender: Sender,
        routes: Routes,
        ids: UniqueKeyGenerator,
        metrics: GatewayMetrics,
        *,
        topics: Topics,
    ) -> None:
        """Make one.

        Args:
            sender: A producer.
            routes: Knows where topics are.
            ids: Makes unique keys.
            metrics: Where messages are counted by outcome.
            topics: Says why a topic or its broker is not there.
        """
        self._sender = sender
        self._routes = routes
        self._ids = ids
        self._metrics = metrics
        self._topics = topics
        self._checked: set[str] = set()
        # Hashing a key takes as long as everything else that is done to its message.
        self._key_queues: dict[str, tuple[PublishInfo | None, dict[str, MessageQueue]]] = {}

    def check_topic(self, topic: str) -> None:
        """Raise InvalidNameError for what is no topic's name, ProblemError (403) for one nobody may send to."""
        if topic in self._checked:
            return
        check_topic(topic)
        reserved = is_system_topic(topic) and topic != OPEN_SYSTEM_TOPIC
        if reserved or topic in NOT_ALLOWED_SEND_TOPICS or is_retry_topic(topic) or is_dlq_topic(topic):
            raise reserved_name("topic", topic, outcome=NOT_STORED)
        if len(self._checked) < _TOPICS_CHECKED_MAX:
            self._checked.add(topic)

    async def send_one(self, topic: str, message: Sendable) -> Result:
        """Send a message.

        Args:
            topic: Where to; `check_topic` has passed it, and the caller's right is checked.
            message: What.

        Returns:
            The result, with outcome `stored`; or `unknown` where the broker stored it less safely than it should, or
            where it was one-way.

        Raises:
            ProblemError: It was not stored, or may not have been; `outcome` says which.
        """
        try:
            prepared = prepare(message, self._ids.make)
        except InvalidValueError as error:
            raise problem_of(error, outcome=NOT_STORED) from None
        info = self._routes.cached_publish_info(topic)
        if info is None:
            info = await self._find_route(topic)
        queue = await self._queue_of(info, prepared, lambda: self._unknown_queues(topic, (message,)))
        frame = single_frame(topic, prepared)
        self._metrics.sent_bytes += len(prepared.body)
        try:
            if prepared.one_way:
                await self._sender.send_prepared_one_way(frame, queue=queue)
                result: Result = {"outcome": UNKNOWN, "message_id": prepared.message_id}
            else:
                (result,) = result_views(await self._sender.send_prepared(frame, queue=queue))
        except ClientError as error:
            raise await self._refused(topic, error, prepared) from None
        self._metrics.sent[result["outcome"]] += 1
        return result

    async def send_many(
        self, topic: str, items: Sequence[Item], request_id: str, *, turn: Turn, binary: bool = False
    ) -> list[Result]:
        """Send messages and return a result for each, in their order; one bad message never costs the others.

        Args:
            topic: Where to; `check_topic` has passed it, and the caller's right is checked.
            items: Messages, and errors in the place of those that could not be read (schemas/outgoing.py).
            request_id: Stands in the problems.
            turn: Of the loop; a batch takes several.
            binary: For MessagePack: offsets as integers.

        Raises:
            ProblemError: Nothing was stored: the topic is not known, or nobody can say whether it is.
        """
        info = self._routes.cached_publish_info(topic) or await self._find_route(topic)
        call = BatchCall(topic, items, request_id, turn=turn, binary=binary)
        anywhere, by_queue, one_way = await self._sort(call, info)
        works: list[Awaitable[None]] = [
            self._send_frame(call, None, frame) for frame in call.frames(anywhere, FREE_MESSAGES_MAX)
        ]
        works += [
            # Unsplit where it can be: a request is stored as a whole or not at all, so nothing has to be held back.
            self._send_in_order(call, queue, call.frames(indexes, len(indexes)))
            for queue, indexes in by_queue.items()
        ]
        works += [self._send_one_way(call, index, queue) for index, queue in one_way]
        if len(works) == 1:
            await works[0]
        elif works:
            await _bounded_gather(works)
        self._count(call)
        return call.results

    async def _sort(
        self, call: BatchCall, info: PublishInfo
    ) -> tuple[list[int], dict[MessageQueue, list[int]], list[tuple[int, MessageQueue | None]]]:
        anywhere: list[int] = []
        by_queue: dict[MessageQueue, list[int]] = {}
        one_way: list[tuple[int, MessageQueue | None]] = []
        await call.turn(len(call.items) * MESSAGE_BYTES)
        make_id = iter(self._ids.make_many(len(call.items))).__next__
        prepared_bytes = 0
        unknown = self._unknown_queues(call.topic, call.items)
        for index, item in enumerate(call.items):
            if prepared_bytes > _PREPARED_BYTES_AT_ONCE_MAX:
                # A thousand messages with all the properties they may have take a fifth of a second.
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
                if prepared.ordering_key is not None or prepared.queue is not None:
                    queue = await self._queue_of(info, prepared, lambda: unknown, at=f"/messages/{index}")
            except (InvalidValueError, ProblemError) as error:
                prepared_bytes += _REFUSED_BYTES + body_length(item)
                call.refuse(index, problem_of(placed_error(error, item, index), outcome=NOT_STORED))
                continue
            if prepared.one_way:
                one_way.append((index, queue))
            elif queue is None:
                anywhere.append(index)
            else:
                by_queue.setdefault(queue, []).append(index)
        return anywhere, by_queue, one_way

    async def _send_in_order(self, call: BatchCall, queue: MessageQueue, frames: list[list[int]]) -> None:
        for number, frame in enumerate(frames):
            await self._send_frame(call, queue, frame)
            if number + 1 < len(frames) and any(call.results[index]["outcome"] != STORED for index in frame):
                # What comes later in the order must not overtake what may have to be sent again.
                for index in (index for later in frames[number + 1 :] for index in later):
                    call.refuse(index, held_back(queue))
                return

    async def _send_frame(self, call: BatchCall, queue: MessageQueue | None, indexes: list[int]) -> None:
        prepared = [call.prepared[index] for index in indexes]
        count_bytes = len(prepared) * MESSAGE_BYTES
        await call.turn(count_bytes + sum([len(each.body) for each in prepared]))
        frame = single_frame(call.topic, prepared[0]) if len(prepared) == 1 else batch_frame(call.topic, prepared)
        try:
            placement = await self._sender.send_prepared(frame, queue=queue)
        except ClientError as error:
            if len(indexes) > 1 and is_one_message_at_fault(error):
                # The broker refuses all of a frame for one of its messages; let each answer for itself.
                for index in indexes:
                    await self._send_frame(call, queue, [index])
                return
            for index in indexes:
                call.refuse(index, await self._refused(call.topic, error, call.prepared[index], count=False))
            return
        await call.turn(count_bytes)
        for index, result in zip(indexes, result_views(placement, binary=call.binary), strict=True):
            call.results[index] = result

    async def _send_one_way(self, call: BatchCall, index: int, queue: MessageQueue | None) -> None:
        prepared = call.prepared[index]
        try:
            await self._sender.send_prepared_one_way(single_frame(call.topic, prepared), queue=queue)
        except ClientError as error:
            call.refuse(index, await self._refused(call.topic, error, prepared, count=False))
        else:
            call.results[index] = {"outcome": UNKNOWN, "message_id": prepared.message_id}

    async def _queue_of(
        self, info: PublishInfo, prepared: PreparedMessage, unknown: Callable[[], UnknownQueues], at: str = ""
    ) -> MessageQueue | None:
        """Return the queue a message must go to, whether its broker is up or not; None for any."""
        if prepared.ordering_key is not None:
            return self._queue_for_key(info, prepared.ordering_key)
        if prepared.queue is None:
            return None
        queue = MessageQueue(info.topic, prepared.queue.broker, prepared.queue.id)
        if queue not in info.key_queues:
            await unknown().require(queue, at)
        return queue

    def _unknown_queues(self, topic: str, items: Collection[Item]) -> UnknownQueues:
        return UnknownQueues(items, lambda: self._find_route(topic, refresh=True), topic=topic, topics=self._topics)

    def _queue_for_key(self, info: PublishInfo, key: str) -> MessageQueue:
        known_for, queues = self._key_queues.get(info.topic, _NO_KEYS)
        if known_for is not info:
            # The route is another one now, and with it perhaps every key's queue.
            if len(self._key_queues) >= _KEY_TOPICS_MAX:
                self._key_queues.clear()
            queues = {}
            self._key_queues[info.topic] = (info, queues)
        queue = queues.get(key)
        if queue is None:
            if not info.key_queues:
                detail = f"topic: {info.topic} has no queue that can be written"
                raise ProblemError(BROKER_UNAVAILABLE, detail, outcome=NOT_STORED)
            queue = info.queue_for_key(key)
            if len(queues) < _KEYS_OF_TOPIC_MAX:
                queues[key] = queue
        return queue

    async def _find_route(self, topic: str, *, refresh: bool = False) -> PublishInfo:
        try:
            try:
                return await self._routes.publish_info(topic, refresh=refresh)
            except NoRouteError:
                problem = await self._topics.absence(topic)
            try:
                # Those that were missing a moment ago may have told name servers meanwhile.
                return await self._routes.publish_info(topic, refresh=True)
            except NoRouteError:
                problem.outcome = NOT_STORED
                raise problem from None
        except ClientError as error:
            raise no_name_server(error, outcome=NOT_STORED) from None

    async def _refused(
        self, topic: str, error: ClientError, prepared: PreparedMessage, *, count: bool = True
    ) -> ProblemError:
        if isinstance(error, SendError) and error.outcome is Outcome.NOT_STORED and _misses_topic(error.cause):
            problem = problem_of(await self._topics.absence(topic), outcome=NOT_STORED)
        else:
            problem = problem_of(error, outcome=NOT_STORED)
        if problem.outcome == UNKNOWN:
            problem.message_id = prepared.message_id
        if count:
            self._metrics.sent[problem.outcome or NOT_STORED] += 1
        return problem

    def _count(self, call: BatchCall) -> None:
        sent = self._metrics.sent
        for outcome, count in count_outcomes(call.results).items():
            sent[outcome] += count
        self._metrics.sent_bytes += sum([len(prepared.body) for prepared in call.prepared.values()])


def _misses_topic(error: ClientError) -> bool:
    """Say whether an attempt ended because the topic was not where it was sent to."""
    missed = isinstance(error, BrokerError) and error.code == ResponseCode.TOPIC_NOT_EXIST
    return missed or isinstance(error, NoRouteError)


def no_name_server(error: ClientError, *, outcome: str | None = None) -> ProblemError:
    """Return the problem of a route that nobody could be asked for."""
    from_client = problem_of(error, outcome=outcome)
    if from_client.kind not in _NO_ANSWER_KINDS:
        return from_client
    return ProblemError(NAMESRV_UNAVAILABLE, from_client.detail, outcome=outcome)


# About 1 ms of work. A refused message counts as if it had been long: what it took is not known.
_PREPARED_BYTES_AT_ONCE_MAX: Final = 16 * 1024
_REFUSED_BYTES: Final = 1_024
# To copy a body is so much cheaper than to check properties.
_BODY_BYTES_A_PROPERTY_BYTE: Final = 16

_NO_ANSWER_KINDS: Final = (BROKER_UNAVAILABLE, BROKER_TIMEOUT, BROKER_ERROR, TOO_MANY)


async def _bounded_gather(works: Sequence[Awaitable[None]]) -> None:
    room = asyncio.Semaphore(FRAMES_UNDER_WAY_MAX)

    async def bounded(work: Awaitable[None]) -> None:
        async with room:
            await work

    await asyncio.gather(*(bounded(work) for work in works))
