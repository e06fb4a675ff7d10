"""The session of a stream, as a state machine without I/O.

Client frames, pulled records and changes of the group go in; effects come out (effects.py), in the order in which they
are to be carried out. Feeds ask for their pulls (`next_pull`) and hand in the results (`pulled`), so that a pull needs
no effect of its own.

    input                                       output
    subscribe                                   Join or OpenTail; later `joined` → subscribed, or `join_failed` → error
    assigned (from the group, at every change)  the frame, held messages, Wake
    pulled                                      messages within the credit
    ack, credit, resume, unblock                held messages, Wake
    nack, tick                                  Return; later `returned` → state
    unsubscribe                                 state, Leave with the offsets to commit
    publish                                     Publish; later `publishes.done` or `publishes.failed`
    an unreadable frame                         goodbye, Close; nothing after that

Concurrency: one thread. No method waits, so each is atomic under cancellation.
"""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from msgspec import UNSET

from gantry.model.message import MessageQueue
from services.gateway.errors import CONFLICT, NOT_FOUND, NOT_STORED, TOO_LARGE, ProblemError, problem_of
from services.gateway.views.messageparts import MessageWriter, PropertyCache
from services.gateway.ws import frames
from services.gateway.ws.acking import AckProgress
from services.gateway.ws.answers import Answers
from services.gateway.ws.checks import group_member, raise_unsupported
from services.gateway.ws.delivery import Delivery, SharedBytes
from services.gateway.ws.effects import (
    LIMIT,
    PROTOCOL,
    Close,
    Effect,
    FrameId,
    Leave,
    Return,
    Rights,
    Send,
    Wake,
)
from services.gateway.ws.feed import Damage, Feed, PullOrder
from services.gateway.ws.flowcontrol import control
from services.gateway.ws.frames import Codec, RefusedFrameError, UnreadableFrameError
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.nacking import Failures, Returns, assign_retries
from services.gateway.ws.producing import TransactionChecks
from services.gateway.ws.publishes import PendingPublishes
from services.gateway.ws.subscribing import Subscribing
from services.gateway.ws.subscription import Subscription
from services.gateway.ws.ticking import tick


class Session:
    """One connection's session; `nonce` is a secret, unique text that starts all its receipts.

    Attributes:
        subscriptions: Subscriptions by name, including those that are still joining.
        is_closed: Whether Close was returned; nothing comes out any more.
        delivery: Limits on pulling and sending.
        publishes: PendingPublishes in flight.
        checks: Questions about open transactions.
    """

    def __init__(
        self,
        name: str,
        client_id: str,
        *,
        nonce: str,
        codec: Codec,
        writer: MessageWriter,
        cache: PropertyCache,
        rights: Rights,
        limits: StreamLimits,
        wall_ms: Callable[[], int],
        shared: SharedBytes,
        may_send: Callable[[], bool] = lambda: True,
    ) -> None:
        self.name = name
        self.client_id = client_id
        self.client_name: str | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.is_closed = False
        self._nonce = nonce
        self._answers = Answers(name, codec)
        self.delivery = Delivery(self._answers, self.subscriptions, shared, may_send=may_send)
        self.publishes = PendingPublishes(self._answers, rights, limits)
        self.checks = TransactionChecks(self._answers, rights)
        self._returns = Returns(self._answers, limits)
        self._codec = codec
        self._subscribing = Subscribing(
            self.subscriptions, writer=writer, cache=cache, rights=rights, limits=limits, wall_ms=wall_ms
        )
        self._limits = limits
        self._received = 0
        self._frame_bytes = 0
        self._pushed = 0
        self._refused_in_a_row = 0
        self._feed_number = 0
        self._now_ms = 0
        self._acking: AckProgress | None = None

    def open(self) -> list[Effect]:
        """Return the welcome frame."""
        return [self._answers.welcome(self.client_id, self._limits)]

    def receive(self, data: bytes, *, is_text: bool, now_ms: int) -> list[Effect]:
        """Process one frame of the client.

        Args:
            data: Bytes of the frame; UTF-8 for a text frame.
            is_text: Whether it is a text frame.
            now_ms: Monotonic time, in ms.
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
            return self.close(PROTOCOL, f"a {kinds[0]} frame arrived; {self._codec.subprotocol} uses {kinds[1]} frames")
        self._received += 1
        self._frame_bytes = len(data)
        try:
            frame = self._codec.decode(data)
        except UnreadableFrameError as error:
            return self.close(PROTOCOL, str(error))
        except RefusedFrameError as error:
            outcome = NOT_STORED if error.is_publish else None
            return self._refuse_frame(problem_of(error.error, outcome=outcome), error.frame_id)
        self._refused_in_a_row = 0
        try:
            return self._HANDLERS[type(frame)](self, frame)
        except ProblemError as problem:
            if isinstance(frame, frames.Publish) and problem.outcome is None:
                problem.outcome = NOT_STORED
            subscription: str | None = getattr(frame, "subscription", None)
            return [self._answers.error(problem, frame_id=frame.id, subscription=subscription)]

    @property
    def is_acking(self) -> bool:
        """Return whether receipts of the last frame are left; then `continue_ack` must come before the next frame."""
        return self._acking is not None

    def continue_ack(self) -> list[Effect]:
        """Settle the next receipts of a long ack; other tasks may run between two calls."""
        acking = self._acking
        if acking is None or self.is_closed:
            self._acking = None
            return []
        effects = acking.settle_some(self._answers, errors_max=self._limits.receipt_errors_max)
        if not acking.is_done:
            return effects
        self._acking = None
        if acking.frame_id is not UNSET:
            effects.append(self._answers.state(acking.subscription, "acked", acking.frame_id))
        return self._flow(acking.subscription, effects)

    def joined(self, subscription: Subscription, frame_id: FrameId, *, skipped: int = 0) -> list[Effect]:
        """Confirm a subscription whose group has accepted the connection; `skipped` messages are before its start."""
        if self.is_closed or subscription.name not in self.subscriptions:
            return []
        subscription.is_open = True
        subscribed = self._answers.subscribed(subscription, frame_id, skipped=skipped)
        return [subscribed, *assign_retries(self.subscriptions.values(), subscription.group)]

    def join_failed(self, subscription: Subscription, frame_id: FrameId, problem: ProblemError) -> list[Effect]:
        """Answer a subscription that could not join its group, and remove it."""
        self.subscriptions.pop(subscription.name, None)
        error = self._answers.error(problem, frame_id=frame_id)
        heirs = assign_retries(self.subscriptions.values(), subscription.group)
        return [] if self.is_closed else [error, *heirs]

    def expelled(self, subscription: Subscription, problem: ProblemError) -> list[Effect]:
        """End a subscription that can't go on, because its topic or group is gone. There is nothing to commit."""
        if self.is_closed or subscription.name not in self.subscriptions:
            return []
        error = self._answers.error(problem, subscription=subscription.name)
        return [error, *self._remove(subscription, UNSET, commits=False)]

    def assigned(
        self, subscription: Subscription, added: Iterable[tuple[MessageQueue, int]], removed: Iterable[MessageQueue]
    ) -> list[Effect]:
        """Process queues that the group gave to this connection or took away; the caller has committed the latter."""
        if self.is_closed or not subscription.is_open or subscription.name not in self.subscriptions:
            return []
        topics = set()
        for queue in removed:
            topics.add(queue.topic)
            subscription.drop_feed(queue)
        for queue, next_offset in added:
            topics.add(queue.topic)
            subscription.add_feed(self._next_token(), queue, next_offset)
        told = [self._answers.assigned(subscription)] if not topics or subscription.topic in topics else []
        return [*told, *self._deliver(subscription), Wake(subscription)]

    def returned(self, order: Return, failures: Failures) -> list[Effect]:
        """Process the end of a Return; `failures` are the messages that their brokers did not take back."""
        if self.is_closed or order.subscription.name not in self.subscriptions:
            return []
        return self._flow(order.subscription, self._returns.finish(order, failures))

    def next_pull(self, subscription: Subscription, feed: Feed) -> PullOrder | None:
        """Return the next pull of a feed without one in flight, or None for nothing now."""
        return None if self.is_closed else self.delivery.next_pull(subscription, feed)

    def pulled(
        self,
        subscription: Subscription,
        feed: Feed,
        order: PullOrder,
        data: bytes,
        next_offset: int,
        *,
        is_behind: bool = False,
        now_ms: int,
    ) -> list[Effect]:
        """Process the result of a pull; empty `data` means that no message before `next_offset` matched.

        `is_behind` is whether the broker has more from there on.
        """
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
            return effects  # The feed was moved while the pull was in flight.
        feed.is_behind = is_behind
        if not data:
            subscription.skip_to(feed, next_offset)
        elif self.delivery.hold(subscription, feed, order, data, next_offset):
            effects.extend(self._deliver(subscription))
        return effects

    def moved(self, subscription: Subscription, feed: Feed, next_offset: int) -> list[Effect]:
        """Continue a feed at the offset that the broker has, because it does not have the requested one."""
        if self.is_closed or feed.is_dropped:
            return []
        subscription.move_feed(feed, self._next_token(), next_offset)
        return self.assigned(subscription, (), ())

    def pull_failed(self, subscription: Subscription, feed: Feed, problem: ProblemError) -> list[Effect]:
        """Report a failed pull that will be retried; only the first failure until one succeeds."""
        if self.is_closed or feed.is_dropped or feed.is_waiting:
            return []
        feed.is_waiting = True
        if subscription.waiting_feeds > 1:
            return []
        return [
            self._answers.error(problem, subscription=subscription.name),
            self._answers.state(subscription, "waiting"),
        ]

    def more(self) -> list[Effect]:
        """Return the next messages if more may be sent than came out at once."""
        return [] if self.is_closed else self.delivery.more(now_ms=self._now_ms)

    def unblock(self, *, now_ms: int) -> list[Effect]:
        """Continue sending messages, because there is room to write."""
        self._now_ms = now_ms
        return [] if self.is_closed else self.delivery.unblock(now_ms=now_ms)

    def tick(self, *, overdue_before_ms: Callable[[Subscription], int], now_ms: int) -> list[Effect]:
        """Do what is due about once a second; `overdue_before_ms` returns the limit of a group."""
        self._now_ms = now_ms
        if self.is_closed:
            return []
        return tick(
            self.subscriptions.values(),
            self.delivery,
            self._returns,
            self._answers,
            overdue_before_ms=overdue_before_ms,
            now_ms=now_ms,
        )

    def commits(self) -> list[tuple[Subscription, Feed, int]]:
        """Return the offsets that are not committed yet."""
        return [
            (subscription, feed, offset)
            for subscription in self.subscriptions.values()
            for feed, offset in subscription.commits()
        ]

    def take_pushed(self) -> int:
        """Return the number of messages sent since the last call."""
        pushed = self._pushed + sum(subscription.take_sent() for subscription in self.subscriptions.values())
        self._pushed = 0
        return pushed

    def close(self, code: int, reason: str, *, retry: bool = False, after_ms: int = 0) -> list[Effect]:
        """Send a goodbye frame and close."""
        if self.is_closed:
            return []
        self.is_closed = self.publishes.is_closed = True
        return [self._answers.goodbye(reason, retry=retry, after_ms=after_ms), Close(code, reason)]

    def end(self) -> None:
        """Stop all output, because the connection has ended."""
        self.is_closed = self.publishes.is_closed = True
        self.delivery.stop()
        self.checks.end()

    def _hello(self, frame: frames.Hello) -> list[Effect]:
        if self._received > 1:
            raise ProblemError(CONFLICT, "hello: must be the first frame", field="/type")
        if frame.resume is not None:
            raise_unsupported("/resume", "resuming a session")
        self.client_name = frame.client_name
        return self.checks.hello(frame)

    def _ack(self, frame: frames.Ack) -> list[Effect]:
        subscription = group_member(self._find(frame.subscription))
        if len(frame.receipts) > self._limits.receipts_max:
            detail = f"receipts: {len(frame.receipts)} exceed the limit of {self._limits.receipts_max}"
            raise ProblemError(TOO_LARGE, detail, field="/receipts")
        self._acking = AckProgress(subscription, frame.receipts, frame.id)
        return self.continue_ack()

    def _nack(self, frame: frames.Nack) -> list[Effect]:
        return self._returns.nack(group_member(self._find(frame.subscription)), frame, now_ms=self._now_ms)

    def _control(self, frame: frames.AddCredit | frames.Pause | frames.Resume) -> list[Effect]:
        subscription = self._find(frame.subscription)
        reason = control(subscription, frame, self._limits)
        told: list[Effect] = [self._answers.state(subscription, reason, frame.id)]
        return told if subscription.is_paused else self._flow(subscription, told)

    def _unsubscribe(self, frame: frames.Unsubscribe) -> list[Effect]:
        return self._remove(self._find(frame.subscription), frame.id)

    def _remove(self, subscription: Subscription, frame_id: FrameId, *, commits: bool = True) -> list[Effect]:
        offsets = [(feed.queue, offset) for feed, offset in subscription.commits()] if commits else []
        for queue in list(subscription.feeds):
            subscription.drop_feed(queue)
        del self.subscriptions[subscription.name]
        self._pushed += subscription.take_sent()
        heirs = assign_retries(self.subscriptions.values(), subscription.group)
        return [self._answers.state(subscription, "unsubscribed", frame_id), Leave(subscription, offsets), *heirs]

    def _next_token(self) -> str:
        self._feed_number += 1
        return f"{self._nonce}{self._feed_number}"

    def _find(self, name: str) -> Subscription:
        subscription = self.subscriptions.get(name)
        if subscription is None or not subscription.is_open:
            raise ProblemError(
                NOT_FOUND, f"subscription: there is no {name[:80]!r} on this connection", field="/subscription"
            )
        return subscription

    def _flow(self, subscription: Subscription, effects: list[Effect]) -> list[Effect]:
        """Send the messages that more credit or the end of a pause allows, and let the feeds pull."""
        effects.extend(self._deliver(subscription))
        effects.append(Wake(subscription))
        return effects

    def _deliver(self, subscription: Subscription) -> list[Effect]:
        return [] if self.is_closed else self.delivery.deliver(subscription, now_ms=self._now_ms)

    def _refuse_frame(self, problem: ProblemError, frame_id: FrameId) -> list[Effect]:
        # Frames that are not valid, one after the other, show a broken client. Frames rejected for limits or rights do
        # not count.
        self._refused_in_a_row += 1
        if self._refused_in_a_row > self._limits.refused_frames_max:
            return self.close(PROTOCOL, f"{self._refused_in_a_row} frames in a row were not valid; the last: {problem}")
        return [self._answers.error(problem, frame_id=frame_id)]

    # A class attribute: a table of bound methods would be a reference cycle in each session.
    _HANDLERS: ClassVar[dict[type, Callable[[Any, Any], list[Effect]]]] = {
        frames.Hello: _hello,
        frames.Subscribe: lambda self, frame: [self._subscribing.subscribe(frame)],
        frames.Ack: _ack,
        frames.Nack: _nack,
        frames.AddCredit: _control,
        frames.Pause: _control,
        frames.Resume: _control,
        frames.Unsubscribe: _unsubscribe,
        frames.Publish: lambda self, frame: [self.publishes.admit(frame, frame_bytes=self._frame_bytes)],
        frames.CheckResult: lambda self, frame: self.checks.answer(frame),
    }
