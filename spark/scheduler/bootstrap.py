"""Builds a scheduler from its settings and runs it. No other module wires its parts."""

import os
import sys
from collections.abc import Sequence
from typing import Final

from gantry.runtime.clock import SystemClock
from gantry.runtime.errors import StartupError
from gantry.runtime.lifecycle import Lifecycle
from spark.access import read_access_file
from spark.scheduler.children import Children
from spark.scheduler.jobs import JOBS
from spark.scheduler.leadership import Leadership
from spark.scheduler.service import Scheduler
from spark.scheduler.settings import SchedulerSettings
from spark.scheduler.turns import Turns

# -P: Python must not import another folder named `spark` from the directory in which the scheduler was started.
WORKER: Final = (sys.executable, "-P", "-m", "spark.jobs.worker")


async def run(settings: SchedulerSettings, lifecycle: Lifecycle, *, command: Sequence[str] = WORKER) -> None:
    """Run a scheduler until it is told to stop.

    Args:
        settings: The settings of the scheduler.
        lifecycle: The lifecycle of the process.
        command: The command that starts a worker.

    Raises:
        StartupError: A setting is missing, or the access file has no credentials.
    """
    if not settings.database_url:
        raise StartupError("the database is missing: set --database URL or GANTRY_DATABASE_URL; runs are kept there")
    if settings.access_file is not None:
        # Each job reads the file itself. This early check reports errors at the start, while a person is watching.
        read_access_file(settings.access_file, "access_file")
    leadership = Leadership(settings.database_url)
    # The URL may have a password. All users can see the command line of a process with `ps`, but not its environment.
    environment = {**os.environ, "GANTRY_DATABASE_URL": settings.database_url}
    children = Children(settings, command=command, environment=environment)
    scheduler = Scheduler(
        settings, lifecycle, leadership=leadership, turns=Turns(settings, leadership, SystemClock()), children=children
    )
    # Report that the process is ready before the first turn: Postgres may be away, and nobody needs to wait for it.
    lifecycle.ready({"jobs": {job: settings.cron_of(job) for job in JOBS}})
    await scheduler.run()
