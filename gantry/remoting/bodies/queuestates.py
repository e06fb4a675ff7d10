"""The answer to Gantry's own request 900000."""

from gantry.remoting.bodies.fastjson import JsonBody


class QueueState(JsonBody, kw_only=True):
    """One queue. Times are store times in ms; null where there is no such message, or it can't be read any more."""

    committed_offset: int | None = None
    """The group's; null if it never committed one, or none was named."""
    committed_stored_at: int | None = None
    """Of the last message before the committed offset."""
    last_stored_at: int | None = None
    """Of the last message."""
    max_offset: int = 0
    min_offset: int = 0
    queue_id: int
    readable: bool = True
    writable: bool = True


class QueueStates(JsonBody, kw_only=True):
    """All queues of a topic on one broker, those that are only read or only written too, by queue id."""

    broker_name: str
    queues: list[QueueState]
