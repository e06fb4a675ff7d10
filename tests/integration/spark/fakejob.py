"""A worker whose jobs take no time, for tests of the scheduler: does what `OUTPUT/orders.json` says of the attempt.

    {"1": "fail", "2": "succeed"}

succeed: publishes one page; fail: exits 1 with a reason; permanent: writes the reason itself and exits 3; hang: waits, with
a child of its own, until it is killed; silent: exits 0 without a result; die: ends the worker.

Each run prints the worker's process id. Its functions say what it does before a run and instead of an archive.
"""

import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from spark.jobs.worker import serve
from spark.postgres import connect
from spark.results import Table, publish
from spark.runs import Runs

TABLE = Table("report_lag_rows", {})


def main(url: str, output: str, job: str, arguments: Sequence[str]) -> int:
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    attempt_text = given["--attempt"]
    run_id, attempt = UUID(given["--run"]), int(attempt_text)
    print(f"worker {os.getpid()}")
    orders = json.loads((Path(output) / "orders.json").read_text())
    order = orders.get(attempt_text, "succeed")
    if order == "fail":
        print(f"{job}: no broker answers in attempt {attempt}", file=sys.stderr)
        return 1
    if order == "die":
        os._exit(0)
    if order == "permanent":
        with connect(url, application="fake-job") as connection:
            Runs(connection).fail(run_id, attempt, "there is no Java")
        print(f"{job}: there is no Java", file=sys.stderr)
        return 3
    if order == "hang":
        child = subprocess.Popen(["sleep", "600"])
        # The file appears under its name with all of its content: a test reads it as soon as it exists.
        unnamed = Path(output) / "child.pid.tmp"
        unnamed.write_text(str(child.pid))
        unnamed.rename(Path(output) / "child.pid")
        with connect(url, application="fake-job") as connection:
            while Runs(connection).heartbeat(run_id, attempt, percent=50, step="hanging"):
                time.sleep(0.2)
            time.sleep(600)
    if order == "succeed":
        with connect(url, application="fake-job") as connection:
            publish(
                connection,
                TABLE,
                run_id=run_id,
                attempt=attempt,
                rows=[],
                page=f"{job} {attempt}",
                files={"html": "x"},
            )
    return 0


def get_ready(output: str, job: str, arguments: Sequence[str]) -> int:
    """Say so, and do what `OUTPUT/ready.json` says: its exit code, or hang until the file is gone."""
    print(f"worker {os.getpid()} ready for {job} {' '.join(arguments)}", flush=True)
    orders = Path(output) / "ready.json"
    if not orders.exists():
        return 0
    code: int | None = json.loads(orders.read_text())
    while code is None and orders.exists():
        time.sleep(0.02)
    return code or 0


def record(folder: str) -> int:
    """Make a file instead of an archive."""
    Path(folder).mkdir(exist_ok=True)
    with (Path(folder) / "recorded").open("a") as recorded:
        recorded.write(f"{os.getpid()}\n")
    return 0


if __name__ == "__main__":
    database, folder, descriptor = sys.argv[1:]
    serve(int(descriptor), functools.partial(main, database, folder), functools.partial(get_ready, folder), record)
