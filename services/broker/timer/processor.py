"""Requests about messages for a set time: 60 check point, 61 metrics, 370 recall, 900010 list.

A recall stores a message that waits for the same second as the recalled one, and suppresses it when the second fires.

Source: RocketMQ 5.3 RecallMessageProcessor; remarks and codes are its.
"""

from collections.abc import Mapping
from typing import Final

from gantry.model.address import pack_host
from gantry.model.errors import InvalidIdError
from gantry.model.propertyname import PropertyName
from gantry.model.recallhandle import RecallHandle, decode_recall_handle
from gantry.remoting.aio.channel import Channel, Handler
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.timer import (
    WAITING_MAX,
    RecallMessageHeader,
    RecallMessageResponseHeader,
    WaitingMessagesHeader,
)
from gantry.runtime.clock import Clock
from gantry.runtime.errors import describe_os_error
from gantry.storeformat.timerfiles import SECOND_MS, encode_timer_check
from services.broker.coldreader import ColdReadsBusyError
from services.broker.duplicates.window import DuplicateWindows
from services.broker.durabilitywaiters import DurabilityWaiters, NotDurableError, Outcome
from services.broker.identity import BrokerIdentity
from services.broker.newmessage import NewMessage, SendHook
from services.broker.processors.table import replying_to_refusals
from services.broker.refusal import RefusalError
from services.broker.registry.topics import TopicTable
from services.broker.settings import BrokerSettings, LiveSettings
from services.broker.store.errors import StoreReadError
from services.broker.store.messagestore import MessageStore
from services.broker.timer.counts import TopicCounts
from services.broker.timer.delivery import deletion_key
from services.broker.timer.listing import Listing
from services.broker.timer.waiting import Waiting

_RECALL_TAG: Final = "_RECALL_TAG_"
_BODY: Final = b"0"
_READ_WAIT_S: Final = 1.0


class TimerProcessor:
    """Answers requests about messages for a set time."""

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        waiting: Waiting,
        counts: TopicCounts,
        listing: Listing,
        hook: SendHook,
        topics: TopicTable,
        identity: BrokerIdentity,
        live_settings: LiveSettings,
        store: MessageStore,
        waiters: DurabilityWaiters,
        windows: DuplicateWindows,
        clock: Clock,
    ) -> None:
        self._is_recall_enabled = settings.recall_message_enable
        self._delay_max_ms = settings.timer_max_delay_sec * SECOND_MS
        self._waiting = waiting
        self._counts = counts
        self._listing = listing
        self._hook = hook
        self._topics = topics
        self._identity = identity
        self._live_settings = live_settings
        self._store = store
        self._waiters = waiters
        self._windows = windows
        self._clock = clock

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code."""
        code = RequestCode
        return replying_to_refusals(
            {
                code.GET_TIMER_CHECK_POINT: self.check_point,
                code.GET_TIMER_METRICS: self.metrics,
                code.RECALL_MESSAGE: self.recall,
                code.GANTRY_WAITING_MESSAGES: self.list,
            }
        )

    def check_point(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """60: return the last check point."""
        check = self._waiting.check if self._waiting.check.read_ms else self._waiting.next_check()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=encode_timer_check(check))

    def metrics(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """61: return the number of waiting messages by topic."""
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=self._counts.encode())

    async def recall(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """370: recall a message."""
        header = RecallMessageHeader.from_ext(request.ext_fields)
        handle = self._checked_handle(header)
        message = self._deletion(handle, header, pack_host(channel.peer))
        try:
            self._hook(message)
        except RefusalError:
            raise self._refusal(ResponseCode.SYSTEM_ERROR, "execute error") from None
        try:
            stored = await self._waiters.append(lambda: message.put_into(self._store))
            if self._windows.find(handle.topic) is not None:
                # Then the recall is certain, and its key is free when the answer arrives.
                await self._waiting.reads.wait(stored.queue_offset, _READ_WAIT_S)
        except NotDurableError as error:
            # Stored, but less safely: RocketMQ replies with success, too.
            if error.outcome not in (Outcome.FLUSH_TIMEOUT, Outcome.REPLICATION_TIMEOUT):
                raise self._refusal(ResponseCode.SYSTEM_ERROR, f"execute error: {error}") from None
        answer = RecallMessageResponseHeader(msg_id=handle.unique_key, msg_region=self._identity.region_id)
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, answer)

    async def list(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900010: return a page of the messages that wait."""
        header = WaitingMessagesHeader.from_ext(request.ext_fields)
        count = WAITING_MAX if header.max_messages is None else header.max_messages
        if not 1 <= count <= WAITING_MAX:
            raise RefusalError(
                ResponseCode.INVALID_PARAMETER, f"maxMessages={count}: is not within 1 and {WAITING_MAX}"
            )
        if header.topic is not None and self._topics.find(header.topic) is None:
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic}] not exist")
        try:
            page = await self._listing.page(header.second, header.position, topic=header.topic, messages_max=count)
        except ColdReadsBusyError as error:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, str(error)) from None
        except StoreReadError as error:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, str(error)) from None
        except OSError as error:
            reason = f"a file of the timer can't be read: {describe_os_error(error)}"
            raise RefusalError(ResponseCode.SYSTEM_ERROR, reason) from None
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=page.encode())

    def _checked_handle(self, header: RecallMessageHeader) -> RecallHandle:
        code, now_ms = ResponseCode, self._clock.now_ms()
        if not self._is_recall_enabled:
            raise self._refusal(code.NO_PERMISSION, "operation is forbidden")
        if now_ms < self._live_settings.current.start_accept_send_request_time_stamp:
            raise self._refusal(code.SERVICE_NOT_AVAILABLE, "broker service not available")
        if self._topics.find(header.topic) is None:
            raise self._refusal(code.TOPIC_NOT_EXIST, f"the topic[{header.topic}] not exist")
        try:
            handle = decode_recall_handle(header.recall_handle)
        except InvalidIdError as error:
            raise self._refusal(code.ILLEGAL_OPERATION, f"recall handle is invalid: {error}", prefix="") from None
        if handle.topic != header.topic:
            raise self._refusal(code.ILLEGAL_OPERATION, "topic not match")
        if handle.broker_name != self._identity.name:
            raise self._refusal(code.ILLEGAL_OPERATION, "broker service not available")
        if not 0 < handle.at_ms - now_ms < self._delay_max_ms:
            raise self._refusal(code.ILLEGAL_OPERATION, "timestamp invalid")
        return handle

    def _deletion(self, handle: RecallHandle, header: RecallMessageHeader, born_host: bytes) -> NewMessage:
        now_ms = self._clock.now_ms()
        properties = {
            PropertyName.TIMER_DEL_UNIQKEY: deletion_key(handle.topic, handle.unique_key),
            PropertyName.UNIQ_KEY: handle.unique_key,
            PropertyName.TIMER_DELIVER_MS: str(handle.at_ms),
            PropertyName.TAGS: _RECALL_TAG,
            PropertyName.BORN_TIMESTAMP: str(now_ms),
        }
        if header.producer_group:
            properties[PropertyName.PGROUP] = header.producer_group
        return NewMessage(handle.topic, 0, _BODY, properties, born_at_ms=now_ms, born_host=born_host)

    def _refusal(self, code: ResponseCode, reason: str, *, prefix: str = "recall failed, ") -> RefusalError:
        return RefusalError(code, prefix + reason, ext={"MSG_REGION": self._identity.region_id})
