"""`gantry webhook`: who is told of alerts."""

from typing import Annotated, Any

import typer

from gantry.cli.formatting import print_facts, print_items, print_json
from gantry.cli.remote import DATA_DEFAULT, DataOption, JsonOption, KeyOption, UrlOption, connect, segment

app = typer.Typer(name="webhook", help="Who is told of alerts.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="From `gantry webhook list`.")]
GroupsOption = Annotated[
    list[str] | None, typer.Option("--group", metavar="PATTERN", help="Groups, with * for anything; again for more.")
]
VerdictsOption = Annotated[
    list[str] | None, typer.Option("--verdict", metavar="VERDICT", help="Only of these; again for more.")
]
SecretOption = Annotated[str | None, typer.Option("--secret", metavar="whsec_…", help="The base64 of 24 to 64 bytes.")]

_FACTS = ("id", "url", "groups", "verdicts", "enabled", "created_at", "updated_at")


@app.command()
def create(
    target: Annotated[str, typer.Argument(metavar="URL", help="https://…")],
    *,
    groups: GroupsOption = None,
    verdicts: VerdictsOption = None,
    secret: SecretOption = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Have a URL told of alerts, and print the secret that signs, once."""
    body = {"url": target, **_named({"groups": groups, "verdicts": verdicts, "secret": secret})}
    made = connect(data, url, key).call("POST", "/v1/webhooks", body=body)
    if as_json:
        print_json(made)
        return
    print_facts({"id": made["id"], "url": made["url"], "secret": made["secret"]})
    print("\nThe secret is not shown again. `gantry webhook test ID` sends a test.")


@app.command("set")
def set_webhook(
    webhook: IdArgument,
    *,
    target: Annotated[str | None, typer.Option("--target", metavar="URL", help="Where to send from now on.")] = None,
    groups: GroupsOption = None,
    verdicts: VerdictsOption = None,
    all_verdicts: Annotated[bool, typer.Option("--all-verdicts", help="Of all verdicts again.")] = False,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Whether it is told anything.")] = None,
    secret: SecretOption = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a webhook; what is not said stays as it is."""
    wanted = {
        "url": target,
        "groups": groups,
        "verdicts": [] if all_verdicts else verdicts,
        "enabled": enabled,
        "secret": secret,
    }
    body = _named(wanted)
    if not body:
        raise typer.BadParameter("say something, such as --disable")
    _show(connect(data, url, key).call("PUT", _path(webhook), body=body), as_json=as_json)


@app.command("list")
def list_webhooks(
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List who is told of alerts."""
    items = list(connect(data, url, key).items("/v1/webhooks"))
    print_items(items, _FACTS[:-1], empty="there are no webhooks", as_json=as_json)


@app.command()
def show(
    webhook: IdArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a webhook."""
    _show(connect(data, url, key).call("GET", _path(webhook)), as_json=as_json)


@app.command()
def deliveries(
    webhook: IdArgument,
    *,
    status: Annotated[str | None, typer.Option(metavar="pending|delivered|failed", help="Only these.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="How many, the newest.")] = 50,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what a webhook was told, the newest first."""
    query = {"status": status, "limit": limit}
    items = connect(data, url, key).call("GET", f"{_path(webhook)}/deliveries", query=query)["items"]
    columns = ["created_at", "event", "status", "attempts", "next_attempt_at", "last_status", "last_error", "id"]
    print_items(items, columns, empty="it was told nothing yet", as_json=as_json)


@app.command("test")
def send_test(
    webhook: IdArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Send a test to a webhook."""
    made = connect(data, url, key).call("POST", f"{_path(webhook)}/deliveries")
    print(f"delivery {made['id']} is sent soon; `gantry webhook deliveries {webhook}` says what became of it")


@app.command()
def delete(
    webhook: IdArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Delete a webhook, and what it was to be told."""
    connect(data, url, key).call("DELETE", _path(webhook))
    print(f"webhook {webhook} is deleted")


def _path(webhook: str) -> str:
    return f"/v1/webhooks/{segment(webhook)}"


def _named(wanted: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in wanted.items() if value is not None}


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    print_facts({name: found[name] for name in _FACTS})
