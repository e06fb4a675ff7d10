"""A scripted gateway, and a function that runs commands against it."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from gantry.cli import (
    alert,
    audit,
    group,
    job,
    key,
    message,
    objective,
    offset,
    offsetreset,
    producergroup,
    report,
    topic,
    webhook,
)
from gantry.cli.main import app
from gantry.cli.remote import Remote
from gantry.http.client import GantryClient


@dataclass
class Answers:
    """The gateway's answer for each `METHOD path`, and the requests that it received."""

    by_call: dict[str, Any] = field(default_factory=dict)
    asked: list[httpx.Request] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.by_call[f"{request.method} {request.url.raw_path.decode().partition('?')[0]}"]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(200, json=answer)

    def body(self, index: int = -1) -> Any:
        return json.loads(self.asked[index].content)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    scripted = Answers()
    client = GantryClient("http://gateway", "secret", transport=httpx.MockTransport(scripted))
    for noun in (
        topic,
        group,
        job,
        message,
        objective,
        offset,
        offsetreset,
        key,
        report,
        alert,
        webhook,
        audit,
        producergroup,
    ):
        monkeypatch.setattr(noun, "connect", lambda data, url, key: Remote(client))
    return scripted


@pytest.fixture
def gantry() -> Callable[..., Any]:
    def run(*arguments: str, typed: str | bytes | None = None) -> Any:
        return CliRunner().invoke(app, list(arguments), input=typed, prog_name="gantry")

    return run


def problem(status: int, title: str, detail: str, **more: Any) -> httpx.Response:
    content = {
        "type": "https://gantry.dev/problems/x",
        "title": title,
        "status": status,
        "detail": detail,
        "retryable": False,
        "request_id": "r",
        **more,
    }
    return httpx.Response(status, json=content, headers={"content-type": "application/problem+json"})
