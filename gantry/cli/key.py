"""`gantry key`: API keys and their rights."""

from typing import Annotated

import typer

from gantry.cli.formatting import Item, print_facts, print_items, print_json
from gantry.cli.remote import DATA_DEFAULT, DataOption, JsonOption, KeyOption, UrlOption, connect, segment

app = typer.Typer(name="key", help="API keys.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="For people: what it is for.")],
    *,
    publish: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Topics to send to.")] = None,
    consume_topic: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Topics to read.")] = None,
    consume_group: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Groups to consume as.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="May do everything.")] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="May read /metrics.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make a key and print it, once. Patterns are names with `*` for anything; options may be repeated."""
    rights = {
        "publish": publish or [],
        "consume": {"topics": consume_topic or [], "groups": consume_group or []},
        "admin": admin,
        "metrics": metrics,
    }
    if not any((publish, consume_topic, consume_group, admin, metrics)):
        raise typer.BadParameter("it would open nothing: give it a right, such as --publish 'ORDERS*'")
    made = connect(data, url, key).call("POST", "/v1/keys", body={"name": name, "rights": rights})
    if as_json:
        print_json(made)
        return
    print_facts({"id": made["id"], "name": made["name"], "key": made["key"]})
    print("\nIt is not shown again: only its SHA-256 is kept.")


@app.command("list")
def list_keys(
    *,
    revoked: Annotated[bool, typer.Option("--revoked", help="Also those that open nothing any more.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List keys: what they may do and when they were last used, never the keys themselves."""
    items = list(connect(data, url, key).items("/v1/keys", query={"revoked": revoked or None}))
    columns = ["id", "name", "publish", "topics", "groups", "admin", "metrics", "last_used_at", "revoked_at"]
    print_items(items, columns, row=_row, empty="there are no keys", as_json=as_json)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="From `gantry key list`.")],
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """End a key: it opens nothing from now on, on other gateways within 30 s."""
    connect(data, url, key).call("DELETE", f"/v1/keys/{segment(key_id)}")
    print(f"key {key_id} is revoked")


def _row(item: Item) -> list[object]:
    rights = item["rights"]
    return [
        item["id"],
        item["name"],
        rights["publish"],
        rights["consume"].get("topics"),
        rights["consume"].get("groups"),
        rights["admin"],
        rights["metrics"],
        item["last_used_at"],
        item["revoked_at"],
    ]
