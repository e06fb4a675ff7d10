"""Connections to Postgres for jobs and the scheduler, with short time limits and autocommit; errors in one line."""

import hashlib
import socket
from contextlib import suppress

import psycopg
from psycopg.rows import TupleRow

CONNECT_TIMEOUT_S = 3
# The longest statement is a job's COPY of some hundred thousand rows.
STATEMENT_TIMEOUT_MS = 60_000
LOCK_TIMEOUT_MS = 4_000
NETWORK_TIMEOUT_MS = 10_000

Connection = psycopg.Connection[TupleRow]

_NOT_MIGRATED = frozenset({"42P01", "42703", "3F000"})


def connect(url: str, *, application: str, statement_timeout_ms: int = STATEMENT_TIMEOUT_MS) -> Connection:
    """Open a connection in autocommit mode, in UTC.

    Args:
        url: The URL, `postgresql://…` or SQLAlchemy's `postgresql+psycopg://…`.
        application: The name of the session in the server's lists.
        statement_timeout_ms: The time after which the server cancels a statement.

    Raises:
        psycopg.Error: The server can't be reached, or the URL is invalid.
    """
    # Autocommit, because a transaction that stays open for long keeps Postgres from cleaning up. Statements that belong
    # together use connection.transaction().
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

    psycopg has no time limit for a wait. If the server hangs, the thread waits until TCP gives up, or forever on a Unix
    socket. This function shuts the socket down but does not close it, so that its descriptor is not reused while the
    thread waits on it.
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
    """Return a driver's error as one line for people."""
    if error.sqlstate in _NOT_MIGRATED:
        return "the tables of Postgres are not those of this version: run `gantry migrate`"
    message = str(error).strip().partition("\n")[0]
    return (
        f"Postgres answers {error.sqlstate}: {message}" if error.sqlstate else f"Postgres can't be reached: {message}"
    )


def lock_key(name: str) -> int:
    """Return the 64-bit key of the advisory lock with a name. The gateway computes its keys in the same way."""
    return int.from_bytes(hashlib.sha256(f"gantry.{name}".encode()).digest()[:8], "big", signed=True)
