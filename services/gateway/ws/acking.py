"""Receipts that a client sends back. Pure.

An ack frame has up to ten thousand receipts. It is settled in parts, so that other tasks get their turn. A nack of an
orderly subscription suspends the queues of its messages.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET

from gantry.model.errors import InvalidValueError
from services.gateway.errors import TOO_LARGE, ProblemError, invalid
from services.gateway.schemas.times import parse_duration_ms
from services.gateway.ws import frames
from services.gateway.ws.answers import Answers
from services.gateway.ws.checks import raise_unsupported
from services.gateway.ws.effects import Effect, FrameId
from services.gateway.ws.limits import StreamLimits
from services.gateway.ws.subscription import Subscription

# A receipt takes 2 to 5 µs, so a part blocks the loop for at most 5 ms.
RECEIPTS_AT_ONCE: Final = 1_000

# The time for which a returned message suspends its queue, and its limits: RocketMQ's suspendCurrentQueueTimeMillis.
SUSPEND_MS: Final = 1_000
SUSPEND_MS_MIN: Final = 10
SUSPEND_MS_MAX: Final = 30_000


class AckProgress:
    """One `ack` frame and the number of its receipts that are settled."""

    def __init__(self, subscription: Subscription, receipts: Sequence[str], frame_id: FrameId) -> None:
        self.subscription = subscription
        self.frame_id = frame_id
        self._receipts = receipts
        self._at = 0
        self._reported = 0
        self._unreported = 0
        self._last_refused = ""

    @property
    def is_done(self) -> bool:
        """Return whether all receipts are settled."""
        return self._at >= len(self._receipts)

    def settle_some(self, answers: Answers, *, errors_max: int) -> list[Effect]:
        """Settle the next receipts; return an error for each rejected one, up to `errors_max`, and one for the rest."""
        effects: list[Effect] = []
        settle = self.subscription.settle
        end = self._at + RECEIPTS_AT_ONCE
        for receipt in self._receipts[self._at : end]:
            refusal = settle(receipt)
            if refusal is None:
                continue
            if self._reported < errors_max:
                self._reported += 1
                effects.append(answers.receipt_refused(self.subscription, receipt, refusal, self.frame_id))
            else:
                self._unreported += 1
                self._last_refused = receipt
        self._at = end
        if self.is_done and self._unreported:
            told = answers.receipts_refused(self.subscription, self._last_refused, self._unreported, self.frame_id)
            effects.append(told)
        return effects


def suspend(
    subscription: Subscription, frame: frames.Nack, answers: Answers, limits: StreamLimits, *, now_ms: int
) -> list[Effect]:
    """Suspend the queues of returned messages; return an error for each rejected receipt.

    Raises:
        ProblemError: 400: the delay is not valid; 413: too many receipts; 501: the subscription is not orderly.
    """
    if not subscription.is_orderly:
        raise_unsupported("/type", "returning messages (nack) of a concurrent subscription")
    if len(frame.receipts) > RECEIPTS_AT_ONCE:
        detail = f"receipts: {len(frame.receipts)} exceed the limit of {RECEIPTS_AT_ONCE} for a nack"
        raise ProblemError(TOO_LARGE, detail, field="/receipts")
    resume_at_ms = now_ms + _delay_ms(frame.delay)
    effects: list[Effect] = []
    refused = [
        (receipt, refusal)
        for receipt in frame.receipts
        if (refusal := subscription.suspend(receipt, resume_at_ms)) is not None
    ]
    for receipt, refusal in refused[: limits.receipt_errors_max]:
        effects.append(answers.receipt_refused(subscription, receipt, refusal, frame.id))
    unreported = len(refused) - len(effects)
    if unreported:
        effects.append(answers.receipts_refused(subscription, refused[-1][0], unreported, frame.id))
    if frame.id is not UNSET:
        effects.append(answers.state(subscription, "suspended", frame.id))
    return effects


def _delay_ms(text: str | None) -> int:
    if text is None:
        return SUSPEND_MS
    try:
        delay_ms = parse_duration_ms(text, "delay")
    except InvalidValueError as error:
        raise invalid("/delay", text, error.reason) from None
    if not SUSPEND_MS_MIN <= delay_ms <= SUSPEND_MS_MAX:
        raise invalid("/delay", text, f"is not within {SUSPEND_MS_MIN} and {SUSPEND_MS_MAX} ms")
    return delay_ms
