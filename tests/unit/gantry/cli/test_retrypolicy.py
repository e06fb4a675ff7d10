"""The retry policy of a group on the command line."""

import pytest
import typer

from gantry.cli.retrypolicy import parse_policy, policy_text


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("levels", {"kind": "levels"}),
        (
            "10s,1m,1h,90s,500ms,1d",
            {"kind": "delays", "delays_ms": [10_000, 60_000, 3_600_000, 90_000, 500, 86_400_000]},
        ),
        ("exponential:5s,2,2h", {"kind": "exponential", "initial_ms": 5_000, "multiplier": 2, "max_ms": 7_200_000}),
    ],
)
def test_a_policy_is_printed_as_it_is_given(text, policy):
    assert parse_policy(text) == policy
    assert policy_text(policy) == text


def test_without_a_policy_brokers_keep_theirs():
    assert policy_text(None) == "each broker keeps its own"


@pytest.mark.parametrize("text", ["", "10", "10s,", "level", "exponential:", "exponential:5s,2", "exponential:5s,x,2h"])
def test_a_wrong_policy_is_refused_with_its_text(text):
    with pytest.raises(typer.BadParameter, match="--retry-policy"):
        parse_policy(text)
