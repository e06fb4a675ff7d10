"""The revive topic: a start reads the check points from it, and every change is appended to it.

Theory of operation. The broker appends a check point before it gives messages out, and an acknowledgement before it
answers one. It applies each of its records to the table of check points at once, so it reads none of them again while
it runs. A store that RocketMQ's broker has used may have further records in the timer; these reach the revive topic at
their times, and `read_arrived` applies them.

The progress, the last record in each revive queue that a start need not read, is the committed offset of RocketMQ's
revive group. The progress passes a check point some time after all its messages are done. By then, a save of the
committed offsets has covered the pop, so that a start finds the position of the group without the check point. A check point that is unfinished for minutes is appended again, so that
it does not hold the progress back.

Concurrency: the loop's thread only.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from gantry.model.names import REVIVE_GROUP
from gantry.model.propertyname import PropertyName
from gantry.model.record import decode_record
from gantry.remoting.codes import ResponseCode
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.broker.newmessage import NewMessage
from services.broker.pop.checkpoints import CheckPoint, CheckPointTable
from services.broker.pop.positions import QueueKey
from services.broker.pop.records import (
    AckBody,
    CheckPointBody,
    CheckPointKey,
    OrderBody,
    ack_record,
    check_point_record,
    order_record,
    read_record,
)
from services.broker.refusal import RefusalError
from services.broker.registry.offsets import OffsetTable
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import PutStatus

log = logger("broker.pop")

SETTLED_MS: Final = 30_000
"""Time for which the progress stays before a record. Offsets are saved every 5 s by default."""
TIMER_GRACE_MS: Final = 10_000
"""Time for which a check point from the timer waits for acknowledgements that come from there after it."""
CARRY_MS: Final = 300_000
"""Age at which an unfinished check point that holds the progress back is appended again."""
CARRIED_MAX: Final = 50
"""Number of check points of one revive queue that are appended again in one round, a millisecond of work."""
_READ_MAX: Final = 512
_APPLIED_MAX: Final = 256


class Replayed(NamedTuple):
    """The result of reading the revive topic.

    Attributes:
        positions: Position of each group in each queue.
        orders: Latest state of each queue that was popped in order.
        records: Number of records.
    """

    positions: dict[QueueKey, int]
    orders: dict[QueueKey, Any]
    records: int


class _Found(NamedTuple):
    physical_offset: int
    revive_queue_id: int
    offset: int
    stored_at_ms: int
    is_from_timer: bool
    content: CheckPointBody | AckBody | OrderBody | None


class ReviveLog:
    """Appends to the revive topic, and reads it.

    Args:
        topic: The revive topic.
        queues: Number of its queues.
        broker_name: The broker's name in the records.
        points: The table of check points.
        orders_saved: Returns the time (wall ms) up to which states of ordered queues are in their file.
    """

    def __init__(
        self,
        topic: str,
        queues: int,
        broker_name: str,
        *,
        store: MessageStore,
        offsets: OffsetTable,
        clock: Clock,
        points: CheckPointTable,
        orders_saved: Callable[[], int],
    ) -> None:
        self._topic = topic
        self._broker_name = broker_name
        self._store = store
        self._offsets = offsets
        self._clock = clock
        self._points = points
        self._orders_saved = orders_saved
        self._turn = count()
        # By revive queue: the next record to read, own records after it, and records that the progress waits for.
        self._next = [self._progress(queue_id) + 1 for queue_id in range(queues)]
        self._ahead: list[set[int]] = [set() for _ in range(queues)]
        self._unsettled: list[list[tuple[int, int, CheckPoint | None]]] = [[] for _ in range(queues)]
        # Records of check points that are appended again, until the new records are durable.
        self._carried: list[list[int]] = [[] for _ in range(queues)]

    def append_check_point(
        self,
        key: CheckPointKey,
        offsets: Sequence[int],
        invisible_ms: int,
        revive_queue_id: int | None = None,
        attempt_id: str | None = None,
    ) -> tuple[CheckPoint, int]:
        """Append a check point and add it to the table.

        Returns:
            The check point, and the physical end of its record.

        Raises:
            RefusalError: The store takes no messages; nothing is stored.
        """
        if revive_queue_id is None:
            revive_queue_id = next(self._turn) % len(self._next)
        point = CheckPoint(key, offsets, invisible_ms, revive_queue_id, attempt_id)
        now_ms = self._clock.now_ms()
        record = check_point_record(
            key,
            offsets,
            invisible_ms,
            self._broker_name,
            now_ms=now_ms,
            host=self._store.store_host,
            attempt_id=attempt_id,
        )
        end = self._put(record, revive_queue_id, point)
        self._points.add(point)
        return point, end

    def append_ack(self, point: CheckPoint, offsets: Sequence[int]) -> int:
        """Append that messages of a check point are done, and return the physical end of the record. Raises RefusalError."""
        record = ack_record(
            point.key, offsets, self._broker_name, now_ms=self._clock.now_ms(), host=self._store.store_host
        )
        return self._put(record, point.revive_queue_id, None, is_unsettled=False)

    def append_anchor(self, queue: QueueKey, offset: int) -> None:
        """Append that the position of a group has jumped. If that fails, only a crash soon after makes a difference."""
        topic, group, queue_id = queue
        now_ms = self._clock.now_ms()
        key = CheckPointKey(topic, group, queue_id, offset, now_ms)
        record = check_point_record(key, (), 0, self._broker_name, now_ms=now_ms, host=self._store.store_host)
        try:
            self._put(record, next(self._turn) % len(self._next), None)
        except RefusalError as error:
            log.warning("a new position is not noted", topic=topic, group=group, queue_id=queue_id, reason=error.remark)

    def append_order(self, queue: QueueKey, info: Any, next_offset: int) -> int:
        """Append the state of a queue that is popped in order; return the record's physical end. Raises RefusalError."""
        record = order_record(queue, info, next_offset, now_ms=self._clock.now_ms(), host=self._store.store_host)
        # One queue for all records of a state, so that the latest one is the last one.
        return self._put(record, 0, None)

    def replay(self) -> Replayed:
        """Read all records that the progress has not passed, and fill the table. A start calls this; it may wait."""
        replayed = Replayed({}, {}, 0)
        covered: dict[QueueKey, dict[int, CheckPoint]] = {}
        number = 0
        reads = [self._read(queue_id, self._next[queue_id]) for queue_id in range(len(self._next))]
        for found in heapq.merge(*reads):
            number += 1
            self._next[found.revive_queue_id] = found.offset + 1
            point = self._apply(found)
            if point is not None:
                # The change of an invisible time is a new check point and an acknowledgement. A crash may have kept
                # only the first; the message must not be given out when the old time is over.
                offsets = covered.setdefault(point.key[:3], {})
                for offset in point.offsets:
                    older = offsets.get(offset)
                    if older is not None and older.has(offset):
                        self._points.mark(older, offset)
                    offsets[offset] = point
            self._follow(found.content, replayed)
        return replayed._replace(records=number)

    def read_arrived(self) -> int:
        """Apply records that others have appended, such as the timer. Return how many; call again if it is not zero."""
        number = 0
        for queue_id, first in enumerate(self._next):
            if self._store.max_offset(self._topic, queue_id) <= first:
                continue
            for found in self._read(queue_id, first, _APPLIED_MAX):
                if found.offset not in self._ahead[queue_id]:
                    self._apply(found)
                    number += 1
                self._advance(queue_id, found.offset)
        return number

    def carry(self) -> int | None:
        """Append old check points again that hold the progress back. `carried` must follow.

        Returns:
            The physical end of the last record; None if there is none.
        """
        now_ms, end = self._clock.now_ms(), None
        for queue_id, unsettled in enumerate(self._unsettled):
            for _ in range(CARRIED_MAX):
                if not unsettled or now_ms - unsettled[0][1] < CARRY_MS:
                    break
                offset, stored_at_ms, point = unsettled[0]
                if point is None:
                    break  # The file with the states of ordered queues can't be written.
                heapq.heappop(unsettled)
                self._carried[queue_id].append(offset)
                if not point.left:
                    continue
                record = check_point_record(
                    point.key,
                    point.left_offsets(),
                    point.invisible_ms,
                    self._broker_name,
                    now_ms=now_ms,
                    host=self._store.store_host,
                )
                try:
                    end = self._put(record, queue_id, point)
                except RefusalError:
                    heapq.heappush(unsettled, (offset, stored_at_ms, point))
                    return end
        return end

    def carried(self) -> None:
        """Note that the records of `carry` are durable."""
        for offsets in self._carried:
            offsets.clear()

    def save_progress(self) -> None:
        """Commit the progress of each revive queue."""
        now_ms = self._clock.now_ms()
        saved_ms = self._orders_saved()
        for queue_id, unsettled in enumerate(self._unsettled):
            while unsettled and _is_settled(unsettled[0], now_ms, saved_ms):
                heapq.heappop(unsettled)
            done = min([unsettled[0][0] if unsettled else self._next[queue_id], *self._carried[queue_id]]) - 1
            if done > self._progress(queue_id):
                self._offsets.commit(self._topic, REVIVE_GROUP, queue_id, done, now_ms)

    def _progress(self, queue_id: int) -> int:
        done = self._offsets.find(self._topic, REVIVE_GROUP, queue_id)
        return -1 if done is None else done

    def _put(self, message: NewMessage, queue_id: int, point: CheckPoint | None, *, is_unsettled: bool = True) -> int:
        message.topic, message.queue_id = self._topic, queue_id
        result = message.put_into(self._store)
        if result.status is not PutStatus.OK:
            reason = result.reason or result.status.value
            raise RefusalError(ResponseCode.SERVICE_NOT_AVAILABLE, f"the broker can't store it now: {reason}")
        if is_unsettled:
            heapq.heappush(self._unsettled[queue_id], (result.queue_offset, result.stored_at_ms, point))
        self._advance(queue_id, result.queue_offset)
        return result.next_offset

    def _advance(self, queue_id: int, offset: int) -> None:
        """Note that the record at an offset is applied."""
        ahead = self._ahead[queue_id]
        if offset > self._next[queue_id]:
            ahead.add(offset)
            return
        self._next[queue_id] = max(self._next[queue_id], offset + 1)
        while self._next[queue_id] in ahead:
            ahead.remove(self._next[queue_id])
            self._next[queue_id] += 1

    def _read(self, queue_id: int, first: int, most: int | None = None) -> Iterator[_Found]:
        left = most
        while left is None or left > 0:
            count_max = _READ_MAX if left is None else min(left, _READ_MAX)
            result = self._store.get(self._topic, queue_id, first, count_max, wide_messages=count_max)
            if not result.records and result.next_offset <= first:
                return
            for record in result.records:
                message = decode_record(record, check_crc=False)
                yield _Found(
                    message.physical_offset,
                    queue_id,
                    message.queue_offset,
                    message.stored_at_ms,
                    PropertyName.TIMER_OUT_MS in message.properties,
                    read_record(message),
                )
            first = result.next_offset
            left = None if left is None else left - max(1, len(result.records))

    def _apply(self, found: _Found) -> CheckPoint | None:
        """Apply a record, and return the check point if it is a new one."""
        content = found.content
        if isinstance(content, AckBody):
            point = self._points.find(CheckPointKey(content.t, content.c, content.q, content.so, content.pt))
            for offset in () if point is None else content.offsets():
                if point is not None and point.has(offset):
                    self._points.mark(point, offset)
            return None
        point = None
        if isinstance(content, CheckPointBody) and content.n:
            key = CheckPointKey(content.t, content.c, content.q, content.so, content.pt)
            if self._points.find(key) is None:
                attempt_id = content.attempt_id if isinstance(content.attempt_id, str) else None
                point = CheckPoint(key, content.offsets(), content.it, found.revive_queue_id, attempt_id)
                point.is_stored = True
                if found.is_from_timer:
                    point.due_at_ms = max(point.due_at_ms, self._clock.now_ms() + TIMER_GRACE_MS)
                self._points.add(point)
        if isinstance(content, CheckPointBody | OrderBody):
            heapq.heappush(self._unsettled[found.revive_queue_id], (found.offset, found.stored_at_ms, point))
        return point

    def _follow(self, content: CheckPointBody | AckBody | OrderBody | None, replayed: Replayed) -> None:
        """Follow the position of a group along the chain of its check points."""
        if isinstance(content, OrderBody):
            queue = (content.t, content.c, content.q)
            replayed.orders[queue] = content.info
            replayed.positions[queue] = content.next_offset
        elif isinstance(content, CheckPointBody):
            queue = (content.t, content.c, content.q)
            if not content.n:
                replayed.positions[queue] = content.so
                return
            position = replayed.positions.get(queue, self._offsets.find(*queue))
            end = content.offsets()[-1] + 1
            if position is None or content.so <= position < end:
                replayed.positions[queue] = end


def _is_settled(entry: tuple[int, int, CheckPoint | None], now_ms: int, saved_ms: int) -> bool:
    _, stored_at_ms, point = entry
    if point is not None:
        return not point.left and now_ms - stored_at_ms >= SETTLED_MS
    return now_ms - stored_at_ms >= SETTLED_MS and stored_at_ms < saved_ms
