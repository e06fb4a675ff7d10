"""Request 900040, Gantry's own: which messages a group has taken with receipts and has not acknowledged.

The check points of pops are in memory, by receipt and by time. The broker looks through all of them, in turns. A table by
message would make this request cheaper, and every pop and acknowledgement dearer.

Only check points that are durable count: no client knows the receipts of the others yet.

Concurrency: the loop's thread.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gantry.remoting.aio.channel import Channel
from gantry.remoting.bodies.pop import TakenMessage, TakenMessages, TakenQuery
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from services.broker.pop.checkpoints import CheckPoint, CheckPointTable
from services.broker.pop.order import OrderTable
from services.broker.processors.table import PlainHandler
from services.broker.turns import Turns

_SLICE: Final = 1_000
"""Number of check points that one turn looks at."""


class TakenProcessor:
    """Answers the request."""

    def __init__(self, points: CheckPointTable, orders: OrderTable, turns: Turns) -> None:
        self._points = points
        self._orders = orders
        self._turns = turns

    def plain_handlers(self) -> Mapping[int, PlainHandler]:
        """Return the handler of the request code."""
        return {RequestCode.GANTRY_TAKEN_MESSAGES: self.taken}

    async def taken(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """900040: return those of the messages that are taken."""
        query = TakenQuery.decode(request.body_bytes)
        wanted: dict[int, set[int]] = {}
        for place in query.places:
            wanted.setdefault(place.queue_id, set()).add(place.offset)
        found = self._taken_in_order(query, wanted)
        points = list(self._points)
        for first in range(0, len(points), _SLICE):
            async with self._turns:
                self._turns.spend(1)
                found += _of_points(points[first : first + _SLICE], query, wanted)
        # A message that was taken again after a reset of the offset has several check points; the last one counts.
        latest = {(one.queue_id, one.offset): one for one in sorted(found, key=lambda one: one.visible_at)}
        messages = [latest[place] for place in sorted(latest)]
        body = TakenMessages(messages=messages).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)

    def _taken_in_order(self, query: TakenQuery, wanted: Mapping[int, set[int]]) -> list[TakenMessage]:
        found = []
        for queue_id, offsets in wanted.items():
            info = self._orders.find((query.topic, query.consumer_group, queue_id))
            if info is None:
                continue
            at_ms, changed = info.popped_at_ms, info.visible_at or {}
            default = at_ms + (info.invisible_ms or 0)
            found += [
                TakenMessage(queue_id=queue_id, offset=offset, taken_at=at_ms, visible_at=changed.get(offset, default))
                for offset in offsets.intersection(info.left())
            ]
        return found


def _of_points(points: Iterable[CheckPoint], query: TakenQuery, wanted: Mapping[int, set[int]]) -> list[TakenMessage]:
    topic, group = query.topic, query.consumer_group
    found = []
    for point in points:
        key = point.key
        offsets = wanted.get(key.queue_id)
        if offsets is None or key.topic != topic or key.group != group or not point.is_stored:
            continue
        first, last = point.offsets[0], point.offsets[-1]
        found += [
            TakenMessage(queue_id=key.queue_id, offset=offset, taken_at=key.popped_at_ms, visible_at=point.due_at_ms)
            for offset in offsets
            if first <= offset <= last and point.has(offset)
        ]
    return found
