"""`gantry topic`: create, list, show and delete topics, and list their producers."""

from typing import Annotated, Any

import typer

from gantry.cli.formatting import Item, print_facts, print_items, print_json, print_table
from gantry.cli.job import print_job, wait_for
from gantry.cli.options import DATA_DEFAULT, DataOption, JsonOption, KeyOption, TopicArgument, UrlOption, YesOption
from gantry.cli.remote import connect, segment
from gantry.cli.statistics import print_statistics

app = typer.Typer(name="topic", help="Manage topics.", no_args_is_help=True)


@app.command()
def create(
    topic: TopicArgument,
    *,
    read_queues: Annotated[int | None, typer.Option(help="Number of readable queues on each broker.")] = None,
    write_queues: Annotated[int | None, typer.Option(help="Number of writable queues on each broker.")] = None,
    queues: Annotated[int | None, typer.Option(help="Value for both --read-queues and --write-queues.")] = None,
    perm: Annotated[str | None, typer.Option(help="Permission: rw, r, w or none.")] = None,
    order: Annotated[bool | None, typer.Option("--order/--no-order", help="Mark the topic as ordered.")] = None,
    broker: Annotated[
        list[str] | None, typer.Option(help="Create the topic only on this broker; may be repeated.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="Create the topic on the present brokers of this cluster.")
    ] = None,
    all_brokers: Annotated[
        bool, typer.Option("--all-brokers", help="Create the topic on all brokers, including those that join later.")
    ] = False,
    duplicate_window: Annotated[
        str | None,
        typer.Option(help="Time in which a message is stored only once: a duration such as 10m, or off."),
    ] = None,
    allow_hiding: Annotated[
        bool, typer.Option("--allow-hiding", help="Allow a change after which some messages can't be read.")
    ] = False,
    new: Annotated[bool, typer.Option("--new", help="Fail if the topic exists.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create a topic, or change it. A setting without an option keeps its value."""
    if sum([bool(broker), all_brokers, cluster is not None]) > 1:
        raise typer.BadParameter("--broker, --cluster and --all-brokers exclude each other")
    wanted = {
        "read_queues": read_queues if read_queues is not None else queues,
        "write_queues": write_queues if write_queues is not None else queues,
        "perm": perm,
        "order": order,
        "brokers": broker or None,
        "cluster": cluster,
        "allow_hiding": allow_hiding or None,
    }
    body = {name: value for name, value in wanted.items() if value is not None}
    if duplicate_window is not None:
        body["duplicate_window"] = duplicate_window != "off" and duplicate_window
    made = connect(data, url, key).call(
        "PUT",
        f"/v1/topics/{segment(topic)}",
        body=body | ({"brokers": None} if all_brokers else {}),
        headers={"If-None-Match": "*"} if new else {},
    )
    _show(made, as_json=as_json)


@app.command("list")
def list_topics(
    *,
    system: Annotated[bool, typer.Option("--system", help="Include system topics, %RETRY%… and %DLQ%….")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List topics."""
    items = list(connect(data, url, key).items("/v1/topics", query={"system": system or None}))
    columns = ["topic", "read", "write", "perm", "order", "brokers", "state"]
    print_items(items, columns, row=_row, empty="there are no topics", as_json=as_json)


@app.command()
def show(
    topic: TopicArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a topic and its queues."""
    remote = connect(data, url, key)
    found = remote.call("GET", f"/v1/topics/{segment(topic)}")
    queues = remote.call("GET", f"/v1/topics/{segment(topic)}/queues")["items"]
    if as_json:
        print_json({**found, "queues": queues})
        return
    _show(found, as_json=False)
    print()
    columns = ["broker", "queue_id", "min_offset", "max_offset", "read", "write", "last_stored_at"]
    print_table(columns, [[queue[column] for column in columns] for queue in queues], empty="the topic has no queues")


@app.command()
def shrink(
    topic: TopicArgument,
    queues: Annotated[int, typer.Argument(metavar="N", min=1, help="Number of queues that stay on each broker.")],
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell which groups have to consume what.")] = False,
    waits: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Lower the number of queues without loss: for producers now, for consumers when all groups have caught up.

    A job does the second step. It goes on if the command is stopped.
    """
    if dry_run and waits:
        raise typer.BadParameter("--dry-run changes nothing, so there is nothing to wait for: give only one of them")
    remote = connect(data, url, key)
    body = {"queues": queues, "dry_run": dry_run}
    answer = remote.call("POST", f"/v1/topics/{segment(topic)}/queues:shrink", body=body)
    if dry_run and as_json:
        print_json(answer)
    elif dry_run:
        columns = ["group", "broker", "queue_id", "unconsumed"]
        empty = (
            "unknown: a broker does not answer" if answer["ready"] is None else "all groups have consumed the queues"
        )
        print_table(columns, [[block[name] for name in columns] for block in answer["blocking"]], empty=empty)
        for reason in answer["missing"]:
            print(f"not asked: {reason}")
    elif waits:
        wait_for(remote, answer["job"], as_json=as_json)
    else:
        print_job(answer, as_json=as_json)


@app.command()
def stats(
    topic: TopicArgument,
    *,
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="Show only messages for this group.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count the messages of a topic over the last minute, hour and day."""
    path = f"/v1/topics/{segment(topic)}/statistics"
    print_statistics(connect(data, url, key).call("GET", path, query={"group": group}), as_json=as_json)


@app.command()
def producers(
    topic: TopicArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the connected producers that have sent to a topic, the one that sent last first."""
    found = connect(data, url, key).call("GET", f"/v1/topics/{segment(topic)}/producers")
    if as_json:
        print_json(found)
        return
    columns = ["group", "client_id", "kind", "address", "language", "version", "brokers", "last_sent_at"]
    empty = "unknown: not all brokers answered" if found["missing"] else "no connected client has sent to the topic"
    print_table(columns, [[row[column] for column in columns] for row in found["items"]], empty=empty)
    if found["truncated"]:
        print("there may be more producers")
    for reason in found["missing"]:
        print(f"not asked: {reason}")


@app.command()
def delete(
    topic: TopicArgument,
    *,
    yes: YesOption = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Delete a topic and all its messages."""
    remote = connect(data, url, key)
    if not yes:
        typer.confirm(f"Delete topic {topic} and all its messages?", abort=True)
    remote.call("DELETE", f"/v1/topics/{segment(topic)}")
    print(f"topic {topic} is deleted")


def _show(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    facts = {name: found[name] for name in ("topic", "read_queues", "write_queues", "perm", "order")}
    windows = {broker["duplicate_window_ms"] for broker in found["observed"]}
    facts["duplicate_window_ms"] = ", ".join(str(window_ms or "off") for window_ms in sorted(windows))
    facts |= {"brokers": _brokers(found), "state": found["state"], "origin": found["origin"]}
    if found["pending"]:
        facts["pending"] = found["pending"]
    print_facts({**facts, "updated_at": found["updated_at"]})


def _row(item: Item) -> list[object]:
    names = ("topic", "read_queues", "write_queues", "perm", "order")
    return [*(item[name] for name in names), _brokers(item), item["state"]]


def _brokers(topic: Item) -> object:
    return "all" if topic["brokers"] is None else topic["brokers"]
