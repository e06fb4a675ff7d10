"""The results of sends in the form of answers and frames: the shapes of JSON and MessagePack.

Offsets are strings in JSON and integers in MessagePack.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gantry.client.sendrequest import BatchSendResult, SendStatus
from services.gateway.errors import NOT_STORED, STORED, UNKNOWN
from services.gateway.usecases.sending.results import (
    BatchReport,
    FailedMessage,
    OneWayMessage,
    PlacedMessage,
    ScheduledMessage,
    SentMessage,
)
from services.gateway.views.optional import time_view


class _PlacedView(msgspec.Struct, gc=False):
    """A message with its position. A struct, because making and encoding a dict takes twice as long."""

    outcome: str
    status: str
    message_id: str
    stored_id: str
    broker: str
    queue_id: int | None
    queue_offset: int | str | None
    topic: str | UnsetType = UNSET
    handle: str | UnsetType | None = UNSET
    deliver_at: str | UnsetType | None = UNSET
    replayed: bool | UnsetType = UNSET


def single_view(result: SentMessage, topic: str) -> object:
    """Return the JSON form of the result of a single send."""
    if isinstance(result, OneWayMessage):
        return {**_one_way_view(result), "topic": topic}
    view = _placed_view(result, binary=False)
    view.topic = topic
    return view


def result_views(report: BatchReport, request_id: str, *, binary: bool = False) -> list[object]:
    """Return the results of a batch.

    Args:
        report: The results.
        request_id: The id of the request or the stream, for the problems.
        binary: Whether the results are for MessagePack.
    """
    views: list[object] = []
    request: BatchSendResult | None = None
    status = broker = ""
    queue_id = first_offset = 0
    message_ids: Sequence[str] = ()
    stored_ids: Sequence[str] = ()
    for result in report.results:
        if type(result) is PlacedMessage:
            if result.request is not request:
                # The fields that all messages of a request share are read once: they are a third of the work on a view.
                request = result.request
                status, message_ids, stored_ids = _STATUSES[request.status], request.message_ids, request.stored_ids
                broker, queue_id, first_offset = request.queue.broker_name, request.queue.queue_id, request.first_offset
            index = result.index
            offset: int | str = first_offset + index if binary else str(first_offset + index)
            views.append(
                _PlacedView(result.outcome, status, message_ids[index], stored_ids[index], broker, queue_id, offset)
            )
        elif isinstance(result, PlacedMessage):
            views.append(_placed_view(result, binary=binary))
        elif isinstance(result, OneWayMessage):
            views.append(_one_way_view(result))
        else:
            views.append(_failed_view(result, request_id))
    return views


def outcome_counts(report: BatchReport) -> dict[str, int]:
    """Return the number of messages of each outcome."""
    return {STORED: report.stored, NOT_STORED: report.not_stored, UNKNOWN: report.unknown}


def _placed_view(result: PlacedMessage, *, binary: bool) -> _PlacedView:
    request, index, offset = result.request, result.index, result.queue_offset
    view = _PlacedView(
        result.outcome,
        _STATUSES[request.status],
        request.message_ids[index],
        request.stored_ids[index],
        request.queue.broker_name,
        result.queue_id,
        offset if binary else str(offset),
    )
    if result.is_replayed:
        view.replayed = True
    if isinstance(result, ScheduledMessage):
        view.handle, view.deliver_at = result.handle, time_view(result.deliver_at_ms)
        # The broker answers with the place where the message waits. It gets its position when it is delivered.
        view.queue_id = view.queue_offset = None
    return view


def _one_way_view(result: OneWayMessage) -> dict[str, Any]:
    return {"outcome": result.outcome, "message_id": result.message_id}


def _failed_view(result: FailedMessage, request_id: str) -> dict[str, Any]:
    problem = result.problem
    view: dict[str, Any] = {"outcome": result.outcome, "problem": problem.to_dict(request_id)}
    if problem.message_id is not None:
        view["message_id"] = problem.message_id
    return view


# Plain strings, because encoders write them faster than members of an enum.
_STATUSES = {status: str(status) for status in SendStatus}
