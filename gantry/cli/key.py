"""`gantry key`: create, list and revoke API keys."""

from typing import Annotated

import typer

from gantry.cli.formatting import Item, print_facts, print_items, print_json
from gantry.cli.options import DATA_DEFAULT, DataOption, JsonOption, KeyOption, UrlOption
from gantry.cli.remote import connect, segment

app = typer.Typer(name="key", help="Manage API keys.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that tells people what the key is for.")],
    *,
    publish: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Topics the key may send to.")] = None,
    consume_topic: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Topics the key may consume.")
    ] = None,
    consume_group: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Groups the key may consume as.")
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="Grant all rights.")] = False,
    metrics: Annotated[bool, typer.Option("--metrics", help="Grant the right to read /metrics.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create an API key and print it. The key cannot be shown again.

    A PATTERN is a name in which `*` stands for any text. Options that take a PATTERN may be repeated.
    """
    rights = {
        "publish": publish or [],
        "consume": {"topics": consume_topic or [], "groups": consume_group or []},
        "admin": admin,
        "metrics": metrics,
    }
    if not any((publish, consume_topic, consume_group, admin, metrics)):
        raise typer.BadParameter("the key would have no rights: grant one, such as --publish 'ORDERS*'")
    made = connect(data, url, key).call("POST", "/v1/keys", body={"name": name, "rights": rights})
    if as_json:
        print_json(made)
        return
    print_facts({"id": made["id"], "name": made["name"], "key": made["key"]})
    print("\nThe key cannot be shown again: Gantry keeps only its SHA-256 hash.")


@app.command("list")
def list_keys(
    *,
    revoked: Annotated[bool, typer.Option("--revoked", help="Include revoked keys.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List API keys with their rights and the time of their last use. The keys themselves are not shown."""
    items = list(connect(data, url, key).items("/v1/keys", query={"revoked": revoked or None}))
    columns = ["id", "name", "publish", "topics", "groups", "admin", "metrics", "last_used_at", "revoked_at"]
    print_items(items, columns, row=_row, empty="there are no keys", as_json=as_json)


@app.command()
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The id that `gantry key list` shows.")],
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Revoke an API key. Other gateways reject it within 30 s."""
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
