"""Gantry's own request 900001: units of a queue with their store times."""

from gantry.remoting.headers.fields import Header, Int32, Int64

UNITS_MAX = 4_096
"""At most so many units in one answer."""
UNITS_DEFAULT = 1_024


class UnitsHeader(Header):
    """900001: from which offset of which queue, and how many at most."""

    topic: str
    queue_id: Int32
    offset: Int64
    max_units: Int32 | None = None


class UnitsResponseHeader(Header):
    """Which offsets the rows in the body have, `first_offset` up to `next_offset`, and what the queue holds."""

    min_offset: Int64
    max_offset: Int64
    first_offset: Int64
    next_offset: Int64
