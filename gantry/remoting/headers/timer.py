"""Requests about messages that wait for a set time: 370 recalls one; 900010, Gantry's own, lists them."""

import msgspec

from gantry.remoting.headers.fields import Header, Int32, Int64

WAITING_MAX = 256
"""The maximum number of messages in one response."""


class RecallMessageHeader(Header):
    """370: recall a message that waits for its time."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponseHeader(Header):
    """The id of the recalled message."""

    msg_id: str
    msg_region: str | None = msgspec.field(name="MSG_REGION", default=None)


class WaitingMessagesHeader(Header):
    """900010: the place to start at, the maximum number of messages, and the topic; all topics if there is none.

    Attributes:
        second: The second (ms / 1000) to start at.
        position: The place within the second, from the last response; None for its beginning.
        max_messages: The maximum number of messages.
        topic: The topic.
    """

    second: Int64
    position: Int64 | None = None
    max_messages: Int32 | None = None
    topic: str | None = None
