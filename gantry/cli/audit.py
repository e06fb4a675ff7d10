"""`gantry audit`: who changed what, and when."""

from typing import Annotated

import typer

from gantry.cli.exporting import write_pieces
from gantry.cli.formatting import print_items
from gantry.cli.options import DATA_DEFAULT, DataOption, JsonOption, KeyOption, OutputOption, UrlOption
from gantry.cli.remote import connect

app = typer.Typer(name="audit", help="Show and export the audit trail: all changes of metadata.", no_args_is_help=True)

KindOption = Annotated[
    str | None, typer.Option(metavar="topic|group|key|user|…", help="Only changes of this kind of resource.")
]
NameOption = Annotated[str | None, typer.Option(help="Only changes of this resource; needs --kind.")]
ActorOption = Annotated[str | None, typer.Option(help="Only changes by this actor: the id of a key, or user:NAME.")]
ActionOption = Annotated[str | None, typer.Option(metavar="topic.create|…", help="Only this action.")]
FromOption = Annotated[str | None, typer.Option("--from", metavar="TIME", help="Only changes at this time or later.")]
ToOption = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Only changes before this time.")]

_COLUMNS = ("at", "actor", "action", "name", "before", "after")


@app.command("list")
def list_entries(
    *,
    kind: KindOption = None,
    name: NameOption = None,
    actor: ActorOption = None,
    action: ActionOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of changes.")] = 50,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List changes, newest first."""
    wanted = _filter(kind=kind, name=name, actor=actor, action=action, since=from_, until=to)
    items = connect(data, url, key).call("GET", "/v1/audit", query={**wanted, "limit": limit})["items"]
    print_items(items, _COLUMNS, empty="there are no such changes", as_json=as_json)


@app.command()
def export(
    *,
    output: OutputOption = None,
    kind: KindOption = None,
    name: NameOption = None,
    actor: ActorOption = None,
    action: ActionOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Write changes as JSON, one change a line, newest first."""
    wanted = _filter(kind=kind, name=name, actor=actor, action=action, since=from_, until=to)
    write_pieces(connect(data, url, key).stream("/v1/audit:export", query=wanted), output)


def _filter(*, since: str | None, until: str | None, **equal: str | None) -> dict[str, str]:
    given = {**equal, "from": since, "to": until}
    return {name: value for name, value in given.items() if value is not None}
