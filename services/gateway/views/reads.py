"""The results of reading in the form of answers: the shapes of JSON and MessagePack.

Offsets and counts are strings in JSON and integers in MessagePack.
"""

from collections.abc import Sequence
from typing import Any

from services.gateway.schemas.times import format_time
from services.gateway.usecases.reading.results import DamagedRecord, FoundMessages, QueueRead, SearchPage, TopicQueue
from services.gateway.views.messages import message_view


def queue_read_view(read: QueueRead, *, binary: bool, system: bool) -> dict[str, Any]:
    """Return the result of reading a queue; `system` includes the properties that belong to the system."""
    view: dict[str, Any] = {
        "status": str(read.status),
        "messages": [
            message_view(message, binary=binary, system=system, leaves_large=True) for message in read.messages
        ],
        "next_offset": _number(read.next_offset, binary=binary),
        "min_offset": _number(read.min_offset, binary=binary),
        "max_offset": _number(read.max_offset, binary=binary),
    }
    if read.damaged:
        view["damaged"] = _damaged(read.damaged, binary=binary)
    return view


def found_view(found: FoundMessages, *, binary: bool) -> dict[str, Any]:
    """Return the answer to a search without its messages, which AnswerWriter adds one by one."""
    return {
        "next_cursor": None,
        "scanned": _number(found.scanned, binary=binary),
        "truncated": found.is_truncated,
    }


def search_view(page: SearchPage, *, binary: bool) -> dict[str, Any]:
    """Return a page of a search without its messages, which AnswerWriter adds one by one."""
    view: dict[str, Any] = {
        "next_cursor": page.next_cursor,
        "scanned": _number(page.scanned, binary=binary),
        "truncated": page.is_truncated,
    }
    if page.damaged:
        view["damaged"] = _damaged(page.damaged, binary=binary)
    if page.missing:
        view["missing"] = [
            {"broker": one.queue.broker_name, "queue_id": one.queue.queue_id, "reason": one.reason}
            for one in page.missing
        ]
    return view


def queue_view(queue: TopicQueue) -> dict[str, Any]:
    """Return a queue of a topic in the contract's form."""
    return {
        "broker": queue.broker,
        "queue_id": queue.queue_id,
        "min_offset": _known_offset(queue.min_offset),
        "max_offset": _known_offset(queue.max_offset),
        "read": queue.is_readable,
        "write": queue.is_writable,
        "last_stored_at": None if queue.last_stored_at_ms is None else format_time(queue.last_stored_at_ms),
    }


def _damaged(records: Sequence[DamagedRecord], *, binary: bool) -> list[dict[str, Any]]:
    return [
        {
            "queue_offset": _number(record.queue_offset, binary=binary),
            "stored_id": record.stored_id,
            "reason": record.reason,
        }
        for record in records
    ]


def _number(number: int, *, binary: bool) -> int | str:
    return number if binary else str(number)


def _known_offset(offset: int | None) -> str | None:
    return None if offset is None else str(offset)
