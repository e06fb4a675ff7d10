"""Requests about messages that wait for a set time: 370 recalls one; 900010 and 900011, Gantry's own, list and move them."""

import msgspec

from gantry.remoting.headers.fields import Header, Int32, Int64

WAITING_MAX = 256
"""The maximum number of messages in one response."""

RECALLED, GONE, UNKNOWN = "recalled", "gone", "unknown"
"""The states of a message after a recall: it will not be delivered; it was delivered or recalled before, or is about to
be delivered; or the recall may not be on the disk."""


class RecallMessageHeader(Header):
    """370: recall a message that waits for its time."""

    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponseHeader(Header):
    """The answer to 370 and 900011.

    Attributes:
        msg_id: The id of the message.
        msg_region: The region of the broker.
        gantry_outcome: RECALLED, GONE or UNKNOWN. Only Gantry's brokers say it.
        recall_handle: 900011: the new handle; None if the new time was past, so that the message was delivered at once.
    """

    msg_id: str
    msg_region: str | None = msgspec.field(name="MSG_REGION", default=None)
    gantry_outcome: str | None = None
    recall_handle: str | None = None


class RescheduleMessageHeader(Header):
    """900011: give a message that waits another time, `deliver_at` (wall ms)."""

    topic: str
    recall_handle: str
    deliver_at: Int64
    producer_group: str | None = None


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
