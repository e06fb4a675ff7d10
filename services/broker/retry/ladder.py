"""The pure decisions of retries: when a failed message is delivered again, and when it becomes a dead letter.

A message that has failed n times before is delivered again after the delay of level 3 + n: 10 s after the first failure,
2 h after the sixteenth one with the levels of RocketMQ. A group may have its own retry policy (gantry.model.retrypolicy).

Source: RocketMQ 5.3 AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from collections.abc import Mapping
from typing import Any, Final

from gantry.model.group import SubscriptionGroup
from gantry.model.retrypolicy import read_retry_policy

FIRST_LEVEL: Final = 3
"""Level of the delay after the first failure."""
LIMIT_VERSION_MIN: Final = 121
"""First version of clients (3.4.9) whose `maxReconsumeTimes` counts."""


def failures_max(group: SubscriptionGroup, given: int | None) -> int:
    """Return how often a message of the group may fail before it becomes a dead letter.

    Args:
        group: The group's configuration.
        given: The limit that the consumer gave with this message, or None. It overrides that of the group.
    """
    return group.retry_max_times if given is None else given


def retry_delay_ms(policy: Mapping[str, Any], failures: int) -> int | None:
    """Return the delay in ms by the group's own policy; None if the levels give the delay.

    Args:
        policy: The group's `groupRetryPolicy`.
        failures: Number of failures of the message before this one.
    """
    delays = read_retry_policy(policy)
    return None if delays is None else delays.delay_ms(max(0, failures)) or None
