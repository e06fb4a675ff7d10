"""Request 900001, Gantry's own: units of a queue with their store times."""

from gantry.remoting.headers.fields import Header, Int32, Int64

UNITS_MAX = 4_096
"""The maximum number of units in one response."""
UNITS_DEFAULT = 1_024


class UnitsHeader(Header):
    """900001: the queue, the first offset and the maximum number of units."""

    topic: str
    queue_id: Int32
    offset: Int64
    max_units: Int32 | None = None


class UnitsResponseHeader(Header):
    """The offsets of the rows in the body (`first_offset` up to `next_offset`), and the offsets of the queue."""

    min_offset: Int64
    max_offset: Int64
    first_offset: Int64
    next_offset: Int64
