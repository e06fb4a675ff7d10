"""Metadata against real brokers: drift is repaired, foreign topics are adopted, gateways share their state."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gantry.client.admin import Admin
from gantry.client.consumer.rebalance import GroupMember
from gantry.client.engine import ClientEngine
from gantry.client.settings import ClientSettings
from gantry.model.group import SubscriptionGroup, parse_tag_expression
from gantry.model.topic import TopicConfig
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.brokerprocess import NamesrvProcess
from tests.support.stack import Stack, environment

FAST = {
    "GANTRY_GATEWAY_RECONCILE_INTERVAL_MS": "500",
    "GANTRY_GATEWAY_MIRROR_INTERVAL_MS": "500",
    "GANTRY_GATEWAY_KEY_POLL_INTERVAL_MS": "1000",
}
DEADLINE_S = 40.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=2, environment=FAST) as running:
        yield running


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


@pytest.fixture
async def engine(stack: Stack) -> AsyncIterator[ClientEngine]:
    settings = ClientSettings(namesrv=tuple(stack.facts["namesrv"]))
    engine = ClientEngine(settings, clock=SystemClock(), rng=Rng())
    await engine.start()
    yield engine
    await engine.stop()


@contextmanager
def gateway(stack: Stack, directory: Path, namesrv: str) -> Iterator[str]:
    """Another gateway on the stack's Postgres; yields its URL."""
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "services.gateway", "--listen", "127.0.0.1:0", "--name", "gateway-1"]
    command += ["--namesrv", namesrv, "--data", str(directory), "--ready-file", str(ready)]
    variables = environment({**FAST, "GANTRY_GATEWAY_DRAIN_MS": "0", "GANTRY_DATABASE_URL": stack.facts["postgres"]})
    process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL)
    try:
        wait_until(ready.exists)
        yield httpx.Response(200, content=ready.read_bytes()).json()["url"]
    finally:
        process.terminate()
        assert process.wait(20) == 0


@pytest.fixture
def second_gateway(stack: Stack, tmp_path: Path) -> Iterator[str]:
    """Another gateway on the same brokers and the same Postgres; yields its URL."""
    with gateway(stack, tmp_path, ";".join(stack.facts["namesrv"])) as url:
        yield url


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, "waited without success"
        time.sleep(0.05)


def runs_anew(stack: Stack, name: str, killed: int) -> bool:
    return any(process["name"] == name and process["pid"] != killed for process in stack.facts["processes"])


def observed(http: httpx.Client, path: str, field: str) -> dict[str, object]:
    answer = http.get(path).json()
    return {there["broker"]: there[field] for there in answer.get("observed", [])}


async def test_a_topic_created_on_a_broker_is_adopted(http, engine):
    admin = Admin(engine)
    await admin.create_topic(TopicConfig("FOUND", 3, 3), ["broker-b"])
    await admin.put_group(SubscriptionGroup("FOUND_GROUP", retry_max_times=5))
    assert "FOUND" in [topic["topic"] for topic in http.get("/v1/topics").json()["items"]]
    await asyncio.to_thread(wait_until, lambda: "ETag" in http.get("/v1/topics/FOUND").headers)
    topic = http.get("/v1/topics/FOUND").json()
    assert (topic["origin"], topic["brokers"], topic["read_queues"]) == ("broker", ["broker-b"], 3)
    await asyncio.to_thread(wait_until, lambda: "ETag" in http.get("/v1/groups/FOUND_GROUP").headers)
    assert http.get("/v1/groups/FOUND_GROUP").json()["retry_max_times"] == 5
    trail = http.get("/v1/audit", params={"kind": "topic", "name": "FOUND"}).json()["items"]
    assert [(entry["actor"], entry["action"]) for entry in trail] == [("reconciler", "topic.import")]


async def test_drift_is_repaired(http, engine):
    assert http.put("/v1/topics/DRIFT", json={"read_queues": 2, "write_queues": 2}).status_code == 201
    assert http.put("/v1/groups/DRIFT", json={"retry_max_times": 7}).status_code == 201
    admin = Admin(engine)
    await admin.create_topic(TopicConfig("DRIFT", 5, 5), ["broker-a"])
    await admin.put_group(SubscriptionGroup("DRIFT", retry_max_times=1))
    for path, field, value in (("/v1/topics/DRIFT", "read_queues", 2), ("/v1/groups/DRIFT", "retry_max_times", 7)):
        wanted = {"broker-a": value, "broker-b": value}
        await asyncio.to_thread(
            wait_until, lambda path=path, field=field, wanted=wanted: observed(http, path, field) == wanted
        )


async def test_a_retry_policy_reaches_brokers_and_is_theirs_if_it_is_not_given(http, engine):
    admin = Admin(engine)
    custom = {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1, 1, 3_000]}}
    await admin.put_group(SubscriptionGroup("RETRIES", group_retry_policy=custom))
    assert http.put("/v1/groups/RETRIES", json={"retry_max_times": 3}).json()["retry_policy"] is None
    kept = {"kind": "delays", "delays_ms": [3_000]}
    assert observed(http, "/v1/groups/RETRIES", "retry_policy") == {"broker-a": kept, "broker-b": kept}
    wanted = {"kind": "exponential", "initial_ms": 2_000, "multiplier": 3, "max_ms": 60_000}
    answer = http.put("/v1/groups/RETRIES", json={"retry_policy": wanted})
    assert (answer.status_code, answer.json()["retry_policy"]) == (200, wanted)
    assert observed(http, "/v1/groups/RETRIES", "retry_policy") == {"broker-a": wanted, "broker-b": wanted}
    refused = http.put("/v1/groups/RETRIES", json={"retry_policy": {"kind": "delays", "delays_ms": [0]}})
    assert (refused.status_code, refused.json()["field"]) == (400, "/retry_policy/delays_ms/0")


def test_an_unreachable_broker_is_corrected_when_it_is_back(http, stack):
    assert http.put("/v1/topics/OLD", json={}).status_code == 201
    paused = stack.pid_of("broker-b")
    os.kill(paused, signal.SIGSTOP)
    try:
        made = http.put("/v1/topics/LATE", json={"read_queues": 1, "write_queues": 1})
        assert (made.status_code, made.json()["state"], made.json()["pending"]) == (201, "pending", ["broker-b"])
        assert http.delete("/v1/topics/OLD").status_code == 204
        assert http.get("/v1/topics/OLD").status_code == 404
    finally:
        os.kill(paused, signal.SIGCONT)
    wait_until(lambda: http.get("/v1/topics/LATE").json()["state"] == "applied")
    assert set(observed(http, "/v1/topics/LATE", "read_queues")) == {"broker-a", "broker-b"}
    # The deletion is finished, too: the reconciler has no topic left to find and adopt again.
    time.sleep(2)
    assert http.get("/v1/topics/OLD").status_code == 404
    assert http.put("/v1/topics/OLD", json={}).status_code == 201


async def test_consumers_are_shown_and_remembered(http, engine):
    http.put("/v1/topics/SUBS", json={})
    data = parse_tag_expression("SUBS", "AA || UA", 1)

    async def changed(assigned, revoked):
        pass

    member = GroupMember(engine, "SUBS_GROUP", [data], client_id="10.0.0.1@test", on_change=changed)
    await member.start()
    [client] = http.get("/v1/groups/SUBS_GROUP/clients").json()["items"]
    assert (client["client_id"], client["message_model"]) == ("10.0.0.1@test", "CLUSTERING")

    def mirrored(active: bool) -> bool:
        items = http.get("/v1/groups/SUBS_GROUP/subscriptions").json()["items"]
        return [(item["filter"], item["active"]) for item in items if item["topic"] == "SUBS"] == [("AA || UA", active)]

    await asyncio.to_thread(wait_until, lambda: mirrored(True))
    await member.close()
    await asyncio.to_thread(wait_until, lambda: mirrored(False))
    assert http.get("/v1/groups/SUBS_GROUP/clients").json()["items"] == []


def test_gateways_share_keys_topics_and_background_work(http, stack, second_gateway):
    def ask(url: str, key: str, path: str = "/v1/topics") -> httpx.Response:
        return httpx.get(url + path, headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=20)

    first = stack.facts["http"]
    made = http.post("/v1/keys", json={"name": "shared", "rights": {"admin": True, "metrics": True}}).json()
    wait_until(lambda: ask(second_gateway, made["key"]).status_code == 200)
    assert http.put("/v1/topics/SHARED", json={}).status_code == 201
    assert ask(second_gateway, made["key"], "/v1/topics/SHARED").headers["ETag"].startswith('"1-')
    metrics = "".join(ask(url, made["key"], "/metrics").text for url in (first, second_gateway))
    assert sorted(line for line in metrics.splitlines() if line.startswith("gantry_gateway_is_")) == [
        "gantry_gateway_is_mirror 0.0",
        "gantry_gateway_is_mirror 1.0",
        "gantry_gateway_is_reconciler 0.0",
        "gantry_gateway_is_reconciler 1.0",
        "gantry_gateway_is_sampler 0.0",
        "gantry_gateway_is_sampler 1.0",
    ]
    assert http.delete(f"/v1/keys/{made['id']}").status_code == 204
    assert ask(first, made["key"]).status_code == 401
    wait_until(lambda: ask(second_gateway, made["key"]).status_code == 401)


async def test_existing_names_are_found_while_brokers_register_at_a_new_name_server(http, stack, engine):
    topic = {"read_queues": 1, "write_queues": 1, "brokers": ["broker-b"]}
    assert http.put("/v1/topics/RELEARNED", json=topic).status_code == 201
    assert http.put("/v1/groups/RELEARNED", json={}).status_code == 201
    sent = http.post("/v1/topics/RELEARNED/messages", json={"body": "m"}).json()
    paths = [
        "/v1/groups/RELEARNED/offsets?topic=RELEARNED",
        "/v1/groups/RELEARNED/offsets",
        f"/v1/messages/{sent['stored_id']}",
        f"/v1/messages/{sent['message_id']}?topic=RELEARNED",
        "/v1/topics/RELEARNED/queues",
        "/v1/topics/RELEARNED",
    ]
    before = {path: http.get(path).json() for path in paths}
    for _ in range(2):
        killed = stack.pid_of("namesrv-0")
        os.kill(killed, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda killed=killed: runs_anew(stack, "namesrv-0", killed))
        registered = 0
        while registered < 2:
            registered = len((await engine.cluster_info()).broker_addr_table)
            for path in paths:
                answer = await asyncio.to_thread(http.get, path)
                assert (answer.status_code, answer.json()) == (200, before[path]), path
        assert len(http.get("/v1/cluster").json()["brokers"]) == 2


def test_a_gateway_without_brokers_lists_the_topics_of_postgres(http, stack, tmp_path):
    assert http.put("/v1/topics/LISTED", json={}).status_code == 201
    assert http.put("/v1/groups/LISTED", json={}).status_code == 201
    stored_id = http.post("/v1/topics/LISTED/messages", json={"body": "m"}).json()["stored_id"]
    key = {"Authorization": f"Bearer {stack.facts['api_key']}"}
    with (
        NamesrvProcess(tmp_path) as lonely,
        gateway(stack, tmp_path, lonely.address) as url,
        httpx.Client(base_url=url, headers=key, trust_env=False, timeout=20) as alone,
    ):
        for path in ("/v1/groups/LISTED/offsets", f"/v1/messages/{stored_id}", "/v1/topics/LISTED/queues"):
            answer = alone.get(path)
            assert (answer.status_code, answer.json()["detail"]) == (503, "no broker is registered at the moment"), path
        for kind in ("topic", "group"):
            shown = alone.get(f"/v1/{kind}s/LISTED").json()
            assert (shown["state"], shown["observed"], shown["metadata"]) == ("unknown", [], "available")
            assert "LISTED" in [item[kind] for item in alone.get(f"/v1/{kind}s").json()["items"]]
            assert alone.get(f"/v1/{kind}s/NOBODY").status_code == 503
            assert alone.put(f"/v1/{kind}s/UNCHECKED", json={}).status_code == 503
        assert alone.get("/v1/cluster").json()["brokers"] == []
        # A deletion is not complete until brokers have confirmed that they no longer have the topic.
        assert alone.delete("/v1/topics/LISTED").status_code == 204
    wait_until(lambda: http.get("/v1/topics/LISTED").status_code == 404)
    wait_until(lambda: http.get("/v1/topics/LISTED/queues").status_code == 404)
