"""The results of pulls and receipts in the form of answers: the shapes of JSON and MessagePack."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from gantry.model.record import topic_at
from services.gateway.usecases.receiving.pulling import Pulled
from services.gateway.usecases.receiving.settling import Settled
from services.gateway.views.messagecodings import JsonMessageWriter, MsgpackMessageWriter
from services.gateway.views.messageparts import MessageWriter, PropertyCache, QueueFacts, cut_unique_key
from services.gateway.views.messages import LARGE_BODY_BYTES


class PulledMessages:
    """Writes the messages of pulls.

    Concurrency: the event loop's thread.
    """

    def __init__(self) -> None:
        writers: tuple[MessageWriter, MessageWriter] = JsonMessageWriter(), MsgpackMessageWriter()
        self._writers = writers
        self._caches = PropertyCache(), PropertyCache()

    def write(self, pulled: Pulled, *, binary: bool) -> Iterator[bytes | tuple[bytes, bytes]]:
        """Yield each message in JSON or MessagePack, or its beginning in JSON and its large body."""
        writer, cache = self._writers[binary], self._caches[binary]
        large_bytes = None if binary else LARGE_BODY_BYTES
        queues: dict[tuple[int, bytes], QueueFacts] = {}
        for data, record, queue_id, receipt, body in pulled.messages:
            place = queue_id, topic_at(data, record)
            queue = queues.get(place)
            if queue is None:
                topic = place[1].decode("utf-8", "replace")
                queue = queues[place] = writer.queue_facts(topic, pulled.broker, queue_id)
            message_id, rest = cut_unique_key(data, record[11], record[12])
            properties = cache.get(rest) or cache.facts(writer, rest)
            head = writer.head(queue, properties, record, message_id, receipt)
            if large_bytes is None or len(body) <= large_bytes:
                yield writer.with_body(head, body)
            else:
                yield head, body


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
