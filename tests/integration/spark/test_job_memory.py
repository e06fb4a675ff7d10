"""A job's driver stays as small with many rows as with a few.

`make test` takes twice the 40,000 rows that a page is made of at most: all rows as Python's objects would be 500 MiB. With
200,000 rows, which is long, the JVM could not keep all of them below its bound either.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark.postgres import Connection
from tests.support.postgres import PostgresServer
from tests.support.reports import report_tables
from tests.support.sparkjobs import JOB_TIMEOUT_S, ROOT, skip_without_java
from tests.support.stack import environment

SMALL, LARGE, LARGEST = 8_000, 80_000, 200_000
PYTHON_KIB_MAX = 320 * 1_024
"""More with the large report than with the small one: the 40,000 rows that a page is made of at most, as Python's objects."""
HEAP_KIB_MAX = 192 * 1_024
"""The same of the JVM, which collects garbage when it sees fit."""

pytestmark = pytest.mark.timeout(420)


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[Connection]:
    skip_without_java()
    with report_tables(postgres) as connected:
        yield connected


def measured(rows: int, *arguments: str) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.integration.spark.largejob", str(rows), *arguments]
    ended = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=JOB_TIMEOUT_S, check=False
    )
    assert ended.returncode == 0, ended.stdout[-500:] + ended.stderr[-3000:]
    found: dict[str, int] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("rows", "said"),
    [(LARGE, "80,000 rows on 4,706"), pytest.param(LARGEST, "200,000 rows on 11,765", marks=pytest.mark.long)],
)
def test_the_drivers_memory_does_not_grow_with_rows(
    connection: Connection, postgres: PostgresServer, tmp_path: Path, rows: int, said: str
) -> None:
    told = ("--database", postgres.url, "--output", str(tmp_path), "--namesrv", "127.0.0.1:1")
    small, large = measured(SMALL, *told), measured(rows, *told)
    kept = connection.execute(
        "SELECT rows, count(*) FROM report_runs JOIN report_lag_rows ON run_id = id GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert kept == [(SMALL, SMALL), (rows, rows)]
    assert large["python"] - small["python"] < PYTHON_KIB_MAX, (small, large)
    assert large["heap"] - small["heap"] < HEAP_KIB_MAX, (small, large)
    page = connection.execute("SELECT html FROM report_pages JOIN report_runs ON run_id = id WHERE rows = %s", (rows,))
    row = page.fetchone()
    assert row is not None
    assert f"This report has {said} groups and topics" in row[0]
    assert len(row[0]) < 2_000_000
