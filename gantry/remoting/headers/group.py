"""Consumer groups on a broker: 36, 207, 352 and 208."""

from typing import Final

from gantry.remoting.headers.fields import Header, Int32, Int64

GANTRY_FAILURES_MAX: Final = 1_000_000


class ConsumerSendMsgBackHeader(Header):
    """36: send back a message that could not be processed.

    offset: the physical offset of the message. delay_level: 0 means that the broker decides, a negative level makes a
    dead letter of the message. origin_msg_id, origin_topic: for the broker's log only. max_reconsume_times: the limit
    of failed deliveries; None means that of the group. gantry_delay_ms: the delay in ms, instead of a level.
    gantry_failures: the number of failed deliveries of this record, if the consumer tried it again in place; None: 1. Only
    Gantry's brokers read these two (docs/formats/remoting.md).
    """

    offset: Int64
    group: str
    delay_level: Int32
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: Int32 | None = None
    gantry_delay_ms: Int64 | None = None
    gantry_failures: Int32 | None = None


class DeleteSubscriptionGroupHeader(Header):
    """207: delete a group, and with `clean_offset` its committed offsets too. Tools of 4.9 send `remove_offset`."""

    group_name: str
    clean_offset: bool | None = None
    remove_offset: bool | None = None


class GetSubscriptionGroupConfigHeader(Header):
    """352: get the configuration of a group."""

    group: str


class GetConsumeStatsHeader(Header):
    """208: get the offsets of a group and of its queues. topic_list: topics, separated by `;` (5.x)."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None
