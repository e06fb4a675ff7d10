"""The limits on what a session may pull and send now, over all its subscriptions.

Theory of operation. Records for a slow client wait in three places: in the connection (outbox and socket buffer, whose
state `block` and `unblock` report), in the feeds (held), and in pulls that are in flight. Feeds and pulls share an
allowance. A pull that will find something takes its bytes from the allowance until it ends; then its records take them
until they are sent. Records without room are dropped and pulled again later, and nothing is lost, because they were not
sent.

    a client that reads         ALLOWANCE_BYTES, so that several queues are pulled at once
    one that does not           SLOW_BYTES: records beyond it are dropped (`set_slow`), with one pull at a time
    all streams together        SHARED_BYTES_MAX; beyond it every client is treated as slow

A pull that waits at the broker for messages takes nothing: if it finds something and there is no room, it is repeated
in its turn. Feeds without room wait in a queue (`waiting`). Records of a subscription that is paused or without credit
are dropped when the feed of another one needs the room. Pure.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from services.gateway.ws.answers import Answers
from services.gateway.ws.effects import Effect, Send, WakeFeed
from services.gateway.ws.feed import Damage, Feed, PullOrder
from services.gateway.ws.subscription import Subscription

# The broker's own limit for one pull.
PULL_BYTES: Final = 256 * 1024
ALLOWANCE_BYTES: Final = 1024 * 1024
# With the outbox, the socket's buffer and one frame beyond each of them, a client that reads nothing costs 256 KiB.
SLOW_BYTES: Final = 64 * 1024
# The limit of frames that one call emits; the connection calls again unless its outbox is full.
DELIVERED_BYTES_MAX: Final = 64 * 1024
SHARED_BYTES_MAX: Final = 64 * 1024 * 1024


class SharedBytes:
    """The bytes that all streams together hold and expect.

    Concurrency: one thread.
    """

    def __init__(self, bytes_max: int = SHARED_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0


class Delivery:
    """The limits of one session.

    Attributes:
        is_slow: Whether the client takes next to nothing.
        shared: Count of all streams together.
    """

    def __init__(
        self,
        answers: Answers,
        subscriptions: Mapping[str, Subscription],
        shared: SharedBytes,
        *,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        """Create it; `may_send` returns whether the client's key has room for more unsent bytes."""
        self.is_slow = False
        self._may_send = may_send
        self._is_blocked = False
        self._answers = answers
        self._subscriptions = subscriptions
        self.shared = shared
        self._expected_bytes = 0
        self._counted_bytes = 0
        self._is_stopped = False
        # These pulls are kept until the next ones or `set_slow`: otherwise malloc returns their memory to the system at
        # once, and each pull takes page faults for all of it again.
        self._last_pulled: deque[bytes] = deque(maxlen=ALLOWANCE_BYTES // PULL_BYTES)
        self._unfinished: dict[Subscription, None] = {}
        self._waiting: dict[Feed, Subscription] = {}
        # Brokers whose last pull failed. A pull there takes nothing from the allowance: it may hang, and other queues
        # must not wait for it.
        self._failing: set[str] = set()

    @property
    def is_blocked(self) -> bool:
        """Return whether nothing is sent or pulled now; this lasts until `unblock`.

        The reason is that this connection, or all connections of its key together, hold too many unsent bytes.
        """
        if not self._is_blocked and not self._may_send():
            self._is_blocked = True
        return self._is_blocked

    @property
    def held_bytes(self) -> int:
        """Return the number of bytes of records that wait to be sent."""
        return sum(each.held_bytes for each in self._subscriptions.values())

    def stop(self) -> None:
        """Remove this session from the shared count for good."""
        self.shared.bytes -= self._counted_bytes
        self._is_stopped = True

    def deliver(self, subscription: Subscription, *, now_ms: int) -> list[Effect]:
        """Return the frames that may be sent now; if more are left, `more` continues."""
        self._unfinished.pop(subscription, None)
        if self.is_blocked:
            return []
        if subscription.has_credit:
            subscription.is_credit_reported = False
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
        if subscription.waits_for_credit and not subscription.is_credit_reported:
            subscription.is_credit_reported = True
            effects.append(self._answers.state(subscription, "no_credit"))
        effects.extend(self.wake_waiting())
        return effects

    def more(self, *, now_ms: int) -> list[Effect]:
        """Continue where `deliver` reached its limit for one call; empty if nothing is left."""
        while self._unfinished and not self.is_blocked:
            effects = self.deliver(next(iter(self._unfinished)), now_ms=now_ms)
            if effects:
                return effects
        return []

    def block(self) -> None:
        """Stop sending messages, because the connection holds too many unsent bytes."""
        self._is_blocked = True

    def unblock(self, *, now_ms: int) -> list[Effect]:
        """Continue sending messages."""
        self._is_blocked = False
        self._unfinished = dict.fromkeys(self._subscriptions.values())
        return [*self.more(now_ms=now_ms), *self.wake_waiting()]

    def set_slow(self, is_slow: bool) -> list[Effect]:
        """Record, about once a second, whether the client takes next to nothing, and drop records beyond SLOW_BYTES."""
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
        """Return the next pull of a feed without one in flight; None: nothing now, `WakeFeed` or `Wake` follow later.

        Each pull ends with a call of `ended`.
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
        """Record that a feed's pull has ended."""
        self._expected_bytes -= feed.expected_bytes
        feed.expected_bytes = 0
        if has_failed:
            self._failing.add(feed.queue.broker_name)
        else:
            self._failing.discard(feed.queue.broker_name)
        return self.wake_waiting()

    def hold(self, subscription: Subscription, feed: Feed, order: PullOrder, data: bytes, next_offset: int) -> bool:
        """Hold the records that a pull found; return whether there was room. If not, they are pulled again later."""
        held_bytes = self.held_bytes
        if len(data) > order.bytes_max and held_bytes:
            held_bytes -= self._drop_unsendable()
        # If nothing is held, the result of a pull under the present limit is accepted whatever its size: a broker returns
        # more than a pull's limit only if one message is larger, and that message would never have room.
        is_only = held_bytes == 0 and order.bytes_max <= self._pull_bytes
        if not self.is_slow:
            self._last_pulled.append(data)
        if held_bytes + len(data) > self._allowance_bytes and not is_only:
            feed.is_behind = True
            return False
        subscription.hold(feed, data, next_offset)
        self._count()
        return True

    def wake_waiting(self) -> list[Effect]:
        """Return effects that wake the feeds that wait for room."""
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
                room += self._drop_unsendable() if room <= 0 else 0
                if room <= 0:
                    break
                room -= self._pull_bytes
                effects.append(WakeFeed(subscription, feed))
            del self._waiting[feed]
        return effects

    def _drop_unsendable(self) -> int:
        """Drop the records of subscriptions that may not send now, so that others can; return their bytes."""
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
        """Update the shared count of all streams."""
        if self._is_stopped:
            return
        counted = self.held_bytes + self._expected_bytes
        self.shared.bytes += counted - self._counted_bytes
        self._counted_bytes = counted
