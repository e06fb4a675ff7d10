"""The session of a stream, as a state machine without I/O.

Client frames, pulled records and news from the group go in; effects come out (effects.py), in the order they are to
be carried out in. Feeds ask for their pulls (`next_pull`) and bring what they found (`pulled`), so that a pull costs
no effect of its own.

    what goes in                                  what comes out
    subscribe                                     Join; later `joined` → subscribed, or `join_failed` → error
    assigned (from the group, at every change)    the frame, messages that were held, Wake
    pulled                                        messages as far as there is credit
    ack, credit, resume, unblock                  messages that were held, Wake
    unsubscribe                                   state, Leave with what is to be committed
    publish                                       Publish; later `published` or `publish_failed`
    a frame that can't be read                    goodbye, Close; nothing more ever comes out

Concurrency: one thread. No method waits, so each is atomic under cancellation.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec import UNSET

from gantry.model.message import MessageQueue
from services.gateway.errors import (
    CONFLICT,
    NOT_FOUND,
    NOT_STORED,
    TOO_LARGE,
    TOO_MANY,
    ProblemError,
    invalid,
    problem_of,
)
from services.gateway.ws import frames
from services.gateway.ws.answers import Answers
from services.gateway.ws.checks import come_later, parse_names, parse_start, refuse_what_comes_later
from services.gateway.ws.effects import (
    LIMIT,
    PROTOCOL,
    Close,
    Effect,
    FrameId,
    Join,
    Leave,
    Publish,
    Rights,
    Send,
    Wake,
)
from services.gateway.ws.frames import Codec, RefusedFrameError, UnreadableFrameError
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.messagewriter import MessageWriter, PropertyCache
from services.gateway.ws.subscription import Damage, Feed, PullOrder, Subscription


class Session:
    """One connection's session.

    Attributes:
        subscriptions: By name, those being joined included.
        is_closed: Close was returned; nothing comes out any more.
        is_blocked: The connection has more to write than it should hold: messages wait meanwhile.
    """

    def __init__(
        self,
        name: str,
        client_id: str,
        *,
        codec: Codec,
        writer: MessageWriter,
        cache: PropertyCache,
        rights: Rights,
        limits: StreamLimits,
        wall_ms: Callable[[], int],
    ) -> None:
        self.name = name
        self.client_id = client_id
        self.client_name: str | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.is_closed = False
        self.is_blocked = False
        self.publishes_pending = 0
        self._answers = Answers(name, codec)
        self._codec = codec
        self._writer = writer
        self._cache = cache
        self._rights = rights
        self._limits = limits
        self._wall_ms = wall_ms
        self._received = 0
        self._frame_bytes = 0
        self._pushed = 0
        self._refused_in_a_row = 0
        self._subscription_number = 0
        self._feed_number = 0
        self._now_ms = 0
        self._handlers: dict[type, Callable[[Any], list[Effect]]] = {
            frames.Hello: self._hello,
            frames.Subscribe: self._subscribe,
            frames.Ack: self._ack,
            frames.Nack: lambda _: come_later("/type", "giving messages back (nack)"),
            frames.AddCredit: self._add_credit,
            frames.Pause: self._pause,
            frames.Resume: self._resume,
            frames.Unsubscribe: self._unsubscribe,
            frames.Publish: self._publish,
            frames.CheckResult: lambda _: come_later("/type", "deciding transactions"),
        }

    def open(self) -> list[Effect]:
        """Return the welcome."""
        return [self._answers.welcome(self.client_id, self._limits)]

    def receive(self, data: bytes, *, is_text: bool, now_ms: int) -> list[Effect]:
        """Take in one frame of the client.

        Args:
            data: Its bytes; UTF-8 for a text frame.
            is_text: Whether it came as a text frame.
            now_ms: Monotonic time.
        """
        if self.is_closed:
            return []
        self._now_ms = now_ms
        if len(data) > self._limits.frame_bytes_max:
            return self.close(
                LIMIT, f"a frame has {len(data)} bytes, at most {self._limits.frame_bytes_max} are allowed"
            )
        if is_text is not self._codec.is_text:
            kinds = ("text", "binary") if is_text else ("binary", "text")
            return self.close(PROTOCOL, f"a {kinds[0]} frame came; {self._codec.subprotocol} has {kinds[1]} frames")
        self._received += 1
        self._frame_bytes = len(data)
        try:
            frame = self._codec.decode(data)
        except UnreadableFrameError as error:
            return self.close(PROTOCOL, str(error))
        except RefusedFrameError as error:
            return self._refuse_frame(problem_of(error.error), error.frame_id)
        self._refused_in_a_row = 0
        try:
            return self._handlers[type(frame)](frame)
        except ProblemError as problem:
            if isinstance(frame, frames.Publish) and problem.outcome is None:
                problem.outcome = NOT_STORED
            subscription: str | None = getattr(frame, "subscription", None)
            return [self._answers.error(problem, frame_id=frame.id, subscription=subscription)]

    def joined(self, subscription: Subscription, frame_id: FrameId) -> list[Effect]:
        """The group has taken the connection in."""
        if self.is_closed or subscription.name not in self.subscriptions:
            return []
        subscription.is_open = True
        return [self._answers.subscribed(subscription, frame_id)]

    def join_failed(self, subscription: Subscription, frame_id: FrameId, problem: ProblemError) -> list[Effect]:
        """The group has not taken the connection in; the subscription never was."""
        self.subscriptions.pop(subscription.name, None)
        return [] if self.is_closed else [self._answers.error(problem, frame_id=frame_id)]

    def assigned(
        self, subscription: Subscription, added: Iterable[tuple[MessageQueue, int]], removed: Iterable[MessageQueue]
    ) -> list[Effect]:
        """The group has given queues to this connection, or taken some; the latter were committed by the caller."""
        if self.is_closed or not subscription.is_open:
            return []
        for queue in removed:
            subscription.drop_feed(queue)
        for queue, next_offset in added:
            self._feed_number += 1
            subscription.add_feed(self._feed_number, queue, next_offset)
        return [self._answers.assigned(subscription), *self._deliver(subscription), Wake(subscription)]

    def next_pull(self, subscription: Subscription, feed: Feed) -> PullOrder | None:
        """Return what a feed without a pull under way should pull, or None for nothing now."""
        return None if self.is_closed or self.is_blocked else subscription.next_pull(feed)

    def pulled(
        self, subscription: Subscription, feed: Feed, order: PullOrder, data: bytes, next_offset: int, *, now_ms: int
    ) -> list[Effect]:
        """Take in what a pull found, or that there was nothing (empty `data`) before `next_offset`."""
        self._now_ms = now_ms
        if self.is_closed or feed.is_dropped:
            return []
        effects: list[Effect] = []
        if feed.is_waiting:
            feed.is_waiting = False
            if not subscription.waiting_feeds:
                effects.append(self._answers.state(subscription, "flowing"))
        if order.resend:
            damaged: list[Damage] = []
            frame = subscription.resend(feed, data, next_offset, now_ms=now_ms, damaged=damaged)
            effects.extend(self._answers.damages(subscription, damaged))
            return effects if frame is None else [*effects, Send(frame)]
        if order.offset != feed.next_offset:
            return effects  # The feed was moved while the pull was under way.
        if not data:
            subscription.skip_to(feed, next_offset)
            return effects
        subscription.hold(feed, data, next_offset)
        return [*effects, *self._deliver(subscription)]

    def moved(self, subscription: Subscription, feed: Feed, next_offset: int) -> list[Effect]:
        """The broker does not have the feed's offset: go on at the one it has."""
        if self.is_closed or feed.is_dropped:
            return []
        subscription.give_back(feed.restart_at(next_offset))
        return self.assigned(subscription, (), ())

    def pull_failed(self, subscription: Subscription, feed: Feed, problem: ProblemError) -> list[Effect]:
        """A pull failed and will be tried again; told once until one succeeds."""
        if self.is_closed or feed.is_dropped or feed.is_waiting:
            return []
        feed.is_waiting = True
        if subscription.waiting_feeds > 1:
            return []
        return [
            self._answers.error(problem, subscription=subscription.name),
            self._answers.state(subscription, "waiting"),
        ]

    def published(self, frame_id: FrameId, results: Sequence[dict[str, Any]], counts: dict[str, int]) -> list[Effect]:
        """The messages of a publish were sent, each with its result."""
        self.publishes_pending -= 1
        if self.is_closed:
            return []
        return [self._answers.published(results, counts, frame_id)]

    def publish_failed(self, frame_id: FrameId, problem: ProblemError) -> list[Effect]:
        """A publish was refused as a whole."""
        self.publishes_pending -= 1
        return [] if self.is_closed else [self._answers.error(problem, frame_id=frame_id)]

    def block(self) -> None:
        """Hold messages back: there is more to write than the connection should hold."""
        self.is_blocked = True

    def unblock(self, *, now_ms: int) -> list[Effect]:
        """Let messages go again."""
        self._now_ms = now_ms
        self.is_blocked = False
        effects: list[Effect] = []
        for subscription in self.subscriptions.values():
            effects.extend(self._deliver(subscription))
            effects.append(Wake(subscription))
        return effects

    def tick(self, *, overdue_before_ms: Callable[[Subscription], int]) -> list[Effect]:
        """Find what was not acked in time; `overdue_before_ms` says from when on, by the group's time-out."""
        return [
            Wake(subscription)
            for subscription in self.subscriptions.values()
            if subscription.mark_overdue(sent_before_ms=overdue_before_ms(subscription))
        ]

    def commits(self) -> list[tuple[Subscription, Feed, int]]:
        """Return what the groups' offsets should be where they are not."""
        return [
            (subscription, feed, offset)
            for subscription in self.subscriptions.values()
            for feed, offset in subscription.commits()
        ]

    def take_pushed(self) -> int:
        """Return how many messages were sent since the last call."""
        pushed = self._pushed + sum(subscription.take_sent() for subscription in self.subscriptions.values())
        self._pushed = 0
        return pushed

    def close(self, code: int, reason: str, *, retry: bool = False, after_ms: int = 0) -> list[Effect]:
        """Say goodbye and close."""
        if self.is_closed:
            return []
        self.is_closed = True
        return [self._answers.goodbye(reason, retry=retry, after_ms=after_ms), Close(code, reason)]

    def _hello(self, frame: frames.Hello) -> list[Effect]:
        if self._received > 1:
            raise ProblemError(CONFLICT, "hello: may only be the first frame", field="/type")
        if frame.resume is not None:
            come_later("/resume", "resuming a session")
        self.client_name = frame.client_name
        return []

    def _subscribe(self, frame: frames.Subscribe) -> list[Effect]:
        data = parse_names(frame, refuse_what_comes_later(frame), self._wall_ms())
        self._rights.require_consume(frame.topic, frame.group)
        limits = self._limits
        if len(self.subscriptions) >= limits.subscriptions_max:
            raise ProblemError(TOO_MANY, f"subscriptions: {limits.subscriptions_max} are the most on one connection")
        if frame.batch > limits.batch_max:
            raise invalid("/batch", frame.batch, f"is more than {limits.batch_max}")
        if any(each.group == frame.group and each.topic == frame.topic for each in self.subscriptions.values()):
            raise ProblemError(CONFLICT, f"group {frame.group} has subscribed to {frame.topic} here", field="/topic")
        start, start_at_ms = parse_start(frame.start)
        self._subscription_number += 1
        subscription = Subscription(
            f"s{self._subscription_number}",
            frame.group,
            data,
            self._writer,
            self._cache,
            credit_messages=min(frame.credit.messages, limits.credit_messages_max),
            credit_bytes=min(frame.credit.bytes, limits.credit_bytes_max),
            batch=frame.batch,
        )
        self.subscriptions[subscription.name] = subscription
        return [Join(subscription, start, start_at_ms, frame.id)]

    def _ack(self, frame: frames.Ack) -> list[Effect]:
        subscription = self._find(frame.subscription)
        if len(frame.receipts) > self._limits.receipts_max:
            detail = f"receipts: {len(frame.receipts)} are more than {self._limits.receipts_max}"
            raise ProblemError(TOO_LARGE, detail, field="/receipts")
        effects: list[Effect] = []
        for receipt in frame.receipts:
            refusal = subscription.settle(receipt)
            if refusal is not None:
                effects.append(self._answers.receipt_refused(subscription, receipt, refusal, frame.id))
        if frame.id is not UNSET:
            effects.append(self._answers.state(subscription, "acked", frame.id))
        return self._flow(subscription, effects)

    def _add_credit(self, frame: frames.AddCredit) -> list[Effect]:
        subscription = self._find(frame.subscription)
        subscription.add_credit(
            frame.messages,
            frame.bytes,
            messages_max=self._limits.credit_messages_max,
            bytes_max=self._limits.credit_bytes_max,
        )
        return self._flow(subscription, [self._answers.state(subscription, "credit", frame.id)])

    def _pause(self, frame: frames.Pause) -> list[Effect]:
        subscription = self._find(frame.subscription)
        subscription.is_paused = True
        return [self._answers.state(subscription, "paused", frame.id)]

    def _resume(self, frame: frames.Resume) -> list[Effect]:
        subscription = self._find(frame.subscription)
        subscription.is_paused = False
        return self._flow(subscription, [self._answers.state(subscription, "resumed", frame.id)])

    def _unsubscribe(self, frame: frames.Unsubscribe) -> list[Effect]:
        subscription = self._find(frame.subscription)
        commits = [(feed.queue, offset) for feed, offset in subscription.commits()]
        for queue in list(subscription.feeds):
            subscription.drop_feed(queue)
        del self.subscriptions[subscription.name]
        self._pushed += subscription.take_sent()
        return [self._answers.state(subscription, "unsubscribed", frame.id), Leave(subscription, commits)]

    def _publish(self, frame: frames.Publish) -> list[Effect]:
        self._rights.require_publish(frame.topic)
        limits = self._limits
        if len(frame.messages) > limits.publish_messages_max:
            detail = f"messages: {len(frame.messages)} are more than {limits.publish_messages_max}"
            raise ProblemError(TOO_LARGE, detail, field="/messages")
        if self.publishes_pending >= limits.publishes_pending_max:
            raise ProblemError(TOO_MANY, f"publish: {limits.publishes_pending_max} are under way already")
        self.publishes_pending += 1
        return [Publish(frame.topic, frame.messages, frame.id, self._frame_bytes)]

    def _find(self, name: str) -> Subscription:
        subscription = self.subscriptions.get(name)
        if subscription is None or not subscription.is_open:
            raise ProblemError(NOT_FOUND, f"subscription: there is no {name[:80]!r} here", field="/subscription")
        return subscription

    def _flow(self, subscription: Subscription, effects: list[Effect]) -> list[Effect]:
        """Send what may be sent now that there is more credit or no pause, and let the feeds pull."""
        effects.extend(self._deliver(subscription))
        effects.append(Wake(subscription))
        return effects

    def _deliver(self, subscription: Subscription) -> list[Effect]:
        if self.is_blocked or self.is_closed:
            return []
        if subscription.has_credit:
            subscription.starved = False
        damaged: list[Damage] = []
        effects: list[Effect] = [Send(frame) for frame in subscription.deliver(now_ms=self._now_ms, damaged=damaged)]
        if damaged:
            effects.extend(self._answers.damages(subscription, damaged))
        if subscription.starves and not subscription.starved:
            subscription.starved = True
            effects.append(self._answers.state(subscription, "no_credit"))
        return effects

    def _refuse_frame(self, problem: ProblemError, frame_id: FrameId) -> list[Effect]:
        # Who writes one frame after the other that is none has lost its way; who is told to wait or has no right has not.
        self._refused_in_a_row += 1
        if self._refused_in_a_row > self._limits.refused_frames_max:
            return self.close(PROTOCOL, f"{self._refused_in_a_row} frames in a row were wrong; the last: {problem}")
        return [self._answers.error(problem, frame_id=frame_id)]
