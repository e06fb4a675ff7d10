"""Fast failure: decides when the broker replies "busy" at once, so that a client does not wait for its time-out.

After a refusal, the client knows that nothing was stored. The remark begins with a word that RocketMQ's clients know:

    remark                 overload                                                limit
    [REJECTREQUEST]        one flush of the disk takes longer than                 os_page_cache_busy_time_out_mills
    [OVERLOAD]             messages that wait for a flush · pulls that are held    send_/pull_thread_pool_queue_capacity
    [PCBUSY_CLEAN_QUEUE]   the oldest message that waits for a flush waits longer  os_page_cache_busy_time_out_mills
    [TIMEOUT_CLEAN_QUEUE]  the loop is late all the time, and by more than         wait_time_mills_in_send_/pull_queue

One stall (a paused machine, a big query) is not overload. Serving the requests that it delayed takes less time than
refusing them and receiving them again. So the lag of the loop is the minimum over a whole second, in the way CoDel
measures queueing delay.

Pure: times are arguments.
"""

from collections import deque

from services.broker.settings import LiveSettings

TICK_INTERVAL_MS = 100
_LAG_SAMPLES = 10

REJECT = "[REJECTREQUEST]system busy, start flow control for a while"


class LoopLag:
    """The lag of the loop: the smallest delay of its timer during the last second.

    Attributes:
        lag_ms: The smallest delay of the last _LAG_SAMPLES ticks; 0 before that many have fired.
        lag_max_ms: The largest delay since the start.
    """

    __slots__ = ("_late_ms", "_ticked_at_ms", "lag_max_ms", "lag_ms")

    def __init__(self) -> None:
        self._late_ms: deque[int] = deque(maxlen=_LAG_SAMPLES)
        self._ticked_at_ms: int | None = None
        self.lag_ms = 0
        self.lag_max_ms = 0

    def tick(self, now_ms: int) -> None:
        """Record that the timer of TICK_INTERVAL_MS has fired."""
        if self._ticked_at_ms is not None:
            late_ms = max(0, now_ms - self._ticked_at_ms - TICK_INTERVAL_MS)
            self._late_ms.append(late_ms)
            self.lag_max_ms = max(self.lag_max_ms, late_ms)
            self.lag_ms = min(self._late_ms) if len(self._late_ms) == _LAG_SAMPLES else 0
        self._ticked_at_ms = now_ms


class Overload:
    """Decides whether the broker has room for one more send or held pull."""

    __slots__ = ("_lag", "_live_settings", "refused_pulls", "refused_sends")

    def __init__(self, live_settings: LiveSettings, lag: LoopLag) -> None:
        self._live_settings = live_settings
        self._lag = lag
        self.refused_sends = 0
        self.refused_pulls = 0

    def send_refusal(self, *, waiting_count: int, oldest_wait_ms: int, flush_ms: int) -> str | None:
        """Return the remark that refuses a send, or None.

        The caller counts the refusals, because it may ask once for many sends.

        Args:
            waiting_count: Number of messages that are appended but not flushed, and whose send waits for the flush.
            oldest_wait_ms: Waiting time of the oldest of them; 0 if there is none.
            flush_ms: Time since the current flush began; 0 if none runs.
        """
        settings = self._live_settings.current
        remark = None
        if waiting_count >= settings.send_thread_pool_queue_capacity:
            remark = (
                f"[OVERLOAD]system busy, start flow control for a while: {waiting_count} messages wait for the disk, "
                f"the limit is {settings.send_thread_pool_queue_capacity}"
            )
        elif not settings.broker_fast_failure_enable:
            return None
        elif flush_ms > settings.os_page_cache_busy_time_out_mills:
            remark = f"{REJECT}: one flush has been running for {flush_ms} ms"
        elif oldest_wait_ms > settings.os_page_cache_busy_time_out_mills:
            remark = (
                f"[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
                f"{oldest_wait_ms} ms, size of queue: {waiting_count}"
            )
        elif self._lag.lag_ms > settings.wait_time_mills_in_send_queue:
            remark = (
                f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
                f"{self._lag.lag_ms} ms, size of queue: {waiting_count}"
            )
        return remark

    def pull_refusal(self, *, held_count: int) -> str | None:
        """Return the remark that refuses to hold one more pull, or None."""
        settings = self._live_settings.current
        remark = None
        if held_count >= settings.pull_thread_pool_queue_capacity:
            remark = (
                f"[OVERLOAD]system busy, start flow control for a while: {held_count} pulls are held, "
                f"the limit is {settings.pull_thread_pool_queue_capacity}"
            )
        elif settings.broker_fast_failure_enable and self._lag.lag_ms > settings.wait_time_mills_in_pull_queue:
            remark = (
                f"[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
                f"{self._lag.lag_ms} ms, size of queue: {held_count}"
            )
        if remark is not None:
            self.refused_pulls += 1
        return remark
