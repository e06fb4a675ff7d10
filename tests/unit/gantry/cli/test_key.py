"""`gantry key`: limits, rotation and the end of a key."""

from collections.abc import Callable
from typing import Any

from tests.unit.gantry.cli.conftest import Answers

Gantry = Callable[..., Any]
LIMITS = {"messages_per_s": 5, "bytes_per_s": None, "connections": None, "in_flight": None}
KEY = {
    "id": "key-1", "name": "n", "rights": {"publish": ["*"], "consume": {}, "admin": False, "metrics": False},
    "limits": LIMITS, "created_at": "x", "expires_at": None, "rotated_at": None, "previous_valid_until": None,
    "revoked_at": None, "last_used_at": None,
}  # fmt: skip


def test_a_key_is_made_with_limits_and_an_end(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["POST /v1/keys"] = {**KEY, "key": "gk_1"}
    options = ("--messages-per-s", "5", "--expires", "2999-01-01T00:00:00Z")
    assert gantry("key", "create", "n", "--publish", "*", *options).exit_code == 0
    assert (answers.body()["limits"], answers.body()["expires_at"]) == ({"messages_per_s": 5}, "2999-01-01T00:00:00Z")


def test_limits_that_are_not_given_stay_unless_all_are_removed(answers: Answers, gantry: Gantry) -> None:
    answers.by_call |= {"GET /v1/keys/key-1": KEY, "PUT /v1/keys/key-1": KEY}
    assert gantry("key", "set", "key-1", "--in-flight", "3").exit_code == 0
    assert answers.body() == {"limits": {**LIMITS, "in_flight": 3}}
    assert gantry("key", "set", "key-1", "--no-limits").exit_code == 0
    assert answers.body() == {"limits": {}}
    assert gantry("key", "set", "key-1", "--never-expires").exit_code == 0
    assert answers.body() == {"expires_at": None}
    assert gantry("key", "set", "key-1").exit_code == 2


def test_a_rotation_prints_the_new_secret_and_the_end_of_the_old_one(answers: Answers, gantry: Gantry) -> None:
    until = "2026-11-22T00:00:00.000Z"
    answers.by_call["POST /v1/keys/key-1:rotate"] = {**KEY, "key": "gk_2", "previous_valid_until": until}
    done = gantry("key", "rotate", "key-1", "--overlap", "1h")
    assert done.exit_code == 0, done.output
    assert answers.body() == {"overlap": "1h"}
    assert "gk_2" in done.output
    assert until in done.output


def test_the_list_shows_limits_and_ends(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/keys"] = {"items": [KEY], "next_cursor": None}
    assert "messages_per_s=5" in gantry("key", "list").output
