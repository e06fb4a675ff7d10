"""`gantry report`: jobs, runs, rows and pages of the backlog and lag reports, and the history of a group's lag."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gantry.cli.formatting import print_facts, print_json, print_table
from gantry.cli.lagtable import Level, count_text, duration_text, print_lag
from gantry.cli.options import (
    DATA_DEFAULT,
    DataOption,
    GroupArgument,
    GroupFilter,
    JsonOption,
    KeyOption,
    TopicArgument,
    TopicFilter,
    UrlOption,
)
from gantry.cli.outcome import fail, warn
from gantry.cli.remote import Remote, connect, segment
from gantry.cli.reportwait import wait_for_run
from gantry.http.reportcalls import get_report_page
from gantry.model.lag import brief_duration

app = typer.Typer(name="report", help="Run and show backlog and lag reports.", no_args_is_help=True)

LAG_REPORT: Final = "lag_report"
BACKLOG_PROFILE: Final = "backlog_profile"
THROUGHPUT_ROLLUP: Final = "throughput_rollup"
LATEST: Final = "latest"
WAIT_MAX_S: Final = 3_600
_TABLES: Final = {
    BACKLOG_PROFILE: (
        ("group", "topic", "section", "bucket", "messages", "bytes"),
        "no group had a backlog",
    ),
    THROUGHPUT_ROLLUP: (
        ("bucket_at", "topic", "group", "messages", "rate_max", "lag_messages", "covered_s"),
        "there are no buckets in this period",
    ),
}

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="lag_report, backlog_profile or throughput_rollup.")]
RunOption = Annotated[str, typer.Option("--run", metavar="ID", help="Run id; default: the latest run that succeeded.")]


@app.command("list")
def list_jobs(
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the report jobs with their next run and the result of the last run."""
    items = connect(data, url, key).call("GET", "/v1/reports")["items"]
    if as_json:
        print_json(items)
        return
    rows = []
    for item in items:
        last = item["last_run"] or {}
        rows.append(
            [
                item["job"],
                item["schedule"],
                item["next_run_at"],
                last.get("status"),
                last.get("finished_at"),
                last.get("error"),
            ]
        )
    columns = ["job", "schedule", "next_run_at", "last_status", "last_finished_at", "last_error"]
    print_table(columns, rows, empty="there are no report jobs")


@app.command()
def schedule(
    job: JobArgument,
    *,
    cron: Annotated[
        str | None,
        typer.Option(metavar="EXPRESSION", help='Run by this schedule, such as "0 8 * * 1-5": at 8:00 on weekdays.'),
    ] = None,
    time_zone: Annotated[str, typer.Option(metavar="ZONE", help="Time zone of --cron, such as Europe/Berlin.")] = "UTC",
    on_demand: Annotated[bool, typer.Option("--on-demand", help="Run only when a run is requested.")] = False,
    default: Annotated[bool, typer.Option("--default", help="Use the schedule of the scheduler's settings.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show or change when a report job runs by itself.

    The scheduler puts a change in force within a second. It stays in force after a restart, and takes precedence over
    the scheduler's settings until --default.
    """
    if (cron is not None) + on_demand + default > 1:
        raise typer.BadParameter("give only one of --cron, --on-demand and --default")
    remote = connect(data, url, key)
    path = f"/v1/reports/{segment(job)}/schedule"
    if default:
        found = remote.call("DELETE", path)
    elif cron is not None or on_demand:
        found = remote.call("PUT", path, body={"cron": cron, "time_zone": time_zone})
    else:
        found = next((item for item in remote.call("GET", "/v1/reports")["items"] if item["job"] == job), None)
        if found is None:
            fail(f"there is no report job {job!r}; gantry report list names them")
    if as_json:
        print_json(found)
        return
    change = found["schedule_set"]
    print_facts(
        {
            "job": found["job"],
            "in force": found["schedule"] or "on demand",
            "time zone": found["time_zone"],
            "next run": found["next_run_at"],
            "set": "no: the scheduler's settings count" if change is None else _describe_set(change),
        }
    )


def _describe_set(change: Mapping[str, Any]) -> str:
    chosen = "on demand" if change["cron"] is None else f"{change['cron']} ({change['time_zone']})"
    return f"{chosen} by {change['set_by']} at {change['set_at']}"


@app.command()
def run(
    job: JobArgument,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end of the run and print its results.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="Start of the window, such as 2026-11-21T09:30:00Z. throughput_rollup sums up this window, backlog_profile counts messages stored in it; lag_report always measures the present.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="End of the window. Each job runs once for each window.")
    ] = None,
    timeout: Annotated[int, typer.Option(metavar="SECONDS", min=1, help="Time limit of --wait.")] = WAIT_MAX_S,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start a run of a report job now. Without --wait, print the run and return at once.

    With --wait, print the groups, worst first, and the path of the HTML page, or with --json the rows. The exit code
    is 0 only if the run succeeds.
    """
    if (since is None) != (until is None):
        raise typer.BadParameter("--from and --to must be given together")
    remote = connect(data, url, key)
    if since is not None and job == LAG_REPORT:
        warn(f"{job} always measures the present: --from and --to only identify the run, which is made once")
    body = {} if since is None else {"window": {"from": since, "to": until}}
    started = remote.call("POST", f"/v1/reports/{segment(job)}/runs", body=body)
    if not wait:
        if as_json:
            print_json(started)
        else:
            print_facts({name: started[name] for name in ("id", "job", "status", "window", "created_at")})
        return
    ended = wait_for_run(remote, started, timeout_s=timeout)
    if ended["status"] != "succeeded":
        fail(f"run {ended['id']} of {job}: {ended['status']}: {ended['error'] or 'unknown error'}")
    rows = list(_rows(remote, job, {"run": ended["id"]})) if job == LAG_REPORT else []
    if as_json:
        print_json(rows if job == LAG_REPORT else ended)
        return
    if job == LAG_REPORT:
        print_lag([row for row in rows if row["level"] == Level.TOPIC])
        print()
    print_facts(
        {
            "run": ended["id"],
            "rows": ended["rows"],
            "took": _describe_duration(ended),
            "page": (ended["files"] or {}).get("html"),
        }
    )


@app.command()
def runs(
    job: JobArgument,
    *,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of runs.")] = 20,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the runs of a report job, newest first."""
    items = connect(data, url, key).call("GET", f"/v1/reports/{segment(job)}/runs", query={"limit": limit})["items"]
    if as_json:
        print_json(items)
        return
    rows = [
        [
            item["id"],
            item["status"],
            item["trigger"],
            None if item["window"] is None else f"{item['window']['from']} to {item['window']['to']}",
            item["created_at"],
            _describe_duration(item),
            item["rows"],
            item["error"],
        ]
        for item in items
    ]
    columns = ["id", "status", "trigger", "window", "created_at", "took", "rows", "error"]
    print_table(columns, rows, empty=f"{job} has never run")


@app.command()
def show(
    job: JobArgument,
    *,
    run_id: RunOption = LATEST,
    group: GroupFilter = None,
    topic: TopicFilter = None,
    level: Annotated[
        Level | None,
        typer.Option(help="lag_report: show only rows of this level; default: topic, with --json both."),
    ] = None,
    section: Annotated[
        str | None,
        typer.Option(
            metavar="SECTION", help="backlog_profile: show only this section: age, filter, key, queue, size or tag."
        ),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(metavar="UNIT", help="throughput_rollup: size of the buckets: minute, hour (default) or day."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="throughput_rollup: show buckets that begin at or after TIME."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="throughput_rollup: show buckets that begin before TIME.")
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option(
            metavar="ZONE", help="throughput_rollup: time zone of the days, such as Europe/Berlin; default: UTC."
        ),
    ] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the rows of a report.

    lag_report shows the lag of groups with its cause, worst first. backlog_profile shows the contents of backlogs.
    throughput_rollup shows the number of messages over time.
    """
    own: dict[str, dict[str, str | None]] = {
        LAG_REPORT: {"level": level},
        BACKLOG_PROFILE: {"section": section},
        THROUGHPUT_ROLLUP: {"unit": unit, "from": since, "to": until, "time_zone": time_zone},
    }
    for other, options in own.items():
        for name, value in options.items():
            if other != job and value is not None:
                raise typer.BadParameter(f"--{name.replace('_', '-')} is for {other}, not for {job}")
    wanted: dict[str, str | None] = {"group": group, "topic": topic, **own.get(job, {})}
    if job != THROUGHPUT_ROLLUP:
        wanted["run"] = run_id
    elif run_id != LATEST:
        raise typer.BadParameter(f"--run is not for {job}, whose buckets belong to no run: give --from and --to")
    if job == LAG_REPORT and not as_json:
        wanted["level"] = level or Level.TOPIC
    rows = list(_rows(connect(data, url, key), job, wanted))
    if as_json:
        print_json(rows)
    elif job == LAG_REPORT:
        print_lag(rows)
    else:
        columns, empty = _TABLES[job]
        print_table(columns, [[row[name] for name in columns] for row in rows], empty=empty)


@app.command()
def history(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Start of the history; default: one day before --to.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="End of the history; default: now.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the history of a group's lag on a topic: at most 288 points and 12 days."""
    query = {"group": group, "topic": topic, "from": since, "to": until}
    found = connect(data, url, key).call("GET", f"/v1/reports/{LAG_REPORT}/history", query=query)
    if as_json:
        print_json(found)
        return
    rows = [
        [
            point["at"],
            count_text(point["lag_messages"]),
            duration_text(point["lag_seconds"]),
            ", ".join([*point.get("missing_brokers", []), *(f"{one} (late)" for one in point.get("late_brokers", []))]),
        ]
        for point in found["items"]
    ]
    empty = f"there are no samples of {group} on {topic} from {found['from']} to {found['to']}"
    columns = ["at", "messages", "behind", "without"]
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    print_table(columns, rows, empty=empty)
    if rows:
        print(f"points are {brief_duration(found['step_s'])} apart")


@app.command()
def page(
    job: JobArgument,
    *,
    run_id: RunOption = LATEST,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Download the page from the gateway and write it to FILE.")
    ] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Print the path of a run's HTML page on the machine that made it. With --save, download the page."""
    remote = connect(data, url, key)
    if save is not None:
        content = remote.run(get_report_page(job, run_id))
        try:
            save.write_text(content, encoding="utf-8")
        except OSError as error:
            fail(f"{save}: {error.strerror}")
        print(save)
        return
    found = remote.call("GET", f"/v1/reports/{segment(job)}/runs/{segment(run_id)}")
    where = (found["files"] or {}).get("html")
    if where is None:
        fail(f"run {found['id']} of {job} is {found['status']} and has no page")
    print(where)
    # A URI of another scheme is not the name of a file on this machine.
    if not Path(where.removeprefix("file:")).is_file():
        warn(f"this machine can't read {where}; --save FILE downloads the page from the gateway")


app.command("open", hidden=True)(page)


def _rows(remote: Remote, job: str, wanted: Mapping[str, str | None]) -> Sequence[dict[str, Any]]:
    """Return all rows of one run or one period.

    The first page fixes the run and the period: `latest` and the present may change before the second page.
    """
    path = f"/v1/reports/{segment(job)}/rows"
    page = remote.call("GET", path, query={"limit": 1_000, **wanted})
    fixed = {**wanted, **{name: page[name] for name in ("run", "from", "to") if name in page}}
    rows: list[dict[str, Any]] = page["items"]
    while page["next_cursor"] is not None:
        page = remote.call("GET", path, query={"limit": 1_000, **fixed, "cursor": page["next_cursor"]})
        rows += page["items"]
    return rows


def _describe_duration(found: dict[str, Any]) -> str | None:
    return None if found["duration_ms"] is None else brief_duration(found["duration_ms"] / 1_000)
