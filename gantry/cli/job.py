"""`gantry job`: long work of the gateways, such as a redrive of dead letters."""

import time
from typing import Annotated, Any

import typer

from gantry.cli.formatting import print_facts, print_items, print_json
from gantry.cli.options import DATA_DEFAULT, DataOption, JsonOption, KeyOption, UrlOption
from gantry.cli.outcome import fail, warn
from gantry.cli.remote import Remote, connect, segment

app = typer.Typer(name="job", help="Watch and cancel jobs: long work of the gateways.", no_args_is_help=True)

POLL_S = 1.0

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The id that `gantry job list` shows.")]

_FACTS = ("job", "kind", "state", "done", "failed", "total", "error", "created_at", "started_at", "ended_at")


@app.command("list")
def list_jobs(
    *,
    kind: Annotated[str | None, typer.Option(metavar="redrive|shrink", help="Show only jobs of this kind.")] = None,
    state: Annotated[
        str | None,
        typer.Option(metavar="queued|running|done|failed|cancelled", help="Show only jobs in this state."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of jobs.")] = 50,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first."""
    query = {"kind": kind, "state": state, "limit": limit}
    items = connect(data, url, key).call("GET", "/v1/jobs", query=query)["items"]
    print_items(items, _FACTS, empty="there are no jobs", as_json=as_json)


@app.command()
def show(
    job: JobArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a job with its progress."""
    print_job(connect(data, url, key).call("GET", _path(job)), as_json=as_json)


@app.command()
def cancel(
    job: JobArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Cancel a job. A running job stops within seconds, and what it has done stays done."""
    print_job(connect(data, url, key).call("POST", f"{_path(job)}:cancel"), as_json=as_json)


@app.command()
def wait(
    job: JobArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until a job has ended, and show it. The exit code is 0 only if it is done."""
    wait_for(connect(data, url, key), job, as_json=as_json)


def wait_for(remote: Remote, job: str, *, as_json: bool) -> None:
    """Wait until a job has ended, print it, and end the command with an error unless it is done.

    While the job waits for something, the reason goes to stderr, once for each reason.
    """
    reason: str | None = None
    while True:
        found = remote.call("GET", _path(job))
        if found["ended_at"] is not None:
            break
        if found["error"] not in (None, reason):
            reason = found["error"]
            warn(f"job {job} is not done yet: {reason}")
        time.sleep(POLL_S)
    print_job(found, as_json=as_json)
    if found["state"] != "done":
        fail(f"job {job} is {found['state']}" + (f": {found['error']}" if found["error"] else ""))


def print_job(job: dict[str, Any], *, as_json: bool) -> None:
    """Print a job as JSON or as a list of facts."""
    if as_json:
        print_json(job)
    else:
        print_facts({name: job[name] for name in _FACTS})


def _path(job: str) -> str:
    return f"/v1/jobs/{segment(job)}"
