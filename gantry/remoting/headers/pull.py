"""Pulling: 11 and 361."""

from gantry.remoting.headers.fields import Header, Int32, Int64


class PullMessageHeader(Header):
    """The queue, the first offset, the limits, and the longest time to hold the pull. sys_flag: PullSysFlag bits."""

    consumer_group: str
    topic: str
    queue_id: Int32
    queue_offset: Int64
    max_msg_nums: Int32
    sys_flag: Int32
    commit_offset: Int64
    suspend_timeout_millis: Int64
    sub_version: Int64
    subscription: str | None = None
    expression_type: str | None = None
    max_msg_bytes: Int32 | None = None
    request_source: Int32 | None = None
    proxy_froward_client_id: str | None = None  # This is the spelling on the wire.
    gantry_max_msg_nums: Int32 | None = None
    """Gantry's own field: a number of messages that may exceed the broker's limit. The limit in bytes still applies."""
    gantry_reset_epoch: Int64 | None = None
    """Gantry's own field: the epoch of the latest reset that the consumer knows; 0 if it knows of none."""


class PullMessageResponseHeader(Header):
    """The offset to continue at, and the offsets of the queue."""

    suggest_which_broker_id: Int64
    next_begin_offset: Int64
    min_offset: Int64
    max_offset: Int64
    offset_delta: Int64 | None = None
    topic_sys_flag: Int32 | None = None
    group_sys_flag: Int32 | None = None
    forbidden_type: Int32 | None = None
    gantry_reset_epoch: Int64 | None = None
    """Gantry's own field, in a response with 21: the epoch of the reset that moved the offset."""

    def to_ext(self) -> dict[str, str]:
        """Return the ext fields. It does not use the generic code, for speed: every pull calls it."""
        ext = {
            "suggestWhichBrokerId": str(self.suggest_which_broker_id),
            "nextBeginOffset": str(self.next_begin_offset),
            "minOffset": str(self.min_offset),
            "maxOffset": str(self.max_offset),
        }
        if self.offset_delta is not None:
            ext["offsetDelta"] = str(self.offset_delta)
        if self.topic_sys_flag is not None:
            ext["topicSysFlag"] = str(self.topic_sys_flag)
        if self.group_sys_flag is not None:
            ext["groupSysFlag"] = str(self.group_sys_flag)
        if self.forbidden_type is not None:
            ext["forbiddenType"] = str(self.forbidden_type)
        if self.gantry_reset_epoch is not None:
            ext["gantryResetEpoch"] = str(self.gantry_reset_epoch)
        return ext
