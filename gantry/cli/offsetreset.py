"""`gantry offset reset`, `undo` and `clone`: move a group while its consumers may run.

A reset or clone first shows what it would do, and asks for confirmation. At its end it prints the command that undoes it.
"""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from gantry.cli.formatting import print_json, print_table
from gantry.cli.options import (
    DATA_DEFAULT,
    DataOption,
    GroupArgument,
    JsonOption,
    KeyOption,
    TopicArgument,
    UrlOption,
    YesOption,
)
from gantry.cli.outcome import fail, fail_items
from gantry.cli.remote import Remote, connect, segment

MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:\d{2})")
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")]
_BODY_CHARS = 40

Item = Mapping[str, Any]


def check_target(to: str) -> None:
    """Raise BadParameter unless `to` is an offset, earliest, latest or a time."""
    if not (to in ("earliest", "latest") or to.isdecimal() or MOMENT.fullmatch(to)):
        raise typer.BadParameter(f"{to!r} is neither an offset, earliest, latest nor a time", param_hint="--to")


def reset(
    group: GroupArgument,
    topic: TopicArgument,
    *,
    to: Annotated[
        str, typer.Option(metavar="WHERE", help="An offset, earliest, latest, or a time such as 2026-11-21T09:30:00Z.")
    ],
    broker: Annotated[str | None, typer.Option(help="Reset only queues of this broker.")] = None,
    queue: Annotated[int | None, typer.Option(help="Reset only queues with this id.")] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move a group in a topic to another place, while its consumers may run.

    Connected consumers go on at the new place, and what they commit from before the reset is refused.
    """
    check_target(to)
    remote = connect(data, url, key)
    target: Any = to
    if to.isdecimal() or broker is not None or queue is not None:
        target = _queues(remote, group, topic, to, lambda item: _matches(item, broker, queue))
    _run(remote, group, "reset", {"topic": topic, "to": target}, dry_run=dry_run, yes=yes, as_json=as_json)


def clone(
    group: GroupArgument,
    from_group: Annotated[str, typer.Argument(metavar="FROM", help="Name of the group whose offsets are taken over.")],
    *,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only this topic; default: all of FROM.")] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set the committed offsets of GROUP to those of FROM."""
    body = {"from_group": from_group, "topic": topic}
    _run(connect(data, url, key), group, "clone", body, dry_run=dry_run, yes=yes, as_json=as_json)


def undo(
    group: GroupArgument,
    token: Annotated[str, typer.Argument(metavar="TOKEN", help="The token that the reset or clone has printed.")],
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring back the offsets from before a reset or clone, if the group has not consumed since."""
    report = connect(data, url, key).call("POST", _path(group, "undo"), body={"undo": token})
    _print(group, report, as_json=as_json)


def _run(
    remote: Remote, group: str, action: str, body: dict[str, Any], *, dry_run: bool, yes: bool, as_json: bool
) -> None:
    def post(*, is_dry: bool) -> Any:
        return remote.call("POST", _path(group, action), body={**body, "dry_run": is_dry})

    if dry_run:
        _print(group, post(is_dry=True), as_json=as_json)
        return
    if not yes:
        preview = post(is_dry=True)
        _print_items(preview)
        typer.confirm(f"{_summary(preview)} Move group {group}?", abort=True, err=as_json)
    _print(group, post(is_dry=False), as_json=as_json)


def _matches(item: Item, broker: str | None, queue: int | None) -> bool:
    return (broker is None or item["broker"] == broker) and (queue is None or item["queue_id"] == queue)


def _queues(remote: Remote, group: str, topic: str, to: str, is_chosen: Callable[[Item], bool]) -> list[dict[str, Any]]:
    """Return the chosen queues with their offsets. The gateway finds the offset of a place other than an offset."""
    place = "earliest" if to.isdecimal() else to
    found = remote.call("POST", _path(group, "reset"), body={"topic": topic, "to": place, "dry_run": True})["items"]
    chosen = [item for item in found if is_chosen(item)]
    if not chosen:
        raise typer.BadParameter(f"topic {topic} has no such queue", param_hint="--broker, --queue")
    for item in chosen:
        if item["to"] is None:
            fail(f"nothing was reset: {item['problem']['detail']}")
    return [
        {
            "broker": item["broker"],
            "queue_id": item["queue_id"],
            "offset": str(int(to)) if to.isdecimal() else item["to"],
        }
        for item in chosen
    ]


def _print(group: str, report: Any, *, as_json: bool) -> None:
    if as_json:
        print_json(report)
    else:
        _print_items(report)
        print(_summary(report))
        if report["undo"] is not None:
            print(f"undo: gantry offset undo {shlex.quote(group)} {report['undo']}")
    fail_items("queues were not reset, or it is unknown", report["items"], ["planned", "reset"])


def _print_items(report: Any) -> None:
    columns: dict[str, Callable[[Item], object]] = {
        **{
            name: lambda item, name=name: item[name]  # type: ignore[misc]
            for name in ("topic", "broker", "queue_id", "from", "to", "messages", "outcome")
        },
        "first": lambda item: _shown(item["first"]),
        "last": lambda item: _shown(item["last"]),
        "note": lambda item: item.get("problem", {}).get("detail") or item["note"],
    }
    rows = [[cell(item) for cell in columns.values()] for item in report["items"]]
    print_table(list(columns), rows, empty="the group has nothing to move")


def _shown(message: Item | None) -> str | None:
    """Return a message in a few words."""
    if message is None:
        return None
    body = message["body"] if message["encoding"] == "text" else f"{message['size']} bytes"
    return f"{message['stored_at']} {body[:_BODY_CHARS]}{'…' if len(body) > _BODY_CHARS else ''}"


def _summary(report: Any) -> str:
    messages = report["messages"]
    if messages is None:
        return "The number of messages is unknown, because the group has no committed offset in some queues."
    count = int(messages)
    return f"{count} messages are consumed again." if count >= 0 else f"{-count} messages are skipped."


def _path(group: str, action: str) -> str:
    return f"/v1/groups/{segment(group)}/offsets:{action}"
