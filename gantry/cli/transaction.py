"""`gantry transaction`: messages that are delivered only after a decision."""

from typing import Annotated, Any

import typer

from gantry.cli.formatting import print_facts, print_items, print_json
from gantry.cli.options import DATA_DEFAULT, DataOption, JsonOption, KeyOption, UrlOption
from gantry.cli.remote import connect, segment

app = typer.Typer(name="transaction", help="Begin, list, commit and roll back transactions.", no_args_is_help=True)

TransactionArgument = Annotated[
    str, typer.Argument(metavar="TRANSACTION", help="The id that `gantry transaction list` shows.")
]

CHECK_MS = 20_000
"""Time for which the gateway waits for producers."""

_COLUMNS = ("transaction", "state", "origin", "group", "topic", "created_at", "checks", "delivered_at")


@app.command()
def send(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic of the message.")],
    body: Annotated[str, typer.Argument(metavar="BODY", help="Body of the message, as text.")],
    *,
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="Producer group.")],
    tag: Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Tag of the message.")] = None,
    keys: Annotated[str | None, typer.Option(metavar="A,B", help="Keys to find the message by.")] = None,
    immunity: Annotated[
        str | None,
        typer.Option("--check-immunity", metavar="60s", help="Time in which the broker does not ask about it."),
    ] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a transaction with its message. It is delivered when you commit the transaction."""
    fields = {
        "body": body,
        "group": group,
        "tag": tag,
        "keys": [part for part in keys.split(",") if part] if keys else None,
        "check_immunity": immunity,
    }
    message = {name: value for name, value in fields.items() if value is not None}
    _print(
        connect(data, url, key).call("POST", f"/v1/topics/{segment(topic)}/transactions", body=message),
        as_json=as_json,
    )


@app.command("list")
def list_transactions(
    *,
    state: Annotated[
        str | None,
        typer.Option(metavar="open|committed|rolled_back|expired", help="Show only transactions in this state."),
    ] = None,
    group: Annotated[str | None, typer.Option("--group", metavar="GROUP", help="Only of this producer group.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", metavar="TOPIC", help="Only of this topic.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of transactions.")] = 50,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List transactions, newest first; those of RocketMQ clients too."""
    query = {"state": state, "group": group, "topic": topic, "limit": min(limit, 1_000)}
    items: list[dict[str, Any]] = []
    for item in connect(data, url, key).items("/v1/transactions", query=query):
        items.append(item)
        if len(items) == limit:
            break
    print_items(items, _COLUMNS, empty="there are no such transactions", as_json=as_json)


@app.command()
def show(
    transaction: TransactionArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a transaction."""
    _print(connect(data, url, key).call("GET", _path(transaction)), as_json=as_json)


@app.command()
def commit(
    transaction: TransactionArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Commit a transaction, so that its message is delivered."""
    _print(connect(data, url, key).call("POST", f"{_path(transaction)}:commit"), as_json=as_json)


@app.command()
def rollback(
    transaction: TransactionArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Roll a transaction back, so that its message is never delivered."""
    _print(connect(data, url, key).call("POST", f"{_path(transaction)}:rollback"), as_json=as_json)


@app.command()
def check(
    transaction: TransactionArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask the producers of an open transaction now, and write their answer as a decision."""
    found = connect(data, url, key).call("POST", f"{_path(transaction)}:check", wait_ms=CHECK_MS)
    _print(found, as_json=as_json)


def _print(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        print_facts(found)


def _path(transaction: str) -> str:
    return f"/v1/transactions/{segment(transaction)}"
