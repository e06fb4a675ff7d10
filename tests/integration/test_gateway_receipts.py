"""Consuming by receipt: two real gateways before two real brokers; any of them settles what another one gave."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gantry.cli.stack.processes import family, signal_all
from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.client.settings import ClientSettings
from gantry.http import GantryClient
from gantry.model.message import Message
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.gatewayprocess import GatewayProcess
from tests.support.stack import Stack

WAIT_S = 30.0


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=2) as running:
        yield running


@pytest.fixture(scope="module")
def other_gateway(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with GatewayProcess(stack, tmp_path_factory.mktemp("gateway-1")) as gateway, gateway.http() as client:
        yield client


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


def new_topic(http: httpx.Client, *, queues: int = 1, brokers: list[str] | None = None) -> str:
    topic = f"T{uuid.uuid4().hex[:12]}"
    settings = {"read_queues": queues, "write_queues": queues, "brokers": brokers or ["broker-a"]}
    answer = http.put(f"/v1/topics/{topic}", json=settings)
    assert answer.status_code == 201, answer.text
    return topic


def send(http: httpx.Client, topic: str, *bodies: str, **fields: Any) -> None:
    answer = http.post(f"/v1/topics/{topic}/messages:batch", json={"messages": [{"body": b, **fields} for b in bodies]})
    assert answer.json()["stored"] == len(bodies), answer.text


def pull(http: httpx.Client, topic: str, group: str = "G", **wanted: Any) -> list[dict[str, Any]]:
    answer = http.post(f"/v1/groups/{group}/messages:pull", json={"topic": topic, **wanted})
    assert answer.status_code == 200, answer.text
    return answer.json()["messages"]


def pull_all(http: httpx.Client, topic: str, count: int, group: str = "G", **wanted: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        found += pull(http, topic, group, wait="1s", **wanted)
    return found


def settle(http: httpx.Client, verb: str, receipts: list[str], group: str = "G", **more: Any) -> dict[str, Any]:
    answer = http.post(f"/v1/groups/{group}/messages:{verb}", json={"receipts": receipts, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


def outcomes(answer: dict[str, Any]) -> list[str]:
    return [result["outcome"] for result in answer["results"]]


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["body"] for message in messages]


def test_a_receipt_is_good_on_another_gateway_once(http, other_gateway):
    topic = new_topic(http)
    send(http, topic, "a", "b", "c")
    taken = pull_all(http, topic, 3)
    assert sorted(bodies(taken)) == ["a", "b", "c"]
    assert pull(other_gateway, topic) == []
    receipts = [message["receipt"] for message in taken]
    answer = settle(other_gateway, "ack", receipts)
    assert [result["receipt"] for result in answer["results"]] == receipts
    assert outcomes(answer) == ["acked"] * 3
    assert outcomes(settle(http, "ack", receipts)) == ["gone"] * 3
    assert outcomes(settle(http, "nack", receipts)) == ["gone"] * 3
    assert outcomes(settle(http, "extend", receipts)) == ["gone"] * 3


def test_a_pull_over_two_brokers_takes_the_messages_of_both_in_turn(http):
    topic = new_topic(http, brokers=["broker-a", "broker-b"])
    for broker in ("broker-a", "broker-b"):
        send(http, topic, broker, queue={"broker": broker, "id": 0})
    taken = pull_all(http, topic, 2)
    assert sorted(message["broker"] for message in taken) == ["broker-a", "broker-b"]
    assert outcomes(settle(http, "ack", [message["receipt"] for message in taken])) == ["acked", "acked"]


def test_bad_receipts_touch_nothing(http):
    topic = new_topic(http)
    send(http, topic, "mine")
    [message] = pull_all(http, topic, 1, "MINE")
    receipt = message["receipt"]
    changed = receipt[:-1] + ("A" if receipt[-1] != "A" else "B")
    answer = settle(http, "ack", [changed, "nonsense", receipt, receipt], "MINE")
    assert outcomes(answer) == ["refused", "refused", "acked", "gone"]
    assert answer["results"][0]["problem"]["field"] == "/receipts/0"
    send(http, topic, "other")
    [message] = pull_all(http, topic, 1, "MINE")
    for verb in ("ack", "nack", "extend"):
        assert outcomes(settle(http, verb, [message["receipt"]], "YOURS")) == ["refused"]
    assert outcomes(settle(http, "ack", [message["receipt"]], "MINE")) == ["acked"]


def test_a_returned_message_comes_again_and_counts_an_attempt(http, other_gateway):
    topic = new_topic(http)
    send(http, topic, "again")
    [message] = pull_all(http, topic, 1)
    assert message["reconsume_times"] == 0
    assert outcomes(settle(other_gateway, "nack", [message["receipt"]], delay="1s")) == ["nacked"]
    assert outcomes(settle(http, "ack", [message["receipt"]])) == ["gone"]
    [again] = pull_all(http, topic, 1)
    assert (again["body"], again["reconsume_times"], again["topic"]) == ("again", 1, topic)
    assert outcomes(settle(http, "ack", [again["receipt"]])) == ["acked"]


def test_an_extended_message_has_a_new_receipt(http):
    topic = new_topic(http)
    send(http, topic, "long work")
    [message] = pull_all(http, topic, 1)
    answer = settle(http, "extend", [message["receipt"]], invisible="1h")
    assert outcomes(answer) == ["extended"]
    assert outcomes(settle(http, "ack", [message["receipt"]])) == ["gone"]
    assert outcomes(settle(http, "ack", answer["receipts"])) == ["acked"]


def test_a_pull_that_waits_gets_a_message_as_soon_as_it_is_stored(http, stack):
    topic = new_topic(http, brokers=["broker-a", "broker-b"])
    found: list[Any] = []

    def wait() -> None:
        with stack.http(timeout_s=40) as client:
            began = time.monotonic()
            found.extend([pull(client, topic, wait="20s"), time.monotonic() - began])

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(1)
    send(http, topic, "now", queue={"broker": "broker-b", "id": 0})
    waiting.join(WAIT_S)
    assert bodies(found[0]) == ["now"]
    assert found[1] < 5


def test_a_client_that_leaves_while_it_waits_takes_no_message(http, stack):
    topic = new_topic(http)
    with stack.http(timeout_s=0.5) as client, pytest.raises(httpx.ReadTimeout):
        pull(client, topic, wait="30s")
    send(http, topic, "kept")
    assert bodies(pull_all(http, topic, 1)) == ["kept"]


def test_an_attempt_gets_its_messages_again_on_another_gateway(http, other_gateway):
    topic = new_topic(http, brokers=["broker-a", "broker-b"])
    for broker in ("broker-a", "broker-b"):
        send(http, topic, *(f"{broker} {number}" for number in range(5)), queue={"broker": broker, "id": 0})
    first = pull(http, topic, attempt_id="one", max=3)
    assert len(first) == 3
    for gateway_client in (other_gateway, http, other_gateway):
        again = pull(gateway_client, topic, attempt_id="one", max=3)
        assert sorted(bodies(again)) == sorted(bodies(first))
    assert outcomes(settle(http, "ack", [again[0]["receipt"]])) == ["acked"]
    rest = pull(http, topic, attempt_id="one", max=3)
    assert sorted(bodies(rest)) == sorted(bodies(again[1:]))
    others = pull_all(http, topic, 7)
    assert not set(bodies(others)) & set(bodies(first))
    receipts = [message["receipt"] for message in (*rest, *others)]
    assert outcomes(settle(other_gateway, "ack", receipts)) == ["acked"] * 9


def test_in_order_a_queue_waits_for_its_acks(http, other_gateway):
    topic = new_topic(http)
    send(http, topic, *"abcd")
    first = pull(http, topic, "ORDERLY", order="orderly", max=2)
    assert bodies(first) == ["a", "b"]
    assert pull(other_gateway, topic, "ORDERLY", order="orderly", max=2) == []
    assert outcomes(settle(http, "ack", [first[0]["receipt"]], "ORDERLY")) == ["acked"]
    assert pull(http, topic, "ORDERLY", order="orderly", max=2) == []
    assert outcomes(settle(other_gateway, "ack", [first[1]["receipt"]], "ORDERLY")) == ["acked"]
    assert bodies(pull_all(http, topic, 2, "ORDERLY", order="orderly", max=2)) == ["c", "d"]


def test_tags_are_exact(http):
    topic = new_topic(http)
    send(http, topic, "wanted", tag="AA")
    send(http, topic, "hash twin", tag="BB")  # "AaBB" and "BBAa" have one hash; AA and BB do not.
    assert bodies(pull_all(http, topic, 1, filter="AA || UA")) == ["wanted"]
    assert pull(http, topic, filter="AA || UA") == []


def test_an_sql_expression_selects_messages(http):
    topic = new_topic(http)
    send(http, topic, "near", properties={"distance": "100"})
    send(http, topic, "far", properties={"distance": "2000"})
    assert bodies(pull_all(http, topic, 1, filter={"sql": "distance > 1000"})) == ["far"]


def test_rights_are_those_of_group_and_topic(http, stack):
    topic = new_topic(http)
    send(http, topic, "secret")
    rights = {"consume": {"topics": ["T*"], "groups": ["MAY"]}}
    key = http.post("/v1/keys", json={"name": "worker", "rights": rights}).json()["key"]
    [message] = pull_all(http, topic, 1, "MAY")
    with httpx.Client(base_url=str(http.base_url), headers={"Authorization": f"Bearer {key}"}) as worker:
        for verb, body in (("pull", {"topic": topic}), ("ack", {"receipts": [message["receipt"]]})):
            assert worker.post(f"/v1/groups/OTHER/messages:{verb}", json=body).status_code == 403
        assert worker.post("/v1/groups/MAY/messages:pull", json={"topic": "SECRET"}).status_code == 403
        assert outcomes(settle(worker, "ack", [message["receipt"]], "MAY")) == ["acked"]


def test_a_topic_that_does_not_exist_is_404(http):
    answer = http.post("/v1/groups/G/messages:pull", json={"topic": "NOTHING_HERE"})
    assert (answer.status_code, answer.json()["type"].rsplit("/", 1)[-1]) == (404, "unknown-topic")


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"max": 257}, "/max"),
        ({"invisible": "9s"}, "/invisible"),
        ({"invisible": "13h"}, "/invisible"),
        ({"wait": "31s"}, "/wait"),
        ({"order": "some"}, "/order"),
        ({"attempt_id": ""}, "/attempt_id"),
        ({"filter": "||"}, "/filter"),
        ({"filter": {"sql": "a ="}}, "/filter/sql"),
        ({"maximum": 3}, "/maximum"),
    ],
)
def test_values_out_of_range_are_refused_by_name(http, wanted, field):
    answer = http.post("/v1/groups/G/messages:pull", json={"topic": "T", **wanted})
    assert (answer.status_code, answer.json()["field"]) == (400, field)


def test_the_client_library_and_the_command_line_consume(http, stack):
    topic = new_topic(http)
    send(http, topic, *"abc")
    with GantryClient.from_stack(stack.directory) as client:
        [first, *_] = client.pull("LIB", topic, wait_ms=5_000).messages
        assert first.body == b"a"
        assert [result.outcome for result in client.ack("LIB", [first.receipt])] == ["acked"]
    command = [sys.executable, "-m", "gantry.cli", "consume", topic, "--group", "CLI", "--until-empty"]
    consumed = subprocess.run(
        [*command, "--data", str(stack.directory)], capture_output=True, text=True, timeout=60, check=False
    )
    assert consumed.returncode == 0, consumed.stderr
    assert [line[-1] for line in consumed.stdout.splitlines()] == ["a", "b", "c"]
    assert pull(http, topic, "CLI") == []


def test_sql_filters_pulls_of_the_api_and_of_the_command_line(http, stack):
    topic = new_topic(http)
    for weight in ("4", "6", "8", "heavy"):
        send(http, topic, weight, properties={"weight": weight})
    assert bodies(pull_all(http, topic, 2, filter={"sql": "weight > 5"})) == ["6", "8"]
    answer = http.post("/v1/groups/G/messages:pull", json={"topic": topic, "filter": {"sql": "weight LIKE '6'"}})
    assert (answer.status_code, answer.json()["field"]) == (400, "/filter/sql")
    assert "at character 8: LIKE is not supported" in answer.json()["detail"]
    command = [
        sys.executable,
        "-m",
        "gantry.cli",
        "consume",
        topic,
        "--group",
        "SQL",
        "--until-empty",
        "--sql",
        "weight < 7",
    ]
    command += ["--data", str(stack.directory)]
    consumed = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert [line[-1] for line in consumed.stdout.splitlines()] == ["4", "6"], consumed.stderr
    refused = subprocess.run([*command, "--filter", "A"], capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, "--sql is given beside --filter" in refused.stderr) == (1, True)


async def send_zeros(stack: Stack, topic: str, count: int) -> None:
    """Send bodies of 4 MiB, which a producer compresses to a few KiB each."""
    settings = ClientSettings(namesrv=tuple(stack.facts["namesrv"]))
    engine = ClientEngine(settings, clock=SystemClock(), rng=Rng())
    await engine.start()
    try:
        producer = Producer(engine, "zeros")
        for _ in range(count):
            await producer.send(Message(topic, bytes(4 << 20)))
    finally:
        await engine.stop()


def test_a_pull_of_compressed_messages_keeps_few_of_them_in_memory(http, stack, tmp_path):
    topic = new_topic(http)
    asyncio.run(send_zeros(stack, topic, 24))
    with GatewayProcess(stack, tmp_path / "gateway-3") as gateway, gateway.http() as client:
        before_mib = gateway.peak_mib()
        request = {"topic": topic, "max": 24, "wait": "10s"}
        answer = client.post("/v1/groups/G/messages:pull", json=request)
        found = answer.json()["messages"]
        assert {(len(message["body"]), message["encoding"]) for message in found} == {(4 << 20, "text")}
        assert outcomes(settle(client, "ack", [message["receipt"] for message in found])) == ["acked"] * 24
        # As JSON, each of these bodies takes 24 MiB, and all of them 576 MiB.
        assert len(answer.content) > 24 * 6 * (4 << 20)
        assert gateway.peak_mib() - before_mib < 200


def test_large_pulls_that_nobody_reads_are_limited(http, stack):
    topic = new_topic(http)
    asyncio.run(send_zeros(stack, topic, 4))
    host, port = stack.facts["http"].removeprefix("http://").split(":")
    body = json.dumps({"topic": topic, "max": 4, "wait": "10s"})
    with contextlib.ExitStack() as stalled:
        # Each counts as 8 MiB, and a key may leave 32 MiB unread.
        for number in range(5):
            head = f"POST /v1/groups/SLOW-{number}/messages:pull HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
            head += f"Authorization: Bearer {stack.facts['api_key']}\r\nContent-Type: application/json\r\n\r\n"
            connection = stalled.enter_context(socket.create_connection((host, int(port))))
            connection.sendall((head + body).encode())
            status = connection.recv(12)
        assert status == b"HTTP/1.1 429"
    # Their connections are closed, so there is room again.
    deadline = time.monotonic() + WAIT_S
    while (answer := http.post("/v1/groups/QUICK/messages:pull", json={"topic": topic, "max": 4})).status_code == 429:
        assert time.monotonic() < deadline
    assert len(answer.json()["messages"]) == 4


def test_consuming_goes_on_without_postgres(http, stack, tmp_path):
    topic = new_topic(http)
    send(http, topic, *"ab")
    with GatewayProcess(stack, tmp_path / "gateway-2") as gateway, gateway.http() as client:
        assert bodies(pull_all(client, topic, 1, max=1)) == ["a"]
        gateway.kill()
        # The next run knows no database at all. It has its copies of the keys.
        gateway.start(with_database=False)
        [message] = pull_all(client, topic, 1, max=1)
        assert outcomes(settle(client, "ack", [message["receipt"]])) == ["acked"]
    assert outcomes(settle(http, "ack", [message["receipt"]])) == ["gone"]


def test_receipts_and_attempts_survive_a_crash_of_everything(stack):
    with stack.http() as http:
        topic = new_topic(http, brokers=["broker-a", "broker-b"])
        for broker in ("broker-a", "broker-b"):
            send(http, topic, broker, queue={"broker": broker, "id": 0})
        taken = pull_all(http, topic, 1, "CRASH", invisible="1h", attempt_id="before")
    signal_all(family(stack.pid), signal.SIGKILL)
    stack.kill()
    stack.start()
    with stack.http() as http:
        again = pull_all(http, topic, 1, "CRASH", invisible="1h", attempt_id="before")
        assert bodies(again) == bodies(taken)
        assert outcomes(settle(http, "ack", [taken[0]["receipt"]], "CRASH")) == ["acked"]
        assert bodies(pull_all(http, topic, 1, "CRASH")) != bodies(taken)
