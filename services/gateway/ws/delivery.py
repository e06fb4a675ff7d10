"""What a session may pull and send now, over all its subscriptions: the bounds of what one connection keeps in memory.

Theory of operation. Records wait in three places for a client that is slow to take them: with the connection (outbox and
socket buffer, which `block` and `unblock` report), with the feeds (held), and on their way from a broker. The latter two
share an allowance. A pull that will find something takes its bytes from the allowance until it ends, then the
records do until they are sent. What has no room is dropped and pulled again later: nothing that was not sent is lost by it.

    a client that reads       ALLOWANCE_BYTES, so that several queues are pulled at once
    one that does not         SLOW_BYTES: what is above it is dropped (`set_slow`), and one pull goes at a time
    all streams together      SHARED_BYTES_MAX; above it everybody is treated as slow

A pull that waits at the broker for messages takes nothing: when it finds something and there is no room, it is repeated
in its turn. Feeds without room wait in a queue (`waiting`). What a subscription holds that is paused or has no credit is
dropped when another one's feed needs the room. Pure.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from services.gateway.ws.answers import Answers
from services.gateway.ws.effects import Effect, Send, WakeFeed
from services.gateway.ws.feed import Damage, Feed, PullOrder
from services.gateway.ws.subscription import Subscription

# A broker's own limit for one pull.
PULL_BYTES: Final = 256 * 1024
ALLOWANCE_BYTES: Final = 1024 * 1024
# With the outbox, the socket's buffer and a frame above each of them, a client that takes nothing costs 256 KiB.
SLOW_BYTES: Final = 64 * 1024
# Emitted in one go; the connection asks for more unless its outbox is full.
DELIVERED_BYTES_MAX: Final = 64 * 1024
SHARED_BYTES_MAX: Final = 64 * 1024 * 1024


class SharedBytes:
    """What all streams together hold and expect.

    Concurrency: one thread.
    """

    def __init__(self, bytes_max: int = SHARED_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0


class Delivery:
    """The bounds of one session.

    Attributes:
        is_slow: The client takes next to nothing.
        shared: The count of all streams together.
    """

    def __init__(
        self,
        answers: Answers,
        subscriptions: Mapping[str, Subscription],
        shared: SharedBytes,
        *,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        """Make one; `may_send` says whether the client's key may have more that is not taken."""
        self.is_slow = False
        self._may_send = may_send
        self._is_blocked = False
        self._answers = answers
        self._subscriptions = subscriptions
        self.shared = shared
        self._expected_bytes = 0
        self._counted_bytes = 0
        self._is_stopped = False
        # Kept until the next pulls or `set_slow`: malloc gives memory that is free at its end back to the system at once,
        # and each pull would fault all of its pages in again.
        self._last_pulled: deque[bytes] = deque(maxlen=ALLOWANCE_BYTES // PULL_BYTES)
        self._unfinished: dict[Subscription, None] = {}
        self._waiting: dict[Feed, Subscription] = {}
        # Brokers whose last pull failed. A pull there counts for nothing: it may hang, and others must not wait for it.
        self._failing: set[str] = set()

    @property
    def is_blocked(self) -> bool:
        """Say whether nothing is sent or pulled now; so it stays until `unblock`.

        The connection has more to write than it should hold, or all those of its key have.
        """
        if not self._is_blocked and not self._may_send():
            self._is_blocked = True
        return self._is_blocked

    @property
    def held_bytes(self) -> int:
        """Return how many bytes of records wait to be sent."""
        return sum(each.held_bytes for each in self._subscriptions.values())

    def stop(self) -> None:
        """Give back what is counted with all streams, for good."""
        self.shared.bytes -= self._counted_bytes
        self._is_stopped = True

    def deliver(self, subscription: Subscription, *, now_ms: int) -> list[Effect]:
        """Return the frames that may be sent now; where more are left, `more` continues."""
        self._unfinished.pop(subscription, None)
        if self.is_blocked:
            return []
        if subscription.has_credit:
            subscription.starved = False
        damaged: list[Damage] = []
        effects: list[Effect] = []
        left = DELIVERED_BYTES_MAX
        for frame in subscription.deliver(now_ms=now_ms, damaged=damaged):
            effects.append(Send(frame))
            left -= len(frame)
            if left <= 0:
                self._unfinished[subscription] = None
                break
        if damaged:
            effects.extend(self._answers.damages(subscription, damaged))
        if subscription.starves and not subscription.starved:
            subscription.starved = True
            effects.append(self._answers.state(subscription, "no_credit"))
        effects.extend(self.wake_waiting())
        return effects

    def more(self, *, now_ms: int) -> list[Effect]:
        """Go on where `deliver` ended because it had emitted enough for one go; empty when there is nothing left."""
        while self._unfinished and not self.is_blocked:
            effects = self.deliver(next(iter(self._unfinished)), now_ms=now_ms)
            if effects:
                return effects
        return []

    def block(self) -> None:
        """Hold messages back: there is more to write than the connection should hold."""
        self._is_blocked = True

    def unblock(self, *, now_ms: int) -> list[Effect]:
        """Let messages go again."""
        self._is_blocked = False
        self._unfinished = dict.fromkeys(self._subscriptions.values())
        return [*self.more(now_ms=now_ms), *self.wake_waiting()]

    def set_slow(self, is_slow: bool) -> list[Effect]:
        """Note, about once a second, whether the client takes next to nothing; then drop what is above its allowance."""
        self._last_pulled.clear()
        if is_slow is self.is_slow:
            return []
        self.is_slow = is_slow
        if is_slow:
            surplus = self.held_bytes - SLOW_BYTES
            for subscription in self._subscriptions.values():
                for feed in subscription.feeds.values():
                    if surplus > 0:
                        surplus -= subscription.drop_held(feed)
        return self.wake_waiting()

    def next_pull(self, subscription: Subscription, feed: Feed) -> PullOrder | None:
        """Return what a feed without a pull under way should pull; None for nothing now: `WakeFeed` or `Wake` tells it.

        Each pull ends with `ended`.
        """
        order = subscription.next_pull(feed, bytes_max=self._pull_bytes)
        if order is None:
            return None
        is_counted = not order.waits and feed.queue.broker_name not in self._failing
        if self.is_blocked or (is_counted and not self._has_room()):
            self._waiting[feed] = subscription
            return None
        if is_counted:
            feed.expected_bytes = order.bytes_max
            self._expected_bytes += order.bytes_max
            self._count()
        return order

    def ended(self, feed: Feed, *, has_failed: bool) -> list[Effect]:
        """Take note that a feed's pull has ended."""
        self._expected_bytes -= feed.expected_bytes
        feed.expected_bytes = 0
        if has_failed:
            self._failing.add(feed.queue.broker_name)
        else:
            self._failing.discard(feed.queue.broker_name)
        return self.wake_waiting()

    def hold(self, subscription: Subscription, feed: Feed, order: PullOrder, data: bytes, next_offset: int) -> bool:
        """Hold what a pull found; say whether there was room, else it is pulled again later."""
        held_bytes = self.held_bytes
        # Where nothing is held, a pull that asked for little is taken whatever it brings: one message may be large.
        is_only = held_bytes == 0 and order.bytes_max <= SLOW_BYTES
        if not self.is_slow:
            self._last_pulled.append(data)
        if held_bytes + len(data) > self._allowance_bytes and not is_only:
            feed.is_behind = True
            return False
        subscription.hold(feed, data, next_offset)
        self._count()
        return True

    def wake_waiting(self) -> list[Effect]:
        """Return whom to wake of those that wait for room."""
        self._count()
        for subscription in self._subscriptions.values():
            self._waiting.update(dict.fromkeys(subscription.take_emptied(), subscription))
        if not self._waiting or self.is_blocked:
            return []
        room = self._allowance_bytes - self.held_bytes - self._expected_bytes
        effects: list[Effect] = []
        while self._waiting:
            feed, subscription = next(iter(self._waiting.items()))
            if subscription.next_pull(feed, bytes_max=self._pull_bytes) is not None:
                room += self._drop_stuck() if room <= 0 else 0
                if room <= 0:
                    break
                room -= self._pull_bytes
                effects.append(WakeFeed(subscription, feed))
            del self._waiting[feed]
        return effects

    def _drop_stuck(self) -> int:
        """Drop what subscriptions hold that may send nothing now, so that others can; return how many bytes that were."""
        stuck = [each for each in self._subscriptions.values() if each.held_bytes and not each.may_send]
        return sum(each.drop_held(feed) for each in stuck for feed in each.feeds.values())

    @property
    def _allowance_bytes(self) -> int:
        return SLOW_BYTES if self._pull_bytes == SLOW_BYTES else ALLOWANCE_BYTES

    @property
    def _pull_bytes(self) -> int:
        return SLOW_BYTES if self.is_slow or self.shared.bytes >= self.shared.bytes_max else PULL_BYTES

    def _has_room(self) -> bool:
        return self.held_bytes + self._expected_bytes < self._allowance_bytes

    def _count(self) -> None:
        """Keep the count of all streams together."""
        if self._is_stopped:
            return
        counted = self.held_bytes + self._expected_bytes
        self.shared.bytes += counted - self._counted_bytes
        self._counted_bytes = counted
