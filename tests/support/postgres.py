"""A real Postgres for tests: one server per session, one savepoint per test.

`database` gives a test a Database over one connection whose outer transaction is rolled back at the end, so that tests
see an empty, migrated schema and leave nothing behind. Tests that stop, hang or kill a server use a `PostgresServer` of
their own. Each process of a test run makes and migrates one database, which stacks and servers get as a copy.
"""

import atexit
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from gantry.cli.stack.postgres import EmbeddedPostgres, embedded_postgres, identity, server_environment
from gantry.cli.stack.processes import die_with_parent, family, signal_all
from gantry.runtime.clock import SystemClock
from services.gateway.db import migrate
from services.gateway.db.driver import driver_url
from services.gateway.db.engine import Database, make_engine

READY_TIMEOUT_S = 30.0


class PostgresServer:
    """A server with its own folder, which tests may stop, hang or kill."""

    def __init__(self, *, copies_database: bool = True) -> None:
        """``copies_database=False`` runs ``initdb``, which takes seconds, as the user that the stack picks now.

        Its database has no tables. The copied one is migrated.
        """
        # Not below pytest's folder: root runs Postgres as an unprivileged user, who has no access to that folder.
        self.directory = Path(tempfile.mkdtemp(prefix="gantry-pg-"))
        self.directory.chmod(0o711)
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._postgres: EmbeddedPostgres = embedded_postgres(self.directory)
            if copies_database:
                copy_new_database(self.directory)
            self._postgres.prepare()
        except BaseException:
            self.remove()
            raise

    @property
    def url(self) -> str:
        return self._postgres.url

    @property
    def data(self) -> Path:
        return self._postgres.data

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        self._postgres.clear_leftovers()
        before = self._process
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._postgres.command,
                stdout=log,
                stderr=log,
                cwd="/",
                env=server_environment(),
                preexec_fn=die_with_parent(signal.SIGQUIT),  # noqa: PLW1509 - it only asks the kernel.
                **identity(self._postgres.user),  # type: ignore[call-overload]
            )
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._postgres.is_ready(self.pid):
            assert self._process.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < deadline, "Postgres was not ready in time"
            time.sleep(0.02)
        if before is not None:
            before.wait(READY_TIMEOUT_S)

    def pause(self) -> None:
        signal_all(family(self.pid), signal.SIGSTOP)

    def resume(self) -> None:
        signal_all(family(self.pid), signal.SIGCONT)

    def kill(self) -> None:
        signal_all(family(self.pid), signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            self._wait()

    def remove(self) -> None:
        if self._process is not None:
            self.resume()
            self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _wait(self) -> None:
        assert self._process is not None
        self._process.wait(READY_TIMEOUT_S)
        self._process = None


def copy_new_database(directory: Path) -> None:
    """Put a new, migrated data folder of Postgres into a stack's folder, unless it has one.

    initdb and the migrations take seconds of processor time and wait for the disk. A test run needs some eighty databases.
    """
    target = directory / "postgres"
    if not target.exists():
        # With the owner and the modes: Postgres refuses a folder that is not its user's alone.
        subprocess.run(["cp", "-a", "--reflink=auto", _new_database(), target], check=True)


@cache
def _new_database() -> Path:
    server = PostgresServer(copies_database=False)
    atexit.register(server.remove)
    server.start()
    migrate.upgrade(server.url)
    server.stop()
    return server.data


def until_free(url: str, key: int) -> None:
    """Wait until no connection holds an advisory lock: Postgres releases it a moment after its connection has closed."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    held = (
        "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
        " WHERE locktype = 'advisory' AND datname = current_database() AND (classid::int8 << 32 | objid::int8) = %s"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(held, (key,)).fetchone() != (0,):
            assert time.monotonic() < deadline, f"lock {key} is still held"
            time.sleep(0.01)


@pytest.fixture(scope="session")
def session_postgres() -> Iterator[PostgresServer]:
    """The session's server, migrated."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="module")
def postgres(session_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """The session's server, with empty tables for each module; a test must not stop, hang or kill it."""
    yield session_postgres
    _empty_tables(session_postgres.url)


def _empty_tables(url: str) -> None:
    """Remove the rows that a module has committed, so that the order of modules has no effect."""
    names = (
        "SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND NOT relispartition"
        " AND relnamespace = 'public'::regnamespace AND relname <> 'alembic_version'"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        tables = [sql.Identifier(name) for (name,) in connection.execute(names)]
        # A connection that a test has left open fails here and does not hang.
        connection.execute("SET lock_timeout = '10s'")
        connection.execute(sql.SQL("TRUNCATE {} RESTART IDENTITY CASCADE").format(sql.SQL(", ").join(tables)))


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A migrated server of the test's own, which it may stop, hang or kill."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
async def database(postgres: PostgresServer) -> AsyncIterator[Database]:
    """A Database whose changes are rolled back after the test."""
    engine = make_engine(driver_url(postgres.url), application="gantry-test", pooled=False)
    async with engine.connect() as connection:
        outer = await connection.begin()
        yield Database(connection, clock=SystemClock())
        await outer.rollback()
    await engine.dispose()
