"""Takes messages for a pop: reads them from the queues in turn, and appends the check points that hide them.

A pop with any queue begins with another queue each time. With a probability of 20 % it looks into the group's pop retry
topics first, else last. `read` only reads, so that it can run again when its bytes have come from the disk. `take`
runs in the same turn of the loop and changes positions, check points and states.

Concurrency: the loop's thread only.
"""

import struct
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from gantry.model.names import pop_retry_topic
from gantry.model.popreceipt import (
    NOT_RETRY,
    ORDER_REVIVE_QUEUE,
    RETRY_V1,
    RETRY_V2,
    encode_message_offsets,
    encode_order_counts,
    encode_start_offsets,
)
from gantry.remoting.codes import ResponseCode
from gantry.remoting.headers.pop import ANY_QUEUE, FROM_MAX, PopMessageHeader, PopMessageResponseHeader
from gantry.runtime.clock import Clock
from gantry.runtime.rng import Rng
from services.broker.filter.subscriptions import MessageFilter
from services.broker.pop.checkpoints import CHECK_POINTS_MAX, CheckPoint, CheckPointTable
from services.broker.pop.order import OrderTable, Taken, has_attempt, is_blocked, take
from services.broker.pop.positions import Position, Positions, QueueKey
from services.broker.pop.records import CheckPointKey
from services.broker.pop.revivelog import ReviveLog
from services.broker.pop.sending import as_sent
from services.broker.refusal import RefusalError
from services.broker.registry.topics import TopicTable
from services.broker.settings import LiveSettings
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import GetResult, GetStatus

BODY_BYTES_MAX: Final = 4 << 20
"""A pop reads no further queue when it has this many bytes, and no further message of one queue."""
_TURNS_MAX: Final = 10_000
_MOVED = frozenset({GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL})
_queue_offset = struct.Struct(">q").unpack_from
_QUEUE_OFFSET_AT: Final = 20


@dataclass(frozen=True, slots=True)
class PopRequest:
    """A pop that has passed all checks.

    Attributes:
        header: The request.
        filter: Filter of the messages.
        queues: Number of readable queues of the topic.
    """

    header: PopMessageHeader
    filter: MessageFilter
    queues: int


@dataclass(slots=True)
class Part:
    """The messages of one queue.

    Attributes:
        key: The queue.
        retry: Retry flag of its topic.
        initial: Position of a group that has none.
        first: Position of the group.
        result: The messages.
        offsets: Their queue offsets.
    """

    key: QueueKey
    retry: str
    initial: int
    first: int
    result: GetResult
    offsets: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """The result of reading.

    Attributes:
        parts: Queues that have messages, or in which the position moves.
        begins: Queues in which the group begins at the end, and the end.
        left: Number of messages that are left, at least.
    """

    parts: list[Part] = field(default_factory=list)
    begins: list[tuple[QueueKey, int]] = field(default_factory=list)
    left: int = 0


@dataclass(slots=True)
class Batch:
    """Messages that are taken; they may be given out when the log is durable up to `end`."""

    response: PopMessageResponseHeader
    body: bytes
    count: int
    end: int
    points: list[CheckPoint]
    moves: list[tuple[QueueKey, Position, int]]


class Taking:
    """Takes messages.

    Args:
        random: Decides whether a pop looks into the retry topics first.
    """

    def __init__(
        self,
        *,
        store: MessageStore,
        topics: TopicTable,
        positions: Positions,
        points: CheckPointTable,
        orders: OrderTable,
        revive_log: ReviveLog,
        live_settings: LiveSettings,
        broker_name: str,
        clock: Clock,
        rng: Rng,
    ) -> None:
        self._store = store
        self._topics = topics
        self._positions = positions
        self._points = points
        self._orders = orders
        self._log = revive_log
        self._live_settings = live_settings
        self._broker_name = broker_name
        self._clock = clock
        self._rng = rng
        self._turns: OrderedDict[tuple[str, str], int] = OrderedDict()

    def read(self, pop: PopRequest) -> Found:
        """Read the messages that a pop takes. Raises NotInMemoryError in a guarded attempt."""
        header, found = pop.header, Found()
        count = size = 0
        for key, retry in self._queues(pop):
            initial = self._initial(key, retry, header)
            position = self._positions.find(key)
            if position is None and header.init_mode == FROM_MAX and retry == NOT_RETRY:
                # The group must not miss the messages that arrive before its next pop.
                found.begins.append((key, initial))
            first = initial if position is None else position
            behind = self._store.max_offset(key[0], key[2]) - first
            if behind == 0 or (header.order and self._is_blocked(key, header)):
                continue
            if count >= header.max_msg_nums or size >= BODY_BYTES_MAX:
                found.left += max(0, behind)
                if found.left:
                    break
                continue
            result = self._get(key, first, self._count_max(key, first, header, count), pop.filter)
            offsets = [_queue_offset(record, _QUEUE_OFFSET_AT)[0] if record else first for record in result.records]
            found.parts.append(Part(key, retry, initial, first, result, offsets))
            found.left += max(0, result.max_offset - result.next_offset)
            count += result.count
            size += sum(map(len, result.records))
        return found

    def has_message(self, pop: PopRequest) -> bool:
        """Return whether a pop would find a message, as far as positions say. Filters are not applied."""
        for key, retry in self._queues(pop):
            first = self._positions.find(key)
            first = self._initial(key, retry, pop.header) if first is None else first
            is_free = not pop.header.order or not self._is_blocked(key, pop.header)
            if is_free and self._store.max_offset(key[0], key[2]) > first:
                return True
        return False

    def take(self, pop: PopRequest, found: Found) -> Batch | None:
        """Hide the messages, and return them; None if there are none.

        Raises:
            RefusalError: Too many messages are out, or the store takes no messages. Nothing is taken.
        """
        for key, offset in found.begins:
            self._positions.get(key, offset)
        parts = [part for part in found.parts if self._follow(part, is_order=bool(pop.header.order))]
        if not parts:
            return None
        if len(self._points) + len(parts) > CHECK_POINTS_MAX:
            raise RefusalError(
                ResponseCode.SYSTEM_BUSY,
                f"{len(self._points)} pops are not acknowledged yet, which is the limit; {self._points.in_flight} "
                "messages are out",
            )
        return self._take_in_order(pop, parts, found) if pop.header.order else self._take(pop, parts, found)

    def _take(self, pop: PopRequest, parts: Sequence[Part], found: Found) -> Batch:
        header = pop.header
        popped_at_ms = self._clock.now_ms()
        points: list[CheckPoint] = []
        moves: list[tuple[QueueKey, Position, int]] = []
        starts: list[int] = []
        end = 0
        positions = [self._positions.get(part.key, part.initial) for part in parts]
        begins = [
            self._positions.start(part.key, position, part.offsets[0], part.offsets[-1])
            for part, position in zip(parts, positions, strict=True)
        ]
        keys = [CheckPointKey(*part.key, start, 0) for part, start in zip(parts, begins, strict=True)]
        while any(self._points.find(key._replace(popped_at_ms=popped_at_ms)) is not None for key in keys):
            popped_at_ms += 1  # A position was reset, and the same messages are given out within a millisecond.
        taken: list[Part] = []
        revive_queue_id: int | None = None
        for part, position, key in zip(parts, positions, keys, strict=True):
            try:
                point, end = self._log.append_check_point(
                    key._replace(popped_at_ms=popped_at_ms),
                    part.offsets,
                    header.invisible_time,
                    revive_queue_id,
                    header.attempt_id,
                )
            except RefusalError:
                if not taken:
                    raise
                break
            revive_queue_id = point.revive_queue_id
            next_offset = part.result.next_offset
            self._positions.move(position, part.offsets[-1], next_offset)
            points.append(point)
            moves.append((part.key, position, next_offset))
            starts.append(key.start_offset)
            taken.append(part)
        assert revive_queue_id is not None, "the first check point is appended, or an error is raised"
        response = PopMessageResponseHeader(
            pop_time=popped_at_ms,
            invisible_time=header.invisible_time,
            revive_qid=revive_queue_id,
            rest_num=found.left,
            start_offset_info=encode_start_offsets(
                (part.retry, part.key[2], start) for part, start in zip(taken, starts, strict=True)
            ),
            msg_offset_info=encode_message_offsets((part.retry, part.key[2], part.offsets) for part in taken),
        )
        body = b"".join(
            as_sent(record, header.topic, point, part.retry, self._broker_name)
            for part, point in zip(taken, points, strict=True)
            for record in part.result.records
        )
        return Batch(response, body, sum(len(part.offsets) for part in taken), end, points, moves)

    def _take_in_order(self, pop: PopRequest, parts: Sequence[Part], found: Found) -> Batch:
        header, popped_at_ms = pop.header, self._clock.now_ms()
        states: list[tuple[Part, Taken]] = []
        end = 0
        for part in parts:
            before = self._orders.find(part.key)
            if before is not None:
                popped_at_ms = max(popped_at_ms, before.popped_at_ms + 1)
        for part in parts:
            taken = take(
                self._orders.find(part.key),
                part.offsets,
                attempt_id=header.attempt_id,
                popped_at_ms=popped_at_ms,
                invisible_ms=header.invisible_time,
            )
            try:
                self._orders.check_room(part.key)
                self._positions.get(part.key, part.initial)
                end = self._log.append_order(part.key, taken.info.encode(), part.first)
            except RefusalError:
                if not states:
                    raise
                break
            self._orders.put(part.key, taken.info)
            states.append((part, taken))
        counts = [
            item
            for part, taken in states
            for item in (
                *((part.retry, part.key[2], offset, count) for offset, count in taken.counts.items()),
                (part.retry, part.key[2], None, taken.least),
            )
        ]
        response = PopMessageResponseHeader(
            pop_time=popped_at_ms,
            invisible_time=header.invisible_time,
            revive_qid=ORDER_REVIVE_QUEUE,
            rest_num=found.left,
            start_offset_info=encode_start_offsets((part.retry, part.key[2], part.first) for part, _ in states),
            msg_offset_info=encode_message_offsets((part.retry, part.key[2], part.offsets) for part, _ in states),
            order_count_info=encode_order_counts(counts),
        )
        body = b"".join(record for part, _ in states for record in part.result.records)
        return Batch(response, body, sum(len(part.offsets) for part, _ in states), end, [], [])

    def _follow(self, part: Part, *, is_order: bool) -> bool:
        """Return whether a part has messages. If not, move the position past messages that are not for the group."""
        if part.result.records:
            return True
        if part.result.next_offset > part.first or part.result.status in _MOVED:
            position = self._positions.get(part.key, part.initial)
            if is_order:
                self._orders.put(part.key, None)
            self._positions.skip(part.key, position, part.result.next_offset)
        return False

    def _queues(self, pop: PopRequest) -> Iterator[tuple[QueueKey, str]]:
        """Yield the queues in the order in which a pop reads them."""
        header, count = pop.header, pop.queues
        turn = self._next_turn(header.topic, header.consumer_group)
        retries = () if header.order else self._retries(header.topic, header.consumer_group)
        is_retry_first = bool(retries) and self._rng.below(100) < self._live_settings.current.pop_from_retry_probability
        if is_retry_first:
            yield from retries
        again = self._attempted(pop) if header.order else []
        if again or header.gantry_replay:
            yield from again
            return
        if header.queue_id == ANY_QUEUE:
            for number in range(count):
                yield (header.topic, header.consumer_group, (turn + number) % count), NOT_RETRY
        else:
            yield (header.topic, header.consumer_group, header.queue_id), NOT_RETRY
        if not is_retry_first:
            yield from retries

    def _attempted(self, pop: PopRequest) -> list[tuple[QueueKey, str]]:
        """Return the queues whose messages a pop in order of the same name has given out."""
        header = pop.header
        if header.attempt_id is None:
            return []
        keys = [(header.topic, header.consumer_group, queue_id) for queue_id in range(pop.queues)]
        return [(key, NOT_RETRY) for key in keys if has_attempt(self._orders.find(key), header.attempt_id)]

    def _count_max(self, key: QueueKey, first: int, header: PopMessageHeader, count: int) -> int:
        """Return how many messages of a queue a pop may take after `count` others."""
        left = header.max_msg_nums - count
        info = self._orders.find(key) if header.order and header.attempt_id is not None else None
        if info is None or header.attempt_id is None or not has_attempt(info, header.attempt_id):
            return left
        # The repetition gets no messages that the first pop did not get.
        return min(left, len([offset for offset in info.offsets() if offset >= first]))

    def _retries(self, topic: str, group: str) -> Sequence[tuple[QueueKey, str]]:
        names = (
            (pop_retry_topic(group, topic, is_v2=False), RETRY_V1),
            (pop_retry_topic(group, topic, is_v2=True), RETRY_V2),
        )
        return [
            ((name, group, queue_id), retry)
            for name, retry in names
            if (config := self._topics.find(name)) is not None
            for queue_id in range(config.read_queue_nums)
        ]

    def _next_turn(self, topic: str, group: str) -> int:
        turns = self._turns
        turn = turns.pop((topic, group), 0)
        turns[topic, group] = turn + 1
        if len(turns) > _TURNS_MAX:
            turns.popitem(last=False)
        return turn

    def _initial(self, key: QueueKey, retry: str, header: PopMessageHeader) -> int:
        topic, _, queue_id = key
        if header.init_mode == FROM_MAX and retry == NOT_RETRY:
            return self._store.max_offset(topic, queue_id)
        return self._store.min_offset(topic, queue_id)

    def _is_blocked(self, key: QueueKey, header: PopMessageHeader) -> bool:
        return is_blocked(self._orders.find(key), header.attempt_id, self._clock.now_ms())

    def _get(self, key: QueueKey, first: int, count_max: int, wanted: MessageFilter) -> GetResult:
        topic, _, queue_id = key

        def get(offset: int) -> GetResult:
            return self._store.get(
                topic,
                queue_id,
                offset,
                count_max,
                max_bytes=BODY_BYTES_MAX,
                unit_filter=wanted.unit,
                property_filter=wanted.sql,
            )

        result = get(first)
        if result.status in _MOVED and result.next_offset != first:
            moved = get(result.next_offset)
            return moved if moved.records else result
        return result
