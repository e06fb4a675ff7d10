"""Webhooks on a real Postgres and real connections: retried, taken over, never lost, never sent to a wrong address."""

import asyncio
import json
import signal
import ssl
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from gantry.model.errors import InvalidValueError
from gantry.runtime.clock import SystemClock
from services.gateway.db.engine import Database
from services.gateway.db.repositories import Actor, AuditRepository
from services.gateway.db.webhooks import ClaimedDelivery, Delivery, DeliveryRepository
from services.gateway.errors import ProblemError
from services.gateway.schemas.webhooks import NewWebhook, WebhookChange, make_secret
from services.gateway.usecases.alerts import sender
from services.gateway.usecases.alerts import webhooks as usecase
from services.gateway.usecases.alerts.delivery import SendPolicy, WebhookClient
from services.gateway.usecases.alerts.listing import Alerts
from services.gateway.usecases.alerts.webhooks import Webhooks
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.outbound.addresses import Resolver
from services.gateway.views.alerts import event_view
from services.gateway.views.webhooks import delivery_body, delivery_view, new_webhook_view, webhook_view
from spark.postgres import Connection
from tests.support.postgres import PostgresServer
from tests.support.reports import report_tables
from tests.support.webhooks import LOOPBACK, Received, Receiver, make_sender

ROOT = Path(__file__).parents[2]
ALICE = Actor("k-alice", "req-1")
QUICK = {"pause_ms": 20, "pause_ms_max": 40, "lease_ms": 60_000, "timeout_ms": 5_000}


@pytest.fixture
def connection(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sender, "POLL_S", 0.02)
    with report_tables(postgres) as connected:
        yield connected


@pytest.fixture
async def pooled(postgres: PostgresServer, connection: Connection) -> AsyncIterator[Database]:
    database = Database.open(postgres.url, clock=SystemClock())
    yield database
    await database.close()


@pytest.fixture
def webhooks(pooled: Database) -> Webhooks:
    return Webhooks(Metadata(pooled), clock=SystemClock(), networks=LOOPBACK, render=delivery_body)


@asynccontextmanager
async def sending(database: Database, *, senders: int = 1, **policy: int) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(make_sender(database, **(QUICK | policy)).run()) for _ in range(senders)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def event(connection: Connection, group: str, verdict: str = "LAGGING", old: str | None = None) -> None:
    kind = "opened" if old is None else "resolved" if verdict == "OK" else "changed"
    connection.execute(
        "INSERT INTO alert_events (at, alert_id, kind, group_name, topic, old_verdict, new_verdict, since, lag_messages,"
        " run_id) VALUES (now(), %s, %s, %s, 'T', %s, %s, now(), 7, %s)",
        (uuid4(), kind, group, old, verdict, uuid4()),
    )


async def until_ended(webhooks: Webhooks, webhook: UUID, count: int = 1) -> list[Delivery]:
    async with asyncio.timeout(20):
        while True:
            found = await webhooks.deliveries(str(webhook), status=None, cursor=None, limit=1_000)
            ended = [item for item in found.items if item.status != "pending"]
            if len(ended) >= count:
                return ended
            await asyncio.sleep(0.02)


def documented_check() -> Any:
    """Return the check of signatures that the documentation gives to receivers."""
    page = (ROOT / "docs" / "alerts.md").read_text()
    names: dict[str, Any] = {}
    exec(textwrap.dedent(page.partition("```python\n")[2].partition("```")[0]), names)
    return names["check"]


def check_signature(secret: str, request: Received) -> None:
    """Check a signature as a receiver does."""
    check, sent_s = documented_check(), int(request.headers["webhook-timestamp"])
    assert check(secret, request.headers, request.body, sent_s + 299)
    assert not check(secret, request.headers, request.body, sent_s + 301)
    assert not check(secret, request.headers, request.body + b" ", sent_s)
    assert not check(make_secret(), request.headers, request.body, sent_s)
    rotated = {**request.headers, "webhook-signature": f"v1,AAAA {request.headers['webhook-signature']}"}
    assert check(secret, rotated, request.body, sent_s)


async def test_a_failed_delivery_is_retried_with_the_same_id(pooled, webhooks, connection):
    async def hangs(request: Received) -> int:
        await asyncio.sleep(0.4)
        return 204

    async with Receiver([500, 302, hangs]) as receiver, sending(pooled, timeout_ms=200):
        made = await webhooks.create(NewWebhook(url=receiver.url), ALICE)
        event(connection, "PRICING")
        [ended] = await until_ended(webhooks, made.id)
    assert (ended.status, ended.attempts, ended.last_status, ended.last_error) == (
        "delivered",
        4,
        204,
        None,
    )
    assert ended.finished_at is not None
    assert {request.id for request in receiver.received} == {str(ended.id)}
    assert len(receiver.received) == 4
    for request in receiver.received:
        check_signature(made.secret, request)
    told = json.loads(receiver.received[0].body)
    assert told["type"] == "alert.opened"
    page = await Alerts(Metadata(pooled)).events_page(group="PRICING", topic="T", cursor=None, limit=10)
    listed = [event_view(event) for event in page.items]
    assert [told["data"]] == listed
    assert (str(ended.event_id), told["timestamp"]) == (listed[0]["id"], listed[0]["at"])


async def test_each_event_goes_once_to_the_webhooks_that_select_it(pooled, webhooks, connection):
    async def make(**fields: Any) -> str:
        return str((await webhooks.create(NewWebhook(url="http://127.0.0.1:1/", **fields), ALICE)).id)

    names = {
        await make(): "all",
        await make(groups=("PRIC*", "X")): "group",
        await make(verdicts=("STALLED",)): "verdict",
        await make(enabled=False): "off",
    }
    event(connection, "PRICING")
    event(connection, "PRICING", "STALLED", old="LAGGING")
    event(connection, "OTHER", "OK", old="STALLED")
    sender = make_sender(pooled)
    assert await sender.create_deliveries() == 3
    assert await sender.create_deliveries() == 0
    rows = connection.execute(
        "SELECT webhook_id::text, group_name, kind FROM webhook_deliveries JOIN alert_events ON event_id = alert_events.id"
    ).fetchall()
    assert sorted((names[webhook], group, kind) for webhook, group, kind in rows) == [
        ("all", "OTHER", "resolved"),
        ("all", "PRICING", "changed"),
        ("all", "PRICING", "opened"),
        ("group", "PRICING", "changed"),
        ("group", "PRICING", "opened"),
        # The verdict before the change counts, so that the end of the alert is delivered.
        ("verdict", "OTHER", "resolved"),
        ("verdict", "PRICING", "changed"),
    ]


async def test_two_senders_deliver_every_event_once(pooled, webhooks, connection):
    async with Receiver() as receiver:
        made = await webhooks.create(NewWebhook(url=receiver.url), ALICE)
        for number in range(40):
            event(connection, f"G{number}")
        async with sending(pooled, senders=2):
            ended = await until_ended(webhooks, made.id, 40)
    assert {item.status for item in ended} == {"delivered"}
    assert {item.attempts for item in ended} == {1}
    assert len({request.id for request in receiver.received}) == len(receiver.received) == 40


def start_sender(url: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "tests.support.webhooks", url, "1500"])


async def test_another_sender_takes_over_from_one_killed_before_it_wrote_the_result(
    pooled, webhooks, connection, postgres
):
    killed = asyncio.Event()

    async def kills(request: Received) -> int:
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        killed.set()
        return 204

    async with Receiver([kills]) as receiver:
        made = await webhooks.create(NewWebhook(url=receiver.url), ALICE)
        event(connection, "PRICING")
        process = await asyncio.to_thread(start_sender, postgres.url)
        try:
            async with asyncio.timeout(30):
                await killed.wait()
            [[status, attempts]] = connection.execute("SELECT status, attempts FROM webhook_deliveries").fetchall()
            assert (status, attempts) == ("pending", 1)
            async with sending(pooled):
                [ended] = await until_ended(webhooks, made.id)
        finally:
            process.kill()
            process.wait()
    assert (ended.status, ended.attempts) == ("delivered", 2)
    assert [request.id for request in receiver.received] == [str(ended.id)] * 2
    for request in receiver.received:
        check_signature(made.secret, request)


async def test_a_sender_whose_lease_has_expired_writes_no_result(pooled, webhooks, connection):
    """The sender that took the delivery over writes its result."""
    made = await webhooks.create(NewWebhook(url="http://127.0.0.1:1/"), ALICE)
    await webhooks.test(str(made.id))
    day, none = timedelta(days=1), timedelta(0)

    async def claim(lease: timedelta) -> list[ClaimedDelivery]:
        async with pooled.transaction() as session:
            return await DeliveryRepository(session).claim(busy=[], each=4, rows=4, lease=lease, give_up=day)

    [first] = await claim(none)
    [second] = await claim(day)
    assert await claim(day) == []
    assert (first.id, first.attempts, second.attempts) == (second.id, 1, 2)
    async with pooled.transaction() as session:
        await DeliveryRepository(session).failed(first, 500, "late", pause=none, give_up=day)
        await DeliveryRepository(session).delivered(first, 204)
    assert await claim(day) == []
    async with pooled.transaction() as session:
        await DeliveryRepository(session).delivered(second, 200)
        await DeliveryRepository(session).failed(first, 500, "late", pause=none, give_up=day)
        await DeliveryRepository(session).failed(second, 500, "twice", pause=none, give_up=day)
    [ended] = await until_ended(webhooks, made.id)
    assert (ended.status, ended.last_status, ended.last_error) == ("delivered", 200, None)


async def test_a_delivery_expires_and_keeps_its_last_error(pooled, webhooks, connection):
    async with Receiver([503] * 1_000) as receiver, sending(pooled, give_up_ms=300):
        made = await webhooks.create(NewWebhook(url=receiver.url), ALICE)
        event(connection, "PRICING")
        [ended] = await until_ended(webhooks, made.id)
    assert (ended.status, ended.last_status, ended.last_error) == ("failed", 503, "the webhook answered 503")
    assert ended.attempts == len(receiver.received) > 1
    assert delivery_view(ended)["next_attempt_at"] is None


async def test_a_disabled_webhook_gets_nothing_and_its_deliveries_expire(pooled, webhooks, connection):
    async with Receiver() as receiver, sending(pooled):
        made = await webhooks.create(NewWebhook(url=receiver.url), ALICE)
        await webhooks.change(str(made.id), WebhookChange(enabled=False), ALICE)
        with pytest.raises(ProblemError, match="is not enabled"):
            await webhooks.test(str(made.id))
        connection.execute(
            "INSERT INTO webhook_deliveries (webhook_id, body, created_at) VALUES (%s, '{}', now() - interval '2 days')",
            (made.id,),
        )
        [ended] = await until_ended(webhooks, made.id)
    assert (ended.status, ended.attempts, receiver.received) == ("failed", 0, [])
    assert "was not enabled" in ended.last_error


async def test_a_silent_receiver_does_not_delay_others(pooled, webhooks, connection):
    released = asyncio.Event()

    async def hangs(request: Received) -> int:
        await released.wait()
        return 204

    async with Receiver([hangs] * 4) as slow, Receiver() as quick, sending(pooled):
        stuck = await webhooks.create(NewWebhook(url=slow.url, groups=("SLOW",)), ALICE)
        made = await webhooks.create(NewWebhook(url=quick.url, groups=("QUICK",)), ALICE)
        for _ in range(6):
            event(connection, "SLOW")
        await slow.until(4)
        for _ in range(10):
            event(connection, "QUICK")
        await until_ended(webhooks, made.id, 10)
        assert len(slow.received) == 4
        released.set()
        await until_ended(webhooks, stuck.id, 6)


async def test_many_silent_receivers_do_not_delay_others(pooled, webhooks, connection, monkeypatch):
    monkeypatch.setattr(sender, "SLOW_MS", 200)
    released = asyncio.Event()
    many = sender.SENDING_MAX // sender.EACH_MAX

    async def hangs(request: Received) -> int:
        await released.wait()
        return 204

    async with Receiver([hangs] * 10_000) as slow, Receiver() as quick, sending(pooled, timeout_ms=300):
        for _ in range(many):
            await webhooks.create(NewWebhook(url=slow.url, groups=("SLOW",)), ALICE)
        made = await webhooks.create(NewWebhook(url=quick.url, groups=("QUICK",)), ALICE)
        for _ in range(100):
            event(connection, "SLOW")
        await slow.until(sender.SENDING_MAX)
        for _ in range(10):
            event(connection, "QUICK")
        async with asyncio.timeout(5):
            await until_ended(webhooks, made.id, 10)
        # They take turns: in twice as many attempts as there are webhooks, each had some.
        counted = "SELECT webhook_id, sum(attempts) FROM webhook_deliveries WHERE status = 'pending' GROUP BY 1"
        before = dict(connection.execute(counted).fetchall())
        await slow.until(len(slow.received) + 2 * sender.SENDING_MAX)
        after = dict(connection.execute(counted).fetchall())
        assert len(after) == many
        assert all(after[webhook] > before[webhook] for webhook in after)
        released.set()


async def test_a_test_is_delivered_like_an_event(pooled, webhooks):
    async with Receiver() as receiver, sending(pooled):
        made = await webhooks.create(NewWebhook(url=receiver.url, groups=("NONE",)), ALICE)
        asked = await webhooks.test(str(made.id))
        [ended] = await until_ended(webhooks, made.id)
    assert (asked.status, asked.event_id, ended.id) == ("pending", None, asked.id)
    [request] = receiver.received
    check_signature(made.secret, request)
    assert json.loads(request.body)["type"] == "test"


async def test_webhooks_are_created_changed_listed_and_deleted(webhooks, pooled, connection, monkeypatch):
    made = await webhooks.create(NewWebhook(url="https://hooks.example/a"), ALICE)
    other = await webhooks.create(NewWebhook(url="https://hooks.example/b", secret=make_secret()), ALICE)
    assert made.secret.startswith("whsec_")
    shown = {name: value for name, value in new_webhook_view(made).items() if name != "secret"}
    assert webhook_view(await webhooks.get(str(made.id))) == shown
    wanted = WebhookChange(groups=("A*",), secret=make_secret())
    changed = webhook_view(await webhooks.change(str(made.id), wanted, ALICE))
    assert (changed["groups"], changed["url"], "secret" in changed) == (["A*"], made.url, False)
    first = await webhooks.page(cursor=None, limit=1)
    second = await webhooks.page(cursor=first.next_cursor, limit=1)
    assert {item.id for item in [*first.items, *second.items]} == {made.id, other.id}
    monkeypatch.setattr(usecase, "WEBHOOKS_MAX", 2)
    with pytest.raises(ProblemError, match="which is the limit"):
        await webhooks.create(NewWebhook(url="https://hooks.example/c"), ALICE)
    for number in range(3):
        connection.execute("INSERT INTO webhook_deliveries (webhook_id, body) VALUES (%s, %s)", (made.id, str(number)))
    page = await webhooks.deliveries(str(made.id), status="pending", cursor=None, limit=2)
    rest = await webhooks.deliveries(str(made.id), status="pending", cursor=page.next_cursor, limit=2)
    assert len({item.id for item in [*page.items, *rest.items]}) == 3
    await webhooks.delete(str(made.id), ALICE)
    for gone in (webhooks.get(str(made.id)), webhooks.delete(str(made.id), ALICE), webhooks.test(str(made.id))):
        with pytest.raises(ProblemError, match="there is no webhook"):
            await gone
    with pytest.raises(InvalidValueError, match="is not a webhook's id"):
        await webhooks.get("1")
    assert connection.execute("SELECT count(*) FROM webhook_deliveries").fetchone() == (0,)
    async with pooled.transaction() as session:
        trail = await AuditRepository(session).page(kind="webhook", name=str(made.id))
    assert [row.action for row in trail] == ["webhook.delete", "webhook.change", "webhook.create"]
    assert "whsec_" not in str([(row.before, row.after) for row in trail])
    assert trail[1].after["secret"] == "changed"


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f.1", "[::1]"])
async def test_no_spelling_of_loopback_is_public(host):
    client = WebhookClient(
        SendPolicy(),
        clock=SystemClock(),
        networks=[],
        resolve=Resolver().resolve,
        transport=httpx.AsyncHTTPTransport(),
    )
    async with Receiver() as receiver:
        claimed = ClaimedDelivery(uuid4(), uuid4(), 1, "{}", f"http://{host}:{receiver.port}/", make_secret())
        sent = await client.send(claimed)
    await client.close()
    assert (sent.status, receiver.received) == (None, [])
    assert "only public addresses are allowed" in str(sent.error)


async def test_slow_name_servers_delay_no_other_name(monkeypatch):
    """A lookup occupies its thread as long as name servers take; two slow ones once delayed all names."""
    loop, released, asked = asyncio.get_running_loop(), asyncio.Event(), []
    real = loop.getaddrinfo

    async def getaddrinfo(host: str, port: int, **wanted: Any) -> Any:
        asked.append(host)
        if host.endswith(".dead"):
            await released.wait()
            raise OSError("no answer")
        return await real(host, port, **wanted)

    async def gives_up(host: str) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await names.resolve(host, 80)

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    names = Resolver()
    assert "127.0.0.1" in await names.resolve("localhost", 80)
    # New names wait for each other's threads, and no other name waits.
    await gives_up("a.dead")
    await gives_up("b.dead")
    assert "127.0.0.1" in await names.resolve("localhost", 80)
    assert await names.resolve("::1", 80) == ["::1"]
    # The name is in the lane of failed lookups, and no longer in that of new names.
    released.set()
    with pytest.raises(OSError, match="no answer"):
        await names.resolve("b.dead", 80)
    released.clear()
    await gives_up("b.dead")
    await gives_up("a.dead")
    assert "127.0.0.1" in await names.resolve("127.1", 80)
    assert asked.count("a.dead") == 1
    assert asked.count("b.dead") == 2
    released.set()


def make_certificate(key: Path, certificate: Path) -> None:
    subject = ("-subj", "/CN=hooks.test", "-addext", "subjectAltName=DNS:hooks.test")
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    command = ["openssl", "req", "-x509", *kind, *subject, "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)


async def test_a_certificate_must_match_the_name_though_the_address_is_connected_to(tmp_path: Path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    await asyncio.to_thread(make_certificate, key, certificate)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(certificate, key)

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    transport = httpx.AsyncHTTPTransport(verify=ssl.create_default_context(cafile=str(certificate)))
    client = WebhookClient(SendPolicy(), clock=SystemClock(), networks=LOOPBACK, resolve=resolve, transport=transport)
    async with Receiver(tls=serving) as receiver:
        errors = {}
        for host in ("hooks.test", "other.test"):
            url = f"https://{host}:{receiver.port}/"
            errors[host] = (
                await client.send(ClaimedDelivery(UUID(int=1), UUID(int=2), 1, "{}", url, make_secret()))
            ).error
    await client.close()
    assert errors["hooks.test"] is None
    assert "Hostname mismatch" in str(errors["other.test"])
    assert [request.headers["host"] for request in receiver.received] == [f"hooks.test:{receiver.port}"]
