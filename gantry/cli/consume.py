"""`gantry consume` and the commands that take messages for a group: `gantry message pull`, `ack` and `nack`."""

import uuid
from typing import Annotated, Any

import typer

from gantry.cli.formatting import message_line, print_items, print_json
from gantry.cli.options import DATA_DEFAULT, DataOption, JsonOption, KeyOption, TopicArgument, UrlOption
from gantry.cli.outcome import EXIT_FAILED, fail, warn
from gantry.cli.remote import Remote, connect, segment

WAIT_S = 10
PULL_MAX = 256

GroupOption = Annotated[str, typer.Option("--group", metavar="GROUP", help="The consumer group.")]
FilterOption = Annotated[
    str, typer.Option("--filter", metavar="TAGS", help="Wanted tags, separated by ||; * for all messages.")
]
SqlOption = Annotated[
    str | None,
    typer.Option("--sql", metavar="EXPRESSION", help='Condition over the properties, such as "weight > 5".'),
]
InvisibleOption = Annotated[
    str, typer.Option(metavar="60s", help="Time for which others do not get the messages: at least 10s, at most 12h.")
]
OrderlyOption = Annotated[
    bool, typer.Option("--orderly", help="Take messages of a queue only when all before them are acked.")
]
ReceiptsArgument = Annotated[list[str], typer.Argument(metavar="RECEIPT", help="Receipts that `pull` prints.")]

app = typer.Typer()


@app.command()
def consume(
    topic: TopicArgument,
    *,
    group: GroupOption,
    filter_: FilterOption = "*",
    sql: SqlOption = None,
    invisible: InvisibleOption = "60s",
    orderly: OrderlyOption = False,
    until_empty: Annotated[bool, typer.Option("--until-empty", help="Stop when no message is left.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N messages.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Consume messages for a group until Ctrl-C: print each, and acknowledge it once it is printed.

    With --json, each line is one object.
    """
    remote, left = connect(data, url, key), limit
    while left is None or left > 0:
        wanted = {
            "topic": topic,
            "filter": wanted_filter(filter_, sql),
            "max": 32 if left is None else min(left, 32),
            "wait": "0s" if until_empty else f"{WAIT_S}s",
            "invisible": invisible,
            "order": "orderly" if orderly else "concurrent",
            "attempt_id": str(uuid.uuid4()),
        }
        messages = _pull(remote, group, wanted, wait_ms=WAIT_S * 1_000)
        for message in messages:
            receipt = message.pop("receipt")
            if as_json:
                print_json(message)
            else:
                print(message_line(message), flush=True)
            # One by one: a command that is stopped leaves no printed message that comes again.
            _report(_settle(remote, group, "ack", {"receipts": [receipt]}), "acked")
        if left is not None:
            left -= len(messages)
        if until_empty and not messages:
            return


def pull(
    topic: TopicArgument,
    *,
    group: GroupOption,
    filter_: FilterOption = "*",
    sql: SqlOption = None,
    max_: Annotated[int, typer.Option("--max", min=1, max=PULL_MAX, help="Maximum number of messages.")] = 32,
    wait: Annotated[str, typer.Option(metavar="10s", help="Time to wait if there is none, at most 30s.")] = "0s",
    invisible: InvisibleOption = "60s",
    orderly: OrderlyOption = False,
    attempt_id: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the pull: the same name gets the same messages again.")
    ] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take messages for a group, each with a receipt. They come again unless they are acked in time."""
    wanted = {
        "topic": topic,
        "filter": wanted_filter(filter_, sql),
        "max": max_,
        "wait": wait,
        "invisible": invisible,
        "order": "orderly" if orderly else "concurrent",
    }
    if attempt_id is not None:
        wanted["attempt_id"] = attempt_id
    messages = _pull(connect(data, url, key), group, wanted, wait_ms=30_000)
    columns = ["stored_at", "broker", "queue_id", "queue_offset", "tag", "reconsume_times", "body", "receipt"]
    print_items(messages, columns, empty=f"no message of {topic} for {group}", as_json=as_json)


def ack(
    receipts: ReceiptsArgument,
    *,
    group: GroupOption,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Acknowledge messages that `pull` has taken. The exit code is 0 only if all of them were acked."""
    _report(_settle(connect(data, url, key), group, "ack", {"receipts": receipts}), "acked")


def nack(
    receipts: ReceiptsArgument,
    *,
    group: GroupOption,
    delay: Annotated[
        str | None, typer.Option(metavar="10s", help="Time until they come again; the group's retry policy by default.")
    ] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Have messages delivered again that `pull` has taken. The exit code is 0 only if that worked for all."""
    body: dict[str, Any] = {"receipts": receipts}
    if delay is not None:
        body["delay"] = delay
    _report(_settle(connect(data, url, key), group, "nack", body), "nacked")


def wanted_filter(tags: str, sql: str | None) -> str | dict[str, str]:
    """Return the filter of a pull. Fails if both kinds are given."""
    if sql is None:
        return tags
    if tags != "*":
        fail("--sql is given beside --filter; give only one of them")
    return {"sql": sql}


def _pull(remote: Remote, group: str, wanted: dict[str, Any], *, wait_ms: int) -> list[dict[str, Any]]:
    pulled = remote.call("POST", f"/v1/groups/{segment(group)}/messages:pull", body=wanted, wait_ms=wait_ms)
    for record in pulled.get("damaged", ()):
        warn(f"a record at offset {record['queue_offset']} on {record['broker']} is damaged: {record['reason']}")
    messages: list[dict[str, Any]] = pulled["messages"]
    return messages


def _settle(remote: Remote, group: str, verb: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = remote.call("POST", f"/v1/groups/{segment(group)}/messages:{verb}", body=body)[
        "results"
    ]
    return results


def _report(results: list[dict[str, Any]], success: str) -> None:
    """Print the receipts that were not settled. Raises typer.Exit (1) if there are any."""
    bad = [result for result in results if result["outcome"] != success]
    for result in bad:
        reason = result["problem"]["detail"] if "problem" in result else "it is no longer valid"
        warn(f"{result['receipt']}: {result['outcome']}: {reason}")
    if bad:
        raise typer.Exit(EXIT_FAILED)
