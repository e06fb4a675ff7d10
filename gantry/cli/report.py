"""`gantry report`: backlog and lag reports: jobs, runs, rows, pages, and how a lag went."""

import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gantry.cli.formatting import cell, print_facts, print_json, print_table
from gantry.cli.outcome import fail
from gantry.cli.remote import DATA_DEFAULT, DataOption, JsonOption, KeyOption, Remote, UrlOption, connect, segment
from gantry.cli.reportwait import wait_for_run
from gantry.http.reportcalls import get_report_page
from gantry.model.lag import brief_duration, severity

app = typer.Typer(name="report", help="Backlog and lag reports.", no_args_is_help=True)

LAG_REPORT: Final = "lag_report"
BACKLOG_PROFILE: Final = "backlog_profile"
THROUGHPUT_ROLLUP: Final = "throughput_rollup"
LATEST: Final = "latest"
WAIT_MAX_S: Final = 3_600
REASONS_MAX: Final = 10
"""Causes and next steps under the table: of the worst."""
OWNERS_MAX: Final = 8
FINE_MAX: Final = 20
"""Rows that are OK: the late ones should not scroll away."""
_TABLES: Final = {
    BACKLOG_PROFILE: (
        ("group", "topic", "section", "bucket", "messages", "bytes"),
        "no group had a backlog",
    ),
    THROUGHPUT_ROLLUP: (
        ("bucket_at", "topic", "group", "messages", "rate_max", "lag_messages", "covered_s"),
        "there are no buckets in this time",
    ),
}

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="lag_report, backlog_profile or throughput_rollup.")]
RunOption = Annotated[str, typer.Option("--run", metavar="ID", help="A run; default: the latest that succeeded.")]


class Level(StrEnum):
    """Which rows of a lag report."""

    TOPIC = "topic"
    QUEUE = "queue"


@app.command("list")
def list_jobs(
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the report jobs: when they run, and how the last run went."""
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
def run(
    job: JobArgument,
    *,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for its end, and show what it found.")] = False,
    since: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TIME",
            help="The window, such as 2026-11-21T09:30:00Z: what throughput_rollup sums up, when what backlog_profile counts was stored; a lag_report is always about the moment it runs.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Where the window ends; a job does each one once.")
    ] = None,
    timeout: Annotated[int, typer.Option(metavar="SECONDS", min=1, help="How long --wait waits.")] = WAIT_MAX_S,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have a report job run now; without --wait, say which run it is and go.

    With --wait it prints the groups, the worst first, and where the HTML page is; with --json the rows instead. It ends
    0 only if the run succeeded.
    """
    if (since is None) != (until is None):
        raise typer.BadParameter("--from and --to belong together")
    remote = connect(data, url, key)
    if since is not None and job == LAG_REPORT:
        print(
            f"{job}: is about the moment it runs; --from and --to only name the run, which is made once",
            file=sys.stderr,
        )
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
        fail(f"run {ended['id']} of {job}: {ended['status']}: {ended['error'] or 'no reason was given'}")
    rows = list(_rows(remote, job, {"run": ended["id"]})) if job == LAG_REPORT else []
    if as_json:
        print_json(rows if job == LAG_REPORT else ended)
        return
    if job == LAG_REPORT:
        _print_lag([row for row in rows if row["level"] == Level.TOPIC])
        print()
    print_facts(
        {"run": ended["id"], "rows": ended["rows"], "took": _took(ended), "page": (ended["files"] or {}).get("html")}
    )


@app.command()
def runs(
    job: JobArgument,
    *,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="The most to show.")] = 20,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a job's runs, the newest first."""
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
            _took(item),
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
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Only this group.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only this topic.")] = None,
    level: Annotated[
        Level | None,
        typer.Option(help="lag_report: only such rows; a table has those of topics where this is not said."),
    ] = None,
    section: Annotated[
        str | None,
        typer.Option(metavar="SECTION", help="backlog_profile: only this section: age, key, queue, size or tag."),
    ] = None,
    unit: Annotated[
        str | None, typer.Option(metavar="UNIT", help="throughput_rollup: by minute, hour (default) or day.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="throughput_rollup: the first bucket begins then or later."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="throughput_rollup: the last bucket begins before it.")
    ] = None,
    time_zone: Annotated[
        str | None,
        typer.Option(metavar="ZONE", help="throughput_rollup: whose days, such as Europe/Berlin; default: UTC."),
    ] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a report found: who is behind and why (the worst first), what a backlog is made of, or how much came in."""
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
        raise typer.BadParameter(f"--run is not for {job}, whose buckets are of no run: give --from and --to")
    if job == LAG_REPORT and not as_json:
        wanted["level"] = level or Level.TOPIC
    rows = list(_rows(connect(data, url, key), job, wanted))
    if as_json:
        print_json(rows)
    elif job == LAG_REPORT:
        _print_lag(rows)
    else:
        columns, empty = _TABLES[job]
        print_table(columns, [[row[name] for name in columns] for row in rows], empty=empty)


@app.command()
def history(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    *,
    since: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Where it begins; default: a day before its end.")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Where it ends; default: now.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how far behind a group was on a topic: at most 288 points, of 12 days at most."""
    query = {"group": group, "topic": topic, "from": since, "to": until}
    found = connect(data, url, key).call("GET", f"/v1/reports/{LAG_REPORT}/history", query=query)
    if as_json:
        print_json(found)
        return
    rows = [[point["at"], _count(point["lag_messages"]), _length(point["lag_seconds"])] for point in found["items"]]
    empty = f"there are no samples of {group} on {topic} from {found['from']} to {found['to']}"
    print_table(["at", "messages", "behind"], rows, empty=empty)
    if rows:
        print(f"points are {brief_duration(found['step_s'])} apart")


@app.command()
def page(
    job: JobArgument,
    *,
    run_id: RunOption = LATEST,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Get it from the gateway, and write it to a file here.")
    ] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Print where a run's HTML page is, on the machine that made it; with --save, get it from anywhere."""
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
        print(f"gantry: this machine can't read {where}; --save FILE gets the page from the gateway", file=sys.stderr)


app.command("open", hidden=True)(page)


def _rows(remote: Remote, job: str, wanted: Mapping[str, str | None]) -> Sequence[dict[str, Any]]:
    """Return all rows: of one run, or of one stretch of time, although `latest` and now may be others by the second page."""
    path = f"/v1/reports/{segment(job)}/rows"
    page = remote.call("GET", path, query={"limit": 1_000, **wanted})
    fixed = {**wanted, **{name: page[name] for name in ("run", "from", "to") if name in page}}
    rows: list[dict[str, Any]] = page["items"]
    while page["next_cursor"] is not None:
        page = remote.call("GET", path, query={"limit": 1_000, **fixed, "cursor": page["next_cursor"]})
        rows += page["items"]
    return rows


def _print_lag(rows: Sequence[dict[str, Any]]) -> None:
    ordered = sorted(
        rows,
        key=lambda row: (
            severity(row["verdict"]),
            -(row["lag_seconds"] or 0),
            -(row["lag_messages"] or 0),
            row["group"],
            row["topic"],
        ),
    )
    has_queues = any(row["queue_id"] is not None for row in rows)
    place = ["queue"] if has_queues else []
    columns = ["verdict", "group", "topic", *place, "messages", "behind", "since", "gone_in", "deleted_in"]
    late = [row for row in ordered if row["verdict"] != "OK"]
    fine = ordered[len(late) :]
    shown = [*late, *fine[:FINE_MAX]]
    print_table(
        columns, [_lag_cells(row, has_queues=has_queues) for row in shown], empty="there are no groups to report on"
    )
    if len(fine) > FINE_MAX:
        print(f"and {len(fine) - FINE_MAX:,} more that are OK: the page has all, and --json")
    said = [row for row in late if row["level"] == Level.TOPIC]
    for row in said[:REASONS_MAX]:
        print(f"\n{cell(row['verdict'])} {cell(row['group'])} on {cell(row['topic'])}: {cell(row['cause'])}")
        if row["next_step"]:
            print(f"  next step: {cell(row['next_step'])}")
        if owners := _owners(row):
            print(f"  clients (queues): {cell(owners)}")
    if len(said) > REASONS_MAX:
        print(f"\n{len(said) - REASONS_MAX:,} more are not OK: the page has all, and --json")


def _lag_cells(row: dict[str, Any], *, has_queues: bool) -> list[object]:
    waits = row["lag_messages"] != 0
    place = None if row["queue_id"] is None else f"{row['broker']}/{row['queue_id']}"
    return [
        row["verdict"],
        row["group"],
        row["topic"],
        *([place] if has_queues else []),
        _count(row["lag_messages"]),
        _length(row["lag_seconds"]) if waits else None,
        _since(row) if waits else None,
        _gone(row) if waits else None,
        _length(row["retention_left_s"]) if waits else None,
    ]


def _count(messages: int | None) -> str:
    return "unknown" if messages is None else f"{messages:,}"


def _length(seconds: float | None) -> str:
    return "unknown" if seconds is None else brief_duration(seconds)


def _since(row: dict[str, Any]) -> str | None:
    """Return since when a group is behind; rows of older gateways don't say."""
    if row["verdict"] == "OK" or row["level"] != Level.TOPIC:
        return None
    at_latest = (row["evidence"] or {}).get("behind_at_latest")
    since = row.get("behind_since")
    return _minute(since) if since else f"before {_minute(at_latest)}" if at_latest else "unknown"


def _minute(moment: str) -> str:
    return f"{moment[:10]} {moment[11:16]}"


def _owners(row: dict[str, Any]) -> str | None:
    """Return who is connected from where, with how many queues each."""
    owners = row.get("owners")
    if not owners:
        return None
    named = [
        f"{one['client_id']} at {one['host']} ({'queues unknown' if one['queues'] is None else one['queues']})"
        for one in owners[:OWNERS_MAX]
    ]
    left = len(owners) - len(named)
    return ", ".join(named) + (f" and {left:,} more" if left else "")


def _gone(row: dict[str, Any]) -> str | None:
    if row["drain_eta_s"] is not None:
        return brief_duration(row["drain_eta_s"])
    if row["verdict"] == "OK":  # It keeps up: a little is always on its way.
        return None
    return "unknown" if row["in_rate"] is None or row["out_rate"] is None else "never"


def _took(found: dict[str, Any]) -> str | None:
    return None if found["duration_ms"] is None else brief_duration(found["duration_ms"] / 1_000)
