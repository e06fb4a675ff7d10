"""The `gantry` command.

The modules of commands are imported when they are used. Most of them need an HTTP client, whose import would delay
`gantry up` and the start of a service. `gantry up` needs asyncio and more, whose import would delay the other commands.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from gantry.cli.launch import SERVICES, add_service
from gantry.cli.options import DATA_DEFAULT
from gantry.cli.outcome import discard_output, fail
from gantry.cli.stack.layout import BROKERS_DEFAULT, HOST_DEFAULT, StackOptions
from gantry.runtime.errors import StartupError

# Command group → module with an `app`.
COMMAND_GROUPS = {
    "topic": "gantry.cli.topic",
    "broker": "gantry.cli.broker",
    "group": "gantry.cli.group",
    "message": "gantry.cli.message",
    "consume": "gantry.cli.consume",
    "tail": "gantry.cli.livetail",
    "offset": "gantry.cli.offset",
    "key": "gantry.cli.key",
    "user": "gantry.cli.user",
    "audit": "gantry.cli.audit",
    "report": "gantry.cli.report",
    "dlq": "gantry.cli.dlq",
    "transaction": "gantry.cli.transaction",
    "producer-group": "gantry.cli.producergroup",
    "job": "gantry.cli.job",
    "alert": "gantry.cli.alert",
    "webhook": "gantry.cli.webhook",
    "store": "gantry.cli.store",
}

# Each paragraph is one line: the help page wraps lines at the width of the terminal.
UP_HELP = """Run a whole Gantry stack on this machine until Ctrl-C.

Starts Postgres (unless GANTRY_DATABASE_URL names a server), a name server, brokers, an HTTP gateway and the report scheduler. Restarts processes that end unexpectedly. DIR/stack.json lists addresses and processes, DIR/logs holds the logs.
"""


class Commands(TyperGroup):
    """The commands of this module, and command groups that are imported on first use."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return every name, in the order of the help page."""
        return [*super().list_commands(ctx), *COMMAND_GROUPS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by name, or None."""
        if cmd_name in COMMAND_GROUPS:
            return get_command(importlib.import_module(COMMAND_GROUPS[cmd_name]).app)
        return super().get_command(ctx, cmd_name)


app = typer.Typer(
    cls=Commands,
    name="gantry",
    help="Gantry: a messaging service with RocketMQ's semantics over HTTP and WebSocket.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(help=UP_HELP)
def up(
    data: Annotated[
        Path, typer.Option(envvar="GANTRY_DATA", metavar="DIR", help="Folder for all data and logs.")
    ] = DATA_DEFAULT,
    brokers: Annotated[int, typer.Option(metavar="N", help="Number of broker masters.")] = BROKERS_DEFAULT,
    port_base: Annotated[
        int, typer.Option(metavar="N", help="Number to add to every port; a multiple of 1000. Lets several stacks run.")
    ] = 0,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = HOST_DEFAULT,
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST", help="Address that clients connect to; default: --host.")
    ] = None,
    *,
    scheduler: Annotated[
        bool, typer.Option("--scheduler/--no-scheduler", help="Run lag and backlog reports on schedule and on demand.")
    ] = True,
) -> None:
    """Run a whole Gantry stack on this machine until Ctrl-C."""
    from gantry.cli.stack.up import data_folder, run_up  # noqa: PLC0415 - see the top of the module.

    options = StackOptions(
        data=data_folder(str(data)),
        brokers=brokers,
        port_base=port_base,
        host=host,
        advertise=advertise or host,
        database_url=os.environ.get("GANTRY_DATABASE_URL") or None,
        scheduler=scheduler,
    )
    try:
        raise typer.Exit(run_up(options, environment=os.environ, say=_say))
    except StartupError as error:
        fail(str(error))


def _say(line: str) -> None:
    print(line, flush=True)


for _name in SERVICES:
    if _name not in COMMAND_GROUPS:  # `gantry broker` adds its service itself.
        add_service(app, _name)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    if not __debug__:
        fail("python -O removes assertions that Gantry relies on: start without -O")
    try:
        app(args=None if arguments is None else list(arguments), prog_name="gantry")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        discard_output()
        sys.exit(0)
