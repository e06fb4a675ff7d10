"""Consumer groups on a broker: 207, 352 and 208."""

from gantry.remoting.headers.fields import Header


class DeleteSubscriptionGroupHeader(Header):
    """207: forget a group, with `clean_offset` its committed offsets too; tools of 4.9 call that `remove_offset`."""

    group_name: str
    clean_offset: bool | None = None
    remove_offset: bool | None = None


class GetSubscriptionGroupConfigHeader(Header):
    """352: one group's configuration."""

    group: str


class GetConsumeStatsHeader(Header):
    """208: a group's offsets against its queues'. topic_list: topics separated by `;` (5.x)."""

    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None
