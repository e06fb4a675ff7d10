"""Held pulls: a pull that finds no message waits here until a message arrives or its time is over.

A held pull is stored under its (topic, queue id), under its deadline in a bucket of SWEEP_INTERVAL_MS, and under its
connection. All tables are insertion-ordered dicts, so the cost of holding, waking and forgetting does not depend on the
number of held pulls. The arrival of a message only marks a pull. `wake` then resumes all marked pulls at once, so one
reply to a pull carries all messages of a batch. A message that a pull's filter does not let through leaves the pull
waiting.

Concurrency: the loop's thread only.
"""

from collections.abc import Callable
from typing import Any, Protocol

from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import UNIT
from services.broker.filter.subscriptions import MessageFilter

log = logger("broker.longpolling")

SWEEP_INTERVAL_MS = 100
# RocketMQ takes any time that a client asks for. This limit keeps a table entry from staying for hours.
SUSPEND_MAX_MS = 300_000
# Largest cost of the SQL92 expressions that one arrival evaluates, about 2 ms. Beyond it, pulls are resumed, and their
# reads evaluate the rest.
WAKE_COST_MAX = 10_000

ReadProperties = Callable[[int], bytes | None]
"""Returns the encoded properties of the message at a physical offset, or None if they can't be read."""


class ArrivalObserver(Protocol):
    """Further requests that wait for messages. Each method is called together with the one of LongPolling."""

    def arrived(self, topic: str, queue_id: int, max_offset: int, units: bytes) -> None:
        """Mark the requests that new messages answer."""
        ...

    def wake(self) -> None:
        """Resume the marked requests."""
        ...

    def sweep(self, now_ms: int) -> None:
        """Resume the requests whose time is over."""
        ...

    def forget(self, owner: Any) -> None:
        """Drop the requests of a closed connection."""
        ...

    def resume_all(self) -> None:
        """Resume all requests."""
        ...


class HeldPull:
    """One waiting pull. `owner` is its connection, `resume` replies to it, `fail` replies with an error."""

    __slots__ = ("bucket", "fail", "filter", "offset", "owner", "queue", "resume")

    def __init__(
        self,
        queue: tuple[str, int],
        offset: int,
        wanted: MessageFilter,
        owner: Any,
        *,
        resume: Callable[[], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.queue = queue
        self.offset = offset
        self.filter = wanted
        self.owner = owner
        self.resume = resume
        self.fail = fail
        self.bucket = 0


class LongPolling:
    """The table of held pulls. Its owner limits the size: it checks `count` before it holds one more pull.

    Args:
        now_ms: The monotonic time.
        read_properties: Reads the properties of a message that has just arrived.

    Attributes:
        count: Number of held pulls.
        failures: Number of pulls whose resumption raised an exception.
        observers: Further requests that wait, such as pops.
    """

    def __init__(self, now_ms: int, read_properties: ReadProperties) -> None:
        self._read_properties = read_properties
        self.observers: list[ArrivalObserver] = []
        self._queues: dict[tuple[str, int], dict[HeldPull, None]] = {}
        self._buckets: dict[int, dict[HeldPull, None]] = {}
        self._owners: dict[Any, dict[HeldPull, None]] = {}
        self._woken: list[HeldPull] = []
        self._swept_bucket = now_ms // SWEEP_INTERVAL_MS
        self.count = 0
        self.failures = 0

    def hold(self, held: HeldPull, now_ms: int, suspend_ms: int) -> None:
        """Hold a pull for `suspend_ms`, counted on the monotonic clock that gave `now_ms`."""
        bucket = (now_ms + min(max(suspend_ms, 0), SUSPEND_MAX_MS)) // SWEEP_INTERVAL_MS + 1
        held.bucket = bucket
        self._queues.setdefault(held.queue, {})[held] = None
        self._buckets.setdefault(bucket, {})[held] = None
        self._owners.setdefault(held.owner, {})[held] = None
        self.count += 1
        assert self.count >= len(self._queues), "a pull is held once, and every queue in the table holds one"

    def arrived(self, topic: str, queue_id: int, max_offset: int, units: bytes) -> None:
        """Mark the pulls that new messages answer. Dispatch calls this.

        Args:
            topic: Topic of the messages.
            queue_id: Queue of the messages.
            max_offset: Queue offset after the last new message.
            units: ConsumeQueue units of the messages, which end at `max_offset`.
        """
        for observer in self.observers:
            observer.arrived(topic, queue_id, max_offset, units)
        waiting = self._queues.get((topic, queue_id))
        if waiting is None:
            return
        arrival = _Arrival(max_offset, units, self._read_properties)
        for held in [held for held in waiting if arrival.answers(held)]:
            self._remove(held)
            self._woken.append(held)

    def wake(self) -> None:
        """Resume the marked pulls."""
        if self._woken:
            woken, self._woken = self._woken, []
            for held in woken:
                self._resume(held)
        for observer in self.observers:
            observer.wake()

    def sweep(self, now_ms: int) -> None:
        """Resume the pulls whose time is over. A timer calls this every SWEEP_INTERVAL_MS."""
        current = now_ms // SWEEP_INTERVAL_MS
        first = self._swept_bucket + 1
        # After a long pause (a stopped machine), more buckets may have passed than there are pulls.
        due = range(first, current + 1) if current - first < len(self._buckets) else sorted(self._buckets)
        for bucket in due:
            if bucket <= current:
                for held in list(self._buckets.get(bucket, ())):
                    self._remove(held)
                    self._resume(held)
        self._swept_bucket = current
        for observer in self.observers:
            observer.sweep(now_ms)

    def forget(self, owner: Any) -> None:
        """Drop the pulls of a closed connection."""
        for held in list(self._owners.get(owner, ())):
            self._remove(held)
        for observer in self.observers:
            observer.forget(owner)

    def resume_queue(self, topic: str, queue_id: int) -> None:
        """Resume the pulls that are held for a queue, because an offset in it was reset."""
        for held in list(self._queues.get((topic, queue_id), ())):
            self._remove(held)
            self._resume(held)

    def resume_all(self) -> None:
        """Resume all held pulls, so that a broker that stops replies to them."""
        for waiting in list(self._owners.values()):
            for held in list(waiting):
                self._remove(held)
                self._resume(held)
        for observer in self.observers:
            observer.resume_all()

    def _resume(self, held: HeldPull) -> None:
        try:
            held.resume()
        except Exception as error:  # boundary: one failed pull must not stop the resumption of the others.
            self.failures += 1
            topic, queue_id = held.queue
            log.exception("a held pull failed", topic=topic, queue_id=queue_id, offset=held.offset)
            held.fail(error)

    def _remove(self, held: HeldPull) -> None:
        _discard(self._queues, held.queue, held)
        _discard(self._buckets, held.bucket, held)
        _discard(self._owners, held.owner, held)
        self.count -= 1
        assert self.count >= len(self._queues), "every queue in the table holds a pull"


class _Arrival:
    """Messages that have arrived in a queue. The properties of each message are read at most once."""

    __slots__ = ("_budget", "_first", "_properties", "_read", "_units")

    def __init__(self, max_offset: int, units: bytes, read: ReadProperties) -> None:
        self._units = list(UNIT.iter_unpack(units))
        self._first = max_offset - len(self._units)
        self._read = read
        self._properties: dict[int, bytes | None] = {}
        self._budget = WAKE_COST_MAX

    def answers(self, held: HeldPull) -> bool:
        """Return whether a pull has a message now, or must look itself."""
        units = self._units[max(held.offset - self._first, 0) :]
        takes, sql = held.filter
        if takes is not None:
            return any(takes(tags_code) for _, _, tags_code in units)
        if sql is None:
            return len(units) > 0
        for at, _, _ in units:
            self._budget -= sql.cost
            properties = self._properties_at(at) if self._budget >= 0 else None
            if properties is None or sql.matches(properties):
                return True
        return False

    def _properties_at(self, at: int) -> bytes | None:
        if at not in self._properties:
            self._properties[at] = self._read(at)
        return self._properties[at]


def _discard(table: dict[Any, dict[HeldPull, None]], key: Any, held: HeldPull) -> None:
    members = table[key]
    del members[held]
    if not members:
        del table[key]
