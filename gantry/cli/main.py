"""The `gantry` command.

Nouns are loaded when they are used: most of them speak HTTP, and `gantry up` or a service must not wait for that.
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

from gantry.cli.launch import SERVICES, launch
from gantry.cli.outcome import fail
from gantry.cli.stack.layout import StackOptions
from gantry.cli.stack.up import data_folder, run_up
from gantry.runtime.errors import StartupError

# Noun → module with an `app`.
NOUNS = {
    "topic": "gantry.cli.topic",
    "group": "gantry.cli.group",
    "message": "gantry.cli.message",
    "offset": "gantry.cli.offset",
    "key": "gantry.cli.key",
    "report": "gantry.cli.report",
    "alert": "gantry.cli.alert",
    "webhook": "gantry.cli.webhook",
    "store": "gantry.cli.store",
}


# A paragraph a line: the help page breaks lines where the terminal ends.
UP_HELP = """Start everything on this machine, and run it until Ctrl-C.

Starts Postgres (unless GANTRY_DATABASE_URL points at one), a name server, brokers, an HTTP gateway and the scheduler of reports, and starts again what dies. DIR/stack.json says where everything is, DIR/logs holds the logs.
"""


class Commands(TyperGroup):
    """The commands of this module, and nouns that are imported when somebody asks for them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return every name, in the order of the help page."""
        return [*super().list_commands(ctx), *NOUNS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by name, or None."""
        if cmd_name in NOUNS:
            return get_command(importlib.import_module(NOUNS[cmd_name]).app)
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
    data: Annotated[Path, typer.Option(envvar="GANTRY_DATA", metavar="DIR", help="Where everything is kept.")] = Path(
        ".gantry"
    ),
    brokers: Annotated[int, typer.Option(metavar="N", help="How many broker masters.")] = 2,
    port_base: Annotated[
        int, typer.Option(metavar="N", help="Added to every port, a multiple of 1000: for several stacks at once.")
    ] = 0,
    host: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = "127.0.0.1",
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST", help="The address others are told; default: --host.")
    ] = None,
    *,
    scheduler: Annotated[
        bool,
        typer.Option("--scheduler/--no-scheduler", help="Make reports on lag and backlog, on schedule and on demand."),
    ] = True,
) -> None:
    """Start everything on this machine, and run it until Ctrl-C."""
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


def _add_service(name: str, summary: str) -> None:
    # Everything behind the name is the service's, --help too.
    @app.command(
        name,
        help=f"{summary} `gantry {name} --help` shows its options.",
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
    )
    def run(ctx: typer.Context) -> None:
        launch(name, ctx.args)


for _name, (_, _summary) in SERVICES.items():
    _add_service(_name, _summary)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    if not __debug__:
        fail("python -O leaves out the asserts Gantry relies on: start without -O")
    try:
        app(args=None if arguments is None else list(arguments), prog_name="gantry")
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; a second error while flushing must not follow.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
