"""Connections to Postgres for jobs and the scheduler: short limits, autocommit, and what an error means in one line."""

import hashlib
import socket
from contextlib import suppress

import psycopg
from psycopg.rows import TupleRow

CONNECT_TIMEOUT_S = 3
# What a job writes at its end is one COPY of at most some hundred thousand rows.
STATEMENT_TIMEOUT_MS = 60_000
LOCK_TIMEOUT_MS = 4_000
NETWORK_TIMEOUT_MS = 10_000

Connection = psycopg.Connection[TupleRow]

_NOT_MIGRATED = frozenset({"42P01", "42703", "3F000"})


def connect(url: str, *, application: str, statement_timeout_ms: int = STATEMENT_TIMEOUT_MS) -> Connection:
    """Open a connection in autocommit mode, in UTC.

    Args:
        url: `postgresql://…`; SQLAlchemy's `postgresql+psycopg://…` is taken as well.
        application: What the server's lists of sessions show.
        statement_timeout_ms: After which the server gives a statement up.

    Raises:
        psycopg.Error: The server can't be reached, or the URL can't be read.
    """
    # A transaction that is left open for long would keep Postgres from cleaning up: each statement is its own, and
    # what belongs together says so with connection.transaction().
    return psycopg.connect(
        url.replace("postgresql+psycopg://", "postgresql://", 1),
        autocommit=True,
        connect_timeout=CONNECT_TIMEOUT_S,
        application_name=application,
        options=f"-c statement_timeout={statement_timeout_ms} -c lock_timeout={LOCK_TIMEOUT_MS} -c timezone=UTC",
        keepalives_idle=10,
        keepalives_interval=3,
        keepalives_count=3,
        tcp_user_timeout=NETWORK_TIMEOUT_MS,
    )


def cut(connection: Connection) -> None:
    """Break a connection on which another thread waits, so that its wait ends with an error.

    psycopg has no limit for a wait: a server that hangs would hold the thread until TCP gives up, and one behind a
    Unix socket for ever. Shut down and not closed, so that nothing reuses the descriptor that the thread looks at.
    """
    with suppress(OSError, psycopg.Error):
        original = socket.socket(fileno=connection.pgconn.socket)
        try:
            twin = original.dup()
        finally:
            original.detach()
        with twin:
            twin.shutdown(socket.SHUT_RDWR)


def reason(error: psycopg.Error) -> str:
    """Return what a driver's error means for people, in one line."""
    if error.sqlstate in _NOT_MIGRATED:
        return "the tables of Postgres are not those of this version: run `gantry migrate`"
    said = str(error).strip().partition("\n")[0]
    return f"Postgres answers {error.sqlstate}: {said}" if error.sqlstate else f"Postgres can't be reached: {said}"


def lock_key(duty: str) -> int:
    """Return the 64-bit advisory lock key of a duty, made as the gateway makes its own."""
    return int.from_bytes(hashlib.sha256(f"gantry.{duty}".encode()).digest()[:8], "big", signed=True)
