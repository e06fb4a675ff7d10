"""Every threshold of the lag report, each with its reason."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LagSettings:
    """When numbers become a verdict. Lengths of time in seconds, counts in messages."""

    window_s: float = 600.0
    """How far back rates look. Forty samples: long enough that commits in steps of 5 s don't show, short enough that a
    change shows within the time in which somebody is looking."""
    pieces: int = 5
    """Into how many equal pieces the window is cut for the interval of the drain ETA. Two minutes each: the fastest and
    the slowest are then about load, not about when a client happened to commit."""
    reading_gap_min_s: float = 10.0
    """The report's own reading of the offsets counts for rates if the last sample is at least that old. It is made some
    time after `as_of`: over a shorter interval that delay would be a large part of the rate."""
    clock_skew_max_s: float = 60.0
    """By how much a broker's clock may differ from `as_of` before ages are taken from the broker's. Looking at
    thousands of queues takes up to a minute, and that is no skew."""
    stall_min_s: float = 120.0
    """How long commits have to stand still, with something to consume all the time, before a group counts as stalled.
    Clients commit every 5 s; two minutes outlast a rebalance and a consumer's pause for garbage."""
    moving_s: float = 30.0
    """Where nobody is connected, a group that never was counts as consumed if it committed within that time: over HTTP
    one can read and commit without a connection. Two samples' time."""
    lagging_s: float = 300.0
    """Older than this is late whatever the rates say: an hour's worth of alarms in most tools begins at five minutes."""
    growing_messages_min: int = 1_000
    """A lag that grows is not called LAGGING below this: a client holds up to 1,000 messages of a queue before it
    commits any of them (RocketMQ's pullThresholdForQueue)."""
    hot_messages_min: int = 1_000
    """A topic's lag from which its distribution says something, for the same reason."""
    hot_share_min: float = 0.8
    """The share of a topic's lag that makes a queue hot. The others then share a fifth, so they are near empty."""
    retry_messages_min: int = 20
    """So many messages must have come back within the window: less is the ordinary failure here and there."""
    retry_share_min: float = 0.2
    """One message in five of those consumed fails: that is no longer the messages, that is the consumer."""
    rewind_messages_min: int = 32
    """A smaller step back is what a consumer repeats that takes over a queue: one pull of RocketMQ's default size."""
    retention_soon_s: float = 21_600.0
    """Messages that nobody consumes and that are deleted within six hours: time to wake somebody before the hour of
    deletion, four in the morning. Only where more than half of their time has passed: with a retention of an hour
    everything is deleted "soon"."""
    top_tags_max: int = 5
    """Tags shown of a queue or topic."""

    def check(self) -> None:
        """Raise ValueError with "field: reason" where a value can't be meant."""
        for name in ("window_s", "pieces", "top_tags_max", "lagging_s", "stall_min_s", "moving_s", "retention_soon_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        for name in ("hot_share_min", "retry_share_min"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}: {getattr(self, name)} is no share, those lie between 0 and 1")
        for name in ("reading_gap_min_s", "clock_skew_max_s", "growing_messages_min", "hot_messages_min"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below 0")
        for name in ("retry_messages_min", "rewind_messages_min"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not at least 1")
        if self.stall_min_s > self.window_s:
            raise ValueError(f"stall_min_s: {self.stall_min_s} is longer than the window of {self.window_s}")
