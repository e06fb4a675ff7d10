"""`gantry group objective`: its requests to the gateway, and its output."""

from collections.abc import Callable
from typing import Any

from tests.unit.gantry.cli.conftest import Answers
from tests.unit.gantry.http.alertfacts import OBJECTIVE

Gantry = Callable[..., Any]


def test_only_the_given_options_are_sent(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["PUT /v1/groups/PRICING/objective"] = OBJECTIVE
    done = gantry("group", "objective", "set", "PRICING", "--topic", "T", "--max-lag-seconds", "60")
    assert done.exit_code == 0, done.output
    assert answers.body() == {"max_lag_seconds": 60.0}
    assert answers.asked[0].url.query == b"topic=T"
    assert "max_lag_seconds" in done.stdout
    gantry("group", "objective", "set", "PRICING", "--max-lag-seconds", "0", "--max-lag-messages", "-1", "--no-ignore")
    assert answers.body() == {"max_lag_seconds": None, "max_lag_messages": None, "ignore": False}
    gantry("group", "objective", "set", "PRICING", "--ignore-until", "2026-11-21T09:30:00Z", "--reason", "moves")
    assert answers.body() == {"ignore": True, "ignore_until": "2026-11-21T09:30:00Z", "reason": "moves"}
    assert gantry("group", "objective", "set", "PRICING").exit_code == 2
    assert len(answers.asked) == 3


def test_objectives_are_shown_listed_and_removed(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/groups/PRICING/objective"] = OBJECTIVE
    answers.by_call["DELETE /v1/groups/PRICING/objective"] = {}
    answers.by_call["GET /v1/objectives"] = {"items": [OBJECTIVE], "next_cursor": None}
    assert "all" in gantry("group", "objective", "show", "PRICING").stdout
    listed = gantry("group", "objective", "list", "--group", "PRICING")
    assert "60.0" in listed.stdout
    assert answers.asked[-1].url.query == b"group=PRICING"
    assert gantry("group", "objective", "clear", "PRICING", "--topic", "T").stdout.strip().endswith("on T is removed")
