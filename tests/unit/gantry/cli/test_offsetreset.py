"""`gantry offset reset`, `undo` and `clone` against a scripted gateway."""

import json
from typing import Any

import pytest

RESET = "POST /v1/groups/G/offsets:reset"


def item(**changes: Any) -> dict[str, Any]:
    message = {"stored_at": "2026-11-21T09:30:00.123Z", "body": "hello " * 10, "encoding": "text", "size": 90}
    return {
        "topic": "T", "broker": "broker-a", "queue_id": 0, "from": "12", "to": "9", "messages": "3", "first": message,
        "last": None, "note": None, "outcome": "planned", **changes,
    }  # fmt: skip


def report(*items: dict[str, Any], messages: str | None = "3", undo: str | None = None) -> dict[str, Any]:
    return {"items": list(items) or [item()], "messages": messages, "undo": undo, "truncated": False}


def scripted(request: Any) -> dict[str, Any]:
    """Answer a dry run with the plan, and another request with the result."""
    if json.loads(request.content)["dry_run"]:
        return report()
    return report(item(outcome="reset"), undo="TOKEN")


def test_a_reset_is_shown_confirmed_and_ends_with_the_command_that_undoes_it(answers, gantry):
    answers.by_call[RESET] = scripted
    done = gantry("offset", "reset", "G", "T", "--to", "earliest", typed="y\n")
    assert done.exit_code == 0, done.output
    assert "3 messages are consumed again. Move group G? [y/N]" in done.output
    assert "2026-11-21T09:30:00.123Z hello hello" in done.output
    assert done.output.rstrip().endswith("undo: gantry offset undo G TOKEN")
    assert answers.body() == {"topic": "T", "to": "earliest", "dry_run": False}


def test_without_confirmation_nothing_is_reset(answers, gantry):
    answers.by_call[RESET] = scripted
    assert gantry("offset", "reset", "G", "T", "--to", "latest", typed="n\n").exit_code == 1
    assert [json.loads(request.content)["dry_run"] for request in answers.asked] == [True]
    answers.asked.clear()
    assert gantry("offset", "reset", "G", "T", "--to", "latest", "--dry-run").exit_code == 0
    assert [json.loads(request.content)["dry_run"] for request in answers.asked] == [True]


def test_an_offset_or_a_choice_of_queues_becomes_a_list(answers, gantry):
    answers.by_call[RESET] = lambda request: report(item(), item(queue_id=1, to="4"))
    gantry("offset", "reset", "G", "T", "--to", "7", "--yes")
    assert answers.body()["to"] == [
        {"broker": "broker-a", "queue_id": 0, "offset": "7"},
        {"broker": "broker-a", "queue_id": 1, "offset": "7"},
    ]
    gantry("offset", "reset", "G", "T", "--to", "2026-11-21T09:30:00Z", "--queue", "1", "--yes")
    assert answers.body()["to"] == [{"broker": "broker-a", "queue_id": 1, "offset": "4"}]
    assert gantry("offset", "reset", "G", "T", "--to", "7", "--queue", "9", "--yes").exit_code == 2


@pytest.mark.parametrize("to", ["yesterday", "-1", "2026-11-21"])
def test_an_invalid_place_is_refused_without_a_request(answers, gantry, to):
    assert gantry("offset", "reset", "G", "T", f"--to={to}").exit_code == 2
    assert answers.asked == []


def test_a_queue_that_was_not_reset_ends_with_a_failure(answers, gantry):
    away = item(to=None, messages=None, outcome="not_reset", problem={"detail": "broker-b does not answer"})
    answers.by_call[RESET] = report(away, messages=None)
    done = gantry("offset", "reset", "G", "T", "--to", "latest", "--yes")
    assert done.exit_code == 1
    assert "broker-b does not answer" in done.output
    assert "The number of messages is unknown" in done.output
    told = "gantry: 1 of 1 queues were not reset, or it is unknown: broker-b does not answer\n"
    assert done.stderr == told
    with_json = gantry("offset", "reset", "G", "T", "--to", "latest", "--yes", "--json")
    assert (with_json.exit_code, with_json.stderr) == (1, told)
    assert json.loads(with_json.stdout)["items"] == [away]


def test_a_clone_and_an_undo(answers, gantry):
    answers.by_call["POST /v1/groups/G/offsets:clone"] = scripted
    done = gantry("offset", "clone", "G", "H", "--topic", "T", "--yes", "--json")
    assert json.loads(done.output)["undo"] == "TOKEN"
    assert answers.body() == {"from_group": "H", "topic": "T", "dry_run": False}
    answers.by_call["POST /v1/groups/G/offsets:undo"] = report(item(outcome="reset"), messages="-3")
    done = gantry("offset", "undo", "G", "TOKEN")
    assert done.exit_code == 0
    assert "3 messages are skipped." in done.output
    assert answers.body() == {"undo": "TOKEN"}
