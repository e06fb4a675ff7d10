"""The figures of a running broker that request 28 returns, under RocketMQ's names.

`mqadmin clusterList` and `brokerStatus` read them. Figures without a meaning here (timers, transient buffers) are left
out. settings.py defines the meaning of a "thread pool's queue".
"""

from collections.abc import Callable, Mapping

from gantry.remoting.codes import ANNOUNCED_VERSION, version_name
from gantry.runtime.clock import Clock
from gantry.runtime.files import DiskUsage
from services.broker.durabilitywaiters import DurabilityWaiters
from services.broker.longpolling import LongPolling
from services.broker.overload import LoopLag
from services.broker.settings import LiveSettings
from services.broker.stats import BrokerStats, DailyTotals, Rates
from services.broker.store.results import StoreState

RATES = ("put", "get_found", "get_missed", "transferred")

_KIB = 1024
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class RuntimeInfo:
    """Collects the figures on request."""

    def __init__(
        self,
        *,
        stats: BrokerStats,
        waiters: DurabilityWaiters,
        long_polling: LongPolling,
        lag: LoopLag,
        live_settings: LiveSettings,
        clock: Clock,
        root_dir: str,
        state: Callable[[], StoreState],
        earliest_stored_at: Callable[[], int | None],
        disk_usage: Callable[[], DiskUsage],
        connections_max: int,
    ) -> None:
        self._stats = stats
        self._waiters = waiters
        self._long_polling = long_polling
        self._lag = lag
        self._live_settings = live_settings
        self._clock = clock
        self._root_dir = root_dir
        self._state = state
        self._earliest_stored_at = earliest_stored_at
        self._disk_usage = disk_usage
        self._connections_max = connections_max
        self._booted_at_ms = clock.now_ms()
        self.rates = Rates(RATES)
        self.puts = DailyTotals()
        self.gets = DailyTotals()

    def sample(self) -> None:
        """Take one sample; a timer calls this every second."""
        put, got = self._stats.totals()
        values = (put.messages, self._stats.get_found, self._stats.get_missed, got.messages)
        self.rates.sample(self._clock.now_ms(), values)

    def midnight(self) -> None:
        """Note the start of a new day."""
        put, got = self._stats.totals()
        self.puts.midnight(put.messages)
        self.gets.midnight(got.messages)

    def collect(self) -> dict[str, str]:
        """Return all figures."""
        return {
            **self._identity(),
            **self._counts(),
            **self._store(),
            **self._queues(),
        }

    def _identity(self) -> dict[str, str]:
        settings = self._live_settings.current
        now_ms = self._clock.now_ms()
        return {
            "brokerActive": "true",
            "brokerVersion": str(ANNOUNCED_VERSION),
            "brokerVersionDesc": version_name(ANNOUNCED_VERSION),
            "bootTimestamp": str(self._booted_at_ms),
            "runtime": _span(now_ms - self._booted_at_ms),
            "startAcceptSendRequestTimeStamp": str(settings.start_accept_send_request_time_stamp),
        }

    def _counts(self) -> dict[str, str]:
        put, got = self._stats.totals()
        latency = self._waiters.latency
        rates = self.rates
        return {
            "msgPutTotalYesterdayMorning": str(self.puts.yesterday_morning),
            "msgPutTotalTodayMorning": str(self.puts.today_morning),
            "msgPutTotalTodayNow": str(put.messages),
            "msgGetTotalYesterdayMorning": str(self.gets.yesterday_morning),
            "msgGetTotalTodayMorning": str(self.gets.today_morning),
            "msgGetTotalTodayNow": str(got.messages),
            "putTps": rates.text("put"),
            "getFoundTps": rates.text("get_found"),
            "getMissTps": rates.text("get_missed"),
            "getTotalTps": rates.sum_text(("get_found", "get_missed")),
            "getTransferredTps": rates.text("transferred"),
            "putMessageTimesTotal": str(put.calls),
            "putMessageFailedTimes": str(self._stats.put_failed),
            "putMessageSizeTotal": str(put.size_bytes),
            "putMessageAverageSize": str(put.size_bytes / put.messages if put.messages else 0.0),
            "putMessageDistributeTime": latency.text(),
            "putMessageEntireTimeMax": str(latency.max_ms),
            "putLatency99": f"{latency.quantile_ms(0.99):.2f}",
            "putLatency999": f"{latency.quantile_ms(0.999):.2f}",
        }

    def _store(self) -> dict[str, str]:
        state = self._state()
        usage = self._disk_usage()
        ratio = f"{state.disk_percent / 100:.2f}"
        earliest_ms = self._earliest_stored_at()
        return {
            "commitLogMinOffset": str(state.min_physical_offset),
            "commitLogMaxOffset": str(state.max_physical_offset),
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{self._root_dir}/commitlog": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {_size(usage.used + usage.usable)}, Free : {_size(usage.usable)}.",
            "dispatchBehindBytes": str(state.dispatch_behind_bytes),
            "remainHowManyDataToFlush": _size(state.max_physical_offset - state.flushed_offset),
            "earliestMessageTimeStamp": str(-1 if earliest_ms is None else earliest_ms),
            "pageCacheLockTimeMills": str(self._waiters.oldest_wait_ms()),
            # Gantry's own figures. They show damage that RocketMQ would cut off without a report.
            "gantryFlushBehindBytes": str(state.max_physical_offset - state.flushed_offset),
            "gantryStoreWritable": str(state.writable).lower(),
            "gantryStoreReason": state.reason,
            "gantryLostBytes": str(state.lost_bytes),
            "gantryDamagedReads": str(state.damaged_reads),
            "gantryConnectionsMax": str(self._connections_max),
            "gantryBrokerPermission": str(self._live_settings.current.broker_permission),
        }

    def _queues(self) -> dict[str, str]:
        settings = self._live_settings.current
        return {
            "sendThreadPoolQueueSize": str(self._waiters.waiting_count),
            "sendThreadPoolQueueCapacity": str(settings.send_thread_pool_queue_capacity),
            "sendThreadPoolQueueHeadWaitTimeMills": str(self._waiters.oldest_wait_ms()),
            "pullThreadPoolQueueSize": str(self._long_polling.count),
            "pullThreadPoolQueueCapacity": str(settings.pull_thread_pool_queue_capacity),
            "pullThreadPoolQueueHeadWaitTimeMills": str(self._lag.lag_ms),
            "queryThreadPoolQueueSize": "0",
            "queryThreadPoolQueueCapacity": str(settings.pull_thread_pool_queue_capacity),
            "queryThreadPoolQueueHeadWaitTimeMills": str(self._lag.lag_ms),
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": "0",
        }


def schedule_offsets(delivered: Mapping[int, int], max_offset: Callable[[int], int]) -> dict[str, str]:
    """Return the delivery progress of each delay level as `delivered,max`."""
    return {
        f"scheduleMessageOffset_{level}": f"{offset},{max_offset(level - 1)}" for level, offset in delivered.items()
    }


def _span(elapsed_ms: int) -> str:
    minutes, seconds = divmod(elapsed_ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _size(size_bytes: int) -> str:
    value = float(size_bytes)
    for unit in _UNITS:
        if value < _KIB or unit == _UNITS[-1]:
            return f"{size_bytes} B" if unit == "B" else f"{value:.1f} {unit}"
        value /= _KIB
    raise AssertionError("the last unit takes everything")
