"""Operating brokers over HTTP: draining them, and their settings."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.support.stack import Stack


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=2) as running:
        yield running


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


def done(answer: httpx.Response) -> Any:
    assert answer.status_code < 300, answer.text
    return answer.json()


def drained(http: httpx.Client) -> dict[str, bool]:
    return {broker["broker"]: broker["drained"] for broker in done(http.get("/v1/cluster"))["brokers"]}


def trail(http: httpx.Client, broker: str) -> list[str]:
    found = done(http.get("/v1/audit", params={"kind": "broker", "name": broker}))["items"]
    return [item["action"] for item in found]


def test_a_drained_broker_takes_no_message_and_gives_those_it_has(http: httpx.Client) -> None:
    done(http.put("/v1/topics/DRAIN", json={"read_queues": 2, "write_queues": 2}))
    kept = done(http.post("/v1/topics/DRAIN/messages", json={"body": "b", "queue": {"broker": "broker-a", "id": 0}}))
    assert done(http.post("/v1/brokers/broker-a:drain")) == {"broker": "broker-a", "drained": True, "changed": True}
    assert done(http.post("/v1/brokers/broker-a:drain"))["changed"] is False
    assert drained(http) == {"broker-a": True, "broker-b": False}
    for _ in range(8):
        assert done(http.post("/v1/topics/DRAIN/messages", json={"body": "b"}))["broker"] == "broker-b"
    batch = done(http.post("/v1/topics/DRAIN/messages:batch", json={"messages": [{"body": "b"}] * 8}))
    assert {result["broker"] for result in batch["results"]} == {"broker-b"}
    brokers = set()
    for number in range(20):
        answer = http.post("/v1/topics/DRAIN/messages", json={"body": "b", "ordering_key": f"K{number}"})
        if answer.status_code == 503:
            problem = answer.json()
            assert problem["type"].endswith("/broker-unavailable")
            assert (problem["outcome"], problem["retryable"]) == ("not_stored", True)
            brokers.add("broker-a")
        else:
            brokers.add(done(answer)["broker"])
    assert brokers == {"broker-a", "broker-b"}, "a key keeps its queue, whatever its broker does"
    read = done(http.get("/v1/topics/DRAIN/queues/broker-a/0/messages"))
    assert [message["message_id"] for message in read["messages"]] == [kept["message_id"]]
    pulled = done(http.post("/v1/groups/DRAINERS/messages:pull", json={"topic": "DRAIN", "max": 32, "wait": "5s"}))
    assert "broker-a" in {message["broker"] for message in pulled["messages"]} or len(pulled["messages"]) == 32
    assert done(http.post("/v1/brokers/broker-a:undrain")) == {"broker": "broker-a", "drained": False, "changed": True}
    assert drained(http) == {"broker-a": False, "broker-b": False}
    done(http.post("/v1/topics/DRAIN/messages", json={"body": "b", "queue": {"broker": "broker-a", "id": 0}}))
    assert trail(http, "broker-a") == ["broker.undrain", "broker.drain"]


def test_a_topic_all_of_whose_brokers_are_drained_is_not_read_only(http: httpx.Client) -> None:
    done(http.put("/v1/topics/NOWHERE", json={"brokers": ["broker-b"]}))
    done(http.post("/v1/topics/NOWHERE/messages", json={"body": "b"}))
    done(http.post("/v1/brokers/broker-b:drain"))
    try:
        for _ in range(3):
            answer = http.post("/v1/topics/NOWHERE/messages", json={"body": "b"})
            problem = answer.json()
            assert (answer.status_code, problem["outcome"], problem["retryable"]) == (503, "not_stored", True)
    finally:
        done(http.post("/v1/brokers/broker-b:undrain"))


def test_a_change_of_settings_is_compared_with_the_brokers_own(http: httpx.Client) -> None:
    path = "/v1/brokers/broker-a/settings"
    before = {item["name"]: item for item in done(http.get(path))["items"]}
    assert before["default_query_max_num"] == {
        "name": "default_query_max_num", "value": "32", "default": "32", "live": True, "changed": False,
    }  # fmt: skip
    assert before["broker_name"]["live"] is False
    change = {"settings": {"default_query_max_num": 40}, "expected": {"default_query_max_num": "32"}}
    after = {item["name"]: item for item in done(http.put(path, json=change))["items"]}
    assert (after["default_query_max_num"]["value"], after["default_query_max_num"]["changed"]) == ("40", True)
    answer = http.put(path, json=change)
    problem = answer.json()
    assert (answer.status_code, problem["type"].rpartition("/")[2]) == (409, "settings-changed")
    assert problem["differences"] == [{"name": "default_query_max_num", "expected": "32", "actual": "40"}]
    assert trail(http, "broker-a")[0] == "broker.settings"
    done(http.put(path, json={"settings": {"default_query_max_num": "32"}}))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"delete_when": "05"}, "/settings/delete_when"),
        ({"no_such": "1"}, "/settings/no_such"),
        ({"max_message_size": "many"}, "/settings/max_message_size"),
        ({"broker_permission": 9}, "/settings/broker_permission"),
        ({"message_delay_level": "1x 2s"}, "/settings/message_delay_level"),
    ],
)
def test_a_setting_that_cannot_be_changed_is_named(http: httpx.Client, settings: dict[str, Any], field: str) -> None:
    answer = http.put("/v1/brokers/broker-a/settings", json={"settings": settings})
    assert (answer.status_code, answer.json()["field"]) == (400, field), answer.text
    (value,) = settings.values()
    shown = answer.json()["detail"].count(str(value))
    assert shown == (0 if field == "/settings/no_such" else 1), answer.text


def test_an_unknown_broker_is_named(http: httpx.Client) -> None:
    for answer in (http.post("/v1/brokers/none:drain"), http.get("/v1/brokers/none/settings")):
        assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (404, "unknown-broker")


def test_old_data_is_removed_on_demand(http: httpx.Client) -> None:
    found = done(http.post("/v1/brokers/broker-a:clean"))
    assert (found["dry_run"], found["unused_topics"], found["expired_files"]["files"]) == (False, None, 0)
    assert found["expired_queues"] == {"files": 0}
    body = {"what": ["unused_topics"], "dry_run": True}
    found = done(http.post("/v1/brokers/broker-a:clean", json=body))
    assert found == {
        "broker": "broker-a", "dry_run": True, "expired_files": None, "expired_queues": None, "unused_topics": [],
    }  # fmt: skip
    refused = http.post("/v1/brokers/broker-a:clean", json={"what": ["everything"]})
    assert (refused.status_code, refused.json()["field"]) == (400, "/what/0")
    assert trail(http, "broker-a").count("broker.clean") == 1


def test_statistics_add_up_all_brokers(http: httpx.Client) -> None:
    done(http.put("/v1/topics/COUNTED", json={"read_queues": 1, "write_queues": 1}))
    for broker in ("broker-a", "broker-a", "broker-b"):
        message = {"body": "b", "queue": {"broker": broker, "id": 0}}
        done(http.post("/v1/topics/COUNTED/messages", json=message))
    pulled = 0
    while pulled < 3:
        answer = http.post("/v1/groups/COUNTERS/messages:pull", json={"topic": "COUNTED", "max": 3, "wait": "5s"})
        messages = done(answer)["messages"]
        assert messages, "the messages are there"
        pulled += len(messages)
    found = done(http.get("/v1/topics/COUNTED/statistics"))
    assert (found["missing"], found["truncated"]) == ([], False)
    stored = {row["broker"]: row["minute"]["messages"] for row in found["items"] if row["kind"] == "stored"}
    assert stored == {"broker-a": 2, "broker-b": 1}
    sums = {(row["kind"], row["group"]): row for row in found["sums"]}
    assert {key: row["day"]["messages"] for key, row in sums.items()} == {
        ("stored", None): 3,
        ("delivered", "COUNTERS"): 3,
    }
    assert sums["stored", None]["hour"]["bytes"] > 3
    of_group = done(http.get("/v1/groups/COUNTERS/statistics", params={"topic": "COUNTED"}))
    assert [(row["kind"], row["hour"]["messages"]) for row in of_group["sums"]] == [("delivered", 3)]
    assert http.get("/v1/topics/NONE/statistics").status_code == 404


def test_a_topic_shrinks_when_its_groups_have_consumed_the_queues(http: httpx.Client) -> None:
    done(http.put("/v1/topics/SHRINK", json={"read_queues": 3, "write_queues": 3}))
    done(http.put("/v1/groups/SHRINKERS", json={}))
    for broker, queue_id in (("broker-a", 2), ("broker-b", 1), ("broker-b", 0)):
        done(http.post("/v1/topics/SHRINK/messages", json={"body": "b", "queue": {"broker": broker, "id": queue_id}}))
    committed = [{"topic": "SHRINK", "broker": "broker-b", "queue_id": 0, "offset": "1"}]
    done(http.put("/v1/groups/SHRINKERS/offsets", json={"offsets": committed}))
    # The group has committed nothing on the other broker, and wants the messages there, too.
    state = done(http.post("/v1/topics/SHRINK/queues:shrink", json={"queues": 1, "dry_run": True}))
    assert (state["ready"], state["read_queues"], state["write_queues"], state["missing"]) == (False, 3, 3, [])
    assert state["blocking"] == [
        {"group": "SHRINKERS", "broker": "broker-a", "queue_id": 2, "unconsumed": "1"},
        {"group": "SHRINKERS", "broker": "broker-b", "queue_id": 1, "unconsumed": "1"},
    ]
    answer = http.post("/v1/topics/SHRINK/queues:shrink", json={"queues": 1})
    job = done(answer)
    assert (answer.status_code, job["kind"], job["arguments"]) == (202, "shrink", {"topic": "SHRINK", "queues": 1})
    topic = done(http.get("/v1/topics/SHRINK"))
    assert (topic["read_queues"], topic["write_queues"]) == (3, 1)
    waiting = until(http, job["job"], lambda found: found["error"] is not None)
    assert waiting["state"] != "failed"
    assert "group SHRINKERS has 1 messages to consume in broker-a/2" in waiting["error"]
    committed = [
        {"topic": "SHRINK", "broker": broker, "queue_id": queue_id, "offset": "1"}
        for broker, queue_id in (("broker-a", 2), ("broker-b", 1))
    ]
    done(http.put("/v1/groups/SHRINKERS/offsets", json={"offsets": committed}))
    ended = until(http, job["job"], lambda found: found["ended_at"] is not None)
    assert (ended["state"], ended["done"], ended["total"]) == ("done", 2, 2)
    topic = done(http.get("/v1/topics/SHRINK"))
    assert (topic["read_queues"], topic["write_queues"], topic["pending"]) == (1, 1, [])
    assert {broker["read_queues"] for broker in topic["observed"]} == {1}


def test_a_group_that_pulled_from_one_broker_keeps_the_queues_of_the_other(http: httpx.Client) -> None:
    done(http.put("/v1/topics/HALFWAY", json={"read_queues": 2, "write_queues": 2}))
    for broker in ("broker-a", "broker-b"):
        done(http.post("/v1/topics/HALFWAY/messages", json={"body": broker, "queue": {"broker": broker, "id": 1}}))
    pull, ack = "/v1/groups/HALVES/messages:pull", "/v1/groups/HALVES/messages:ack"

    def take() -> str:
        (message,) = done(http.post(pull, json={"topic": "HALFWAY", "max": 1, "wait": "10s"}))["messages"]
        done(http.post(ack, json={"receipts": [message["receipt"]]}))
        body: str = message["body"]
        return body

    first = take()
    job = done(http.post("/v1/topics/HALFWAY/queues:shrink", json={"queues": 1}))
    until(http, job["job"], lambda found: "group HALVES has 1 messages to consume" in (found["error"] or ""))
    assert {first, take()} == {"broker-a", "broker-b"}
    assert until(http, job["job"], lambda found: found["ended_at"] is not None)["state"] == "done"


def test_a_shrink_fails_if_the_write_queues_are_raised_meanwhile(http: httpx.Client) -> None:
    done(http.put("/v1/topics/REGROWN", json={"read_queues": 2, "write_queues": 2}))
    done(http.post("/v1/topics/REGROWN/messages", json={"body": "b", "queue": {"broker": "broker-a", "id": 1}}))
    job = done(http.post("/v1/topics/REGROWN/queues:shrink", json={"queues": 1}))
    until(http, job["job"], lambda found: "no group consumes the topic" in (found["error"] or ""))
    done(http.put("/v1/topics/REGROWN", json={"write_queues": 2}))
    ended = until(http, job["job"], lambda found: found["ended_at"] is not None)
    assert (ended["state"], "was raised to 2 meanwhile" in ended["error"]) == ("failed", True)
    refused = http.post("/v1/topics/REGROWN/queues:shrink", json={"queues": 2})
    assert (refused.status_code, refused.json()["field"]) == (400, "/queues")


def until(http: httpx.Client, job: str, is_met: Callable[[Any], bool]) -> Any:
    """Return a job when a condition is met. The job pauses for 5 s, then 10 s and so on between two looks."""
    deadline = time.monotonic() + 90
    while not is_met(found := done(http.get(f"/v1/jobs/{job}"))):
        assert time.monotonic() < deadline, found
        time.sleep(0.1)
    return found


def test_a_topic_is_made_on_the_brokers_of_a_cluster(http: httpx.Client) -> None:
    (cluster,) = {broker["cluster"] for broker in done(http.get("/v1/cluster"))["brokers"]}
    made = done(http.put("/v1/topics/CLUSTERED", json={"cluster": cluster}))
    assert made["brokers"] == ["broker-a", "broker-b"]
    assert {broker["broker"] for broker in made["observed"]} == {"broker-a", "broker-b"}
    refused = http.put("/v1/topics/CLUSTERED", json={"cluster": "NONE"})
    assert (refused.status_code, refused.json()["field"]) == (404, "/cluster")
    assert cluster in refused.json()["detail"]
    refused = http.put("/v1/topics/CLUSTERED", json={"cluster": cluster, "brokers": None})
    assert (refused.status_code, refused.json()["field"]) == (400, "/cluster")
