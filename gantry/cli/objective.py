"""`gantry group objective`: limits on the lag of consumer groups."""

from typing import Annotated, Any

import typer

from gantry.cli.formatting import print_facts, print_items, print_json
from gantry.cli.options import DATA_DEFAULT, DataOption, GroupArgument, GroupFilter, JsonOption, KeyOption, UrlOption
from gantry.cli.remote import connect, segment

app = typer.Typer(name="objective", help="Manage lag objectives: limits on a group's lag.", no_args_is_help=True)

TopicOption = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="Topic; default: all topics without an objective of their own."),
]

_FACTS = ("max_lag_seconds", "max_lag_messages", "ignore", "ignore_until", "reason", "updated_at")


@app.command("set")
def set_objective(
    group: GroupArgument,
    *,
    topic: TopicOption = None,
    max_lag_seconds: Annotated[
        float | None, typer.Option(help="Maximum age of the oldest unconsumed message; 0: no limit.")
    ] = None,
    max_lag_messages: Annotated[
        int | None, typer.Option(help="Maximum lag of all queues together; -1: no limit.")
    ] = None,
    ignore: Annotated[
        bool | None, typer.Option("--ignore/--no-ignore", help="Report the lag as IGNORED, without alerts.")
    ] = None,
    ignore_until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Ignore the lag until this time, such as 2026-11-21T09:30:00Z.")
    ] = None,
    reason: Annotated[str | None, typer.Option(help="Reason of this objective, for people.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the lag objective of a group. A setting without an option keeps its value."""
    wanted: dict[str, Any] = {
        "max_lag_seconds": max_lag_seconds,
        "max_lag_messages": max_lag_messages,
        "ignore": True if ignore_until is not None and ignore is None else ignore,
        "ignore_until": ignore_until,
        "reason": reason,
    }
    body = {name: value for name, value in wanted.items() if value is not None}
    if not body:
        raise typer.BadParameter("give at least one option, such as --max-lag-seconds 60")
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
    """Show the lag objective of a group."""
    _show(connect(data, url, key).call("GET", _path(group), query={"topic": topic}), as_json=as_json)


@app.command("list")
def list_objectives(
    *,
    group: GroupFilter = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List lag objectives."""
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
    """Remove the lag objective of a group."""
    connect(data, url, key).call("DELETE", _path(group), query={"topic": topic})
    print(f"the objective of {group}{'' if topic is None else f' on {topic}'} is removed")


def _path(group: str) -> str:
    return f"/v1/groups/{segment(group)}/objective"


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_facts({"group": found["group"], "topic": found["topic"] or "all", **{name: found[name] for name in _FACTS}})
