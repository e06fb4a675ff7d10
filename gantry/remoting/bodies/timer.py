"""The response to request 900010, Gantry's own: messages that wait for a set time."""

from gantry.remoting.bodies.fastjson import JsonBody


class WaitingMessage(JsonBody, kw_only=True):
    """One message that waits."""

    born_at: int
    delivery_at: int
    """The time (ms) at which the message is delivered: the end of the second at which it waits."""
    is_rolled: bool
    """Whether it waits in several parts. Until the last part, it stands in this list at the end of its present part."""
    keys: str | None = None
    message_id: str
    physical_offset: int
    queue_id: int
    recall_handle: str
    size: int
    """The size of the record in bytes."""
    stored_at: int
    """The store time (ms) of the record: when it was sent, or when its present part began."""
    tag: str | None = None
    topic: str


class WaitingMessages(JsonBody, kw_only=True):
    """The body of the response. The messages are ordered by second; within a second, the last one sent comes first.

    A message that was recalled is not in the list. If `next_second` is not null, there may be more: repeat the request
    with it and with `next_position`.
    """

    messages: list[WaitingMessage]
    next_position: int | None = None
    next_second: int | None = None
    now_ms: int
    waiting: int
    """The number of messages that wait on this broker."""
