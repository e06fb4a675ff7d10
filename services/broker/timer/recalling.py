"""Requests 370 and 900011: recall a message that waits for its time, or give it another time.

A recall stores a deletion that waits for the same second as the message, and suppresses it when the second fires. It is
accepted until the second begins to fire. The reply says what has become of the message: `gantryOutcome` is "recalled",
"gone" (delivered or recalled before, or about to be delivered), or "unknown" (the deletion may not be on the disk, or the
store has no index that says whether the message waits).

Request 900011 stores the message with another time and the deletion in one step: no other request comes in between, so
of two requests for one message only the first one stores anything.

A deletion hits only messages that were stored before it, so a message that was sent again after a recall is not recalled
(ADR 0048). In a topic with a duplicate window, the answer to a recall waits until the key is free. A message with another
time takes the place of the old one in the window; its property GANTRY_REPLACES_SECOND names the second that it leaves.

Source: RocketMQ 5.3 RecallMessageProcessor; remarks and codes are its.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from gantry.model.address import pack_host
from gantry.model.errors import InvalidIdError
from gantry.model.message import StoredMessage
from gantry.model.names import TIMER_TOPIC
from gantry.model.propertyname import PropertyName
from gantry.model.recallhandle import RecallHandle, decode_recall_handle
from gantry.model.timerdeletion import deletes, deletion_key, deletion_order, first_offset
from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.timer import (
    GONE,
    RECALLED,
    UNKNOWN,
    RecallMessageHeader,
    RecallMessageResponseHeader,
    RescheduleMessageHeader,
)
from gantry.runtime.clock import Clock
from gantry.storeformat.timerfiles import SECOND_MS
from services.broker.coldreader import ColdReader, ColdReadsBusyError
from services.broker.duplicates.keyed import delivery_second
from services.broker.duplicates.window import DuplicateWindow, DuplicateWindows
from services.broker.durabilitywaiters import DurabilityWaiters, Outcome
from services.broker.identity import BrokerIdentity
from services.broker.newmessage import NewMessage, SendHook
from services.broker.processors.sendonce import note_special
from services.broker.processors.table import PlainHandler
from services.broker.refusal import RefusalError
from services.broker.registry.topics import TopicTable
from services.broker.settings import BrokerSettings, LiveSettings
from services.broker.store.errors import StoreReadError
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutResult, PutStatus
from services.broker.timer.delivery import copied
from services.broker.timer.recalls import RECALLS_MAX, Recalls
from services.broker.timer.recovery import due_ms, timer_message
from services.broker.timer.request import drop_requests, waiting_second_ms
from services.broker.timer.waiting import Waiting
from services.broker.turns import Turns

_T = TypeVar("_T")
_RECALL_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"
FOUND_MAX: Final = 64
"""Largest number of records with the message's unique key that are looked at."""
_SLICE_ENTRIES = 500
_SLICE_BYTES = 512 * 1024
_TIMER_PREFIX = "TIMER_"
_READ_WAIT_S: Final = 1.0
_NEEDS_INDEX: Final = "needs the index of the store (messageIndexEnable=true)"


class _Found:
    """The records of a message in the timer's queue, as the index finds them.

    Attributes:
        message: The newest record of the message itself for the second, or None. If the message was sent again for this
            second, it is a record of the last one.
        is_indexed: Whether the store has an index. Without one, nothing is found, although the message may wait.
        recalled_at: The seconds for which deletions of the message exist, with the order of the last one.
    """

    def __init__(self) -> None:
        self.is_indexed = True
        self.message: StoredMessage | None = None
        self.recalled_at: dict[int, int] = {}


class Recalling:
    """Recalls messages and gives them another time.

    Concurrency: the loop's thread. Between the last check and the appends nothing is awaited.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        recalls: Recalls,
        waiting: Waiting,
        hook: SendHook,
        topics: TopicTable,
        identity: BrokerIdentity,
        live_settings: LiveSettings,
        store: MessageStore,
        waiters: DurabilityWaiters,
        windows: DuplicateWindows,
        cold: ColdReader,
        turns: Turns,
        clock: Clock,
    ) -> None:
        self._is_recall_enabled = settings.recall_message_enable
        self._is_wheel_enabled = settings.timer_wheel_enable
        self._delay_max_ms = settings.timer_max_delay_sec * SECOND_MS
        self._recalls = recalls
        self._waiting = waiting
        self._hook = hook
        self._topics = topics
        self._identity = identity
        self._live_settings = live_settings
        self._store = store
        self._waiters = waiters
        self._windows = windows
        self._cold = cold
        self._turns = turns
        self._clock = clock

    def handlers(self) -> Mapping[int, PlainHandler]:
        """Return the handler of each request code."""
        return {
            RequestCode.RECALL_MESSAGE: self.recall,
            RequestCode.GANTRY_RESCHEDULE_MESSAGE: self.reschedule,
        }

    async def recall(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """370: recall a message."""
        header = RecallMessageHeader.from_ext(request.ext_fields)
        handle = self._checked_handle(header.topic, header.recall_handle)
        second = waiting_second_ms(handle.at_ms) // SECOND_MS
        found = await self._find(channel, handle, second)
        if self._is_late(second):
            raise self._late()
        is_gone = self._is_recalled(found, handle, second)
        if is_gone:
            end = self._store.max_physical_offset  # The first recall is durable when everything up to here is.
        else:
            end = self._put_deletion(channel, handle, header.producer_group, second)
        queued = self._store.max_offset(TIMER_TOPIC, 0) - 1
        outcome = Outcome.DURABLE if end <= self._store.confirm_offset else await self._waiters.outcome(end)
        if outcome is Outcome.DURABLE and self._windows.find(handle.topic) is not None:
            await self._waiting.reads.wait(queued, _READ_WAIT_S)  # Then the key is free.
        done = GONE if is_gone or found.message is None else RECALLED
        return self._answer(request, handle, done if found.is_indexed else UNKNOWN, outcome)

    async def reschedule(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900011: give a message another time."""
        header = RescheduleMessageHeader.from_ext(request.ext_fields)
        handle = self._checked_handle(header.topic, header.recall_handle)
        second = waiting_second_ms(handle.at_ms) // SECOND_MS
        window = self._windows.find(handle.topic)
        if window is not None:
            await window.wait_ready()
        found = await self._find(channel, handle, second)
        if self._is_late(second):
            raise self._late()
        if not found.is_indexed:
            raise self._refusal(ResponseCode.NO_PERMISSION, f"a new time {_NEEDS_INDEX}")
        if found.message is None or self._is_recalled(found, handle, second):
            raise self._gone("the message does not wait any more")
        new = _moved(found.message, header.deliver_at, second)
        queue_id = new.queue_id
        self._hook(new)
        out_ms = new.properties.get(PropertyName.TIMER_OUT_MS) if new.topic == TIMER_TOPIC else None
        new_second = None if out_ms is None else int(out_ms) // SECOND_MS
        if new_second is not None and (
            new_second == second
            or new_second in found.recalled_at
            or self._recalls.order(new_second, _key(handle)) is not None
        ):
            # A deletion names the second. That of the old message would delete the new one, and after an earlier recall,
            # a copy of the new message without its first offset would be deleted.
            reason = f"deliverAt={header.deliver_at}: the message waits for this second, or was recalled from it"
            raise RefusalError(ResponseCode.TOPIC_EXIST_ALREADY, reason)
        # The new message comes first. A crash in between leaves both, and loses none.
        stored = self._checked_put(new)
        window = self._windows.find(handle.topic)
        if window is not None:
            _replace_key(window, handle.unique_key, new, stored, queue_id)
        end = self._put_deletion(channel, handle, header.producer_group, second, outcome=UNKNOWN)
        outcome = await self._waiters.outcome(end)
        return self._answer(request, handle, RECALLED, outcome, recall_handle=new.recall_handle)

    def _is_recalled(self, found: _Found, handle: RecallHandle, second: int) -> bool:
        """Return whether a deletion hits the message that was found."""
        message = found.message
        orders = (found.recalled_at.get(second), self._recalls.order(second, _key(handle)))
        return message is not None and any(order is not None and deletes(order, message) for order in orders)

    def _is_late(self, second: int) -> bool:
        return second < max(self._recalls.closed_before, self._waiting.read_second)

    def _late(self) -> RefusalError:
        return self._gone("timestamp invalid")

    def _gone(self, reason: str) -> RefusalError:
        return self._refusal(ResponseCode.ILLEGAL_OPERATION, reason, outcome=GONE)

    def _checked_handle(self, topic: str, text: str) -> RecallHandle:
        code, now_ms = ResponseCode, self._clock.now_ms()
        if not self._is_recall_enabled:
            raise self._refusal(code.NO_PERMISSION, "operation is forbidden")
        if now_ms < self._live_settings.current.start_accept_send_request_time_stamp:
            raise self._refusal(code.SERVICE_NOT_AVAILABLE, "broker service not available")
        if self._topics.find(topic) is None:
            raise self._refusal(code.TOPIC_NOT_EXIST, f"the topic[{topic}] not exist")
        try:
            handle = decode_recall_handle(text)
        except InvalidIdError as error:
            raise self._refusal(code.ILLEGAL_OPERATION, f"recall handle is invalid: {error}", prefix="") from None
        if handle.topic != topic:
            raise self._refusal(code.ILLEGAL_OPERATION, "topic not match")
        if handle.broker_name != self._identity.name:
            raise self._refusal(code.ILLEGAL_OPERATION, "broker service not available")
        if not self._is_wheel_enabled:
            raise self._refusal(code.SYSTEM_ERROR, "execute error")
        ahead_ms = handle.at_ms - now_ms
        if ahead_ms >= self._delay_max_ms:
            reason = f"timestamp invalid: {handle.at_ms} is {ahead_ms} ms ahead, and not below {self._delay_max_ms}"
            raise self._refusal(code.ILLEGAL_OPERATION, reason)
        if self._is_late(waiting_second_ms(handle.at_ms) // SECOND_MS):
            raise self._late()
        return handle

    async def _find(self, channel: Channel, handle: RecallHandle, second: int) -> _Found:
        """Find the records of a message in the timer's queue. Raises RefusalError: they can't be read now."""
        found = _Found()
        try:
            search = self._store.search(TIMER_TOPIC, handle.unique_key, FOUND_MAX, 0, 2**63 - 1)
            while search is not None and not search.is_done:
                await self._cold.run(channel, partial(self._spend, search.step, _SLICE_ENTRIES), turns=self._turns)
            found.is_indexed = search is not None
            offsets = [] if search is None else list(search.found)
            while offsets:
                read = partial(self._store.records, offsets, _SLICE_BYTES)
                records = await self._cold.run(channel, partial(self._spend, read), turns=self._turns)
                for record in records:
                    message = timer_message(record)
                    if message is not None and not self._is_dead(message):
                        _note(found, message, handle, second)
                offsets = offsets[len(records) :]
        except ColdReadsBusyError as error:
            raise self._refusal(ResponseCode.SYSTEM_BUSY, str(error)) from None
        except StoreReadError as error:
            raise self._refusal(ResponseCode.SYSTEM_ERROR, f"execute error: {error}") from None
        return found

    def _is_dead(self, message: StoredMessage) -> bool:
        """Return whether a message has ended with its topic. A later topic with the name must not get it back."""
        topic = message.properties[PropertyName.REAL_TOPIC].encode()
        return self._store.is_dead(topic, message.physical_offset, message.stored_at_ms)

    def _put_deletion(
        self, channel: Channel, handle: RecallHandle, group: str | None, second: int, *, outcome: str | None = None
    ) -> int:
        """Append a deletion, and return its end in the log. Raises RefusalError, with `outcome`: it was not appended."""
        if not self._recalls.has_room(self._waiting.queue_offset):
            raise self._refusal(
                ResponseCode.SYSTEM_BUSY, f"{RECALLS_MAX} recalls wait, no more are taken at once", outcome=outcome
            )
        result = self._checked_put(self._deletion(handle, group, second, pack_host(channel.peer)), outcome=outcome)
        place = {"physical_offset": result.physical_offset, "queue_offset": result.queue_offset}
        self._recalls.add(second, _key(handle), **place)
        return result.next_offset

    def _checked_put(self, message: NewMessage, *, outcome: str | None = None) -> PutResult:
        result = message.put_into(self._store)
        if result.status is not PutStatus.OK:
            reason = f"execute error: {result.reason or result.status.value}"
            raise self._refusal(ResponseCode.SYSTEM_ERROR, reason, outcome=outcome)
        self._waiters.appended()
        return result

    def _deletion(self, handle: RecallHandle, group: str | None, second: int, born_host: bytes) -> NewMessage:
        now_ms = self._clock.now_ms()
        properties = {
            PropertyName.TIMER_DEL_UNIQKEY: _key(handle),
            PropertyName.UNIQ_KEY: handle.unique_key,
            PropertyName.TIMER_DELIVER_MS: str(handle.at_ms),
            PropertyName.TAGS: _RECALL_TAG,
            PropertyName.BORN_TIMESTAMP: str(now_ms),
        }
        if group:
            properties[PropertyName.PGROUP] = group
        # The hook would refuse a deletion in the last second, and one for a second for which many messages wait.
        properties[PropertyName.TIMER_OUT_MS] = str(second * SECOND_MS)
        properties[PropertyName.REAL_TOPIC] = handle.topic
        properties[PropertyName.REAL_QID] = "0"
        return NewMessage(TIMER_TOPIC, 0, _BODY, properties, born_at_ms=now_ms, born_host=born_host)

    def _answer(
        self,
        request: RemotingCommand,
        handle: RecallHandle,
        done: str,
        outcome: Outcome,
        *,
        recall_handle: str | None = None,
    ) -> RemotingCommand:
        if outcome is Outcome.NOT_WRITTEN:
            reason = "execute error: the record could not be written, whether it is stored is unknown"
            raise self._refusal(ResponseCode.SYSTEM_ERROR, reason, outcome=UNKNOWN)
        # Stored, but less safely: RocketMQ replies with success, too.
        answer = RecallMessageResponseHeader(
            msg_id=handle.unique_key,
            msg_region=self._identity.region_id,
            gantry_outcome=done if outcome is Outcome.DURABLE else UNKNOWN,
            recall_handle=recall_handle,
        )
        remark = f"recalled if it still waits; whether it does {_NEEDS_INDEX}" if done is UNKNOWN else None
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, answer, remark=remark)

    def _refusal(
        self, code: ResponseCode, reason: str, *, prefix: str = "recall failed, ", outcome: str | None = None
    ) -> RefusalError:
        more = {} if outcome is None else {"gantryOutcome": outcome}
        return RefusalError(code, prefix + reason, ext={"MSG_REGION": self._identity.region_id, **more})

    def _spend(self, work: Callable[..., _T], *args: Any) -> _T:
        self._turns.spend(0.1)
        return work(*args)


def _key(handle: RecallHandle) -> str:
    return deletion_key(handle.topic, handle.unique_key)


def _note(found: _Found, record: StoredMessage, handle: RecallHandle, second: int) -> None:
    """Note what a record with the unique key of a message says about it."""
    if record.properties[PropertyName.REAL_TOPIC] != handle.topic:
        return
    due = due_ms(record)
    assert due is not None, "checked by timer_message"
    deletes = record.properties.get(PropertyName.TIMER_DEL_UNIQKEY)
    if deletes is not None:
        if deletes == _key(handle):
            at = due // SECOND_MS
            found.recalled_at[at] = max(found.recalled_at.get(at, 0), deletion_order(record))
    elif (
        due // SECOND_MS == second
        and record.properties.get(PropertyName.UNIQ_KEY) == handle.unique_key
        and (found.message is None or _age(found.message) < _age(record))
    ):
        found.message = record


def _age(message: StoredMessage) -> tuple[int, int]:
    """Return a value that orders messages by their first records, and the records of one message by their age."""
    first = first_offset(message)
    return (message.physical_offset if first is None else first, message.physical_offset)


def _replace_key(window: DuplicateWindow, key: str, new: NewMessage, stored: PutResult, queue_id: int) -> None:
    """Let a message with another time have the key, as a start reads it from the log."""
    digest = window.digest(key)
    known = window.find(digest)
    if known is not None:
        window.table.remove(digest, known.physical_offset, known.delivery_second)
    second = delivery_second(new.topic, new.properties.get(PropertyName.TIMER_OUT_MS))
    note_special(window, digest, stored, queue_id, second)


def _moved(message: StoredMessage, deliver_at_ms: int, second: int) -> NewMessage:
    """Return a message that waits at a second for another time, under its own topic and queue."""
    properties = {name: value for name, value in message.properties.items() if not name.startswith(_TIMER_PREFIX)}
    topic, queue_id = properties.pop(PropertyName.REAL_TOPIC), int(properties.pop(PropertyName.REAL_QID))
    drop_requests(properties)
    properties.pop(PropertyName.CRC32, None)
    properties[PropertyName.TIMER_DELIVER_MS] = str(deliver_at_ms)
    properties[PropertyName.REPLACES_SECOND] = str(second)
    return copied(message, topic, queue_id, properties)
