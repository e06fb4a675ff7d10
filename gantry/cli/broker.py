"""`gantry broker`: run one broker; list and drain brokers, remove old data, show and change settings.

`gantry broker --name broker-a …` runs a broker, as `gantry namesrv` and `gantry gateway` run their services: the images
and unit files of operators use this form. `gantry broker run …` is the same.
"""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gantry.cli.formatting import Item, print_facts, print_items, print_json
from gantry.cli.launch import add_service
from gantry.cli.options import DATA_DEFAULT, DataOption, JsonOption, KeyOption, UrlOption
from gantry.cli.remote import connect, segment

_RUN = "run"


class Commands(TyperGroup):
    """The commands. Options without a command run a broker."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the missing command before the options of a broker."""
        own = {name for option in self.get_params(ctx) for name in option.opts}
        if args and args[0].startswith("-") and args[0] not in own:
            args = [_RUN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=Commands,
    name="broker",
    help="Operate brokers. Options without a command run one broker: `gantry broker --name broker-a …`.",
    no_args_is_help=True,
)
add_service(app, "broker", command=_RUN)

BrokerArgument = Annotated[str, typer.Argument(metavar="BROKER", help="A name that `gantry broker list` shows.")]

_LIST_COLUMNS = ["cluster", "broker", "role", "address", "reachable", "drained", "disk", "version", "detail"]
_SETTING_COLUMNS = ["name", "value", "default", "live", "changed"]


@app.command("list")
def list_brokers(
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List brokers."""
    items = connect(data, url, key).call("GET", "/v1/cluster")["brokers"]
    print_items(items, _LIST_COLUMNS, row=_row, empty="no broker is registered", as_json=as_json)


@app.command()
def drain(
    broker: BrokerArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a broker take no more messages. Consumers go on, and producers send to other brokers."""
    changed = connect(data, url, key).call("POST", f"{_path(broker)}:drain")
    if as_json:
        print_json(changed)
    else:
        print(f"broker {broker} {'takes no more messages' if changed['changed'] else 'was drained before'}")


@app.command()
def undrain(
    broker: BrokerArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a drained broker take messages again."""
    changed = connect(data, url, key).call("POST", f"{_path(broker)}:undrain")
    if as_json:
        print_json(changed)
    else:
        print(f"broker {broker} {'takes messages again' if changed['changed'] else 'was not drained'}")


@app.command()
def clean(
    broker: BrokerArgument,
    *,
    unused_topics: Annotated[
        bool,
        typer.Option("--unused-topics", help="Also remove topics that have no configuration, with their messages."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be removed.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove expired files now, whatever the hour."""
    what = ["expired_files", "expired_queues", *(["unused_topics"] if unused_topics else [])]
    remote = connect(data, url, key)
    found = remote.call("POST", f"{_path(broker)}:clean", body={"what": what, "dry_run": dry_run}, wait_ms=30_000)
    if as_json:
        print_json(found)
        return
    log, queues = found["expired_files"], found["expired_queues"]
    facts = {"log_files": log["files"], "log_bytes": log["bytes"], "queue_files": queues["files"]}
    if unused_topics:
        facts["unused_topics"] = found["unused_topics"]
    print_facts(facts)


@app.command()
def settings(
    broker: BrokerArgument,
    *,
    changed: Annotated[bool, typer.Option("--changed", help="Show only settings that were changed.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Show only settings that `gantry broker set` changes.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the settings of a broker."""
    items = connect(data, url, key).call("GET", f"{_path(broker)}/settings")["items"]
    shown = [item for item in items if (item["changed"] or not changed) and (item["live"] or not live)]
    print_items(shown, _SETTING_COLUMNS, empty="there are no such settings", as_json=as_json)


@app.command("set")
def set_settings(
    broker: BrokerArgument,
    values: Annotated[list[str], typer.Argument(metavar="NAME=VALUE...", help="Settings that take effect at once.")],
    *,
    expect: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Change nothing if a setting has another value; may be repeated."),
    ] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change settings of a broker, all or none. The broker keeps them over a restart."""
    wanted = _pairs(values, "NAME=VALUE")
    remote = connect(data, url, key)
    path = f"{_path(broker)}/settings"
    body = {"settings": wanted, "expected": _pairs(expect or [], "--expect")}
    items = remote.call("PUT", path, body=body)["items"]
    print_items([item for item in items if item["name"] in wanted], _SETTING_COLUMNS, empty="", as_json=as_json)


def _pairs(texts: list[str], hint: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=hint)
        if name in pairs:
            raise typer.BadParameter(f"{name} is given twice", param_hint=hint)
        pairs[name] = value
    return pairs


def _row(item: Item) -> list[object]:
    store = item["store"]
    disk = None if store is None or store["disk_ratio"] is None else f"{store['disk_ratio']:.0%}"
    shown = {**item, "disk": disk}
    return [shown[name] for name in _LIST_COLUMNS]


def _path(broker: str) -> str:
    return f"/v1/brokers/{segment(broker)}"
