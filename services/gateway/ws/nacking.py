"""Messages that a client returns (`nack`), and those that it did not acknowledge in time. Pure.

    concurrent    the message is sent back to its broker, which delivers it again later, in the group's retry topic
    orderly       its queue waits, and then the same messages come again; after the last attempt, the message is sent
                  back as a dead letter, and the queue goes on

A message stays in flight until its broker has taken it back. If the broker does not, the client is told, and can return
or acknowledge it again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import UNSET

from gantry.model.errors import InvalidValueError
from gantry.model.retrypolicy import DELAY_MS_MAX
from services.gateway.errors import TOO_LARGE, ProblemError, invalid
from services.gateway.schemas.times import parse_duration_ms
from services.gateway.ws import frames
from services.gateway.ws.answers import Answers
from services.gateway.ws.effects import Effect, JoinRetries, Poisoned, Return, ReturnedPart
from services.gateway.ws.feed import Feed
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.receipts import GONE
from services.gateway.ws.subscription import Subscription

RETURNED_AT_ONCE: Final = 1_000
"""Limit of receipts in one nack, and of their messages. To settle a message takes 2 to 5 µs of the loop's time."""

# The time for which a returned message suspends its queue, and its limits: RocketMQ's suspendCurrentQueueTimeMillis.
SUSPEND_MS: Final = 1_000
SUSPEND_MS_MIN: Final = 10
SUSPEND_MS_MAX: Final = 30_000

POISON_FAILURES: Final = 3
"""Number of failures from which a message that holds up its queue is reported."""

Failures = Mapping[tuple[Feed, int], ProblemError]
"""The messages that could not be sent back, by queue and offset."""


class Returns:
    """The decisions of one session about returned messages."""

    def __init__(self, answers: Answers, limits: StreamLimits) -> None:
        self._answers = answers
        self._limits = limits

    def nack(self, subscription: Subscription, frame: frames.Nack, *, now_ms: int) -> list[Effect]:
        """Process a nack; return an error for each rejected receipt.

        Raises:
            ProblemError: 400: the delay is not valid; 413: too many receipts or messages. Nothing is returned.
        """
        if len(frame.receipts) > RETURNED_AT_ONCE:
            detail = f"receipts: {len(frame.receipts)} exceed the limit of {RETURNED_AT_ONCE} for a nack"
            raise ProblemError(TOO_LARGE, detail, field="/receipts")
        if subscription.is_orderly:
            suspend_ms = _delay_ms(frame.delay, SUSPEND_MS_MIN, SUSPEND_MS_MAX)
            resume_at_ms = now_ms + (SUSPEND_MS if suspend_ms is None else suspend_ms)
            return self._suspend(subscription, frame, resume_at_ms)
        delay_ms = _delay_ms(frame.delay, 0, DELAY_MS_MAX)
        found, effects = self._find(subscription, frame)
        parts = [_take(feed, offsets) for feed, offsets in found.items()]
        if parts:
            return [*effects, Return(subscription, parts, delay_ms=delay_ms, frame_id=frame.id)]
        if frame.id is not UNSET:
            effects.append(self._answers.state(subscription, "returned", frame.id))
        return effects

    def overdue(self, subscription: Subscription, *, sent_until_ms: int, now_ms: int) -> list[Effect]:
        """Send back the messages of a concurrent subscription that were sent at this time or earlier; monotonic."""
        parts: list[ReturnedPart] = []
        count = 0
        for feed in subscription.feeds.values():
            if count >= RETURNED_AT_ONCE:
                break  # The others follow in a second.
            if feed.window.messages and feed.resending is None:
                offsets = feed.find_overdue(sent_until_ms=sent_until_ms, now_ms=now_ms)
                count += len(offsets)
                if offsets:
                    parts.append(_take(feed, offsets))
        return [Return(subscription, parts, is_overdue=True)] if parts else []

    def finish(self, order: Return, failures: Failures) -> list[Effect]:
        """Settle the messages that their brokers have taken back, and report the others."""
        subscription, effects, unreported = order.subscription, list[Effect](), 0
        for part in order.parts:
            feed = part.feed
            for offset in part.offsets:
                feed.returning.discard(offset)
                if feed.is_dropped or feed.token != part.token:
                    continue  # The queue has moved, and its next owner gets the message, too.
                problem = failures.get((feed, offset))
                if problem is None:
                    subscription.settle_returned(feed, offset)
                    continue
                if order.is_overdue:
                    feed.resend(offset)
                if len(effects) < self._limits.receipt_errors_max:
                    effects.append(self._failed(order, problem, f"{part.token}.{offset}"))
                else:
                    unreported += 1
        if unreported:
            receipt = f"{part.token}.{offset}"
            effects.append(self._answers.receipts_refused(subscription, receipt, unreported, order.frame_id))
        if order.frame_id is not UNSET:
            effects.append(self._answers.state(subscription, "returned", order.frame_id))
        elif order.is_overdue:
            effects.append(self._answers.state(subscription, "timed_out"))
        return effects

    def _failed(self, order: Return, problem: ProblemError, receipt: str) -> Effect:
        name = order.subscription.name
        return self._answers.error(problem, frame_id=order.frame_id, subscription=name, receipt=receipt)

    def _suspend(self, subscription: Subscription, frame: frames.Nack, resume_at_ms: int) -> list[Effect]:
        found, effects = self._find(subscription, frame)
        limit = subscription.failures_max
        parts: list[ReturnedPart] = []
        for feed, offsets in found.items():
            subscription.suspend(feed, offsets, resume_at_ms)
            dead = [] if limit is None else [offset for offset in offsets if feed.failures[offset] > limit]
            if dead:
                parts.append(_take(feed, dead, {offset: feed.failures[offset] for offset in dead}))
            worst = max(offsets, key=lambda offset: feed.failures[offset])
            failures = feed.failures[worst]
            if failures >= POISON_FAILURES or dead:
                effects.append(self._answers.poison(subscription, feed.queue, worst, failures))
                effects.append(Poisoned(subscription, feed.queue, worst, failures, is_dead=worst in dead))
        if frame.id is not UNSET:
            effects.append(self._answers.state(subscription, "suspended", frame.id))
        if parts:
            effects.append(Return(subscription, parts, is_dead=True))
        return effects

    def _find(self, subscription: Subscription, frame: frames.Nack) -> tuple[dict[Feed, list[int]], list[Effect]]:
        """Return the offsets of the returned messages, and an error for each rejected receipt. Raises ProblemError."""
        found: dict[Feed, dict[int, None]] = {}
        refused: list[tuple[str, str]] = []
        for receipt in frame.receipts:
            match = subscription.find_in_flight(receipt)
            if isinstance(match, str):
                refused.append((receipt, match))
                continue
            feed, offsets = match
            fresh = [offset for offset in offsets if offset not in feed.returning]
            if fresh:
                found.setdefault(feed, {}).update(dict.fromkeys(fresh))
            else:
                refused.append((receipt, GONE))
        if sum(len(offsets) for offsets in found.values()) > RETURNED_AT_ONCE:
            detail = f"receipts: they name more than {RETURNED_AT_ONCE} messages, which is the limit for a nack"
            raise ProblemError(TOO_LARGE, detail, field="/receipts")
        effects: list[Effect] = [
            self._answers.receipt_refused(subscription, receipt, refusal, frame.id)
            for receipt, refusal in refused[: self._limits.receipt_errors_max]
        ]
        unreported = len(refused) - len(effects)
        if unreported:
            effects.append(self._answers.receipts_refused(subscription, refused[-1][0], unreported, frame.id))
        for feed, returned in found.items():
            subscription.failed(feed, returned)
        return {feed: list(returned) for feed, returned in found.items()}, effects


def assign_retries(subscriptions: Iterable[Subscription], group: str) -> list[Effect]:
    """Give the retry topic of a group to the first subscription of the group, unless one has it."""
    of_group = [each for each in subscriptions if each.group == group and each.is_open and not each.is_tail]
    if not of_group or any(each.has_retries for each in of_group):
        return []
    of_group[0].has_retries = True
    return [JoinRetries(of_group[0])]


def _take(feed: Feed, offsets: Sequence[int], failures: Mapping[int, int] | None = None) -> ReturnedPart:
    feed.returning.update(offsets)
    return ReturnedPart(feed, feed.token, offsets, failures or {})


def _delay_ms(text: str | None, least_ms: int, most_ms: int) -> int | None:
    if text is None:
        return None
    try:
        delay_ms = parse_duration_ms(text, "delay", max_ms=DELAY_MS_MAX)
    except InvalidValueError as error:
        raise invalid("/delay", text, error.reason) from None
    if not least_ms <= delay_ms <= most_ms:
        raise invalid("/delay", text, f"is not within {least_ms} and {most_ms} ms")
    return delay_ms
