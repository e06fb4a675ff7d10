"""`gantry namesrv|broker|gateway|scheduler|migrate`: one service in this very process, by name.

The arguments are the service's own; it says what they are (`gantry broker --help`).
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
    "scheduler": ("spark.scheduler", "Run the scheduler of reports on lag and backlog."),
    "migrate": ("services.gateway.db", "Bring a database to this version's schema."),
}
# Where one is missing, the extra [spark] is not installed.
NEEDED_FOR_REPORTS = ("apscheduler", "psycopg", "pyspark")


def launch(name: str, arguments: Sequence[str]) -> None:
    """Become the service; returns only where that is not possible."""
    module, _ = SERVICES[name]
    # Looked for and not imported: this layer starts services and knows nothing of what they are.
    if module.startswith("spark."):
        if any(find_spec(needed) is None for needed in NEEDED_FOR_REPORTS):
            fail("reports are not installed: pip install 'gantry-mq[spark]'")
    elif find_spec("sqlalchemy") is None or find_spec("starlette") is None:
        fail("the services are not installed: pip install 'gantry-mq[server]'")
    try:
        # exec: signals, the exit code and the process's name are the service's own.
        os.execv(sys.executable, [sys.executable, "-P", "-m", module, *arguments])  # noqa: S606 - our own module.
    except OSError as error:
        fail(f"{sys.executable} can't be run: {error.strerror}")
