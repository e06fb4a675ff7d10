"""One subscription of a stream: its queues, its credit, and the pulled records that may be sent now.

Theory of operation. Each assigned queue is a `Feed`. A feed pulls forward and holds the records until there is credit;
it pulls again when it holds nothing, so at most one pull is held for each queue. Sending takes credit and adds the
messages to the feed's window; an ack removes them and returns the credit.

    pull order ──▶ pulled ──▶ held ──(credit)──▶ sent: window ──(ack)──▶ settled ──▶ commit point moves
                                                     └──(overdue)──▶ pulled and sent again

A message that is sent again is pulled again: sent messages are not kept in memory.

An orderly subscription sends a batch of a queue only when the batch before is acknowledged. If the client returns a
message (`suspend`), the queue waits, and then the same messages come again.

One subscription of a group also has queues of the group's retry topic. Their messages are shown with their first topic.
Pure.
"""

from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, Final

from gantry.model.group import SubscriptionData
from gantry.model.message import MessageQueue
from gantry.model.names import is_retry_topic
from services.gateway.views.messageparts import MessageWriter, PropertyCache, QueueFacts
from services.gateway.ws.feed import Damage, Feed, HeldRecords, PullOrder, Trace
from services.gateway.ws.inflight import NOTHING, WindowRelease, compact
from services.gateway.ws.messagewriter import WrittenMessages, messages_frame, write_messages
from services.gateway.ws.receipts import GONE, INVALID, parse_receipt

# Limit of records in one frame, unless its first message is larger: messages for a slow client wait as whole frames.
FRAME_BYTES: Final = 40 * 1024
# A message that was not acknowledged is pulled again together with its neighbours.
RESEND_BYTES: Final = 64 * 1024
# Messages for each pull, whatever the frames' size, because a pull costs as much as ten messages. A broker also limits
# the bytes to 256 KiB, and Apache RocketMQ's returns 32 messages at most.
PULL_MESSAGES: Final = 256


class Subscription:
    """A (group, topic) of a connection.

    Attributes:
        is_tail: Whether it shows a topic without a group (tail.py).
        is_orderly: Whether each queue has one batch in flight at most.
        failures_max: Number of retries of a message before it becomes a dead letter; None: that of the group, or no
            limit for an orderly subscription.
        has_retries: Whether the messages of the group that come back are delivered here. One subscription of each group
            has them.
        is_paused: Whether the client asked for a pause.
        is_open: Whether the group has accepted the connection; before that, the client does not know the subscription's
            name.
        held_bytes: Bytes that were pulled and not sent yet.
        is_credit_reported: Whether the client was told that messages wait for credit.
        credit_messages: Number of messages that may be sent now; together with those in flight, the number granted.
        credit_bytes: Bytes that may be sent now; negative after a message that was larger than the rest.
        trace: Notes deliveries for trace data; None if that is off.
    """

    is_tail: ClassVar[bool] = False

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
        is_orderly: bool = False,
        failures_max: int | None = None,
    ) -> None:
        self.name = name
        self.group = group
        self.data = data
        self.batch = batch
        self.credit_messages = self._granted_messages = credit_messages
        self.credit_bytes = self._granted_bytes = credit_bytes
        self.is_orderly = is_orderly
        self.failures_max = failures_max
        self.has_retries = False
        self.is_paused = False
        self.is_open = False
        self.is_credit_reported = False
        self.trace: Trace | None = None
        self.feeds: dict[MessageQueue, Feed] = {}
        self._by_token: dict[str, Feed] = {}
        self.held_bytes = 0
        self._emptied: list[Feed] = []
        self._turns: deque[Feed] = deque()
        self._sent = 0
        self._tags = None if data.is_all or data.is_sql else data.tags_set
        self._writer = writer
        self._cache = cache

    @property
    def topic(self) -> str:
        """Return the topic."""
        return self.data.topic

    @property
    def in_flight(self) -> int:
        """Return the number of messages sent and not acknowledged: the granted number without the remaining credit."""
        return self._granted_messages - self.credit_messages

    @property
    def has_credit(self) -> bool:
        """Return whether one more message may be sent."""
        return self.credit_messages > 0 and self.credit_bytes > 0

    @property
    def may_send(self) -> bool:
        """Return whether messages may be sent now."""
        return self.has_credit and not self.is_paused

    @property
    def waits_for_credit(self) -> bool:
        """Return whether pulled records wait for nothing but credit."""
        return not self.has_credit and not self.is_paused and any(feed.held for feed in self._turns)

    @property
    def waiting_feeds(self) -> int:
        """Return the number of queues whose broker cannot be reached."""
        return sum(feed.is_waiting for feed in self.feeds.values())

    def add_feed(self, token: str, queue: MessageQueue, next_offset: int) -> Feed:
        """Add an assigned queue; `token` is one that no feed of any session had before."""
        assert queue not in self.feeds, f"{queue} is assigned twice"
        feed = Feed(token, queue, next_offset, self._facts(token, queue))
        self.feeds[queue] = feed
        self._by_token[token] = feed
        self._turns.append(feed)
        return feed

    def move_feed(self, feed: Feed, token: str, offset: int) -> None:
        """Continue a queue elsewhere. Old receipts become invalid, because the same offsets may hold other messages."""
        self._clear_held(feed)
        self.give_back(feed.restart_at(offset))
        del self._by_token[feed.token]
        self._by_token[token] = feed
        feed.token, feed.facts = token, self._facts(token, feed.queue)

    def drop_feed(self, queue: MessageQueue) -> Feed | None:
        """Remove a queue that moved to another instance, and return the credit of its messages in flight."""
        feed = self.feeds.pop(queue, None)
        if feed is None:
            return None
        del self._by_token[feed.token]
        self._turns.remove(feed)
        self._clear_held(feed)
        self.give_back(feed.window.clear(feed.window.commit_point()))
        feed.is_dropped = True
        if self.trace is not None:
            self.trace.forget(queue)
        return feed

    def add_credit(self, messages: int, size_bytes: int, *, messages_max: int, bytes_max: int) -> None:
        """Add credit. Credit together with messages in flight, which become credit again, never exceeds the limits."""
        messages = min(messages, messages_max - self._granted_messages)
        self.credit_messages += messages
        self._granted_messages += messages
        size_bytes = min(size_bytes, bytes_max - self._granted_bytes)
        self.credit_bytes += size_bytes
        self._granted_bytes += size_bytes

    def give_back(self, settled: WindowRelease) -> None:
        """Return the credit of settled messages."""
        self.credit_messages += settled.messages
        self.credit_bytes += settled.bytes

    def mark_overdue(self, *, sent_until_ms: int, now_ms: int) -> bool:
        """Find a batch in each feed of an orderly subscription that is to be sent again; return whether there is any.

        Args:
            sent_until_ms: Batches that were sent at this monotonic time or earlier are overdue.
            now_ms: Monotonic time; suspended queues continue at theirs.
        """
        for feed in self.feeds.values():
            if feed.resending is None and not feed.is_draining:
                feed.resending = feed.window.find_overdue(sent_until_ms=sent_until_ms)
                if feed.resume_at_ms is not None and now_ms >= feed.resume_at_ms:
                    feed.resending, feed.resume_at_ms = feed.window.first_batch(), None
                feed.resend_from = feed.resending.first if feed.resending else 0
        return any(feed.resending is not None for feed in self.feeds.values())

    def next_pull(self, feed: Feed, *, bytes_max: int) -> PullOrder | None:
        """Return the next pull of a feed, or None while there is nothing to pull."""
        if feed.is_dropped or self.is_paused:
            return None
        overdue = feed.resending
        if overdue is not None:
            if not overdue.is_settled:
                count = overdue.last - feed.resend_from + 1
                return PullOrder(feed.queue, feed.resend_from, count, RESEND_BYTES, resend=True, waits=False)
            feed.resending = None
        if feed.held or not self.has_credit or not self._may_begin(feed):
            return None
        count = max(self.batch, PULL_MESSAGES)
        return PullOrder(feed.queue, feed.next_offset, count, bytes_max, resend=False, waits=not feed.is_behind)

    def hold(self, feed: Feed, data: bytes, next_offset: int) -> None:
        """Hold the records of a pull."""
        feed.held.append(HeldRecords(data, 0, feed.next_offset, next_offset))
        feed.next_offset = next_offset
        self.held_bytes += len(data)

    def drop_held(self, feed: Feed) -> int:
        """Drop held records, so that they are pulled again later; return their bytes."""
        if not feed.held:
            return 0
        feed.next_offset = feed.held[0].offset
        feed.is_behind = True
        return self._clear_held(feed)

    def skip_to(self, feed: Feed, next_offset: int) -> None:
        """Record that a pull found no match before this offset."""
        feed.next_offset = max(feed.next_offset, next_offset)
        if not feed.held:
            feed.window.position = max(feed.window.position, feed.next_offset)

    def deliver(self, *, now_ms: int, damaged: list[Damage]) -> Iterator[bytes]:
        """Yield the frames that may be sent now, the queues in turn, and count them as sent."""
        turns = self._turns
        idle = 0
        while idle < len(turns) and self.has_credit and not self.is_paused:
            feed = turns[0]
            turns.rotate(-1)
            if not feed.held or not self._may_begin(feed):
                idle += 1
                continue
            idle = 0
            frame = self._deliver_held(feed, feed.held[0], now_ms, damaged)
            if frame is not None:
                yield frame

    def resend(self, feed: Feed, data: bytes, next_offset: int, *, now_ms: int, damaged: list[Damage]) -> bytes | None:
        """Return the frame with the overdue messages that a resending pull found, or None.

        Messages that the pull passed without finding them are no longer on the broker, and are settled.
        """
        batch, start = feed.resending, feed.resend_from
        if batch is None or batch.is_settled:
            return None  # The batch was acknowledged meanwhile.
        feed.resend_from = max(next_offset, start + 1)
        unsettled = [offset for offset in batch.unsettled() if start <= offset < feed.resend_from]
        wanted = {offset: feed.failures.get(offset, 0) for offset in unsettled}
        # No limit of bytes: the batch has been in one frame before, and a message that is not found counts as deleted.
        found = write_messages(
            self._writer, self._cache, feed.facts, data, at=0, offset=start, messages_max=len(wanted), only=wanted
        )
        damaged.extend(Damage(feed.queue, offset, reason) for offset, reason in found.damaged if offset in wanted)
        if feed.resend_from > batch.last:
            feed.resending = None
            batch.sent_at_ms = now_ms
        for offset in wanted.keys() - found.offsets:
            self.give_back(feed.window.settle(offset))
        if not found.messages:
            return None
        if self.trace is not None:
            self.trace.sent(feed.queue, data, found.offsets, batch.first)
        return messages_frame(self._writer, self.name, f"{feed.token}.{batch.first}-{batch.last}", found.messages)

    def settle(self, receipt: str) -> str | None:
        """Settle the messages of a receipt; return None, or the reason why this is not possible."""
        token, first, last = parse_receipt(receipt)
        if not token:
            return INVALID
        feed = self._by_token.get(token)
        if feed is None:
            return GONE
        settled = feed.window.settle(first) if last is None else feed.window.settle_batch(first, last)
        if settled is NOTHING:
            return GONE
        if self.trace is not None:
            self.trace.settled(feed.queue, first, last, is_success=True)
        self.credit_messages += settled.messages
        self.credit_bytes += settled.bytes
        return None

    def find_in_flight(self, receipt: str) -> tuple[Feed, Sequence[int]] | str:
        """Return the queue and the offsets of a receipt's messages in flight, or the reason why there are none."""
        token, first, last = parse_receipt(receipt)
        if not token:
            return INVALID
        feed = self._by_token.get(token)
        offsets = () if feed is None else feed.window.in_flight(first, last)
        return (feed, offsets) if feed is not None and offsets else GONE

    def failed(self, feed: Feed, offsets: Iterable[int]) -> None:
        """Note for trace data that the client could not process these messages."""
        if self.trace is not None:
            for offset in offsets:
                self.trace.settled(feed.queue, offset, None, is_success=False)

    def suspend(self, feed: Feed, offsets: Iterable[int], resume_at_ms: int) -> None:
        """Let a queue of an orderly subscription wait, because the client returns messages of it.

        At this monotonic time, all its messages in flight are sent again.
        """
        assert self.is_orderly, "other subscriptions do not wait for a message"
        for offset in offsets:
            feed.failures[offset] = feed.failures.get(offset, 0) + 1
        feed.resume_at_ms = resume_at_ms
        self.drop_held(feed)  # Other queues need the room.

    def settle_returned(self, feed: Feed, offset: int) -> None:
        """Settle a message that its broker has taken back."""
        feed.returning.discard(offset)
        self.give_back(feed.window.settle(offset))

    def take_emptied(self) -> list[Feed]:
        """Return the feeds that held records at the last call and hold none now, as they may pull again."""
        emptied, self._emptied = self._emptied, []
        return emptied

    def take_sent(self) -> int:
        """Return the number of messages sent for the first time since the last call."""
        sent, self._sent = self._sent, 0
        return sent

    def commits(self) -> Iterable[tuple[Feed, int]]:
        """Yield the offsets that are not committed yet."""
        for feed in self.feeds.values():
            point = feed.to_commit()
            if point is not None:
                yield feed, point

    def _may_begin(self, feed: Feed) -> bool:
        """Return whether messages of the feed may be sent for the first time."""
        return not feed.is_draining and not (self.is_orderly and feed.window.messages)

    @property
    def _sendable(self) -> int:
        """Return the number of messages that may be sent now."""
        return self.credit_messages

    def _count(self, feed: Feed, taken: WrittenMessages, now_ms: int) -> None:
        """Count messages that are sent for the first time."""
        feed.window.add(compact(taken.offsets), array("I", taken.sizes), now_ms=now_ms)
        self._sent += len(taken.offsets)
        self.credit_messages -= len(taken.offsets)
        self.credit_bytes -= sum(taken.sizes)

    def _facts(self, token: str, queue: MessageQueue) -> QueueFacts:
        return QueueFacts(
            queue.topic,
            queue.broker_name,
            queue.queue_id,
            receipt_prefix=f"{token}.",
            tags=self._tags if queue.topic == self.topic else None,
            is_retry=is_retry_topic(queue.topic),
        )

    def _clear_held(self, feed: Feed) -> int:
        size_bytes = sum(len(held.data) for held in feed.held)
        feed.held.clear()
        self.held_bytes -= size_bytes
        self._emptied.append(feed)
        return size_bytes

    def _deliver_held(self, feed: Feed, held: HeldRecords, now_ms: int, damaged: list[Damage]) -> bytes | None:
        begin, data = held.at, held.data
        if feed.failures and not feed.window.messages:
            feed.failures.clear()
        taken = write_messages(
            self._writer,
            self._cache,
            feed.facts,
            held.data,
            at=held.at,
            offset=held.offset,
            messages_max=min(self.batch, self._sendable),
            bytes_max=min(self.credit_bytes, FRAME_BYTES),
        )
        held.at, held.offset = taken.at, taken.next_offset
        for offset, reason in taken.damaged:
            damaged.append(Damage(feed.queue, offset, reason))
        window = feed.window
        offsets = taken.offsets
        if offsets:
            self._count(feed, taken, now_ms)
            if self.trace is not None:
                self.trace.sent(feed.queue, memoryview(data)[begin : taken.at], offsets, offsets[0])
        if taken.is_cut:
            self._clear_held(feed)
            feed.next_offset = window.position = taken.next_offset
            feed.is_behind = True
        elif taken.at >= len(held.data):
            self._clear_held(feed)
            window.position = max(window.position, held.next_offset)
        if not offsets:
            return None
        receipt = f"{feed.token}.{offsets[0]}-{offsets[-1]}"
        return messages_frame(self._writer, self.name, receipt, taken.messages)
