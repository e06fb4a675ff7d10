"""Topics on a broker: 17, 215, 351, 202 and 300."""

from gantry.remoting.headers.fields import Header, Int32


class CreateTopicHeader(Header):
    """17: create or change a topic. attributes: a list of `+key=value` and `-key`, separated by commas."""

    topic: str
    default_topic: str
    read_queue_nums: Int32
    write_queue_nums: Int32
    perm: Int32
    topic_filter_type: str
    topic_sys_flag: Int32 | None = None
    order: bool | None = None
    attributes: str | None = None
    force: bool | None = None


class DeleteTopicHeader(Header):
    """215: delete a topic."""

    topic: str


class GetTopicConfigHeader(Header):
    """351: get the configuration of a topic."""

    topic: str


class GetTopicStatsHeader(Header):
    """202: get the offsets and the last store times of the queues of a topic."""

    topic: str


class QueryTopicConsumeByWhoHeader(Header):
    """300: find the groups that consume a topic."""

    topic: str


class ShrinkTopicHeader(Header):
    """900034: close the queues from `queue_nums` on for readers; with `dry_run`, only tell what prevents it."""

    topic: str
    queue_nums: Int32
    dry_run: bool | None = None
