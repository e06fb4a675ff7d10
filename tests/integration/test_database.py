"""The metadata store on a real Postgres: schema, repositories, audit in the same transaction, leadership."""

import hashlib
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from gantry.model.group import parse_tag_expression, sql_subscription
from gantry.runtime.clock import SystemClock
from services.gateway.db import migrate, revision
from services.gateway.db.engine import Database
from services.gateway.db.errors import (
    AlreadyExistsError,
    MetadataUnavailableError,
    UnstorableError,
    VersionConflictError,
)
from services.gateway.db.keys import KeyRepository
from services.gateway.db.leadership import Leadership, lock_key
from services.gateway.db.models import ConfigOrigin, ConfigState, Verdict
from services.gateway.db.repositories import (
    Actor,
    AuditRepository,
    Expectation,
    GroupRepository,
    TopicRepository,
)
from services.gateway.db.subscriptions import CLIENTS_NAMED_MAX, Sighting, SubscriptionRepository
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.receiving.pullregister import PullRegister
from tests.support.postgres import PostgresServer, until_free

ALICE = Actor("k-alice", "req-1")
CONFIG = {"read_queues": 4, "write_queues": 4, "perm": "rw", "order": False, "brokers": None}


def test_migrations_create_the_schema_of_the_models(postgres: PostgresServer) -> None:
    migrate.check(postgres.url)


def test_migrations_go_down_and_up_again(own_postgres: PostgresServer) -> None:
    migrate.downgrade(own_postgres.url, "base")
    assert migrate.current(own_postgres.url) is None
    migrate.upgrade(own_postgres.url)
    assert migrate.current(own_postgres.url) == migrate.head()


def test_migrating_twice_changes_nothing(postgres: PostgresServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate.main(["--database", postgres.url]) == 0
    assert migrate.head() in capsys.readouterr().out


def test_a_start_with_a_migrated_database_does_not_load_alembic(own_postgres: PostgresServer) -> None:
    script = (
        "import os, sys; from services.gateway.db.__main__ import main;"
        " sys.exit(main([], environment=os.environ) or 10 * ('alembic' in sys.modules))"
    )
    command = [sys.executable, "-c", script]
    variables = {**os.environ, "GANTRY_DATABASE_URL": own_postgres.url}
    assert subprocess.run(command, env=variables, check=False).returncode == 0
    migrate.downgrade(own_postgres.url, "-1")
    assert subprocess.run(command, env=variables, check=False).returncode == 10
    assert migrate.current(own_postgres.url) == migrate.head() == revision.newest()
    migrate.downgrade(own_postgres.url, "base")
    assert subprocess.run(command, env=variables, check=False).returncode == 10
    assert migrate.current(own_postgres.url) == migrate.head()


def test_migrating_without_a_url_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert migrate.main(["--database", "postgresql://nobody@/nothing?host=/nowhere"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


async def test_a_topic_is_created_changed_and_audited(database: Database) -> None:
    async with database.transaction() as session:
        made = await TopicRepository(session).put("FLIGHTS", CONFIG, actor=ALICE)
        assert (made.created, made.changed, made.row.version, made.row.state) == (True, True, 1, ConfigState.PENDING)
        assert made.row.created_at.tzinfo is not None
    async with database.transaction() as session:
        changed = await TopicRepository(session).put("FLIGHTS", {**CONFIG, "read_queues": 8}, actor=ALICE)
        assert (changed.created, changed.changed, changed.row.version) == (False, True, 2)
    async with database.transaction() as session:
        rows = await AuditRepository(session).page(kind="topic", name="FLIGHTS")
    assert [row.action for row in rows] == ["topic.change", "topic.create"]
    assert rows[0].before == CONFIG
    assert rows[0].after == {**CONFIG, "read_queues": 8}
    assert (rows[0].actor, rows[0].request_id) == ("k-alice", "req-1")


async def test_the_same_config_again_is_no_change(database: Database) -> None:
    async with database.transaction() as session:
        topics = TopicRepository(session)
        await topics.put("T", CONFIG, actor=ALICE)
        again = await topics.put("T", dict(CONFIG), actor=ALICE)
        assert (again.created, again.changed, again.row.version) == (False, False, 1)
        assert len(await AuditRepository(session).page()) == 1


async def test_a_failed_change_leaves_no_audit_row(database: Database) -> None:
    async def change_and_fail() -> None:
        async with database.transaction() as session:
            await TopicRepository(session).put("T", CONFIG, actor=ALICE)
            raise RuntimeError("the use case changed its mind")

    with pytest.raises(RuntimeError):
        await change_and_fail()
    async with database.transaction() as session:
        assert await TopicRepository(session).get("T") is None
        assert await AuditRepository(session).page() == []


async def test_preconditions(database: Database) -> None:
    async with database.transaction() as session:
        topics = TopicRepository(session)
        with pytest.raises(VersionConflictError, match="it does not exist"):
            await topics.put("T", CONFIG, actor=ALICE, expect=Expectation(version=1))
        with pytest.raises(VersionConflictError):
            await topics.put("T", CONFIG, actor=ALICE, expect=Expectation(exists=True))
        await topics.put("T", CONFIG, actor=ALICE, expect=Expectation(exists=False))
        with pytest.raises(AlreadyExistsError):
            await topics.put("T", CONFIG, actor=ALICE, expect=Expectation(exists=False))
        with pytest.raises(VersionConflictError, match="it is at version 1") as caught:
            await topics.mark_deleting("T", actor=ALICE, expect=Expectation(version=7))
        assert (caught.value.expected, caught.value.found) == (7, 1)
        assert (await topics.put("T", {}, actor=ALICE, expect=Expectation(version=1))).row.version == 2


async def test_a_deleted_topic_is_hidden_until_brokers_dropped_it(database: Database) -> None:
    async with database.transaction() as session:
        topics = TopicRepository(session)
        await topics.put("T", CONFIG, actor=ALICE)
        gone = await topics.mark_deleting("T", actor=ALICE)
        assert gone is not None
        assert await topics.get("T") is None
        assert await topics.page() == []
        assert [row.name for row in await topics.unsettled()] == ["T"]
        assert not await topics.forget("T", gone.version - 1)
        assert await topics.forget("T", gone.version)
        assert await topics.unsettled() == []
        assert await topics.mark_deleting("T", actor=ALICE) is None


async def test_a_topic_created_again_while_being_deleted_stays(database: Database) -> None:
    async with database.transaction() as session:
        topics = TopicRepository(session)
        await topics.put("T", CONFIG, actor=ALICE)
        gone = await topics.mark_deleting("T", actor=ALICE)
        assert gone is not None
        deleting = gone.version
        again = await topics.put("T", CONFIG, actor=ALICE)
        assert again.created
        assert not await topics.forget("T", deleting)
        assert await topics.get("T") is not None


async def test_homes_are_the_desired_brokers_that_have_the_topic(database: Database) -> None:
    async with database.transaction() as session:
        topics = TopicRepository(session)
        for name, named in (("ALL", None), ("SOME", ["a", "b"])):
            await topics.put(name, {"brokers": named}, actor=ALICE)
        await topics.put("GONE", {"brokers": None}, actor=ALICE)
        held = {"ALL": {"a": {}}, "SOME": {"b": {}, "retired": {}}, "GONE": {"gone": {}}}
        await topics.observe(held)
        await topics.mark_deleting("GONE", actor=ALICE)
        assert await topics.homes() == {"a", "b"}
        found = await topics.held_by(["b", "gone", "retired"])
        assert found == {"b": ["SOME"], "gone": [], "retired": []}


async def test_settling_affects_one_version_only(database: Database) -> None:
    async with database.transaction() as session:
        groups = GroupRepository(session)
        await groups.put("g", {"retry_max_times": 16}, actor=ALICE)
        assert await groups.settle("g", 1, detail="broker-b is down")
        row = await groups.get("g")
        assert row is not None
        assert (row.state, row.state_detail) == (ConfigState.PENDING, "broker-b is down")
        await groups.put("g", {"retry_max_times": 3}, actor=ALICE)
        assert not await groups.settle("g", 1)
        assert await groups.settle("g", 2)
        assert (await groups.unsettled()) == []


async def test_settings_on_brokers_are_recorded_and_adopted(database: Database) -> None:
    async with database.transaction() as session:
        topics = TopicRepository(session)
        adopted = await topics.adopt("FROM_MQADMIN", CONFIG, observed={"broker-a": CONFIG})
        assert adopted is not None
        assert (adopted.origin, adopted.state, adopted.observed) == (
            ConfigOrigin.BROKER,
            ConfigState.APPLIED,
            {"broker-a": CONFIG},
        )
        assert await topics.adopt("FROM_MQADMIN", {}, observed={}) is None
        await topics.observe({"FROM_MQADMIN": {"broker-b": {}}, "UNKNOWN": {"broker-a": {}}})
        row = await topics.get("FROM_MQADMIN")
        assert row is not None
        assert row.observed == {"broker-b": {}}
        assert row.observed_at is not None
        assert await topics.get("UNKNOWN") is None


async def test_pages_are_in_byte_order(database: Database) -> None:
    names = ["a", "B", "c_1", "c%2", "é"]
    async with database.transaction() as session:
        topics = TopicRepository(session)
        for name in names:
            await topics.put(name, {}, actor=ALICE)
        assert [row.name for row in await topics.page()] == sorted(names, key=str.encode)
        first = await topics.page(limit=2)
        rest = await topics.page(after=first[-1].name)
        assert len(first) + len(rest) == len(names)
        assert [row.name for row in await topics.page(prefix="c%")] == ["c%2"]


async def test_keys_are_found_by_digest_and_revoked_once(database: Database) -> None:
    digest = hashlib.sha256(b"key").digest()
    async with database.transaction() as session:
        keys = KeyRepository(session)
        made = await keys.create("k1", sha256=digest, name="ci", rights={"publish": ["*"]}, actor=ALICE)
        assert made.revoked_at is None
        with pytest.raises(AlreadyExistsError):
            await keys.create("k2", sha256=digest, name="same key", rights={}, actor=ALICE)
        assert (await keys.ensure("k3", sha256=digest, name="first", rights={}, actor=ALICE)).id == "k1"
        used = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
        await keys.touch({"k1": used, "unknown": used})
        await keys.touch({"k1": datetime(2020, 1, 1, tzinfo=UTC)})
        revoked = await keys.revoke("k1", actor=ALICE)
        assert revoked is not None
        assert revoked.revoked_at is not None
        assert revoked.last_used_at == used
        await keys.revoke("k1", actor=ALICE)
        assert await keys.revoke("nobody", actor=ALICE) is None
        assert await keys.page(revoked=False) == []
        assert len(await keys.page()) == 1
        trail = await AuditRepository(session).page(kind="key")
    assert [row.action for row in trail] == ["key.revoke", "key.create"]


def sighting(**changed: object) -> Sighting:
    facts = {
        "topic": "T",
        "client_kind": "JAVA",
        "message_model": "CLUSTERING",
        "expression_type": "TAG",
        "expression": "*",
        "sub_version": 1,
        "clients": ("c1", "c2"),
    }
    return Sighting(**{**facts, **changed})  # type: ignore[arg-type]


async def test_subscriptions_follow_the_brokers(database: Database) -> None:
    async with database.transaction() as session:
        mirror = SubscriptionRepository(session)
        await mirror.mirror("g", [sighting(), sighting(client_kind="PYTHON", expression="AA || UA", clients=("p",))])
        assert {row.verdict for row in await mirror.page(group="g")} == {Verdict.FILTERS_DIFFER}
    async with database.transaction() as session:
        mirror = SubscriptionRepository(session)
        await mirror.mirror("g", [sighting(sub_version=2, clients=tuple(f"c{n}" for n in range(1_000)))])
        java, python = await mirror.page(group="g")
        assert (java.active, java.verdict, java.sub_version) == (True, Verdict.CONSISTENT, 2)
        assert (java.clients_count, len(java.clients)) == (1_000, CLIENTS_NAMED_MAX)
        assert not python.active
        await mirror.deactivate_others(["another"])
        assert await mirror.page(topic="T", active=True) == []
        assert len(await mirror.page(topic="T")) == 2


async def test_pulls_over_http_are_subscriptions_for_a_minute(database: Database) -> None:
    pulled = sql_subscription("T", "a > 5")
    async with database.transaction() as session:
        mirror = SubscriptionRepository(session)
        await mirror.mirror("g", [sighting()])
        await mirror.mirror("g", [])
        await mirror.note_pulls([("g", pulled)])
        await mirror.mirror("g", [])
        filters = [tuple(row) for row in await mirror.filters()]
        assert filters == [("g", "T", "SQL92", "a > 5", True, True)], "brokers know no such client, but it is there"
        await session.execute(text("UPDATE subscriptions SET last_seen_at = now() - interval '61 seconds'"))
        await mirror.mirror("g", [])
        assert await mirror.page(group="g", active=True) == []
        await mirror.note_pulls([("g", parse_tag_expression("T", "A"))])
        assert [tuple(row)[2:5] for row in await mirror.filters()] == [("TAG", "A", True)]


async def test_noted_pulls_are_written_in_parts_and_again_after_a_failure(database: Database) -> None:
    register = PullRegister(Metadata(database), interval_ms=1_000)
    for number in range(450):
        register.note("g", parse_tag_expression(f"T{number}", "*"))
    register.note("g", parse_tag_expression("T7", "A"))
    register._metadata = Metadata(None)
    await register.write()
    register._metadata = Metadata(database)
    await register.write()
    async with database.transaction() as session:
        found = {row[1]: row[3] for row in await SubscriptionRepository(session).filters()}
    assert len(found) == 450
    assert (found["T7"], found["T8"]) == ("A", "*")


async def test_old_subscriptions_are_forgotten_except_the_last_of_a_group(database: Database) -> None:
    asked = [sighting(expression=expression) for expression in ("A", "B", "C")]
    year = timedelta(days=365)
    async with database.transaction() as session:
        mirror = SubscriptionRepository(session)
        for group in ("known", "deleted", "alive"):
            await mirror.mirror(group, asked)
        for group in ("known", "deleted"):
            await mirror.mirror(group, [])
        await mirror.mirror("alive", asked[2:])
        assert await mirror.forget(["known", "alive"], older_than=year) == 0, "all subscriptions were seen just now"
        await session.execute(text("UPDATE subscriptions SET last_seen_at = now() - interval '366 days'"))
        await session.execute(
            text("UPDATE subscriptions SET last_seen_at = now() - interval '364 days' WHERE expression = 'B'")
        )
        assert await mirror.forget(["known", "alive"], older_than=year, rows=2) == 2
        assert await mirror.forget(["known", "alive"], older_than=year) == 3
        assert await mirror.forget(["known", "alive"], older_than=year) == 0
        # Connected instances stay, and recent ones.
        left = {(row.group_name, row.expression) for row in await mirror.page()}
        assert left == {("known", "B"), ("deleted", "B"), ("alive", "B"), ("alive", "C")}
        await session.execute(text("UPDATE subscriptions SET last_seen_at = last_seen_at - interval '2 days'"))
        assert await mirror.forget(["known", "alive"], older_than=year) == 1
        left = {(row.group_name, row.expression) for row in await mirror.page()}
        assert left == {("known", "B"), ("alive", "B"), ("alive", "C")}, "the newest filter of a group is its filter"


async def test_a_hostile_expression_is_kept_readable(database: Database) -> None:
    async with database.transaction() as session:
        mirror = SubscriptionRepository(session)
        hostile = "a\x00b\udc80" + "x" * 10_000
        await mirror.mirror("g", [sighting(expression=hostile, expression_type="SQL92" * 100)])
        (row,) = await mirror.page()
        assert row.expression.startswith("a\ufffdb?xxx")
        assert len(row.expression_type) == 64


async def test_a_value_postgres_cannot_keep_is_named(database: Database) -> None:
    with pytest.raises(UnstorableError, match="NUL"):
        async with database.transaction() as session:
            await TopicRepository(session).put("T\x00", {}, actor=ALICE)


async def test_one_leader_at_a_time(postgres: PostgresServer) -> None:
    one, two = (Database.open(postgres.url, clock=SystemClock()) for _ in range(2))
    first, second = Leadership(one, "reconciler"), Leadership(two, "reconciler")
    other_duty = Leadership(two, "subscriptions")
    try:
        assert await first.hold()
        assert await first.hold()
        assert not await second.hold()
        assert await other_duty.hold()
        await first.release()
        assert not first.is_leader
        until_free(postgres.url, lock_key("reconciler"))
        assert await second.hold()
    finally:
        for leadership in (first, second, other_duty):
            await leadership.release()
        await one.close()
        await two.close()


async def test_a_leader_whose_connection_died_is_told(postgres: PostgresServer) -> None:
    database = Database.open(postgres.url, clock=SystemClock())
    leader = Leadership(database, "reconciler")
    try:
        assert await leader.hold()
        async with database.transaction() as session:
            await session.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'gantry-leader-reconciler'"
                )
            )
        assert not await leader.hold()
        until_free(postgres.url, lock_key("reconciler"))
        assert await leader.hold()
    finally:
        await leader.release()
        await database.close()


async def test_a_database_without_tables_says_what_to_do(own_postgres: PostgresServer) -> None:
    migrate.downgrade(own_postgres.url, "base")
    database = Database.open(own_postgres.url, clock=SystemClock())
    try:
        with pytest.raises(MetadataUnavailableError, match="gantry migrate"):
            async with database.transaction() as session:
                await TopicRepository(session).page()
    finally:
        await database.close()
