"""`gantry topic|group|offset|key`: their requests to the gateway, and their output."""

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.unit.gantry.cli.conftest import Answers, problem

TOPIC = {
    "topic": "FLIGHTS",
    "read_queues": 4,
    "write_queues": 4,
    "perm": "rw",
    "order": False,
    "brokers": None,
    "state": "pending",
    "pending": ["broker-b"],
    "origin": "api",
    "observed": [],
    "metadata": "available",
    "created_at": None,
    "updated_at": "2026-11-21T09:30:00.123Z",
}
QUEUES = [
    {"broker": "broker-a", "queue_id": n, "min_offset": str(n), "max_offset": str(10 + n), "read": True, "write": True,
     "last_stored_at": None}
    for n in range(2)
]  # fmt: skip
GROUP = {
    "group": "PRICING",
    "retry_max_times": 16,
    "retry_queues": 1,
    "consume": True,
    "from_min": False,
    "broadcast": True,
    "orderly": False,
    "consume_timeout_minutes": 15,
    "notify_changes": True,
    "retry_policy": None,
    "state": "applied",
    "pending": [],
    "origin": "api",
    "observed": [],
    "metadata": "available",
    "created_at": None,
    "updated_at": None,
}
Gantry = Callable[..., Any]


def test_a_topic_is_created_with_the_given_options_only(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["PUT /v1/topics/%25RETRY%25g"] = TOPIC
    done = gantry("topic", "create", "%RETRY%g", "--queues", "8", "--read-queues", "2", "--broker", "broker-a", "--new")
    assert done.exit_code == 0, done.output
    assert answers.body() == {"read_queues": 2, "write_queues": 8, "brokers": ["broker-a"]}
    assert answers.asked[0].headers["if-none-match"] == "*"
    assert answers.asked[0].headers["authorization"] == "Bearer secret"
    assert "pending" in done.stdout
    assert "broker-b" in done.stdout


def test_a_list_goes_through_all_pages(answers: Answers, gantry: Gantry) -> None:
    def page(request: httpx.Request) -> Any:
        cursor = request.url.params.get("cursor")
        name = {None: "A", "p2": "B", "p3": "C"}[cursor]
        return {"items": [{**TOPIC, "topic": name}], "next_cursor": {None: "p2", "p2": "p3", "p3": None}[cursor]}

    answers.by_call["GET /v1/topics"] = page
    assert [item["topic"] for item in json.loads(gantry("topic", "list", "--json").stdout)] == ["A", "B", "C"]
    assert len(gantry("topic", "list", "--system").stdout.splitlines()) == 4
    assert answers.asked[-1].url.params["system"] == "true"


def test_a_topic_is_shown_with_its_queues(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/topics/FLIGHTS"] = TOPIC
    answers.by_call["GET /v1/topics/FLIGHTS/queues"] = {"items": QUEUES, "next_cursor": None}
    assert json.loads(gantry("topic", "show", "FLIGHTS", "--json").stdout) == {**TOPIC, "queues": QUEUES}
    assert "max_offset" in gantry("topic", "show", "FLIGHTS").stdout


def test_deleting_asks_first(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["DELETE /v1/topics/FLIGHTS"] = httpx.Response(204)
    assert gantry("topic", "delete", "FLIGHTS", typed="n\n").exit_code == 1
    assert not answers.asked
    assert gantry("topic", "delete", "FLIGHTS", "--yes").exit_code == 0
    answers.by_call["DELETE /v1/groups/g"] = httpx.Response(204)
    assert gantry("group", "delete", "g", typed="y\n").exit_code == 0


def test_a_refusal_is_printed_in_one_line(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/topics/NO"] = problem(404, "There is no such topic", 'topic: "NO" does not exist')
    done = gantry("topic", "show", "NO")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == 'gantry: There is no such topic: topic: "NO" does not exist\n'


def test_a_server_that_is_no_gateway_is_reported_in_one_line(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/topics"] = httpx.Response(502, text="<html>\nBad gateway\n</html>")
    done = gantry("topic", "list")
    assert done.exit_code == 1
    assert done.stderr.count("\n") == 1


def test_wrong_usage_ends_with_2(answers: Answers, gantry: Gantry) -> None:
    for words in (
        ["topic", "show"],
        ["topic", "list", "--no-such"],
        ["no-such"],
        ["offset", "set", "g", "T", "--to", "yesterday"],
        ["key", "create", "nothing"],
        ["message", "send", "T"],
        ["message", "send", "T", "x", "--broker", "broker-a"],
        ["message", "send", "T", "x", "--property", "novalue"],
    ):
        assert gantry(*words).exit_code == 2, words
    assert not answers.asked


def test_a_group_is_created_and_shown(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["PUT /v1/groups/PRICING"] = GROUP
    assert gantry("group", "create", "PRICING", "--no-from-min", "--retry-max-times", "3").exit_code == 0
    assert answers.body() == {"from_min": False, "retry_max_times": 3}
    answers.by_call["GET /v1/groups/PRICING"] = GROUP
    answers.by_call["GET /v1/groups/PRICING/clients"] = {"items": [], "next_cursor": None}
    answers.by_call["GET /v1/groups/PRICING/subscriptions"] = {"items": [], "next_cursor": None}
    shown = gantry("group", "show", "PRICING").stdout
    assert "no clients are connected" in shown
    answers.by_call["GET /v1/groups"] = {"items": [GROUP], "next_cursor": None}
    assert "PRICING" in gantry("group", "list").stdout


def test_offsets_are_set_where_the_options_say(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/topics/T/queues"] = {"items": QUEUES, "next_cursor": None}

    def commit(request: httpx.Request) -> Any:
        offsets = json.loads(request.content)["offsets"]
        results = [{**item, "outcome": "committed"} for item in offsets]
        return {"results": results, "committed": len(results), "refused": 0}

    answers.by_call["PUT /v1/groups/g/offsets"] = commit
    answers.by_call["GET /v1/topics/T/queues/broker-a/1/offsets"] = {"offset": "7"}

    def went(*words: str) -> list[tuple[int, str]]:
        assert gantry("offset", "set", "g", "T", *words).exit_code == 0
        return [(item["queue_id"], item["offset"]) for item in answers.body()["offsets"]]

    assert went("--to", "earliest") == [(0, "0"), (1, "1")]
    assert went("--to", "latest", "--queue", "1") == [(1, "11")]
    assert went("--to", "0042", "--broker", "broker-a") == [(0, "42"), (1, "42")]
    assert went("--to", "2026-11-21T09:30:00Z", "--queue", "1") == [(1, "7")]
    assert gantry("offset", "set", "g", "T", "--to", "1", "--queue", "9").exit_code == 2


@pytest.mark.parametrize("to", ["earliest", "latest"])
def test_no_offset_is_set_if_one_is_unknown(answers: Answers, gantry: Gantry, to: str) -> None:
    """The offset was once set to 0 if the broker did not return the end of its queue."""
    unknown = {**QUEUES[0], "broker": "broker-b", "min_offset": None, "max_offset": None}
    answers.by_call["GET /v1/topics/T/queues"] = {"items": [*QUEUES, unknown], "next_cursor": None}
    done = gantry("offset", "set", "g", "T", "--to", to)
    assert done.exit_code == 1
    assert "broker-b" in done.stderr
    assert [request.method for request in answers.asked] == ["GET"]


def test_a_refused_offset_ends_with_1(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/topics/T/queues"] = {"items": QUEUES[:1], "next_cursor": None}
    refused = {"topic": "T", "broker": "broker-a", "queue_id": 0, "offset": "99", "outcome": "refused",
               "problem": {"detail": "offset: 99 is above 10"}}  # fmt: skip
    answers.by_call["PUT /v1/groups/g/offsets"] = {"results": [refused], "committed": 0, "refused": 1}
    done = gantry("offset", "set", "g", "T", "--to", "99")
    assert done.exit_code == 1
    assert "99 is above 10" in done.stdout
    assert done.stderr == "gantry: 1 of 1 queues were not set: offset: 99 is above 10\n"


def test_with_json_the_reasons_of_refused_offsets_are_on_stderr(answers: Answers, gantry: Gantry) -> None:
    """The command once ended with code 1 and printed nothing to stderr."""
    answers.by_call["GET /v1/topics/T/queues"] = {"items": QUEUES, "next_cursor": None}
    results = [
        {"topic": "T", "broker": "broker-a", "queue_id": number, "offset": "1", "outcome": outcome, **more}
        for number, (outcome, more) in enumerate(
            [
                ("refused", {"problem": {"title": "Not found", "detail": "group g does not exist"}}),
                ("committed", {}),
                ("refused", {"problem": {"title": "Not found", "detail": "group g does not exist"}}),
                ("refused", {"problem": {"title": "Broker unavailable"}}),
            ]
        )
    ]
    answers.by_call["PUT /v1/groups/g/offsets"] = {"results": results, "committed": 1, "refused": 3}
    done = gantry("offset", "set", "g", "T", "--to", "1", "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout) == results
    assert done.stderr == "gantry: 3 of 4 queues were not set: group g does not exist; Broker unavailable\n"


def test_a_few_of_many_reasons_are_on_stderr(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/topics/T/queues"] = {"items": QUEUES, "next_cursor": None}
    results = [
        {"topic": "T", "broker": "broker-a", "queue_id": number, "offset": "1", "outcome": "refused",
         "problem": {"title": "Conflict", "detail": f"reason {number}"}}
        for number in range(5)
    ]  # fmt: skip
    answers.by_call["PUT /v1/groups/g/offsets"] = {"results": results, "committed": 0, "refused": 5}
    done = gantry("offset", "set", "g", "T", "--to", "1", "--json")
    assert done.stderr == "gantry: 5 of 5 queues were not set: reason 0; reason 1; reason 2; and 2 more reasons\n"


def test_offsets_are_read(answers: Answers, gantry: Gantry) -> None:
    row = {"topic": "T", "broker": "broker-a", "queue_id": 0, "committed_offset": None, "min_offset": "0",
           "max_offset": "5", "lag": None}  # fmt: skip
    answers.by_call["GET /v1/groups/g/offsets"] = {"items": [row], "next_cursor": None}
    assert json.loads(gantry("offset", "read", "g", "--topic", "T", "--json").stdout) == [row]
    assert answers.asked[0].url.params["topic"] == "T"
    assert gantry("offset", "read", "g").stdout.splitlines()[1].split() == ["T", "broker-a", "0", "-", "0", "5", "-"]


def test_keys_are_made_listed_and_revoked(answers: Answers, gantry: Gantry) -> None:
    made = {"id": "key-1", "name": "ci", "key": "gk_x", "rights": {}, "created_at": "", "revoked_at": None,
            "last_used_at": None}  # fmt: skip
    answers.by_call["POST /v1/keys"] = httpx.Response(201, json=made)
    assert "gk_x" in gantry("key", "create", "ci", "--publish", "A*", "--publish", "B", "--consume-group", "g").stdout
    assert answers.body()["rights"] == {
        "publish": ["A*", "B"],
        "consume": {"topics": [], "groups": ["g"]},
        "admin": False,
        "metrics": False,
    }
    rights = {"publish": ["A*"], "consume": {}, "admin": True, "metrics": False}
    answers.by_call["GET /v1/keys"] = {"items": [{**made, "rights": rights}], "next_cursor": None}
    assert "key-1" in gantry("key", "list").stdout
    answers.by_call["DELETE /v1/keys/key-1"] = httpx.Response(204)
    assert gantry("key", "revoke", "key-1").exit_code == 0


def test_members_that_differ_are_named_and_end_with_a_failure(answers, gantry):
    sides = [
        {"value": "A", "clients": ["one"], "clients_count": 1, "since": "2026-11-21T09:30:00.123Z"},
        {"value": "B", "clients": ["two", "three"], "clients_count": 2, "since": "2026-11-21T09:31:00.123Z"},
    ]
    answer = {"consistent": False, "since": "2026-11-21T09:31:00.123Z", "missing": []}
    differences = [{"kind": "filters", "topic": "T", "sides": sides}]
    answers.by_call["GET /v1/groups/G/consistency"] = {**answer, "differences": differences}
    done = gantry("group", "consistency", "G")
    assert done.exit_code == 1
    assert "filters" in done.output
    assert "two, three" in done.output
    answers.by_call["GET /v1/groups/G/consistency"] = {**answer, "consistent": True, "differences": []}
    done = gantry("group", "consistency", "G")
    assert (done.exit_code, done.output.strip()) == (0, "the members agree")
    answers.by_call["GET /v1/groups/G/consistency"] = {
        **answer, "consistent": None, "differences": [], "missing": ["broker b: away"],
    }  # fmt: skip
    assert gantry("group", "consistency", "G").output.strip() == "unknown: broker b: away"


def test_producers_are_listed_and_brokers_that_do_not_answer_are_named(answers: Answers, gantry: Gantry) -> None:
    row = {"group": "PG", "client_id": None, "kind": "client", "address": "10.0.0.1:41000", "language": "GO",
           "version": "V5_3_3", "brokers": ["broker-a", "broker-b"], "last_sent_at": "2026-11-21T09:30:00.123Z"}  # fmt: skip
    path = "GET /v1/topics/T/producers"
    whole = {"items": [row], "missing": [], "truncated": False}
    answers.by_call[path] = whole
    _, line = gantry("topic", "producers", "T").stdout.splitlines()
    assert line.split() == ["PG", "-", "client", "10.0.0.1:41000", "GO", "V5_3_3", "broker-a,", "broker-b",
                            "2026-11-21T09:30:00.123Z"]  # fmt: skip
    assert json.loads(gantry("topic", "producers", "T", "--json").stdout) == whole
    answers.by_call[path] = {"items": [], "missing": ["broker b: away"], "truncated": True}
    told = gantry("topic", "producers", "T").stdout.splitlines()
    assert told == ["unknown: not all brokers answered", "there may be more producers", "not asked: broker b: away"]
    answers.by_call[path] = {**whole, "items": []}
    assert gantry("topic", "producers", "T").stdout.strip() == "no connected client has sent to the topic"


@pytest.mark.parametrize(
    ("state", "error", "told"),
    [
        ("failed", "the queue is gone", "job j-1 is failed: the queue is gone"),
        ("cancelled", None, "job j-1 is cancelled"),
    ],
)
def test_a_job_that_is_not_done_ends_with_the_reason_on_stderr(
    answers: Answers, gantry: Gantry, state: str, error: str | None, told: str
) -> None:
    ended = {"job": "j-1", "kind": "redrive", "state": state, "done": 1, "failed": 0, "total": 3, "error": error,
             "created_at": "2026-11-21T09:30:00Z", "started_at": None, "ended_at": "2026-11-21T09:31:00Z"}  # fmt: skip
    answers.by_call["GET /v1/jobs/j-1"] = ended
    done = gantry("job", "wait", "j-1", "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (1, ended)
    assert told in done.stderr.splitlines()[-1]
