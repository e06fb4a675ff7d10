"""Every threshold of the lag report, each with its reason."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LagSettings:
    """When numbers become a verdict. Lengths of time in seconds, counts in messages."""

    window_s: float = 600.0
    """How far back rates look. Forty samples: long enough that commits in steps of 5 s don't show, short enough that a
    change shows within the time in which somebody is looking."""
    events_s: float = 900.0
    """How far back it matters what happened to offsets, at least: as long as there is between two scheduled reports, so
    that no rewind lies in between unseen."""
    pieces: int = 5
    """Into how many equal pieces the window is cut. Two minutes each: the fastest and the slowest are then about load, not
    about when a client happened to commit. The interval of the drain ETA looks at their quarters."""
    drain_z: float = 1.7
    """How many standard deviations the interval of the drain ETA reaches to each side. It would hold 91 of 100 ends if it were known how
    much rates go up and down. That has to be found out from few values, for which it is made wider."""
    stretch_min_s: float = 20.0
    """The interval of the drain ETA compares the rates of neighbouring stretches of time, which are at least this long if there are five of
    them. Two minutes after a group came back a quarter has 6 s, which is less than the time that a rate lasts."""
    reading_gap_min_s: float = 10.0
    """The report's own reading of the offsets counts for rates if the last sample is at least that old. A broker with
    thousands of queues gives its numbers within some seconds: over a shorter interval that is a large part of the rate."""
    clock_skew_max_s: float = 1.0
    """By how much a broker's clock may differ from the reader's before ages are taken from the broker's. The time that
    an answer takes is no skew and already taken off, so this is only what NTP leaves."""
    late_s: float = 10.0
    """How long after a topic's first broker another one may give its numbers before they are not added up any more.
    Less than the interval of samples, so that a sum is of one moment as far as a chart can show; more than an unequal
    number of topics makes of it."""
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
    jump_messages_min: int = 1_000
    """A commit that goes forward by less at once is taken for consumed: a client holds up to 1,000 messages of a queue."""
    jump_rate_min: float = 50_000.0
    """Messages a second of one queue that nobody consumes and commits: a commit that went faster was set. A consumer of one
    thread gets through some thousands."""
    retention_soon_s: float = 21_600.0
    """Messages that nobody consumes and that are deleted within six hours: time to wake somebody before the hour of
    deletion, four in the morning. Only where more than half of their time has passed: with a retention of an hour
    everything is deleted "soon"."""
    top_tags_max: int = 5
    """Tags shown of a queue or topic."""

    def check(self) -> None:
        """Raise ValueError with "field: reason" where a value can't be meant."""
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
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0")
        for name in ("hot_share_min", "retry_share_min"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name}: {getattr(self, name)} is no share, those lie between 0 and 1")
        for name in ("reading_gap_min_s", "clock_skew_max_s", "late_s", "growing_messages_min", "hot_messages_min"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is below 0")
        for name in ("retry_messages_min", "rewind_messages_min", "jump_messages_min", "jump_rate_min"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is not at least 1")
        if self.stall_min_s > self.window_s:
            raise ValueError(f"stall_min_s: {self.stall_min_s} is longer than the window of {self.window_s}")
