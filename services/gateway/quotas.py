"""Quotas: limits on how much of a resource is in use at once, for each holder and in total.

A holder is an API key or an address. Its own share is checked first: a holder above its share gets 429, and only a
holder within its share gets 503 because the total is exhausted.
"""

from typing import Final

from services.gateway.errors import OVERLOADED, TOO_MANY, ProblemError

KEY: Final = "key"
ADDRESS: Final = "address"


class Quota:
    """A limit on the amount of one resource in use at once.

    Attributes:
        name: Name of the resource in `/v1/limits`, metrics and problems.
        scope: `KEY` or `ADDRESS`: kind of the holders.
        each_max: Limit of each holder.
        total_max: Limit of all holders together.
        used: Amount that all holders have now.
        refused_each: Number of rejections because of a holder's share.
        refused_total: Number of rejections because of the total.

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
        """Reserve `count` for a holder, and leave `spare` of the total to others.

        Raises:
            ProblemError: 429: the holder's share is exhausted. 503: the total is exhausted.
        """
        held = self._by_holder.get(holder, 0)
        if held + count > self.each_max:
            self.refused_each += 1
            raise ProblemError(
                TOO_MANY,
                f"{self.name}: {self.scope} {holder} has {held}, and {count} more would exceed its limit of {self.each_max}",
            )
        total_max = self.total_max - spare
        if self.used + count > total_max:
            self.refused_total += 1
            raise ProblemError(
                OVERLOADED,
                f"{self.name}: {self.used} are in use, and {count} more would exceed the limit of {total_max}",
            )
        self.take_back(holder, count)

    def take_back(self, holder: str, count: int = 1) -> None:
        """Reserve without a check, for a holder that had it before and continues its admitted work."""
        self._by_holder[holder] = self._by_holder.get(holder, 0) + count
        self.used += count

    def change(self, holder: str, count: int) -> None:
        """Reserve `count` without a check, or release it if negative."""
        if count > 0:
            self.take_back(holder, count)
        elif count < 0:
            self.give(holder, -count)

    def give(self, holder: str, count: int = 1) -> None:
        """Release `count`."""
        left = self._by_holder[holder] - count
        assert left >= 0, f"{self.name}: more is given back than was taken"
        if left:
            self._by_holder[holder] = left
        else:
            del self._by_holder[holder]
        self.used -= count

    def held_by(self, holder: str) -> int:
        """Return the amount that a holder has."""
        return self._by_holder.get(holder, 0)

    def has_room(self, holder: str) -> bool:
        """Return whether a holder may have more; a holder that has none always may."""
        held = self._by_holder.get(holder, 0)
        return not held or (held < self.each_max and self.used < self.total_max)

    def require_room(self, holder: str) -> None:
        """Raise ProblemError unless a holder may have more, whatever the amount.

        Raises:
            ProblemError: 429: the holder's share is exhausted. 503: the total is exhausted.
        """
        held = self._by_holder.get(holder, 0)
        if held >= self.each_max:
            self.refused_each += 1
            raise ProblemError(
                TOO_MANY, f"{self.name}: {self.scope} {holder} has {held}, and its limit is {self.each_max}"
            )
        if self.used >= self.total_max:
            self.refused_total += 1
            raise ProblemError(OVERLOADED, f"{self.name}: {self.used} are in use, and the limit is {self.total_max}")

    @property
    def holders(self) -> int:
        """Return the number of holders that have any."""
        return len(self._by_holder)
