"""Deliveries of webhooks: signatures, retries, and addresses that they never reach."""

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import uuid
from typing import Any

import httpx
import pytest

from gantry.runtime.rng import Rng
from services.gateway.db.webhooks import ClaimedDelivery
from services.gateway.usecases.alerts.delivery import SendPolicy, WebhookClient, signature
from tests.support.virtualtime import FakeClock

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


def test_the_signature_follows_standard_webhooks() -> None:
    body = b'{"type":"test"}'
    mac = hmac.new(bytes(range(32)), b'msg_1.1700000000.{"type":"test"}', hashlib.sha256).digest()
    assert signature(SECRET, "msg_1", 1_700_000_000, body) == "v1," + base64.b64encode(mac).decode()


def test_a_known_signature() -> None:
    # The example of the specification's own libraries.
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, body) == expected


def test_pauses_double_up_to_an_hour_with_random_changes() -> None:
    policy, rng = SendPolicy(), Rng(1)
    pauses = [policy.pause(attempt, rng).total_seconds() for attempt in range(1, 100)]
    for attempt, pause in enumerate(pauses):
        middle = min(3_600, 5 * 2**attempt)
        assert 0.8 * middle <= pause <= 1.2 * middle
    assert len(set(pauses)) == len(pauses)
    # One day of attempts: enough to be useful, and few enough not to look like an attack.
    assert 25 <= next(at for at in range(99) if sum(pauses[:at]) > 86_400) <= 45


def test_a_lease_is_longer_than_an_attempt() -> None:
    assert SendPolicy().lease.total_seconds() >= 5 * SendPolicy().timeout_ms / 1_000


ADDRESSES = {
    "hooks.example": ["10.0.0.1", "8.8.8.8"],
    "inside.example": ["10.0.0.1", "::1"],
    "localhost": ["127.0.0.1"],
}


async def resolve(host: str, port: int) -> list[str]:
    del port
    if host == "gone.example":
        raise OSError("Name or service not known")
    if host == "slow.example":
        await asyncio.sleep(3_600)
    return ADDRESSES.get(host, [host])


def client(handler: Any) -> WebhookClient:
    return WebhookClient(
        SendPolicy(),
        clock=FakeClock(1_700_000_000_000),
        networks=[ipaddress.ip_network("127.0.0.0/8")],
        resolve=resolve,
        transport=httpx.MockTransport(handler),
    )


def claimed(url: str) -> ClaimedDelivery:
    return ClaimedDelivery(uuid.UUID(int=7), uuid.UUID(int=8), 1, '{"type":"test"}', url, SECRET)


@pytest.mark.parametrize(
    ("url", "addresses"),
    [("http://10.0.0.1/", "10.0.0.1"), ("https://inside.example/", "10.0.0.1, ::1"), ("http://[::1]/", "::1")],
)
async def test_nothing_is_sent_to_an_address_that_is_not_public(url: str, addresses: str) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise AssertionError(request.url)

    sent = await client(refuse).send(claimed(url))
    assert sent.status is None
    assert sent.error is not None
    assert sent.error.endswith(f" is {addresses}, and only public addresses are allowed")


async def test_the_connection_goes_to_the_checked_address_with_the_original_host_name() -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(204)

    sent = await client(answer).send(claimed("https://hooks.example:8443/hook?x=1"))
    assert (sent.status, sent.error) == (204, None)
    [request] = asked
    assert str(request.url) == "https://8.8.8.8:8443/hook?x=1"
    assert (request.headers["host"], request.extensions["sni_hostname"]) == ("hooks.example:8443", "hooks.example")
    assert request.headers["webhook-id"] == str(uuid.UUID(int=7))
    assert request.headers["webhook-timestamp"] == "1700000000"
    expected = signature(SECRET, str(uuid.UUID(int=7)), 1_700_000_000, request.content)
    assert request.headers["webhook-signature"] == expected


@pytest.mark.parametrize("status", [201, 204, 301, 307, 400, 410, 500])
async def test_only_a_2xx_answer_is_a_success_and_redirects_are_not_followed(status: int) -> None:
    asked = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        return httpx.Response(status, headers={"location": "http://127.0.0.1/other"})

    sent = await client(answer).send(claimed("http://127.0.0.1/"))
    assert (sent.status, asked) == (status, 1)
    assert sent.error == (None if status < 300 else f"the webhook answered {status}")


async def test_a_failed_delivery_is_reported_and_never_raised() -> None:
    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused" * 100)

    sent = await client(broken).send(claimed("http://127.0.0.1/"))
    assert sent.status is None
    assert sent.error is not None
    assert len(sent.error) == 300


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("http://gone.example/", "Name or service not known"),
        ("http://slow.example/", "no answer within 10000 ms"),
        ("http://" + "x" * 70 + "\u00e9.example/", "Invalid IDNA hostname"),
    ],
)
async def test_a_name_that_can_not_be_resolved_is_a_failed_attempt(url: str, error: str) -> None:
    sent = await client(lambda _: httpx.Response(200)).send(claimed(url))
    assert (sent.status, error in str(sent.error)) == (None, True), sent.error
