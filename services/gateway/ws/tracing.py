"""Trace data about the messages of one subscription: the beginning and the end of each delivery.

Tracing decodes the records that are sent once more. It is off unless the setting `trace_messages` is on.
"""

from collections.abc import Collection
from typing import Final

from gantry.client.tracer import Consumption, Tracer
from gantry.model.errors import RecordError
from gantry.model.message import MessageQueue
from gantry.model.record import iter_records

IN_FLIGHT_MAX: Final = 10_000
"""Limit of deliveries of one subscription whose end is awaited. The end of a delivery beyond it is not traced."""


class DeliveryTrace:
    """Notes the deliveries of one subscription.

    Concurrency: the event loop's thread.
    """

    def __init__(self, tracer: Tracer, group: str) -> None:
        self._tracer = tracer
        self._group = group
        # Receipts name one message, or a whole frame by its first offset.
        self._frame_of: dict[_Place, _Frame] = {}
        self._frames: dict[_Place, _Frame] = {}

    def sent(self, queue: MessageQueue, data: bytes | memoryview, offsets: Collection[int], first: int) -> None:
        """Note that the records of these offsets were sent in a frame whose receipt begins with `first`.

        A delivery that is repeated begins again, and has one end.
        """
        wanted = set(offsets)
        place = (queue, first)
        frame = self._frames.get(place) or (place, {})
        try:
            for record in iter_records(data, check_crc=False):
                if record.queue_offset in wanted:
                    consumption = self._tracer.consuming(self._group, [record])
                    if len(self._frame_of) < IN_FLIGHT_MAX:
                        frame[1][record.queue_offset] = consumption
                        self._frame_of[queue, record.queue_offset] = self._frames[place] = frame
        except RecordError:
            return  # The stream reports damaged records itself.

    def settled(self, queue: MessageQueue, first: int, last: int | None, *, is_success: bool) -> None:
        """Note the end of one delivery, or with `last` of all that are left in the frame that begins with `first`."""
        place = (queue, first)
        found = self._frame_of.get(place) if last is None else self._frames.get(place)
        if found is None:
            return
        begin, left = found
        for offset in [first] if last is None else list(left):
            self._frame_of.pop((queue, offset), None)
            left.pop(offset).ended(is_success=is_success)
        if not left:
            self._frames.pop(begin, None)

    def forget(self, queue: MessageQueue) -> None:
        """Forget the deliveries of a queue that has moved to another consumer; they have no end."""
        for places in (self._frame_of, self._frames):
            for place in [place for place in places if place[0] == queue]:
                del places[place]


_Place = tuple[MessageQueue, int]
_Frame = tuple[_Place, dict[int, Consumption]]
"""The place of the first record of a frame, and the deliveries that are left of it."""
