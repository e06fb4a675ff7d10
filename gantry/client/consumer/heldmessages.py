"""The messages that a push consumer holds: pulled and not consumed yet. Pure.

Theory of operation. Each queue has a window (processqueue.py), which gives the offset that may be committed. A message is
in the window until it is consumed, or a broker has taken it back. Meanwhile it is in one of three places:

    pulled ──▶ waiting ──(take: a batch)──▶ running ──▶ consumed or sent back: leaves the window
                  ▲                            │
                  └───(due)─── set aside ◀─────┘ a concurrent consumer could not send it back
                  ▲                            │
                  └─(the queue suspended)◀─────┘ an orderly consumer: the batch failed

Queues take turns, one batch each. A concurrent consumer runs any number of batches of a queue at once. An orderly one
runs the next batch of a queue only when the one before has ended. A batch that failed goes back to the front, and the
queue is suspended for a time.

A queue that is dropped or restarted elsewhere forgets its messages. A batch of it that still runs is no longer current:
its result changes nothing.

Concurrency: one thread. Times are monotonic ms.
"""

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from gantry.client.consumer.processqueue import BYTES_MAX, MESSAGES_MAX, SPAN_MAX, ProcessQueue
from gantry.model.message import MessageQueue, StoredMessage


@dataclass(frozen=True, slots=True)
class HoldLimits:
    """The limits from which nothing more is pulled.

    A queue that holds nothing may always take one message. Otherwise queues that can't go on would stop all others.

    Attributes:
        queue_messages_max: Messages of one queue.
        queue_bytes_max: Bytes of one queue. The last pull may go beyond it by one message.
        queue_span_max: Distance in offsets from the oldest message of a queue to the newest.
        messages_max: Messages of all queues together.
        bytes_max: Bytes of all queues together. The last pull may go beyond it by one message.
    """

    queue_messages_max: int = MESSAGES_MAX
    queue_bytes_max: int = BYTES_MAX
    queue_span_max: int = SPAN_MAX
    messages_max: int = 20_000
    bytes_max: int = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Room:
    """The messages and bytes that a pull may bring."""

    messages: int
    bytes: int


class HeldQueue:
    """One queue and its messages.

    Attributes:
        queue: The queue.
        window: The messages that are not consumed.
        waiting: The messages that the next batches take, in order.
        running_count: Number of batches that run.
        generation: Changes when the queue forgets its messages. A batch of an earlier generation is not current.
        failures: Queue offset → number of times that the message failed here.
        dying: Queue offsets of messages that will not be delivered again and that no broker has taken as dead letters yet.
        is_suspended: Whether the queue of an orderly consumer waits, because a batch failed.
        is_draining: Whether no further batch may begin.
        is_dropped: Whether the queue has left the consumer.
    """

    __slots__ = (
        "dying", "failures", "generation", "has_turn", "is_draining", "is_dropped", "is_suspended", "queue",
        "running_count", "waiting", "window",
    )  # fmt: skip

    def __init__(self, queue: MessageQueue, next_offset: int) -> None:
        self.queue = queue
        self.window = ProcessQueue(next_offset)
        self.waiting: deque[StoredMessage] = deque()
        self.running_count = 0
        self.generation = 0
        self.failures: dict[int, int] = {}
        self.dying: set[int] = set()
        self.is_suspended = False
        self.is_draining = False
        self.is_dropped = False
        self.has_turn = False


@dataclass(slots=True, eq=False)
class Batch:
    """Messages of one queue that are processed together."""

    held: HeldQueue
    messages: Sequence[StoredMessage]
    generation: int

    @property
    def is_current(self) -> bool:
        """Whether the result of the batch still counts."""
        return self.generation == self.held.generation


@dataclass(order=True, slots=True)
class _Due:
    """The end of a wait: of a message that was set aside, or of a suspended queue if there is no message."""

    at_ms: int
    number: int
    held: HeldQueue = field(compare=False)
    generation: int = field(compare=False)
    message: StoredMessage | None = field(compare=False)


class HeldMessages:
    """All queues of a consumer.

    Attributes:
        queues: The queues.
        messages: Number of messages in all windows.
        bytes: Their size.
    """

    def __init__(self, limits: HoldLimits, *, batch_max: int, is_orderly: bool) -> None:
        self.queues: dict[MessageQueue, HeldQueue] = {}
        self.messages = 0
        self.bytes = 0
        self._limits = limits
        self._batch_max = batch_max
        self._is_orderly = is_orderly
        self._turns: deque[HeldQueue] = deque()
        self._due: list[_Due] = []
        self._due_count = 0

    def add_queue(self, queue: MessageQueue, next_offset: int) -> HeldQueue:
        """Add a queue whose first message has this offset or a later one."""
        assert queue not in self.queues, f"{queue} is held already"
        held = self.queues[queue] = HeldQueue(queue, next_offset)
        return held

    def drop(self, held: HeldQueue) -> None:
        """Forget a queue and its messages."""
        self._forget_messages(held)
        held.is_dropped = True
        if self.queues.get(held.queue) is held:
            del self.queues[held.queue]

    def restart(self, held: HeldQueue, offset: int) -> None:
        """Continue a queue at another offset, and forget its messages."""
        self._forget_messages(held)
        held.window.restart_at(offset)

    def room(self, held: HeldQueue) -> Room | None:
        """Return the room for a pull of a queue; None if there is none."""
        limits, window = self._limits, held.window
        if not window.has_room(
            messages_max=limits.queue_messages_max,
            bytes_max=limits.queue_bytes_max,
            span_max=limits.queue_span_max,
        ):
            return None
        if self.is_full:
            return Room(1, 1) if not window.in_flight_count else None
        return Room(
            min(
                limits.messages_max - self.messages,
                limits.queue_messages_max - window.in_flight_count,
                limits.queue_span_max - window.span + 1,
            ),
            min(limits.bytes_max - self.bytes, limits.queue_bytes_max - window.in_flight_bytes),
        )

    @property
    def is_full(self) -> bool:
        """Whether all queues together hold as much as they may."""
        return self.messages >= self._limits.messages_max or self.bytes >= self._limits.bytes_max

    @property
    def has_plenty(self) -> bool:
        """Whether there is so much room for all queues together that pulls which waited for room should go on.

        Without a distance to the limit, each consumed message would cause a pull for one message.
        """
        limits = self._limits
        return 4 * self.messages <= 3 * limits.messages_max and 4 * self.bytes <= 3 * limits.bytes_max

    def should_pull_again(self, held: HeldQueue) -> bool:
        """Return whether a queue whose pull waited for room should go on, with a distance to the limits as above."""
        limits, window = self._limits, held.window
        if not window.in_flight_count:
            return True
        return (
            self.has_plenty
            and 4 * window.in_flight_count <= 3 * limits.queue_messages_max
            and 4 * window.in_flight_bytes <= 3 * limits.queue_bytes_max
            and window.span <= limits.queue_span_max
        )

    def add(self, held: HeldQueue, messages: Iterable[StoredMessage], next_offset: int, *, now_ms: int) -> None:
        """Add the messages of a pull, as far as there is room. The others have to be pulled again.

        Args:
            held: The queue.
            messages: The messages. Those before the queue's next offset are ignored.
            next_offset: The pull's next offset.
            now_ms: Monotonic time.
        """
        window = held.window
        taken: list[tuple[int, int]] = []
        at = window.next_offset
        for message in messages:
            if message.queue_offset < at:
                continue
            if self.is_full and (taken or window.in_flight_count):
                next_offset = message.queue_offset
                break
            at = message.queue_offset + 1
            taken.append((message.queue_offset, message.size_bytes))
            held.waiting.append(message)
            self.messages += 1
            self.bytes += message.size_bytes
        window.add(taken, max(next_offset, at), now_ms=now_ms)
        self._give_turn(held)

    def take(self) -> Batch | None:
        """Return the next batch to process, or None if there is none now. Each batch ends with a call of `ended`."""
        while self._turns:
            held = self._turns.popleft()
            held.has_turn = False
            if not self._is_ready(held):
                continue
            count = min(self._batch_max, len(held.waiting))
            messages = [held.waiting.popleft() for _ in range(count)]
            held.running_count += 1
            self._give_turn(held)
            return Batch(held, messages, held.generation)
        return None

    def consumed(self, batch: Batch, messages: Iterable[StoredMessage]) -> None:
        """Remove messages of a batch that are consumed, or that a broker has taken back."""
        if not batch.is_current:
            return
        held = batch.held
        window = held.window
        for message in messages:
            before = window.in_flight_bytes
            if window.ack(message.queue_offset):
                self.messages -= 1
                self.bytes -= before - window.in_flight_bytes
                held.failures.pop(message.queue_offset, None)
                held.dying.discard(message.queue_offset)

    def failed(self, batch: Batch, message: StoredMessage) -> int:
        """Count a failure of a message; return how often it has failed here."""
        if not batch.is_current:
            return 0
        failures = batch.held.failures
        failures[message.queue_offset] = failures.get(message.queue_offset, 0) + 1
        return failures[message.queue_offset]

    def set_aside(self, batch: Batch, message: StoredMessage, *, until_ms: int) -> None:
        """Let a message of a batch wait alone; the others of its queue go on."""
        assert not self._is_orderly, "a message would overtake this one"
        if batch.is_current:
            self._wait(batch, until_ms, message)

    def suspend(self, batch: Batch, messages: Sequence[StoredMessage], *, until_ms: int) -> None:
        """Put messages of a batch back to the front of an orderly queue, and let the queue wait."""
        assert self._is_orderly, "other queues do not wait for a message"
        if batch.is_current and messages:
            batch.held.waiting.extendleft(reversed(messages))
            batch.held.is_suspended = True
            self._wait(batch, until_ms, None)

    def ended(self, batch: Batch) -> None:
        """Note that a batch has ended."""
        batch.held.running_count -= 1
        assert batch.held.running_count >= 0, f"{batch.held.queue} has ended more batches than it began"
        self._give_turn(batch.held)

    def resume(self, *, now_ms: int) -> None:
        """Continue with the messages and queues whose wait is over."""
        while self._due and self._due[0].at_ms <= now_ms:
            due = heapq.heappop(self._due)
            held = due.held
            if due.generation != held.generation:
                continue
            if due.message is None:
                held.is_suspended = False
            else:
                held.waiting.appendleft(due.message)
            self._give_turn(held)

    def next_due_ms(self) -> int | None:
        """Return the time at which the next wait ends, or None."""
        return self._due[0].at_ms if self._due else None

    def drain(self, held: Collection[HeldQueue], *, is_draining: bool = True) -> None:
        """Begin no further batch of these queues; with `is_draining=False`, begin again."""
        for each in held:
            each.is_draining = is_draining
            self._give_turn(each)

    def _wait(self, batch: Batch, until_ms: int, message: StoredMessage | None) -> None:
        self._due_count += 1
        heapq.heappush(self._due, _Due(until_ms, self._due_count, batch.held, batch.generation, message))

    def _is_ready(self, held: HeldQueue) -> bool:
        if not held.waiting or held.is_draining or held.is_dropped:
            return False
        return not self._is_orderly or not (held.running_count or held.is_suspended)

    def _give_turn(self, held: HeldQueue) -> None:
        if not held.has_turn and self._is_ready(held):
            held.has_turn = True
            self._turns.append(held)

    def _forget_messages(self, held: HeldQueue) -> None:
        if held.is_dropped:
            return
        self.messages -= held.window.in_flight_count
        self.bytes -= held.window.in_flight_bytes
        held.generation += 1
        held.waiting.clear()
        held.failures.clear()
        held.dying.clear()
        held.is_suspended = False
