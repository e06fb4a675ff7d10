"""Writing: a message becomes a record in the CommitLog and gets the next offset of its queue.

All checks come before the first write, so a rejected message leaves nothing behind.
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
from services.broker.store.dispatchrequest import KEYS, TAGS, UNIQ_KEY, DispatchRequestMaker, PlainDispatchRequest
from services.broker.store.errors import FileNotReadyError, StoreFullError, StoreWriteError
from services.broker.store.log.commitlog import CommitLog
from services.broker.store.queues.consumequeue import ConsumeQueue
from services.broker.store.queues.consumequeuestore import ConsumeQueueStore
from services.broker.store.results import BatchMessage, BatchPutResult, PutResult, PutStatus
from services.broker.store.settings import StoreLimits, StoreSettings
from services.broker.store.topicdeletion import TopicDeletion

QUEUE_ID_MAX = 0x7FFF_FFFF
_CRC_NAME = PropertyName.CRC32.encode()
# The size of the whole-record checksum, and of the separator that the properties before it may lack.
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
# A clock that was set back by less is not logged: a message then gets the time of the message before it.
_BEHIND_LOGGED_MS_MIN = 1000

log = logger("broker.store")
# This creates a named tuple without a call of its generated constructor.
_new_result = tuple.__new__


class Writer:
    """The writing side of a store.

    Args:
        request_maker: Knows the due times of delayed messages.
        pending: The list from which dispatch takes the requests of appended records.
        deletion: Knows which topics are being deleted.

    Attributes:
        refusal: The reason why no messages are taken now, or None.

    The fields of a message:
        topic: A valid topic name; the first message creates the queue.
        queue_id: The queue's id within the topic, not negative.
        body: The body to be stored, perhaps compressed.
        properties: The encoded properties.
        born_at_ms: The time of the sender's clock.
        born_host: The packed address of the sender.
        tag: The value of the property; "" if the message is known to have none; None to look it up in the properties.
        keys: The same for the keys, words separated by spaces.
        unique_key: The same for the unique key.
        flag: The application's flag.
        sys_flag: The system flag; `put` sets the bits of the hosts. Prepared and rolled back messages get no place in a
            queue.
        reconsume_times: The number of failed deliveries so far.
        prepared_transaction_offset: For a committed message, the offset of its half message.
        delay_ms: For a message of the schedule topic, the current length of its level; None to look it up.

    Durability of `put`: after status OK, the record survives the process once `write_out` has returned an offset of at
    least `next_offset`. It survives the machine once `on_flushed` was called with such an offset.

    Concurrency: the store's thread only; `refusal` may be set by any thread.
    """

    def __init__(  # noqa: PLR0917 - one caller creates it.
        self,
        commit_log: CommitLog,
        queues: ConsumeQueueStore,
        settings: StoreSettings,
        limits: StoreLimits,
        clock: Clock,
        request_maker: DispatchRequestMaker,
        pending: deque[PlainDispatchRequest],
        deletion: TopicDeletion,
    ) -> None:
        self._log = commit_log
        self._queues = queues
        self._table = queues.table
        self._now_ms = clock.now_ms
        self._pending = pending
        self._pending_max = limits.dispatch_pending_max
        self._maker = request_maker
        self._deletion = deletion
        self._behind_logged_ms = 0
        self._body_max = settings.max_message_size
        self._properties_max = PROPERTIES_BYTES_MAX - (_CRC_ROOM if settings.enabled_append_prop_crc else 0)
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
        delay_ms: int | None = None,
    ) -> PutResult:
        """Store one message, the hot path of a send; see the class for the arguments and the durability."""
        queue = self._table.get((topic, queue_id))
        if _CRC_NAME in properties:
            properties = remove_property(properties, _CRC_NAME)  # The broker's: a sender's would mean "damaged".
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
        # PREPARED and ROLLBACK both have this bit, and neither has a place in its queue.
        has_place = not sys_flag & TRANSACTION_PREPARED
        queue_offset = queue.next_offset if has_place else 0
        stored_at_ms, log = self._now_ms(), self._log
        if stored_at_ms < log.appended_at_ms:
            stored_at_ms = self._monotonic_store_time(stored_at_ms)
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
            if delay_ms is not None:
                code = stored_at_ms + delay_ms
            elif topic == SCHEDULE_TOPIC:
                code = self._maker.tags_code(topic, tag, properties, stored_at_ms)
            else:
                code = hash_tag(tag) if tag else 0
            if not has_place:
                queue = None
                if sys_flag & TRANSACTION_ROLLBACK == TRANSACTION_ROLLBACK:
                    unique_key = keys = ""
            self._pending.append((at, size, queue, queue_offset, code, topic, unique_key, keys, stored_at_ms))
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
        """Store messages with consecutive queue offsets in one file: all of them or none.

        See the class for the arguments; `items` has at least one message, and none of a transaction.

        Durability: as for `put`, with the `next_offset` of the whole batch. A crash before that may leave some of the
        messages.
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
            stored_at_ms = self._monotonic_store_time(stored_at_ms)
        sys_flag |= log.store_flag
        while True:
            records: list[bytes] = []
            requests: list[PlainDispatchRequest] = []
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
                    requests.append((at, size, queue, queue_offset, code, topic, unique_key, keys, stored_at_ms))
                    records.append(record)
                    at += size
                    queue_offset += 1
                if log.append_batch(records, stored_at_ms):
                    break
            except _REFUSED as error:
                return BatchPutResult(_REFUSALS[type(error)], reason=str(error))
        first, queue.next_offset = queue.next_offset, queue_offset
        if len(self._pending) + len(items) <= self._pending_max:
            self._pending.extend(requests)
        return BatchPutResult(PutStatus.OK, tuple([request[0] for request in requests]), first, stored_at_ms, at)

    def _monotonic_store_time(self, now_ms: int) -> int:
        """Return the last record's store time instead of an earlier time: store times never go back in the log."""
        last_ms = self._log.appended_at_ms
        if last_ms - now_ms >= _BEHIND_LOGGED_MS_MIN and last_ms != self._behind_logged_ms:
            # Logged once each time the clock is set back: until it has caught up, all records get this time.
            self._behind_logged_ms = last_ms
            log.warning(
                "the clock is behind the last message; messages get the last one's store time until it has caught up",
                behind_ms=last_ms - now_ms,
                stored_at_ms=last_ms,
            )
        return last_ms

    def _check(self, topic: str, queue_id: int, body_len: int, properties_len: int) -> ConsumeQueue | PutResult:
        """Return the queue, or the reason why a message for it is rejected.

        A new queue gets its first file here, before anything is appended. If the disk or the process has no resources
        left for the file, only this sender gets an error. If dispatch had to create the file, a failure would stop
        dispatch for all queues.
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
    """Return tag, keys and unique key; look up those that are None in the properties."""
    return (
        (find_property(properties, TAGS) or "") if tag is None else tag,
        (find_property(properties, KEYS) or "") if keys is None else keys,
        (find_property(properties, UNIQ_KEY) or "") if unique_key is None else unique_key,
    )
