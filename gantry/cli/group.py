"""`gantry group`: create, list, show and delete consumer groups. The module `objective` adds `gantry group objective`."""

from typing import Annotated, Any

import typer

from gantry.cli import objective, retrypolicy
from gantry.cli.formatting import print_facts, print_items, print_json, print_table
from gantry.cli.options import DATA_DEFAULT, DataOption, GroupArgument, JsonOption, KeyOption, UrlOption, YesOption
from gantry.cli.outcome import EXIT_FAILED
from gantry.cli.remote import connect, segment
from gantry.cli.statistics import print_statistics

app = typer.Typer(name="group", help="Manage consumer groups.", no_args_is_help=True)
app.add_typer(objective.app)


_FACTS = (
    "group",
    "retry_max_times",
    "retry_queues",
    "consume",
    "from_min",
    "broadcast",
    "orderly",
    "consume_timeout_minutes",
    "notify_changes",
    "retry_policy",
    "state",
    "origin",
    "updated_at",
)


@app.command()
def create(
    group: GroupArgument,
    *,
    retry_max_times: Annotated[
        int | None, typer.Option(help="Retries before a message moves to the dead-letter queue.")
    ] = None,
    retry_queues: Annotated[int | None, typer.Option(help="Number of retry-topic queues on each broker.")] = None,
    consume: Annotated[bool | None, typer.Option(help="Deliver messages to the group.")] = None,
    from_min: Annotated[bool | None, typer.Option(help="Allow the group to start at the oldest message.")] = None,
    broadcast: Annotated[bool | None, typer.Option(help="Allow broadcasting consumers.")] = None,
    orderly: Annotated[bool | None, typer.Option(help="Consume each queue in order.")] = None,
    consume_timeout_minutes: Annotated[
        int | None, typer.Option(help="Time limit for consuming one message, in minutes.")
    ] = None,
    notify_changes: Annotated[
        bool | None, typer.Option(help="Notify consumers when a consumer joins or leaves the group.")
    ] = None,
    retry_policy: Annotated[str | None, typer.Option(metavar="POLICY", help=retrypolicy.HELP)] = None,
    new: Annotated[bool, typer.Option("--new", help="Fail if the group exists.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a consumer group, or change it. A setting without an option keeps its value."""
    wanted = {
        "retry_max_times": retry_max_times,
        "retry_queues": retry_queues,
        "consume": consume,
        "from_min": from_min,
        "broadcast": broadcast,
        "orderly": orderly,
        "consume_timeout_minutes": consume_timeout_minutes,
        "notify_changes": notify_changes,
        "retry_policy": None if retry_policy is None else retrypolicy.parse_policy(retry_policy),
    }
    made = connect(data, url, key).call(
        "PUT",
        f"/v1/groups/{segment(group)}",
        body={name: value for name, value in wanted.items() if value is not None},
        headers={"If-None-Match": "*"} if new else {},
    )
    _show(made, as_json=as_json)


@app.command()
def consistency(
    group: GroupArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell whether the connected members of a group agree on topics, filters and message model."""
    found = connect(data, url, key).call("GET", f"/v1/groups/{segment(group)}/consistency")
    if as_json:
        print_json(found)
    else:
        rows = [
            [one["kind"], one["topic"], side["value"], side["since"], side["clients_count"], ", ".join(side["clients"])]
            for one in found["differences"]
            for side in one["sides"]
        ]
        known = "the members agree" if found["consistent"] else f"unknown: {'; '.join(found['missing'])}"
        print_table(["differ in", "topic", "value", "since", "members", "clients"], rows, empty=known)
    if not found["consistent"]:
        raise typer.Exit(EXIT_FAILED)


@app.command("list")
def list_groups(
    *,
    system: Annotated[bool, typer.Option("--system", help="Include system groups.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List consumer groups."""
    items = list(connect(data, url, key).items("/v1/groups", query={"system": system or None}))
    columns = ["group", "retry_max_times", "consume", "from_min", "broadcast", "orderly", "state"]
    print_items(items, columns, empty="there are no groups", as_json=as_json)


@app.command()
def show(
    group: GroupArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a consumer group, its connected clients and its subscriptions."""
    remote = connect(data, url, key)
    path = f"/v1/groups/{segment(group)}"
    found = remote.call("GET", path)
    clients = list(remote.items(f"{path}/clients"))
    subscriptions = list(remote.items(f"{path}/subscriptions"))
    if as_json:
        print_json({**found, "clients": clients, "subscriptions": subscriptions})
        return
    _show(found, as_json=False)
    print()
    columns = ["client_id", "address", "language", "version", "message_model", "brokers"]
    print_table(columns, [[client[name] for name in columns] for client in clients], empty="no clients are connected")
    print()
    columns = ["topic", "filter", "filter_type", "client_kind", "clients_count", "active", "verdict", "last_seen_at"]
    print_table(
        columns, [[item[name] for name in columns] for item in subscriptions], empty="there are no subscriptions"
    )


@app.command()
def stats(
    group: GroupArgument,
    *,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Show only messages from this topic.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the messages that a group got over the last minute, hour and day."""
    path = f"/v1/groups/{segment(group)}/statistics"
    print_statistics(connect(data, url, key).call("GET", path, query={"topic": topic}), as_json=as_json)


@app.command()
def delete(
    group: GroupArgument,
    *,
    yes: YesOption = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Delete a consumer group and its offsets."""
    remote = connect(data, url, key)
    if not yes:
        typer.confirm(f"Delete group {group} and its offsets?", abort=True)
    remote.call("DELETE", f"/v1/groups/{segment(group)}")
    print(f"group {group} is deleted")


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    facts = {name: found[name] for name in _FACTS}
    facts["retry_policy"] = retrypolicy.policy_text(found["retry_policy"])
    print_facts({**facts, "pending": found["pending"]} if found["pending"] else facts)
