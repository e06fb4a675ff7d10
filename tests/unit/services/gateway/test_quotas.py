"""Quotas: a holder above its share is refused with that reason; one within its share is refused only by the total."""

import pytest

from services.gateway.errors import ProblemError
from services.gateway.quotas import KEY, Quota


@pytest.fixture
def quota():
    return Quota("requests", KEY, each_max=3, total_max=5)


def refusal(quota, holder, count=1):
    with pytest.raises(ProblemError) as caught:
        quota.take(holder, count)
    return caught.value


def test_a_holder_gets_its_share_and_no_more(quota):
    quota.take("a", 3)
    problem = refusal(quota, "a")
    assert (problem.status, problem.retryable, problem.retry_after_s) == (429, True, 1)
    assert problem.detail == "requests: key a has 3, and 1 more would exceed its limit of 3"
    quota.take("b", 2)
    quota.give("a")
    quota.take("a")
    assert (quota.used, quota.held_by("a"), quota.refused_each, quota.refused_total) == (5, 3, 1, 0)


def test_all_callers_together_share_the_total(quota):
    quota.take("a", 3)
    quota.take("b", 2)
    problem = refusal(quota, "c")
    assert (problem.status, problem.detail) == (503, "requests: 5 are in use, and 1 more would exceed the limit of 5")
    assert refusal(quota, "a").status == 429, "its own share comes first"
    assert (quota.refused_each, quota.refused_total) == (1, 1)


def test_a_refusal_takes_nothing_from_the_quota(quota):
    quota.take("a", 2)
    refusal(quota, "a", 2)
    assert (quota.used, quota.held_by("a")) == (2, 2)


def test_an_admitted_caller_continues_whatever_others_take(quota):
    quota.take("a", 3)
    quota.give("a")
    quota.take("b", 3)
    quota.take_back("a")
    assert quota.used == 6
    assert refusal(quota, "c").status == 503


def test_holders_without_a_reservation_are_removed(quota):
    for number in range(1_000):
        quota.take(f"key-{number}")
        quota.give(f"key-{number}")
    assert (quota.holders, quota.used) == (0, 0)
