"""`gantry dlq`: dead letters, the messages that a group failed to consume for the last time."""

from typing import Annotated, Any

import typer

from gantry.cli.exporting import write_pieces
from gantry.cli.formatting import print_facts, print_items, print_json
from gantry.cli.job import print_job, wait_for
from gantry.cli.options import DATA_DEFAULT, DataOption, GroupArgument, JsonOption, KeyOption, OutputOption, UrlOption
from gantry.cli.remote import connect, segment

app = typer.Typer(name="dlq", help="List, export and redrive dead letters.", no_args_is_help=True)

TopicOption = Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only letters of this topic.")]
TagOption = Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Only letters with this tag.")]
FromOption = Annotated[
    str | None, typer.Option("--from", metavar="TIME", help="Only letters that died at this time or later.")
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Only letters that died before this time.")]

_COLUMNS = ("dead_at", "origin", "tag", "attempts", "redriven_at", "message_id", "body")


@app.command("list")
def list_letters(
    group: GroupArgument,
    *,
    topic: TopicOption = None,
    tag: TagOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of letters.")] = 50,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters of a group, newest first."""
    query = {**_filter(topic, tag, from_, to), "limit": min(limit, 1_000)}
    items: list[dict[str, Any]] = []
    for item in connect(data, url, key).items(_path(group), query=query):
        items.append(item)
        if len(items) == limit:
            break
    print_items(
        items,
        ["dead_at", "topic", "tag", "attempts", "redriven_at", "message_id", "body"],
        row=lambda item: [item["origin"]["topic"] if name == "origin" else item[name] for name in _COLUMNS],
        empty=f"group {group} has no such dead letters",
        as_json=as_json,
    )


@app.command()
def show(
    group: GroupArgument,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Message id or stored id of the letter.")],
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a dead letter with all its properties."""
    query = {"topic": f"%DLQ%{group}", "system": True}
    found = connect(data, url, key).call("GET", f"/v1/messages/{segment(message_id)}", query=query)
    if as_json:
        print_json(found)
    else:
        print_facts(found)


@app.command()
def export(
    group: GroupArgument,
    *,
    output: OutputOption = None,
    topic: TopicOption = None,
    tag: TagOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Write dead letters as JSON, one letter a line, oldest first on each broker."""
    write_pieces(connect(data, url, key).stream(f"{_path(group)}:export", query=_filter(topic, tag, from_, to)), output)


@app.command()
def redrive(
    group: GroupArgument,
    message_ids: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]…", help="Message ids or stored ids of letters.")
    ] = None,
    *,
    all_letters: Annotated[bool, typer.Option("--all", help="Send all letters that the other options select.")] = False,
    topic: TopicOption = None,
    tag: TagOption = None,
    from_: FromOption = None,
    to: ToOption = None,
    origin: Annotated[
        bool, typer.Option("--origin", help="Send to the first topic, and so to all its groups; default: to GROUP.")
    ] = False,
    rate: Annotated[int, typer.Option(min=1, max=1_000, metavar="N", help="Letters a second.")] = 100,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which letters would be sent.")] = False,
    waits: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send dead letters again, as a job. A letter that was sent again before is left out.

    Name letters by their ids, or choose them with --all, --topic, --tag, --from and --to.
    """
    chosen = _filter(topic, tag, from_, to)
    if bool(message_ids) == (all_letters or bool(chosen)):
        raise typer.BadParameter("give either ids, or --all, --topic, --tag, --from or --to")
    body: dict[str, Any] = {"message_ids": message_ids} if message_ids else {"filter": chosen}
    body |= {"to": "origin" if origin else "retry", "rate_per_s": rate, "dry_run": dry_run}
    remote = connect(data, url, key)
    answer = remote.call("POST", f"{_path(group)}:redrive", body=body)
    if dry_run:
        _print_dry_run(answer, as_json=as_json)
    elif waits:
        wait_for(remote, answer["job"], as_json=as_json)
    else:
        print_job(answer, as_json=as_json)


def _print_dry_run(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print("too many letters to count" if found["selected"] is None else f"{found['selected']} letters would be sent")
    if found["sample"]:
        print("the first ones:")
        columns = ["dead_at", "message_id", "body"]
        print_items(found["sample"], columns, empty="", as_json=False)


def _path(group: str) -> str:
    return f"/v1/groups/{segment(group)}/dead-letters"


def _filter(topic: str | None, tag: str | None, from_: str | None, to: str | None) -> dict[str, str]:
    given = {"topic": topic, "tag": tag, "from": from_, "to": to}
    return {name: value for name, value in given.items() if value is not None}
