"""Rates: how many requests a second a key or an address may make; settings, and none by default.

A holder may make as many as it has for a second at once, and then one whenever its share of a second has passed (the
generic cell rate algorithm). Only holders that made requests within the last second take memory.
"""

from math import ceil
from typing import NamedTuple

from services.gateway.errors import TOO_MANY, ProblemError

_WINDOW_MS = 1_000


class Allowance(NamedTuple):
    """What a holder has left of its second, and how many ms it takes until it has all of it again."""

    left: int
    full_in_ms: int


class Rate:
    """So many requests a second for each holder.

    Attributes:
        name: What is counted, as `/v1/limits`, metrics and problems name it.
        scope: What the holders are.
        per_s: The most in a second.
        refused: How often a holder was refused.

    Concurrency: one thread.
    """

    __slots__ = ("_full_at", "_sweep_at", "name", "per_s", "refused", "scope")

    def __init__(self, name: str, scope: str, *, per_s: int) -> None:
        assert per_s > 0
        self.name = name
        self.scope = scope
        self.per_s = per_s
        self.refused = 0
        # By holder, when it has all of its second again; in ms.
        self._full_at: dict[str, float] = {}
        self._sweep_at = 1_024

    def take(self, holder: str, now_ms: int) -> Allowance:
        """Count one request.

        Raises:
            ProblemError: 429: the holder has made all that it may.
        """
        each_ms = _WINDOW_MS / self.per_s
        full_at = max(self._full_at.get(holder, 0.0), now_ms) + each_ms
        over_ms = full_at - now_ms - _WINDOW_MS
        # Sums of fractions of a millisecond are not exact.
        if over_ms > each_ms / 1_000:
            self.refused += 1
            raise ProblemError(
                TOO_MANY,
                f"{self.name}: {self.scope} {holder} makes more than {self.per_s} requests a second",
                retry_after_ms=int(over_ms) + 1,
            )
        self._full_at[holder] = full_at
        if len(self._full_at) > self._sweep_at:
            self._sweep(now_ms)
        return self.allowance(holder, now_ms)

    def allowance(self, holder: str, now_ms: int) -> Allowance:
        """Return what a holder has left."""
        taken_ms = max(0.0, self._full_at.get(holder, 0.0) - now_ms)
        return Allowance(int((_WINDOW_MS - taken_ms) * self.per_s / _WINDOW_MS + 1e-6), ceil(taken_ms))

    @property
    def holders(self) -> int:
        """Return how many holders are remembered."""
        return len(self._full_at)

    def _sweep(self, now_ms: int) -> None:
        self._full_at = {holder: full_at for holder, full_at in self._full_at.items() if full_at > now_ms}
        self._sweep_at = max(1_024, 2 * len(self._full_at))
