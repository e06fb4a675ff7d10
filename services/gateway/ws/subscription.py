"""One subscription of a stream: its queues, its credit, and what of the pulled records may be sent now.

Theory of operation. Each assigned queue is a `Feed`. A feed pulls forward and holds what it pulled until there is
credit; it pulls again when it holds nothing, so that one pull a queue is the most that lies about. Sending takes
credit and puts the messages into the feed's window; an ack takes them out and gives the credit back.

    pull order ──▶ pulled ──▶ held ──(credit)──▶ sent: window ──(ack)──▶ settled ──▶ commit point moves
                                                   └──(overdue)──▶ pulled and sent again

A message that was not acked in time is sent again by pulling it once more: nothing that was sent is kept in memory.
Pure.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gantry.model.group import SubscriptionData
from gantry.model.message import MessageQueue
from services.gateway.ws.inflight import NOTHING, Batch, Settled, Window
from services.gateway.ws.messagewriter import MessageWriter, PropertyCache, QueueFacts, take

# "k" + number + "." + two offsets of 19 digits and a dash; anything longer was never ours.
RECEIPT_LENGTH_MAX: Final = 64


# Asked for in one pull, whatever the frames' size: a pull costs as much as ten messages. A broker has its limit by bytes,
# 256 KiB, and one of Apache RocketMQ gives 32 at most.
PULL_MESSAGES: Final = 256


@dataclass(frozen=True, slots=True)
class PullOrder:
    """What to ask the broker for. `resend` means: to send once more what is overdue."""

    queue: MessageQueue
    offset: int
    messages_max: int
    resend: bool


@dataclass(slots=True)
class _Held:
    data: bytes
    at: int
    offset: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Damage:
    """A record that can't be delivered."""

    queue: MessageQueue
    offset: int
    reason: str


class Feed:
    """One queue that is assigned to the connection.

    Attributes:
        number: Stands for the queue's assignment in receipts; never used again, so that a receipt from before the
            queue went and came back is known to be old.
        next_offset: Where the next pull starts.
        committed: What the group's offset was last told to be; None for not yet.
        resending: The overdue batch that is being sent again, and `resend_from`, the offset from which that is to do.
        is_dropped: The queue has gone to another instance: nothing of it may be sent, acked or committed.
    """

    __slots__ = (
        "committed", "facts", "held", "is_dropped", "is_waiting", "next_offset", "number", "queue",
        "resend_from", "resending", "window",
    )  # fmt: skip

    def __init__(self, number: int, queue: MessageQueue, next_offset: int, facts: QueueFacts) -> None:
        self.number = number
        self.queue = queue
        self.facts = facts
        self.next_offset = next_offset
        self.window = Window(next_offset)
        self.held: deque[_Held] = deque()
        self.committed: int | None = None
        self.is_dropped = False
        self.is_waiting = False
        self.resending: Batch | None = None
        self.resend_from = 0

    def restart_at(self, offset: int) -> Settled:
        """Go on elsewhere: the broker does not have what was asked for. What is in flight can't come again."""
        self.held.clear()
        self.resending = None
        gone = self.window.clear(offset)
        self.next_offset = offset
        return gone

    def to_commit(self) -> int | None:
        """Return what the group's offset should be, or None when it is that already."""
        point = self.window.commit_point()
        return None if self.is_dropped or point == self.committed else point


class Subscription:
    """A (group, topic) of a connection.

    Attributes:
        is_paused: The client asked for a pause.
        is_open: The group has taken the connection in; before it, nobody knows the subscription's name.
        starved: It was said that messages wait for credit.
    """

    def __init__(
        self,
        name: str,
        group: str,
        data: SubscriptionData,
        writer: MessageWriter,
        cache: PropertyCache,
        *,
        credit_messages: int,
        credit_bytes: int,
        batch: int,
    ) -> None:
        self.name = name
        self.group = group
        self.data = data
        self.batch = batch
        self.credit_messages = credit_messages
        self.credit_bytes = credit_bytes
        self.is_paused = False
        self.is_open = False
        self.starved = False
        self.feeds: dict[MessageQueue, Feed] = {}
        self._by_number: dict[int, Feed] = {}
        self._turns: deque[Feed] = deque()
        self._sent = 0
        self._tags = None if data.is_all else data.tags_set
        self._writer = writer
        self._cache = cache

    @property
    def topic(self) -> str:
        """Return the topic."""
        return self.data.topic

    @property
    def in_flight(self) -> int:
        """Return how many messages were sent and not acked."""
        return sum(feed.window.messages for feed in self.feeds.values())

    @property
    def has_credit(self) -> bool:
        """Say whether one more message may be sent."""
        return self.credit_messages > 0 and self.credit_bytes > 0

    @property
    def starves(self) -> bool:
        """Say whether pulled records wait for nothing but credit."""
        return not self.has_credit and not self.is_paused and any(feed.held for feed in self._turns)

    @property
    def waiting_feeds(self) -> int:
        """Return for how many queues the broker can't be reached."""
        return sum(feed.is_waiting for feed in self.feeds.values())

    def add_feed(self, number: int, queue: MessageQueue, next_offset: int) -> Feed:
        """Start a queue that was assigned."""
        assert queue not in self.feeds, f"{queue} is assigned twice"
        facts = self._writer.queue_facts(
            queue.topic, queue.broker_name, queue.queue_id, receipt_prefix=b"%d." % number, tags=self._tags
        )
        feed = Feed(number, queue, next_offset, facts)
        self.feeds[queue] = feed
        self._by_number[number] = feed
        self._turns.append(feed)
        return feed

    def drop_feed(self, queue: MessageQueue) -> Feed | None:
        """Stop a queue that went elsewhere; its messages in flight are not ours any more, so their credit is back."""
        feed = self.feeds.pop(queue, None)
        if feed is None:
            return None
        del self._by_number[feed.number]
        self._turns.remove(feed)
        feed.held.clear()
        self.give_back(feed.window.clear(feed.window.commit_point()))
        feed.is_dropped = True
        return feed

    def add_credit(self, messages: int, size_bytes: int, *, messages_max: int, bytes_max: int) -> None:
        """Add to what may be sent; what is in flight comes back later and counts."""
        self.credit_messages = min(self.credit_messages + messages, messages_max)
        self.credit_bytes = min(self.credit_bytes + size_bytes, bytes_max)

    def give_back(self, settled: Settled) -> None:
        """Return the credit of what was settled."""
        self.credit_messages += settled.messages
        self.credit_bytes += settled.bytes

    def mark_overdue(self, *, sent_before_ms: int) -> bool:
        """Find in each feed a batch that was sent at this monotonic time or earlier; say whether there is any."""
        for feed in self.feeds.values():
            if feed.resending is None:
                feed.resending = feed.window.find_overdue(sent_before_ms=sent_before_ms)
                feed.resend_from = feed.resending.first if feed.resending else 0
        return any(feed.resending is not None for feed in self.feeds.values())

    def next_pull(self, feed: Feed) -> PullOrder | None:
        """Return what to pull for a feed now, or None while there is nothing to pull."""
        if feed.is_dropped or self.is_paused:
            return None
        overdue = feed.resending
        if overdue is not None:
            if not overdue.is_settled:
                return PullOrder(feed.queue, feed.resend_from, overdue.last - feed.resend_from + 1, resend=True)
            feed.resending = None
        if feed.held or not self.has_credit:
            return None
        return PullOrder(feed.queue, feed.next_offset, max(self.batch, PULL_MESSAGES), resend=False)

    def hold(self, feed: Feed, data: bytes, next_offset: int) -> None:
        """Take in what a pull found."""
        feed.held.append(_Held(data, 0, feed.next_offset, next_offset))
        feed.next_offset = next_offset

    def skip_to(self, feed: Feed, next_offset: int) -> None:
        """Take note that a pull found nothing wanted before this offset."""
        feed.next_offset = max(feed.next_offset, next_offset)
        if not feed.held:
            feed.window.position = max(feed.window.position, feed.next_offset)

    def deliver(self, *, now_ms: int, damaged: list[Damage]) -> Iterator[bytes]:
        """Yield the frames that may be sent now, each queue in its turn, and count them as sent."""
        turns = self._turns
        idle = 0
        while idle < len(turns) and self.has_credit and not self.is_paused:
            feed = turns[0]
            turns.rotate(-1)
            if not feed.held:
                idle += 1
                continue
            idle = 0
            frame = self._deliver_held(feed, feed.held[0], now_ms, damaged)
            if frame is not None:
                yield frame

    def resend(self, feed: Feed, data: bytes, next_offset: int, *, now_ms: int, damaged: list[Damage]) -> bytes | None:
        """Return the frame with the overdue messages that a resending pull found, or None.

        What the pull passed over without finding it is gone from the broker, and settled.
        """
        batch, start = feed.resending, feed.resend_from
        if batch is None or batch.is_settled:
            return None  # It was acked meanwhile.
        feed.resend_from = max(next_offset, start + 1)
        wanted = {offset for offset in batch.unsettled() if start <= offset < feed.resend_from}
        found = take(
            self._writer, self._cache, feed.facts, data,
            at=0, offset=start, messages_max=len(wanted), bytes_max=len(data), only=wanted,
        )  # fmt: skip
        damaged.extend(Damage(feed.queue, offset, reason) for offset, reason in found.damaged if offset in wanted)
        if feed.resend_from > batch.last:
            feed.resending = None
            batch.sent_at_ms = now_ms
        for offset in wanted.difference(found.offsets):
            self.give_back(feed.window.settle(offset))
        if not found.parts:
            return None
        return self._writer.frame(self.name, f"{feed.number}.{batch.first}-{batch.last}", found.parts)

    def settle(self, receipt: str) -> str | None:
        """Settle what a receipt stands for; return why not, or None."""
        number, first, last = _parse_receipt(receipt)
        if number < 0:
            return INVALID
        feed = self._by_number.get(number)
        if feed is None:
            return GONE
        settled = feed.window.settle(first) if last is None else feed.window.settle_batch(first, last)
        if settled is NOTHING:
            return GONE
        self.credit_messages += settled.messages
        self.credit_bytes += settled.bytes
        return None

    def take_sent(self) -> int:
        """Return how many messages were sent for the first time since the last call."""
        sent, self._sent = self._sent, 0
        return sent

    def commits(self) -> Iterable[tuple[Feed, int]]:
        """Yield what the group's offsets should be where they are not."""
        for feed in self.feeds.values():
            point = feed.to_commit()
            if point is not None:
                yield feed, point

    def _deliver_held(self, feed: Feed, held: _Held, now_ms: int, damaged: list[Damage]) -> bytes | None:
        taken = take(
            self._writer,
            self._cache,
            feed.facts,
            held.data,
            at=held.at,
            offset=held.offset,
            messages_max=min(self.batch, self.credit_messages),
            bytes_max=self.credit_bytes,
        )
        held.at, held.offset = taken.at, taken.next_offset
        for offset, reason in taken.damaged:
            damaged.append(Damage(feed.queue, offset, reason))
        window = feed.window
        offsets = taken.offsets
        if offsets:
            window.add(offsets, taken.sizes, now_ms=now_ms)
            self._sent += len(offsets)
            self.credit_messages -= len(offsets)
            self.credit_bytes -= sum(taken.sizes)
        if taken.is_cut:
            feed.held.clear()
            feed.next_offset = window.position = taken.next_offset
        elif taken.at >= len(held.data):
            feed.held.popleft()
            window.position = max(window.position, held.next_offset)
        if not offsets:
            return None
        receipt = f"{feed.number}.{offsets[0]}-{offsets[-1]}"
        return self._writer.frame(self.name, receipt, taken.parts)


INVALID: Final = "invalid"
GONE: Final = "gone"


def _parse_receipt(text: str) -> tuple[int, int, int | None]:
    """Return feed number and offset, and the last offset where it stands for a frame; number -1 if it is none."""
    number, _, rest = text.partition(".")
    first, dash, last = rest.partition("-")
    if len(text) > RECEIPT_LENGTH_MAX or not (text.isascii() and number.isdecimal() and first.isdecimal()):
        return -1, 0, None
    if not dash:
        return int(number), int(first), None
    return (int(number), int(first), int(last)) if last.isdecimal() else (-1, 0, None)
