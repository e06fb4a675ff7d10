"""Receipts that a client acknowledges. Pure.

An ack frame has up to ten thousand receipts. It is settled in parts, so that other tasks get their turn.
"""

from collections.abc import Sequence
from typing import Final

from services.gateway.ws.answers import Answers
from services.gateway.ws.effects import Effect, FrameId
from services.gateway.ws.subscription import Subscription

# A receipt takes 2 to 5 µs, so a part blocks the loop for at most 5 ms.
RECEIPTS_AT_ONCE: Final = 1_000


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
