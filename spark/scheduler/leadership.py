"""The scheduler's only connection to Postgres, which also holds the lock that makes it the only active scheduler.

The advisory lock belongs to the session of the connection, and the scheduler runs all statements in that session. So if
a statement succeeds, the holder of the lock made it. There is no lease that could expire in between.
"""

from contextlib import suppress

import psycopg

from spark.postgres import Connection, connect, cut, lock_key

LOCK = "scheduler"
STATEMENT_TIMEOUT_MS = 5_000


class Leadership:
    """A connection that is opened when it is needed, and the lock that belongs to it.

    Concurrency: one thread at a time uses it. Any other thread may call `cut` to end that thread's wait.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._is_held = False

    def connection(self) -> Connection:
        """Return the connection; open a new one if the last one broke. Raises psycopg.Error."""
        if self._connection is None or self._connection.closed:
            self._is_held = False
            self._connection = connect(
                self._url, application="gantry-scheduler", statement_timeout_ms=STATEMENT_TIMEOUT_MS
            )
        return self._connection

    def hold(self) -> bool:
        """Keep or acquire the lock; return whether this process holds it. Raises psycopg.Error."""
        connection = self.connection()
        if not self._is_held:
            row = connection.execute("SELECT pg_try_advisory_lock(%s)", (lock_key(LOCK),)).fetchone()
            self._is_held = row is not None and bool(row[0])
        return self._is_held

    def drop(self) -> None:
        """Close the connection, and so release the lock. The next call opens a new connection."""
        connection, self._connection, self._is_held = self._connection, None, False
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def cut(self) -> None:
        """Break the connection, to end the wait of the thread that uses it."""
        connection = self._connection
        if connection is not None:
            cut(connection)
