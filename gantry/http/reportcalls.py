"""The calls of reports as values: jobs, runs and rows."""

import msgspec

from gantry.http.call import JSON, Call, Page, json_of, page_of, params_of, path_of
from gantry.http.reportresults import BacklogRows, LagHistory, LagRows, Report, ReportRun, Throughput


def list_reports() -> Call[Page[Report]]:
    """List report jobs."""
    return Call("GET", "/v1/reports", json_of(Page[Report]))


def put_report_schedule(job: str, cron: str | None, *, time_zone: str) -> Call[Report]:
    """Set the schedule of a report job."""
    content = msgspec.json.encode({"cron": cron, "time_zone": time_zone})
    return Call(
        "PUT", path_of("reports", job, "schedule"), json_of(Report), content=content, headers={"content-type": JSON}
    )


def delete_report_schedule(job: str) -> Call[Report]:
    """Remove the schedule of a report job that was set."""
    return Call("DELETE", path_of("reports", job, "schedule"), json_of(Report))


def start_report_run(job: str, *, since: str | None, until: str | None) -> Call[ReportRun]:
    """Start a run of a report job."""
    content = msgspec.json.encode({} if since is None and until is None else {"window": {"from": since, "to": until}})
    return Call(
        "POST", path_of("reports", job, "runs"), json_of(ReportRun), content=content, headers={"content-type": JSON}
    )


def list_report_runs(job: str, *, limit: int) -> Call[Page[ReportRun]]:
    """List a job's runs."""
    return Call("GET", path_of("reports", job, "runs"), json_of(Page[ReportRun]), params_of(limit=str(limit)))


def get_report_run(job: str, run: str) -> Call[ReportRun]:
    """Get a run of a report job."""
    return Call("GET", path_of("reports", job, "runs", run), json_of(ReportRun))


def get_report_page(job: str, run: str) -> Call[str]:
    """Get a run's HTML page."""
    return Call(
        "GET", path_of("reports", job, "runs", run, "html"), lambda content, _: content.decode("utf-8", "replace")
    )


def read_lag_rows(
    run: str, *, group: str | None, topic: str | None, level: str | None, cursor: str | None
) -> Call[LagRows]:
    """Read rows of a lag report."""
    params = page_of(cursor, run=run, group=group, topic=topic, level=level)
    return Call("GET", path_of("reports", "lag_report", "rows"), json_of(LagRows), params)


def read_lag_history(group: str, topic: str, *, since: str | None, until: str | None) -> Call[LagHistory]:
    """Read the history of a group's lag on a topic."""
    params = params_of(group=group, topic=topic, **{"from": since, "to": until})
    return Call("GET", path_of("reports", "lag_report", "history"), json_of(LagHistory), params)


def read_backlog_rows(
    run: str, *, group: str | None, topic: str | None, section: str | None, cursor: str | None
) -> Call[BacklogRows]:
    """Read rows of a backlog profile."""
    params = page_of(cursor, run=run, group=group, topic=topic, section=section)
    return Call("GET", path_of("reports", "backlog_profile", "rows"), json_of(BacklogRows), params)


def read_throughput(
    unit: str,
    *,
    since: str | None,
    until: str | None,
    time_zone: str | None,
    group: str | None,
    topic: str | None,
    cursor: str | None,
) -> Call[Throughput]:
    """Read buckets of the throughput report."""
    times = {"from": since, "to": until}
    params = page_of(cursor, unit=unit, **times, time_zone=time_zone, group=group, topic=topic)
    return Call("GET", path_of("reports", "throughput_rollup", "rows"), json_of(Throughput), params)
