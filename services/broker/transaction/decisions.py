"""Decisions of producers (request 37): a commit stores the message under its own topic, a rollback stores nothing.

The order of a commit: append the message, wait until it is durable, then hand the half message to the op writer. A
crash in between leaves the transaction open. The check asks the producer again, and its second answer stores the
message once more: a commit is repeated, never lost. The reply of a commit means that the message is durable. The reply
of a rollback means that its op message is.

Source: RocketMQ 5.3 EndTransactionProcessor (order of the checks, codes and remarks). Differences: the half message must
lie in the half topic; a transaction that is decided already is not decided again; a rollback waits for its op message
if the client waits for the reply; the real topic must still exist.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import NamedTuple

from gantry.model import sysflag
from gantry.model.address import pack_host
from gantry.model.message import CrcState, StoredMessage
from gantry.model.names import TRANS_HALF_TOPIC, is_retry_topic
from gantry.model.propertyname import PropertyName
from gantry.model.record import CRC_PROPERTY_BYTES, decode_head
from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.transaction import EndTransactionHeader
from gantry.remoting.replies import success_frame
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.broker.durabilitywaiters import DurabilityWaiters, Outcome
from services.broker.newmessage import SendHook
from services.broker.refusal import RefusalError
from services.broker.registry.topics import TopicTable
from services.broker.settings import LiveSettings
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutResult, PutStatus
from services.broker.transaction.decided import DecidedOffsets
from services.broker.transaction.judgement import immunity_ms
from services.broker.transaction.messages import TransactionKey, committed, real_queue, transaction_key
from services.broker.transaction.openhalves import OpenHalves
from services.broker.transaction.opwriter import OpWriter

log = logger("broker.transaction")

_DURABLE = Outcome.DURABLE
_DONE = frozenset({PropertyName.TRAN_MSG})

COMMIT, ROLLBACK = sysflag.TRANSACTION_COMMIT, sysflag.TRANSACTION_ROLLBACK

PENDING_MAX = 100_000
"""Limit of decided transactions whose op message is not durable. It is reached only if the store takes no messages."""

_ALREADY: Mapping[int, tuple[ResponseCode, str]] = {
    COMMIT: (ResponseCode.TRANSACTION_SHOULD_COMMIT, "the transaction is committed already"),
    ROLLBACK: (ResponseCode.TRANSACTION_SHOULD_ROLLBACK, "the transaction is rolled back already"),
}
_PUT_CODES: Mapping[PutStatus, ResponseCode] = {
    PutStatus.NOT_WRITABLE: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.CREATE_FILE_FAILED: ResponseCode.SERVICE_NOT_AVAILABLE,
    PutStatus.MESSAGE_ILLEGAL: ResponseCode.MESSAGE_ILLEGAL,
    PutStatus.PROPERTIES_SIZE_EXCEEDED: ResponseCode.MESSAGE_ILLEGAL,
}
# RocketMQ counts a message with FLUSH_TIMEOUT as committed. Here its transaction stays open: the op message could reach
# the disk, and the message before it could not.
_OUTCOMES: Mapping[Outcome, tuple[ResponseCode, str | None]] = {
    Outcome.DURABLE: (ResponseCode.SUCCESS, None),
    Outcome.REPLICATION_TIMEOUT: (ResponseCode.SUCCESS, None),
    Outcome.FLUSH_TIMEOUT: (ResponseCode.FLUSH_DISK_TIMEOUT, "whether the decision is on the disk is unknown"),
    Outcome.NOT_WRITTEN: (ResponseCode.SYSTEM_ERROR, "the decision could not be written"),
}


@dataclass(slots=True)
class DecisionCounts:
    """Numbers of decisions since the start."""

    committed: int = 0
    rolled_back: int = 0


class FoundHalf(NamedTuple):
    """A half message that a decision names.

    Attributes:
        message: The half message.
        properties: Its encoded properties, without the checksum over the whole record. A commit stores them again.
    """

    message: StoredMessage
    properties: bytes


class Decisions:
    """Carries out the decisions of producers.

    Args:
        decided: Half messages that op messages name.
        ops: Writer of op messages.
        halves: Newest copies and decisions.
        store: Store with the half messages.
        waiters: Waiters for the durability of committed messages.
        topics: Topics, to refuse a commit to one that is deleted.
        hooks: Send hooks of the features; a committed message with a delay passes them.
        special_properties: Names of the properties for which a committed message passes the hooks.
        clock: Wall clock, for the immunity time.
        live_settings: Limits.
    """

    def __init__(
        self,
        decided: DecidedOffsets,
        ops: OpWriter,
        halves: OpenHalves,
        *,
        store: MessageStore,
        waiters: DurabilityWaiters,
        topics: TopicTable,
        hooks: Sequence[SendHook],
        special_properties: AbstractSet[str],
        clock: Clock,
        live_settings: LiveSettings,
    ) -> None:
        self.counts = DecisionCounts()
        self._store = store
        self._waiters = waiters
        self._topics = topics
        self._hooks = hooks
        self._special = special_properties
        self._decided = decided
        self._ops = ops
        self._halves = halves
        self._clock = clock
        self._live_settings = live_settings

    def find_half(self, physical_offset: int) -> FoundHalf | None:
        """Return the half message at an offset of the log, or None if there is none.

        Raises:
            NotInMemoryError: It must be read from the disk, and the pages are guarded.
        """
        found = self._store.headed_record_at(physical_offset) if physical_offset >= 0 else None
        if found is None:
            return None
        record, head = found
        message = decode_head(record, 0, head, CrcState.UNCHECKED)
        if message.topic != TRANS_HALF_TOPIC:
            return None
        return FoundHalf(message, head.properties[:-CRC_PROPERTY_BYTES] if head.has_record_crc else head.properties)

    def decide(
        self, channel: Channel, request: RemotingCommand, header: EndTransactionHeader, found: FoundHalf | None
    ) -> None:
        """Carry out one decision, and reply when it is durable.

        Raises:
            RefusalError: The decision is not accepted; nothing was stored.
        """
        half = None if found is None else found.message
        self._check(header, half)
        assert found is not None, "a missing half message is refused"
        assert half is not None, "a missing half message is refused"
        key = transaction_key(half)
        newest = self._halves.newest(key, half.queue_offset)
        earlier = self._halves.decision(key)
        if earlier is not None:
            if earlier != header.commit_or_rollback:
                raise RefusalError(*_ALREADY[earlier])
            channel.reply_frame(request, success_frame(request))
            return
        # A pending half message without a decision was given up just now. A late commit of it is still delivered.
        if newest in self._halves.deciding:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, "the transaction is being decided")
        if newest in self._decided:
            raise RefusalError(
                ResponseCode.TRANSACTION_STATE_UNKNOWN,
                "the transaction is decided already, before the last start of the broker; it is unknown how",
            )
        if len(self._ops.pending) >= PENDING_MAX:
            raise RefusalError(ResponseCode.SYSTEM_BUSY, f"{PENDING_MAX} decisions wait for the disk")
        offsets = (newest,) if newest == half.queue_offset else (half.queue_offset, newest)
        reply = _replier(channel, request)
        if header.commit_or_rollback == COMMIT:
            self._commit(found, key, offsets, reply)
        else:
            self.counts.rolled_back += 1
            self._halves.ended(key, ROLLBACK)
            self._ops.add(offsets, None if request.is_one_way else reply)

    def _check(self, header: EndTransactionHeader, half: StoredMessage | None) -> None:
        """Refuse a decision that does not fit its half message. The order of the checks is RocketMQ's."""
        if half is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        immunity = half.properties.get(PropertyName.CHECK_IMMUNITY_TIME)
        if immunity and not header.from_transaction_check:
            age_ms = self._clock.now_ms() - half.born_at_ms
            if age_ms > immunity_ms(immunity, self._live_settings.current.transaction_time_out):
                raise RefusalError(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the immunity time of {immunity[:32]} s is over: wait for the check",
                )
        if half.properties.get(PropertyName.PGROUP) != header.producer_group:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        assert half.physical_offset == header.commit_log_offset, "the record was found by this offset"

    def _commit(
        self,
        half: FoundHalf,
        key: TransactionKey,
        offsets: tuple[int, ...],
        reply: Callable[[Outcome], None],
    ) -> None:
        topic, queue_id = self._target(half.message)
        result = self._put(half.message, half.properties, topic, queue_id)
        if result.status is not PutStatus.OK:
            raise RefusalError(
                _PUT_CODES[result.status], f"the message was not stored: {result.reason or result.status.value}"
            )
        self._halves.deciding.update(offsets)
        self._waiters.wait(result.next_offset, self._committed, key, offsets, reply)

    def _target(self, half: StoredMessage) -> tuple[str, int]:
        """Return topic and queue of the message that a commit stores. Raises RefusalError."""
        queue = real_queue(half)
        if queue is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "the half message does not name its topic and queue")
        topic, queue_id = queue
        config = self._topics.find(topic)
        if config is None or self._topics.is_closed(topic):
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if queue_id >= max(config.read_queue_nums, config.write_queue_nums):
            # The topic was made smaller, and no consumer would read this queue.
            queue_id %= max(config.write_queue_nums, 1)
        return topic, queue_id

    def _put(self, half: StoredMessage, encoded: bytes, topic: str, queue_id: int) -> PutResult:
        """Store a committed message. Without work for the hooks, its properties need not be encoded again."""
        properties = half.properties
        # The hooks have nothing to do with TRAN_MSG any more.
        if (self._special & properties.keys()) - _DONE or (half.reconsume_times and is_retry_topic(topic)):
            message = committed(half, topic, queue_id, half_physical_offset=half.physical_offset)
            for hook in self._hooks:
                hook(message)
            return message.put_into(self._store)
        return self._store.put(
            topic,
            queue_id,
            half.body,
            encoded,
            tag=properties.get(PropertyName.TAGS, ""),
            keys=properties.get(PropertyName.KEYS, ""),
            unique_key=properties.get(PropertyName.UNIQ_KEY, ""),
            born_at_ms=half.born_at_ms,
            born_host=pack_host(half.born_host),
            flag=half.flag,
            sys_flag=half.sys_flag & ~sysflag.TRANSACTION_MASK | COMMIT,
            reconsume_times=half.reconsume_times,
            prepared_transaction_offset=half.physical_offset,
        )

    def _committed(
        self, outcome: Outcome, key: TransactionKey, offsets: tuple[int, ...], reply: Callable[[Outcome], None]
    ) -> None:
        self._halves.deciding.difference_update(offsets)
        if outcome in (Outcome.DURABLE, Outcome.REPLICATION_TIMEOUT):
            self.counts.committed += 1
            self._halves.ended(key, COMMIT)
            self._ops.add(offsets)
        reply(outcome)


def _replier(channel: Channel, request: RemotingCommand) -> Callable[[Outcome], None]:
    def reply(outcome: Outcome) -> None:
        if outcome is _DURABLE:
            channel.reply_frame(request, success_frame(request))
            return
        code, remark = _OUTCOMES[outcome]
        channel.reply(request, RemotingCommand.response_to(request, code, remark=remark))

    return reply
