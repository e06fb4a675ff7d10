"""`gantry namesrv|broker|gateway|scheduler|migrate`: replace this process by one service.

The service parses the arguments itself (`gantry gateway --help`). `gantry broker` also has commands about brokers that
run (broker.py); options alone run one, and `gantry broker run --help` shows them.
"""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import typer

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


def add_service(app: typer.Typer, name: str, *, command: str | None = None) -> None:
    """Add the command that runs a service to an app, under the service's name or another one."""
    words = f"gantry {name}" if command is None else f"gantry {name} {command}"

    # The service parses every argument itself, --help too.
    @app.command(
        command or name,
        help=f"{SERVICES[name][1]} `{words} --help` shows its options.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    )
    def run(ctx: typer.Context) -> None:
        launch(name, ctx.args)


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
