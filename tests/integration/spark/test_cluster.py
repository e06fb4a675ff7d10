"""A job on a cluster of Spark's own, whose workers have neither our code nor our time zone, says what it says here."""

import json
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from gantry.http import GantryClient, OutgoingMessage
from gantry.http.results import OffsetCommit
from spark.jobs.arguments import make_parser, read_arguments
from spark.jobs.job import JobContext
from spark.jobs.lag_report import JOB
from spark.jobs.ledger import NoLedger, utc_of
from spark.storedrows import to_rows
from tests.support.sparkcluster import Cluster
from tests.support.sparkjobs import run_job, skip_without_java
from tests.support.stack import Stack
from tests.support.submit import documented, submit

TOPIC, BROKER, QUEUES, PER_QUEUE = "LAGGED", "broker-a", 3, 20
SAME = ("lag_messages", "verdict", "oldest_unconsumed_at", "top_tags", "clients", "skew")

pytestmark = pytest.mark.timeout(420)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """A group that is behind everywhere, one that is behind in one queue, and one that has everything."""
    skip_without_java()
    with Stack(brokers=1) as running, GantryClient.from_stack(running.directory) as client:
        client.put_topic(TOPIC, read_queues=QUEUES, write_queues=QUEUES)
        for queue in range(QUEUES):
            place = {"broker": BROKER, "id": queue}
            messages = [OutgoingMessage(f"{n}", tag="AB"[n % 2], queue=place) for n in range(PER_QUEUE)]
            assert client.send_batch(TOPIC, messages).stored == PER_QUEUE
        for group, offsets in {"behind": (4, 7, 9), "nearly": (20, 5, 20), "done": (20, 20, 20)}.items():
            client.put_group(group)
            commits = [OffsetCommit(TOPIC, BROKER, queue, offset) for queue, offset in enumerate(offsets)]
            assert {result.outcome for result in client.commit_offsets(group, commits)} == {"committed"}
        yield running


@pytest.fixture(scope="module")
def cluster(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")).running() as running:
        yield running


def by_place(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """A lag report's rows, by what each is about, without what counts seconds up to now."""
    place = ("level", "group", "topic", "broker", "queue_id")
    return {tuple(row[name] for name in place): {name: row[name] for name in SAME} for row in rows}


@pytest.fixture(scope="module")
def rows_here(stack: Stack, spark: SparkSession) -> list[dict[str, Any]]:
    """The report by the tests' own session: another JVM would take as long as the cluster."""
    arguments = read_arguments(make_parser("lag_report", ""), ["--data", str(stack.directory)], {})
    now = datetime.now(UTC)
    work = JobContext(spark, arguments, NoLedger("lag_report", arguments, now).run, now, lambda percent, text: None)
    rows = to_rows(JOB.compute(work).toArrow(), json=JOB.table.json)
    spark.catalog.clearCache()
    as_printed: list[dict[str, Any]] = json.loads(json.dumps(rows, default=utc_of))
    return as_printed


def test_workers_do_not_have_our_code_by_themselves(cluster: Cluster, tmp_path: Path) -> None:
    command = [cluster.environment["PYSPARK_PYTHON"], "-c", "import msgspec, pyarrow, pyspark, gantry"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'gantry'"


def test_a_lag_report_on_a_cluster_says_what_it_says_on_this_machine(
    stack: Stack, cluster: Cluster, rows_here: list[dict[str, Any]]
) -> None:
    told = ("--data", str(stack.directory), "--output", str(stack.directory / "reports"))
    there = by_place(run_job("lag_report", "--master", cluster.master, *told, extra=cluster.environment))
    assert cluster.packages_were_shipped()
    assert there == by_place(rows_here)
    of_topics = {group: row["lag_messages"] for (level, group, *_), row in there.items() if level == "topic"}
    assert of_topics == {"behind": 40, "nearly": 15, "done": 0}


def test_a_report_by_spark_submit_has_the_settings_of_its_command_line(
    stack: Stack, cluster: Cluster, rows_here: list[dict[str, Any]], spark: SparkSession, tmp_path: Path
) -> None:
    shared = f"file:{tmp_path}/shared"
    words = documented("spark://HOST:7077", **{"spark://HOST:7077": cluster.master, "/var/lib/gantry/reports": shared})
    at = words.index("--namesrv")
    words[at : at + 2] = ["--data", str(stack.directory), "--json"]
    ended = submit(*words, extra={**cluster.environment, "TZ": "Asia/Tokyo"})
    assert ended.returncode == 0, ended.stderr[-3000:]
    said = json.loads(ended.stdout.splitlines()[-1])
    assert by_place(said["items"]) == by_place(rows_here)
    (application,) = cluster.applications("nightly-lag")
    assert '"-Xmx600M"' in application, "the executor's heap"
    tasks = {int(number) for number in re.findall(r"Running task (\d+)\.0 in stage", application)}
    assert max(tasks) < 10, "a small report does not have Spark's 200 partitions"
    # Hadoop's FileSystem has written both.
    page = said["files"]["html"]
    assert page == f"{shared}/lag_report/{said['run']}.html"
    assert "behind" in Path(page.removeprefix("file:")).read_text()
    assert spark.read.parquet(said["files"]["parquet"]).count() == len(said["items"])
