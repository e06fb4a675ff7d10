"""Quotas: how much of one thing there may be at once, for each holder and in all.

A holder is an API key or an address. Its own share is checked first: a holder above its share is told 429, and only one
that is within its share can be told 503 because all of them together are too many.
"""

from typing import Final

from services.gateway.errors import OVERLOADED, TOO_MANY, ProblemError

KEY: Final = "key"
ADDRESS: Final = "address"


class Quota:
    """How much of one thing there may be at once.

    Attributes:
        name: What is counted, as `/v1/limits`, metrics and problems name it.
        scope: `KEY` or `ADDRESS`: what the holders are.
        each_max: The most that one holder may have.
        total_max: The most that all of them may have together.
        used: What all of them have now.
        refused_each: How often a holder was refused for its own share.
        refused_total: How often one was refused for the sum of all.

    Concurrency: one thread.
    """

    __slots__ = ("_by_holder", "each_max", "name", "refused_each", "refused_total", "scope", "total_max", "used")

    def __init__(self, name: str, scope: str, *, each_max: int, total_max: int) -> None:
        self.name = name
        self.scope = scope
        self.each_max = each_max
        self.total_max = total_max
        self.used = 0
        self.refused_each = 0
        self.refused_total = 0
        self._by_holder: dict[str, int] = {}

    def take(self, holder: str, count: int = 1, *, spare: int = 0) -> None:
        """Take so many for a holder, and leave `spare` of all to others.

        Raises:
            ProblemError: 429: the holder has its share. 503: all of them together have what there is.
        """
        held = self._by_holder.get(holder, 0)
        if held + count > self.each_max:
            self.refused_each += 1
            raise ProblemError(
                TOO_MANY, f"{self.name}: {self.scope} {holder} has {held}, {count} more would be above {self.each_max}"
            )
        total_max = self.total_max - spare
        if self.used + count > total_max:
            self.refused_total += 1
            raise ProblemError(
                OVERLOADED, f"{self.name}: all have {self.used}, {count} more would be above {total_max}"
            )
        self.take_back(holder, count)

    def take_back(self, holder: str, count: int = 1) -> None:
        """Take without asking, for a holder that had it before and goes on with what it was let in for."""
        self._by_holder[holder] = self._by_holder.get(holder, 0) + count
        self.used += count

    def change(self, holder: str, count: int) -> None:
        """Take so many without asking, or give them back where negative."""
        if count > 0:
            self.take_back(holder, count)
        elif count < 0:
            self.give(holder, -count)

    def give(self, holder: str, count: int = 1) -> None:
        """Give so many back."""
        left = self._by_holder[holder] - count
        assert left >= 0, f"{self.name}: more is given back than was taken"
        if left:
            self._by_holder[holder] = left
        else:
            del self._by_holder[holder]
        self.used -= count

    def held_by(self, holder: str) -> int:
        """Return how many a holder has."""
        return self._by_holder.get(holder, 0)

    def has_room(self, holder: str) -> bool:
        """Say whether a holder may have more; one that has none always may."""
        held = self._by_holder.get(holder, 0)
        return not held or (held < self.each_max and self.used < self.total_max)

    def require_room(self, holder: str) -> None:
        """Raise ProblemError unless a holder may have more, however much that is.

        Raises:
            ProblemError: 429: the holder has its share. 503: all of them together have what there is.
        """
        held = self._by_holder.get(holder, 0)
        if held >= self.each_max:
            self.refused_each += 1
            raise ProblemError(TOO_MANY, f"{self.name}: {self.scope} {holder} has {held}, at most {self.each_max}")
        if self.used >= self.total_max:
            self.refused_total += 1
            raise ProblemError(OVERLOADED, f"{self.name}: all have {self.used}, at most {self.total_max}")

    @property
    def holders(self) -> int:
        """Return how many holders have any."""
        return len(self._by_holder)
