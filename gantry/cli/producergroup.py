"""`gantry producer-group`: where the open transactions of a producer group are asked about."""

import sys
from typing import Annotated, Any

import typer

from gantry.cli.formatting import print_facts, print_json
from gantry.cli.options import DATA_DEFAULT, DataOption, JsonOption, KeyOption, UrlOption
from gantry.cli.remote import connect, segment

app = typer.Typer(
    name="producer-group", help="Set the URL that is asked about open transactions.", no_args_is_help=True
)

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the producer group.")]


@app.command()
def show(
    group: GroupArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the URL of a producer group."""
    _print(connect(data, url, key).call("GET", _path(group)), as_json=as_json)


@app.command("set")
def set_url(
    group: GroupArgument,
    check_url: Annotated[str, typer.Argument(metavar="URL", help="https://…")],
    *,
    secret_stdin: Annotated[
        bool,
        typer.Option(
            "--secret-stdin",
            help="Read the secret that signs the questions from standard input: 16 to 256 ASCII characters. A new URL"
            " needs one.",
        ),
    ] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the URL that gets a signed POST about each open transaction of the group."""
    body = {"check_url": check_url}
    if secret_stdin:
        body["check_secret"] = sys.stdin.readline().rstrip("\r\n")
    _print(connect(data, url, key).call("PUT", _path(group), body=body), as_json=as_json)


@app.command()
def remove(
    group: GroupArgument, *, data: DataOption = DATA_DEFAULT, url: UrlOption = None, key: KeyOption = None
) -> None:
    """Remove the URL and the secret. Streams that said hello with the group are still asked."""
    connect(data, url, key).call("PUT", _path(group), body={"check_url": None})
    print(f"producer group {group} has no URL")


def _path(group: str) -> str:
    return f"/v1/producer-groups/{segment(group)}"


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print_facts(found)
