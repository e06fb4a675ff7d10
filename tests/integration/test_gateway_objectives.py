"""Objectives on a real Postgres: created, changed field by field, listed, removed, and rejected by field and value."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from sqlalchemy import text

from gantry.model.errors import InvalidValueError
from gantry.runtime.clock import SystemClock
from services.gateway.db.engine import Database
from services.gateway.db.repositories import ANYTHING, Actor, AuditRepository, Expectation
from services.gateway.errors import BROKER_UNAVAILABLE, UNKNOWN_TOPIC, ProblemError
from services.gateway.schemas.objectives import ObjectiveChange
from services.gateway.schemas.reading import read_json
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.reports import objectives as usecase
from services.gateway.usecases.reports.objectives import Objectives
from services.gateway.views.objectives import objective_view
from services.gateway.views.page import page_view

ALICE = Actor("k-alice", "req-1")
FUTURE = "2126-01-01T00:00:00.000Z"


class EveryGroup:
    """A set of groups that contains every name."""

    async def require(self, name: str) -> None:
        del name


class Topics:
    """The topics T and AWAY. AWAY is on a broker that does not answer, and Postgres has no row of it."""

    async def get(self, name: str) -> None:
        if name == "AWAY":
            raise ProblemError(BROKER_UNAVAILABLE, f"topic: {name} may exist on broker-b, which does not answer")
        if name != "T":
            raise ProblemError(UNKNOWN_TOPIC, f"topic: there is no topic {name}", field="topic")


@pytest.fixture
def objectives(database: Database) -> Objectives:
    groups: Any = EveryGroup()
    topics: Any = Topics()
    return Objectives(Metadata(database), groups, topics, clock=SystemClock())


def change(**fields: Any) -> ObjectiveChange:
    return read_json(msgspec.json.encode(fields), msgspec.json.Decoder(ObjectiveChange))


async def test_an_objective_is_created_changed_field_by_field_and_removed(objectives, database):
    made = await objectives.put("G", None, change(max_lag_seconds=60), ANYTHING, ALICE)
    assert made.is_new
    assert objective_view(made.objective) | {"updated_at": None} == {
        "group": "G", "topic": None, "max_lag_seconds": 60.0, "max_lag_messages": None, "ignore": False,
        "ignore_until": None, "reason": None, "updated_at": None,
    }  # fmt: skip
    wanted = change(ignore=True, ignore_until=FUTURE, reason="moves")
    changed = await objectives.put("G", None, wanted, Expectation(version=made.objective.version), ALICE)
    assert not changed.is_new
    view = objective_view(changed.objective)
    assert (view["max_lag_seconds"], view["ignore_until"]) == (60.0, FUTURE)
    same = await objectives.put("G", None, change(ignore=True), ANYTHING, ALICE)
    assert same.objective == changed.objective
    # Without "ignored" there is no end of the period.
    heard = (await objectives.put("G", None, change(ignore=False, max_lag_seconds=None), ANYTHING, ALICE)).objective
    assert (heard.ignore_until, heard.max_lag_seconds, heard.reason) == (None, None, "moves")
    assert await objectives.get("G", None) == heard
    await objectives.delete("G", None, Expectation(version=heard.version), ALICE)
    with pytest.raises(ProblemError, match=r"there is no objective of group G$"):
        await objectives.get("G", None)
    again = await objectives.put("G", None, change(), ANYTHING, ALICE)
    assert again.objective.version > heard.version
    async with database.transaction() as session:
        trail = await AuditRepository(session).page(kind="objective", name="G")
    assert [row.action.partition(".")[2] for row in trail] == ["create", "delete", "change", "change", "create"]
    assert trail[-1].after["max_lag_seconds"] == 60.0


async def test_a_topic_may_have_its_own_objective_and_all_are_listed_page_by_page(objectives):
    for group, topic in (("A", None), ("A", "T"), ("A", "%RETRY%A"), ("B", "T")):
        await objectives.put(group, topic, change(max_lag_messages=5), ANYTHING, ALICE)
    found, cursor = [], None
    for _ in range(5):
        page = page_view(await objectives.page(group=None, cursor=cursor, limit=1), objective_view)
        found += [(item["group"], item["topic"]) for item in page["items"]]
        cursor = page["next_cursor"]
    assert (found, cursor) == ([("A", None), ("A", "%RETRY%A"), ("A", "T"), ("B", "T")], None)
    assert len((await objectives.page(group="A", cursor=None, limit=100)).items) == 3
    with pytest.raises(ProblemError, match=r"of group B$"):
        await objectives.delete("B", None, ANYTHING, ALICE)
    with pytest.raises(InvalidValueError, match="cursor"):
        await objectives.page(group=None, cursor="bm8", limit=1)


@pytest.mark.parametrize(
    ("topic", "status", "detail"),
    [
        ("TYPO", 404, "there is no topic TYPO"),
        ("%RETRY%OTHER", 404, "there is no topic %RETRY%OTHER"),
        ("AWAY", 503, "AWAY may exist on broker-b"),
    ],
)
async def test_an_objective_needs_an_existing_topic(objectives, topic, status, detail):
    with pytest.raises(ProblemError, match=detail) as refused:
        await objectives.put("G", topic, change(max_lag_seconds=60), ANYTHING, ALICE)
    assert refused.value.kind.status == status
    assert not (await objectives.page(group=None, cursor=None, limit=100)).items
    # The retry topic exists once a message has failed.
    assert (await objectives.put("G", "%RETRY%G", change(max_lag_seconds=60), ANYTHING, ALICE)).is_new


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"max_lag_seconds": 0}, "/max_lag_seconds", "0"),
        ({"max_lag_seconds": "60"}, "/max_lag_seconds", '"60"'),
        ({"max_lag_messages": -1}, "/max_lag_messages", "-1"),
        ({"ignore": "yes"}, "/ignore", '"yes"'),
        ({"ignore": True, "ignore_until": "tomorrow"}, "/ignore_until", "tomorrow"),
        ({"ignore": True, "ignore_until": "2020-01-01T00:00:00Z"}, "/ignore_until", "2020-01-01T00:00:00Z"),
        ({"ignore_until": FUTURE}, "/ignore_until", FUTURE),
        ({"reason": "a\nb"}, "/reason", r"a\nb"),
    ],
)
async def test_invalid_objectives_are_refused_by_field_and_value(objectives, fields, field, value):
    with pytest.raises(InvalidValueError) as refused:
        await objectives.put("G", None, change(**fields), ANYTHING, ALICE)
    assert refused.value.field == field
    assert value in str(refused.value)


async def test_preconditions_are_checked(objectives):
    with pytest.raises(ProblemError, match="If-Match"):
        await objectives.put("G", None, change(), Expectation(exists=True), ALICE)
    made = await objectives.put("G", None, change(), Expectation(exists=False), ALICE)
    with pytest.raises(ProblemError, match="If-None-Match"):
        await objectives.put("G", None, change(ignore=True), Expectation(exists=False), ALICE)
    with pytest.raises(ProblemError, match="If-Match"):
        await objectives.delete("G", None, Expectation(version=made.objective.version + 1), ALICE)


async def test_the_number_of_objectives_is_limited(objectives, monkeypatch):
    monkeypatch.setattr(usecase, "OBJECTIVES_MAX", 1)
    await objectives.put("G", None, change(), ANYTHING, ALICE)
    assert (await objectives.put("G", None, change(ignore=True), ANYTHING, ALICE)).objective.ignore
    with pytest.raises(ProblemError, match="which is the limit"):
        await objectives.put("G", "T", change(), ANYTHING, ALICE)


async def test_ignoring_again_after_the_end_of_the_period_has_no_end(objectives, database):
    await objectives.put("G", None, change(ignore=True, ignore_until=FUTURE, reason="moves"), ANYTHING, ALICE)
    async with database.transaction() as session:
        await session.execute(text("UPDATE lag_objectives SET ignore_until = now()"))
    other = await objectives.put("G", None, change(max_lag_seconds=60), ANYTHING, ALICE)
    assert other.objective.ignore_until is not None
    again = (await objectives.put("G", None, change(ignore=True), ANYTHING, ALICE)).objective
    assert (again.ignore, again.ignore_until, again.reason) == (True, None, "moves")


async def test_an_expired_ignore_period_has_no_effect(objectives, database):
    del objectives, database
    from spark.objectives import Objective

    now = datetime(2026, 11, 21, 12, tzinfo=UTC)
    assert Objective(ignore=True).row(now)["is_ignored"]
    over = Objective(ignore=True, ignore_until=now, reason="moves").row(now)
    assert (over["is_ignored"], over["ignore_reason"], over["ignore_until"]) == (False, None, None)
