"""Builds a scheduler from its settings and runs it: the only place that wires its parts."""

import os
import sys
from collections.abc import Sequence
from typing import Final

from gantry.runtime.clock import SystemClock
from gantry.runtime.errors import StartupError
from gantry.runtime.lifecycle import Lifecycle
from spark.access import read_access_file
from spark.scheduler.children import Children
from spark.scheduler.duty import Duty
from spark.scheduler.service import Scheduler
from spark.scheduler.settings import JOBS, SchedulerSettings
from spark.scheduler.turns import Turns

# -P: a folder called `spark` where the scheduler was started must not be taken for ours.
WORKER: Final = (sys.executable, "-P", "-m", "spark.jobs.worker")


async def run(settings: SchedulerSettings, lifecycle: Lifecycle, *, command: Sequence[str] = WORKER) -> None:
    """Run a scheduler until it is told to stop.

    Args:
        settings: Where everything is.
        lifecycle: The process's.
        command: Starts a worker.

    Raises:
        StartupError: A setting is missing, or there are no credentials in the file that is said to hold them.
    """
    if not settings.database_url:
        raise StartupError("say where the database is: --database URL or GANTRY_DATABASE_URL; runs are kept there")
    if settings.access_file is not None:
        # Each job reads it itself; but what can't be is said when somebody is there to read it.
        read_access_file(settings.access_file, "access_file")
    duty = Duty(settings.database_url)
    # Where `ps` does not show it.
    environment = {**os.environ, "GANTRY_DATABASE_URL": settings.database_url}
    children = Children(settings, command=command, environment=environment)
    scheduler = Scheduler(settings, lifecycle, duty=duty, turns=Turns(settings, duty, SystemClock()), children=children)
    # Before the first turn: Postgres may be away, and that is no reason for anybody to wait.
    lifecycle.ready({"jobs": {job: settings.cron_of(job) for job in JOBS}})
    await scheduler.run()
