"""Consumer groups on a broker: 207, 352 and 208."""

from gantry.remoting.headers.fields import Header


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
