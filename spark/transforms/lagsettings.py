"""All thresholds of the lag report, each with its reason."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LagSettings:
    """The thresholds that turn numbers into a verdict. Times are in seconds, counts in messages."""

    window_s: float = 600.0
    """The period before the report for which rates are computed. It has forty samples. It is so long that commits in
    steps of 5 s do not show, and so short that a person who watches the report soon sees a change."""
    events_s: float = 900.0
    """The shortest period before the report in which events of offsets count. It is the time between two scheduled
    reports, so no rewind is missed between two reports."""
    pieces: int = 5
    """The number of equal pieces of the window. With two minutes each, the fastest and the slowest piece depend on the
    load, not on the moment at which a client committed. The interval of the drain ETA uses quarters of pieces."""
    drain_z: float = 1.7
    """The number of standard deviations from the drain ETA to each end of its interval. The interval would contain 91
    of 100 ends if the variance of the rates were known. The variance is estimated from few values, so the interval is
    made wider."""
    stretch_min_s: float = 20.0
    """The shortest length of the stretches whose rates the interval of the drain ETA compares, if there are five of
    them. Two minutes after a group came back, a quarter has 6 s, which is less than the time that a rate lasts."""
    drain_messages_min: float = 1.0
    """The smallest net drain within the window from which there is a drain ETA. Less than a message is the rounding of
    offsets that were read at slightly different moments."""
    drain_eta_max_s: float = 2_592_000.0
    """The largest drain ETA: 30 days. A window of ten minutes does not show rates that last for longer, and messages are
    deleted before that."""
    reading_gap_min_s: float = 10.0
    """The shortest time between the last sample and the report's own reading of the offsets for which that reading
    counts for rates. A broker with thousands of queues takes some seconds to answer, which would be a large part of a
    shorter interval."""
    clock_skew_max_s: float = 1.0
    """The largest difference between a broker's clock and the reader's for which ages are computed by the reader's
    clock. The time of an answer is subtracted already, so the difference is the error that NTP leaves."""
    late_s: float = 10.0
    """The longest time from the answer of a topic's first broker to that of another one whose numbers are added to it.
    It is less than the interval of samples, so a sum belongs to one moment as far as a chart can show. It is more than
    the difference that an unequal number of topics causes."""
    stall_min_s: float = 120.0
    """The time for which commits must stand still, with unconsumed messages all the time, before a group counts as
    stalled. Clients commit every 5 s. Two minutes are longer than a rebalance or a consumer's pause for garbage
    collection."""
    moving_s: float = 30.0
    """If no client was ever connected for a group, the group counts as consumed if it committed within this time,
    because a group can be consumed over HTTP without a connection. It is the time of two samples."""
    lagging_s: float = 300.0
    """The age of the oldest unconsumed message from which a group is late, whatever its rates. Five minutes is a common
    threshold of alarms."""
    growing_messages_min: int = 1_000
    """The smallest lag that counts as growing. A client holds up to 1,000 messages of a queue before it commits any of
    them (RocketMQ's pullThresholdForQueue)."""
    hot_messages_min: int = 1_000
    """The smallest lag of a topic whose distribution counts, for the same reason."""
    hot_share_min: float = 0.8
    """The share of a topic's lag that makes a queue hot. The other queues share the remaining fifth, so they are near
    empty."""
    retry_messages_min: int = 20
    """The smallest number of returned messages within the window that counts. Fewer are ordinary, occasional
    failures."""
    retry_share_min: float = 0.2
    """The share of consumed messages that fail from which the problem is the consumer, and no longer single
    messages."""
    rewind_messages_min: int = 32
    """The smallest rewind that counts. A consumer that takes over a queue repeats up to one pull of RocketMQ's default
    size."""
    jump_messages_min: int = 1_000
    """A smaller step of a commit always counts as consumption: a client holds up to 1,000 messages of a queue."""
    jump_rate_min: float = 50_000.0
    """The rate of one queue, in messages per second, above which a commit was set and not consumed. A consumer with one
    thread consumes some thousands."""
    retention_soon_s: float = 21_600.0
    """The time before their deletion at which unconsumed messages are at risk. Six hours are enough to alert a person
    before the hour of deletion, four in the morning. It counts only if more than half of the retention time has passed:
    with a retention of one hour, all messages are deleted "soon"."""
    top_tags_max: int = 5
    """The number of tags shown for a queue or topic."""

    def check(self) -> None:
        """Raise ValueError with "field: reason" if a value is invalid."""
        for name in (
            "window_s",
            "pieces",
            "drain_z",
            "stretch_min_s",
            "top_tags_max",
            "lagging_s",
            "stall_min_s",
            "moving_s",
            "retention_soon_s",
            "events_s",
            "drain_messages_min",
            "drain_eta_max_s",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        for name in ("hot_share_min", "retry_share_min"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}: {getattr(self, name)} is no share: it must be above 0 and at most 1")
        for name in ("reading_gap_min_s", "clock_skew_max_s", "late_s", "growing_messages_min", "hot_messages_min"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below 0")
        for name in ("retry_messages_min", "rewind_messages_min", "jump_messages_min", "jump_rate_min"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not at least 1")
        if self.stall_min_s > self.window_s:
            raise ValueError(f"stall_min_s: {self.stall_min_s} is longer than the window of {self.window_s}")
