"""Reading several queues at once: one long-polling thread for each queue, one stream of messages."""

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gantry.cli.remote import Remote, segment

WAIT_MS = 10_000
READ_LIMIT = 100
# Messages read but not yet printed. When the terminal stops reading, the threads stop, too.
WAITING_MAX = 1_000


@dataclass(slots=True)
class QueueFollower:
    """The position of a reader in one queue."""

    remote: Remote
    topic: str
    broker: str
    queue_id: int
    offset: str
    expression: str
    sql: str | None
    until_end: bool

    def read(self) -> list[dict[str, Any]] | None:
        """Return the next messages, possibly none; None at the end of the queue if `until_end` is set."""
        path = f"/v1/topics/{segment(self.topic)}/queues/{segment(self.broker)}/{self.queue_id}/messages"
        answer = self.remote.call(
            "GET",
            path,
            query={
                "offset": self.offset,
                "limit": READ_LIMIT,
                "filter": None if self.expression == "*" else self.expression,
                "sql": self.sql,
                "wait": None if self.until_end else f"{WAIT_MS}ms",
            },
            wait_ms=0 if self.until_end else WAIT_MS,
        )
        self.offset = answer["next_offset"]
        messages: list[dict[str, Any]] = answer["messages"]
        at_end = int(self.offset) >= int(answer["max_offset"])
        return None if self.until_end and at_end and not messages else messages


def follow(followers: Sequence[QueueFollower]) -> Iterator[dict[str, Any]]:
    """Yield the messages of all queues as they arrive, until every follower has reached its end.

    Raises:
        SystemExit: A request failed. The reason is printed.
    """
    arrivals: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue(WAITING_MAX)
    stopping = threading.Event()

    def run(follower: QueueFollower) -> None:
        try:
            while not stopping.is_set() and (messages := follower.read()) is not None:
                for message in messages:
                    arrivals.put(message)
        except BaseException as error:  # noqa: BLE001 # boundary: an error of any thread ends the command, in its main thread.
            arrivals.put(error)
        else:
            arrivals.put(None)

    for follower in followers:
        # Daemon threads: Ctrl-C does not wait for a long poll.
        threading.Thread(target=run, args=(follower,), daemon=True).start()
    running = len(followers)
    try:
        while running:
            arrival = arrivals.get()
            if isinstance(arrival, BaseException):
                raise arrival
            if arrival is None:
                running -= 1
            else:
                yield arrival
    finally:
        stopping.set()  # The caller needs no more messages: the threads stop reading.
