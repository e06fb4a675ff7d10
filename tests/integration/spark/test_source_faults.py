"""The answers of the data source if brokers, name servers or Postgres fail."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.remoting.codes import RequestCode, ResponseCode
from spark.datasource.brokers import live
from spark.datasource.brokers.survey import SurveyError
from spark.datasource.brokers.topicqueues import MissingMessagesError
from spark.datasource.kinds.messages import MessagesReader
from spark.datasource.options import MESSAGES, Options, read_options
from spark.datasource.schema import BY_KIND
from tests.support.datasource import LiveCluster, Stream, commit, make_group, read_task, reader, rows, send
from tests.support.postgres import PostgresServer


@pytest.fixture
def cluster(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveCluster]:
    async def fill(peers):
        for peer in peers.values():
            await peer.make_topic("Orders", 2)
            await make_group(peer, "g")
            await send(peer, "Orders", 0, "A", "B", "C")
            await commit(peer, "g", "Orders", 0, 1)

    monkeypatch.setattr(live, "REQUEST_TIMEOUT_MS", 1_500)
    cluster = LiveCluster(tmp_path, "broker-a", "broker-b")
    try:
        cluster.start()
        cluster.put(fill)
        yield cluster
    finally:
        cluster.stop()


def lags(found: list[dict[str, Any]]) -> dict[tuple[str, int], Any]:
    return {(row["broker"], row["queue_id"]): row["lag"] for row in found if row["topic"] == "Orders"}


def test_a_broker_that_hangs_costs_only_its_own_numbers(cluster: LiveCluster):
    whole = {("broker-a", 0): 2, ("broker-a", 1): None, ("broker-b", 0): 2, ("broker-b", 1): None}
    namesrv = cluster.namesrv.address
    assert lags(rows("offsets", namesrv=namesrv)) == whole
    process = cluster.brokers["broker-b"].facts["pid"]
    os.kill(process, signal.SIGSTOP)
    try:
        found = rows("offsets", namesrv=namesrv)
        assert lags(found) == {**whole, ("broker-b", 0): None}
        assert {row["error"] is None for row in found if row["broker"] == "broker-b"} == {False}
        assert {row["error"] is None for row in found if row["broker"] == "broker-a"} == {True}
        heads = rows("heads", namesrv=namesrv)
        assert {row["broker"] for row in heads if row["first_offset"] == 1} == {"broker-a"}
        groups = {row["broker"]: row for row in rows("groups", namesrv=namesrv)}
        assert (groups["broker-a"]["clients"], groups["broker-b"]["clients"]) == (0, None)
        assert "broker-b" in groups["broker-b"]["error"]
        assert {row["broker"] for row in rows("backlog", namesrv=namesrv)} == {"broker-a"}
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_broker_that_goes_away_before_its_task_leaves_rows_without_numbers(cluster: LiveCluster):
    made = reader("backlog", namesrv=cluster.namesrv.address)
    tasks = list(made.partitions())
    cluster.brokers["broker-b"].kill()
    found = [row for task in tasks for row in read_task(made, task)]
    known = {(row["broker"], row["queue_offset"]): row["physical_offset"] is not None for row in found}
    assert known == {("broker-a", 1): True, ("broker-a", 2): True, ("broker-b", 1): False, ("broker-b", 2): False}
    heads = reader("heads", namesrv=cluster.namesrv.address)
    assert {row["broker"] for task in heads.partitions() for row in read_task(heads, task)} == {"broker-a"}
    cluster.brokers["broker-a"].kill()
    with pytest.raises(SurveyError, match="no broker is registered"):
        rows("offsets", namesrv=cluster.namesrv.address)


def test_a_topic_deleted_before_its_task_is_told(cluster: LiveCluster):
    async def delete(peers):
        for peer in peers.values():
            answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, ext={"topic": "Orders"})
            assert answer.code == ResponseCode.SUCCESS

    backlog, heads = (reader(kind, namesrv=cluster.namesrv.address) for kind in ("backlog", "heads"))
    planned = [(made, list(made.partitions())) for made in (backlog, heads)]
    cluster.put(delete)
    units, firsts = ([row for task in tasks for row in read_task(made, task)] for made, tasks in planned)
    assert [(row["queue_offset"], row["physical_offset"]) for row in units] == [(1, None), (2, None)] * 2
    told = [row for row in firsts if row["queue_id"] == 0]
    assert all(row["first_offset"] is None and "Orders" in row["error"] for row in told)
    assert len(told) == 2


def test_no_name_server_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ClientError, match=r"127\.0\.0\.1:1"):
        rows("offsets", namesrv="127.0.0.1:1")


def test_work_that_never_ends_is_ended():
    options = Options("offsets", namesrv=("127.0.0.1:1",))
    closed = []

    async def wait(engine: ClientEngine) -> None:
        await asyncio.Event().wait()

    async def one_and_wait(engine: ClientEngine) -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.append(engine.client_id)

    with pytest.raises(TimeoutError):
        live.run(options, wait, timeout_ms=50)
    items = live.stream(options, one_and_wait, step_timeout_ms=50)
    assert next(items) == 1
    with pytest.raises(TimeoutError):
        next(items)
    first = live.stream(options, one_and_wait)
    assert next(first) == 1
    first.close()  # A task that Spark cancels.
    assert len(closed) == 2


@pytest.fixture
def remembering(postgres: PostgresServer) -> Iterator[str]:
    """Postgres with what a gateway has seen: a group that is away, and a broker that no longer registers."""
    now = datetime.now(UTC)
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        for expression, seen_at in (("A", now), ("B || C", now.replace(year=now.year + 1))):
            connection.execute(
                """INSERT INTO subscriptions (group_name, topic, client_kind, message_model, expression_type, expression,
                     expression_sha256, sub_version, clients, clients_count, active, verdict, last_seen_at)
                   VALUES ('g', 'Orders', 'JAVA', 'CLUSTERING', 'TAG', %s, sha256(%s::bytea), 1, '[]', 0, false,
                     'consistent', %s)""",
                (expression, expression.encode(), seen_at),
            )
        connection.execute(
            """INSERT INTO topics (name, config, version, state, origin, observed)
               VALUES ('Orders', '{}', 1, 'applied', 'api', '{"broker-a": {"read_queues": 2},
                 "broker-z": {"read_queues": 3}}')"""
        )
        yield postgres.url
        connection.execute("DELETE FROM subscriptions")
        connection.execute("DELETE FROM topics")


def test_what_postgres_remembers_fills_in_for_who_is_away(cluster: LiveCluster, remembering: str):
    namesrv = cluster.namesrv.address
    heads = {row["broker"]: row for row in rows("heads", namesrv=namesrv, database=remembering) if row["queue_id"] == 0}
    # The filter that was seen last lets B through, at offset 1; and a broker that nobody has heard of since is told.
    assert (heads["broker-a"]["filter"], heads["broker-a"]["first_offset"]) == ("B || C", 1)
    found = rows("offsets", namesrv=namesrv, database=remembering)
    lost = [row for row in found if row["broker"] == "broker-z"]
    assert [(row["queue_id"], row["lag"], row["error"]) for row in lost] == [
        (number, None, "broker broker-z: no name server knows it just now") for number in range(3)
    ]
    groups = rows("groups", namesrv=namesrv, database=remembering)
    assert {row["ever_seen"] for row in groups} == {True}


def test_postgres_away_is_told_and_costs_no_offsets(cluster: LiveCluster):
    namesrv, away = cluster.namesrv.address, "postgresql://127.0.0.1:1/nothing"
    assert {row["error"] for row in rows("offsets", namesrv=namesrv, database=away)} == {None}
    (group, *_) = rows("groups", namesrv=namesrv, database=away)
    assert (group["clients"], group["ever_seen"]) == (0, None)
    assert group["error"].startswith("Postgres could not be asked")
    head = next(row for row in rows("heads", namesrv=namesrv, database=away) if row["queue_id"] == 0)
    assert head["first_offset"] is None
    assert head["error"].startswith("the group's filter is unknown: Postgres could not be asked")


def messages(**options: str) -> MessagesReader:
    return MessagesReader(read_options({"kind": MESSAGES, **options}), BY_KIND[MESSAGES])


def test_messages_of_a_broker_that_name_servers_have_forgotten_are_missed_if_a_database_is_given(
    cluster: LiveCluster, remembering: str
) -> None:
    given = {"namesrv": cluster.namesrv.address, "topics": "Orders"}
    lost = r"topic Orders: broker broker-z: no name server knows it just now"
    with pytest.raises(MissingMessagesError, match=lost):
        messages(database=remembering, **given).partitions()
    with pytest.raises(MissingMessagesError, match=lost):
        messages(database=remembering, namesrv=given["namesrv"]).partitions()
    with pytest.raises(MissingMessagesError, match=lost):
        Stream(database=remembering, **given).run()
    away = "postgresql://127.0.0.1:1/nothing"
    with pytest.raises(MissingMessagesError, match="Postgres could not be asked"):
        messages(database=away, **given).partitions()
    # Other topics, and queries without a database, do not depend on it.
    cluster.put(lambda peers: peers["broker-a"].make_topic("Other", 1))
    messages(database=remembering, namesrv=given["namesrv"], topics="Other").partitions()
    made = messages(**given)
    assert len([row for task in made.partitions() for row in read_task(made, task)]) == 6
