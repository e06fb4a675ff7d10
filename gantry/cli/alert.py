"""`gantry alert`: open alerts on consumer groups, and the history of alerts."""

from typing import Annotated

import typer

from gantry.cli.formatting import Item, print_items
from gantry.cli.options import DATA_DEFAULT, DataOption, GroupFilter, JsonOption, KeyOption, TopicFilter, UrlOption
from gantry.cli.remote import connect
from gantry.model.lag import brief_duration

app = typer.Typer(name="alert", help="List alerts on consumer groups.", no_args_is_help=True)


@app.command("list")
def list_alerts(
    *,
    group: GroupFilter = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List open alerts."""
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
    group: GroupFilter = None,
    topic: TopicFilter = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of events.")] = 50,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List alert events (opened, changed, resolved), newest first."""
    query = {"group": group, "topic": topic, "limit": limit}
    items = connect(data, url, key).call("GET", "/v1/alerts/events", query=query)["items"]
    columns = ["at", "kind", "group", "topic", "old", "new", "messages", "behind", "cause"]
    names = ("at", "kind", "group", "topic", "old_verdict", "new_verdict")
    print_items(
        items,
        columns,
        row=lambda item: [*(item[name] for name in names), *_lag(item), item["cause"]],
        empty="there are no alert events",
        as_json=as_json,
    )


def _lag(item: Item) -> list[str | None]:
    messages, seconds = item["lag_messages"], item["lag_seconds"]
    return [None if messages is None else f"{messages:,}", None if seconds is None else brief_duration(seconds)]
