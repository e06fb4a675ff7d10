"""`gantry alert` and `gantry webhook`: their requests to the gateway, and their output."""

from collections.abc import Callable
from typing import Any

from tests.unit.gantry.cli.conftest import Answers
from tests.unit.gantry.http.alertfacts import ALERT, ALERT_EVENT, DELIVERY, WEBHOOK

Gantry = Callable[..., Any]


def test_open_alerts_are_listed_with_their_numbers(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/alerts"] = {"items": [ALERT], "next_cursor": None}
    listed = gantry("alert", "list", "--group", "G")
    assert listed.exit_code == 0, listed.output
    assert answers.asked[0].url.query == b"group=G"
    assert {"STOPPED", "G", "T", "7"} <= set(listed.stdout.split())
    assert gantry("alert", "list", "--json").stdout.strip().startswith("[")
    answers.by_call["GET /v1/alerts"] = {"items": [], "next_cursor": None}
    assert "there are no open alerts" in gantry("alert", "list").stdout


def test_events_are_listed_newest_first(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/alerts/events"] = {"items": [ALERT_EVENT], "next_cursor": "more"}
    listed = gantry("alert", "events", "--topic", "T", "--limit", "1")
    assert "opened" in listed.stdout, listed.output
    assert "1.5 s" in listed.stdout
    assert answers.asked[0].url.query == b"topic=T&limit=1"
    assert len(answers.asked) == 1


def test_a_webhook_is_made_and_its_secret_printed_once(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["POST /v1/webhooks"] = {**WEBHOOK, "secret": "whsec_x"}
    made = gantry("webhook", "create", "https://h/", "--group", "A*", "--group", "B", "--verdict", "STOPPED")
    assert made.exit_code == 0, made.output
    assert answers.body() == {"url": "https://h/", "groups": ["A*", "B"], "verdicts": ["STOPPED"]}
    assert "whsec_x" in made.stdout


def test_only_the_given_options_change_a_webhook(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["PUT /v1/webhooks/w-1"] = WEBHOOK
    assert gantry("webhook", "set", "w-1", "--disable", "--all-verdicts").exit_code == 0
    assert answers.body() == {"verdicts": [], "enabled": False}
    assert gantry("webhook", "set", "w-1").exit_code == 2
    assert len(answers.asked) == 1


def test_webhooks_are_listed_shown_tested_and_deleted(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/webhooks"] = {"items": [WEBHOOK], "next_cursor": None}
    answers.by_call["GET /v1/webhooks/w-1"] = WEBHOOK
    answers.by_call["POST /v1/webhooks/w-1/deliveries"] = DELIVERY
    answers.by_call["GET /v1/webhooks/w-1/deliveries"] = {"items": [DELIVERY], "next_cursor": None}
    answers.by_call["DELETE /v1/webhooks/w-1"] = {}
    assert "https://h/" in gantry("webhook", "list").stdout
    assert "https://h/" in gantry("webhook", "show", "w-1").stdout
    assert "delivery d-1 will be sent soon" in gantry("webhook", "test", "w-1").stdout
    assert "pending" in gantry("webhook", "deliveries", "w-1", "--status", "pending").stdout
    assert answers.asked[-1].url.query == b"status=pending&limit=50"
    assert "is deleted" in gantry("webhook", "delete", "w-1").stdout
