"""The workers of a scheduler, without runs in Postgres: which one gets a run."""

import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from gantry.cli.stack.processes import is_alive
from spark.reportfiles import log_file
from spark.runs import Run
from spark.scheduler.children import Children, RunEnding
from spark.scheduler.settings import SchedulerSettings
from spark.scheduler.workers import start_worker

WORKER = """
import json, os, socket, sys
requests = socket.socket(fileno=int(sys.argv[1])).makefile("rw")
for line in requests:
    print(os.getpid(), flush=True)
    requests.write(json.dumps({"code": 0}) + "\\n")
    requests.flush()
"""


def run() -> Run:
    now = datetime.now(UTC)
    return Run(uuid4(), "lag_report", None, now, "api", None, "running", 1, None, now, now)


async def test_a_worker_that_was_just_killed_gets_no_run(tmp_path: Path) -> None:
    settings = SchedulerSettings(
        database_url="postgresql://nowhere/g", output=str(tmp_path), logs=str(tmp_path), class_archive="off"
    )
    children = Children(settings, command=(sys.executable, "-c", WORKER), environment=dict(os.environ))

    async def pid_of_run() -> int:
        asked = run()
        ended = await children.run(asked)
        assert ended.ending is RunEnding.DONE, ended
        return int(log_file(settings.log_folder, asked.job, asked.id).read_text())

    try:
        first = await pid_of_run()
        assert await pid_of_run() == first, "an idle worker gets the next run"
        for _ in range(5):
            last = await pid_of_run()
            os.kill(last, signal.SIGKILL)
            # The loop has not run since, so only the kernel knows.
            assert await pid_of_run() != last
    finally:
        children.stop()
        await children.close()


STUBBORN = """
import json, signal, socket, subprocess, sys
requests = socket.socket(fileno=int(sys.argv[1])).makefile("rw")
requests.readline()
# It takes its time to end even after SIGKILL: the kernel must free its memory first.
child = \"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); held = b'x' * (300 << 20); print('held', flush=True); time.sleep(60)\"
made = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, start_new_session=True)
made.stdout.readline()
requests.write(json.dumps({"code": made.pid}) + "\\n")
requests.flush()
requests.readline()
"""


async def test_everything_that_a_worker_started_is_gone_when_it_has_ended(tmp_path: Path) -> None:
    worker = await start_worker((sys.executable, "-c", STUBBORN), dict(os.environ))
    child = await worker.do("lag_report", (), tmp_path / "run.log")
    assert child is not None, (tmp_path / "run.log").read_text()
    assert is_alive(child)
    await worker.end()
    assert not is_alive(child)
    assert not is_alive(worker.pid)
