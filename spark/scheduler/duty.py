"""The scheduler's one connection, which also is its claim to be the only scheduler.

The advisory lock belongs to the session, and everything a scheduler does goes through that session: a statement that
succeeds was made by the holder of the lock. There is no lease that could have run out meanwhile.
"""

from contextlib import suppress

import psycopg

from spark.postgres import Connection, connect, cut, lock_key

DUTY = "scheduler"
STATEMENT_TIMEOUT_MS = 5_000


class Duty:
    """A connection that is made when it is needed, and the lock that goes with it.

    Concurrency: one thread at a time uses it; any other may call `cut` to end that one's wait.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Connection | None = None
        self._is_held = False

    @property
    def is_held(self) -> bool:
        """Whether this process is the scheduler, as far as it knows."""
        return self._is_held

    def connection(self) -> Connection:
        """Return the connection, made anew where the last one broke. Raises psycopg.Error."""
        if self._connection is None or self._connection.closed:
            self._is_held = False
            self._connection = connect(
                self._url, application="gantry-scheduler", statement_timeout_ms=STATEMENT_TIMEOUT_MS
            )
        return self._connection

    def hold(self) -> bool:
        """Keep or take the duty; False where another process has it. Raises psycopg.Error."""
        connection = self.connection()
        if not self._is_held:
            row = connection.execute("SELECT pg_try_advisory_lock(%s)", (lock_key(DUTY),)).fetchone()
            self._is_held = row is not None and bool(row[0])
        return self._is_held

    def drop(self) -> None:
        """Give up connection and duty; the next call begins anew."""
        connection, self._connection, self._is_held = self._connection, None, False
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def cut(self) -> None:
        """End the wait of the thread that uses the connection."""
        connection = self._connection
        if connection is not None:
            cut(connection)
