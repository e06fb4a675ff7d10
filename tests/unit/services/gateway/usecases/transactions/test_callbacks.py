"""Call-backs about open transactions: signed, tried again, and never sent to an address that is not allowed."""

import asyncio
import hashlib
import hmac
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from gantry.model.errors import InvalidValueError
from gantry.model.record import decode_record
from gantry.runtime.rng import Rng
from services.gateway.db.producergroups import ProducerGroup
from services.gateway.metrics import GatewayMetrics
from services.gateway.schemas.producergroups import ProducerGroupSettings
from services.gateway.usecases.reading.messages import read_message
from services.gateway.usecases.transactions.callbacks import EACH_MAX, CallbackAsker
from services.gateway.usecases.transactions.checking import TransactionCheck
from tests.support.pulledrecords import record
from tests.support.virtualtime import VirtualClock

SECRET = "0123456789abcdef"
LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]
CHECK = TransactionCheck("T1", "G", read_message(decode_record(record(0, b"body")), "broker-a"), 1)


async def resolve(host: str, port: int) -> list[str]:
    return {"inside.example": ["10.0.0.1"], "local.example": ["127.0.0.1"]}.get(host, ["8.8.8.8"])


class Callbacks:
    """An asker, the requests that it makes, and the answers that it gets, in turn."""

    def __init__(self, *answers: Any, url: str = "https://orders.example/check?x=1") -> None:
        self.requests: list[httpx.Request] = []
        self.answers = list(answers)
        self.url: str | None = url
        self.asker = CallbackAsker(
            self.find, GatewayMetrics(), clock=VirtualClock(), rng=Rng(1), networks=LOOPBACK, timeout_ms=10_000,
            render=lambda check: {"transaction": check.transaction}, resolve=resolve,
            transport=httpx.MockTransport(self.answer),
        )  # fmt: skip

    async def find(self, name: str) -> ProducerGroup | None:
        return None if self.url is None else ProducerGroup(name, self.url, SECRET, datetime(2026, 1, 1, tzinfo=UTC))

    async def answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0)
        if answer == "hang":
            await asyncio.sleep(3_600)
        if isinstance(answer, Exception):
            raise answer
        status, body = answer if isinstance(answer, tuple) else (200, json.dumps({"decision": answer}).encode())
        return httpx.Response(status, stream=httpx.ByteStream(body), headers={"location": "https://elsewhere.example/"})


@pytest.mark.parametrize(("decision", "commits"), [("commit", True), ("rollback", False), ("unknown", None)])
async def test_the_answer_decides(decision: str, commits: bool | None) -> None:
    callbacks = Callbacks(decision)
    assert await callbacks.asker.ask(CHECK) is commits
    (request,) = callbacks.requests
    assert (request.method, request.url.host, request.headers["host"]) == ("POST", "8.8.8.8", "orders.example")
    assert json.loads(request.content) == {"transaction": "T1"}
    seconds = request.headers["gantry-signature"].partition(",")[0].removeprefix("t=")
    mac = hmac.new(SECRET.encode(), seconds.encode() + b"." + request.content, hashlib.sha256).hexdigest()
    assert request.headers["gantry-signature"] == f"t={seconds},v1={mac}"


@pytest.mark.parametrize("failure", [(500, b""), (503, b""), httpx.ConnectError("refused"), "hang"])
async def test_a_failure_is_tried_again_and_three_failures_are_no_answer(failure: Any) -> None:
    callbacks = Callbacks(failure, failure, "commit")
    assert await callbacks.asker.ask(CHECK) is True
    callbacks = Callbacks(failure, failure, failure)
    assert await callbacks.asker.ask(CHECK) is None
    assert len(callbacks.requests) == 3


@pytest.mark.parametrize(
    "answer",
    [
        (302, b""),
        (404, b""),
        (200, b"yes"),
        (200, b'{"decision": "perhaps"}'),
        (200, b'{"decision": "commit", "decision": "rollback"}'),
        (200, b'{"x": ' + b"[" * 1_900 + b"]" * 1_900 + b', "decision": "commit"}'),
        (200, b" " * 5_000),
    ],
)
async def test_a_wrong_answer_and_a_redirect_decide_nothing_and_are_not_repeated(answer: Sequence[Any]) -> None:
    callbacks = Callbacks(answer)
    assert await callbacks.asker.ask(CHECK) is None
    assert len(callbacks.requests) == 1


@pytest.mark.parametrize(
    ("url", "count"),
    [("https://inside.example/", 0), ("https://10.0.0.1/", 0), ("https://local.example/", 1)],
)
async def test_only_public_and_allowed_addresses_are_asked(url: str, count: int) -> None:
    callbacks = Callbacks("commit", url=url)
    callbacks.asker._resolve = resolve if "example" in url else _itself
    check = replace(CHECK, is_asked=False)
    assert await callbacks.asker.ask(check) is (True if count else None)
    assert len(callbacks.requests) == count
    assert check.is_asked == (count > 0)


@pytest.mark.parametrize(("failure", "is_asked"), [(httpx.ConnectError("certificate"), False), ((500, b""), True)])
async def test_a_server_that_is_not_reached_is_not_asked(failure: Any, is_asked: bool) -> None:
    check = replace(CHECK, is_asked=False)
    assert await Callbacks(*[failure] * 3).asker.ask(check) is None
    assert check.is_asked == is_asked


async def _itself(host: str, port: int) -> list[str]:
    return [host]


async def test_a_group_without_a_url_is_not_asked() -> None:
    callbacks = Callbacks()
    callbacks.url = None
    assert await callbacks.asker.ask(CHECK) is None


async def test_a_slow_group_takes_few_places() -> None:
    callbacks = Callbacks(*["hang"] * EACH_MAX)
    asking = [asyncio.ensure_future(callbacks.asker.ask(CHECK)) for _ in range(EACH_MAX)]
    await asyncio.sleep(1)
    assert await callbacks.asker.ask(CHECK) is None
    assert len(callbacks.requests) == EACH_MAX
    for each in asking:
        each.cancel()


@pytest.mark.parametrize(
    ("url", "secret", "field"),
    [
        ("http://orders.example/", SECRET, "/check_url"),
        ("ftp://orders.example/", SECRET, "/check_url"),
        ("https://10.0.0.1/", SECRET, "/check_url"),
        ("https://orders.example/", "short", "/check_secret"),
        ("https://orders.example/", "0123456789abcde\n", "/check_secret"),
        (None, SECRET, "/check_secret"),
    ],
)
def test_wrong_settings_are_refused_by_name(url: str | None, secret: str, field: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        ProducerGroupSettings(url, secret).check([])
    assert caught.value.field == field
    assert secret not in str(caught.value)


def test_a_plain_url_is_for_networks_that_the_setting_allows() -> None:
    ProducerGroupSettings("http://127.0.0.1:8080/check", SECRET).check(LOOPBACK)
    ProducerGroupSettings(None).check([])
