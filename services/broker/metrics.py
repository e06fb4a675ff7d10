"""The broker's metrics for Prometheus, read from its counters on each request, under RocketMQ's names if it has them.

Source: RocketMQ 5.x BrokerMetricsManager and DefaultStoreMetricsManager (names and labels).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gantry.model.names import is_retry_topic, is_system_group, is_system_topic
from gantry.remoting.aio.limits import Counters
from services.broker.coldreader import ColdReader
from services.broker.durabilitywaiters import DurabilityWaiters
from services.broker.identity import BrokerIdentity
from services.broker.latency import LATENCY_BOUNDS_MS, Latency
from services.broker.longpolling import LongPolling
from services.broker.overload import LoopLag, Overload
from services.broker.registration import Registration
from services.broker.registry.consumers import ConsumerTable
from services.broker.registry.groups import GroupTable
from services.broker.registry.persistence import Persistence
from services.broker.registry.producers import ProducerTable
from services.broker.registry.topics import TopicTable
from services.broker.stats import BrokerStats
from services.broker.store.results import StoreState

DIFFERING_GROUPS_NAMED_MAX: Final = 100
"""Largest number of groups that the metric of differing groups names."""

_BASE = ("cluster", "node_type", "node_id")


class Figure(NamedTuple):
    """A metric of a feature, without labels of its own."""

    name: str
    text: str
    value: Callable[[], float]
    is_counter: bool = False


class BrokerCollector(Collector):
    """Reads counters and the sizes of tables when Prometheus asks.

    Concurrency: the metrics server's threads call `collect`. It reads numbers, and copies each table before it
    iterates.
    """

    def __init__(
        self,
        *,
        identity: BrokerIdentity,
        stats: BrokerStats,
        waiters: DurabilityWaiters,
        long_polling: LongPolling,
        cold: ColdReader,
        overload: Overload,
        lag: LoopLag,
        topics: TopicTable,
        groups: GroupTable,
        producers: ProducerTable,
        consumers: ConsumerTable,
        registration: Registration,
        persistence: Persistence,
        refused_commits: Callable[[], int],
        state: Callable[[], StoreState],
        counters: Counters,
        connections_max: int,
        figures: Sequence[Figure],
    ) -> None:
        self._identity = identity
        self._stats = stats
        self._waiters = waiters
        self._long_polling = long_polling
        self._cold = cold
        self._overload = overload
        self._lag = lag
        self._topics = topics
        self._groups = groups
        self._producers = producers
        self._consumers = consumers
        self._registration = registration
        self._persistence = persistence
        self._refused_commits = refused_commits
        self._state = state
        self._counters = counters
        self._connections_max = connections_max
        self._figures = figures
        self._base = [identity.cluster, "broker", identity.name]

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        yield from self._traffic()
        yield from self._tables()
        yield from self._store()
        yield from self._health()
        for name, text, value, is_counter in self._figures:
            yield self._counter(name, text, value()) if is_counter else self._gauge(name, text, value())

    def _traffic(self) -> Iterator[Metric]:
        identity = self._identity
        put_labels = [*_BASE, "topic", "is_system"]
        messages_in = CounterMetricFamily("rocketmq_messages_in", "Messages stored.", labels=put_labels)
        bytes_in = CounterMetricFamily("rocketmq_throughput_in", "Bytes of records stored.", labels=put_labels)
        for topic, flow in self._stats.put_items():
            system = str(is_system_topic(topic, identity.cluster, identity.name)).lower()
            messages_in.add_metric([*self._base, topic, system], flow.messages)
            bytes_in.add_metric([*self._base, topic, system], flow.size_bytes)
        yield from (messages_in, bytes_in)
        get_labels = [*_BASE, "topic", "consumer_group", "is_system", "is_retry"]
        messages_out = CounterMetricFamily("rocketmq_messages_out", "Messages given to groups.", labels=get_labels)
        bytes_out = CounterMetricFamily("rocketmq_throughput_out", "Bytes of records given.", labels=get_labels)
        for (topic, group), flow in self._stats.get_items():
            system = str(is_system_topic(topic, identity.cluster, identity.name) or is_system_group(group)).lower()
            labels = [*self._base, topic, group, system, str(is_retry_topic(topic)).lower()]
            messages_out.add_metric(labels, flow.messages)
            bytes_out.add_metric(labels, flow.size_bytes)
        yield from (messages_out, bytes_out)
        yield self._histogram(
            "gantry_broker_put_latency_milliseconds",
            "From append to answer, of sends that wait for the disk.",
            self._waiters.latency,
        )
        yield self._histogram(
            "gantry_broker_flush_latency_milliseconds",
            "From the request of a flush to its report.",
            self._waiters.flush_latency,
        )

    def _tables(self) -> Iterator[Metric]:
        consumers = sum(len(group.members) for group in list(self._consumers.groups()))
        producers = sum(len(members) for members in self._producers.groups().values())
        yield self._gauge("rocketmq_topic_number", "Topics.", len(self._topics))
        yield self._gauge("rocketmq_consumer_group_number", "Consumer groups.", len(self._groups))
        yield self._gauge("rocketmq_producer_connections", "Producer instances.", producers)
        yield self._gauge("rocketmq_consumer_connections", "Consumer instances.", consumers)
        yield from self._differing_groups()
        yield self._gauge("gantry_broker_held_pulls", "Pulls that wait for a message.", self._long_polling.count)
        yield self._gauge("gantry_broker_waiting_sends", "Sends that wait for the disk.", self._waiters.waiting_count)
        watermark = GaugeMetricFamily(
            "rocketmq_processor_watermark", "Requests that wait.", labels=[*_BASE, "processor"]
        )
        watermark.add_metric([*self._base, "send"], self._waiters.waiting_count)
        watermark.add_metric([*self._base, "pull"], self._long_polling.count)
        yield watermark

    def _store(self) -> Iterator[Metric]:
        state = self._state()
        size = state.max_physical_offset - state.min_physical_offset
        yield self._gauge("rocketmq_storage_size", "Bytes of the CommitLog.", size)
        behind = state.max_physical_offset - state.flushed_offset
        yield self._gauge("rocketmq_storage_flush_behind_bytes", "Bytes not yet on the disk.", behind)
        yield self._gauge(
            "rocketmq_storage_dispatch_behind_bytes", "Bytes not yet readable.", state.dispatch_behind_bytes
        )
        yield self._gauge("gantry_broker_store_writable", "1 if the store takes messages.", int(state.writable))
        yield self._gauge("gantry_broker_store_disk_percent", "Used share of the store's disk.", state.disk_percent)
        yield self._gauge("gantry_broker_store_lost_bytes", "Bytes found damaged at start.", state.lost_bytes)
        yield self._counter("gantry_broker_store_damaged_reads", "Damaged records met by readers.", state.damaged_reads)
        yield self._gauge("gantry_broker_store_skipped_units", "Queue offsets lost to damage.", state.skipped_units)
        yield self._gauge(
            "gantry_broker_store_hanged_files", "Removed files still being read.", state.removed_files_in_use
        )

        cold = self._cold
        yield self._counter("gantry_broker_cold_reads", "Reads that waited for the disk, in threads.", cold.reads)
        yield self._counter("gantry_broker_cold_read_bytes", "Bytes of them.", cold.read_bytes)
        yield self._gauge("gantry_broker_cold_reads_waiting", "Reads that wait for a thread.", cold.waiting_count)
        yield self._counter("gantry_broker_refused_cold_reads", "Reads refused as too many.", cold.refused)
        yield self._counter(
            "gantry_broker_unreadable_reads", "Ranges that the disk could not read.", cold.unreadable_reads
        )

    def _health(self) -> Iterator[Metric]:
        overload = self._overload
        yield self._counter("gantry_broker_put_failed", "Sends the store refused.", self._stats.put_failed)
        yield self._counter("gantry_broker_flush_timeouts", "Sends answered 10.", self._waiters.timeouts)
        yield self._counter("gantry_broker_refused_sends", "Sends refused as too many.", overload.refused_sends)
        yield self._counter("gantry_broker_refused_pulls", "Pulls refused as too many.", overload.refused_pulls)
        yield self._gauge("gantry_broker_loop_lag_milliseconds", "How late the loop always is.", self._lag.lag_ms)
        yield self._counter(
            "gantry_broker_held_pull_failures", "Held pulls that failed when resumed.", self._long_polling.failures
        )
        yield self._gauge(
            "gantry_broker_namesrv_registered", "Name servers that know us.", self._registration.registered_count
        )
        yield self._counter(
            "gantry_broker_registration_failures", "Registrations that failed.", self._registration.failures
        )
        yield self._counter(
            "gantry_broker_config_write_failures", "Config files not written.", self._persistence.failures
        )
        yield self._counter("gantry_broker_refused_commits", "Offsets not stored.", self._refused_commits())
        yield self._gauge("gantry_broker_connections_max", "Connections that are accepted.", self._connections_max)
        events = CounterMetricFamily(
            "gantry_broker_remoting_events", "What happened on connections.", labels=[*_BASE, "event"]
        )
        for name, count in self._counters.snapshot().items():
            events.add_metric([*self._base, name], count)
        yield events

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, text, labels=_BASE)
        family.add_metric(self._base, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(name, text, labels=_BASE)
        family.add_metric(self._base, value)
        return family

    def _differing_groups(self) -> Iterator[Metric]:
        differing = [info for info in self._consumers.groups() if info.variants.differs_since_ms is not None]
        text = "Consumer groups whose members differ in topics, filters or message model."
        yield self._gauge("gantry_broker_differing_groups", text, len(differing))
        since = GaugeMetricFamily(
            "gantry_broker_group_differs_since_seconds",
            "Time since when the members of the group differ, for some of these groups.",
            labels=[*_BASE, "consumer_group"],
        )
        for info in differing[:DIFFERING_GROUPS_NAMED_MAX]:
            since.add_metric([*self._base, info.name], (info.variants.differs_since_ms or 0) / 1_000)
        yield since

    def _histogram(self, name: str, text: str, latency: Latency) -> HistogramMetricFamily:
        family = HistogramMetricFamily(name, text, labels=_BASE)
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*LATENCY_BOUNDS_MS, None), list(latency.counts), strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else str(bound), total))
        family.add_metric(self._base, buckets, latency.sum_ms)
        return family
