"""Verdicts of the check on an open half message, by age, count of checks and immunity."""

import pytest

from services.broker.transaction.judgement import Verdict, judge, limits_at
from tests.unit.services.broker.transaction.test_messages import stored

NOW_MS = 1_000_000_000
LIMITS = limits_at(NOW_MS, timeout_ms=6000, checks_max=15, reserved_hours=72)
IMMUNITY, CHECKS, FIRST = "CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"


@pytest.mark.parametrize(
    ("age_ms", "properties", "verdict"),
    [
        (0, {}, Verdict.STOP),
        (5999, {}, Verdict.STOP),
        (6000, {}, Verdict.CHECK),
        (-1, {}, Verdict.CHECK),
        (6000, {CHECKS: "14"}, Verdict.CHECK),
        (6000, {CHECKS: "15"}, Verdict.GIVE_UP),
        (6000, {CHECKS: "many"}, Verdict.CHECK),
        (72 * 3_600_000, {}, Verdict.CHECK),
        (72 * 3_600_000 + 1, {}, Verdict.GIVE_UP),
        (9_999, {IMMUNITY: "10"}, Verdict.RENEW),
        (10_000, {IMMUNITY: "10"}, Verdict.CHECK),
        (5_999, {IMMUNITY: "-1"}, Verdict.RENEW),
        (6_000, {IMMUNITY: "-1"}, Verdict.CHECK),
        (9_999, {IMMUNITY: "10", FIRST: "7"}, Verdict.SKIP),
        (9_999, {IMMUNITY: "10", FIRST: "8"}, Verdict.RENEW),
        (9_999, {IMMUNITY: "10", FIRST: "-1"}, Verdict.RENEW),
        (6_000, {FIRST: "7"}, Verdict.CHECK),
    ],
)
def test_verdicts(age_ms: int, properties: dict[str, str], verdict: Verdict) -> None:
    half = stored(born_at_ms=NOW_MS - age_ms, stored_at_ms=NOW_MS - 1, properties=properties)
    assert judge(half, LIMITS, NOW_MS, {7}) is verdict


def test_a_half_message_that_was_stored_during_the_run_ends_it() -> None:
    half = stored(born_at_ms=NOW_MS - 60_000, stored_at_ms=NOW_MS)
    assert judge(half, LIMITS, NOW_MS, ()) is Verdict.STOP
