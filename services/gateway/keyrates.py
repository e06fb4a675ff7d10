"""The limits of a key of its own: messages and bytes that it sends in a second, streams, and requests in progress.

A key without limits costs one look at its principal. Rates allow a second's worth at once (the generic cell rate
algorithm). The size of a send is known only when it is read, so a send is admitted while anything is left, and is then
counted whole: a batch larger than the rate passes, and the key waits longer after it.
"""

from collections.abc import Callable
from math import ceil
from typing import Final, Protocol

from services.gateway.errors import TOO_MANY, ProblemError
from services.gateway.quotas import Quota
from services.gateway.rates import RateLine
from services.gateway.schemas.rights import KeyLimits

_WINDOW_MS: Final = 1_000
_SWEEP_AT: Final = 1_024

MESSAGES: Final = "messages_per_s"
BYTES: Final = "bytes_per_s"
CONNECTIONS: Final = "connections"
IN_FLIGHT: Final = "in_flight"
_UNITS: Final = {MESSAGES: "messages", BYTES: "content-bytes"}


class LimitedCaller(Protocol):
    """The part of a principal that has limits."""

    key_id: str
    limits: KeyLimits | None


class KeyRates:
    """The use of the limits of all keys.

    Concurrency: one thread.
    """

    def __init__(self, streams: Quota, requests: Quota, long_polls: Quota, *, monotonic_ms: Callable[[], int]) -> None:
        self._streams = streams
        self._requests = requests
        self._long_polls = long_polls
        self._monotonic_ms = monotonic_ms
        # (key, limit) → the time at which all of a second is available again, in monotonic ms.
        self._full_at: dict[tuple[str, str], float] = {}
        self._sweep_at = _SWEEP_AT

    def require_slot(self, caller: LimitedCaller) -> None:
        """Raise ProblemError (429) if the key has as many requests in progress as its limit allows."""
        limits = caller.limits
        if limits is not None and limits.in_flight is not None:
            held = self._in_flight(caller)
            if held >= limits.in_flight:
                raise _exceeded(caller, IN_FLIGHT, f"has {held} requests in progress", limits.in_flight)

    def require_stream(self, caller: LimitedCaller) -> None:
        """Raise ProblemError (429) if the key has as many streams as its limit allows."""
        limits = caller.limits
        if limits is not None and limits.connections is not None:
            held = self._streams.held_by(caller.key_id)
            if held >= limits.connections:
                raise _exceeded(caller, CONNECTIONS, f"has {held} streams", limits.connections)

    def require_send(self, caller: LimitedCaller) -> None:
        """Raise ProblemError (429) if the key has sent so much that it must wait."""
        now_ms = self._monotonic_ms()
        for name, per_s in _rates_of(caller):
            over_ms = self._full_at.get((caller.key_id, name), 0.0) - now_ms - _WINDOW_MS
            # Less than one message, or byte, is left.
            if over_ms > -_WINDOW_MS / per_s * (1 - 1e-6):
                what = f"sends more than {per_s} {_UNITS[name]} a second"
                raise _exceeded(caller, name, what, per_s, retry_after_ms=max(1, ceil(over_ms + _WINDOW_MS / per_s)))

    def count_send(self, caller: LimitedCaller, messages: int, size_bytes: int) -> None:
        """Count a send that was admitted."""
        now_ms = self._monotonic_ms()
        for name, per_s in _rates_of(caller):
            amount = messages if name == MESSAGES else size_bytes
            at = (caller.key_id, name)
            self._full_at[at] = max(self._full_at.get(at, 0.0), now_ms) + amount * _WINDOW_MS / per_s
        if len(self._full_at) > self._sweep_at:
            self._full_at = {each: full_at for each, full_at in self._full_at.items() if full_at > now_ms}
            self._sweep_at = max(_SWEEP_AT, 2 * len(self._full_at))

    def take_send(self, caller: LimitedCaller, messages: int, size_bytes: int) -> None:
        """Admit and count a send whose size is known. Raises ProblemError (429)."""
        if caller.limits is not None:
            self.require_send(caller)
            self.count_send(caller, messages, size_bytes)

    def lines(self, caller: LimitedCaller) -> list[RateLine]:
        """Return the limits of a key and what is left of them, for the headers of an answer."""
        limits = caller.limits
        if limits is None:
            return []
        now_ms = self._monotonic_ms()
        lines = []
        for name, per_s in _rates_of(caller):
            taken_ms = max(0.0, self._full_at.get((caller.key_id, name), 0.0) - now_ms)
            left = max(0, int((_WINDOW_MS - taken_ms) * per_s / _WINDOW_MS + 1e-6))
            lines.append(RateLine(name, per_s, left, full_in_ms=ceil(taken_ms), unit=_UNITS[name]))
        if limits.in_flight is not None:
            left = max(0, limits.in_flight - self._in_flight(caller))
            lines.append(RateLine(IN_FLIGHT, limits.in_flight, left, unit="concurrent-requests"))
        return lines

    def _in_flight(self, caller: LimitedCaller) -> int:
        return self._requests.held_by(caller.key_id) + self._long_polls.held_by(caller.key_id)


def _rates_of(caller: LimitedCaller) -> list[tuple[str, int]]:
    limits = caller.limits
    if limits is None:
        return []
    pairs = ((MESSAGES, limits.messages_per_s), (BYTES, limits.bytes_per_s))
    return [(name, per_s) for name, per_s in pairs if per_s is not None]


def _exceeded(
    caller: LimitedCaller, name: str, what: str, limit: int, retry_after_ms: int | None = None
) -> ProblemError:
    detail = f"{name}: key {caller.key_id} {what}, and its limit is {limit}"
    return ProblemError(TOO_MANY, detail, retry_after_ms=retry_after_ms)
