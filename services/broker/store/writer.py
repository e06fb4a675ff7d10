"""Writing: a message becomes a record in the CommitLog and the next one of its queue.

Everything that can be refused is refused before anything is written, so that a refused message leaves nothing behind.
"""

from collections import deque
from collections.abc import Sequence

from gantry.model.errors import InvalidMessageError, InvalidNameError
from gantry.model.javahash import tags_code as hash_tag
from gantry.model.message import PropertyName, find_property, remove_property
from gantry.model.names import PROPERTIES_BYTES_MAX, SCHEDULE_TOPIC
from gantry.model.record import CRC_PROPERTY_BYTES, encode_record
from gantry.model.sysflag import BORN_HOST_V6, HOSTS_V6_MASK, TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.broker.store.commitlog import CommitLog
from services.broker.store.consumequeue import ConsumeQueue
from services.broker.store.consumequeuestore import ConsumeQueueStore
from services.broker.store.entry import KEYS, TAGS, UNIQ_KEY, EntryMaker, PlainEntry
from services.broker.store.errors import FileNotReadyError, StoreFullError, StoreWriteError
from services.broker.store.results import BatchMessage, BatchPutResult, PutResult, PutStatus
from services.broker.store.settings import StoreSettings
from services.broker.store.topicdeletion import TopicDeletion

QUEUE_ID_MAX = 0x7FFF_FFFF
_CRC_NAME = PropertyName.CRC32.encode()
# The whole-record checksum, and the separator that the properties before it may lack.
_CRC_ROOM = CRC_PROPERTY_BYTES + 1
_HOST_V4_BYTES = 8
_REFUSALS: dict[type[Exception], PutStatus] = {
    InvalidMessageError: PutStatus.MESSAGE_ILLEGAL,
    StoreFullError: PutStatus.CREATE_FILE_FAILED,
    FileNotReadyError: PutStatus.NOT_WRITABLE,
    StoreWriteError: PutStatus.NOT_WRITABLE,
}
_REFUSED = tuple(_REFUSALS)
_OK = PutStatus.OK
# A clock that was set back by less is no news: a message's time is then that of the one before it.
_BACK_TOLD_MS = 1000

log = logger("broker.store")
# A named tuple without the detour over its generated constructor.
_new_result = tuple.__new__


class Writer:
    """The writing side of a store.

    Args:
        entries: Makes what dispatch needs of unusual messages.
        pending: Where dispatch finds what was appended.
        deletion: Says which topics are being deleted.

    Attributes:
        refusal: Why nothing is taken now, or None.

    A message is given as:
        topic: A valid name; its queue begins with its first message.
        queue_id: Not negative.
        body: As it is to be stored, perhaps compressed.
        properties: Encoded.
        born_at_ms: The sender's clock.
        born_host: Packed address of the sender.
        tag: What the property says, "" if it is known not to be there, None to have it looked up.
        keys: The same, words separated by spaces.
        unique_key: The same.
        flag: The application's.
        sys_flag: The bits of the hosts are set here. Prepared and rolled back messages get no place in a queue.
        reconsume_times: Deliveries that failed so far.
        prepared_transaction_offset: Of the half message of a committed one.

    Concurrency: the store's thread only; `refusal` may be set by any thread.
    """

    def __init__(  # noqa: PLR0917 - one place builds it.
        self,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        settings: StoreSettings,
        clock: Clock,
        entries: EntryMaker,
        pending: deque[PlainEntry],
        deletion: TopicDeletion,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._table = queues.table
        self._now_ms = clock.now_ms
        self._pending = pending
        self._pending_max = settings.dispatch_pending_max
        self._entries = entries
        self._deletion = deletion
        self._told_ms = 0
        self._body_max = settings.max_message_size
        self._properties_max = PROPERTIES_BYTES_MAX - (_CRC_ROOM if settings.record_checksum else 0)
        self.refusal: str | None = "the store is not running"

    def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes | memoryview,
        properties: bytes,
        *,
        born_at_ms: int,
        born_host: bytes,
        tag: str | None = None,
        keys: str | None = None,
        unique_key: str | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> PutResult:
        """Store one message, the hot path of a send; see the class for the arguments.

        Durability: with status OK the record survives the process once `write_out` has returned an offset of at least
        `next_offset`, and the machine once `on_flushed` was told one.
        """
        queue = self._table.get((topic, queue_id))
        if _CRC_NAME in properties:
            properties = remove_property(properties, _CRC_NAME)  # Ours to set: a sender's would say "damaged".
        if (
            queue is None
            or self.refusal is not None
            or len(body) > self._body_max
            or len(properties) > self._properties_max
        ):
            checked = self._check(topic, queue_id, len(body), len(properties))
            if isinstance(checked, PutResult):
                return checked
            queue = checked
        if sys_flag or len(born_host) != _HOST_V4_BYTES:
            sys_flag = sys_flag & ~HOSTS_V6_MASK | (BORN_HOST_V6 if len(born_host) != _HOST_V4_BYTES else 0)
        # The bit is set in PREPARED and in ROLLBACK: neither has a place in its queue.
        has_place = not sys_flag & TRANSACTION_PREPARED
        queue_offset = queue.next_offset if has_place else 0
        stored_at_ms, log = self._now_ms(), self._log
        if stored_at_ms < log.appended_at_ms:
            stored_at_ms = self._not_before_last(stored_at_ms)
        while True:
            at = log.next_offset
            try:
                record = encode_record(
                    queue_id, flag, queue_offset, at, sys_flag | log.store_flag, born_at_ms, born_host, stored_at_ms,
                    log.store_host, reconsume_times, prepared_transaction_offset, body, queue.topic_bytes, properties,
                    None, queue.version, log.record_checksum,
                )  # fmt: skip
                if log.append(record, stored_at_ms):
                    break
            except _REFUSED as error:
                return PutResult(_REFUSALS[type(error)], reason=str(error))
        if has_place:
            queue.next_offset = queue_offset + 1
        size = len(record)
        if len(self._pending) < self._pending_max:
            if tag is None or keys is None or unique_key is None:
                tag, keys, unique_key = _look_up(properties, tag, keys, unique_key)
            if topic != SCHEDULE_TOPIC and has_place:
                code = hash_tag(tag) if tag else 0
                self._pending.append((at, size, queue, queue_offset, code, topic, unique_key, keys, stored_at_ms))
            else:
                keyed = (tag, unique_key, keys)
                self._pending.append(
                    self._entries.unusual(queue, at, size, queue_offset, sys_flag, keyed, properties, stored_at_ms)
                )
        return _new_result(PutResult, (_OK, at, queue_offset, stored_at_ms, at + size, ""))

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        items: Sequence[BatchMessage],
        *,
        born_at_ms: int,
        born_host: bytes,
        sys_flag: int = 0,
        reconsume_times: int = 0,
    ) -> BatchPutResult:
        """Store messages with consecutive queue offsets, in one file: all of them or none.

        See the class for the arguments; `items` are at least one, and of no transaction.

        Durability: as for `put`, with the `next_offset` of the whole batch. After a crash before that, some of the
        messages may be there.
        """
        assert items, "a batch has messages"
        queue = self._check(
            topic, queue_id, max([len(item[1]) for item in items]), max([len(item[2]) for item in items])
        )
        if isinstance(queue, PutResult):
            return BatchPutResult(queue.status, reason=queue.reason)
        if topic == SCHEDULE_TOPIC:
            return BatchPutResult(PutStatus.MESSAGE_ILLEGAL, reason=f"topic {topic} takes no batch")
        is_v6 = len(born_host) != _HOST_V4_BYTES
        sys_flag = sys_flag & ~HOSTS_V6_MASK | (BORN_HOST_V6 if is_v6 else 0)
        assert not sys_flag & TRANSACTION_ROLLBACK, "a batch is of no transaction"
        stored_at_ms, log = self._now_ms(), self._log
        if stored_at_ms < log.appended_at_ms:
            stored_at_ms = self._not_before_last(stored_at_ms)
        sys_flag |= log.store_flag
        while True:
            records: list[bytes] = []
            entries: list[PlainEntry] = []
            at, queue_offset = log.next_offset, queue.next_offset
            try:
                for flag, body, properties, tag, keys, unique_key in items:
                    if _CRC_NAME in properties:
                        properties = remove_property(properties, _CRC_NAME)
                    record = encode_record(
                        queue_id, flag, queue_offset, at, sys_flag, born_at_ms, born_host, stored_at_ms,
                        log.store_host, reconsume_times, 0, body, queue.topic_bytes, properties,
                        None, queue.version, log.record_checksum,
                    )  # fmt: skip
                    if tag is None or keys is None or unique_key is None:
                        tag, keys, unique_key = _look_up(properties, tag, keys, unique_key)
                    code = hash_tag(tag) if tag else 0
                    size = len(record)
                    entries.append((at, size, queue, queue_offset, code, topic, unique_key, keys, stored_at_ms))
                    records.append(record)
                    at += size
                    queue_offset += 1
                if log.append_batch(records, stored_at_ms):
                    break
            except _REFUSED as error:
                return BatchPutResult(_REFUSALS[type(error)], reason=str(error))
        first, queue.next_offset = queue.next_offset, queue_offset
        if len(self._pending) + len(items) <= self._pending_max:
            self._pending.extend(entries)
        return BatchPutResult(PutStatus.OK, tuple([entry[0] for entry in entries]), first, stored_at_ms, at)

    def _not_before_last(self, now_ms: int) -> int:
        """Return the store time of the last record instead of a time before it: store times never go back in the log."""
        last_ms = self._log.appended_at_ms
        if last_ms - now_ms >= _BACK_TOLD_MS and last_ms != self._told_ms:
            # Once for each time that the clock was set back: until it has caught up all records get this one.
            self._told_ms = last_ms
            log.warning(
                "the clock is behind the last message; messages get the last one's store time until it has caught up",
                behind_ms=last_ms - now_ms,
                stored_at_ms=last_ms,
            )
        return last_ms

    def _check(self, topic: str, queue_id: int, body_len: int, properties_len: int) -> ConsumeQueue | PutResult:
        """Return the queue, or why a message for it is refused.

        A new queue gets its first file here, before anything is appended: if the disk or the process has nothing left
        for it, that is the sender's error and nobody else's. Dispatch could only stand still for all queues.
        """
        if self.refusal is not None:
            return PutResult(PutStatus.NOT_WRITABLE, reason=self.refusal)
        if self._deletion.under_way and (reason := self._deletion.refusal(topic)) is not None:
            return PutResult(PutStatus.NOT_WRITABLE, reason=reason)
        if body_len > self._body_max:
            reason = f"the body has {body_len} bytes, at most {self._body_max} are taken"
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=reason)
        if properties_len > self._properties_max:
            reason = f"the properties have {properties_len} bytes, at most {self._properties_max} are taken"
            return PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED, reason=reason)
        if not 0 <= queue_id <= QUEUE_ID_MAX:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=f"there is no queue {queue_id} of a topic")
        try:
            return self._queues.prepare(topic, queue_id)
        except InvalidNameError as error:
            return PutResult(PutStatus.MESSAGE_ILLEGAL, reason=str(error))
        except StoreFullError as error:
            reason = f"queue {queue_id} of topic {topic} can't be made: {error}"
            return PutResult(PutStatus.CREATE_FILE_FAILED, reason=reason)


def _look_up(properties: bytes, tag: str | None, keys: str | None, unique_key: str | None) -> tuple[str, str, str]:
    """Return tag, keys and unique key, those that are not known looked up in the properties."""
    return (
        (find_property(properties, TAGS) or "") if tag is None else tag,
        (find_property(properties, KEYS) or "") if keys is None else keys,
        (find_property(properties, UNIQ_KEY) or "") if unique_key is None else unique_key,
    )
