"""The results of pulls and receipts in the form of answers: the shapes of JSON and MessagePack."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gantry.model.record import topic_at
from services.gateway.schemas.messages import ShownMessage
from services.gateway.usecases.receiving.pulling import Pulled
from services.gateway.usecases.receiving.settling import Settled
from services.gateway.views.messageparts import MessageWriter, PropertyCache, cut_unique_key
from services.gateway.views.messages import LARGE_BODY_BYTES


class PulledMessages:
    """Makes the messages of pulls.

    Concurrency: the event loop's thread.
    """

    def __init__(self) -> None:
        self._writers = MessageWriter(binary=False), MessageWriter(binary=True)
        self._cache = PropertyCache()

    def show(self, pulled: Pulled, *, binary: bool) -> list[ShownMessage]:
        """Return the messages of a pull for JSON or MessagePack."""
        return list(self.show_each(pulled, binary=binary))

    def show_each(self, pulled: Pulled, *, binary: bool) -> Iterator[ShownMessage]:
        """Yield the messages of a pull for JSON or MessagePack; their large bodies are decompressed as they come."""
        cache, show, broker = self._cache, self._writers[binary].show, pulled.broker
        for message in pulled.messages:
            data, record, receipt, body = message
            message_id, rest = cut_unique_key(data, record[12], record[13])
            facts = cache.get(rest) or cache.facts(rest)
            topic = topic_at(data, record).decode("utf-8", "replace")
            if body is None:
                body = message.whole_body()
            yield show(topic, broker, record, message_id, facts, receipt, body, LARGE_BODY_BYTES)


def damaged_view(pulled: Pulled, *, binary: bool) -> dict[str, Any]:
    """Return the fields of a pull's answer other than its messages."""
    if not pulled.damaged:
        return {}
    return {
        "damaged": [
            {
                "broker": pulled.broker,
                "queue_offset": record.queue_offset if binary else str(record.queue_offset),
                "stored_id": record.stored_id,
                "reason": record.reason,
            }
            for record in pulled.damaged
        ]
    }


class _Result(msgspec.Struct, omit_defaults=True, gc=False):
    """The result of a receipt. It is a struct for speed."""

    receipt: str
    outcome: str
    problem: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


def settled_view(settled: Sequence[Settled], request_id: str) -> dict[str, Any]:
    """Return the results of receipts."""
    return {"results": [_result(one, request_id) for one in settled]}


def extended_view(settled: Sequence[Settled], request_id: str) -> dict[str, Any]:
    """Return the new receipts, and the results of the old ones."""
    return {"receipts": [one.new_receipt for one in settled], **settled_view(settled, request_id)}


def _result(settled: Settled, request_id: str) -> _Result:
    if settled.problem is None:
        return _Result(settled.receipt, settled.outcome)
    return _Result(settled.receipt, settled.outcome, settled.problem.to_dict(request_id))
