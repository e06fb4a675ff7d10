"""`gantry webhook`: URLs that receive alerts."""

from typing import Annotated, Any

import typer

from gantry.cli.formatting import print_facts, print_items, print_json
from gantry.cli.options import DATA_DEFAULT, DataOption, JsonOption, KeyOption, UrlOption
from gantry.cli.remote import connect, segment

app = typer.Typer(name="webhook", help="Manage webhooks: URLs that receive alerts.", no_args_is_help=True)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The id that `gantry webhook list` shows.")]
GroupsOption = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="PATTERN", help="Groups to report; * stands for any text. May be repeated."),
]
VerdictsOption = Annotated[
    list[str] | None,
    typer.Option("--verdict", metavar="VERDICT", help="Verdict to report; default: all. May be repeated."),
]
SecretOption = Annotated[
    str | None, typer.Option("--secret", metavar="whsec_…", help="Signing secret: whsec_ and 24 to 64 bytes in base64.")
]

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
    """Create a webhook and print its signing secret. The secret cannot be shown again."""
    body = {"url": target, **_named({"groups": groups, "verdicts": verdicts, "secret": secret})}
    made = connect(data, url, key).call("POST", "/v1/webhooks", body=body)
    if as_json:
        print_json(made)
        return
    print_facts({"id": made["id"], "url": made["url"], "secret": made["secret"]})
    print("\nThe secret cannot be shown again. `gantry webhook test ID` sends a test.")


@app.command("set")
def set_webhook(
    webhook: IdArgument,
    *,
    target: Annotated[str | None, typer.Option("--target", metavar="URL", help="New URL of the webhook.")] = None,
    groups: GroupsOption = None,
    verdicts: VerdictsOption = None,
    all_verdicts: Annotated[bool, typer.Option("--all-verdicts", help="Report all verdicts again.")] = False,
    enabled: Annotated[bool | None, typer.Option("--enable/--disable", help="Enable or disable the webhook.")] = None,
    secret: SecretOption = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a webhook. A setting without an option keeps its value."""
    wanted = {
        "url": target,
        "groups": groups,
        "verdicts": [] if all_verdicts else verdicts,
        "enabled": enabled,
        "secret": secret,
    }
    body = _named(wanted)
    if not body:
        raise typer.BadParameter("give at least one option, such as --disable")
    _show(connect(data, url, key).call("PUT", _path(webhook), body=body), as_json=as_json)


@app.command("list")
def list_webhooks(
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List webhooks."""
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
    status: Annotated[
        str | None, typer.Option(metavar="pending|delivered|failed", help="Show only deliveries with this status.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000, help="Maximum number of deliveries.")] = 50,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the deliveries of a webhook, newest first."""
    query = {"status": status, "limit": limit}
    items = connect(data, url, key).call("GET", f"{_path(webhook)}/deliveries", query=query)["items"]
    columns = ["created_at", "event", "status", "attempts", "next_attempt_at", "last_status", "last_error", "id"]
    print_items(items, columns, empty="the webhook has no deliveries yet", as_json=as_json)


@app.command("test")
def send_test(
    webhook: IdArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Send a test delivery to a webhook."""
    made = connect(data, url, key).call("POST", f"{_path(webhook)}/deliveries")
    print(f"delivery {made['id']} will be sent soon; `gantry webhook deliveries {webhook}` shows its result")


@app.command()
def delete(
    webhook: IdArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Delete a webhook and its pending deliveries."""
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
