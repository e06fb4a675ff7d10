"""Request 900002, Gantry's own: the first unconsumed messages of groups, in many queues at once."""

from gantry.remoting.bodies.fastjson import JsonBody

HEAD_QUERIES_MAX = 256
"""The maximum number of queries in one request."""
TAGS_CODES_MAX = 16_384
"""The maximum number of tags codes in all queries of one request."""


class FirstUnconsumedQuery(JsonBody, kw_only=True):
    """One queue, the offset to start at, and the filter of the group's subscription.

    The filter is `tags_codes` or `sql`, not both. If both are null, all messages pass.
    """

    offset: int
    queue_id: int
    sql: str | None = None
    tags_codes: list[int] | None = None
    topic: str


class FirstUnconsumedQueries(JsonBody, kw_only=True):
    """The body of the request."""

    queries: list[FirstUnconsumedQuery]


class FirstUnconsumedResult(JsonBody, kw_only=True):
    """The first message found in one queue. An unknown number is null."""

    error: str | None = None
    """The data that could not be read, and the reason."""
    expires_at: int | None = None
    """The earliest time (ms) at which retention by age and hour deletes the file that contains the record."""
    expires_at_is_earliest: bool = False
    """Whether the broker still writes to this file. `expires_at` then assumes that the file is full now, and it will
    only become later."""
    max_offset: int | None = None
    min_offset: int | None = None
    physical_offset: int | None = None
    queue_offset: int | None = None
    """The queue offset of the message; null if no message was found before `scanned_to`."""
    scanned_to: int | None = None
    """The offset where the scan stopped. If no message was found and this is less than `max_offset`, send the query
    again with this offset."""
    size: int | None = None
    stored_at: int | None = None
    """The store time (ms); null if the record can't be read."""
    tags_code: int | None = None


class FirstUnconsumedResults(JsonBody, kw_only=True):
    """The body of the response. The heads are in the order of the queries."""

    applies_sql: bool = False
    """Whether the broker applies `sql`. Brokers of releases that do not know it accept every message instead."""
    broker_name: str
    heads: list[FirstUnconsumedResult]
    now_ms: int
    """The time of the broker's clock (ms), which also gives the store times."""
