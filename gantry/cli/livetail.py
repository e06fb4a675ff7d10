"""`gantry tail`: the messages of a topic as they arrive."""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import typer

from gantry.cli.consume import FilterOption, SqlOption, wanted_filter
from gantry.cli.formatting import message_line, print_json
from gantry.cli.options import DATA_DEFAULT, DataOption, JsonOption, KeyOption, TopicArgument, UrlOption
from gantry.cli.outcome import fail, warn
from gantry.cli.remote import find_gateway, refusal
from gantry.http.errors import GantryError, GantryProblem
from gantry.http.results import Message
from gantry.http.stream import StreamClient
from gantry.http.tail import Tail

app = typer.Typer()


@app.command()
def tail(
    topic: TopicArgument,
    *,
    filter_: FilterOption = "*",
    sql: SqlOption = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="first|last|TIME", help="Where to begin; default: now.")
    ] = None,
    rate: Annotated[
        int | None, typer.Option(min=1, max=10_000, metavar="N", help="Messages a second; default: 1000.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Stop after N messages.")] = None,
    data: DataOption = DATA_DEFAULT,
    url: UrlOption = None,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the messages of a topic as they arrive, until Ctrl-C. This takes no message from any group.

    If messages come faster than they can be printed, some are skipped; their number goes to stderr. With --json, each
    line is one object.
    """
    gateway_url, gateway_key = find_gateway(data, url, key)
    stream = StreamClient(gateway_url, gateway_key, client_name="gantry tail")
    options = {"expression": wanted_filter(filter_, sql), "start": start, "rate_per_s": rate}
    try:
        asyncio.run(_print_all(stream, topic, options, limit, as_json=as_json))
    except GantryProblem as error:
        fail(refusal(error.problem))
    except GantryError as error:
        fail(str(error))


async def _print_all(
    stream: StreamClient, topic: str, options: Mapping[str, Any], limit: int | None, *, as_json: bool
) -> None:
    async with stream:
        tail = await stream.tail(topic, **options)
        skipped, left = 0, limit
        async for batch in tail:
            skipped = _report_skipped(tail, skipped)
            for message in batch.messages:
                _print(message, as_json=as_json)
                if left is not None:
                    left -= 1
                    if left == 0:
                        return


def _report_skipped(tail: Tail, told: int) -> int:
    if tail.skipped != told:
        warn(f"{tail.skipped - told} messages were skipped")
    return tail.skipped


def _print(message: Message, *, as_json: bool) -> None:
    shown = message_fields(message)
    if as_json:
        print_json(shown)
    else:
        print(message_line(shown), flush=True)


def message_fields(message: Message) -> dict[str, Any]:
    """Return a message as the API writes it in JSON, without its receipt; a body that is not UTF-8 becomes base64."""
    shown: dict[str, Any] = msgspec.to_builtins(message)
    shown.pop("receipt", None)
    try:
        shown["body"], shown["encoding"] = message.body.decode(), "text"
    except UnicodeDecodeError:
        shown["encoding"] = "base64"
    return {**shown, "queue_offset": str(message.queue_offset)}
