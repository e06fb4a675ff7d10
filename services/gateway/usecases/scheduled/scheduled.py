"""Lists, recalls and reschedules messages for a set time. Brokers hold them; a handle names one.

A message with a delay level is not among them: it has no handle, and RocketMQ's brokers can't recall it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from gantry.client.answers import read_body
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, NoAnswerError
from gantry.model.errors import InvalidIdError, InvalidValueError, RecordError
from gantry.model.recallhandle import RecallHandle, decode_recall_handle, encode_recall_handle
from gantry.model.record import decode_record
from gantry.remoting.bodies.timer import WaitingMessage, WaitingMessages
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.fields import Header
from gantry.remoting.headers.query import ViewMessageHeader
from gantry.remoting.headers.timer import (
    GONE,
    RECALLED,
    UNKNOWN,
    WAITING_MAX,
    RecallMessageHeader,
    RescheduleMessageHeader,
    WaitingMessagesHeader,
)
from gantry.runtime.clock import Clock
from services.gateway.errors import (
    CONFLICT,
    CORRUPT_RECORD,
    INVALID_FIELD,
    OUTCOME_UNKNOWN,
    UNKNOWN_MESSAGE,
    ProblemError,
    describe_too_late,
)
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.page import Page
from services.gateway.usecases.reading.messages import ReadMessage, read_message
from services.gateway.usecases.reading.read import QueueReader
from services.gateway.usecases.scheduled.listing import SECOND_MS, MergedPage, Place, merge_pages

LISTING: Final = "scheduled"
PAGE_BYTES_MAX: Final = 6 * 1024 * 1024
"""Size of decompressed bodies in a page. A page with one message of each broker may be larger."""


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A message that waits.

    Attributes:
        message: The message, under its own topic and queue.
        handle: Text that names it.
        deliver_at_ms: Time of its delivery (wall ms).
    """

    message: ReadMessage
    handle: str
    deliver_at_ms: int


@dataclass(frozen=True, slots=True)
class Rescheduled:
    """The new handle of a message, and the time of its delivery (wall ms); None for both if it was due already."""

    handle: str | None
    deliver_at_ms: int | None


class ScheduledMessages:
    """The operations on messages that wait for their time. The caller has checked the rights."""

    def __init__(self, engine: ClientEngine, brokers: Brokers, reader: QueueReader, *, clock: Clock) -> None:
        self._engine = engine
        self._brokers = brokers
        self._reader = reader
        self._clock = clock

    async def page(
        self, topic: str, *, from_ms: int | None, to_ms: int | None, cursor: str | None, limit: int
    ) -> Page[Scheduled]:
        """List messages by due time.

        A page may have more messages than `limit` if several brokers have messages of one second. It may have fewer if
        brokers have to look through many messages of other topics, or if the bodies are large.

        Raises:
            InvalidValueError: The cursor is not valid.
            ProblemError: 404: the topic does not exist; 503: a broker that may have messages does not answer.
            ClientError: A broker rejects the request.
        """
        places = await self._places(topic, from_ms) if cursor is None else _read_places(cursor)
        bodies: dict[tuple[str, int], Scheduled | None] = {}
        while True:
            merged = await self._merged_page(topic, places, limit)
            wanted = [pair for pair in merged.messages if to_ms is None or pair[1].delivery_at < to_ms]
            if await self._read_bodies(wanted, bodies, bytes_max=None if limit == 1 else PAGE_BYTES_MAX):
                break
            # The bodies are too large for one page. A smaller page begins with the same messages.
            limit //= 2
        found = [bodies[broker, waiting.physical_offset] for broker, waiting in wanted]
        has_more = bool(merged.places) and (
            to_ms is None or min(second for second, _ in merged.places.values()) * SECOND_MS < to_ms
        )
        next_cursor = encode_cursor(LISTING, msgspec.json.encode(merged.places).decode()) if has_more else None
        return Page([one for one in found if one is not None], next_cursor)

    async def _merged_page(self, topic: str, places: Mapping[str, Place], limit: int) -> MergedPage:
        names = {await self._brokers.master(broker): broker for broker in places}

        async def ask(address: str) -> WaitingMessages:
            second, position = places[names[address]]
            header = WaitingMessagesHeader(
                second=second, position=position, max_messages=min(limit, WAITING_MAX), topic=topic
            )
            response = await self._engine.call(address, RequestCode.GANTRY_WAITING_MESSAGES, header)
            return read_body(WaitingMessages.decode, response, address)

        asked = await self._brokers.ask(ask, places)
        if asked.failures:
            raise asked.problem()
        return merge_pages(asked.answers, places)

    async def _read_bodies(
        self,
        wanted: Sequence[tuple[str, WaitingMessage]],
        bodies: dict[tuple[str, int], Scheduled | None],
        *,
        bytes_max: int | None,
    ) -> bool:
        """Read the messages that are missing in `bodies`. Return False as soon as they exceed `bytes_max`."""
        size_bytes = 0
        for broker, waiting in wanted:
            name = broker, waiting.physical_offset
            if name not in bodies:
                bodies[name] = await self._read(broker, waiting)
            one = bodies[name]
            size_bytes += 0 if one is None else len(one.message.body)
            if bytes_max is not None and size_bytes > bytes_max:
                return False
        return True

    async def recall(self, topic: str, handle: str) -> str:
        """Recall a message. Return RECALLED, or GONE if it was delivered or recalled before, or is about to be delivered.

        Raises:
            InvalidValueError: It is not a handle of this topic.
            ProblemError: 404: the topic or the broker does not exist; 503: the broker does not answer; 504: it is
                unknown whether the message was recalled.
            ClientError: The broker rejects the request.
        """
        named = _read_handle(topic, handle)
        header = RecallMessageHeader(topic=named.topic, recall_handle=handle)
        _, outcome = await self._ask(
            named, RequestCode.RECALL_MESSAGE, header, "whether the message was recalled is unknown"
        )
        return outcome

    async def reschedule(
        self, topic: str, handle: str, *, delay_ms: int | None, deliver_at_ms: int | None
    ) -> Rescheduled:
        """Let a message wait until another time, with the same message id; exactly one of the times is given.

        The broker stores the message with its new time and recalls the old one in one step.

        Raises:
            InvalidValueError: It is not a handle of this topic.
            ProblemError: 404: the message does not wait any more; nothing was stored. 409: the message waits for this
                second already, or was recalled from it. 503: the broker does not answer. 504: it is unknown whether the
                message has the new time; it may come at both.
            ClientError: The broker rejects the request.
        """
        named = _read_handle(topic, handle)
        new_ms = self._clock.now_ms() + delay_ms if delay_ms is not None else deliver_at_ms
        assert new_ms is not None, "one of the times is given"
        new = named._replace(at_ms=(new_ms - 1) // SECOND_MS * SECOND_MS + 1)
        doubt = (
            f"whether the message has its new time is unknown: it may come at the old time, at the new one, or at both. "
            f"Its new handle is {encode_recall_handle(new)}"
        )
        header = RescheduleMessageHeader(topic=named.topic, recall_handle=handle, deliver_at=new_ms)
        try:
            response, outcome = await self._ask(named, RequestCode.GANTRY_RESCHEDULE_MESSAGE, header, doubt)
        except BrokerError as error:
            if (too_late := describe_too_late(error.remark or "")) is not None:
                field = "/deliver_at" if delay_ms is None else "/delay"
                raise ProblemError(INVALID_FIELD, f"{field}: {too_late}", field=field) from None
            if error.code != ResponseCode.TOPIC_EXIST_ALREADY:
                raise
            detail = "deliver_at: the message is already due at this time, or was recalled from it; take another second"
            raise ProblemError(CONFLICT, detail, field="/deliver_at") from None
        if outcome == GONE:
            raise ProblemError(
                UNKNOWN_MESSAGE,
                "handle: the message was delivered or recalled before, or its topic was deleted",
                field="handle",
            )
        new_handle = response.ext_fields.get("recallHandle")
        if new_handle is None:
            return Rescheduled(None, None)
        return Rescheduled(new_handle, deliver_at_of(decode_recall_handle(new_handle)))

    async def _ask(self, named: RecallHandle, code: int, header: Header, doubt: str) -> tuple[RemotingCommand, str]:
        """Send a request about one message. Return the answer, and RECALLED or GONE.

        `doubt` is the detail of the problem if the outcome is unknown.
        """
        address = await self._brokers.master(named.broker_name)
        problem = ProblemError(
            OUTCOME_UNKNOWN, f"{doubt}.", field="handle", outcome=UNKNOWN, message_id=named.unique_key
        )
        try:
            response = await self._engine.invoke(
                address, RemotingCommand.request(code, header), timeout_ms=self._engine.settings.admin_timeout_ms
            )
        except NoAnswerError as error:
            if error.sent:
                raise problem from None
            raise
        outcome = response.ext_fields.get("gantryOutcome")
        if outcome == UNKNOWN:
            if response.remark:
                problem.detail += f" The broker says: {response.remark[:200]}"
            raise problem
        if response.code == ResponseCode.SUCCESS or outcome == GONE:
            return response, GONE if outcome == GONE else RECALLED
        if response.code == ResponseCode.ILLEGAL_OPERATION:
            raise InvalidValueError("handle", encode_recall_handle(named)[:200], response.remark or "is not valid")
        raise BrokerError(response.code, response.remark, address)

    async def _places(self, topic: str, from_ms: int | None) -> dict[str, Place]:
        route = await self._reader.route(topic)
        # A second is delivered at its end.
        second = max(0, (self._clock.now_ms() if from_ms is None else from_ms) // SECOND_MS - 1)
        return {data.broker_name: (second, None) for data in route.queue_datas}

    async def _read(self, broker: str, waiting: WaitingMessage) -> Scheduled | None:
        """Return a waiting message with its body; None if its record is gone, which means that it was delivered."""
        address = await self._brokers.master(broker)
        header = ViewMessageHeader(offset=waiting.physical_offset)
        try:
            response = await self._engine.call(address, RequestCode.VIEW_MESSAGE_BY_ID, header)
        except BrokerError as error:
            if error.code in (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND):
                return None
            raise
        try:
            record = decode_record(memoryview(response.body_bytes))
            message = read_message(record._replace(topic=waiting.topic, queue_id=waiting.queue_id), broker)
        except RecordError as error:
            detail = f"the scheduled message {waiting.message_id} on {broker} is damaged: {error}"
            raise ProblemError(CORRUPT_RECORD, detail) from None
        return Scheduled(message, waiting.recall_handle, waiting.delivery_at)


def deliver_at_of(named: RecallHandle) -> int:
    """Return the time of a delivery (wall ms): the end of the second at which the message waits."""
    return named.at_ms - 1 + SECOND_MS


def _read_handle(topic: str, handle: str) -> RecallHandle:
    try:
        named = decode_recall_handle(handle)
    except InvalidIdError as error:
        raise InvalidValueError("handle", handle[:200], error.reason) from None
    if named.topic != topic:
        raise InvalidValueError("handle", handle[:200], f"names a message of topic {named.topic}")
    return named


def _read_places(cursor: str) -> Mapping[str, Place]:
    try:
        return msgspec.json.decode(decode_cursor(cursor, LISTING), type=dict[str, tuple[int, int | None]])
    except msgspec.ValidationError:
        raise InvalidValueError("cursor", cursor, "is not a cursor of this list") from None
