"""Following queues side by side: a thread a queue that long-polls, one stream of messages out."""

import queue
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gantry.cli.remote import Remote, segment

WAIT_MS = 10_000
READ_LIMIT = 100
# The threads stop reading when the terminal does.
WAITING_MAX = 1_000


@dataclass(slots=True)
class QueueFollower:
    """Where one queue is read, and how far."""

    remote: Remote
    topic: str
    broker: str
    queue_id: int
    offset: str
    expression: str
    until_end: bool

    def read(self) -> list[dict[str, Any]] | None:
        """Return the next messages, perhaps none yet; None where the end is reached and wanted."""
        path = f"/v1/topics/{segment(self.topic)}/queues/{segment(self.broker)}/{self.queue_id}/messages"
        answer = self.remote.call(
            "GET",
            path,
            query={
                "offset": self.offset,
                "limit": READ_LIMIT,
                "filter": None if self.expression == "*" else self.expression,
                "wait": None if self.until_end else f"{WAIT_MS}ms",
            },
            wait_ms=0 if self.until_end else WAIT_MS,
        )
        self.offset = answer["next_offset"]
        messages: list[dict[str, Any]] = answer["messages"]
        at_end = int(self.offset) >= int(answer["max_offset"])
        return None if self.until_end and at_end and not messages else messages


def follow(followers: Sequence[QueueFollower]) -> Iterator[dict[str, Any]]:
    """Yield messages of all queues as they come; ends when every follower has reached its end.

    Raises:
        SystemExit: The gateway refused; the reason has been said.
    """
    arrivals: queue.Queue[dict[str, Any] | BaseException | None] = queue.Queue(WAITING_MAX)
    stopping = threading.Event()

    def run(follower: QueueFollower) -> None:
        try:
            while not stopping.is_set() and (messages := follower.read()) is not None:
                for message in messages:
                    arrivals.put(message)
        except BaseException as error:  # noqa: BLE001 # boundary: whatever ends a thread ends the command, in its main thread.
            arrivals.put(error)
        else:
            arrivals.put(None)

    for follower in followers:
        # Daemons: Ctrl-C does not wait for a long poll.
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
        stopping.set()  # Whoever asked has enough: no thread reads on.
