"""`gantry offset`: show, set, reset and clone the committed offsets of consumer groups."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from gantry.cli import offsetreset
from gantry.cli.formatting import print_items, print_json, print_table
from gantry.cli.options import DATA_DEFAULT, DataOption, GroupArgument, JsonOption, KeyOption, TopicArgument, UrlOption
from gantry.cli.outcome import fail, fail_items
from gantry.cli.remote import Remote, connect, segment

app = typer.Typer(name="offset", help="Show and move committed offsets of consumer groups.", no_args_is_help=True)
app.command()(offsetreset.reset)
app.command()(offsetreset.undo)
app.command()(offsetreset.clone)

# The gateway's limit on the offsets of one request.
COMMIT_MAX = 1_000


@app.command()
def read(
    group: GroupArgument,
    *,
    topic: Annotated[str | None, typer.Option(help="Show all queues of this topic.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the committed offsets of a group. Without --topic, show every queue with a committed offset."""
    items = list(connect(data, url, key).items(f"/v1/groups/{segment(group)}/offsets", query={"topic": topic}))
    columns = ["topic", "broker", "queue_id", "committed_offset", "min_offset", "max_offset", "lag"]
    print_items(items, columns, empty="the group has no committed offsets", as_json=as_json)


@app.command("set")
def set_offsets(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    to: Annotated[
        str, typer.Option(metavar="WHERE", help="An offset, earliest, latest, or a time such as 2026-11-21T09:30:00Z.")
    ],
    broker: Annotated[str | None, typer.Option(help="Set only queues of this broker.")] = None,
    queue: Annotated[int | None, typer.Option(help="Set only queues with this id.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the committed offsets of a group on a topic: the offsets it consumes from next.

    Sets all queues of the topic, or those that --broker and --queue select. Stop all consumers of the group first, or
    use `gantry offset reset`, which moves running consumers too.
    """
    offsetreset.check_target(to)
    remote = connect(data, url, key)
    queues = [
        item
        for item in remote.items(f"/v1/topics/{segment(topic)}/queues")
        if (broker is None or item["broker"] == broker) and (queue is None or item["queue_id"] == queue)
    ]
    if not queues:
        raise typer.BadParameter(f"topic {topic} has no such queue", param_hint="--broker, --queue")
    commits = [
        {
            "topic": topic,
            "broker": item["broker"],
            "queue_id": item["queue_id"],
            "offset": _target_offset(remote, topic, item, to),
        }
        for item in queues
    ]
    results = list(_commit(remote, group, commits))
    if as_json:
        print_json(results)
    else:
        columns = ["topic", "broker", "queue_id", "offset", "outcome", "problem"]
        rows = [[*(item[name] for name in columns[:-1]), item.get("problem", {}).get("detail")] for item in results]
        print_table(columns, rows, empty="nothing was set")
    fail_items("queues were not set", results, ["committed"])


def _target_offset(remote: Remote, topic: str, queue: dict[str, Any], to: str) -> str:
    if to in ("earliest", "latest"):
        offset = queue["min_offset" if to == "earliest" else "max_offset"]
        if offset is None:
            fail(f"nothing was set: the offsets of {queue['broker']} are unknown, because it can't be reached now")
        return str(offset)
    if to.isdecimal():
        return str(int(to))
    path = f"/v1/topics/{segment(topic)}/queues/{segment(queue['broker'])}/{queue['queue_id']}/offsets"
    return str(remote.call("GET", path, query={"at": to})["offset"])


def _commit(remote: Remote, group: str, commits: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for at in range(0, len(commits), COMMIT_MAX):
        body = {"offsets": commits[at : at + COMMIT_MAX]}
        yield from remote.call("PUT", f"/v1/groups/{segment(group)}/offsets", body=body)["results"]
