"""A live tail: a subscription that shows the messages of a topic without a group (docs/adr/0056-live-tails.md).

Theory of operation. A tail has a feed for each queue of the topic, and sends as every subscription does, but nothing of
it is in flight: a message that is sent is settled. Its rate is an allowance, which `tick` fills once a second.

If the rate, the credit, a pause or the client holds it back (`is_held_back`), messages pile up at the brokers. Each pull
tells the end of its queue, so the number of messages that wait is known. If they are more than 2 s of the rate, the queue
of the pull goes on at its newest messages. Pure.
"""

import dataclasses
from typing import Any, ClassVar, Final

from gantry.model.message import MessageQueue
from services.gateway.ws.feed import Feed, PullOrder
from services.gateway.ws.messagewriter import WrittenMessages
from services.gateway.ws.subscription import Subscription

BEHIND_S: Final = 2
"""Messages that wait for a tail that is held back, in seconds of its rate, from which it skips."""
BEHIND_MAX: Final = 100_000
"""Messages that wait for a tail that nothing holds back, from which it skips: its broker filters too slowly."""


class TailSubscription(Subscription):
    """A live tail of a topic.

    Attributes:
        rate_per_s: Limit of messages in a second.
        skipped: Number of stored messages that were not looked at, since the beginning.
        is_held_back: Whether something has held it back in the last second.
    """

    is_tail: ClassVar[bool] = True

    def __init__(self, *arguments: Any, rate_per_s: int, **settings: Any) -> None:
        """Make it; the other arguments are those of `Subscription`."""
        super().__init__(*arguments, **settings)
        self.rate_per_s = rate_per_s
        self.skipped = 0
        self.is_held_back = False
        self._rate_left = rate_per_s
        self._told_skipped = 0
        self._refilled_at_ms: int | None = None
        self._ends: dict[MessageQueue, int] = {}
        self._caught_up: set[MessageQueue] = set()

    @property
    def has_credit(self) -> bool:
        """Return whether one more message may be sent."""
        return self._rate_left > 0 and super().has_credit

    @property
    def waits_for_credit(self) -> bool:
        """Return whether pulled records wait for credit, and not only for the next second."""
        return not super().has_credit and super().waits_for_credit

    def next_pull(self, feed: Feed, *, bytes_max: int) -> PullOrder | None:
        """Return the next pull of a feed: not more messages than its share of a second."""
        order = super().next_pull(feed, bytes_max=bytes_max)
        if order is None:
            return None
        return dataclasses.replace(order, messages_max=min(order.messages_max, self._share))

    def drop_feed(self, queue: MessageQueue) -> Feed | None:
        """Remove a queue that the topic does not have any more, or whose broker is away."""
        self._ends.pop(queue, None)
        return super().drop_feed(queue)

    def follow_live(self, queue: MessageQueue) -> None:
        """Note that a queue begins with new messages, so that none of the past are wanted."""
        self._caught_up.add(queue)

    def skip_target(self, queue: MessageQueue, offset: int, next_offset: int, end: int) -> int | None:
        """Return the offset at which the tail goes on because it is too far behind; None: with the pulled messages.

        Args:
            queue: The queue of a pull.
            offset: The offset of the pull.
            next_offset: The offset of the next pull.
            end: The end of the queue.
        """
        self._ends[queue] = end
        if queue not in self._caught_up:
            if next_offset >= end:
                self._caught_up.add(queue)
            return None
        behind = sum(
            max(0, known - (offset if each == queue else self.feeds[each].next_offset))
            for each, known in self._ends.items()
            if each in self._caught_up and each in self.feeds
        )
        limit = BEHIND_S * self.rate_per_s if self.is_held_back or self._is_exhausted else BEHIND_MAX
        target = end - self._share
        return target if behind > limit and target > offset else None

    def note_skipped(self, count: int) -> None:
        """Count messages that are not looked at."""
        self.skipped += max(0, count)

    def tick(self, *, now_ms: int, is_blocked: bool) -> bool:
        """Allow the messages of the time since the last call; return whether `skipped` has changed since then.

        `is_blocked` is whether the client takes no messages now.
        """
        self.is_held_back = is_blocked or self._is_exhausted
        elapsed_ms = 1_000 if self._refilled_at_ms is None else now_ms - self._refilled_at_ms
        self._refilled_at_ms = now_ms
        self._rate_left = min(self.rate_per_s, self._rate_left + max(1, self.rate_per_s * elapsed_ms // 1_000))
        has_changed = self.skipped != self._told_skipped
        self._told_skipped = self.skipped
        return has_changed

    def commits(self) -> tuple[()]:
        """Return nothing: a tail commits no offsets."""
        return ()

    @property
    def _is_exhausted(self) -> bool:
        return self.is_paused or not self.has_credit

    @property
    def _share(self) -> int:
        return max(1, self.rate_per_s // max(1, len(self.feeds)))

    @property
    def _sendable(self) -> int:
        return min(self.credit_messages, self._rate_left)

    def _count(self, feed: Feed, taken: WrittenMessages, now_ms: int) -> None:
        """Count messages that are sent: none of them stays in flight."""
        feed.window.position = max(feed.window.position, taken.next_offset)
        count, size = len(taken.offsets), sum(taken.sizes)
        self._sent += count
        self._rate_left -= count
        self.credit_messages -= count
        self._granted_messages -= count
        self.credit_bytes -= size
        self._granted_bytes -= size
        if self._is_exhausted:
            self.is_held_back = True
