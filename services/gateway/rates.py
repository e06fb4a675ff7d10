"""Rates: limits on requests a second by key or address; set by settings, and none by default.

A holder may use a second's requests at once, and then one whenever its share of a second has passed (the generic cell
rate algorithm). Only holders with requests within the last second take memory.
"""

from math import ceil
from typing import NamedTuple

from services.gateway.errors import TOO_MANY, ProblemError

_WINDOW_MS = 1_000


class Allowance(NamedTuple):
    """The requests that a holder has left, and the time until all are available again, in ms."""

    left: int
    full_in_ms: int


class RateLine(NamedTuple):
    """A limit and its rest, as the headers of an answer tell it.

    Attributes:
        name: Name of the limit.
        quota: The limit.
        left: The rest of it.
        full_in_ms: Time until all of it is available again; None for one that is not in a second.
        unit: Unit of the quota; None: requests.
    """

    name: str
    quota: int
    left: int
    full_in_ms: int | None = None
    unit: str | None = None


class Rate:
    """A limit on requests a second for each holder.

    Attributes:
        name: Name in `/v1/limits`, metrics and problems.
        scope: `KEY` or `ADDRESS`: kind of the holders.
        per_s: Limit in a second.
        refused: Number of rejections.

    Concurrency: one thread.
    """

    __slots__ = ("_full_at", "_sweep_at", "name", "per_s", "refused", "scope")

    def __init__(self, name: str, scope: str, *, per_s: int) -> None:
        assert per_s > 0
        self.name = name
        self.scope = scope
        self.per_s = per_s
        self.refused = 0
        # Holder → the time at which all its requests are available again, in monotonic ms.
        self._full_at: dict[str, float] = {}
        self._sweep_at = 1_024

    def take(self, holder: str, now_ms: int) -> Allowance:
        """Count one request.

        Raises:
            ProblemError: 429: the holder's requests are exhausted.
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
        """Return the requests that a holder has left."""
        taken_ms = max(0.0, self._full_at.get(holder, 0.0) - now_ms)
        return Allowance(int((_WINDOW_MS - taken_ms) * self.per_s / _WINDOW_MS + 1e-6), ceil(taken_ms))

    def line(self, allowance: Allowance) -> RateLine:
        """Return the rate for the headers of an answer."""
        return RateLine(self.scope, self.per_s, allowance.left, allowance.full_in_ms)

    @property
    def holders(self) -> int:
        """Return the number of holders in memory."""
        return len(self._full_at)

    def _sweep(self, now_ms: int) -> None:
        self._full_at = {holder: full_at for holder, full_at in self._full_at.items() if full_at > now_ms}
        self._sweep_at = max(1_024, 2 * len(self._full_at))
