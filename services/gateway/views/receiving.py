"""The results of pulls and receipts in the form of answers: the shapes of JSON and MessagePack."""

from collections.abc import Sequence
from typing import Any

from services.gateway.usecases.receiving.pulling import Pulled
from services.gateway.usecases.receiving.settling import Settled
from services.gateway.views.messages import message_view


def pulled_view(pulled: Pulled, *, binary: bool) -> dict[str, Any]:
    """Return the result of a pull."""
    views = []
    for message, receipt in pulled.messages:
        view = message_view(message, binary=binary, leaves_large=True)
        view["receipt"] = receipt
        views.append(view)
    answer: dict[str, Any] = {"messages": views}
    if pulled.damaged:
        answer["damaged"] = [
            {
                "broker": broker,
                "queue_offset": record.queue_offset if binary else str(record.queue_offset),
                "stored_id": record.stored_id,
                "reason": record.reason,
            }
            for broker, record in pulled.damaged
        ]
    return answer


def settled_view(settled: Sequence[Settled], request_id: str) -> dict[str, Any]:
    """Return the results of receipts."""
    return {"results": [_result(one, request_id) for one in settled]}


def extended_view(settled: Sequence[Settled], request_id: str) -> dict[str, Any]:
    """Return the new receipts, and the results of the old ones."""
    return {"receipts": [one.new_receipt for one in settled], **settled_view(settled, request_id)}


def _result(settled: Settled, request_id: str) -> dict[str, Any]:
    result: dict[str, Any] = {"receipt": settled.receipt, "outcome": settled.outcome}
    if settled.problem is not None:
        result["problem"] = settled.problem.to_dict(request_id)
    return result
