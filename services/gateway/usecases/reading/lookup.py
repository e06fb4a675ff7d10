"""Lookups of messages: by stored id, by the message id that the producer assigned, and by key."""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Final

from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError
from gantry.model.errors import CorruptRecordError, InvalidIdError, RecordError
from gantry.model.message import StoredMessage
from gantry.model.messageid import decode_stored_id
from gantry.model.names import BODY_BYTES_MAX
from gantry.model.record import decode_record
from gantry.model.topic import TopicConfig
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import FRAME_BYTES_MAX
from gantry.remoting.headers.query import QueryMessageHeader, ViewMessageHeader
from services.gateway.errors import CORRUPT_RECORD, UNKNOWN_MESSAGE, ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.cluster.brokers import BrokerAnswers, Brokers, no_broker
from services.gateway.usecases.configs.presence import Presence
from services.gateway.usecases.reading.fairgate import FairGate
from services.gateway.usecases.reading.messages import ReadMessage, read_message
from services.gateway.usecases.reading.read import Caller, QueueReader
from services.gateway.usecases.reading.results import FoundMessages

# Limit of the brokers' answers to lookups that are in flight or in memory at once. A broker closes a connection that
# leaves 64 MiB of its answers unread, and readers of queues and streams use the same connection.
_FETCHED_BYTES_MAX: Final = 16 * 1024 * 1024

# About 1 ms of checksums and copies.
_DECODED_BYTES_AT_ONCE: Final = 1024 * 1024

# The whole of time: a narrower range would not make an index search faster.
_BEGIN_MS: Final = 0
_END_MS: Final = 2**62
# A message that was retried is stored several times with the same id; the first one stored is the original.
_SAME_ID_MAX: Final = 64
SAME_KEY_MAX: Final = 64
"""Limit of records that a search for all copies of a message takes from each broker."""


class Lookup:
    """Finds messages. The caller checks the right to the topic, before the lookup or on the result."""

    def __init__(
        self,
        engine: ClientEngine,
        brokers: Brokers,
        reader: QueueReader,
        metrics: GatewayMetrics,
        *,
        topics: Presence[TopicConfig],
    ) -> None:
        self._engine = engine
        self._topics = topics
        self._brokers = brokers
        self._reader = reader
        self._metrics = metrics
        self._gate = FairGate(_FETCHED_BYTES_MAX)

    @asynccontextmanager
    async def turn(self, caller: Caller, messages_max: int) -> AsyncIterator[None]:
        """Wait for a turn to look up `messages_max` messages, and hold it until the answer is written.

        Raises:
            ProblemError: 429, 503: the caller reads its answers too slowly.
        """
        size = min(messages_max * BODY_BYTES_MAX, FRAME_BYTES_MAX)
        async with self._gate.enter(caller.key_id, size):
            caller.require_presence()
            caller.require_room()
            yield

    async def by_id(self, message_id: str, topic: str | None) -> tuple[StoredMessage, str]:
        """Return a message and its broker's name.

        Args:
            message_id: Stored id; with a topic, first taken as a message id.
            topic: Topic in which to look for a message id.

        Raises:
            ProblemError: 404: there is no such message; 500: it is damaged; 503: a broker that may have it does not
                answer.
        """
        unasked: ProblemError | None = None
        if topic is not None:
            sets = await self._homes(topic)
            asked = await self._query(topic, message_id, _SAME_ID_MAX, sets, unique=True)
            found = [
                (message, broker)
                for message, broker in _messages(asked)
                if message.topic == topic and message.message_id == message_id
            ]
            if found:
                return min(found, key=lambda pair: (pair[0].stored_at_ms, pair[0].reconsume_times))
            asked.require_any()
            unasked = None if asked.is_complete else asked.problem()
        try:
            return await self.by_stored_id(message_id)
        except InvalidIdError:
            raise unasked or _unknown(message_id, no_stored_id(topic)) from None
        except ProblemError as error:
            if unasked is not None and error.kind is UNKNOWN_MESSAGE:
                raise unasked from None
            raise

    async def all_by_id(self, message_id: str, topic: str) -> list[tuple[StoredMessage, str]]:
        """Return the messages of a topic with a message id, or the one with a stored id, each with its broker's name.

        Raises:
            ProblemError: As `by_id`; 503 also if any broker of the topic does not answer.
        """
        asked = await self._query(topic, message_id, _SAME_ID_MAX, await self._homes(topic), unique=True)
        if asked.failures:
            raise asked.problem()
        found = [
            (message, broker)
            for message, broker in _messages(asked)
            if message.topic == topic and message.message_id == message_id
        ]
        return found or [await self.by_id(message_id, topic)]

    async def same_id(self, topic: str, message_id: str) -> list[StoredMessage]:
        """Return all messages of a topic with a message id. Raises ProblemError (503) if a broker does not answer."""
        asked = await self._query(topic, message_id, _SAME_ID_MAX, await self._homes(topic), unique=True)
        if asked.failures:
            raise asked.problem()
        return [
            message for message, _ in _messages(asked) if message.topic == topic and message.message_id == message_id
        ]

    async def copies(
        self, caller: Caller, topic: str, key: str, *, unique: bool, bodies: bool = False, without: Collection[str] = ()
    ) -> BrokerAnswers[list[StoredMessage]]:
        """Return the records of a topic with a key, or with a unique key, from all brokers. This waits for a turn.

        A broker returns the newest records, at most SAME_KEY_MAX, or its own limit for unique keys.

        Args:
            caller: The caller, for the turn.
            topic: The topic.
            key: The key.
            unique: Whether the key is a unique key (UNIQ_KEY).
            bodies: Whether the records keep their bodies.
            without: Brokers that are not asked.

        Raises:
            ProblemError: 503: no name server answers; 429, 503: the caller reads its answers too slowly.
        """
        sets = {*await self._brokers.sets(), *self._engine.known_broker_sets(topic)} - {*without}
        async with self.turn(caller, SAME_KEY_MAX):
            asked = await self._query(topic, key, SAME_KEY_MAX, sets, unique=unique)
            found = {
                broker: [
                    record if bodies else record._replace(body=b"")
                    for record in records
                    if record.topic == topic and (record.message_id == key or (not unique and key in record.keys))
                ]
                for broker, records in asked.answers.items()
            }
        return BrokerAnswers(found, asked.failures, asked.answered)

    async def by_key(self, topic: str, key: str, *, limit: int) -> FoundMessages:
        """Return the messages of a topic that have a key, newest first. Raises ProblemError."""
        sets = await self._homes(topic)
        asked = await self._query(topic, key, limit, sets, unique=False)
        asked.require_any()
        candidates = list(_messages(asked))
        matching = [
            (message, broker)
            for message, broker in candidates
            if message.topic == topic and (key in message.keys or message.message_id == key)
        ]
        matching.sort(key=lambda pair: (-pair[0].stored_at_ms, pair[1], -pair[0].physical_offset))
        full = any(len(records) >= limit for records in asked.answers.values())
        return FoundMessages(
            messages=self._sound_messages(matching[:limit]),
            scanned=len(candidates),
            is_truncated=full or len(matching) > limit or bool(asked.failures),
        )

    def _sound_messages(self, found: Iterable[tuple[StoredMessage, str]]) -> Iterator[ReadMessage]:
        for record, broker in found:
            try:
                yield read_message(record, broker)
            except CorruptRecordError:
                self._metrics.damaged_records += 1

    def require_valid(self, record: StoredMessage, broker: str) -> ReadMessage:
        """Return the message of a record. Raises ProblemError (500) if the record is damaged."""
        try:
            if record.crc.is_good:
                return read_message(record, broker)
            reason = f"checksum: {record.crc.value}"
        except CorruptRecordError as error:
            reason = error.reason
        self._metrics.damaged_records += 1
        raise ProblemError(CORRUPT_RECORD, f"id: {record.stored_id} on {broker} is damaged: {reason}", field="id")

    async def _homes(self, topic: str) -> Iterable[str]:
        """Return the brokers that may hold messages of a topic: those of the route, and known homes that are down."""
        route = await self._reader.route(topic)
        return {data.broker_name for data in route.queue_datas} | self._engine.known_broker_sets(topic)

    async def by_stored_id(self, stored_id: str) -> tuple[StoredMessage, str]:
        """Return the record at a stored id and its broker's name.

        Raises:
            InvalidIdError: It is not a stored id.
            ProblemError: 404: there is no such record; 500: it is damaged; 503: no broker is registered.
            ClientError: The broker does not answer.
        """
        address, physical_offset = decode_stored_id(stored_id)
        # The address comes from the caller, so it is only compared with registered addresses and never connected to.
        wanted = str(address)
        sets = await self._brokers.sets()
        if not sets:
            raise no_broker()
        for broker in sets.values():
            if wanted in broker.broker_addrs.values():
                break
        else:
            await self._topics.require_registered_homes()
            raise _unknown(stored_id)
        try:
            response = await self._engine.call(
                wanted, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=physical_offset)
            )
        except BrokerError as error:
            # Brokers answer code 1 (SYSTEM_ERROR) if no record starts at the offset.
            if error.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND):
                raise _unknown(stored_id) from None
            raise
        try:
            message = decode_record(memoryview(response.body_bytes))
        except RecordError as error:
            detail = f"id: {stored_id} on {broker.broker_name} is damaged: {error.reason}"
            raise ProblemError(CORRUPT_RECORD, detail, field="id") from None
        if message.physical_offset != physical_offset:
            raise _unknown(stored_id)
        return message, broker.broker_name

    async def _query(
        self, topic: str, key: str, count: int, sets: Iterable[str], *, unique: bool
    ) -> BrokerAnswers[list[StoredMessage]]:
        header = QueryMessageHeader(
            topic=topic,
            key=key,
            max_num=count,
            begin_timestamp=_BEGIN_MS,
            end_timestamp=_END_MS,
            unique_key_query=True if unique else None,
        )

        async def ask(address: str) -> list[StoredMessage]:
            try:
                response = await self._engine.call(address, RequestCode.QUERY_MESSAGE, header)
            except BrokerError as error:
                if error.code == ResponseCode.QUERY_NOT_FOUND:
                    return []
                raise
            return await self._decode_valid(response.body_bytes)

        return await self._brokers.ask(ask, sets)

    async def _decode_valid(self, body: bytes) -> list[StoredMessage]:
        messages: list[StoredMessage] = []
        at, decoded_bytes = 0, 0
        records = memoryview(body)
        try:
            while at < len(body):
                message = decode_record(records, at)
                at += message.size_bytes
                decoded_bytes += message.size_bytes
                if decoded_bytes >= _DECODED_BYTES_AT_ONCE:
                    decoded_bytes = 0
                    await asyncio.sleep(0)
                if message.crc.is_good:
                    messages.append(message)
                else:
                    self._metrics.damaged_records += 1
        except RecordError:
            self._metrics.damaged_records += 1
        return messages


def _messages(asked: BrokerAnswers[list[StoredMessage]]) -> Iterable[tuple[StoredMessage, str]]:
    for broker, messages in asked.answers.items():
        for message in messages:
            yield message, broker


def no_stored_id(topic: str | None) -> str:
    """Return the end of a problem's detail about an id that is no stored id and, in the topic, no message id."""
    if topic is not None:
        return f" in topic {topic}"
    return ": it is not a stored id; a message id needs the parameter `topic`"


def _unknown(message_id: str, why: str = "") -> ProblemError:
    return ProblemError(UNKNOWN_MESSAGE, f"id: there is no message {message_id!r}{why}", field="id")
