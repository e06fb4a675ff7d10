"""Reads of queues without consuming: messages from an offset, the queues of a topic, the offset of a time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

from gantry.client.backlog import Backlog
from gantry.client.consumer.offsets import Offsets
from gantry.client.consumer.pull import PullConsumer, PullResult, PullStatus
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError, NoRouteError
from gantry.model.errors import CorruptRecordError, RecordError
from gantry.model.group import SubscriptionData
from gantry.model.message import MessageQueue, StoredMessage
from gantry.model.names import RETRY_TOPIC_LENGTH_MAX, TOPIC_LENGTH_MAX, check_topic
from gantry.model.record import decode_record
from gantry.model.route import QueueData, TopicRoute
from gantry.model.topic import Perm, TopicConfig
from gantry.remoting.bodies.queuestates import QueueState
from gantry.remoting.codes import ResponseCode
from gantry.runtime.clock import Clock
from services.gateway.errors import UNKNOWN_QUEUE, ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.schemas.filters import Filter, subscription_of
from services.gateway.usecases.cluster.brokers import BrokerAnswers, Brokers
from services.gateway.usecases.configs.presence import Presence
from services.gateway.usecases.page import Page
from services.gateway.usecases.reading.arrivals import WAIT_SLICE_MS, Arrivals
from services.gateway.usecases.reading.fairgate import FairGate
from services.gateway.usecases.reading.messages import ReadMessage, read_message
from services.gateway.usecases.reading.results import DamagedRecord, QueueRead, TopicQueue
from services.gateway.usecases.sending.send import no_name_server

# Brokers create this group at their start and let it pull every topic; no offset is ever committed for it.
READER_GROUP: Final = "TOOLS_CONSUMER"
# Each fetch may return a message of 4 MiB, which takes several times as much memory until its answer is written. A
# broker closes a connection that leaves 64 MiB of its answers unread, and lookups and streams use the same connection.
FETCHES_AT_ONCE: Final = 8
BODIES_BYTES_MAX: Final = 8 * 1024 * 1024
"""A read ends after the message with which its decompressed bodies reach this size."""
INFLATED_BYTES_AT_ONCE: Final = 1024 * 1024
"""Size of bodies after whose decompression others go on; about 10 ms."""


class Caller(Protocol):
    """The caller of a read."""

    @property
    def key_id(self) -> str:
        """Return the id of the caller's API key."""
        ...

    def require_presence(self) -> None:
        """Raise if the caller has disconnected, so that no messages are fetched in vain."""
        ...

    def require_room(self) -> None:
        """Raise ProblemError (429, 503) if the caller reads its answers too slowly to get another one."""
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """Return a block in which the request waits. Entering raises ProblemError (429, 503): too many wait."""
        ...

    async def take_turn(self) -> None:
        """Wait until the answer may be written."""
        ...


@dataclass(frozen=True, slots=True)
class UnreachableQueues:
    """The queues on a broker that is down, as last observed; None for unknown values."""

    read_queues: int | None
    write_queues: int
    perm: int | None = None

    @property
    def count(self) -> int:
        """Return the least number of queues there."""
        return max(self.read_queues or 0, self.write_queues)


@dataclass(slots=True)
class Records:
    """The records of one pull, sound and damaged."""

    messages: list[StoredMessage]
    damaged: list[DamagedRecord]
    next_offset: int

    def end_before(self, offset: int) -> None:
        """Leave out what comes at an offset and later."""
        self.next_offset = offset
        self.damaged = [record for record in self.damaged if record.queue_offset < offset]


class QueueReader:
    """Reads queues. The caller checks the rights."""

    def __init__(
        self,
        engine: ClientEngine,
        brokers: Brokers,
        metrics: GatewayMetrics,
        *,
        clock: Clock,
        topics: Presence[TopicConfig],
        is_stopping: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._topics = topics
        self._brokers = brokers
        self._metrics = metrics
        self._clock = clock
        self._is_stopping = is_stopping
        self._puller = PullConsumer(engine, READER_GROUP)
        self._arrivals = Arrivals(self._puller)
        # Each broker has a gate of its own, so that readers of a broker that hangs do not block readers of another.
        self._gates: dict[str, FairGate] = {}
        self._offsets = Offsets(engine)
        self._backlog = Backlog(engine)

    @asynccontextmanager
    async def read(
        self, queue: MessageQueue, offset: int, *, limit: int, wait_ms: int, wanted: Filter, caller: Caller
    ) -> AsyncIterator[QueueRead]:
        """Read messages, waiting up to `wait_ms` if there is none yet. The caller writes its answer within the block.

        The number of results that are fetched and written at once is limited (FETCHES_AT_ONCE for each broker), and
        a result with messages counts until the block ends.

        Raises:
            InvalidValueError: The name or the filter is not valid.
            ProblemError: 404: the topic, broker or queue does not exist. 429: the caller has too many waiting requests.
                503, 504: the queue cannot be read just now.
            ClientError: The broker rejects the pull.
        """
        subscription = subscription_of(wanted, queue.topic, self._clock.now_ms(), field="filter")
        await self.check_queue(queue)
        deadline_ms = self._clock.monotonic_ms() + wait_ms
        gate = self._gates.setdefault(queue.broker_name, FairGate(FETCHES_AT_ONCE))
        async with self.explained(queue.topic):
            while True:
                async with gate.enter(caller.key_id):
                    caller.require_presence()
                    caller.require_room()
                    result = await self._puller.pull(queue, offset, max_messages=limit, expression=subscription)
                    left_ms = deadline_ms - self._clock.monotonic_ms()
                    is_empty = result.status is PullStatus.NO_NEW_MSG and result.next_offset <= offset
                    if not is_empty or left_ms <= 0 or self._is_stopping():
                        yield await self._result(queue, offset, result)
                        return
                with caller.waiting():
                    has_news = await self._wait(queue, offset, subscription, deadline_ms)
                if not has_news:
                    # Thousands of waits that began together end together, so their answers take turns.
                    await caller.take_turn()
                    yield await self._result(queue, offset, result)
                    return

    async def _wait(self, queue: MessageQueue, offset: int, subscription: SubscriptionData, deadline_ms: int) -> bool:
        """Return whether a message arrived before the deadline."""
        while (left_ms := deadline_ms - self._clock.monotonic_ms()) > 0 and not self._is_stopping():
            if await self._arrivals.wait(queue, offset, subscription, min(left_ms, WAIT_SLICE_MS)):
                return True
        return False

    async def close(self) -> None:
        """Cancel all waits at brokers."""
        await self._arrivals.close()

    async def queues(self, topic: str) -> Page[TopicQueue]:
        """List a topic's queues with their offsets. Raises ProblemError."""
        route = await self.route(topic)
        counts = {data.broker_name: data for data in route.queue_datas}
        asked, unrouted = await asyncio.gather(self.queue_states(topic, list(counts)), self.unrouted(topic, counts))
        queues: list[TopicQueue] = []
        for broker in sorted({*counts, *unrouted}):
            data = counts.get(broker)
            if data is None:
                held = unrouted[broker]
                queues += [_unrouted_queue(broker, queue_id, held) for queue_id in range(held.count)]
                continue
            known = {state.queue_id: state for state in asked.answers.get(broker, ())}
            queue_ids = sorted(known) or range(max(data.read_queue_nums, data.write_queue_nums))
            queues += [_routed_queue(data, queue_id, known.get(queue_id)) for queue_id in queue_ids]
        return Page(queues)

    async def states(self, topic: str, group: str | None) -> list[tuple[MessageQueue, QueueState | None]]:
        """Return the states of all queues of a topic, None for those of brokers that do not answer. Raises ProblemError.

        With a group, the states have its committed offsets.
        """
        route = await self.route(topic)
        sets = sorted({data.broker_name for data in route.queue_datas})
        asked, unrouted = await asyncio.gather(self.queue_states(topic, sets, group), self.unrouted(topic, sets))
        found: list[tuple[MessageQueue, QueueState | None]] = []
        counts = {data.broker_name: data.read_queue_nums for data in route.queue_datas}
        counts.update({broker: held.count for broker, held in unrouted.items()})
        for broker in sorted(counts, key=lambda broker: (broker in unrouted, broker)):
            known = asked.answers.get(broker)
            if known is None:
                found += [(MessageQueue(topic, broker, queue_id), None) for queue_id in range(counts[broker])]
            else:
                found += [(MessageQueue(topic, broker, state.queue_id), state) for state in known]
        return found

    async def unrouted(self, topic: str, named: Collection[str]) -> dict[str, UnreachableQueues]:
        """Return the topic's queues on brokers that hold it but are not in `named`, the brokers of its route.

        Name servers forget a broker that is down, but the broker still holds its messages.
        """
        write_queues = self._engine.known_write_queues(topic)
        unrouted = {
            broker: UnreachableQueues(None, count) for broker, count in write_queues.items() if broker not in named
        }
        for broker, held in (await self._topics.observed_homes(topic)).items():
            if broker not in named:
                unrouted[broker] = UnreachableQueues(held.read_queue_nums, held.write_queue_nums, held.perm)
        return unrouted

    async def find_offset(self, queue: MessageQueue, at_ms: int, boundary: str) -> int:
        """Return the offset of a time. Raises ProblemError, ClientError."""
        await self.check_queue(queue)
        async with self.explained(queue.topic):
            return max(0, await self._offsets.search_offset(queue, at_ms, boundary.upper()))

    async def route(self, topic: str, *, refresh: bool = False) -> TopicRoute:
        """Return the route of a topic.

        Raises:
            InvalidNameError: The name is not valid.
            ProblemError: 404: the topic does not exist; 503: it exists or may exist, and cannot be reached.
        """
        check_topic(topic, length_max=RETRY_TOPIC_LENGTH_MAX if topic.startswith("%") else TOPIC_LENGTH_MAX)
        try:
            try:
                return await self._engine.route(topic, refresh=refresh)
            except NoRouteError:
                problem = await self._topics.absence(topic)
            try:
                # Brokers that were missing a moment ago may have registered meanwhile.
                return await self._engine.route(topic, refresh=True)
            except NoRouteError:
                raise problem from None
        except ClientError as error:
            raise no_name_server(error) from None

    @asynccontextmanager
    async def explained(self, topic: str) -> AsyncIterator[None]:
        """Turn the error of a topic that disappears within the block into a problem.

        Raises:
            ProblemError: 404: the topic no longer exists; 503: its broker is down.
        """
        try:
            yield
        except NoRouteError:
            raise await self._topics.absence(topic) from None
        except BrokerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            raise await self._topics.absence(topic) from None

    async def check_queue(self, queue: MessageQueue) -> None:
        """Raise ProblemError (404) unless the topic has the queue for reading."""
        for refresh in (False, True):
            route = await self.route(queue.topic, refresh=refresh)
            for data in route.queue_datas:
                if data.broker_name == queue.broker_name and queue.queue_id < data.read_queue_nums:
                    return
        if all(data.broker_name != queue.broker_name for data in route.queue_datas):
            # These calls tell a broker that is down from one that does not exist.
            await self._topics.check_unrouted_broker(queue.topic, queue.broker_name)
            await self._brokers.require_registered(queue.broker_name)
        raise ProblemError(
            UNKNOWN_QUEUE,
            f"queue_id: topic {queue.topic} has no readable queue {queue.queue_id} on broker {queue.broker_name!r}",
            field="queue_id",
        )

    async def queue_states(
        self, topic: str, among: list[str], group: str | None = None
    ) -> BrokerAnswers[list[QueueState]]:
        """Return the states of a topic's queues by broker; with a group, including its committed offsets."""

        async def ask(address: str) -> list[QueueState]:
            try:
                return await self._backlog.queue_states_at(address, topic, group)
            except BrokerError as error:
                if error.code == ResponseCode.TOPIC_NOT_EXIST:
                    return []
                raise

        return await self._brokers.ask(ask, among)

    async def _result(self, queue: MessageQueue, offset: int, result: PullResult) -> QueueRead:
        """Return the messages of a pull, or the first of them if their decompressed bodies exceed BODIES_BYTES_MAX.

        A broker limits the compressed bytes of an answer, and a body can be a thousand times as large as in the record.
        """
        records = read_records(result.body, queue, offset, result.next_offset)
        wanted, subscription = records.messages, result.subscription
        if not subscription.is_all:  # The broker alone evaluates SQL; `matches_tag` is then true.
            wanted = [record for record in wanted if subscription.matches_tag(record.tag)]
        messages: list[ReadMessage] = []
        size_bytes = inflated_bytes = 0
        for record in wanted:
            if size_bytes >= BODIES_BYTES_MAX:
                records.end_before(record.queue_offset)
                break
            if inflated_bytes >= INFLATED_BYTES_AT_ONCE:
                inflated_bytes = 0
                await asyncio.sleep(0)
            try:
                message = read_message(record, queue.broker_name)
            except CorruptRecordError as error:
                records.damaged.append(_damaged_record(record, error.reason))
                continue
            messages.append(message)
            size_bytes += len(message.body)
            inflated_bytes += 0 if message.body is record.body else len(message.body)
        self._metrics.read_messages += len(messages)
        self._metrics.damaged_records += len(records.damaged)
        status = result.status
        if status is PullStatus.FOUND and not wanted and not records.damaged:
            # The broker compares hashes of tags; none of these messages has the tag itself.
            status = PullStatus.NO_MATCHED_MSG
        return QueueRead(status, messages, records.damaged, records.next_offset, result.min_offset, result.max_offset)


def read_records(body: memoryview, queue: MessageQueue, offset: int, next_offset: int) -> Records:
    """Return the sound messages of a pull's body, and the damaged records.

    A record with an untrustworthy length hides where the next record starts, so the next pull continues one offset
    later.
    """
    records = Records([], [], next_offset)
    expected = offset
    try:
        for message in _each_record(body):
            expected = message.queue_offset + 1
            if message.crc.is_good and message.topic == queue.topic and message.queue_id == queue.queue_id:
                records.messages.append(message)
            else:
                records.damaged.append(_damaged_record(message, f"checksum: {message.crc.value}"))
    except RecordError as error:
        records.damaged.append(DamagedRecord(expected, None, error.reason))
        records.next_offset = expected + 1
    return records


def _damaged_record(message: StoredMessage, reason: str) -> DamagedRecord:
    return DamagedRecord(message.queue_offset, message.stored_id, reason)


def _routed_queue(data: QueueData, queue_id: int, state: QueueState | None) -> TopicQueue:
    return TopicQueue(
        broker=data.broker_name,
        queue_id=queue_id,
        min_offset=None if state is None else state.min_offset,
        max_offset=None if state is None else state.max_offset,
        is_readable=bool(data.perm & Perm.READ) and queue_id < data.read_queue_nums,
        is_writable=bool(data.perm & Perm.WRITE) and queue_id < data.write_queue_nums,
        last_stored_at_ms=None if state is None else state.last_stored_at,
    )


def _unrouted_queue(broker: str, queue_id: int, unrouted: UnreachableQueues) -> TopicQueue:
    perm, read_queues = unrouted.perm, unrouted.read_queues
    return TopicQueue(
        broker=broker,
        queue_id=queue_id,
        min_offset=None,
        max_offset=None,
        is_readable=None if perm is None or read_queues is None else bool(perm & Perm.READ) and queue_id < read_queues,
        is_writable=None if perm is None else bool(perm & Perm.WRITE) and queue_id < unrouted.write_queues,
        last_stored_at_ms=None,
    )


def _each_record(body: memoryview) -> Iterator[StoredMessage]:
    at, end = 0, len(body)
    while at < end:
        message = decode_record(body, at)
        yield message
        at += message.size_bytes
