"""Alerts on a real Postgres: events come with the report that makes them, once, or not at all."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from gantry.model.alert import AlertSettings
from spark import results
from spark.jobs import lag_report
from spark.postgres import Connection
from spark.results import FencedError, publish
from spark.runs import Run, Runs
from tests.support.postgres import PostgresServer
from tests.support.reports import report_tables

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
FILES = {"html": "/p.html", "parquet": "/p"}


@pytest.fixture
def connection(postgres: PostgresServer) -> Iterator[Connection]:
    with report_tables(postgres) as connected:
        yield connected


def lag(group: str, verdict: str, minute: float, **more: Any) -> dict[str, Any]:
    at = NOON + timedelta(minutes=minute)
    return {"level": "topic", "group": group, "topic": "T", "as_of": at, "verdict": verdict, "lag_messages": 7, **more}


def claimed(connection: Connection) -> Run:
    runs = Runs(connection)
    end = NOON + timedelta(seconds=len(connection.execute("SELECT 1 FROM report_runs").fetchall()))
    run, _ = runs.request("lag_report", window_start=None, window_end=end, trigger="schedule")
    found = runs.claim(run.id)
    assert found is not None
    return found


def report(
    connection: Connection,
    *rows: dict[str, Any],
    alerts: AlertSettings | None = None,
    began_at: datetime | None = None,
) -> Run:
    run = claimed(connection)
    kept: dict[str, Any] = {
        "rows": rows,
        "page": "",
        "files": FILES,
        "alerts": alerts or AlertSettings(),
        "began_at": began_at,
    }
    publish(connection, lag_report.TABLE, run_id=run.id, attempt=run.attempt, **kept)
    return run


def events(connection: Connection, columns: str = "kind, group_name, old_verdict, new_verdict") -> list[Any]:
    return connection.execute(f"SELECT {columns} FROM alert_events ORDER BY id").fetchall()


def states(connection: Connection) -> list[Any]:
    query = "SELECT group_name, verdict, pending, seen_verdict, lag_messages FROM alert_states ORDER BY 1"
    return connection.execute(query).fetchall()


def test_an_alert_is_opened_changed_and_resolved_by_the_reports_that_say_so(connection: Connection) -> None:
    report(connection, lag("g", "LAGGING", 0), lag("fine", "OK", 0))
    assert (events(connection), states(connection)) == ([], [("g", None, "LAGGING", "LAGGING", 7)])
    opened = report(connection, lag("g", "LAGGING", 15, cause="a\0b", lag_messages=9), lag("fine", "OK", 15))
    assert states(connection) == [("g", "LAGGING", None, "LAGGING", 9)]
    columns = "kind, group_name, topic, old_verdict, new_verdict, at, since, lag_messages, cause, run_id"
    assert events(connection, columns) == [
        ("opened", "g", "T", None, "LAGGING", NOON + timedelta(minutes=15), NOON, 9, "a␀b", opened.id)
    ]
    report(connection, lag("g", "STOPPED", 30))
    report(connection, lag("g", "STOPPED", 45))
    report(connection, lag("g", "OK", 60, lag_messages=0))
    report(connection, lag("g", "OK", 75, lag_messages=0))
    assert events(connection)[1:] == [("changed", "g", "LAGGING", "STOPPED"), ("resolved", "g", "STOPPED", "OK")]
    assert states(connection) == []
    assert len({row[0] for row in events(connection, "alert_id")}) == 1


def test_rows_of_queues_and_other_reports_make_none(connection: Connection) -> None:
    at_once = AlertSettings(timedelta(0), timedelta(0))
    queue = {**lag("g", "STALLED", 0), "level": "queue", "broker": "b", "queue_id": 0}
    report(connection, queue, lag("g", "OK", 0), alerts=at_once)
    assert (events(connection), states(connection)) == ([], [])
    # No rows: nobody knows anything.
    report(connection, lag("g", "STALLED", 1), alerts=at_once)
    report(connection, alerts=at_once)
    assert [row[0] for row in events(connection)] == ["opened"]


def test_who_is_no_longer_in_the_report_is_gone_after_an_hour(connection: Connection) -> None:
    at_once = AlertSettings(timedelta(0), timedelta(0))
    report(connection, lag("g", "STALLED", 0), alerts=at_once)
    report(connection, lag("other", "OK", 59), alerts=at_once)
    assert len(events(connection)) == 1
    report(connection, lag("other", "OK", 60), alerts=at_once)
    assert events(connection)[1:] == [("resolved", "g", "STALLED", "GONE")]
    assert states(connection) == []


def test_the_last_group_is_gone_after_an_hour_too(connection: Connection) -> None:
    """A report that no broker answers fails: one without rows says that there are no groups any more."""
    at_once = AlertSettings(timedelta(0), timedelta(0))
    report(connection, lag("g", "STALLED", 0), alerts=at_once, began_at=NOON)
    report(connection, alerts=at_once, began_at=NOON + timedelta(minutes=59))
    assert len(events(connection)) == 1
    report(connection, alerts=at_once, began_at=NOON + timedelta(minutes=60))
    assert events(connection)[1:] == [("resolved", "g", "STALLED", "GONE")]
    assert states(connection) == []


def test_a_run_that_is_not_kept_keeps_no_events(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = AlertSettings(timedelta(0), timedelta(0))
    run = claimed(connection)
    rows = [lag("g", "STALLED", 0)]
    # It dies after its events and before its end.
    with monkeypatch.context() as broken:

        def dies(*_: object, **__: object) -> None:
            evaluate(*_, **__)  # type: ignore[arg-type]
            raise psycopg.OperationalError("cut")

        evaluate = results.evaluate
        broken.setattr(results, "evaluate", dies)
        with pytest.raises(psycopg.OperationalError):
            publish(
                connection, lag_report.TABLE, run_id=run.id, attempt=1, rows=rows, page="", files=FILES, alerts=at_once
            )
    assert (events(connection), states(connection)) == ([], [])
    # The attempt that follows makes them once, and the one before finds that it is not its turn.
    Runs(connection).fail(run.id, 1, "cut", requeue=True)
    assert Runs(connection).claim(run.id) is not None
    with pytest.raises(FencedError):
        publish(connection, lag_report.TABLE, run_id=run.id, attempt=1, rows=rows, page="", files=FILES, alerts=at_once)
    publish(connection, lag_report.TABLE, run_id=run.id, attempt=2, rows=rows, page="", files=FILES, alerts=at_once)
    with pytest.raises(FencedError):
        publish(connection, lag_report.TABLE, run_id=run.id, attempt=2, rows=rows, page="", files=FILES, alerts=at_once)
    assert [row[0] for row in events(connection)] == ["opened"]


def test_old_events_and_deliveries_are_deleted(connection: Connection) -> None:
    at_once = AlertSettings(timedelta(0), timedelta(0))
    report(connection, *[lag(f"g{number}", "STALLED", 0) for number in range(3)], alerts=at_once)
    connection.execute(
        "INSERT INTO webhooks (url, groups, verdicts, enabled, secret) VALUES ('u', '[]', '[]', true, 's')"
    )
    connection.execute(
        "INSERT INTO webhook_deliveries (webhook_id, body) SELECT id, '{}' FROM webhooks, generate_series(1, 3)"
    )
    connection.execute("UPDATE alert_events SET at = now() - interval '91 days' WHERE group_name <> 'g0'")
    connection.execute("UPDATE alert_events SET at = now() - interval '89 days' WHERE group_name = 'g0'")
    connection.execute(
        "UPDATE webhook_deliveries SET created_at = now() - interval '8 days'"
        " WHERE id IN (SELECT id FROM webhook_deliveries LIMIT 2)"
    )
    prune = Runs(connection).prune_alerts
    keep = {"events_older_than": timedelta(days=90), "deliveries_older_than": timedelta(days=7)}
    assert [prune(**keep, limit=1) for _ in range(3)] == [2, 2, 0]
    assert [row[1] for row in events(connection)] == ["g0"]
    [[left]] = connection.execute("SELECT count(*) FROM webhook_deliveries").fetchall()
    assert left == 1
