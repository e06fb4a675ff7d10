"""Waiting for the end of a report run. Progress goes to stderr, so that stdout holds only the result."""

import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from rich.console import Console

from gantry.cli.formatting import cell
from gantry.cli.outcome import fail
from gantry.cli.remote import Remote, segment

POLL_S: Final = 0.5
# A scheduler polls for queued runs about once a second. A run that stays queued this long probably has no scheduler.
QUEUED_HINT_S: Final = 15
# Each job has at most one active run. A free scheduler takes a queued run sooner than this. Only after this time does
# the command look for the active run that blocks it.
BEHIND_AFTER_S: Final = 2
BEHIND_EVERY_S: Final = 5
QUEUE_RUNS_MAX: Final = 100
# The scheduler may queue a failed run again a moment later, for its next attempt.
SECOND_LOOK_S: Final = 1.5

ENDED: Final = frozenset({"succeeded", "failed", "timed_out"})


def wait_for_run(remote: Remote, started: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
    """Wait for the end of a run and return the run, whether it succeeded or failed.

    Raises:
        SystemExit: The run did not end in time, or a request failed. The reason is printed.
    """
    path = f"/v1/reports/{segment(started['job'])}/runs/{segment(started['id'])}"
    deadline = time.monotonic() + timeout_s
    hint_at = time.monotonic() + QUEUED_HINT_S
    behind_at = time.monotonic() + BEHIND_AFTER_S
    behind: dict[str, Any] | None = None
    line = _ProgressLine()
    found = started
    try:
        while True:
            if found["status"] in ENDED:
                if found["status"] == "succeeded":
                    return found
                time.sleep(SECOND_LOOK_S)
                found = _fetch_run(remote, path)
                if found["status"] in ENDED:
                    return found
            if time.monotonic() >= deadline:
                fail(
                    f"run {found['id']} is still {found['status']} after {timeout_s:g} s and continues: see gantry report runs {found['job']}"
                )
            is_queued = found["status"] == "queued"
            if is_queued and time.monotonic() >= behind_at:
                behind = _running(remote, found)
                behind_at = time.monotonic() + BEHIND_EVERY_S
            if behind is not None:
                # The hint is due only some time after the other run has ended: a scheduler needs time to notice the end.
                hint_at = time.monotonic() + QUEUED_HINT_S
            hint = is_queued and found["attempt"] == 0 and time.monotonic() >= hint_at
            line.show(_progress(found, behind=behind if is_queued else None, is_late=hint))
            time.sleep(POLL_S)
            found = _fetch_run(remote, path)
    finally:
        line.close()


def _fetch_run(remote: Remote, path: str) -> dict[str, Any]:
    found: dict[str, Any] = remote.call("GET", path)
    return found


def _running(remote: Remote, queued: dict[str, Any]) -> dict[str, Any] | None:
    """Return the active run of the same job, or None. Schedulers take no other run of the job until it ends."""
    runs = remote.call("GET", f"/v1/reports/{segment(queued['job'])}/runs", query={"limit": QUEUE_RUNS_MAX})["items"]
    return next((run for run in runs if run["status"] == "running" and run["id"] != queued["id"]), None)


def _progress(found: dict[str, Any], *, behind: dict[str, Any] | None, is_late: bool) -> str:
    return " ".join(_parts(found, behind=behind, is_late=is_late))


def _parts(found: dict[str, Any], *, behind: dict[str, Any] | None, is_late: bool) -> Iterator[str]:
    yield f"{found['job']}: {found['status']}"
    progress = found["progress"] or {}
    if progress.get("percent") is not None:
        yield f"{progress['percent']} %"
    if progress.get("step"):
        yield cell(progress["step"])
    if found["status"] == "queued" and found["attempt"]:
        yield f"after attempt {found['attempt']}: {' '.join(cell(found['error'] or 'unknown error').split())}"
    if behind is not None:
        yield f"behind run {behind['id']}, which has been running since {behind['started_at']}"
    if is_late:
        yield "(no scheduler has started it yet; `gantry up` and `gantry scheduler` run one)"


class _ProgressLine:
    """The progress of a run: one line that changes on a terminal, otherwise a new line for each change."""

    def __init__(self) -> None:
        console = Console(stderr=True, highlight=False)
        self._status = console.status("", spinner="line") if sys.stderr.isatty() else None
        self._last = ""
        if self._status is not None:
            self._status.start()

    def show(self, line: str) -> None:
        if line == self._last:
            return
        self._last = line
        if self._status is not None:
            self._status.update(line.replace("[", "\\["))
        else:
            print(line, file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
