"""Rates: the requests of one second at once, then one after each interval."""

import pytest

from services.gateway.errors import ProblemError
from services.gateway.quotas import KEY
from services.gateway.rates import Rate


def taken(rate, holder, now_ms, count=1_000):
    for number in range(count):
        try:
            rate.take(holder, now_ms)
        except ProblemError as problem:
            assert problem.status == 429
            return number, problem
    return count, None


@pytest.mark.parametrize("per_s", [1, 3, 7, 10, 999])
def test_a_holder_may_use_one_second_and_regains_it_gradually(per_s):
    rate = Rate("request_rate", KEY, per_s=per_s)
    count, problem = taken(rate, "a", 5_000)
    assert count == per_s
    assert 0 < problem.retry_after_ms <= 1_001
    assert taken(rate, "a", 5_000 + problem.retry_after_ms)[0] >= 1
    assert taken(rate, "b", 5_000)[0] == per_s, "another holder has a rate of its own"
    assert taken(rate, "a", 10_000)[0] == per_s, "unused requests are not saved up"


@pytest.mark.parametrize("per_s", [3, 7, 1_000])
def test_over_a_long_time_no_caller_exceeds_the_rate(per_s):
    rate = Rate("request_rate", KEY, per_s=per_s)
    got = sum(taken(rate, "a", now_ms)[0] for now_ms in range(0, 20_000, 3))
    assert 20 * per_s <= got <= 21 * per_s


def test_the_remaining_rate_is_reported():
    rate = Rate("request_rate", KEY, per_s=10)
    assert rate.take("a", 0) == (9, 100)
    for _ in range(8):
        rate.take("a", 0)
    assert rate.take("a", 0) == (0, 1_000)
    assert rate.allowance("a", 250) == (2, 750)
    assert rate.allowance("b", 250) == (10, 0)


def test_only_holders_of_the_last_second_are_remembered():
    rate = Rate("request_rate", KEY, per_s=1)
    for now_ms in range(0, 100_000, 10):
        rate.take(f"address-{now_ms}", now_ms)
    assert rate.holders <= 2_048
