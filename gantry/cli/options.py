"""Options and arguments that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

DATA_DEFAULT = Path(".gantry")

DataOption = Annotated[
    Path, typer.Option("--data", envvar="GANTRY_DATA", metavar="DIR", help="Data folder of a stack on this machine.")
]
UrlOption = Annotated[
    str | None, typer.Option("--url", envvar="GANTRY_URL", metavar="URL", help="URL of another gateway; needs --key.")
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="GANTRY_API_KEY",
        metavar="KEY",
        help="API key, or @FILE to read it from FILE.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file; default: stdout.")
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the consumer group.")]
TopicArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
GroupFilter = Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Show only this group.")]
TopicFilter = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Show only this topic.")]
