"""The only module that knows the driver: connections with a limit on every wait, and the meaning of driver errors.

psycopg has a time-out for connecting but none for waiting: a server that was stopped with SIGSTOP, or whose machine has
vanished, keeps a query waiting until TCP gives up. When a task is cancelled, psycopg asks the server to cancel as well,
which takes twice five seconds if the server does not answer. So every wait here has a limit after which the socket is
shut down, and a cancelled wait ends its connection at once; the pool replaces it.
"""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import errors as pg
from psycopg import waiting
from sqlalchemy import exc
from sqlalchemy.engine import URL, make_url

from services.gateway.db.errors import MetadataUnavailableError

CONNECT_TIMEOUT_S = 3
NETWORK_TIMEOUT_S = 6.0
STATEMENT_TIMEOUT_MS = 5_000
LOCK_TIMEOUT_MS = 4_000
# A statement must be able to reach its own time-out and report it before its connection is closed.
assert NETWORK_TIMEOUT_S * 1_000 > STATEMENT_TIMEOUT_MS > LOCK_TIMEOUT_MS

_SESSION_LIMITS = (
    f"-c statement_timeout={STATEMENT_TIMEOUT_MS} -c lock_timeout={LOCK_TIMEOUT_MS}"
    " -c idle_in_transaction_session_timeout=15000 -c timezone=UTC"
)

# By SQLSTATE class: conditions that are no fault of the statement, and may pass.
_AWAY_CLASSES = {
    "08": "the connection failed",
    "25": "it accepts no writes now",
    "28": "it rejects the gateway's user",
    "3D": "the database does not exist",
    "40": "two transactions conflicted",
    "53": "it is out of disk, memory or connections",
    "55": "a lock was not granted in time",
    "57": "it is stopping or starting, or cancelled the statement",
    "58": "its operating system reports an error",
    "XX": "it reports damaged data or an internal error",
}
_NOT_MIGRATED = {"42P01", "42703", "3F000"}


class BoundedConnection(psycopg.AsyncConnection[Any]):
    """A connection whose every wait ends within NETWORK_TIMEOUT_S, answered or not.

    Concurrency: after a wait was cut or cancelled, the connection is broken for good, and reports this.
    """

    async def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:  # noqa: ASYNC109 - the driver's own signature.
        """Run a driver generator to its end, or break the connection."""
        limit_s = NETWORK_TIMEOUT_S if timeout is None else min(timeout, NETWORK_TIMEOUT_S)
        alarm = asyncio.get_running_loop().call_later(limit_s, self._shut_down)
        try:
            return await waiting.wait_async(gen, self.pgconn.socket, interval=interval)
        except (asyncio.CancelledError, KeyboardInterrupt):
            self.pgconn.finish()
            raise
        finally:
            alarm.cancel()

    def _shut_down(self) -> None:
        # The socket is shut down rather than closed: the waiting side then reads end-of-file, and its descriptor is not
        # reused.
        with suppress(OSError, psycopg.OperationalError), socket.socket(fileno=_duplicate(self.pgconn.socket)) as twin:
            twin.shutdown(socket.SHUT_RDWR)


def _duplicate(descriptor: int) -> int:
    original = socket.socket(fileno=descriptor)
    try:
        return original.dup().detach()
    finally:
        original.detach()


def driver_url(url: str) -> URL:
    """Return the URL in SQLAlchemy's form; `postgres://` and `postgresql://` both mean psycopg 3.

    Raises:
        ValueError: It is not a Postgres URL.
    """
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        raise ValueError("the database URL is not valid; expected postgresql://user@host:5432/name") from None
    if parsed.drivername not in ("postgres", "postgresql", "postgresql+psycopg"):
        raise ValueError(f"the database URL starts with {parsed.drivername}://, but only postgresql:// is supported")
    return parsed.set(drivername="postgresql+psycopg")


def connect_arguments(application: str) -> dict[str, Any]:
    """Return the arguments of every connection: the limits that the server and the kernel enforce."""
    return {
        "connect_timeout": CONNECT_TIMEOUT_S,
        "application_name": application,
        "options": _SESSION_LIMITS,
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "keepalives_count": 3,
        "tcp_user_timeout": int(NETWORK_TIMEOUT_S * 1_000),
    }


def unavailable(error: BaseException) -> MetadataUnavailableError | None:
    """Return the unavailability that an error means, or None if it is a fault of the gateway's own statement."""
    if isinstance(error, exc.TimeoutError):
        return MetadataUnavailableError("all connections to Postgres are busy")
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    return _from_driver(cause) if isinstance(cause, psycopg.Error) else None


def _from_driver(error: psycopg.Error) -> MetadataUnavailableError | None:
    state = error.sqlstate
    if state in _NOT_MIGRATED:
        return MetadataUnavailableError("the tables are not those of this version: run `gantry migrate`")
    if isinstance(error, pg.QueryCanceled):
        return MetadataUnavailableError(f"Postgres cancelled the statement after {STATEMENT_TIMEOUT_MS} ms")
    if state is not None and state[:2] in _AWAY_CLASSES:
        return MetadataUnavailableError(f"Postgres answers {state}: {_AWAY_CLASSES[state[:2]]}")
    if state is None and isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
        return MetadataUnavailableError(f"Postgres can't be reached: {first_line(error)}")
    return None


def first_line(error: BaseException | None) -> str:
    """Return the first line of an error, without the hints and positions that psycopg adds below."""
    return str(error).strip().partition("\n")[0]
