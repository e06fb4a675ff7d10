"""An ack that is being settled: up to ten thousand receipts, some at a time, so that others use the loop between. Pure."""

from collections.abc import Sequence
from typing import Final

from services.gateway.ws.answers import Answers
from services.gateway.ws.effects import Effect, FrameId
from services.gateway.ws.subscription import Subscription

# A receipt takes 2 to 5 µs, so the loop is held for 5 ms at most.
RECEIPTS_AT_ONCE: Final = 1_000


class Acking:
    """One `ack` frame and how far its receipts are settled."""

    def __init__(self, subscription: Subscription, receipts: Sequence[str], frame_id: FrameId) -> None:
        self.subscription = subscription
        self.frame_id = frame_id
        self._receipts = receipts
        self._at = 0
        self._told = 0
        self._untold = 0
        self._last_refused = ""

    @property
    def is_done(self) -> bool:
        """Say whether all receipts were looked at."""
        return self._at >= len(self._receipts)

    def settle_some(self, answers: Answers, *, errors_max: int) -> list[Effect]:
        """Settle the next receipts; return an error for each that is refused, the last of all for those past `errors_max`."""
        effects: list[Effect] = []
        settle = self.subscription.settle
        end = self._at + RECEIPTS_AT_ONCE
        for receipt in self._receipts[self._at : end]:
            refusal = settle(receipt)
            if refusal is None:
                continue
            if self._told < errors_max:
                self._told += 1
                effects.append(answers.receipt_refused(self.subscription, receipt, refusal, self.frame_id))
            else:
                self._untold += 1
                self._last_refused = receipt
        self._at = end
        if self.is_done and self._untold:
            told = answers.receipts_refused(self.subscription, self._last_refused, self._untold, self.frame_id)
            effects.append(told)
        return effects
