"""report_runs and report_schedules on a real Postgres: who may run what, and who may write about it."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from services.gateway.usecases.reports.rows import SECTIONS
from spark import results
from spark.jobs import backlog_profile, lag_report, throughput_rollup
from spark.postgres import Connection, connect, reason
from spark.results import FencedError, publish
from spark.runs import _PRUNE_PIECE, Run, Runs, Schedule
from tests.support.postgres import PostgresServer
from tests.support.reports import report_tables

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[Connection]:
    with report_tables(postgres) as connected:
        yield connected


@pytest.fixture
def runs(connection: Connection) -> Runs:
    return Runs(connection)


def queue(runs: Runs, job: str = "lag_report", *, end: datetime = NOON, start: datetime | None = None) -> Run:
    run, is_new = runs.request(job, window_start=start, window_end=end, trigger="schedule")
    assert is_new
    return run


def claimed(runs: Runs, run: Run) -> Run:
    found = runs.claim(run.id)
    assert found is not None
    return found


def column(connection: Connection, run: Run, name: str) -> object:
    row = connection.execute(f"SELECT {name} FROM report_runs WHERE id = %s", (run.id,)).fetchone()
    assert row is not None
    return row[0]


def status(connection: Connection, run: Run) -> object:
    return column(connection, run, "status")


def age(connection: Connection, run: Run, name: str, seconds: float) -> None:
    """Let a moment of a run be longer ago."""
    connection.execute(
        f"UPDATE report_runs SET {name} = {name} - %s WHERE id = %s", (timedelta(seconds=seconds), run.id)
    )


def test_a_window_of_a_job_is_queued_once(runs: Runs) -> None:
    start = NOON - timedelta(hours=1)
    first = queue(runs, start=start)
    again, is_new = runs.request("lag_report", window_start=start, window_end=NOON, trigger="manual")
    assert (again.id, is_new) == (first.id, False)
    queue(runs, "backlog_profile", start=start)
    # Without a beginning, the end alone is the key.
    moment = queue(runs)
    assert runs.request("lag_report", window_start=None, window_end=NOON, trigger="schedule") == (moment, False)
    assert runs.find(uuid4()) is None


def test_a_claim_is_one_attempt(runs: Runs, connection: Connection) -> None:
    run = queue(runs)
    attempt = claimed(runs, run)
    assert (attempt.status, attempt.attempt) == ("running", 1)
    assert attempt.started_at is not None
    assert runs.claim(run.id) is None
    assert [row.id for row in runs.running()] == [run.id]
    assert runs.heartbeat(run.id, 1, percent=30, step="reading offsets")
    assert (column(connection, run, "progress_percent"), column(connection, run, "progress")) == (30, "reading offsets")


def test_one_run_of_a_job_at_a_time(runs: Runs) -> None:
    first, second = queue(runs), queue(runs, end=NOON + timedelta(minutes=1))
    other = queue(runs, "backlog_profile")
    claimed(runs, first)
    assert runs.claim(second.id) is None
    claimed(runs, other)
    runs.fail(first.id, 1, "no")
    claimed(runs, second)


def claim_both_at_once(url: str, pair: list[Run]) -> int:
    """Claim two runs from two connections at the same moment; return how many were given."""
    won: list[Run | None] = []
    barrier = threading.Barrier(2)

    def claim(run: Run) -> None:
        with connect(url, application="gantry-test") as own:
            barrier.wait(10)
            won.append(Runs(own).claim(run.id))

    threads = [threading.Thread(target=claim, args=(run,)) for run in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return sum(run is not None for run in won)


def test_two_claims_at_once_never_both_win(runs: Runs, postgres: PostgresServer) -> None:
    for turn in range(20):
        job = f"job-{turn}"
        pair = [queue(runs, job), queue(runs, job, end=NOON + timedelta(minutes=1))]
        assert claim_both_at_once(postgres.url, pair) == 1


def test_a_failure_is_for_good_or_for_now(runs: Runs, connection: Connection) -> None:
    run = queue(runs)
    claimed(runs, run)
    assert runs.fail(run.id, 1, "x" * 5_000, requeue=True)
    assert status(connection, run) == "queued"
    assert len(str(column(connection, run, "error"))) == 2_000
    (waiting,) = runs.queued()
    assert waiting.run.attempt == 1
    assert waiting.since_failure_ms is not None
    assert 0 <= waiting.since_failure_ms < 60_000
    assert claimed(runs, run).attempt == 2
    assert column(connection, run, "error") is None
    assert runs.fail(run.id, 2, "too slow", status="timed_out")
    assert status(connection, run) == "timed_out"
    assert not runs.try_again(run.id, 2)
    assert runs.queued() == []


def test_a_job_that_said_why_it_failed_may_be_tried_again(runs: Runs, connection: Connection) -> None:
    run = queue(runs)
    claimed(runs, run)
    assert runs.fail(run.id, 1, "no broker answers")
    assert runs.try_again(run.id, 1)
    assert (status(connection, run), column(connection, run, "error")) == ("queued", "no broker answers")


def test_an_attempt_that_was_given_up_writes_nothing(runs: Runs, connection: Connection) -> None:
    run = queue(runs)
    claimed(runs, run)
    assert runs.fail(run.id, 1, "lost", requeue=True)
    assert claimed(runs, run).attempt == 2
    assert not runs.heartbeat(run.id, 1, percent=99, step="late")
    assert not runs.fail(run.id, 1, "late")
    assert not runs.release(run.id, 1)
    with pytest.raises(FencedError, match=str(run.id)):
        publish(connection, lag_report.TABLE, run_id=run.id, attempt=1, rows=[], page="late", files={})
    assert connection.execute("SELECT 1 FROM report_pages").fetchone() is None
    assert (status(connection, run), column(connection, run, "attempt")) == ("running", 2)


def test_what_was_stopped_does_not_count(runs: Runs) -> None:
    run = queue(runs)
    claimed(runs, run)
    assert runs.release(run.id, 1)
    (waiting,) = runs.queued()
    assert (waiting.run.attempt, waiting.since_failure_ms) == (0, None)


def test_a_success_is_done_again_only_on_request(runs: Runs, connection: Connection) -> None:
    run = claimed(runs, queue(runs, "throughput_rollup"))
    assert runs.finish(run.id, run.attempt, rows=1, files={})
    assert not runs.requeue(run.id)
    assert runs.requeue(run.id, also_succeeded=True)
    assert status(connection, run) == "queued"
    # A run that waits or is running is not queued twice.
    assert not runs.requeue(run.id, also_succeeded=True)
    assert claimed(runs, run).attempt == 2


def test_people_come_first(runs: Runs) -> None:
    scheduled = queue(runs)
    broker_queries, _ = runs.request("lag_report", window_start=None, window_end=NOON + timedelta(1), trigger="manual")
    assert [waiting.run.id for waiting in runs.queued()] == [broker_queries.id, scheduled.id]


def test_silence_is_noticed(runs: Runs, connection: Connection) -> None:
    run = queue(runs)
    claimed(runs, run)
    assert runs.stale(after_ms=60_000) == []
    age(connection, run, "heartbeat_at", 61)
    assert [found.id for found in runs.stale(after_ms=60_000)] == [run.id]
    runs.heartbeat(run.id, 1, percent=None, step=None)
    assert runs.stale(after_ms=60_000) == []


def buckets(connection: Connection) -> list[tuple[str, int]]:
    rows = connection.execute(
        "SELECT unit, round(extract(epoch FROM clock_timestamp() - bucket_at) / 86400) FROM report_throughput ORDER BY 1, 2"
    )
    return [(unit, int(days)) for unit, days in rows]


def test_every_section_of_a_backlog_profile_can_be_stored(runs: Runs, connection: Connection) -> None:
    run = queue(runs, "backlog_profile")
    claimed(runs, run)
    rows = [{"group": "g", "topic": "T", "section": name, "bucket": "b", "messages": 1} for name in SECTIONS]
    publish(connection, backlog_profile.TABLE, run_id=run.id, attempt=1, rows=rows, page="", files={})
    stored = connection.execute("SELECT section FROM report_backlog_rows ORDER BY 1").fetchall()
    assert stored == [(name,) for name in SECTIONS]


def test_old_buckets_of_the_throughput_go_a_few_at_a_time(runs: Runs, connection: Connection) -> None:
    for unit in ("minute", "hour", "day"):
        for days in (1, 8, 9, 10, 91):
            connection.execute(
                "INSERT INTO report_throughput (unit, bucket_at, topic) VALUES (%s, clock_timestamp() - %s, 'T')",
                (unit, timedelta(days=days)),
            )
    kept = {"minute": timedelta(days=7), "hour": timedelta(days=90), "day": timedelta(days=1_000)}
    assert runs.prune_throughput(older_than=kept, limit=2) == 3
    assert [days for unit, days in buckets(connection) if unit == "minute"] == [1, 8, 9], "the oldest ones first"
    assert runs.prune_throughput(older_than=kept, limit=2) == 2
    assert runs.prune_throughput(older_than=kept, limit=2) == 0
    assert buckets(connection) == [
        ("day", 1), ("day", 8), ("day", 9), ("day", 10), ("day", 91),
        ("hour", 1), ("hour", 8), ("hour", 9), ("hour", 10),
        ("minute", 1),
    ]  # fmt: skip
    plan = connection.execute(
        "EXPLAIN SELECT ctid FROM report_throughput WHERE unit = 'minute' AND bucket_at < now() ORDER BY bucket_at LIMIT 9"
    ).fetchall()
    assert "uq_report_throughput_bucket" in str(plan)


def test_old_runs_go_but_never_the_last_report(runs: Runs, connection: Connection) -> None:
    ended = []
    for number in range(3):
        run = queue(runs, end=NOON + timedelta(hours=number))
        claimed(runs, run)
        publish(connection, lag_report.TABLE, run_id=run.id, attempt=1, rows=[], page=str(number), files={})
        age(connection, run, "finished_at", (40 - number) * 86_400)
        ended.append(run)
    failed = queue(runs, end=NOON + timedelta(hours=9))
    claimed(runs, failed)
    runs.fail(failed.id, 1, "no")
    age(connection, failed, "finished_at", 40 * 86_400)
    waiting = queue(runs, end=NOON + timedelta(hours=10))
    for run in (*ended, failed):
        connection.execute(
            "INSERT INTO report_backlog_rows (run_id, group_name, topic, section, bucket, messages)"
            " VALUES (%s, 'g', 'T', 'tag', 'A', 1)",
            (run.id,),
        )
        connection.execute(
            "INSERT INTO report_lag_rows (run_id, level, group_name, topic, as_of, verdict, cause, evidence)"
            " VALUES (%s, 'topic', 'g', 'T', now(), 'OK', '', '{}')",
            (run.id,),
        )
    pruned = runs.prune(older_than=timedelta(days=30), rows_max=1_000)
    assert {(run.id, run.job) for run in pruned.runs} == {
        (run.id, "lag_report") for run in (ended[0], ended[1], failed)
    }
    assert connection.execute("SELECT html FROM report_pages").fetchall() == [("2",)]
    for table in ("report_backlog_rows", "report_lag_rows"):
        assert connection.execute(f"SELECT run_id FROM {table}").fetchall() == [(ended[2].id,)]
    assert runs.find(waiting.id) is not None


def old_runs(runs: Runs, connection: Connection, *rows: int | None) -> list[UUID]:
    """Queue runs that ended 40, 39, … days ago, with this number of rows."""
    ended = []
    for number, count in enumerate(rows):
        run = queue(runs, end=NOON + timedelta(hours=number))
        claimed(runs, run)
        publish(connection, lag_report.TABLE, run_id=run.id, attempt=1, rows=[], page="", files={})
        connection.execute(
            "INSERT INTO report_lag_rows (run_id, level, group_name, topic, broker, queue_id, as_of, verdict, cause, evidence)"
            " SELECT %s, 'queue', 'g' || n / 16, 'T', 'b', n, now(), 'OK', '', '{}' FROM generate_series(1, %s) AS n",
            (run.id, count or 0),
        )
        connection.execute("UPDATE report_runs SET rows = %s WHERE id = %s", (count, run.id))
        age(connection, run, "finished_at", (40 - number) * 86_400)
        ended.append(run.id)
    return ended


def test_old_runs_go_a_few_rows_at_a_time_and_in_their_order(runs: Runs, connection: Connection) -> None:
    ended = old_runs(runs, connection, 3, 4, 5, 50, None, 1)
    found = []
    while (pruning := runs.prune(older_than=timedelta(days=30), rows_max=10)).is_more:
        found.append(sorted(ended.index(one.id) for one in pruning.runs))
    hidden = [[]] * 6
    assert found == [[0, 1], [2], *hidden, [3], [4]], "the last success stays"
    assert {one.job for one in runs.prune(older_than=timedelta(days=30), rows_max=10).runs} == set()


def test_readers_of_a_large_old_run_find_all_of_it_or_no_run(runs: Runs, connection: Connection) -> None:
    large, _ = old_runs(runs, connection, 25, 1)
    left = []
    while True:
        pruning = runs.prune(older_than=timedelta(days=30), rows_max=10)
        (is_there,) = one(connection, "SELECT count(*) FROM report_runs WHERE id = %s AND job = 'lag_report'", large)
        (rows,) = one(connection, "SELECT count(*) FROM report_lag_rows WHERE run_id = %s", large)
        assert rows == 25 or not is_there
        left.append(rows)
        if pruning.runs:
            break
    # The first call hides the run and deletes nothing, so that a reader who has found it can still read it.
    assert left == [25, 15, 5, 0, 0]
    assert [(pruned.id, pruned.job) for pruned in pruning.runs] == [(large, "lag_report")]
    assert one(connection, "SELECT count(*) FROM report_pages WHERE run_id = %s", large) == (0,)


def test_each_piece_of_a_large_old_run_reads_only_itself_and_the_piece_before_it(
    runs: Runs, connection: Connection
) -> None:
    """A statement for a whole run of 1,200,000 rows took 30 s, and one that reads deleted rows again up to 5 s."""
    large, _ = old_runs(runs, connection, 20_000, 1)
    connection.execute("ANALYZE report_lag_rows")
    places = []
    while not runs.prune(older_than=timedelta(days=30), rows_max=4_000).runs:
        (place,) = one(connection, "SELECT progress FROM report_runs WHERE id = %s", large)
        if place is not None:
            places.append(place)
    # A piece begins with the first group of the piece before it, whose rows are gone.
    assert places == sorted(set(places))
    assert len(places) == 5
    given = {"run": large, "start": places[-1], "rows_max": 4_000}
    plan = connection.execute("EXPLAIN " + _PRUNE_PIECE.format(table="report_lag_rows"), given).fetchall()
    assert "Index Scan using uq_report_lag_rows_subject" in str(plan)
    assert "Sort" not in str(plan)


def minutes(count: int, messages: int) -> list[dict[str, Any]]:
    """Return the minutes of one topic, as a rollup has them."""
    return [
        {"unit": "minute", "bucket_at": NOON + timedelta(minutes=n), "topic": "T", "group": "g", "messages": messages,
         "rate_max": 1.0, "lag_messages": 0, "covered_s": 60.0}
        for n in range(count)
    ]  # fmt: skip


def test_many_buckets_are_merged_in_pieces_and_seen_at_once(
    runs: Runs, connection: Connection, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "ROWS_AT_ONCE", 100)
    monkeypatch.setattr(results, "MERGED_AT_ONCE", 200)
    merged = []
    merge = results._merge

    def merge_and_look(*given: Any) -> None:
        merged.append(connection.execute("SELECT count(*) FROM fresh").fetchone())
        merge(*given)
        with connect(postgres.url, application="reader") as reader:
            row = reader.execute("SELECT count(*), min(messages) FROM report_throughput").fetchone()
            assert row in ((0, None), (550, 1)), "a reader sees the rows of whole runs only"

    monkeypatch.setattr(results, "_merge", merge_and_look)
    for number, messages in enumerate((1, 2)):
        run = queue(runs, "throughput_rollup", end=NOON + timedelta(hours=number))
        claimed(runs, run)
        publish(
            connection,
            throughput_rollup.TABLE,
            run_id=run.id,
            attempt=1,
            rows=minutes(550, messages),
            page="",
            files={},
        )
        row = connection.execute("SELECT count(*), min(messages), max(messages) FROM report_throughput").fetchone()
        assert row == (550, messages, messages)
    assert merged == [(200,), (200,), (150,)] * 2


def one(connection: Connection, query: str, run_id: UUID) -> tuple[Any, ...]:
    row = connection.execute(query, (run_id,)).fetchone()  # type: ignore[arg-type]
    assert row is not None
    return row


def test_schedules_are_those_of_the_last_scheduler(runs: Runs) -> None:
    runs.write_schedules([Schedule("a", "* * * * *", "UTC", NOON), Schedule("b", "0 * * * *", "UTC", None)])
    runs.write_schedules([Schedule("a", "5 * * * *", "Asia/Tokyo", NOON + timedelta(hours=1))])
    assert runs.schedules() == {"a": Schedule("a", "5 * * * *", "Asia/Tokyo", NOON + timedelta(hours=1))}


def test_what_is_covered_is_what_succeeded_on_schedule(runs: Runs, connection: Connection) -> None:
    assert runs.covered_until("throughput_rollup") is None
    for hours, succeeds in ((1, True), (2, False)):
        end = NOON + timedelta(hours=hours)
        run = queue(runs, "throughput_rollup", start=end - timedelta(hours=1), end=end)
        claimed(runs, run)
        if succeeds:
            publish(connection, throughput_rollup.TABLE, run_id=run.id, attempt=1, rows=[], page="", files={})
        else:
            runs.fail(run.id, 1, "no")
    assert runs.covered_until("throughput_rollup") == NOON + timedelta(hours=1)


def test_windows_that_people_asked_for_extend_what_is_covered_without_a_gap(runs: Runs, connection: Connection) -> None:
    hour = timedelta(hours=1)
    for begin, end, trigger in ((0, 1, "schedule"), (4, 5, "manual"), (2, 3, "manual"), (1, 2, "manual")):
        run, _ = runs.request(
            "throughput_rollup", window_start=NOON + begin * hour, window_end=NOON + end * hour, trigger=trigger
        )
        claimed(runs, run)
        publish(connection, throughput_rollup.TABLE, run_id=run.id, attempt=1, rows=[], page="", files={})
    assert runs.covered_until("throughput_rollup") == NOON + 3 * hour


def test_a_server_that_is_away_is_said_in_a_line(own_postgres: PostgresServer) -> None:
    url = own_postgres.url
    own_postgres.stop()
    with pytest.raises(psycopg.OperationalError) as caught:
        connect(url, application="gantry-test")
    assert "can't be reached" in reason(caught.value)
    assert "\n" not in reason(caught.value)


def test_tables_that_are_missing_are_said_in_a_line(connection: Connection) -> None:
    with pytest.raises(psycopg.errors.UndefinedTable) as caught:
        connection.execute("SELECT * FROM no_such_table")
    assert "gantry migrate" in reason(caught.value)
