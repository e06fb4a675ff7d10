"""`gantry audit`: its requests to the gateway, and its output."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.unit.gantry.cli.conftest import Answers

Gantry = Callable[..., Any]
ENTRY = {
    "id": "7", "at": "2026-11-21T09:30:00.123Z", "actor": "user:ada", "action": "topic.create", "kind": "topic",
    "name": "FLIGHTS", "before": None, "after": {"perm": "rw"}, "request_id": None,
}  # fmt: skip


def test_changes_are_listed_with_the_filters(answers: Answers, gantry: Gantry) -> None:
    answers.by_call["GET /v1/audit"] = {"items": [ENTRY], "next_cursor": None}
    listed = gantry("audit", "list", "--actor", "user:ada", "--from", "2026-11-21T09:00:00Z", "--limit", "5")
    assert listed.exit_code == 0, listed.output
    assert dict(answers.asked[0].url.params) == {"actor": "user:ada", "from": "2026-11-21T09:00:00Z", "limit": "5"}
    assert "topic.create" in listed.output
    assert "perm=rw" in listed.output


def test_changes_are_exported_to_a_file(answers: Answers, gantry: Gantry, tmp_path: Path) -> None:
    answers.by_call["GET /v1/audit:export"] = httpx.Response(200, content=b'{"id": "7"}\n')
    file = tmp_path / "audit.ndjson"
    done = gantry("audit", "export", "--kind", "topic", "-o", str(file))
    assert done.exit_code == 0, done.output
    assert (file.read_bytes(), answers.asked[0].url.query) == (b'{"id": "7"}\n', b"kind=topic")
