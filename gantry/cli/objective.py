"""`gantry group objective`: how far behind a group may be."""

from typing import Annotated, Any

import typer

from gantry.cli.formatting import print_facts, print_items, print_json
from gantry.cli.remote import DATA_DEFAULT, DataOption, JsonOption, KeyOption, UrlOption, connect, segment

app = typer.Typer(name="objective", help="How far behind a group may be.", no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(metavar="GROUP")]
TopicOption = Annotated[
    str | None, typer.Option("--topic", metavar="TOPIC", help="On this topic; default: all that have no own objective.")
]

_FACTS = ("max_lag_seconds", "max_lag_messages", "ignore", "ignore_until", "reason", "updated_at")


@app.command("set")
def set_objective(
    group: GroupArgument,
    *,
    topic: TopicOption = None,
    max_lag_seconds: Annotated[float | None, typer.Option(help="Of the oldest message; 0: no limit.")] = None,
    max_lag_messages: Annotated[int | None, typer.Option(help="Of all queues together; -1: no limit.")] = None,
    ignore: Annotated[
        bool | None, typer.Option("--ignore/--no-ignore", help="Show its lag as IGNORED, without alerts.")
    ] = None,
    ignore_until: Annotated[
        str | None, typer.Option(metavar="T", help="2026-11-21T09:30:00Z; ignores until then.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="For people.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how far behind a group may be; what is not said stays as it is."""
    wanted: dict[str, Any] = {
        "max_lag_seconds": max_lag_seconds,
        "max_lag_messages": max_lag_messages,
        "ignore": True if ignore_until is not None and ignore is None else ignore,
        "ignore_until": ignore_until,
        "reason": reason,
    }
    body = {name: value for name, value in wanted.items() if value is not None}
    if not body:
        raise typer.BadParameter("say something, such as --max-lag-seconds 60")
    if max_lag_seconds == 0:
        body["max_lag_seconds"] = None
    if max_lag_messages == -1:
        body["max_lag_messages"] = None
    _show(connect(data, url, key).call("PUT", _path(group), body=body, query={"topic": topic}), as_json=as_json)


@app.command()
def show(
    group: GroupArgument,
    *,
    topic: TopicOption = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how far behind a group may be."""
    _show(connect(data, url, key).call("GET", _path(group), query={"topic": topic}), as_json=as_json)


@app.command("list")
def list_objectives(
    *,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only of this group.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List objectives."""
    items = list(connect(data, url, key).items("/v1/objectives", query={"group": group}))
    print_items(items, ["group", "topic", *_FACTS[:-1]], empty="there are no objectives", as_json=as_json)


@app.command()
def clear(
    group: GroupArgument,
    *,
    topic: TopicOption = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Take an objective away."""
    connect(data, url, key).call("DELETE", _path(group), query={"topic": topic})
    print(f"the objective of {group}{'' if topic is None else f' on {topic}'} is gone")


def _path(group: str) -> str:
    return f"/v1/groups/{segment(group)}/objective"


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_facts({"group": found["group"], "topic": found["topic"] or "all", **{name: found[name] for name in _FACTS}})
