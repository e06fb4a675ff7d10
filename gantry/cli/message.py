"""`gantry message`: send, get, trace, find and tail messages."""

import base64
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from gantry.cli import consume
from gantry.cli.formatting import cell, message_line, print_facts, print_items, print_json, print_table
from gantry.cli.life import print_life
from gantry.cli.options import DATA_DEFAULT, DataOption, JsonOption, KeyOption, TopicArgument, UrlOption
from gantry.cli.outcome import fail, warn
from gantry.cli.remote import Remote, connect, segment
from gantry.cli.tail import QueueFollower, follow

app = typer.Typer(name="message", help="Send, read, consume and schedule messages.", no_args_is_help=True)
app.command("pull")(consume.pull)
app.command("ack")(consume.ack)
app.command("nack")(consume.nack)

HandleArgument = Annotated[str, typer.Argument(metavar="HANDLE", help="The handle that `gantry message send` prints.")]


@app.command()
def send(
    topic: TopicArgument,
    body: Annotated[
        str | None, typer.Argument(metavar="[BODY]", help="Text of the message; - reads it from stdin.")
    ] = None,
    *,
    file: Annotated[Path | None, typer.Option(metavar="FILE", help="Send the content of this file.")] = None,
    tag: Annotated[str | None, typer.Option(help="Tag of the message.")] = None,
    keys: Annotated[str | None, typer.Option(metavar="A,B", help="Keys to find the message by.")] = None,
    prop: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="User property; may be repeated.")
    ] = None,
    ordering_key: Annotated[
        str | None, typer.Option(help="Send messages of the same key to the same queue, in order.")
    ] = None,
    broker: Annotated[str | None, typer.Option(help="Broker of an explicit queue; needs --queue.")] = None,
    queue: Annotated[int | None, typer.Option(help="Id of an explicit queue; needs --broker.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="Key that becomes the message id.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="10s", help="Deliver the message later: 500ms, 10s, 2m, 1h, at most 40d.")
    ] = None,
    deliver_at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Deliver the message at this time, such as 2026-01-31T12:00:00Z.")
    ] = None,
    delay_level: Annotated[int | None, typer.Option(min=1, max=18, help="Delay level: 1 is 1 s, 18 is 2 h.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send one message. The exit code is 0 only if the message is stored."""
    if (broker is None) != (queue is None):
        raise typer.BadParameter("--broker and --queue must be given together")
    message: dict[str, Any] = _body(body, file)
    message |= {
        name: value
        for name, value in {
            "tag": tag,
            "keys": [part for part in keys.split(",") if part] if keys else None,
            "properties": dict(map(_property, prop)) if prop else None,
            "ordering_key": ordering_key,
            "queue": None if broker is None else {"broker": broker, "id": queue},
            "delay": delay,
            "deliver_at": deliver_at,
            "delay_level": delay_level,
        }.items()
        if value is not None
    }
    headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
    path = f"/v1/topics/{segment(topic)}/messages"
    sent = connect(data, url, key).call("POST", path, body=message, headers=headers)
    if as_json:
        print_json(sent)
    else:
        print_facts(sent)
    if sent["outcome"] != "stored":
        fail(f"the outcome is {sent['outcome']}: the message may not be stored, or may be lost if its broker crashes")


@app.command()
def get(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="A stored id, or with --topic a message id.")],
    *,
    topic: Annotated[str | None, typer.Option(help="Topic to search for the message id.")] = None,
    body: Annotated[bool, typer.Option("--body", help="Print only the body, unchanged.")] = False,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one message."""
    path = f"/v1/messages/{segment(message_id)}"
    found = connect(data, url, key).call("GET", path, query={"topic": topic, "system": None if body else True})
    if body:
        sys.stdout.buffer.write(_bytes(found))
    elif as_json:
        print_json(found)
    else:
        print_facts({name: value for name, value in found.items() if name != "body"})
        print(f"\n{cell(found['body'])}")


@app.command()
def trace(
    message_id: Annotated[str, typer.Argument(metavar="ID", help="A stored id, or with --topic a message id.")],
    *,
    topic: Annotated[str | None, typer.Option(help="Topic of the message.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell the life of one message: what happened to it, and what each group made of it."""
    path = f"/v1/messages/{segment(message_id)}/trace"
    life = connect(data, url, key).call("GET", path, query={"topic": topic})
    if as_json:
        print_json(life)
    else:
        print_life(life)


@app.command()
def find(
    topic: TopicArgument,
    wanted: Annotated[
        str | None, typer.Argument(metavar="KEY", help="A key of the messages, or a message id.", show_default=False)
    ] = None,
    *,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Only messages stored at or after it.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Only messages stored before it.")] = None,
    tags: Annotated[str | None, typer.Option("--filter", help="Only these tags, separated by `||`.")] = None,
    sql: Annotated[str | None, typer.Option(help="Only messages that this SQL92 expression accepts.")] = None,
    not_consumed_by: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Only messages that this group has not consumed.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of messages.")] = 100,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find messages of a topic: by KEY, newest first, or by the options, oldest first."""
    query = {"key": wanted, "from": from_, "to": to, "filter": tags, "sql": sql, "not_consumed_by": not_consumed_by}
    if all(value is None for value in query.values()):
        fail("give a KEY, or one of --from, --to, --filter, --sql and --not-consumed-by")
    found = _find(connect(data, url, key), f"/v1/topics/{segment(topic)}/messages", query, limit)
    for queue in found.missing:
        warn(f"the messages of queue {queue['queue_id']} of {queue['broker']} are unknown: {queue['reason']}")
    if as_json:
        print_json(found.items)
        return
    columns = ["stored_at", "broker", "queue_id", "queue_offset", "tag", "keys", "message_id", "body"]
    rows = [[item[column] for column in columns] for item in found.items]
    where = "" if wanted is None else f" with the key {wanted}"
    print_table(columns, rows, empty=f"{topic} has no such message{where}")
    if found.is_truncated:
        print("there may be more messages: the search ended at a limit")


@dataclass(frozen=True, slots=True)
class _Found:
    items: list[dict[str, Any]]
    missing: list[dict[str, Any]]
    is_truncated: bool


def _find(gateway: Remote, path: str, query: dict[str, Any], limit: int) -> _Found:
    """Return the first `limit` messages of a search, from as many pages as they need."""
    items: list[dict[str, Any]] = []
    while True:
        page = gateway.call("GET", path, query={**query, "limit": min(limit - len(items), 1_000)})
        items += page["items"]
        query["cursor"] = page["next_cursor"]
        if page["next_cursor"] is None or len(items) >= limit:
            return _Found(items, page.get("missing", []), page["truncated"])


@app.command("scheduled")
def list_scheduled(
    topic: TopicArgument,
    *,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Only messages due at or after it.")
    ] = None,
    to: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Only messages due before it.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of messages.")] = 50,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """List messages that wait for their time, by due time. Messages with a delay level are not in the list."""
    query = {"from": from_, "to": to, "limit": min(limit, 1_000)}
    items: list[dict[str, Any]] = []
    for item in connect(data, url, key).items(f"/v1/topics/{segment(topic)}/scheduled", query=query):
        items.append(item)
        if len(items) == limit:
            break
    columns = ["deliver_at", "tag", "keys", "message_id", "body", "handle"]
    print_items(items, columns, empty=f"no message of {topic} waits", as_json=as_json)


@app.command()
def recall(
    topic: TopicArgument,
    handle: HandleArgument,
    *,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Recall a message that waits. The exit code is 0 only if it was recalled."""
    outcome = connect(data, url, key).call("POST", f"{_scheduled_path(topic, handle)}:recall")["outcome"]
    if outcome != "recalled":
        fail(
            "it is too late: the message was delivered or recalled before, its delivery had begun, or its topic was deleted"
        )
    print("the message is recalled")


@app.command()
def reschedule(
    topic: TopicArgument,
    handle: HandleArgument,
    *,
    delay: Annotated[str | None, typer.Option(metavar="10s", help="Deliver it after this time from now.")] = None,
    deliver_at: Annotated[str | None, typer.Option(metavar="TIME", help="Deliver it at this time.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a message wait until another time, and print its new handle."""
    if (delay is None) == (deliver_at is None):
        raise typer.BadParameter("give either --delay or --deliver-at")
    body = {"delay": delay} if delay is not None else {"deliver_at": deliver_at}
    moved = connect(data, url, key).call("POST", f"{_scheduled_path(topic, handle)}:reschedule", body=body)
    if as_json:
        print_json(moved)
    else:
        print_facts(moved)


@app.command()
def tail(
    topic: TopicArgument,
    *,
    filter_: Annotated[
        str, typer.Option("--filter", metavar="TAGS", help="Tags to print, separated by ||; * prints all.")
    ] = "*",
    sql: Annotated[
        str | None,
        typer.Option("--sql", metavar="EXPRESSION", help='Condition over the properties, such as "weight > 5".'),
    ] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Begin with the oldest message.")] = False,
    until_end: Annotated[bool, typer.Option("--until-end", help="Stop at the end of all queues.")] = False,
    limit: Annotated[int | None, typer.Option(metavar="N", help="Stop after N messages.")] = None,
    broker: Annotated[str | None, typer.Option(help="Read only queues of this broker.")] = None,
    queue: Annotated[int | None, typer.Option(help="Read only queues with this id.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print messages of all queues as they arrive, without consuming them, until Ctrl-C.

    Messages of one queue are printed in order. Messages of different queues are mixed. With --json, each line is one
    object.
    """
    remote = connect(data, url, key)
    found = remote.call("GET", f"/v1/topics/{segment(topic)}/queues")["items"]
    chosen = [
        item
        for item in found
        # None means unknown: the queue may be readable.
        if item["read"] is not False
        and (broker is None or item["broker"] == broker)
        and (queue is None or item["queue_id"] == queue)
    ]
    unknown = sorted({item["broker"] for item in chosen if item["max_offset"] is None})
    if unknown:
        warn(f"queues of {', '.join(unknown)} are left out: these brokers can't be reached now")
    followers = [
        QueueFollower(
            remote=remote,
            topic=topic,
            broker=item["broker"],
            queue_id=item["queue_id"],
            offset=item["min_offset" if from_start else "max_offset"],
            expression=filter_,
            sql=sql,
            until_end=until_end,
        )
        for item in chosen
        if item["max_offset"] is not None
    ]
    if not followers:
        fail(f"topic {topic} has no readable queue that matches")
    for count, message in enumerate(follow(followers), start=1):
        if as_json:
            print_json(message)
        else:
            print(message_line(message), flush=True)
        if count == limit:
            return


def _body(text: str | None, file: Path | None) -> dict[str, str]:
    if (text is None) == (file is None):
        raise typer.BadParameter("give either BODY (- for stdin) or --file")
    if text is not None and text != "-":
        return {"body": text}
    try:
        content = sys.stdin.buffer.read() if file is None else file.read_bytes()
    except OSError as error:
        fail(f"{file}: {error.strerror}")
    try:
        return {"body": content.decode("utf-8")}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(content).decode(), "encoding": "base64"}


def _bytes(message: dict[str, Any]) -> bytes:
    body: str = message["body"]
    return base64.b64decode(body) if message["encoding"] == "base64" else body.encode()


def _property(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
    return name, value


def _scheduled_path(topic: str, handle: str) -> str:
    return f"/v1/topics/{segment(topic)}/scheduled/{segment(handle)}"
