"""`gantry producer-group`: its requests to the gateway, and its output."""

from collections.abc import Callable
from typing import Any

from tests.unit.gantry.cli.conftest import Answers, problem

Gantry = Callable[..., Any]
SHOWN = {"group": "ORDERS_TX", "check_url": "https://a.example/check", "has_secret": True, "updated_at": None}
PATH = "/v1/producer-groups/ORDERS_TX"


def test_a_url_is_set_with_a_secret_that_is_on_no_command_line(answers: Answers, gantry: Gantry) -> None:
    answers.by_call[f"PUT {PATH}"] = SHOWN
    command = ("producer-group", "set", "ORDERS_TX", "https://a.example/check", "--secret-stdin")
    done = gantry(*command, typed="0123456789abcdef\n")
    assert done.exit_code == 0, done.output
    assert answers.body() == {"check_url": "https://a.example/check", "check_secret": "0123456789abcdef"}
    assert "https://a.example/check" in done.output


def test_without_a_secret_the_group_keeps_its_own(answers: Answers, gantry: Gantry) -> None:
    answers.by_call[f"PUT {PATH}"] = SHOWN
    assert gantry("producer-group", "set", "ORDERS_TX", "https://b.example/check").exit_code == 0
    assert answers.body() == {"check_url": "https://b.example/check"}


def test_a_url_is_shown_and_removed(answers: Answers, gantry: Gantry) -> None:
    answers.by_call |= {f"GET {PATH}": SHOWN, f"PUT {PATH}": SHOWN | {"check_url": None, "has_secret": False}}
    assert "https://a.example/check" in gantry("producer-group", "show", "ORDERS_TX").output
    assert gantry("producer-group", "remove", "ORDERS_TX").exit_code == 0
    assert answers.body() == {"check_url": None}


def test_a_refusal_is_one_line(answers: Answers, gantry: Gantry) -> None:
    answers.by_call[f"PUT {PATH}"] = problem(400, "Invalid field", "/check_url: 'ftp://x' is not https://HOST/PATH")
    refused = gantry("producer-group", "set", "ORDERS_TX", "ftp://x")
    assert refused.exit_code == 1
    assert "is not https://HOST/PATH" in refused.output
