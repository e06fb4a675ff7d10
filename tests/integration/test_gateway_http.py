"""The gateway over HTTP: requests of users against real brokers and a real Postgres."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import msgspec
import pytest

from tests.support.stack import Stack

TOPIC = "/v1/topics/FLIGHTS"


@pytest.fixture(scope="module")
def stack(stack: Stack) -> Stack:
    with stack.http() as http:
        assert http.put(TOPIC, json={"read_queues": 2, "write_queues": 2}).status_code == 201
    return stack


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


@pytest.fixture
def raw(stack: Stack) -> Iterator[socket.socket]:
    host, _, port = stack.facts["http"].removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        yield connection


def key_for(http: httpx.Client, stack: Stack, **rights) -> httpx.Client:
    made = http.post("/v1/keys", json={"name": "test", "rights": rights})
    assert made.status_code == 201, made.text
    headers = {"Authorization": f"Bearer {made.json()['key']}"}
    return httpx.Client(base_url=stack.facts["http"], headers=headers, trust_env=False)


def read_all(raw: socket.socket) -> bytes:
    parts = []
    while part := raw.recv(65536):
        parts.append(part)
    return b"".join(parts)


def test_a_message_is_sent_and_read_back(http):
    message = {"body": "hello", "tag": "AA", "keys": ["UA1545"], "properties": {"origin": "EWR"}, "ordering_key": "N1"}
    sent = http.post(f"{TOPIC}/messages", json=message)
    assert sent.status_code == 201
    place = sent.json()
    assert (place["outcome"], place["status"], place["topic"]) == ("stored", "SEND_OK", "FLIGHTS")
    queue = f"{TOPIC}/queues/{place['broker']}/{place['queue_id']}"
    read = http.get(f"{queue}/messages", params={"offset": place["queue_offset"], "filter": "AA || UA"}).json()
    assert read["status"] == "FOUND"
    found = read["messages"][0]
    assert {name: found[name] for name in ("body", "tag", "keys", "properties", "message_id", "stored_id")} == {
        **{name: message[name] for name in ("body", "tag", "keys", "properties")},
        "message_id": place["message_id"],
        "stored_id": place["stored_id"],
    }
    for path, params in (
        (place["stored_id"], {}),
        (place["message_id"], {"topic": "FLIGHTS"}),
        (place["stored_id"], {"topic": "FLIGHTS"}),
    ):
        assert http.get(f"/v1/messages/{path}", params=params).json() == found
    assert found in http.get(f"{TOPIC}/messages", params={"key": "UA1545"}).json()["items"]
    at = http.get(f"{queue}/offsets", params={"at": found["stored_at"], "boundary": "upper"}).json()
    assert int(at["offset"]) >= int(place["queue_offset"])


def test_a_raw_body_is_returned_as_bytes(http):
    headers = {"Content-Type": "application/octet-stream", "Gantry-Tag": "bin", "Gantry-Property-Name": "%C3%BC"}
    place = http.post(f"{TOPIC}/messages", content=b"\x00\xff", headers=headers).json()
    path = f"/v1/messages/{place['stored_id']}"
    shown = http.get(path).json()
    assert (shown["body"], shown["encoding"], shown["tag"]) == ("AP8=", "base64", "bin")
    assert shown["properties"] == {"content-type": "application/octet-stream", "name": "ü"}
    answer = http.get(path, headers={"Accept": "application/msgpack"})
    packed = msgspec.msgpack.decode(answer.content)
    assert (packed["body"], packed["queue_offset"]) == (b"\x00\xff", int(shown["queue_offset"]))


@pytest.mark.parametrize("coding", ["json", "lines", "frames"])
def test_a_batch_has_a_result_for_each(http, coding):
    messages = [{"body": f"m{number}", "ordering_key": f"k{number % 4}"} for number in range(40)]
    messages[7] = {"bdy": "typing error"}
    if coding == "json":
        content, media = json.dumps({"messages": messages}).encode(), "application/json"
    elif coding == "lines":
        content, media = "\n".join(map(json.dumps, messages)).encode(), "application/x-ndjson"
    else:
        packed = [msgspec.msgpack.encode(message) for message in messages]
        content = b"".join(len(data).to_bytes(4, "big") + data for data in packed)
        media = "application/vnd.gantry.batch"
    answer = http.post(f"{TOPIC}/messages:batch", content=content, headers={"Content-Type": media}).json()
    assert (answer["stored"], answer["not_stored"], answer["unknown"]) == (39, 1, 0)
    assert answer["results"][7]["problem"]["field"] == "/messages/7/bdy"
    offsets: dict[tuple[str, int], list[int]] = {}
    for result in (result for result in answer["results"] if result["outcome"] == "stored"):
        offsets.setdefault((result["broker"], result["queue_id"]), []).append(int(result["queue_offset"]))
    assert all(found == sorted(found) for found in offsets.values())


def test_a_read_waits_for_a_message(http, stack):
    queue = next(item for item in http.get(f"{TOPIC}/queues").json()["items"] if item["broker"] == "broker-a")
    path = f"{TOPIC}/queues/broker-a/{queue['queue_id']}/messages"
    empty = http.get(path, params={"offset": queue["max_offset"], "wait": "100ms"}).json()
    assert (empty["status"], empty["messages"]) == ("NO_NEW_MSG", [])
    beyond = http.get(path, params={"offset": str(int(queue["max_offset"]) + 5)}).json()
    assert (beyond["status"], beyond["next_offset"]) == ("OFFSET_ILLEGAL", queue["max_offset"])


def version_of(answer: httpx.Response) -> str:
    return answer.headers["ETag"].strip('"').partition("-")[0]


def test_topics_are_made_changed_and_deleted(http):
    path = "/v1/topics/CRUD"
    made = http.put(path, json={"read_queues": 2, "write_queues": 1}, headers={"If-None-Match": "*"})
    assert (made.status_code, version_of(made)) == (201, "1")
    assert [there["broker"] for there in made.json()["observed"]] == ["broker-a", "broker-b"]
    assert http.put(path, json={}, headers={"If-None-Match": "*"}).status_code == 412
    assert http.post(f"{path}/messages", json={"body": "at once"}).status_code == 201
    changed = http.put(path, json={"perm": "r"}, headers={"If-Match": '"1"'})
    assert (changed.status_code, version_of(changed), changed.json()["perm"]) == (200, "2", "r")
    stale = http.put(path, json={}, headers={"If-Match": '"1"'})
    assert (stale.status_code, stale.json()["field"]) == (412, "If-Match")
    refused = http.post(f"{path}/messages", json={"body": "b"})
    assert (refused.status_code, refused.json()["outcome"]) == (403, "not_stored")
    same = http.put(path, json={"perm": "r"})
    assert (same.status_code, version_of(same)) == (200, "2")
    assert "CRUD" in [topic["topic"] for topic in http.get("/v1/topics").json()["items"]]
    assert http.delete(path, headers={"If-Match": '"1"'}).status_code == 412
    assert http.delete(path).status_code == 204
    assert http.get(path).status_code == http.delete(path).status_code == 404
    gone = http.post(f"{path}/messages", json={"body": "b"})
    assert (gone.status_code, gone.json()["outcome"]) == (404, "not_stored")
    trail = http.get("/v1/audit", params={"kind": "topic", "name": "CRUD"}).json()["items"]
    assert [entry["action"] for entry in trail] == ["topic.delete", "topic.change", "topic.create"]
    assert trail[1]["before"]["perm"] == "rw"
    assert trail[1]["request_id"] == changed.headers["X-Request-Id"]
    assert http.put("/v1/topics/%25RETRY%25g", json={}).status_code == 403
    assert http.put("/v1/topics/broker-a", json={}).status_code == 403
    assert http.put("/v1/topics/T1", json={"brokers": ["nowhere"]}).status_code == 404


def test_paging_returns_every_item(http):
    names = {f"PAGE-{number}" for number in range(5)}
    for name in names:
        assert http.put(f"/v1/groups/{name}", json={}).status_code == 201
    seen, cursor = [], None
    while True:
        page = http.get("/v1/groups", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        assert len(page["items"]) <= 2
        seen += [group["group"] for group in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == sorted(seen)
    assert names <= set(seen)
    for path in ("/v1/groups", "/v1/topics", "/v1/keys", "/v1/audit", "/v1/groups/g/subscriptions"):
        assert http.get(path, params={"cursor": "bm90"}).json()["field"] == "cursor"


def test_a_group_commits_and_is_shown_its_lag(http):
    place = http.post(f"{TOPIC}/messages", json={"body": "b"}).json()
    queue = {"topic": "FLIGHTS", "broker": place["broker"], "queue_id": place["queue_id"]}
    assert http.get("/v1/groups/LAG/offsets").status_code == 404
    assert http.put("/v1/groups/LAG", json={"retry_max_times": 3}).status_code == 201
    items = http.get("/v1/groups/LAG/offsets", params={"topic": "FLIGHTS"}).json()["items"]
    assert len(items) == 4
    assert {(item["committed_offset"], item["lag"]) for item in items} == {(None, None)}
    commits = [
        {**queue, "offset": place["queue_offset"]},
        {**queue, "queue_id": 1 - place["queue_id"], "offset": "999999"},
        {**queue, "queue_id": 77, "offset": "0"},
        {**queue, "topic": "NOPE", "offset": "0"},
    ]
    answer = http.put("/v1/groups/LAG/offsets", json={"offsets": commits}).json()
    assert [result["outcome"] for result in answer["results"]] == ["committed", "refused", "refused", "refused"]
    assert [result["problem"]["status"] for result in answer["results"][1:]] == [400, 404, 404]
    [item] = http.get("/v1/groups/LAG/offsets").json()["items"]
    assert item["committed_offset"] == place["queue_offset"]
    assert int(item["lag"]) == int(item["max_offset"]) - int(place["queue_offset"])
    assert http.get("/v1/groups/LAG/clients").json()["items"] == []
    assert http.delete("/v1/groups/LAG").status_code == 204


def test_rights_are_kept_apart(http, stack):
    with key_for(http, stack, publish=["FLI*"]) as publisher:
        assert publisher.post(f"{TOPIC}/messages", json={"body": "b"}).status_code == 201
        answers = {
            publisher.post("/v1/topics/OTHER/messages", json={"body": "b"}).status_code,
            publisher.post("/v1/topics/NOPE/messages", json={"body": "b"}).status_code,
            publisher.get(f"{TOPIC}/queues/broker-a/0/messages").status_code,
            publisher.get("/v1/cluster").status_code,
            publisher.get("/v1/keys").status_code,
            publisher.put(TOPIC, json={}).status_code,
            publisher.get("/metrics").status_code,
            publisher.post("/v1/groups/g/messages:pull", json={}).status_code,
        }
        assert answers == {403}
        assert [topic["topic"] for topic in publisher.get("/v1/topics").json()["items"]] == ["FLIGHTS"]
        place = publisher.post(f"{TOPIC}/messages", json={"body": "b"}).json()
        assert publisher.get(f"/v1/messages/{place['stored_id']}").status_code == 403
    with key_for(http, stack, consume={"topics": ["OTHER"], "groups": ["g"]}) as consumer:
        found = consumer.get(f"/v1/messages/{place['stored_id']}")
        missing = consumer.get("/v1/messages/" + "0" * 32)
        assert found.status_code == missing.status_code == 404
        assert set(found.json()) == set(missing.json())
        assert consumer.post("/v1/groups/g/messages:pull", json={"topic": "FLIGHTS"}).status_code == 403
        assert consumer.post("/v1/groups/g/messages:pull", json={"topic": "OTHER"}).status_code == 404
    with key_for(http, stack, metrics=True) as scraper:
        assert "gantry_gateway_sent_messages_total" in scraper.get("/metrics").text


def test_keys_are_shown_once_and_end_when_revoked(http, stack):
    with key_for(http, stack, admin=True) as admin:
        made = admin.post("/v1/keys", json={"name": "short", "rights": {}}).json()
        listed = admin.get("/v1/keys").json()["items"]
        assert made["id"] in [key["id"] for key in listed]
        assert not any("key" in key for key in listed)
        assert admin.delete(f"/v1/keys/{made['id']}").status_code == 204
        again = httpx.get(
            f"{stack.facts['http']}/v1/topics", headers={"Authorization": f"Bearer {made['key']}"}, trust_env=False
        )
        assert again.status_code == 401
        assert admin.get(f"/v1/keys/{made['id']}").json()["revoked_at"] is not None
        assert made["id"] not in [key["id"] for key in admin.get("/v1/keys").json()["items"]]
    cache = stack.directory / "gateway-0" / "gateway-keys.json"
    assert cache.stat().st_mode & 0o777 == 0o600
    assert made["key"] not in cache.read_text()


def test_a_revoked_key_does_not_complete_requests_that_it_began(http, stack, raw):
    """A body or a wait may last for up to a minute; when the key is revoked meanwhile, the request is rejected."""
    made = http.post("/v1/keys", json={"name": "short", "rights": {"admin": True}}).json()
    body = json.dumps({"name": "mine", "rights": {"admin": True}}).encode()
    head = f"host: x\r\nauthorization: Bearer {made['key']}\r\nconnection: close\r\ncontent-type: application/json\r\n"
    raw.sendall(f"POST /v1/keys HTTP/1.1\r\n{head}content-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n".encode())
    # The gateway sends 100 Continue when it reads the body, and so after it has checked the key.
    assert raw.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
    raw.sendall(body[:-1])
    assert http.delete(f"/v1/keys/{made['id']}").status_code == 204
    raw.sendall(body[-1:])
    assert read_all(raw).startswith(b"HTTP/1.1 401")
    assert "mine" not in [key["name"] for key in http.get("/v1/keys").json()["items"]]


def test_a_wait_of_a_revoked_key_returns_no_messages(http, stack, raw):
    queue = {"broker": "broker-a", "id": 0}
    assert http.put("/v1/topics/WAITS", json={"read_queues": 1, "write_queues": 1}).status_code == 201
    made = http.post("/v1/keys", json={"name": "short", "rights": {"consume": {"topics": ["WAITS"]}}}).json()
    path = "/v1/topics/WAITS/queues/broker-a/0/messages?wait=30s"
    raw.sendall(
        f"GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {made['key']}\r\nconnection: close\r\n\r\n".encode()
    )
    deadline = time.monotonic() + 10
    while 'gantry_gateway_limit_used{limit="long_polls",of="key"} 1' not in http.get("/metrics").text:
        assert time.monotonic() < deadline
    assert http.delete(f"/v1/keys/{made['id']}").status_code == 204
    assert http.post("/v1/topics/WAITS/messages", json={"body": "secret", "queue": queue}).status_code == 201
    answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 401")
    assert b"secret" not in answer


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/topics/", 404),
        ("/v1/topics/%ff", 400),
        ("/v1/topics/%zz", 400),
        ("/v1/topics/a%2Fb", 400),
        ("/v1/topics//messages", 404),
        ("/v1/topics/FLIGHTS/queues/broker-a/x/messages", 400),
        ("/v1/topics/FLIGHTS/queues/broker-a/-1/messages", 400),
        ("/v1/topics/FLIGHTS/queues/broker-a/0/messages?filter=%ff", 400),
        ("/v1/topics/FLIGHTS/queues/broker-a/0/messages?filter=AA||UA", 200),
        ("/v1/topics?limit=1&limit=1", 400),
        ("/v1/topics?colour=red", 400),
        ("/v1/topics#x", 200),
        ("/v1/topics/FLIGHTS/messages?from=2026-01-01T00:00:00Z", 200),
        ("/v1/topics/FLIGHTS/messages?from=yesterday", 400),
    ],
)
def test_paths_are_used_as_sent(stack, raw, target, status):
    """A bare socket is needed because HTTP libraries normalize paths before they send them."""
    request = f"GET {target} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stack.facts['api_key']}\r\nconnection: close\r\n\r\n"
    raw.sendall(request.encode("latin-1"))
    head, _, body = read_all(raw).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status, head
    if status >= 400:
        assert b"application/problem+json" in head
        assert json.loads(body)["status"] == status


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/v1/topics/%ff/messages", 400),
        ("/v1/topics/a%2Fb/messages:batch", 400),
        ("/v1/topics/FLIGHTS/messages/", 404),
        ("/v1/topics/FLIGHTS/messages?x=1", 400),
        ("/v1/topics/FLIGHTS/messages", 400),
    ],
)
def test_hot_routes_decode_like_all_others(stack, raw, target, status):
    """A hot route takes the same steps with less overhead."""
    head = f"host: x\r\nauthorization: Bearer {stack.facts['api_key']}\r\nx-request-id: mine\r\ncontent-length: 0\r\n"
    head += "content-type: text/plain\r\n"
    raw.sendall(f"POST {target} HTTP/1.1\r\n{head}connection: close\r\n\r\n".encode())
    answer = read_all(raw)
    assert int(answer.split()[1]) == status, answer
    assert b"x-request-id: mine" in answer
    # In an invalid path, the gateway does not recognize the route of a send.
    assert b'"outcome":"not_stored"' in answer or status == 404 or b"malformed-path" in answer


def test_a_request_that_is_too_large_is_refused_before_it_is_read(stack, raw, http):
    length = 1 << 40
    head = f"POST {TOPIC}/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stack.facts['api_key']}\r\n"
    raw.sendall(f"{head}connection: close\r\ncontent-type: a/b\r\ncontent-length: {length}\r\n\r\n".encode())
    answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b'"outcome":"not_stored"' in answer
    raw_body = {"Content-Type": "application/octet-stream"}
    assert http.post(f"{TOPIC}/messages", content=b"x" * 9_000_000, headers=raw_body).status_code == 413
    assert http.post(f"{TOPIC}/messages", json={"body": "x" * 4_194_305}).status_code == 413
    assert http.post(f"{TOPIC}/messages", json={"body": "x" * 4_194_304}).status_code == 201
    many = {"messages": [{"body": "x"}] * 1_001}
    assert http.post(f"{TOPIC}/messages:batch", json=many).status_code == 413


def test_declared_lengths_take_no_memory_from_others(stack, http):
    """Forty callers declare 8 MiB each, more than the limit of all bodies together, and send nothing."""
    host, _, port = stack.facts["http"].removeprefix("http://").partition(":")
    head = f"POST {TOPIC}/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {stack.facts['api_key']}\r\n"
    head += "content-type: application/json\r\ncontent-length: 8388608\r\n\r\n"
    with ExitStack() as crowd:
        for _ in range(40):
            crowd.enter_context(socket.create_connection((host, int(port)))).sendall(head.encode())
        assert http.post(f"{TOPIC}/messages", json={"body": "x" * 100_000}).status_code == 201


@pytest.mark.parametrize("named", [{}, {"Content-Type": "application/x-www-form-urlencoded"}])
def test_a_form_content_type_as_curl_sends_it_is_refused(http, named):
    answer = http.post(f"{TOPIC}/messages", content=b'{"body": "hello"}', headers=named)
    assert (answer.status_code, answer.json()["outcome"]) == (415, "not_stored")
    assert "-H 'Content-Type: application/json'" in answer.json()["detail"]


def test_an_endless_head_is_refused(raw):
    raw.sendall(b"GET /livez HTTP/1.1\r\n" + b"x-filler: " + b"y" * 200_000)
    assert read_all(raw).startswith(b"HTTP/1.1 431")


def test_bytes_that_are_not_http_are_refused_in_json(raw):
    raw.sendall(b"\x16\x03\x01 not http at all\r\n\r\n")
    answer = read_all(raw)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"application/problem+json" in answer


def test_all_calls_of_the_console_exist(http):
    cluster = http.get("/v1/cluster").json()
    assert [broker["broker"] for broker in cluster["brokers"]] == ["broker-a", "broker-b"]
    assert all(broker["store"]["max_physical_offset"].isdigit() for broker in cluster["brokers"])
    assert http.get("/readyz").json() == {"status": "ready", "reasons": []}
    assert http.get("/openapi.json").json()["openapi"] == "3.1.0"
    assert http.get("/v1/stream").status_code == 426
    assert http.request("OPTIONS", "/v1/topics").headers["Allow"] == "GET, HEAD, OPTIONS"
    head = http.head("/v1/topics")
    assert (head.status_code, head.content) == (200, b"")


def test_the_limits_of_a_key_are_told_and_kept_and_others_do_not_feel_them(http, stack):
    made = http.post("/v1/keys", json={"name": "slow", "rights": {"publish": ["*"]}, "limits": {"messages_per_s": 5}})
    assert made.json()["limits"]["messages_per_s"] == 5
    with httpx.Client(
        base_url=stack.facts["http"], headers={"Authorization": f"Bearer {made.json()['key']}"}, trust_env=False
    ) as slow:
        batch = slow.post(f"{TOPIC}/messages:batch", json={"messages": [{"body": "x"}] * 50})
        assert batch.json()["stored"] == 50
        assert batch.headers["ratelimit-policy"] == '"messages_per_s";q=5;qu="messages";w=1'
        assert batch.headers["ratelimit"].startswith('"messages_per_s";r=0;t=')
        refused = slow.post(f"{TOPIC}/messages", json={"body": "x"})
        assert (refused.status_code, refused.json()["outcome"]) == (429, "not_stored")
        assert int(refused.headers["retry-after"]) >= 5
        assert "RateLimit-Policy" in refused.headers
        assert http.post(f"{TOPIC}/messages", json={"body": "x"}).status_code == 201
        changed = http.put(f"/v1/keys/{made.json()['id']}", json={"limits": {}})
        assert changed.json()["limits"] == dict.fromkeys(("messages_per_s", "bytes_per_s", "connections", "in_flight"))
        free = slow.post(f"{TOPIC}/messages", json={"body": "x"})
        assert free.status_code == 201
        assert "RateLimit" not in free.headers


def test_a_rotated_key_keeps_its_id_and_both_secrets_work(http, stack):
    made = http.post("/v1/keys", json={"name": "r", "rights": {"publish": ["*"]}}).json()
    rotated = http.post(f"/v1/keys/{made['id']}:rotate", json={"overlap": "1h"}).json()
    assert (rotated["id"], rotated["rights"]) == (made["id"], made["rights"])
    assert rotated["previous_valid_until"] is not None
    for key in (made["key"], rotated["key"]):
        headers = {"Authorization": f"Bearer {key}"}
        assert http.post(f"{TOPIC}/messages", json={"body": "x"}, headers=headers).status_code == 201
    assert http.post(f"/v1/keys/{made['id']}:rotate").json()["key"] != rotated["key"], "24h without a body"
    assert http.post("/v1/keys/key-none:rotate").status_code == 404
    assert http.post(f"/v1/keys/{made['id']}:rotate", json={"overlap": "soon"}).json()["field"] == "/overlap"


@pytest.fixture(scope="module")
def searched(stack: Stack) -> list[dict]:
    """The messages of a topic with eight queues, in the order of their store times."""
    with stack.http() as http:
        assert http.put("/v1/topics/SEARCH", json={"read_queues": 4, "write_queues": 4}).status_code == 201
        for number in range(60):
            message = {"body": f"m{number}", "tag": "AB"[number % 2], "properties": {"weight": str(number)}}
            assert http.post("/v1/topics/SEARCH/messages", json=message).status_code == 201
        return http.get("/v1/topics/SEARCH/messages", params={"from": "2020-01-01T00:00:00Z"}).json()["items"]


def search(http: httpx.Client, **params: str) -> list[dict]:
    """Return the messages of all pages of a search."""
    items: list[dict] = []
    while True:
        answer = http.get("/v1/topics/SEARCH/messages", params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert "missing" not in page
        assert page["truncated"] is (page["next_cursor"] is not None)
        items += page["items"]
        if page["next_cursor"] is None:
            return items
        params["cursor"] = page["next_cursor"]


def bodies(items: list[dict]) -> list[str]:
    return [item["body"] for item in items]


def test_a_topic_is_searched_by_time_tag_and_expression(http, searched):
    assert sorted(bodies(searched)) == sorted(f"m{number}" for number in range(60))
    assert len({(item["broker"], item["queue_id"]) for item in searched}) == 8
    times = [item["stored_at"] for item in searched]
    assert times == sorted(times)
    assert search(http, **{"from": times[0], "limit": "7"}) == searched
    first, last = times[20], times[40]
    assert search(http, **{"from": first, "to": last, "limit": "5"}) == [
        item for item in searched if first <= item["stored_at"] < last
    ]
    assert search(http, to=times[0]) == []
    assert search(http, **{"from": "2100-01-01T00:00:00Z"}) == []
    for params in ({"tag": "A"}, {"filter": "A || C"}, {"sql": "TAGS = 'A'"}):
        assert search(http, **params, limit="11") == [item for item in searched if item["tag"] == "A"]
    assert search(http, sql="weight BETWEEN 10 AND 19", **{"from": times[0]}) == [
        item for item in searched if 10 <= int(item["properties"]["weight"]) <= 19
    ]


def test_a_topic_is_searched_for_what_a_group_has_not_consumed(http, searched):
    assert http.put("/v1/groups/SEARCHERS", json={}).status_code == 201
    unknown = http.get("/v1/topics/SEARCH/messages", params={"not_consumed_by": "SEARCHERS"}).json()
    assert (unknown["items"], unknown["truncated"], len(unknown["missing"])) == ([], True, 8)
    assert "SEARCHERS has never committed an offset" in unknown["missing"][0]["reason"]
    commits = [
        {"topic": "SEARCH", "broker": broker, "queue_id": queue_id, "offset": "2"}
        for broker in ("broker-a", "broker-b")
        for queue_id in range(4)
    ]
    assert http.put("/v1/groups/SEARCHERS/offsets", json={"offsets": commits}).json()["committed"] == 8
    assert search(http, not_consumed_by="SEARCHERS", limit="9") == [
        item for item in searched if int(item["queue_offset"]) >= 2
    ]


def test_a_search_is_for_those_who_may_read(http, stack, searched):
    with key_for(http, stack, consume={"topics": ["SEARCH"], "groups": ["MINE"]}) as reader:
        assert len(search(reader, tag="A")) == 30
        assert reader.get("/v1/topics/FLIGHTS/messages", params={"tag": "A"}).status_code == 403
        assert reader.get("/v1/topics/SEARCH/messages", params={"not_consumed_by": "OTHERS"}).status_code == 403
        assert reader.get("/v1/topics/SEARCH/messages", params={"not_consumed_by": "MINE"}).status_code == 404


@pytest.mark.parametrize(
    ("params", "field", "reason"),
    [
        ({}, "key", "without it, give one of filter, from, not_consumed_by, sql, tag, to"),
        ({"limit": "5"}, "key", "is missing"),
        ({"key": "k", "from": "2026-01-01T00:00:00Z"}, "from", "beside `key`"),
        ({"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"}, "to", "is not after `from`"),
        ({"tag": "A || B"}, "tag", "`filter` takes several tags"),
        ({"tag": "A", "sql": "a > 1"}, "tag", "beside `sql`"),
        ({"sql": "weight >"}, "sql", "at character 9"),
        ({"tag": "A", "cursor": "x"}, "cursor", "is not a cursor of this search"),
        ({"tag": "A", "limit": "1001"}, "limit", "1…1000"),
    ],
)
def test_a_search_that_is_not_valid_names_the_parameter(http, searched, params, field, reason):
    answer = http.get("/v1/topics/SEARCH/messages", params=params)
    assert (answer.status_code, answer.json()["field"]) == (400, field)
    assert reason in answer.json()["detail"]


def test_a_search_of_a_missing_topic_or_group_is_404(http, searched):
    assert http.get("/v1/topics/NOWHERE/messages", params={"tag": "A"}).status_code == 404
    assert http.get("/v1/topics/SEARCH/messages", params={"not_consumed_by": "NOBODY"}).status_code == 404
