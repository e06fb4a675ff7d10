"""Decisions of producers (request 37): a commit stores the message under its own topic, a rollback stores nothing.

The order of a commit: append the message, wait until it is durable, then hand the half message to the op writer. A
crash in between leaves the transaction open. The check asks the producer again, and its second answer stores the
message once more: a commit is repeated, never lost. The reply of a commit means that the message is durable. The reply
of a rollback means that its op message is.

Source: RocketMQ 5.3 EndTransactionProcessor (order of the checks, codes and remarks). Differences: the half message must
lie in the half topic; a transaction that is decided already is not decided again; a rollback waits for its op message
if the client waits for the reply; the real topic must still exist.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

from gantry.model import sysflag
from gantry.model.names import is_retry_topic
from gantry.model.propertyname import PropertyName
from gantry.remoting.aio.channel import Channel
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.remoting.headers.transaction import EndTransactionHeader
from gantry.remoting.replies import success_frame
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.broker.duplicates.keytable import HALF_SECOND
from services.broker.duplicates.window import DuplicateWindows
from services.broker.durabilitywaiters import DurabilityWaiters, Outcome
from services.broker.newmessage import SendHook
from services.broker.refusal import RefusalError
from services.broker.registry.topics import TopicTable
from services.broker.settings import LiveSettings
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutResult, PutStatus
from services.broker.transaction.decided import DecidedOffsets
from services.broker.transaction.foundhalf import FoundHalf, decode_half
from services.broker.transaction.judgement import immunity_ms
from services.broker.transaction.messages import TransactionKey, committed
from services.broker.transaction.openhalves import OpenHalves
from services.broker.transaction.opwriter import OpWriter

log = logger("broker.transaction")

# Members of enums by names of this module: Python 3.11 calls a function for each access to a member by its class.
_DURABLE = Outcome.DURABLE
_REPLICATION_TIMEOUT = Outcome.REPLICATION_TIMEOUT
_OK = PutStatus.OK
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
        windows: The duplicate windows, in which a rollback frees the key of its message.
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
        windows: DuplicateWindows,
    ) -> None:
        self.counts = DecisionCounts()
        self._store = store
        self._waiters = waiters
        self._topics = topics
        self._hooks = hooks
        self._special = special_properties
        self._windows = windows
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
        return None if found is None else decode_half(*found)

    def decide(
        self, channel: Channel, request: RemotingCommand, header: EndTransactionHeader, half: FoundHalf | None
    ) -> None:
        """Carry out one decision, and reply when it is durable.

        Raises:
            RefusalError: The decision is not accepted; nothing was stored.
        """
        self._check(header, half)
        assert half is not None, "a missing half message is refused"
        key, offset = half.key, half.queue_offset
        newest = self._halves.newest(key, offset)
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
        offsets = (newest,) if newest == offset else (offset, newest)
        if header.commit_or_rollback == COMMIT:
            self._commit(half, offsets, channel, request)
        else:
            self.counts.rolled_back += 1
            self._halves.ended(key, ROLLBACK)
            done = partial(self._rolled_back, half, channel, request)
            self._ops.add(offsets, done, is_urgent=not request.is_one_way)

    def _rolled_back(self, half: FoundHalf, channel: Channel, request: RemotingCommand, outcome: Outcome) -> None:
        """Free the key of a message that is never delivered, and reply."""
        if outcome is _DURABLE or outcome is _REPLICATION_TIMEOUT:
            window = None if half.queue is None else self._windows.find(half.queue[0])
            if window is not None:
                window.free(half.key[0], half.physical_offset, HALF_SECOND)
        _reply(outcome, channel=channel, request=request)

    def _check(self, header: EndTransactionHeader, half: FoundHalf | None) -> None:
        """Refuse a decision that does not fit its half message. The order of the checks is RocketMQ's."""
        if half is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed")
        immunity = half.immunity
        if immunity and not header.from_transaction_check:
            age_ms = self._clock.now_ms() - half.key[1]
            if age_ms > immunity_ms(immunity, self._live_settings.current.transaction_time_out):
                raise RefusalError(
                    ResponseCode.ILLEGAL_OPERATION,
                    f"the immunity time of {immunity[:32]} s is over: wait for the check",
                )
        if half.group != header.producer_group:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "The producer group wrong")
        if half.queue_offset != header.tran_state_table_offset:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
        assert half.physical_offset == header.commit_log_offset, "the record was found by this offset"

    def _commit(self, half: FoundHalf, offsets: tuple[int, ...], channel: Channel, request: RemotingCommand) -> None:
        topic, queue_id = self._target(half)
        result = self._put(half, topic, queue_id)
        if result.status is not _OK:
            raise RefusalError(
                _PUT_CODES[result.status], f"the message was not stored: {result.reason or result.status.value}"
            )
        self._halves.deciding.update(offsets)
        self._waiters.wait_with(result.next_offset, self._committed, (half.key, offsets, channel, request))

    def _target(self, half: FoundHalf) -> tuple[str, int]:
        """Return topic and queue of the message that a commit stores. Raises RefusalError."""
        if half.queue is None:
            raise RefusalError(ResponseCode.SYSTEM_ERROR, "the half message does not name its topic and queue")
        topic, queue_id = half.queue
        config = self._topics.find(topic)
        if config is None or self._topics.is_closed(topic):
            raise RefusalError(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist")
        if queue_id >= config.read_queue_nums and queue_id >= config.write_queue_nums:
            # The topic was made smaller, and no consumer would read this queue.
            queue_id %= max(config.write_queue_nums, 1)
        return topic, queue_id

    def _put(self, half: FoundHalf, topic: str, queue_id: int) -> PutResult:
        """Store a committed message. Without work for the hooks, its properties need not be encoded again."""
        message = half.message
        # The hooks have nothing to do with TRAN_MSG any more.
        if message is not None and (
            (self._special & message.properties.keys()) - _DONE or (half.reconsume_times and is_retry_topic(topic))
        ):
            new = committed(message, topic, queue_id, half_physical_offset=half.physical_offset)
            for hook in self._hooks:
                hook(new)
            return new.put_into(self._store)
        unique_key, born_at_ms, _, _ = half.key
        return self._store.put(
            topic,
            queue_id,
            half.body,
            half.properties,
            tag=half.tag,
            keys=half.keys,
            unique_key=unique_key,
            born_at_ms=born_at_ms,
            born_host=half.born_host,
            flag=half.flag,
            sys_flag=half.sys_flag & ~sysflag.TRANSACTION_MASK | COMMIT,
            reconsume_times=half.reconsume_times,
            prepared_transaction_offset=half.physical_offset,
        )

    def _committed(
        self, outcome: Outcome, commit: tuple[TransactionKey, tuple[int, ...], Channel, RemotingCommand]
    ) -> None:
        key, offsets, channel, request = commit
        self._halves.deciding.difference_update(offsets)
        if outcome is _DURABLE or outcome is _REPLICATION_TIMEOUT:
            self.counts.committed += 1
            self._halves.ended(key, COMMIT)
            self._ops.add(offsets)
        _reply(outcome, channel, request)


def _reply(outcome: Outcome, channel: Channel, request: RemotingCommand) -> None:
    if outcome is _DURABLE:
        channel.reply_frame(request, success_frame(request))
        return
    code, remark = _OUTCOMES[outcome]
    channel.reply(request, RemotingCommand.response_to(request, code, remark=remark))
