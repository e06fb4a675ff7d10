"""Report tables for tests: a connection to the session's Postgres; the tables are empty before and after each test."""

from collections.abc import Iterator
from contextlib import contextmanager

from spark.postgres import Connection, connect
from tests.support.postgres import PostgresServer

TABLES = (
    "report_pages",
    "report_lag_rows",
    "report_backlog_rows",
    "report_throughput",
    "report_schedules",
    "report_schedules_set",
    "report_runs",
    "alert_states",
    "alert_events",
    "webhooks",
)


@contextmanager
def report_tables(postgres: PostgresServer) -> Iterator[Connection]:
    with connect(postgres.url, application="gantry-test") as connection:
        clear(connection)
        try:
            yield connection
        finally:
            clear(connection)


def clear(connection: Connection) -> None:
    connection.execute(f"TRUNCATE {', '.join(TABLES)} CASCADE")
