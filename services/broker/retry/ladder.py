"""The pure decisions of retries: when a failed message is delivered again, and when it becomes a dead letter.

A message that has failed n times before is delivered again after the delay of level 3 + n: 10 s after the first failure,
2 h after the sixteenth one with the levels of RocketMQ. A group may have its own curve, `groupRetryPolicy`:

    {"type":"CUSTOMIZED"}                                         the levels, as above
    {"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[…]}}    delays in ms; the first failure takes the third one
    {"type":"EXPONENTIAL","exponentialRetryPolicy":
        {"initial":5000,"max":7200000,"multiplier":2}}            initial · multiplier ⁿ ms, at most `max`

Source: RocketMQ 5.3 AbstractSendMessageProcessor.consumerSendMsgBack, CustomizedRetryPolicy, ExponentialRetryPolicy.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from gantry.model.group import SubscriptionGroup

FIRST_LEVEL: Final = 3
"""Level of the delay after the first failure."""
LIMIT_VERSION_MIN: Final = 121
"""First version of clients (3.4.9) whose `maxReconsumeTimes` counts."""
DELAY_MS_MAX: Final = 40 * 86_400_000
_FIRST_INDEX: Final = 2
_FAILURES_MAX: Final = 32
_INITIAL_MS, _MAX_MS, _MULTIPLIER = 5_000, 7_200_000, 2


def failures_max(group: SubscriptionGroup, given: int | None) -> int:
    """Return how often a message of the group may fail before it becomes a dead letter.

    Args:
        group: The group's configuration.
        given: The limit that the consumer gave with this message, or None. It overrides that of the group.
    """
    return group.retry_max_times if given is None else given


def retry_delay_ms(policy: Mapping[str, Any], failures: int) -> int | None:
    """Return the delay of the group's own curve in ms; None if the levels give the delay.

    Args:
        policy: The group's `groupRetryPolicy`. A value of a wrong type counts as RocketMQ's default.
        failures: Number of failures of the message before this one.
    """
    failures = max(0, failures)
    if policy.get("type") == "EXPONENTIAL":
        curve = policy.get("exponentialRetryPolicy")
        curve = curve if isinstance(curve, dict) else {}
        initial_ms = _positive(curve.get("initial"), _INITIAL_MS)
        multiplier = _positive(curve.get("multiplier"), _MULTIPLIER)
        delay_ms = initial_ms
        for _ in range(min(failures, _FAILURES_MAX)):
            delay_ms *= multiplier
        return min(delay_ms, _positive(curve.get("max"), _MAX_MS), DELAY_MS_MAX)
    curve = policy.get("customizedRetryPolicy")
    steps = curve.get("next") if isinstance(curve, dict) else None
    if not isinstance(steps, list) or not steps:
        return None
    step = steps[min(failures + _FIRST_INDEX, len(steps) - 1)]
    return min(_positive(step, 0), DELAY_MS_MAX) or None


def level_of_delay(delay_ms: int, delays_ms: Sequence[int]) -> int:
    """Return the level whose delay is closest to `delay_ms` and not shorter; the longest one if all are shorter.

    Args:
        delay_ms: The wanted delay.
        delays_ms: The lengths of the levels, from level 1 on.
    """
    long_enough = [(length, level) for level, length in enumerate(delays_ms, 1) if length >= delay_ms]
    if long_enough:
        return min(long_enough)[1]
    return max((length, level) for level, length in enumerate(delays_ms, 1))[1]


def _positive(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default
