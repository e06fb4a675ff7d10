"""`gantry key`: create, list, change, rotate and revoke API keys."""

from typing import Annotated, Any

import typer

from gantry.cli.formatting import Item, print_facts, print_items, print_json
from gantry.cli.options import DATA_DEFAULT, DataOption, JsonOption, KeyOption, UrlOption
from gantry.cli.remote import connect, segment

app = typer.Typer(name="key", help="Manage API keys.", no_args_is_help=True)

MessagesOption = Annotated[
    int | None, typer.Option("--messages-per-s", min=1, metavar="N", help="Messages that the key may send a second.")
]
BytesOption = Annotated[
    int | None, typer.Option("--bytes-per-s", min=1, metavar="N", help="Bytes that the key may send a second.")
]
ConnectionsOption = Annotated[
    int | None, typer.Option("--connections", min=1, metavar="N", help="Streams that the key may have open.")
]
InFlightOption = Annotated[
    int | None, typer.Option("--in-flight", min=1, metavar="N", help="Requests of the key in progress.")
]
ExpiresOption = Annotated[
    str | None, typer.Option("--expires", metavar="TIME", help="From then on the key is rejected; default: never.")
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id that `gantry key list` shows.")]


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
    expires: ExpiresOption = None,
    messages_per_s: MessagesOption = None,
    bytes_per_s: BytesOption = None,
    connections: ConnectionsOption = None,
    in_flight: InFlightOption = None,
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
    body: dict[str, Any] = {"name": name, "rights": rights}
    limits = _limits(messages_per_s, bytes_per_s, connections, in_flight)
    body |= ({"expires_at": expires} if expires else {}) | ({"limits": limits} if limits else {})
    _print_secret(connect(data, url, key).call("POST", "/v1/keys", body=body), as_json=as_json)


@app.command("set")
def set_key(
    key_id: IdArgument,
    *,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="New name.")] = None,
    expires: ExpiresOption = None,
    never_expires: Annotated[bool, typer.Option("--never-expires", help="Remove the end of the key.")] = False,
    messages_per_s: MessagesOption = None,
    bytes_per_s: BytesOption = None,
    connections: ConnectionsOption = None,
    in_flight: InFlightOption = None,
    no_limits: Annotated[bool, typer.Option("--no-limits", help="Remove all limits that are not given.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change the name, the end or the limits of an API key. Limits that are not given stay."""
    if expires is not None and never_expires:
        raise typer.BadParameter("give either --expires or --never-expires")
    body: dict[str, Any] = {} if name is None else {"name": name}
    if expires is not None or never_expires:
        body["expires_at"] = expires
    remote, path = connect(data, url, key), f"/v1/keys/{segment(key_id)}"
    limits = _limits(messages_per_s, bytes_per_s, connections, in_flight)
    if limits or no_limits:
        body["limits"] = limits if no_limits else {**remote.call("GET", path)["limits"], **limits}
    if not body:
        raise typer.BadParameter("give at least one option, such as --messages-per-s")
    changed = remote.call("PUT", path, body=body)
    if as_json:
        print_json(changed)
    else:
        print_facts({part: changed[part] for part in ("id", "name", "expires_at", "limits")})


@app.command()
def rotate(
    key_id: IdArgument,
    *,
    overlap: Annotated[
        str | None, typer.Option(metavar="24h", help="Time for which the present secret stays valid; 0s: ends at once.")
    ] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give an API key another secret and print it. Id, rights and limits stay."""
    body = {} if overlap is None else {"overlap": overlap}
    _print_secret(
        connect(data, url, key).call("POST", f"/v1/keys/{segment(key_id)}:rotate", body=body), as_json=as_json
    )


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
    columns = ["id", "name", "publish", "topics", "groups", "admin", "metrics", "limits"]
    columns += ["last_used_at", "expires_at", "revoked_at"]
    print_items(items, columns, row=_row, empty="there are no keys", as_json=as_json)


@app.command()
def revoke(
    key_id: IdArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Revoke an API key. Other gateways reject it within 30 s."""
    connect(data, url, key).call("DELETE", f"/v1/keys/{segment(key_id)}")
    print(f"key {key_id} is revoked")


def _limits(
    messages_per_s: int | None, bytes_per_s: int | None, connections: int | None, in_flight: int | None
) -> dict[str, int]:
    given = {
        "messages_per_s": messages_per_s,
        "bytes_per_s": bytes_per_s,
        "connections": connections,
        "in_flight": in_flight,
    }
    return {name: limit for name, limit in given.items() if limit is not None}


def _print_secret(made: Item, *, as_json: bool) -> None:
    if as_json:
        print_json(made)
        return
    facts = {"id": made["id"], "name": made["name"], "key": made["key"]}
    if made.get("previous_valid_until") is not None:
        facts["the earlier secret is valid until"] = made["previous_valid_until"]
    print_facts(facts)
    print("\nThe key cannot be shown again: Gantry keeps only its SHA-256 hash.")


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
        {name: limit for name, limit in item.get("limits", {}).items() if limit is not None},
        item["last_used_at"],
        item.get("expires_at"),
        item["revoked_at"],
    ]
