"""The calls that consume for a group by receipt, as values."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from gantry.http.call import JSON, Call, json_of, msgpack_of, path_of
from gantry.http.consumeresults import Extensions, PulledMessages, ReceiptResult

T = TypeVar("T")


def pull(
    group: str,
    topic: str,
    *,
    max_messages: int,
    wait_ms: int,
    invisible_ms: int,
    expression: str | Mapping[str, str],
    orderly: bool,
    attempt_id: str | None,
) -> Call[PulledMessages]:
    """Take messages of a topic for a group."""
    body: dict[str, Any] = {
        "topic": topic,
        "filter": expression,
        "max": max_messages,
        "wait": f"{wait_ms}ms",
        "invisible": f"{invisible_ms}ms",
        "order": "orderly" if orderly else "concurrent",
    }
    if attempt_id is not None:
        body["attempt_id"] = attempt_id
    headers = {"content-type": JSON, "accept": "application/msgpack"}
    content = msgspec.json.encode(body)
    path = path_of("groups", group, "messages") + ":pull"
    return Call("POST", path, msgpack_of(PulledMessages), content=content, headers=headers, wait_ms=wait_ms)


def ack(group: str, receipts: Sequence[str]) -> Call[list[ReceiptResult]]:
    """Acknowledge messages."""
    return _settle(group, "ack", {"receipts": receipts})


def nack(group: str, receipts: Sequence[str], *, delay_ms: int | None) -> Call[list[ReceiptResult]]:
    """Have messages delivered again."""
    delay = {} if delay_ms is None else {"delay": f"{delay_ms}ms"}
    return _settle(group, "nack", {"receipts": receipts, **delay})


def extend(group: str, receipts: Sequence[str], *, invisible_ms: int) -> Call[Extensions]:
    """Keep messages invisible for longer."""
    body = {"receipts": receipts, "invisible": f"{invisible_ms}ms"}
    return _posted(group, "extend", body, Extensions)


def _settle(group: str, verb: str, body: Mapping[str, Any]) -> Call[list[ReceiptResult]]:
    call = _posted(group, verb, body, _Results)
    return Call(
        call.method,
        call.path,
        lambda content, headers: call.read(content, headers).results,
        content=call.content,
        headers=call.headers,
    )


def _posted(group: str, verb: str, body: Mapping[str, Any], result: type[T]) -> Call[T]:
    path = path_of("groups", group, "messages") + f":{verb}"
    return Call("POST", path, json_of(result), content=msgspec.json.encode(body), headers={"content-type": JSON})


class _Results(msgspec.Struct, frozen=True):
    results: list[ReceiptResult]
