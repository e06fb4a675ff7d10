"""`gantry namesrv|broker|gateway|scheduler|migrate`: replace this process by one service.

The service parses the arguments itself (`gantry broker --help`).
"""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from gantry.cli.outcome import fail

SERVICES = {
    "namesrv": ("services.namesrv", "Run one name server."),
    "broker": ("services.broker", "Run one broker."),
    "gateway": ("services.gateway", "Run one HTTP gateway."),
    "scheduler": ("spark.scheduler", "Run the scheduler of lag and backlog reports."),
    "migrate": ("services.gateway.db", "Migrate a database to this version's schema."),
}
# Modules that the extra [spark] installs. Reports need all of them.
NEEDED_FOR_REPORTS = ("apscheduler", "psycopg", "pyspark")


def launch(name: str, arguments: Sequence[str]) -> None:
    """Replace this process by the service. Exits with code 1 if that is not possible."""
    module, _ = SERVICES[name]
    # find_spec imports nothing: the command line must not import services.
    if module.startswith("spark."):
        if any(find_spec(needed) is None for needed in NEEDED_FOR_REPORTS):
            fail("reports are not installed: pip install 'gantry-mq[spark]'")
    elif find_spec("sqlalchemy") is None or find_spec("starlette") is None:
        fail("the services are not installed: pip install 'gantry-mq[server]'")
    try:
        # exec, so that signals reach the service and its exit code reaches the caller.
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])  # noqa: S606 - our own module.
    except OSError as error:
        fail(f"{sys.executable} can't be run: {error.strerror}")
