"""Transactions over HTTP against real gateways, a real broker and Postgres."""

import asyncio
import hashlib
import hmac
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.typing import Subprotocol

from gantry.cli.stack.processes import family, signal_all
from gantry.client.engine import ClientEngine
from gantry.client.settings import ClientSettings
from gantry.client.transactionchecks import Decision
from gantry.client.transactions import TransactionProducer
from gantry.model.message import Message, StoredMessage
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from tests.support.stack import Stack, environment

TOPIC = "/v1/topics/ORDERS"
GROUP = "ORDERS_TX"
SECRET = "0123456789abcdef"
WAIT_S = 60.0
SETTINGS = {
    # An open transaction expires after about ten seconds.
    "GANTRY_BROKER_TRANSACTION_TIME_OUT": "1000",
    "GANTRY_BROKER_TRANSACTION_CHECK_INTERVAL": "500",
    "GANTRY_GATEWAY_TRANSACTION_MIRROR_INTERVAL_MS": "200",
    "GANTRY_GATEWAY_WEBHOOK_PRIVATE_NETWORKS": "127.0.0.0/8",
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=1, environment=SETTINGS) as running:
        with running.http() as http:
            assert http.put(TOPIC, json={"read_queues": 1, "write_queues": 1}).status_code == 201
        yield running


@pytest.fixture
def http(stack: Stack) -> Iterator[httpx.Client]:
    with stack.http() as client:
        yield client


@pytest.mark.parametrize("verb", ["commit", "rollback", "check"])
def test_a_field_that_a_decision_does_not_have_is_refused_and_nothing_is_decided(http: httpx.Client, verb: str) -> None:
    path = f"/v1/transactions/{begin(http, verb, group='FIELDS_TX')['transaction']}"
    answer = http.post(f"{path}:{verb}", json={"reason": "paid"})
    assert (answer.status_code, answer.json()["field"]) == (400, "/reason")
    answer = http.post(f"{path}:{verb}", content=b"paid", headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()["field"]) == (415, "Content-Type")
    assert http.get(path).json()["state"] == "open"
    assert http.post(f"{path}:rollback", json={}).json()["state"] == "rolled_back"


def begin(http: httpx.Client, body: str, **fields: Any) -> dict[str, Any]:
    """Begin a transaction that the broker does not check during a test, unless `check_immunity` says otherwise."""
    values = {"body": body, "group": GROUP, "check_immunity": "1h", **fields}
    answer = http.post(f"{TOPIC}/transactions", json={name: value for name, value in values.items() if value})
    assert answer.status_code == 201, answer.text
    return answer.json()


def decide(http: httpx.Client, transaction: dict[str, Any], verb: str) -> httpx.Response:
    return http.post(f"/v1/transactions/{transaction['transaction']}:{verb}")


def show(http: httpx.Client, transaction: dict[str, Any]) -> dict[str, Any]:
    answer = http.get(f"/v1/transactions/{transaction['transaction']}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def bodies(http: httpx.Client) -> list[str]:
    found = http.get(f"{TOPIC}/queues/broker-a/0/messages", params={"offset": "0", "limit": 1000}).json()["messages"]
    return [message["body"] for message in found]


def halves(http: httpx.Client) -> list[str]:
    """Return the ids of all transactions that are listed."""
    return [item["transaction"] for item in http.get("/v1/transactions", params={"limit": 1000}).json()["items"]]


def wait_until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.05)


@contextmanager
def another_gateway(stack: Stack, directory: Path) -> Iterator[tuple[httpx.Client, subprocess.Popen[bytes]]]:
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "services.gateway", "--listen", "127.0.0.1:0", "--name", "gateway-1"]
    command += ["--namesrv", ";".join(stack.facts["namesrv"]), "--data", str(directory), "--ready-file", str(ready)]
    variables = environment({**SETTINGS, "GANTRY_DATABASE_URL": stack.facts["postgres"]})
    process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL)
    try:
        wait_until(ready.exists, "the gateway is ready")
        headers = {"Authorization": f"Bearer {stack.facts['api_key']}"}
        url = json.loads(ready.read_bytes())["url"]
        with httpx.Client(base_url=url, headers=headers, timeout=30, trust_env=False) as client:
            wait_until(lambda: client.get("/v1/transactions").status_code == 200, "the key is known")
            yield client, process
    finally:
        process.kill()
        process.wait(20)


def test_a_message_is_delivered_after_its_commit(http):
    begun = begin(http, "paid", keys=["k1"], properties={"origin": "EWR"}, tag="AA")
    assert (begun["state"], begun["outcome"], begun["message_id"]) == ("open", "stored", begun["transaction"])
    assert begun["broker"] == "broker-a"
    assert begun["next_check_at"] is not None
    assert "paid" not in bodies(http)
    open_one = show(http, begun)
    assert (open_one["state"], open_one["origin"], open_one["decided_at"]) == ("open", "http", None)
    answer = decide(http, begun, "commit")
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"transaction": begun["transaction"], "state": "committed", "delivered": True}
    assert bodies(http).count("paid") == 1
    found = http.get(f"/v1/messages/{begun['message_id']}", params={"topic": "ORDERS"}).json()
    assert (found["tag"], found["keys"], found["properties"]) == ("AA", ["k1"], {"origin": "EWR"})
    ended = show(http, begun)
    assert ended["decided_at"]
    assert ended["delivered_at"]


def test_a_transaction_counts_as_a_message_of_its_key(stack, http):
    limited = {"name": "slow", "rights": {"publish": ["*"]}, "limits": {"bytes_per_s": 1}}
    key = http.post("/v1/keys", json=limited).json()["key"]
    headers = {"Authorization": f"Bearer {key}"}
    message = {"body": "counted", "group": GROUP, "check_immunity": "1h"}
    first, second = (http.post(f"{TOPIC}/transactions", json=message, headers=headers) for _ in range(2))
    assert (first.status_code, second.status_code, second.json()["outcome"]) == (201, 429, "not_stored")


def test_a_rolled_back_message_is_never_delivered(http):
    begun = begin(http, "rolled back")
    answer = decide(http, begun, "rollback")
    assert answer.json() == {"transaction": begun["transaction"], "state": "rolled_back", "delivered": True}
    again = decide(http, begun, "rollback")
    assert (again.status_code, again.json()) == (200, answer.json())
    assert "rolled back" not in bodies(http)


def test_a_decision_is_made_once(http):
    begun = begin(http, "once")
    for _ in range(3):
        answer = decide(http, begun, "commit")
        assert (answer.status_code, answer.json()["state"]) == (200, "committed")
    refused = decide(http, begun, "rollback")
    problem = refused.json()
    assert (refused.status_code, problem["type"].rsplit("/", 1)[1]) == (409, "already-decided")
    assert (problem["state"], problem["field"]) == ("committed", "transaction")
    assert bodies(http).count("once") == 1
    trail = http.get("/v1/audit", params={"kind": "transaction", "name": begun["transaction"]}).json()["items"]
    assert [(entry["action"], entry["after"]["state"]) for entry in trail] == [("transaction.commit", "committed")]


@pytest.mark.parametrize("verb", ["commit", "rollback"])
def test_a_decision_on_an_unknown_transaction_is_404(http, verb):
    refused = decide(http, {"transaction": "0" * 32}, verb)
    assert (refused.status_code, refused.json()["type"].rsplit("/", 1)[1]) == (404, "unknown-transaction")


@pytest.mark.parametrize(
    ("topic", "fields", "status", "field"),
    [
        ("ORDERS", {"group": "no group"}, 400, "/group"),
        ("ORDERS", {"group": ""}, 400, "/group"),
        ("ORDERS", {"group": "CID_RMQ_SYS_TRANS"}, 400, "/group"),
        ("ORDERS", {"check_immunity": "soon"}, 400, "/check_immunity"),
        ("ORDERS", {"check_immunity": "2d"}, 400, "/check_immunity"),
        ("ORDERS", {"check_immunity": "10ms"}, 400, "/check_immunity"),
        ("ORDERS", {"one_way": True}, 400, "/one_way"),
        ("ORDERS", {"keys": ["a b"]}, 400, "/keys/0"),
        ("ORDERS", {"properties": {"TRAN_MSG": "true"}}, 400, "/properties/TRAN_MSG"),
        ("ORDERS", {"idempotency_key": "k"}, 400, "/idempotency_key"),
        ("ORDERS", {"unknown": 1}, 400, "/unknown"),
        ("NO_SUCH_TOPIC", {}, 404, "topic"),
        ("RMQ_SYS_TRANS_HALF_TOPIC", {}, 403, "topic"),
    ],
)
def test_what_can_not_be_begun_is_refused_by_name_and_not_stored(http, topic, fields, status, field):
    before = halves(http)
    answer = http.post(f"/v1/topics/{topic}/transactions", json={"body": "b", "group": GROUP, **fields})
    problem = answer.json()
    assert (answer.status_code, problem["outcome"], problem.get("field")) == (status, "not_stored", field), problem
    assert halves(http) == before


def test_a_plain_send_can_not_pose_as_a_transaction(http):
    refused = http.post(f"{TOPIC}/messages", json={"body": "b", "properties": {"TRAN_MSG": "true"}})
    assert (refused.status_code, refused.json()["field"]) == (400, "/properties/TRAN_MSG")


def test_a_begin_that_is_repeated_stays_one_transaction(http):
    headers = {"Idempotency-Key": "order-17"}
    message = {"body": "seventeen", "group": GROUP, "check_immunity": "1h"}
    first, second = (http.post(f"{TOPIC}/transactions", json=message, headers=headers).json() for _ in range(2))
    assert first["transaction"] == second["transaction"]
    assert decide(http, first, "commit").json()["delivered"]
    assert http.post(f"{TOPIC}/transactions", json=message, headers=headers).json()["state"] == "committed"
    assert bodies(http).count("seventeen") == 1
    other = http.post(f"{TOPIC}/transactions", json={**message, "group": "OTHER"}, headers=headers)
    assert (other.status_code, other.json()["outcome"]) == (409, "not_stored")


def test_a_delayed_message_is_delivered_after_commit_and_delay(http):
    begun = begin(http, "later", delay="1s")
    assert decide(http, begun, "commit").json()["delivered"]
    wait_until(lambda: "later" in bodies(http), "the delayed message is there")


def test_the_list_is_filtered_and_paged(http):
    mine = [begin(http, f"listed {index}", group="LISTED")["transaction"] for index in range(5)]
    found: list[str] = []
    cursor = None
    while True:
        params = {"group": "LISTED", "state": "open", "limit": 2, **({} if cursor is None else {"cursor": cursor})}
        page = http.get("/v1/transactions", params=params).json()
        found += [item["transaction"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == mine[::-1]
    refused = http.get("/v1/transactions", params={"state": "half"})
    assert (refused.status_code, refused.json()["field"]) == (400, "state")
    assert http.get("/v1/transactions", params={"cursor": "x"}).json()["field"] == "cursor"


def test_rights(stack, http):
    begun = begin(http, "rights")

    def client(rights: dict[str, Any]) -> httpx.Client:
        secret = http.post("/v1/keys", json={"name": "tx", "rights": rights}).json()["key"]
        headers = {"Authorization": f"Bearer {secret}"}
        return httpx.Client(base_url=stack.facts["http"], headers=headers, timeout=30, trust_env=False)

    with client({"publish": ["ELSEWHERE"]}) as stranger:
        assert stranger.post(f"{TOPIC}/transactions", json={"body": "b", "group": GROUP}).status_code == 403
        assert decide(stranger, begun, "commit").status_code == 404
        assert stranger.get(f"/v1/transactions/{begun['transaction']}").status_code == 404
        assert stranger.get("/v1/transactions", params={"topic": "ORDERS"}).status_code == 403
        assert stranger.get("/v1/transactions").status_code == 403
    with client({"publish": ["ORDERS"]}) as producer:
        listed = producer.get("/v1/transactions", params={"topic": "ORDERS", "limit": 1000}).json()["items"]
        assert begun["transaction"] in [item["transaction"] for item in listed]
        assert decide(producer, begun, "commit").json()["state"] == "committed"


def test_a_transaction_that_nobody_decides_expires(http):
    begun = begin(http, "forgotten", check_immunity=None)
    # The broker decides when it checks. The answer has this time only if the gateway has read it from the broker already.
    assert begun["next_check_at"] is None or begun["next_check_at"] > begun["created_at"]
    wait_until(lambda: show(http, begun)["checks"] > 0, "it is checked")
    wait_until(lambda: show(http, begun)["state"] == "expired", "it expires")
    refused = decide(http, begun, "commit")
    assert (refused.status_code, refused.json()["state"]) == (409, "expired")
    assert "forgotten" not in bodies(http)


def test_another_gateway_delivers_when_a_gateway_dies_between_decision_and_delivery(stack, http, tmp_path):
    broker = stack.pid_of("broker-a")
    with another_gateway(stack, tmp_path) as (other, process):
        begun = begin(other, "inherited")
        signal_all(family(broker), signal.SIGSTOP)
        try:
            caller = threading.Thread(target=lambda: _ignore(lambda: decide(other, begun, "commit")))
            caller.start()
            wait_until(lambda: show(http, begun)["state"] == "committed", "the decision is durable")
            process.kill()
            caller.join(30)
            assert show(http, begun)["delivered_at"] is None
        finally:
            signal_all(family(broker), signal.SIGCONT)
    wait_until(lambda: show(http, begun)["delivered_at"] is not None, "another gateway has delivered")
    assert bodies(http).count("inherited") == 1


def test_a_decision_is_kept_while_the_broker_is_away(stack, http):
    begun, other = begin(http, "kept"), begin(http, "kept back")
    killed = stack.pid_of("broker-a")
    signal_all(family(killed), signal.SIGKILL)
    answer = decide(http, begun, "commit")
    assert (answer.status_code, answer.json()["state"]) == (200, "committed"), answer.text
    assert decide(http, other, "rollback").json()["state"] == "rolled_back"
    for one in (begun, other):
        wait_until(lambda one=one: show(http, one)["delivered_at"] is not None, "the broker is back and has it")
    assert decide(http, begun, "commit").json()["delivered"] is True
    assert "kept" in bodies(http)
    assert "kept back" not in bodies(http)


@asynccontextmanager
async def remoting_producer(stack: Stack) -> AsyncIterator[TransactionProducer]:
    """A producer of group JAVA_TX that answers no check."""

    async def unsure(half: StoredMessage) -> Decision:
        return Decision.UNKNOWN

    engine = ClientEngine(ClientSettings(namesrv=tuple(stack.facts["namesrv"])), clock=SystemClock(), rng=Rng())
    await engine.start()
    producer = TransactionProducer(engine, "JAVA_TX", unsure)
    await producer.start()
    try:
        yield producer
    finally:
        await producer.close()
        await engine.stop()


async def test_transactions_of_remoting_clients_are_listed_and_decided(stack, http):
    def are_open() -> bool:
        params = {"group": "JAVA_TX", "state": "open"}
        return len(http.get("/v1/transactions", params=params).json()["items"]) == 3

    async with remoting_producer(stack) as producer:
        sent = {}
        for body in ("by http", "by client", "back by http"):
            message = Message("ORDERS", body.encode(), {"CHECK_IMMUNITY_TIME_IN_SECONDS": "3600"})
            sent[body] = await producer.send_half(message)
        ones = {body: {"transaction": half.message_id} for body, half in sent.items()}
        await asyncio.to_thread(wait_until, are_open, "they are listed")
        row = show(http, ones["by http"])
        assert (row["origin"], row["topic"], row["broker"]) == ("remoting", "ORDERS", "broker-a")
        answer = await asyncio.to_thread(decide, http, ones["by http"], "commit")
        assert answer.json()["delivered"] is True, answer.text
        answer = await asyncio.to_thread(decide, http, ones["back by http"], "rollback")
        assert answer.json()["state"] == "rolled_back", answer.text
        await producer.decide(sent["by client"], Decision.COMMIT)
        await asyncio.to_thread(
            wait_until, lambda: show(http, ones["by client"])["state"] == "committed", "the row follows"
        )
        late = await asyncio.to_thread(decide, http, ones["by client"], "rollback")
        assert (late.status_code, late.json()["state"]) == (409, "committed")
    assert {"by http", "by client"} <= set(bodies(http))
    assert "back by http" not in bodies(http)


def test_the_command_line(stack, http):
    def run(*words: str) -> Any:
        command = [sys.executable, "-m", "gantry.cli", "transaction", *words, "--data", str(stack.directory), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else done.returncode

    begun = run("send", "ORDERS", "typed", "--group", "TYPED", "--keys", "a,b", "--check-immunity", "1h")
    transaction = begun["transaction"]
    assert [item["transaction"] for item in run("list", "--group", "TYPED", "--state", "open")] == [transaction]
    assert run("commit", transaction)["delivered"] is True
    assert run("show", transaction)["state"] == "committed"
    assert run("rollback", transaction) == 1
    assert "typed" in bodies(http)


def test_without_postgres_nothing_is_begun_or_decided(stack, http):
    begun = begin(http, "waiting")
    postgres = stack.pid_of("postgres")
    signal_all(family(postgres), signal.SIGSTOP)
    try:
        answer = http.post(f"{TOPIC}/transactions", json={"body": "nowhere", "group": GROUP})
        assert (answer.status_code, answer.json()["outcome"]) == (503, "not_stored"), answer.text
        answer = decide(http, begun, "commit")
        assert (answer.status_code, answer.json()["type"].rsplit("/", 1)[1]) == (503, "metadata-unavailable")
    finally:
        signal_all(family(postgres), signal.SIGCONT)
    wait_until(lambda: http.get(f"/v1/transactions/{begun['transaction']}").status_code == 200, "Postgres is back")
    assert show(http, begun)["state"] == "open"
    assert "waiting" not in bodies(http)
    assert decide(http, begun, "rollback").json()["state"] == "rolled_back"


def _ignore(call: Any) -> None:
    with suppress(httpx.HTTPError):  # The gateway is killed meanwhile.
        call()


async def test_a_stream_of_the_group_decides_what_the_broker_asks_about(stack: Stack, http: httpx.Client) -> None:
    url = stack.facts["http"].replace("http", "ws", 1) + "/v1/stream"
    headers = {"Authorization": f"Bearer {stack.facts['api_key']}"}
    async with connect(url, additional_headers=headers, subprotocols=[Subprotocol("gantry.v1.json")]) as socket:
        assert json.loads(await socket.recv())["type"] == "welcome"
        await socket.send(json.dumps({"type": "hello", "producer_groups": ["STREAMED"]}))
        wanted = {}
        for decision, state in (("commit", "committed"), ("rollback", "rolled_back")):
            begun = begin(http, decision, group="STREAMED", check_immunity=None)
            wanted[begun["transaction"]] = (decision, state)
        async with asyncio.timeout(WAIT_S):
            for _ in wanted:
                check = json.loads(await socket.recv())
                assert (check["type"], check["group"], check["message"]["topic"]) == ("check", "STREAMED", "ORDERS")
                decision, _ = wanted[check["transaction"]]
                assert check["message"]["body"] == decision
                answer = {"type": "check_result", "transaction": check["transaction"], "decision": decision}
                await socket.send(json.dumps(answer))
        for transaction, (_, state) in wanted.items():
            await asyncio.to_thread(
                wait_until,
                lambda each=(transaction, state): show(http, {"transaction": each[0]})["state"] == each[1],
                state,
            )


async def test_a_person_can_have_the_producers_asked_now(stack: Stack, http: httpx.Client) -> None:
    # The broker does not ask for an hour.
    begun = [begin(http, body, group="ASKED_NOW") for body in ("commit", "unknown")]

    async def check(transaction: dict[str, Any]) -> dict[str, Any]:
        answer = await asyncio.to_thread(http.post, f"/v1/transactions/{transaction['transaction']}:check", timeout=60)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    unasked = await check(begun[0])
    assert (unasked["decision"], unasked["asked"]) == ("unknown", False), "there is nobody to ask"
    url = stack.facts["http"].replace("http", "ws", 1) + "/v1/stream"
    headers = {"Authorization": f"Bearer {stack.facts['api_key']}"}
    async with connect(url, additional_headers=headers, subprotocols=[Subprotocol("gantry.v1.json")]) as socket:
        await socket.recv()
        await socket.send(json.dumps({"type": "hello", "producer_groups": ["ASKED_NOW"]}))
        for transaction, decision, state in zip(begun, ("commit", "unknown"), ("committed", "open"), strict=True):
            asking = asyncio.ensure_future(check(transaction))
            async with asyncio.timeout(WAIT_S):
                asked = json.loads(await socket.recv())
                assert (asked["type"], asked["message"]["topic"], asked["message"]["body"]) == (
                    "check", "ORDERS", decision,
                )  # fmt: skip
                answer = {"type": "check_result", "transaction": transaction["transaction"], "decision": decision}
                await socket.send(json.dumps(answer))
                found = await asking
            assert (found["state"], found["decision"], found["asked"]) == (state, decision, True)
    again = await check(begun[0])
    assert (again["decision"], again["asked"]) == ("commit", False)
    unknown = await asyncio.to_thread(http.post, "/v1/transactions/none:check")
    assert unknown.status_code == 404


class CheckHandler(BaseHTTPRequestHandler):
    """Decides what the body of the message says."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        seconds, _, mac = self.headers["gantry-signature"].removeprefix("t=").partition(",v1=")
        expected = hmac.new(SECRET.encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
        answer = json.dumps({"decision": json.loads(body)["message"]["body"] if mac == expected else "unknown"})
        self.send_response(200)
        self.end_headers()
        self.wfile.write(answer.encode())

    def log_message(self, *arguments: Any) -> None:
        """Print nothing."""


def test_the_url_of_the_group_decides_what_the_broker_asks_about(http: httpx.Client) -> None:
    path = "/v1/producer-groups/CALLED"
    assert http.get(path).json() == {"group": "CALLED", "check_url": None, "has_secret": False, "updated_at": None}
    with ThreadingHTTPServer(("127.0.0.1", 0), CheckHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/check"
        refused = http.put(path, json={"check_url": url})
        assert (refused.status_code, refused.json()["field"]) == (400, "/check_secret")
        assert refused.json()["detail"] == "/check_secret: is required for a new check_url"
        made = http.put(path, json={"check_url": url, "check_secret": SECRET})
        assert (made.status_code, made.json()["check_url"], made.json()["has_secret"]) == (201, url, True)
        assert SECRET not in made.text
        assert http.put(path, json={"check_url": url}).status_code == 200, "the secret stays"
        for decision, state in (("commit", "committed"), ("rollback", "rolled_back")):
            begun = begin(http, decision, group="CALLED", check_immunity=None)
            wait_until(lambda each=(begun, state): show(http, each[0])["state"] == each[1], state)
        server.shutdown()
    assert http.put(path, json={"check_url": None}).json()["check_url"] is None
    assert http.get(path).json()["has_secret"] is False


def test_a_commit_to_a_deleted_topic_is_accepted_and_delivered_when_the_topic_is_there_again(stack, http):
    path = "/v1/topics/REMADE"
    assert http.put(path, json={"read_queues": 1, "write_queues": 1}).status_code == 201
    begun = http.post(f"{path}/transactions", json={"body": "kept", "group": GROUP, "check_immunity": "1h"}).json()
    assert http.delete(path, headers={"If-Match": http.get(path).headers["etag"]}).status_code == 204
    done = decide(http, begun, "commit")
    assert (done.status_code, done.json()["state"], done.json()["delivered"]) == (200, "committed", False)
    wait_until(lambda: "REMADE" in (show(http, begun)["error"] or ""), "the reason is known")
    assert http.put(path, json={"read_queues": 1, "write_queues": 1}).status_code == 201
    wait_until(lambda: show(http, begun)["delivered_at"] is not None, "the message is delivered")
    found = http.get(f"{path}/queues/broker-a/0/messages", params={"offset": "0"}).json()["messages"]
    assert [message["body"] for message in found] == ["kept"]
