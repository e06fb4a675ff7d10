"""`gantry alert`: what is wrong with groups, and what has become of it."""

from typing import Annotated

import typer

from gantry.cli.formatting import Item, print_items
from gantry.cli.remote import DATA_DEFAULT, DataOption, JsonOption, KeyOption, UrlOption, connect
from gantry.model.lag import brief_duration

app = typer.Typer(name="alert", help="What is wrong with groups, and what has become of it.", no_args_is_help=True)

GroupOption = Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only of this group.")]


@app.command("list")
def list_alerts(
    *,
    group: GroupOption = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what is wrong now."""
    items = list(connect(data, url, key).items("/v1/alerts", query={"group": group}))
    columns = ["verdict", "group", "topic", "since", "opened_at", "last_said", "seen_at", "messages", "behind"]
    names = ("verdict", "group", "topic", "since", "opened_at", "seen_verdict", "seen_at")
    print_items(
        items,
        columns,
        row=lambda item: [*(item[name] for name in names), *_lag(item)],
        empty="there are no open alerts",
        as_json=as_json,
    )


@app.command()
def events(
    *,
    group: GroupOption = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only on this topic.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many, the newest.")] = 50,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what has become of alerts, the newest first."""
    query = {"group": group, "topic": topic, "limit": limit}
    items = connect(data, url, key).call("GET", "/v1/alerts/events", query=query)["items"]
    columns = ["at", "kind", "group", "topic", "old", "new", "messages", "behind", "cause"]
    names = ("at", "kind", "group", "topic", "old_verdict", "new_verdict")
    print_items(
        items,
        columns,
        row=lambda item: [*(item[name] for name in names), *_lag(item), item["cause"]],
        empty="nothing has happened",
        as_json=as_json,
    )


def _lag(item: Item) -> list[str | None]:
    messages, seconds = item["lag_messages"], item["lag_seconds"]
    return [None if messages is None else f"{messages:,}", None if seconds is None else brief_duration(seconds)]
