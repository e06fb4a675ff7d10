"""Gantry's own request 900002: the first messages that groups wait for, of many queues at once."""

from gantry.remoting.bodies.fastjson import JsonBody

HEAD_QUERIES_MAX = 256
"""At most so many queries in one request."""
TAGS_CODES_MAX = 16_384
"""At most so many tags codes in one request, over all its queries."""


class HeadQuery(JsonBody, kw_only=True):
    """Where to begin in a queue, and what its group wants. Tags codes: of its subscription; null wants everything."""

    offset: int
    queue_id: int
    tags_codes: list[int] | None = None
    topic: str


class HeadQueries(JsonBody, kw_only=True):
    """The request."""

    queries: list[HeadQuery]


class QueueHead(JsonBody, kw_only=True):
    """The first message found; every number is null where it is not known."""

    error: str | None = None
    """What could not be read, and why."""
    expires_at: int | None = None
    """The earliest moment (ms) at which retention by age and hour removes the file with the record."""
    expires_at_is_earliest: bool = False
    """The file is still written to: the moment is that of a file finished now, and only moves on."""
    max_offset: int | None = None
    min_offset: int | None = None
    physical_offset: int | None = None
    queue_offset: int | None = None
    """Of the message; null if none was found up to `scanned_to`."""
    scanned_to: int | None = None
    """Before it there is none; if it is less than `max_offset` and no message was found, ask again from here."""
    size: int | None = None
    stored_at: int | None = None
    """Store time (ms); null where the record can't be read."""
    tags_code: int | None = None


class QueueHeads(JsonBody, kw_only=True):
    """The answer; heads in the order of the queries."""

    broker_name: str
    heads: list[QueueHead]
    now_ms: int
    """The broker's clock, the one that store times are from."""
