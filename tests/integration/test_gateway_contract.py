"""Cases in which newcomers and browsers fail easily, on a real stack."""

import json
import re
from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from tests.support.stack import Stack

TOPIC = "/v1/topics/TRIPPED"
CONSOLE = "https://console.example"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=1, environment={"GANTRY_GATEWAY_CORS_ORIGINS": CONSOLE}) as running:
        with running.http() as http:
            assert http.put(TOPIC, json={"read_queues": 1, "write_queues": 1}).status_code == 201
        yield running


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


@pytest.fixture
def stranger(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.facts["http"], trust_env=False) as client:
        yield client


def kind(answer: httpx.Response) -> str:
    return str(answer.json()["type"].rpartition("/")[2])


def test_the_contract_needs_no_key(stranger: httpx.Client) -> None:
    assert stranger.get("/openapi.json").json()["openapi"] == "3.1.0"
    assert stranger.options(TOPIC).headers["Allow"] == "DELETE, GET, HEAD, OPTIONS, PUT"
    assert stranger.get(TOPIC).status_code == 401


def test_the_contract_is_compressed_and_not_sent_again(stranger: httpx.Client) -> None:
    plain = stranger.get("/openapi.json", headers={"Accept-Encoding": "identity"})
    zipped = stranger.get("/openapi.json", headers={"Accept-Encoding": "gzip"})
    assert "Content-Encoding" not in plain.headers
    assert zipped.headers["Content-Encoding"] == "gzip"
    assert int(zipped.headers["Content-Length"]) < int(plain.headers["Content-Length"]) / 4
    assert zipped.json() == plain.json()
    for answer in (plain, zipped):  # Beside the origin, for pages of other sites.
        assert "accept-encoding" in answer.headers["Vary"].lower().split(", ")
    again = stranger.get("/openapi.json", headers={"If-None-Match": f'"0", W/{plain.headers["ETag"]}'})
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", plain.headers["ETag"])
    assert stranger.get("/openapi.json", headers={"If-None-Match": "?"}).status_code == 400


def test_a_web_page_of_a_listed_origin_may_call_and_read(http: httpx.Client, stranger: httpx.Client) -> None:
    asked = {
        "Origin": CONSOLE,
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "authorization",
    }
    preflight = stranger.options(TOPIC, headers=asked)
    assert (preflight.status_code, preflight.headers["Access-Control-Allow-Origin"]) == (204, CONSOLE)
    assert "PUT" in preflight.headers["Access-Control-Allow-Methods"]
    answer = http.get(TOPIC, headers={"Origin": CONSOLE})
    assert answer.headers["Access-Control-Allow-Origin"] == CONSOLE
    assert "ETag" in answer.headers["Access-Control-Expose-Headers"]
    assert "Access-Control-Allow-Origin" not in http.get(TOPIC, headers={"Origin": "https://evil.example"}).headers


def test_every_answer_to_a_send_says_that_duplicates_are_not_detected(http: httpx.Client) -> None:
    key = {"Idempotency-Key": "order-42"}
    answers = [http.post(f"{TOPIC}/messages", json={"body": "b"}, headers=key) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].json()["message_id"] == answers[1].json()["message_id"]
    batch = {"messages": [{"body": "b", "idempotency_key": "order-43"}]}
    answers += [http.post(f"{TOPIC}/messages:batch", json=batch)]
    answers += [http.post("/v1/topics/NOPE/messages", json={"body": "b"}, headers=key)]
    assert {answer.headers["Gantry-Duplicate-Detection"] for answer in answers} == {"none"}
    assert "Gantry-Duplicate-Detection" not in http.get(TOPIC).headers


def test_a_trace_travels_with_json_too(http: httpx.Client) -> None:
    """A `traceparent` beside JSON was once dropped; beside a raw body it became a property."""
    headers = {"traceparent": TRACE}
    own = {"body": "b", "properties": {"traceparent": "own"}}
    sent = [
        http.post(f"{TOPIC}/messages", json={"body": "b"}, headers=headers).json(),
        http.post(f"{TOPIC}/messages", json=own, headers=headers).json(),
        http.post(f"{TOPIC}/messages", json={"body": "b"}, headers={"traceparent": "nonsense"}).json(),
        *http.post(f"{TOPIC}/messages:batch", json={"messages": [{"body": "b"}, own]}, headers=headers).json()[
            "results"
        ],
    ]
    found = [http.get(f"/v1/messages/{each['stored_id']}").json()["properties"].get("traceparent") for each in sent]
    assert found == [TRACE, "own", None, TRACE, "own"]


def test_offsets_have_up_to_nineteen_digits(http: httpx.Client) -> None:
    queue = f"{TOPIC}/queues/broker-a/0/messages"
    far = http.get(queue, params={"offset": str(2**63 - 1)})
    assert (far.status_code, far.json()["status"]) == (200, "OFFSET_ILLEGAL")
    for offset in (str(2**63), "9" * 19, "9" * 20):
        refused = http.get(queue, params={"offset": offset})
        assert (refused.status_code, refused.json()["field"]) == (400, "offset")
    place = {"topic": "TRIPPED", "broker": "broker-a", "queue_id": 0, "offset": str(2**63 - 1)}
    http.put("/v1/groups/FAR", json={})
    [result] = http.put("/v1/groups/FAR/offsets", json={"offsets": [place]}).json()["results"]
    assert (result["outcome"], result["problem"]["field"]) == ("refused", "/offsets/0/offset")


def test_times_may_have_another_offset(http: httpx.Client) -> None:
    stored = http.post(f"{TOPIC}/messages", json={"body": "b"}).json()
    at = http.get(f"/v1/messages/{stored['stored_id']}").json()["stored_at"]
    path = f"{TOPIC}/queues/broker-a/0/offsets"
    hour = (int(at[11:13]) + 2) % 24
    if hour >= 2:
        local = f"{at[:11]}{hour:02}{at[13:-1]}+02:00"
        assert http.get(f"{path}?at={quote(local)}").json() == http.get(f"{path}?at={at}").json()
    unescaped = http.get(f"{path}?at=2026-11-21T11:30:00+02:00")
    assert unescaped.status_code == 400
    assert "%2B" in unescaped.json()["detail"]


def test_the_filter_field_is_called_filter(http: httpx.Client) -> None:
    for text in ("||", "", "x" * 5_000):
        refused = http.get(f"{TOPIC}/queues/broker-a/0/messages", params={"filter": text})
        assert (refused.status_code, refused.json()["field"]) == (400, "filter")
        assert refused.json()["detail"].startswith("filter: ")


def test_rights_of_absurd_size_or_depth_are_refused(http: httpx.Client) -> None:
    def ask(content: bytes) -> httpx.Response:
        return http.post("/v1/keys", content=content, headers={"Content-Type": "application/json"})

    many = json.dumps({"name": "n", "rights": {"publish": ["A"] * 101}}).encode()
    assert (ask(many).status_code, ask(many).json()["field"]) == (400, "/rights/publish")
    long = json.dumps({"name": "n", "rights": {"publish": ["A" * 256]}}).encode()
    assert ask(long).json()["field"] == "/rights/publish/0"
    deep = b'{"name": "n", "rights": ' + b'{"publish": ' * 10_000 + b"}" * 10_001
    assert ask(deep).status_code == 400
    large = json.dumps({"name": "n", "rights": {"publish": ["A" * 255] * 10_000}}).encode()
    assert (ask(large).status_code, kind(ask(large))) == (413, "too-large")
    slow = {"name": "n", "rights": {"publish": ["*a" * 100 + "b"]}}
    made = http.post("/v1/keys", json=slow)
    assert made.status_code == 201
    with httpx.Client(base_url=str(http.base_url), headers={"Authorization": f"Bearer {made.json()['key']}"}) as holder:
        assert holder.post(f"/v1/topics/{'a' * 120}/messages", json={"body": "b"}, timeout=5).status_code == 403


def test_json_errors_name_the_value_and_the_real_reason(http: httpx.Client) -> None:
    refused = http.put(TOPIC, json={"read_queues": "eight"})
    assert (refused.status_code, refused.json()["field"]) == (400, "/read_queues")
    assert re.search(r'must be a whole number, found "eight"', refused.json()["detail"])
    malformed = http.put(TOPIC, content=b'{"perm": rw}', headers={"Content-Type": "application/json"})
    assert (malformed.status_code, kind(malformed)) == (400, "malformed-body")
    assert "'rw}'" in malformed.json()["detail"]
