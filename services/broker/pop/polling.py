"""Requests that wait for a message: pops, and notifications, which only ask whether there is one.

A waiting request belongs to a topic and a group. A message that arrives in the topic wakes one pop of each group that
takes it; a message in a pop retry topic wakes one pop of its group. A pop that leaves messages behind wakes the next
one. So one message does not wake all clients. Notifications take nothing, so a message wakes all of them.

Concurrency: the loop's thread only.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

from gantry.runtime.telemetry import logger
from gantry.storeformat.layout import UNIT
from services.broker.filter.tags import UnitFilter

log = logger("broker.pop")

POLL_MS_MAX: Final = 300_000
"""Longest time that a request waits, as for held pulls."""
ANY_QUEUE: Final = -1


class Waiting:
    """A waiting request.

    Attributes:
        topic: The topic that the request names.
        group: The group.
        queue_id: The queue, or ANY_QUEUE.
        unit_filter: Filter by tags, or None. A pop with an SQL92 expression decides when it runs again.
        owner: The connection.
        until_ms: End of the wait (monotonic ms).
        takes: Whether the request takes messages.
        retry_topics: The pop retry topics of the group for the topic.
        resume: Runs the request again; its argument says whether its time is over.
        fail: Replies with an error.
    """

    __slots__ = (
        "fail",
        "group",
        "owner",
        "queue_id",
        "resume",
        "retry_topics",
        "takes",
        "topic",
        "unit_filter",
        "until_ms",
    )

    def __init__(
        self,
        topic: str,
        group: str,
        queue_id: int,
        unit_filter: UnitFilter | None,
        owner: Any,
        *,
        until_ms: int,
        takes: bool,
        retry_topics: tuple[str, ...],
        resume: Callable[[bool], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self.topic = topic
        self.group = group
        self.queue_id = queue_id
        self.unit_filter = unit_filter
        self.owner = owner
        self.until_ms = until_ms
        self.takes = takes
        self.retry_topics = retry_topics
        self.resume = resume
        self.fail = fail

    def wants(self, queue_id: int, units: bytes) -> bool:
        """Return whether one of these new messages of a queue is for the request."""
        if self.queue_id not in {ANY_QUEUE, queue_id}:
            return False
        takes = self.unit_filter
        return takes is None or any(takes(tags_code) for _, _, tags_code in UNIT.iter_unpack(units))


class PopPolling:
    """All waiting requests. Its owner limits the number.

    Attributes:
        count: Number of waiting requests.
        failures: Number of requests whose resumption raised an exception.
    """

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, dict[Waiting, None]]] = {}
        self._retry_topics: dict[str, dict[tuple[str, str], None]] = {}
        self._woken: dict[Waiting, None] = {}
        self.count = 0
        self.failures = 0

    def hold(self, waiting: Waiting) -> None:
        """Keep a request until something wakes it."""
        self._topics.setdefault(waiting.topic, {}).setdefault(waiting.group, {})[waiting] = None
        self.count += 1
        for topic in waiting.retry_topics:
            self._retry_topics.setdefault(topic, {})[waiting.topic, waiting.group] = None

    def arrived(self, topic: str, queue_id: int, max_offset: int, units: bytes) -> None:
        """Mark the requests that new messages answer. Dispatch calls this."""
        if not self.count:
            return
        for members in self._topics.get(topic, {}).values():
            self._mark(members, queue_id, units)
        for origin, group in self._retry_topics.get(topic, ()):
            self._mark(self._topics[origin][group], ANY_QUEUE, units)

    def _mark(self, members: dict[Waiting, None], queue_id: int, units: bytes) -> None:
        is_taken = False
        for waiting in members:
            if waiting in self._woken:
                continue
            if queue_id != ANY_QUEUE and not waiting.wants(queue_id, units):
                continue
            if waiting.takes:
                if is_taken:
                    continue
                is_taken = True
            self._woken[waiting] = None

    def wake(self) -> None:
        """Resume the marked requests."""
        while self._woken:
            woken, self._woken = self._woken, {}
            for waiting in woken:
                if self._remove(waiting):
                    self._resume(waiting, is_over=False)

    def wake_one(self, topic: str, group: str) -> None:
        """Mark the pop that has waited longest, and all notifications, because there are messages; `wake` resumes them."""
        is_taken = False
        for waiting in self._topics.get(topic, {}).get(group, ()):
            if waiting in self._woken or (waiting.takes and is_taken):
                continue
            is_taken = is_taken or waiting.takes
            self._woken[waiting] = None

    def waiting_count(self, topic: str, group: str, queue_id: int) -> int:
        """Return the number of pops of a group that wait for a queue, or for any."""
        return sum(
            waiting.takes and waiting.queue_id == queue_id for waiting in self._topics.get(topic, {}).get(group, ())
        )

    def sweep(self, now_ms: int) -> None:
        """Resume the requests whose time is over. A timer calls this."""
        for waiting in [waiting for waiting in self._all() if waiting.until_ms <= now_ms]:
            if self._remove(waiting):
                self._resume(waiting, is_over=True)

    def forget(self, owner: Any) -> None:
        """Drop the requests of a closed connection."""
        for waiting in [waiting for waiting in self._all() if waiting.owner is owner]:
            self._remove(waiting)

    def resume_all(self) -> None:
        """Resume all requests as if their time was over, so that a broker that stops replies to them."""
        for waiting in list(self._all()):
            if self._remove(waiting):
                self._resume(waiting, is_over=True)

    def _all(self) -> Iterator[Waiting]:
        for groups in self._topics.values():
            for members in groups.values():
                yield from members

    def _resume(self, waiting: Waiting, *, is_over: bool) -> None:
        try:
            waiting.resume(is_over)
        except Exception as error:  # boundary: one failed request must not stop the resumption of the others.
            self.failures += 1
            log.exception("a waiting pop failed", topic=waiting.topic, group=waiting.group)
            waiting.fail(error)

    def _remove(self, waiting: Waiting) -> bool:
        groups = self._topics.get(waiting.topic, {})
        members = groups.get(waiting.group, {})
        if waiting not in members:
            return False
        del members[waiting]
        self.count -= 1
        if not members:
            del groups[waiting.group]
            if not groups:
                del self._topics[waiting.topic]
            for topic in waiting.retry_topics:
                pairs = self._retry_topics[topic]
                del pairs[waiting.topic, waiting.group]
                if not pairs:
                    del self._retry_topics[topic]
        return True
