"""Pop: 200050 to 200055, and the acknowledgement of single messages. 200151, 400 and 401 have bodies instead."""

from gantry.remoting.headers.fields import Header, Int32, Int64

ANY_QUEUE = -1
"""The queue id of a request for any readable queue of the topic."""
FROM_MIN, FROM_MAX = 0, 1
"""Values of `init_mode`: a group without an offset starts at the first readable message, or after the last one."""


class PopMessageHeader(Header):
    """200050: take up to `max_msg_nums` messages, and hide them from others for `invisible_time` ms.

    Attributes:
        queue_id: The queue; ANY_QUEUE for all readable queues.
        poll_time: Time (ms) for which the broker may hold the request if there is no message.
        born_time: Time (ms) of the client's clock when it sent the request.
        init_mode: FROM_MIN or FROM_MAX.
        exp_type: Type of the expression: TAG or SQL92.
        exp: The expression; all messages without one.
        order: Whether a queue gives no further messages before all that it gave are acknowledged.
        attempt_id: Name of the request; another one of this name gets the same messages again. RocketMQ's broker regards
            it in ordered requests only.
        gantry_replay: Whether only the messages of an earlier request of this name are wanted. Gantry's own field.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: Int64
    poll_time: Int64
    born_time: Int64
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None
    gantry_replay: bool | None = None


class PopMessageResponseHeader(Header):
    """The response to 200050 and 200052: the parts of the receipts (gantry.model.popreceipt).

    Attributes:
        pop_time: Time (ms) of the pop, by the broker's clock.
        rest_num: Number of messages that are left in the queues that the broker looked at.
    """

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32
    rest_num: Int64
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessageHeader(Header):
    """200051: acknowledge the message at a queue offset. `extra_info` is its receipt."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64


class ChangeInvisibleTimeHeader(Header):
    """200053: hide a popped message for `invisible_time` ms from now on. The response has the parts of a new receipt."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: Int64
    invisible_time: Int64


class ChangeInvisibleTimeResponseHeader(Header):
    """The response to 200053: the parts of the new receipt, whose start offset is the offset of the message."""

    pop_time: Int64
    invisible_time: Int64
    revive_qid: Int32


class PeekMessageHeader(Header):
    """200052: read the messages that a pop would return, without taking them."""

    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str


class NotificationHeader(Header):
    """200054: ask whether there is a message for a group, and wait up to `poll_time` ms for one."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: Int64
    born_time: Int64
    order: bool | None = None
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponseHeader(Header):
    """Whether there is a message, and whether too many requests wait for the broker to hold one more."""

    has_msg: bool
    polling_full: bool | None = None


class PollingInfoHeader(Header):
    """200055: ask how many pop requests of a group wait."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(Header):
    """The number of pop requests that wait."""

    polling_num: Int32
