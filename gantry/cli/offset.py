"""`gantry offset`: what a group has consumed, and where it goes on."""

import re
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from gantry.cli.formatting import print_items, print_json, print_table
from gantry.cli.outcome import EXIT_FAILED, fail
from gantry.cli.remote import DATA_DEFAULT, DataOption, JsonOption, KeyOption, Remote, UrlOption, connect, segment

app = typer.Typer(name="offset", help="Committed offsets of consumer groups.", no_args_is_help=True)

# One call takes this many.
COMMIT_MAX = 1_000
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})")


@app.command()
def read(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    *,
    topic: Annotated[str | None, typer.Option(help="All queues of this topic.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a group has committed; without --topic, wherever it has committed anything."""
    items = list(connect(data, url, key).items(f"/v1/groups/{segment(group)}/offsets", query={"topic": topic}))
    columns = ["topic", "broker", "queue_id", "committed_offset", "min_offset", "max_offset", "lag"]
    print_items(items, columns, empty="it has committed nothing", as_json=as_json)


@app.command("set")
def set_offsets(
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    *,
    to: Annotated[
        str, typer.Option(metavar="WHERE", help="An offset, earliest, latest, or a time like 2026-11-21T09:30:00Z.")
    ],
    broker: Annotated[str | None, typer.Option(help="Only queues of this broker.")] = None,
    queue: Annotated[int | None, typer.Option(help="Only the queue with this id.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say where a group goes on with a topic: all its queues, or those that the options leave.

    No instance of the group may be connected meanwhile: it would go on from where it is and commit over this.
    """
    if not (to in ("earliest", "latest") or to.isdecimal() or _MOMENT.fullmatch(to)):
        raise typer.BadParameter(f"{to!r} is no offset, earliest, latest or time", param_hint="--to")
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
            "offset": _where(remote, topic, item, to),
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
    if any(item["outcome"] != "committed" for item in results):
        raise typer.Exit(EXIT_FAILED)


def _where(remote: Remote, topic: str, queue: dict[str, Any], to: str) -> str:
    if to in ("earliest", "latest"):
        offset = queue["min_offset" if to == "earliest" else "max_offset"]
        if offset is None:
            fail(f"nothing was set: the offsets of {queue['broker']} are not known, since it can't be asked just now")
        return str(offset)
    if to.isdecimal():
        return str(int(to))
    path = f"/v1/topics/{segment(topic)}/queues/{segment(queue['broker'])}/{queue['queue_id']}/offsets"
    return str(remote.call("GET", path, query={"at": to})["offset"])


def _commit(remote: Remote, group: str, commits: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for at in range(0, len(commits), COMMIT_MAX):
        body = {"offsets": commits[at : at + COMMIT_MAX]}
        yield from remote.call("PUT", f"/v1/groups/{segment(group)}/offsets", body=body)["results"]
