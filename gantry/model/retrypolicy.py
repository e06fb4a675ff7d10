"""The retry policy of a group, `groupRetryPolicy`: how long a failed message waits before it is delivered again.

    {"type":"CUSTOMIZED"}                                         the delay levels of the broker
    {"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[…]}}    delays in ms; the first failure takes the third one
    {"type":"EXPONENTIAL","exponentialRetryPolicy":
        {"initial":5000,"max":7200000,"multiplier":2}}            initial · multiplier ⁿ ms, at most `max`

A value of a wrong type counts as RocketMQ's default. Source: RocketMQ 5.3 CustomizedRetryPolicy, ExponentialRetryPolicy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

DELAY_MS_MAX: Final = 40 * 86_400_000
_FIRST_INDEX: Final = 2
_FAILURES_MAX: Final = 32
_INITIAL_MS, _MAX_MS, _MULTIPLIER = 5_000, 7_200_000, 2


@dataclass(frozen=True, slots=True)
class ExponentialDelays:
    """Delays that grow by a factor: initial_ms · multiplier ⁿ, at most max_ms."""

    initial_ms: int = _INITIAL_MS
    max_ms: int = _MAX_MS
    multiplier: int = _MULTIPLIER

    def delay_ms(self, failures: int) -> int:
        """Return the delay in ms after a failure; `failures` is the number of failures before it."""
        delay_ms = self.initial_ms
        for _ in range(min(failures, _FAILURES_MAX)):
            delay_ms *= self.multiplier
        return min(delay_ms, self.max_ms, DELAY_MS_MAX)


@dataclass(frozen=True, slots=True)
class ListedDelays:
    """A delay in ms for each failure; the last one also counts for all later failures. 0 stands for the levels."""

    delays_ms: Sequence[int]

    def delay_ms(self, failures: int) -> int:
        """Return the delay in ms after a failure; `failures` is the number of failures before it."""
        return self.delays_ms[min(failures, len(self.delays_ms) - 1)]


Delays = ExponentialDelays | ListedDelays


def read_retry_policy(policy: Mapping[str, Any]) -> Delays | None:
    """Return the delays of a `groupRetryPolicy`; None for the delay levels of the broker."""
    if policy.get("type") == "EXPONENTIAL":
        curve = policy.get("exponentialRetryPolicy")
        curve = curve if isinstance(curve, dict) else {}
        return ExponentialDelays(
            initial_ms=_positive(curve.get("initial"), _INITIAL_MS),
            max_ms=_positive(curve.get("max"), _MAX_MS),
            multiplier=_positive(curve.get("multiplier"), _MULTIPLIER),
        )
    curve = policy.get("customizedRetryPolicy")
    steps = curve.get("next") if isinstance(curve, dict) else None
    if not isinstance(steps, list) or not steps:
        return None
    return ListedDelays([min(_positive(step, 0), DELAY_MS_MAX) for step in steps[_FIRST_INDEX:] or steps[-1:]])


def write_retry_policy(delays: Delays | None) -> dict[str, Any]:
    """Return the `groupRetryPolicy` with these delays."""
    if delays is None:
        return {"type": "CUSTOMIZED"}
    if isinstance(delays, ExponentialDelays):
        curve = {"initial": delays.initial_ms, "max": delays.max_ms, "multiplier": delays.multiplier}
        return {"type": "EXPONENTIAL", "exponentialRetryPolicy": curve}
    steps = [*[delays.delays_ms[0]] * _FIRST_INDEX, *delays.delays_ms]
    return {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": steps}}


def _positive(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
