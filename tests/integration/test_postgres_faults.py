"""Postgres stops, hangs, dies or never ran: callers get their answer in time, and the gateway recovers without help."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx
import pytest
from sqlalchemy import text

from gantry.cli.stack.processes import family, signal_all
from gantry.runtime.clock import SystemClock
from services.gateway.db.engine import POOL_OVERFLOW_MAX, POOL_SIZE, Database
from services.gateway.db.errors import MetadataUnavailableError
from services.gateway.db.leadership import Leadership
from services.gateway.db.repositories import Actor, TopicRepository
from tests.support.postgres import PostgresServer
from tests.support.stack import Stack

ANSWER_WITHIN_S = 10.0
RECOVER_WITHIN_S = 15.0
ALICE = Actor("k-alice")


@pytest.fixture
async def lonely(own_postgres: PostgresServer) -> AsyncIterator[Database]:
    """A pooled Database over a server that the test may stop or kill."""
    database = Database.open(own_postgres.url, clock=SystemClock())
    await database.ping()
    yield database
    await database.close()


async def refused(database: Database) -> str:
    """Request a change, expect a refusal in time, and return its reason."""
    started = time.monotonic()
    with pytest.raises(MetadataUnavailableError) as caught:
        async with database.transaction() as session:
            await TopicRepository(session).put("T", {}, actor=ALICE)
    assert time.monotonic() - started < ANSWER_WITHIN_S
    return caught.value.reason


async def recovered(database: Database) -> None:
    deadline = time.monotonic() + RECOVER_WITHIN_S
    while True:
        try:
            await database.ping()
        except MetadataUnavailableError:
            assert time.monotonic() < deadline, "the pool did not recover"
            await asyncio.sleep(0.1)
        else:
            break
    async with database.transaction() as session:
        await TopicRepository(session).put("AFTER", {}, actor=ALICE)


async def test_stopped_and_started_again(own_postgres: PostgresServer, lonely: Database) -> None:
    own_postgres.stop()
    assert "can't be reached" in await refused(lonely)
    own_postgres.start()
    await recovered(lonely)


async def test_killed_and_started_again(own_postgres: PostgresServer, lonely: Database) -> None:
    own_postgres.kill()
    assert "can't be reached" in await refused(lonely)
    own_postgres.start()
    await recovered(lonely)


async def test_a_restart_between_two_calls_is_not_noticed(own_postgres: PostgresServer, lonely: Database) -> None:
    own_postgres.stop()
    own_postgres.start()
    await lonely.ping()


async def test_hanging(own_postgres: PostgresServer, lonely: Database) -> None:
    own_postgres.pause()
    try:
        assert await refused(lonely)
        started = time.monotonic()
        assert await refused(lonely)
        assert time.monotonic() - started < 0.5, "right after a failure callers are refused at once"
        await asyncio.sleep(1.1)
        assert await refused(lonely)
    finally:
        own_postgres.resume()
    await recovered(lonely)


async def test_hanging_in_the_middle_of_a_transaction(own_postgres: PostgresServer, lonely: Database) -> None:
    started = time.monotonic()

    async def hang_between() -> None:
        async with lonely.transaction() as session:
            await session.execute(text("SELECT 1"))
            own_postgres.pause()
            await session.execute(text("SELECT 2"))

    try:
        with pytest.raises(MetadataUnavailableError):
            await hang_between()
        assert time.monotonic() - started < ANSWER_WITHIN_S
    finally:
        own_postgres.resume()
    await recovered(lonely)


async def test_many_callers_of_a_hanging_server(own_postgres: PostgresServer, lonely: Database) -> None:
    callers = 3 * (POOL_SIZE + POOL_OVERFLOW_MAX)
    own_postgres.pause()
    try:
        reasons = await asyncio.gather(*(refused(lonely) for _ in range(callers)))
        assert len(reasons) == callers
    finally:
        own_postgres.resume()
    await recovered(lonely)
    # Every connection is back: the pool allows its full number of transactions.
    await asyncio.gather(*(lonely.ping() for _ in range(POOL_SIZE + POOL_OVERFLOW_MAX)))


async def test_a_cancelled_caller_keeps_no_connection(own_postgres: PostgresServer, lonely: Database) -> None:
    async def slow() -> None:
        async with lonely.transaction() as session:
            await session.execute(text("SELECT pg_sleep(4)"))

    started = time.monotonic()
    tasks = [asyncio.ensure_future(slow()) for _ in range(POOL_SIZE + POOL_OVERFLOW_MAX)]
    await asyncio.sleep(0.3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.gather(*(lonely.ping() for _ in range(POOL_SIZE + POOL_OVERFLOW_MAX)))
    assert time.monotonic() - started < 3


async def test_a_slow_statement_is_given_up(lonely: Database) -> None:
    with pytest.raises(MetadataUnavailableError, match="cancelled the statement"):
        async with lonely.transaction() as session:
            await session.execute(text("SELECT pg_sleep(30)"))


async def test_waiting_for_a_lock_is_limited(lonely: Database) -> None:
    async with lonely.transaction() as holder:
        await holder.execute(text("LOCK TABLE topics"))
        reason = await refused(lonely)
    assert "lock" in reason
    await asyncio.sleep(1.1)
    await recovered(lonely)


async def test_a_leader_steps_down_when_postgres_hangs(own_postgres: PostgresServer, lonely: Database) -> None:
    leader = Leadership(lonely, "reconciler")
    assert await leader.hold()
    own_postgres.pause()
    try:
        started = time.monotonic()
        assert not await leader.hold()
        assert time.monotonic() - started < ANSWER_WITHIN_S
    finally:
        own_postgres.resume()
    deadline = time.monotonic() + RECOVER_WITHIN_S
    while not await leader.hold():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.1)
    await leader.release()


async def test_a_server_that_never_ran() -> None:
    database = Database.open("postgresql://gantry@127.0.0.1:1/gantry", clock=SystemClock())
    assert "can't be reached" in await refused(database)
    await database.close()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=1) as running:
        with running.http() as client:
            client.put("/v1/topics/FLOW", json={}).raise_for_status()
        yield running


@contextmanager
def messages_flow(stack: Stack) -> Iterator[None]:
    """Send and read as long as the block runs, and expect that no request is refused or slow."""
    stop = threading.Event()
    faults: list[str] = []
    stored = 0

    def flow() -> None:
        nonlocal stored
        with stack.http(timeout_s=5) as client:
            while not stop.is_set():
                began = time.monotonic()
                try:
                    answer = client.post("/v1/topics/FLOW/messages", json={"body": "x"})
                    read = client.get("/v1/topics/FLOW/queues/broker-a/0/messages?limit=1")
                except httpx.TransportError as error:
                    faults.append(repr(error))
                    return
                took = time.monotonic() - began
                if answer.status_code != 201 or read.status_code != 200 or took > 2:
                    faults.append(f"{answer.status_code} {read.status_code} after {took:.1f} s: {answer.text}")
                stored += 1
                stop.wait(0.02)

    thread = threading.Thread(target=flow)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not faults, faults[:3]
    assert stored > 10


def admin_is_refused_in_time(client: httpx.Client) -> None:
    began = time.monotonic()
    answer = client.put("/v1/topics/ADMIN", json={"read_queues": 3})
    assert time.monotonic() - began < ANSWER_WITHIN_S
    assert answer.status_code == 503, answer.text
    problem = answer.json()
    assert problem["type"].endswith("/metadata-unavailable")
    assert problem["retryable"]
    assert int(answer.headers["Retry-After"]) >= 1


def reads_come_from_brokers(client: httpx.Client) -> None:
    began = time.monotonic()
    answer = client.get("/v1/topics/FLOW")
    assert time.monotonic() - began < ANSWER_WITHIN_S
    assert (answer.status_code, answer.json()["metadata"]) == (200, "unavailable")


def admin_works_again(client: httpx.Client) -> None:
    deadline = time.monotonic() + 2 * RECOVER_WITHIN_S
    while client.put("/v1/topics/ADMIN", json={"read_queues": 2}).status_code not in {200, 201}:
        assert time.monotonic() < deadline, "admin calls did not recover"
        time.sleep(0.2)
    assert client.get("/v1/topics/ADMIN").json()["metadata"] == "available"


def test_a_stack_serves_messages_while_postgres_hangs(stack: Stack) -> None:
    with stack.http() as client:
        with messages_flow(stack):
            paused = family(stack.pid_of("postgres"))
            signal_all(paused, signal.SIGSTOP)
            try:
                admin_is_refused_in_time(client)
                reads_come_from_brokers(client)
                assert client.get("/livez").status_code == 200
            finally:
                signal_all(paused, signal.SIGCONT)
        admin_works_again(client)


def test_a_stack_serves_messages_while_postgres_dies(stack: Stack) -> None:
    with stack.http() as client, messages_flow(stack):
        os.kill(stack.pid_of("postgres"), signal.SIGKILL)
        admin_works_again(client)


def test_a_stack_recovers_from_a_postgres_that_hangs_and_is_killed(stack: Stack) -> None:
    with stack.http() as client, messages_flow(stack):
        server = stack.pid_of("postgres")
        # Its children stay stopped: only the supervisor can remove them.
        signal_all(family(server), signal.SIGSTOP)
        admin_is_refused_in_time(client)
        os.kill(server, signal.SIGKILL)
        admin_works_again(client)


def test_a_stack_with_an_external_database(own_postgres: PostgresServer) -> None:
    with Stack(brokers=1, environment={"GANTRY_DATABASE_URL": own_postgres.url}) as stack, stack.http() as client:
        assert stack.facts["postgres"] == own_postgres.url
        assert "postgres" not in {process["name"] for process in stack.facts["processes"]}
        assert not (stack.directory / "postgres").exists()
        client.put("/v1/topics/FLOW", json={}).raise_for_status()
        own_postgres.stop()
        with messages_flow(stack):
            admin_is_refused_in_time(client)
            own_postgres.start()
            admin_works_again(client)
        assert stack.terminate() == 0

        # All services restart while the database is away: messages flow, and the key is still known.
        own_postgres.stop()
        stack.start()
        assert "starting without" in stack.printed()
        with messages_flow(stack):
            admin_is_refused_in_time(client)
            own_postgres.start()
            admin_works_again(client)
