"""Reports in answers: jobs, runs, rows and histories, with their fields in the order of the contract."""

import uuid
from datetime import UTC, datetime, timedelta

import msgspec

from gantry.model.laghistory import LagPoint
from services.gateway.db.reportrows import BacklogRow, LagRow, ThroughputBucket
from services.gateway.db.reports import Run, Schedule, ScheduleSet
from services.gateway.usecases.page import Page
from services.gateway.usecases.reports.laghistory import PairHistory
from services.gateway.usecases.reports.rows import RunRows, Throughput
from services.gateway.usecases.reports.runs import Job
from services.gateway.views.reports import (
    backlog_row_view,
    history_view,
    jobs_view,
    lag_row_view,
    run_rows_view,
    run_view,
    throughput_view,
)

AT = datetime(2026, 11, 21, 9, 30, 0, 123_000, tzinfo=UTC)
TEXT = "2026-11-21T09:30:00.123Z"
RUN_ID = uuid.UUID(int=7)


def run(**changed):
    nothing = dict.fromkeys(
        (
            "window_start",
            "requested_by",
            "progress_percent",
            "progress",
            "started_at",
            "finished_at",
            "rows",
            "error",
            "files",
        )
    )
    facts = {"id": RUN_ID, "job": "lag_report", "window_end": AT, "created_at": AT, "attempt": 0}
    return Run(**{**nothing, **facts, "trigger": "manual", "status": "queued", **changed})


def json(value):
    return msgspec.json.encode(value).decode()


def test_a_run_is_shown_with_its_known_fields():
    view = run_view(run())
    assert [name for name, value in view.items() if value is None] == [
        "window", "progress", "rows", "error", "started_at", "finished_at", "duration_ms", "files",
    ]  # fmt: skip
    assert view["created_at"] == "2026-11-21T09:30:00.123Z"
    done = run_view(
        run(
            window_start=AT - timedelta(hours=1),
            progress="writing",
            started_at=AT,
            finished_at=AT + timedelta(seconds=2.5),
            files={"html": "/r/x.html"},
        )
    )
    assert done["window"] == {"from": "2026-11-21T08:30:00.123Z", "to": "2026-11-21T09:30:00.123Z"}
    assert (done["progress"], done["duration_ms"]) == ({"percent": None, "step": "writing"}, 2_500)
    assert done["files"] == {"html": "/r/x.html", "parquet": None}


def test_jobs_have_their_schedule_and_last_run():
    schedule = Schedule("lag_report", "*/5 * * * *", "UTC", None)
    [queued] = jobs_view([Job("lag_report", schedule, None, run())])["items"]
    assert queued == {
        "job": "lag_report",
        "schedule": "*/5 * * * *",
        "time_zone": "UTC",
        "next_run_at": None,
        "schedule_set": None,
        "last_run": run_view(run()),
    }
    schedule_set = ScheduleSet("lag_report", None, "UTC", "key-1", AT)
    planned = jobs_view(
        [
            Job("lag_report", Schedule("lag_report", "0 8 * * *", "Asia/Tokyo", AT), schedule_set, None),
            Job("backlog_profile", None, None, None),
        ]
    )
    assert json(planned) == (
        '{"items":[{"job":"lag_report","schedule":"0 8 * * *","time_zone":"Asia/Tokyo","next_run_at":"' + TEXT + '",'
        '"schedule_set":{"cron":null,"time_zone":"UTC","set_by":"key-1","set_at":"' + TEXT + '"},"last_run":null},'
        '{"job":"backlog_profile","schedule":null,"time_zone":null,"next_run_at":null,"schedule_set":null,'
        '"last_run":null}]}'
    )


def test_a_lag_row_has_the_fields_of_the_contract_in_order():
    row = LagRow(
        "queue", "G", "T", "broker-a", 3, AT, 5, 1.5, AT, 2.0, 3.0, 4.0, 5.0, None, 6.0, 1.0, [["UA", 2]], 1,
        [{"client_id": "c", "host": "h", "queues": None}], "LAGGING", "cause", "next", {"a": 1}, None,
    )  # fmt: skip
    shown = run_rows_view(RunRows(RUN_ID, AT, Page([row], "next")), lag_row_view)
    assert json(shown) == (
        '{"run":"00000000-0000-0000-0000-000000000007","as_of":"' + TEXT + '","items":[{"level":"queue","group":"G",'
        '"topic":"T","broker":"broker-a","queue_id":3,"as_of":"' + TEXT + '","lag_messages":5,"lag_seconds":1.5,'
        '"in_rate":2.0,"out_rate":3.0,"drain_eta_s":4.0,"drain_eta_low_s":5.0,"drain_eta_high_s":null,'
        '"oldest_unconsumed_at":"' + TEXT + '","behind_since":null,"retention_left_s":6.0,"skew":1.0,'
        '"top_tags":[["UA",2]],"clients":1,"owners":[{"client_id":"c","host":"h","queues":null}],"verdict":"LAGGING",'
        '"cause":"cause","next_step":"next","evidence":{"a":1}}],"next_cursor":"next"}'
    )


def test_a_backlog_row_has_the_fields_of_the_contract_in_order():
    row = BacklogRow("G", "T", "age", "1-5 min", 60.0, 300.0, 7, None)
    assert json(backlog_row_view(row)) == (
        '{"group":"G","topic":"T","section":"age","bucket":"1-5 min","lower_bound":60.0,"upper_bound":300.0,'
        '"messages":7,"bytes":null}'
    )


def test_throughput_has_the_fields_of_the_contract_in_order():
    bucket = ThroughputBucket(AT, "T", None, 7, 1.5, None, 60.0)
    found = Throughput("hour", AT - timedelta(hours=1), AT, "UTC", Page([bucket]))
    assert json(throughput_view(found)) == (
        '{"unit":"hour","from":"2026-11-21T08:30:00.123Z","to":"' + TEXT + '","time_zone":"UTC","items":[{"bucket_at":"'
        + TEXT + '","topic":"T","group":null,"messages":7,"rate_max":1.5,"lag_messages":null,"covered_s":60.0}],'
        '"next_cursor":null}'
    )  # fmt: skip


def test_a_history_has_the_fields_of_the_contract_in_order():
    found = PairHistory("G", "T", AT - timedelta(hours=1), AT, timedelta(seconds=15), [LagPoint(AT, None, 0.5, ("b",))])
    assert json(history_view(found)) == (
        '{"group":"G","topic":"T","from":"2026-11-21T08:30:00.123Z","to":"' + TEXT + '","step_s":15,'
        '"items":[{"at":"'
        + TEXT
        + '","lag_messages":null,"lag_seconds":0.5,"missing_brokers":["b"],"late_brokers":[]}]}'
    )
