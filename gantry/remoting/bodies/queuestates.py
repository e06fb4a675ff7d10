"""The response to request 900000, Gantry's own."""

from gantry.remoting.bodies.fastjson import JsonBody


class QueueState(JsonBody, kw_only=True):
    """One queue. Times are store times in ms. A time is null if there is no such message, or if it can't be read."""

    committed_offset: int | None = None
    """The committed offset of the group; null if it never committed one, or if the request names no group."""
    committed_stored_at: int | None = None
    """The store time of the last message before the committed offset."""
    last_stored_at: int | None = None
    """The store time of the last message in the queue."""
    max_offset: int = 0
    min_offset: int = 0
    queue_id: int
    readable: bool = True
    writable: bool = True


class QueueStates(JsonBody, kw_only=True):
    """All queues of a topic on one broker, sorted by queue id. Read-only and write-only queues are included."""

    broker_name: str
    queues: list[QueueState]
