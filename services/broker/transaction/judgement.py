"""Decides what the check does with an open half message. Pure.

Source: RocketMQ 5.3 TransactionalMessageServiceImpl.check. One difference: a half message that is stored again because
it is immune does not count as checked. RocketMQ counts it, so that a message that is immune for ten minutes reaches the
limit before its producer was asked once.
"""

import enum
from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from gantry.model.message import StoredMessage
from gantry.model.propertyname import PropertyName
from gantry.runtime.digits import parse_digits

_INT64_MAX = 2**63 - 1
_HOUR_MS: Final = 3_600_000


class Verdict(enum.Enum):
    """The next step for a half message that no op message names."""

    STOP = "stop"
    """It is too young, and so are all half messages after it: the check ends here."""
    SKIP = "skip"
    """It needs nothing: the half message of which it is a copy is decided."""
    RENEW = "renew"
    """It is immune: store it again at the end of the half topic, because the progress must not wait for it."""
    CHECK = "check"
    """Store it again, counted, and ask a producer."""
    GIVE_UP = "give_up"
    """It was checked too often, or is too old: move it to the topic of such messages."""


@dataclass(frozen=True, slots=True)
class CheckLimits:
    """The limits of one run of the check.

    Attributes:
        began_at_ms: Wall time at which the run began.
        timeout_ms: Age at which a half message is checked if it names no immunity time.
        checks_max: Number of checks after which the broker gives up.
        reserved_ms: Age after which the broker gives up.
    """

    began_at_ms: int
    timeout_ms: int
    checks_max: int
    reserved_ms: int


def limits_at(now_ms: int, *, timeout_ms: int, checks_max: int, reserved_hours: int) -> CheckLimits:
    """Return the limits of a run that begins now."""
    return CheckLimits(now_ms, timeout_ms, checks_max, reserved_hours * _HOUR_MS)


def judge(half: StoredMessage, limits: CheckLimits, now_ms: int, decided: Container[int]) -> Verdict:
    """Return the verdict on a half message that is not decided itself.

    Args:
        half: The half message.
        limits: The limits of this run.
        now_ms: Wall time.
        decided: Queue offsets of the decided half messages.
    """
    age_ms = now_ms - half.born_at_ms
    if checks_of(half) >= limits.checks_max or age_ms > limits.reserved_ms:
        return Verdict.GIVE_UP
    if half.stored_at_ms >= limits.began_at_ms:
        return Verdict.STOP
    immunity = half.properties.get(PropertyName.CHECK_IMMUNITY_TIME)
    if immunity is None:
        # A message of a producer whose clock is ahead has a negative age. It is checked at once.
        return Verdict.STOP if 0 <= age_ms < limits.timeout_ms else Verdict.CHECK
    if age_ms >= immunity_ms(immunity, limits.timeout_ms):
        return Verdict.CHECK
    first = first_offset(half)
    return Verdict.SKIP if first is not None and first in decided else Verdict.RENEW


def immunity_ms(text: str, timeout_ms: int) -> int:
    """Return the immunity time in the property; the time-out if the property is no number of seconds."""
    seconds = parse_digits(text, _INT64_MAX)
    return timeout_ms if seconds is None else seconds * 1000


def checks_of(half: StoredMessage) -> int:
    """Return how often the producers were asked about a half message."""
    return parse_digits(half.properties.get(PropertyName.TRANSACTION_CHECK_TIMES, ""), _INT64_MAX) or 0


def first_offset(half: StoredMessage) -> int | None:
    """Return the queue offset of the half message of which this one is a copy, or None if it is not known."""
    return parse_digits(half.properties.get(PropertyName.TRAN_PREPARED_QUEUE_OFFSET, ""), _INT64_MAX)


def is_copy(half: StoredMessage) -> bool:
    """Return whether the check has stored this half message, and not the send of its producer."""
    names = (PropertyName.TRANSACTION_CHECK_TIMES, PropertyName.TRAN_PREPARED_QUEUE_OFFSET)
    return any(name in half.properties for name in names)
