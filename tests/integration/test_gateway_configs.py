"""Changes of topics and groups: unnamed settings stay, no message is hidden unasked, and versions are never reused."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.stack import Stack


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


def put(http: httpx.Client, path: str, **config: Any) -> httpx.Response:
    return http.put(path, json=config)


def problem_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["type"].rpartition("/")[2]


def test_settings_that_a_change_does_not_name_stay(http: httpx.Client) -> None:
    """It once returned to its default: changing `perm` of a topic with 8 queues on one broker left 4 on all."""
    made = put(http, "/v1/topics/KEPT", read_queues=8, write_queues=8, order=True, brokers=["broker-b"])
    assert made.status_code == 201
    changed = put(http, "/v1/topics/KEPT", perm="r").json()
    facts = (changed["read_queues"], changed["write_queues"], changed["order"], changed["brokers"], changed["perm"])
    assert facts == (8, 8, True, ["broker-b"], "r")
    assert put(http, "/v1/topics/KEPT", brokers=None).json()["brokers"] is None
    put(http, "/v1/groups/KEPT", retry_max_times=3, orderly=True)
    group = put(http, "/v1/groups/KEPT", consume=False).json()
    assert (group["retry_max_times"], group["orderly"], group["consume"]) == (3, True, False)


def test_objectives_of_a_group_are_deleted_with_it(http: httpx.Client) -> None:
    """Otherwise a group created again under the name was ignored for ever, without any hint."""
    assert put(http, "/v1/groups/REMADE").status_code == put(http, "/v1/groups/OTHER").status_code == 201
    assert put(http, "/v1/topics/T").status_code == 201
    for path in ("REMADE/objective", "REMADE/objective?topic=T", "OTHER/objective"):
        assert put(http, f"/v1/groups/{path}", ignore=True).status_code == 201
    assert http.delete("/v1/groups/REMADE").status_code == 204
    assert put(http, "/v1/groups/REMADE").status_code == 201
    assert problem_of(http.get("/v1/groups/REMADE/objective")) == (404, "unknown-objective")
    assert [item["group"] for item in http.get("/v1/objectives").json()["items"]] == ["OTHER"]
    trail = http.get("/v1/audit", params={"kind": "objective"}).json()["items"]
    assert [item["name"] for item in trail if item["action"] == "objective.delete"] == ["REMADE/T", "REMADE"]


def test_two_concurrent_changes_both_take_effect(http: httpx.Client) -> None:
    for number in range(5):
        path = f"/v1/groups/BOTH-{number}"
        assert put(http, path).status_code == 201
        with ThreadPoolExecutor(3) as pool:
            changes: list[dict[str, Any]] = [{"retry_max_times": 3}, {"orderly": True}, {"consume": False}]
            answers = list(pool.map(lambda change, path=path: put(http, path, **change), changes))
        assert [answer.status_code for answer in answers] == [200, 200, 200]
        group = http.get(path).json()
        assert (group["retry_max_times"], group["orderly"], group["consume"]) == (3, True, False)


def test_fewer_read_queues_than_write_queues_are_refused(http: httpx.Client) -> None:
    path = "/v1/topics/NARROW"
    assert problem_of(put(http, path, read_queues=2, write_queues=4)) == (409, "hides-messages")
    assert put(http, path, read_queues=2).json()["write_queues"] == 2
    refused = put(http, path, write_queues=3)
    assert problem_of(refused) == (409, "hides-messages")
    assert "queues 2 to 2" in refused.json()["detail"]
    assert http.get(path).json()["write_queues"] == 2
    assert put(http, path, write_queues=3, allow_hiding=True).json()["write_queues"] == 3
    # A topic that already hides messages may change in other ways.
    assert put(http, path, perm="r").status_code == 200


def test_a_shrink_that_hides_messages_is_refused(http: httpx.Client) -> None:
    path = "/v1/topics/SHRUNK"
    assert put(http, path, read_queues=4, write_queues=4).status_code == 201
    for queue in (1, 3):
        message = {"body": "m", "queue": {"broker": "broker-b", "id": queue}}
        assert http.post(f"{path}/messages", json=message).status_code == 201
    refused = put(http, path, read_queues=2, write_queues=2)
    assert problem_of(refused) == (409, "hides-messages")
    assert "broker-b/3 (1 message)" in refused.json()["detail"]
    assert http.get(path).json()["read_queues"] == 4
    assert put(http, path, read_queues=4, write_queues=2).status_code == 200
    hidden = put(http, path, read_queues=2, allow_hiding=True).json()
    assert (hidden["read_queues"], hidden["write_queues"]) == (2, 2)
    assert put(http, path, read_queues=4).status_code == 200


def send_to_both(http: httpx.Client, path: str) -> None:
    assert put(http, path).status_code == 201
    for broker in ("broker-a", "broker-b"):
        message = {"body": "m", "queue": {"broker": broker, "id": 0}}
        assert http.post(f"{path}/messages", json=message).status_code == 201


@pytest.mark.parametrize(("perm", "field"), [("w", "no consumer may read"), ("none", "broker-a/0 (1 message)")])
def test_the_read_permission_is_not_removed_from_messages(http: httpx.Client, perm: str, field: str) -> None:
    path = f"/v1/topics/TAKEN-{perm}"
    send_to_both(http, path)
    refused = put(http, path, perm=perm)
    assert problem_of(refused) == (409, "hides-messages")
    assert (refused.json()["field"], field in refused.json()["detail"]) == ("/perm", True)
    assert http.get(f"{path}/queues/broker-b/0/messages").status_code == 200
    assert put(http, path, perm=perm, allow_hiding=True).status_code == 200
    # The topic already hides messages, and may change in other ways.
    assert put(http, path, perm=perm, order=True).status_code == 200


def test_a_topic_without_messages_may_be_closed(http: httpx.Client) -> None:
    assert put(http, "/v1/topics/CLOSED").status_code == 201
    assert put(http, "/v1/topics/CLOSED", perm="none").status_code == 200


def test_a_broker_that_holds_messages_is_not_removed_from_the_topic(http: httpx.Client) -> None:
    path = "/v1/topics/MOVED"
    send_to_both(http, path)
    refused = put(http, path, brokers=["broker-a"])
    assert problem_of(refused) == (409, "hides-messages")
    assert (refused.json()["field"], "broker-b/0 (1 message)" in refused.json()["detail"]) == ("/brokers", True)
    assert put(http, path, brokers=["broker-a"], allow_hiding=True).status_code == 200
    # The broker is no longer one of the topic's, so the change removes nothing from it.
    assert put(http, path, brokers=["broker-a"], order=True).status_code == 200


def test_messages_kept_by_a_broker_become_readable_again_with_the_topic(http: httpx.Client) -> None:
    """The broker once stayed without the read permission for ever, since changes did not reach it."""
    path = "/v1/topics/BACK"
    send_to_both(http, path)
    for change in ({"perm": "w"}, {"brokers": ["broker-a"]}):
        assert put(http, path, **change, allow_hiding=True).status_code == 200
    assert http.get(f"{path}/queues/broker-b/0/messages").status_code == 403
    assert put(http, path, perm="rw").json()["state"] == "applied"
    kept = {shown["broker"]: shown["perm"] for shown in http.get(path).json()["observed"]}
    assert kept == {"broker-a": "rw", "broker-b": "rw"}
    assert len(http.get(f"{path}/queues/broker-b/0/messages").json()["messages"]) == 1


def test_an_empty_queue_may_be_removed(http: httpx.Client) -> None:
    path = "/v1/topics/EMPTY"
    assert put(http, path, read_queues=4, write_queues=4).status_code == 201
    assert http.post(f"{path}/messages", json={"body": "m", "queue": {"broker": "broker-a", "id": 0}}).is_success
    assert put(http, path, read_queues=1, write_queues=1).json()["read_queues"] == 1


@pytest.mark.parametrize("path", ["/v1/topics/AGAIN", "/v1/groups/AGAIN"])
def test_a_version_is_never_reused(http: httpx.Client, path: str) -> None:
    """A topic deleted and created again had version "1" once more, and a change for the old one overwrote the new one."""
    seen = set()
    for _ in range(3):
        made = put(http, path)
        assert made.status_code == 201
        version = made.headers["ETag"].strip('"').partition("-")[0]
        assert version not in seen
        assert all(http.put(path, json={}, headers={"If-Match": f'"{old}"'}).status_code == 412 for old in seen)
        changed = put(http, path, **({"perm": "r"} if "topics" in path else {"consume": False}))
        seen |= {version, changed.headers["ETag"].strip('"').partition("-")[0]}
        assert http.delete(path).status_code == 204


def test_a_read_of_a_known_version_is_304(http: httpx.Client) -> None:
    assert put(http, "/v1/topics/CACHED").status_code == 201
    shown = http.get("/v1/topics/CACHED")
    etag = shown.headers["ETag"]
    for tags in (etag, f"W/{etag}", f'"x", W/{etag}', "*"):
        same = http.get("/v1/topics/CACHED", headers={"If-None-Match": tags})
        assert (same.status_code, same.content, same.headers["ETag"]) == (304, b"", etag)
        assert "content-length" not in same.headers
        assert same.headers["X-Request-Id"]
    changed = http.put("/v1/topics/CACHED", json={"perm": "r"}, headers={"If-Match": etag})
    assert changed.status_code == 200
    assert http.get("/v1/topics/CACHED", headers={"If-None-Match": etag}).status_code == 200
    assert (
        http.put("/v1/topics/CACHED", json={}, headers={"If-Match": f"W/{changed.headers['ETag']}"}).status_code == 412
    )
