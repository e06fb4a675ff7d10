"""The retry policy of a group as brokers keep it."""

import pytest

from gantry.model.retrypolicy import (
    DELAY_MS_MAX,
    ExponentialDelays,
    ListedDelays,
    read_retry_policy,
    write_retry_policy,
)


@pytest.mark.parametrize(
    "delays", [None, ListedDelays([1]), ListedDelays([1, 2, 3]), ExponentialDelays(1_000, 9_000, 3)]
)
def test_a_written_policy_is_read_again(delays):
    assert read_retry_policy(write_retry_policy(delays)) == delays


def test_the_first_failure_takes_the_third_delay_of_the_list():
    policy = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 2, 3, 4]}}
    delays = read_retry_policy(policy)
    assert delays is not None
    assert [delays.delay_ms(failures) for failures in range(4)] == [3, 4, 4, 4]
    short = read_retry_policy({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [7]}})
    assert short == ListedDelays([7])


def test_exponential_delays_grow_to_their_maximum():
    delays = ExponentialDelays(5_000, 60_000, 2)
    assert [delays.delay_ms(failures) for failures in range(5)] == [5_000, 10_000, 20_000, 40_000, 60_000]
    assert ExponentialDelays(5_000, 10**18, 2).delay_ms(10**9) == DELAY_MS_MAX


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        ({}, None),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": []}}, None),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": 7}, None),
        ({"type": "EXPONENTIAL"}, ExponentialDelays()),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": "x", "max": 0, "multiplier": True}}, ExponentialDelays()),
        ({"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 1, "x", 10**18]}}, ListedDelays([0, DELAY_MS_MAX])),
    ],
)  # fmt: skip
def test_a_wrong_value_counts_as_the_default(policy, delays):
    assert read_retry_policy(policy) == delays
