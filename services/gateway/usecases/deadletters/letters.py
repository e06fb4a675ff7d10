"""Dead letters as they are stored: lists of them, newest first, and their queues.

The dead letters of a group are the messages of the topic `%DLQ%group`. Consumers can't read it. Tools read it with the
group TOOLS_CONSUMER.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import msgspec

from gantry.client.consumer.offsets import Offsets
from gantry.client.consumer.pull import PullConsumer, PullStatus
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError, NoRouteError
from gantry.model.errors import CorruptRecordError, InvalidValueError
from gantry.model.message import MessageQueue, StoredMessage
from gantry.model.names import dlq_topic
from gantry.model.propertyname import PropertyName
from gantry.model.sysflag import COMPRESSED
from gantry.remoting.codes import ResponseCode
from services.gateway.db.redrives import RedriveRepository
from services.gateway.errors import ProblemError
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.usecases.metadata import Metadata, is_metadata_unavailable
from services.gateway.usecases.page import MetadataPage
from services.gateway.usecases.reading.fairgate import FairGate
from services.gateway.usecases.reading.messages import ReadMessage, read_message
from services.gateway.usecases.reading.read import INFLATED_BYTES_AT_ONCE, READER_GROUP, QueueReader, read_records
from services.gateway.usecases.sending.send import no_name_server

LISTING: Final = "dead-letters"
SCANNED_MAX: Final = 2_000
"""Letters that one page looks at. A page may be short if few of them match; its cursor continues behind them."""
PAGE_BYTES_MAX: Final = 6 * 1024 * 1024
"""Size of letters at which a page ends, with decompressed bodies."""
_CHUNK: Final = 16
_READERS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter: a message of the topic `%DLQ%group`, whose body stays compressed.

    Attributes:
        record: The stored record; its body can be decompressed.
        broker: Name of the broker that stores it.
        size_bytes: Size of the record or of the decompressed body, the larger of both.
        origin_topic: Topic of the message that failed; None if the letter does not say.
        origin_message_id: Stored id of the message that failed; None if the letter does not say.
        redriven_at: Time at which it was sent again; None if it was not, or if Postgres does not answer.
    """

    record: StoredMessage
    broker: str
    size_bytes: int
    origin_topic: str | None
    origin_message_id: str | None
    redriven_at: datetime | None = None

    def message(self) -> ReadMessage:
        """Return the letter with its decompressed body, which may be a thousand times as large as the record."""
        return read_message(self.record, self.broker)


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """The letters that a caller wants; None: all.

    Attributes:
        topic: Topic of the message that failed.
        tag: Tag of the message.
        from_ms: Earliest time of death (wall ms).
        to_ms: Time before which the letter died (wall ms).
    """

    topic: str | None = None
    tag: str | None = None
    from_ms: int | None = None
    to_ms: int | None = None

    def matches(self, letter: DeadLetter) -> bool:
        """Return whether a letter of the right time is wanted."""
        return (self.topic is None or letter.origin_topic == self.topic) and (
            self.tag is None or letter.record.tag == self.tag
        )


_Letters = AsyncGenerator[DeadLetter, None]


class LetterRange(msgspec.Struct, frozen=True):
    """A part of a queue with dead letters: offsets `start` to `end`, without `end`."""

    broker: str
    queue_id: int
    start: int
    end: int


class DeadLetters:
    """Reads dead letters. The caller has checked the rights."""

    def __init__(self, engine: ClientEngine, reader: QueueReader, metadata: Metadata) -> None:
        self._engine = engine
        self._reader = reader
        self._metadata = metadata
        self._puller = PullConsumer(engine, READER_GROUP)
        self._offsets = Offsets(engine)
        self._gate = FairGate(_READERS_MAX)

    async def page(
        self,
        group: str,
        wanted: LetterFilter,
        *,
        may_read: Callable[[str | None], bool],
        key_id: str,
        cursor: str | None,
        limit: int,
    ) -> MetadataPage[DeadLetter]:
        """List dead letters, newest first.

        Args:
            group: The group.
            wanted: The letters that the caller wants.
            may_read: Whether the caller may read messages of a topic; other letters are left out.
            key_id: Id of the caller's key; keys take turns.
            cursor: Cursor of the page before.
            limit: Limit of letters.

        Raises:
            InvalidValueError: The cursor is not valid.
            ProblemError: 404: the group does not exist; 503: a broker that has letters does not answer.
            ClientError: A broker rejects a request.
        """
        ranges = await self.ranges(group, wanted)
        if cursor is not None:
            places = _read_places(cursor)
            ranges = [
                msgspec.structs.replace(one, end=min(one.end, places[_name(one)]))
                for one in ranges
                if _name(one) in places
            ]
        places = {_name(one): max(one.start, one.end) for one in ranges}
        found: list[DeadLetter] = []
        scanned = size = 0
        async with self._gate.enter(key_id), aclosing(self._newest_first(group, ranges)) as letters:
            async for letter in letters:
                scanned += 1
                if wanted.matches(letter) and may_read(letter.origin_topic):
                    size += letter.size_bytes
                    if found and size > PAGE_BYTES_MAX:
                        break
                    found.append(letter)
                places[_name(letter.record, letter.broker)] = letter.record.queue_offset
                if len(found) == limit or scanned == SCANNED_MAX:
                    break
            else:
                places = {}
        next_cursor = encode_cursor(LISTING, msgspec.json.encode(places).decode()) if places else None
        found, is_known = await self._with_redrives(group, found)
        return MetadataPage(found, next_cursor, is_metadata_available=is_known)

    async def ranges(self, group: str, wanted: LetterFilter) -> list[LetterRange]:
        """Return the queues with dead letters of the wanted time.

        Raises:
            ProblemError: 503: a broker that has letters, or no name server, answers.
        """
        topic = dlq_topic(group)
        try:
            route = await self._engine.route(topic, refresh=True)
        except NoRouteError:
            return []
        except ClientError as error:
            raise no_name_server(error) from None
        asked = await self._reader.queue_states(topic, [data.broker_name for data in route.queue_datas])
        if asked.failures:
            raise asked.problem()
        return [
            await self._cut(MessageQueue(topic, broker, state.queue_id), state.min_offset, state.max_offset, wanted)
            for broker, states in asked.answers.items()
            for state in states
            if state.max_offset > state.min_offset
        ]

    async def _cut(self, queue: MessageQueue, start: int, end: int, wanted: LetterFilter) -> LetterRange:
        if wanted.from_ms is not None:
            start = max(start, await self._offsets.search_offset(queue, wanted.from_ms))
        if wanted.to_ms is not None:
            end = min(end, await self._offsets.search_offset(queue, wanted.to_ms))
        return LetterRange(queue.broker_name, queue.queue_id, start, max(start, end))

    async def read(self, group: str, part: LetterRange, *, count_max: int) -> tuple[list[DeadLetter], int]:
        """Return the first letters of a part, in the order of the queue, and the offset behind them.

        A damaged letter is left out. If the part's beginning was deleted, reading continues behind it.

        Raises:
            ClientError: The broker does not answer, or rejects the request.
        """
        if part.start >= part.end:
            return [], part.end
        queue = MessageQueue(dlq_topic(group), part.broker, part.queue_id)
        count = min(count_max, part.end - part.start)
        try:
            result = await self._puller.pull(queue, part.start, max_messages=count)
        except BrokerError as error:
            if error.code == ResponseCode.TOPIC_NOT_EXIST:
                return [], part.end
            raise
        if result.status is not PullStatus.FOUND:
            has_jumped = result.next_offset > part.start
            return [], min(part.end, result.next_offset) if has_jumped else part.end
        records = read_records(result.body, queue, part.start, result.next_offset)
        letters: list[DeadLetter] = []
        inflated_bytes = 0
        for record in records.messages:
            if record.queue_offset >= part.end or (letter := read_letter(record, part.broker)) is None:
                continue
            letters.append(letter)
            inflated_bytes += letter.size_bytes if record.sys_flag & COMPRESSED else 0
            if inflated_bytes >= INFLATED_BYTES_AT_ONCE:
                inflated_bytes = 0
                await asyncio.sleep(0)
        return letters, min(part.end, max(records.next_offset, part.start + 1))

    async def export(
        self, group: str, wanted: LetterFilter, *, may_read: Callable[[str | None], bool], key_id: str
    ) -> _Letters:
        """Yield all dead letters, queue by queue, oldest first. The caller closes the generator.

        Raises:
            ProblemError: 503: a broker that has letters does not answer.
            ClientError: A broker rejects a request.
        """
        for part in await self.ranges(group, wanted):
            offset = part.start
            while offset < part.end:
                piece = msgspec.structs.replace(part, start=offset)
                async with self._gate.enter(key_id):
                    letters, offset = await self.read(group, piece, count_max=_CHUNK)
                letters = [letter for letter in letters if wanted.matches(letter) and may_read(letter.origin_topic)]
                for letter in (await self._with_redrives(group, letters))[0]:
                    yield letter

    async def _newest_first(self, group: str, ranges: Iterable[LetterRange]) -> _Letters:
        """Yield the letters of some queues, those that died last first."""
        readers = [self._backwards(group, one) for one in ranges]
        try:
            heads = [head for head in await asyncio.gather(*(_next(reader) for reader in readers)) if head is not None]
            while heads:
                newest = max(heads, key=lambda head: (head[0].record.stored_at_ms, head[0].record.queue_offset))
                heads.remove(newest)
                yield newest[0]
                following = await _next(newest[1])
                if following is not None:
                    heads.append(following)
        finally:
            for reader in readers:
                await reader.aclose()

    async def _backwards(self, group: str, part: LetterRange) -> _Letters:
        end = part.end
        while end > part.start:
            start = at = max(part.start, end - _CHUNK)
            chunk: list[DeadLetter] = []
            while at < end:
                piece = LetterRange(part.broker, part.queue_id, at, end)
                letters, at = await self.read(group, piece, count_max=_CHUNK)
                chunk += letters
            for letter in reversed(chunk):
                yield letter
            end = start

    async def _with_redrives(self, group: str, letters: Sequence[DeadLetter]) -> tuple[list[DeadLetter], bool]:
        """Return the letters with the times of their redrives, and whether Postgres answered."""
        if not letters:
            return [], True
        try:
            async with self._metadata.transaction() as session:
                sent = await RedriveRepository(session).sent(group, [letter.record.stored_id for letter in letters])
        except ProblemError as error:
            if not is_metadata_unavailable(error):
                raise
            return list(letters), False
        return [replace(letter, redriven_at=sent.get(letter.record.stored_id)) for letter in letters], True


def read_letter(record: StoredMessage, broker: str) -> DeadLetter | None:
    """Return the letter of a record, or None if its body is damaged."""
    try:
        body = record.inflated_body()
    except CorruptRecordError:
        return None
    properties = record.properties
    return DeadLetter(
        record,
        broker,
        max(record.size_bytes, len(body)),
        properties.get(PropertyName.DLQ_ORIGIN_TOPIC) or properties.get(PropertyName.RETRY_TOPIC),
        properties.get(PropertyName.DLQ_ORIGIN_MESSAGE_ID) or properties.get(PropertyName.ORIGIN_MESSAGE_ID),
    )


async def _next(reader: _Letters) -> tuple[DeadLetter, _Letters] | None:
    async for letter in reader:
        return letter, reader
    return None


def _name(of: LetterRange | StoredMessage, broker: str = "") -> str:
    return f"{of.broker if isinstance(of, LetterRange) else broker}/{of.queue_id}"


def _read_places(cursor: str) -> Mapping[str, int]:
    try:
        return msgspec.json.decode(decode_cursor(cursor, LISTING), type=dict[str, int])
    except msgspec.ValidationError:
        raise InvalidValueError("cursor", cursor, "is not a cursor of this list") from None
