"""Send requests: 10, 310 and 320.

Durability: see durabilitywaiters.py. With SYNC_FLUSH, a reply with code 0 means that the message survives a power failure.
The exception is a message with WAIT=false, whose producer does not want to wait for the disk.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from gantry.model.address import pack_host
from gantry.model.propertyname import PropertyName
from gantry.model.sysflag import TRANSACTION_MASK
from gantry.remoting.aio.channel import Channel, Handler, Reply
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers import SendMessageHeader, SendMessageHeaderV2
from gantry.remoting.headers.fields import Header
from gantry.remoting.headers.send import read_send_header
from gantry.remoting.headers.transaction import EndTransactionHeader
from gantry.remoting.replies import SendReplies
from services.broker.assembly import Broker
from services.broker.duplicates.keyed import counts, delivery_second
from services.broker.duplicates.keytable import Place
from services.broker.durabilitywaiters import DurabilityWaiters
from services.broker.identity import BrokerIdentity
from services.broker.newmessage import NewMessage, SendHook, TopicNeededError
from services.broker.processors.heldreplies import HeldReplies, HeldReply
from services.broker.processors.sendgate import SendChecks, Target
from services.broker.processors.sendonce import BatchPlan, Replays, note_special, replaces
from services.broker.processors.sendparts import (
    BORN_HOST,
    bad_body,
    batch_items,
    put_refusal,
    send_checks,
    send_properties,
    stored_ids,
)
from services.broker.processors.sendproperties import Completed, SendProperties
from services.broker.processors.unsupported import TRANSACTION_OR_INNER_BATCH, refuse_sys_flag
from services.broker.refusal import RefusalError
from services.broker.registry.senders import SenderTable
from services.broker.settings import LiveSettings
from services.broker.stats import BrokerStats, Flow
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus

CREATING_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest size of the bodies of sends that wait for their topics to be saved.

A healthy disk saves a topic in milliseconds.
"""

TYPED_HEADERS: Final[Mapping[int, type[Header]]] = {
    RequestCode.SEND_MESSAGE: SendMessageHeader,
    RequestCode.SEND_MESSAGE_V2: SendMessageHeaderV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageHeaderV2,
    RequestCode.END_TRANSACTION: EndTransactionHeader,
}
"""The headers that the server decodes together with the frame."""

_ONE_WAY = 2
# Members of enums by names of this module: Python 3.11 calls a function for each access to a member by its class.
_OK = PutStatus.OK
_Make = Callable[[], Awaitable[None]]
_Append = Callable[[Channel, RemotingCommand, SendMessageHeader, Target], Reply]


class SendProcessor:
    """Answers sends.

    Attributes:
        send: Handler of 10 and 310: one message.
        send_batch: Handler of 320: several messages of one topic, all to one queue, all or none.

    Concurrency: the loop's thread. The handlers are plain functions, because a task costs more than a message.
    """

    def __init__(
        self,
        *,
        gate: SendChecks,
        properties: SendProperties,
        waiters: DurabilityWaiters,
        store: MessageStore,
        stats: BrokerStats,
        live_settings: LiveSettings,
        identity: BrokerIdentity,
        hooks: Sequence[SendHook],
        senders: SenderTable,
    ) -> None:
        self._gate = gate
        self._properties = properties
        self._waiters = waiters
        self._store = store
        self._stats = stats
        self._live_settings = live_settings
        # A stored message id consists of the store's address and the record's position (gantry.model.messageid).
        self._id_prefix = pack_host(identity.store_host).hex().upper()
        self._refusal_ext = {"MSG_REGION": identity.region_id, "TRACE_ON": "true" if identity.trace_on else "false"}
        self._hooks = hooks
        self._senders = senders
        replies = SendReplies(region_id=identity.region_id, trace_on=identity.trace_on)
        self._reply = HeldReplies(replies).complete
        self._replays = Replays(waiters, store, replies, id_prefix=self._id_prefix, broker_name=identity.name)
        self._creating_bytes = 0
        self.send = partial(self._guard, self._append)
        self.send_batch = partial(self._guard, self._append_batch)

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each request code.

        The handlers make the replies for refusals themselves, because these replies have more fields.
        """
        return {
            RequestCode.SEND_MESSAGE: self.send,
            RequestCode.SEND_MESSAGE_V2: self.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send_batch,
        }

    def _guard(self, append: _Append, channel: Channel, request: RemotingCommand) -> Any:
        refusal = self._waiters.admit()
        if refusal is not None:
            return self._refused(request, RefusalError(ResponseCode.SYSTEM_BUSY, refusal))
        header: SendMessageHeader = request.header or read_send_header(request.code, request.ext_fields)
        try:
            target = self._gate.find(header)
            if target is None:
                make = partial(self._gate.create, header)
                return self._create_first(channel, request, header, append, make)
            if target.window is not None and not target.window.ready.is_set():
                return self._create_first(channel, request, header, append, target.window.wait_ready)
            return append(channel, request, header, target)
        except TopicNeededError as error:
            return self._create_first(channel, request, header, append, error.make)
        except RefusalError as error:
            return self._refused(request, error)

    async def _create_first(
        self, channel: Channel, request: RemotingCommand, header: SendMessageHeader, append: _Append, make: _Make
    ) -> Reply:
        """Create a topic with `make`, then continue as with known topics. Only such sends need a task."""
        size = len(request.body or b"")
        if self._creating_bytes + size > CREATING_BYTES_MAX:
            remark = (
                f"[OVERLOAD]system busy, start flow control for a while: {self._creating_bytes} bytes wait for their "
                f"topics to be saved, the limit is {CREATING_BYTES_MAX}"
            )
            return self._refused(request, RefusalError(ResponseCode.SYSTEM_BUSY, remark))
        self._creating_bytes += size
        try:
            await make()
        except RefusalError as error:
            return self._refused(request, error)
        finally:
            self._creating_bytes -= size
            assert self._creating_bytes >= 0, f"{self._creating_bytes} bytes wait for their topics"
        return self._send_again(channel, request, header, append)

    def _send_again(
        self, channel: Channel, request: RemotingCommand, header: SendMessageHeader, append: _Append
    ) -> Reply:
        refusal = self._waiters.admit()
        try:
            target = None if refusal is not None else self._gate.find(header)
            if target is not None:
                return append(channel, request, header, target)
        except TopicNeededError as error:
            refusal = str(error)  # One more topic is missing: the producer tries again, and then it is created.
        except RefusalError as error:
            return self._refused(request, error)
        remark = refusal or f"topic {header.topic} was deleted while it was being made"
        return self._refused(request, RefusalError(ResponseCode.SYSTEM_BUSY, remark))

    def _append(self, channel: Channel, request: RemotingCommand, header: SendMessageHeader, target: Target) -> Reply:
        sys_flag, queue_id = header.sys_flag, header.queue_id
        if sys_flag & TRANSACTION_OR_INNER_BATCH:
            refuse_sys_flag(sys_flag, header.properties)
        if not 0 <= queue_id < target.queue_ids_max:
            queue_id = self._gate.queue_id(channel, header, target)
        body = request.body
        if not isinstance(body, bytes) or len(body) > self._live_settings.current.max_message_size:
            raise bad_body(body, self._live_settings.current.max_message_size)
        completed = self._properties.complete(header.properties)
        stored, waits_for_flush, special, quick = completed
        properties, tag, keys, unique_key = stored
        topic, stored_queue_id, note, delay_ms, flow = header.topic, queue_id, None, None, target.flow
        window, table, digest = target.window, None, b""
        if window is not None and special is None and quick is None:
            table, digest = window.table, window.digest(unique_key)
            known = window.find(digest)
            if known is not None:
                return self._replays.single(channel, request, header, window, known, unique_key, waits_for_flush)
        elif special is not None or quick is not None or (target.is_retry and header.reconsume_times):
            place = None
            if quick is not None and window is None and not target.is_retry:
                place = quick[0](topic, queue_id, quick[1], header.properties or "", unique_key)
            if place is None:
                return self._append_unusual(channel, request, header, target, queue_id=queue_id, completed=completed)
            topic, stored_queue_id, more, note, delay_ms = place
            properties += more
            sys_flag, flow = sys_flag & ~TRANSACTION_MASK, self._gate.flow(topic)
        born_host = channel.attributes[BORN_HOST]
        status, at, queue_offset, stored_at_ms, end, reason = self._store.put(
            topic,
            stored_queue_id,
            body,
            properties,
            born_at_ms=header.born_timestamp,
            born_host=born_host,
            tag=tag,
            keys=keys,
            unique_key=unique_key,
            flag=header.flag,
            sys_flag=sys_flag | target.sys_flag,
            reconsume_times=header.reconsume_times or 0,
            delay_ms=delay_ms,
        )
        if status is not _OK:
            raise self._put_failed(status, reason, header.topic)
        if table is not None:
            table.add(digest, at, queue_id, queue_offset, stored_at_ms)
        elif note is not None:
            stored, sys_flag = (properties, tag, keys, unique_key), sys_flag | target.sys_flag
            note(header, queue_id, body, stored, born_host, sys_flag, at, queue_offset)
        flow.messages += 1
        flow.calls += 1
        flow.size_bytes += end - at
        sender = target.senders.get(channel)
        if sender is None or sender.group != header.producer_group:
            sender = self._senders.sender(header.topic, channel, header.producer_group, request)
        sender.sent_at_ms = stored_at_ms
        if request.flag & _ONE_WAY:
            self._waiters.appended()
            return None
        request.drop_content()
        reply = (channel, request, "%s%016X" % (self._id_prefix, at), queue_id, queue_offset, unique_key, None)  # noqa: UP031
        self._waiters.wait_with(end, self._reply, reply, waits_for_flush)
        return None

    def _append_unusual(
        self,
        channel: Channel,
        request: RemotingCommand,
        header: SendMessageHeader,
        target: Target,
        *,
        queue_id: int,
        completed: Completed,
    ) -> Reply:
        """Append a message that has a special property, or that is a retry.

        `_append` has checked it.
        """
        window, digest, known = target.window, None, None
        if completed[3] is not None:
            completed = self._properties.complete_decoded(header.properties or "")
        (*_, unique_key), waits_for_flush, special, _ = completed
        if special is None:
            special = self._properties.decode(header.properties)
            special[PropertyName.UNIQ_KEY] = unique_key  # A key that the broker makes is another one at each call.
        if window is not None and counts(special):
            digest = window.digest(unique_key)
            if (known := window.find(digest)) is not None and not replaces(special, known):
                return self._replays.single(channel, request, header, window, known, unique_key, waits_for_flush)
        message = NewMessage(
            header.topic,
            queue_id,
            request.body_bytes,
            special,
            born_at_ms=header.born_timestamp,
            born_host=channel.attributes[BORN_HOST],
            flag=header.flag,
            sys_flag=header.sys_flag | target.sys_flag,
            reconsume_times=header.reconsume_times or 0,
            max_reconsume_times=header.max_reconsume_times,
        )
        stored_at_ms = self._append_special(channel, request, target, message, (digest, known))
        self._senders.note(header.topic, channel, header.producer_group, request, stored_at_ms)
        return None

    def _append_special(
        self,
        channel: Channel,
        request: RemotingCommand,
        target: Target,
        message: NewMessage,
        key: tuple[bytes | None, Place | None],
    ) -> int:
        """Let the send hooks decide where a special message is stored, store it there, and return its store time.

        `key` is the digest of its key, if the topic's duplicate window adds it, and the place of a message that it replaces.
        """
        digest, replaced = key
        topic, queue_id, unique_key = message.topic, message.queue_id, message.properties[PropertyName.UNIQ_KEY]
        waits_for_flush = message.properties.get(PropertyName.WAIT) != "false"
        for hook in self._hooks:
            hook(message)
        result = message.put_into(self._store)
        if result.status is not _OK:
            raise self._put_failed(result.status, result.reason, topic)
        if digest is not None and target.window is not None:
            second = delivery_second(message.topic, message.properties.get(PropertyName.TIMER_OUT_MS))
            if replaced is not None:
                target.window.table.remove(digest, replaced.physical_offset, replaced.delivery_second)
            note_special(target.window, digest, result, queue_id, second)
        # A message that was diverted counts for its topic when the feature delivers it there.
        flow = target.flow if message.topic == topic else self._gate.flow(message.topic)
        at, offset = result.physical_offset, result.queue_offset
        stored_id = f"{self._id_prefix}{at:016X}"
        reply = (channel, request, stored_id, queue_id, offset, unique_key, message.recall_handle)
        self._hold(reply, flow, at, result.next_offset, waits_for_flush=waits_for_flush)
        return result.stored_at_ms

    def _hold(self, reply: HeldReply, flow: Flow, start: int, end: int, *, waits_for_flush: bool) -> None:
        """Count a message that was appended from `start` to `end`, and let its reply wait. `_append` does it inline."""
        flow.messages += 1
        flow.calls += 1
        flow.size_bytes += end - start
        request = reply[1]
        if request.is_one_way:
            self._waiters.appended()
            return
        request.drop_content()
        self._waiters.wait_with(end, self._reply, reply, waits_for_flush)

    def _append_batch(
        self, channel: Channel, request: RemotingCommand, header: SendMessageHeader, target: Target
    ) -> Reply:
        refuse_sys_flag(header.sys_flag)
        if target.is_retry:
            raise RefusalError(
                ResponseCode.MESSAGE_ILLEGAL, f"topic {header.topic}: a batch may not go to a retry topic"
            )
        queue_id = self._gate.queue_id(channel, header, target)
        shared, batch_key, waits_for_flush = self._properties.shared_by_batch(header.properties)
        items = batch_items(request, self._live_settings.current.max_message_size, shared, self._properties)
        unique_key = batch_key or items[0][-1] or ""
        plan = None if target.window is None else BatchPlan(target.window, items)
        if plan is not None and plan.has_duplicates:
            items = [items[index] for index in plan.new]
            if not items:
                places = plan.places(queue_id, None)
                return self._replays.batch(channel, request, places, unique_key, waits_for_flush=waits_for_flush)
        result = self._store.put_batch(
            header.topic,
            queue_id,
            items,
            born_at_ms=header.born_timestamp,
            born_host=channel.attributes[BORN_HOST],
            sys_flag=header.sys_flag | target.sys_flag,
            reconsume_times=header.reconsume_times or 0,
        )
        if result.status is not _OK:
            raise self._put_failed(result.status, result.reason, header.topic)
        flow = target.flow
        flow.messages += len(items)
        flow.calls += 1
        flow.size_bytes += result.next_offset - result.physical_offsets[0]
        assert len(result.physical_offsets) == len(items), "all messages of a batch are stored"
        self._senders.note(header.topic, channel, header.producer_group, request, result.stored_at_ms)
        if plan is not None:
            plan.add(queue_id, result)
            if plan.has_duplicates:
                places = plan.places(queue_id, result)
                return self._replays.batch(channel, request, places, unique_key, waits_for_flush=waits_for_flush)
        if request.is_one_way:
            self._waiters.appended()
            return None
        message_ids = stored_ids(self._id_prefix, result.physical_offsets)
        request.drop_content()
        reply = (channel, request, message_ids, queue_id, result.queue_offset, unique_key, None)
        self._waiters.wait_with(result.next_offset, self._reply, reply, waits_for_flush)
        return None

    def _put_failed(self, status: PutStatus, reason: str, topic: str) -> RefusalError:
        self._stats.put_failed += 1
        return put_refusal(status, reason, topic)

    def _refused(self, request: RemotingCommand, error: RefusalError) -> RemotingCommand:
        return RemotingCommand.response_to(request, error.code, remark=error.remark, ext=dict(self._refusal_ext))


def build(broker: Broker) -> SendProcessor:
    """Build the processor from the broker's parts."""
    core = broker.core
    return SendProcessor(
        gate=send_checks(broker),
        properties=send_properties(broker),
        waiters=core.waiters,
        store=broker.store,
        stats=broker.stats,
        live_settings=core.live_settings,
        identity=broker.identity,
        hooks=broker.send_hooks,
        senders=broker.tables.senders,
    )
