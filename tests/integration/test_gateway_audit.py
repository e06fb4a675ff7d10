"""The audit trail over HTTP on a real Postgres: filters, pages and the export."""

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from gantry.runtime.clock import SystemClock
from services.gateway.app import make_application
from services.gateway.auth.keyring import KeyRecord, KeyRing, digest_of
from services.gateway.db.engine import Database
from services.gateway.db.repositories import Actor, AuditRepository
from services.gateway.features.audit import audit_routes
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.schemas.rights import Rights
from services.gateway.settings import GatewaySettings
from services.gateway.usecases.audit.trail import Audit, AuditFilter
from services.gateway.usecases.metadata import Metadata
from tests.support.callers import callers_of

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
RIGHTS = {"admin": Rights(admin=True), "none": Rights(publish=("*",))}
# The entries: actor, action, kind, name; one a minute from noon.
ENTRIES = (
    ("key-1", "topic.create", "topic", "A"),
    ("user:ada", "topic.change", "topic", "A"),
    ("user:ada", "group.create", "group", "G"),
    ("reconciler", "topic.import", "topic", "B"),
)


def client(database: Database | None) -> httpx.AsyncClient:
    keys = KeyRing()
    keys.replace([KeyRecord(name, digest_of(f"gk_{name}"), name, rights) for name, rights in RIGHTS.items()])
    front = make_application(
        audit_routes(Audit(Metadata(database))),
        callers_of(keys, SystemClock()),
        GatewayMetrics(),
        clock=SystemClock(),
        is_stopping=lambda: False,
        limits=Limits(GatewaySettings()),
        access_log=False,
    )
    headers = {"Authorization": "Bearer gk_admin"}
    return httpx.AsyncClient(transport=httpx.ASGITransport(front), base_url="http://gateway", headers=headers)


@pytest.fixture
async def http(database: Database) -> AsyncIterator[httpx.AsyncClient]:
    async with database.transaction() as session:
        for minute, (actor, action, kind, name) in enumerate(ENTRIES):
            entry = AuditRepository(session).record(Actor(actor), action, kind, name, before=None, after={"n": minute})
            entry.at = NOON + timedelta(minutes=minute)
            await session.flush()
    async with client(database) as made:
        yield made


@pytest.mark.parametrize(
    ("params", "numbers"),
    [
        ({}, [3, 2, 1, 0]),
        ({"actor": "user:ada"}, [2, 1]),
        ({"actor": "user:ada", "kind": "topic"}, [1]),
        ({"kind": "topic", "name": "A"}, [1, 0]),
        ({"action": "topic.import"}, [3]),
        ({"from": "2026-11-21T12:01:00Z"}, [3, 2, 1]),
        ({"from": "2026-11-21T12:01:00Z", "to": "2026-11-21T12:03:00Z"}, [2, 1]),
        ({"actor": "nobody"}, []),
    ],
)
async def test_the_filters_select_the_same_entries_in_pages_and_in_the_export(
    http: httpx.AsyncClient, params: dict[str, str], numbers: list[int]
) -> None:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = (
            await http.get("/v1/audit", params={**params, "limit": 2, **({"cursor": cursor} if cursor else {})})
        ).json()
        found += page["items"]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [entry["after"]["n"] for entry in found] == numbers
    exported = await http.get("/v1/audit:export", params=params)
    assert exported.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line) for line in exported.text.splitlines()] == found


async def test_the_export_reads_page_after_page(http: httpx.AsyncClient, database: Database) -> None:
    entries = Audit(Metadata(database)).export(AuditFilter(), rows=1)
    assert [entry.after async for entry in entries] == [{"n": number} for number in (3, 2, 1, 0)]


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"name": "A"}, "name"),
        ({"kind": "tide"}, "kind"),
        ({"actor": ""}, "actor"),
        ({"action": "x" * 256}, "action"),
        ({"from": "yesterday"}, "from"),
        ({"from": "2026-11-21T12:00:00Z", "to": "2026-11-21T12:00:00Z"}, "to"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/audit", "/v1/audit:export"])
async def test_a_filter_that_cannot_be_is_refused_by_name(
    http: httpx.AsyncClient, path: str, params: dict[str, str], field: str
) -> None:
    refused = await http.get(path, params=params)
    assert (refused.status_code, refused.json()["field"]) == (400, field)


@pytest.mark.parametrize("path", ["/v1/audit", "/v1/audit:export"])
async def test_only_admins_read_the_trail(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(path, headers={"Authorization": "Bearer gk_none"})).status_code == 403


@pytest.mark.parametrize("path", ["/v1/audit", "/v1/audit:export"])
async def test_without_postgres_the_answer_is_a_problem_and_not_half_an_export(path: str) -> None:
    async with client(None) as http:
        answer = await http.get(path)
    assert (answer.status_code, answer.json()["type"].rpartition("/")[2]) == (503, "metadata-unavailable")
