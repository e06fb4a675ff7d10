"""State of transactions that is not in the log: decisions under way, decisions made, and newest copies.

The check stores a half message again each time it asks a producer. A producer that decides late still names the first
half message. `copies` finds the newest copy then, so that the decision ends the transaction for good. The start reads
the copies again from the half topic. `recent` answers a decision that arrives twice. Both are bounded. Beyond their
bounds the broker does what RocketMQ does: a late commit is stored, and the copy stays open until its check is answered.

Concurrency: the loop's thread.
"""

from collections import OrderedDict
from typing import Final

from services.broker.transaction.messages import TransactionKey

COPIES_MAX: Final = 100_000
"""Limit of transactions whose newest copy is known; each takes about 400 bytes."""
RECENT_MAX: Final = 20_000
"""Limit of decisions that are remembered."""


class OpenHalves:
    """Newest copies of half messages, and decisions.

    Attributes:
        deciding: Queue offsets of half messages whose commit is appended but not durable.
        refused_copies: Number of copies that were not noted because the table was full.
    """

    def __init__(self) -> None:
        self.deciding: set[int] = set()
        self.refused_copies = 0
        self._copies: dict[TransactionKey, int] = {}
        self._recent: OrderedDict[TransactionKey, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._copies)

    def note_copy(self, key: TransactionKey, half_offset: int) -> None:
        """Note the newest copy of a half message."""
        if key in self._copies or len(self._copies) < COPIES_MAX:
            self._copies[key] = max(half_offset, self._copies.get(key, 0))
        else:
            self.refused_copies += 1

    def newest(self, key: TransactionKey, half_offset: int) -> int:
        """Return the queue offset of the newest copy that is known, `half_offset` if none is."""
        return max(self._copies.get(key, half_offset), half_offset) if self._copies else half_offset

    def ended(self, key: TransactionKey, decision: int | None) -> None:
        """Forget the copies of a transaction, and remember how it was decided; None if the check gave up."""
        if self._copies:
            self._copies.pop(key, None)
        if decision is not None:
            self._recent[key] = decision
            if len(self._recent) > RECENT_MAX:
                self._recent.popitem(last=False)

    def decision(self, key: TransactionKey) -> int | None:
        """Return how a transaction was decided, or None if it was not, or too long ago."""
        return self._recent.get(key)

    def find_decision(self, unique_key: str) -> int | None:
        """Return the last decision on a message with a unique key, or None if none is remembered."""
        recent = reversed(self._recent.items())
        return next((decision for key, decision in recent if key[0] == unique_key), None)
