"""Metrics of the gateway: plain integers on the hot paths, converted to Prometheus' families at each scrape."""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from services.gateway.limits import Limits

CONTENT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"

BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000)


class _RouteStats:
    __slots__ = ("buckets", "statuses", "sum_ms")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BUCKETS_MS) + 1)
        self.statuses: dict[int, int] = {}
        self.sum_ms = 0


class GatewayMetrics(Collector):
    """All counts of one gateway.

    Concurrency: the event loop's thread only; each `inc` is an addition.
    """

    def __init__(self) -> None:
        self._routes: dict[tuple[str, str], _RouteStats] = {}
        self.sent: dict[str, int] = {"stored": 0, "not_stored": 0, "unknown": 0}
        self.sent_bytes = 0
        self.read_messages = 0
        self.damaged_records = 0
        self.faults = 0
        """Internal errors of the gateway; each is a bug."""
        self.refused_connections: dict[str, int] = {}
        self.counters: dict[str, int] = {}
        """Named counters of parts that come and go: name → count, shown as gantry_gateway_<name>_total."""
        self.gauges: dict[str, float] = {}
        """Named gauges, shown as gantry_gateway_<name>."""
        self.lag = b""
        """The lag series, rendered once a round of samples (usecases/sampling/lagseries.py).

        They are empty while another gateway samples.
        """
        self.limits: Limits | None = None
        """The limits in force."""
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def observe(self, method: str, path: str, status: int, duration_ms: int) -> None:
        """Count a request; `path` is the route's template, so that there are never many."""
        key = (method, path)
        stats = self._routes.get(key)
        if stats is None:
            stats = self._routes[key] = _RouteStats()
        stats.buckets[bisect_left(BUCKETS_MS, duration_ms)] += 1
        stats.statuses[status] = stats.statuses.get(status, 0) + 1
        stats.sum_ms += duration_ms

    def refused_connection(self, reason: str) -> None:
        """Count a connection that was closed before it had a request."""
        self.refused_connections[reason] = self.refused_connections.get(reason, 0) + 1

    def count(self, name: str, by: int = 1) -> None:
        """Add to a named counter."""
        self.counters[name] = self.counters.get(name, 0) + by

    def render(self) -> bytes:
        """Return everything in Prometheus' text format."""
        return generate_latest(self.registry) + self.lag

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families."""
        requests = CounterMetricFamily(
            "gantry_gateway_requests", "HTTP requests answered.", labels=("method", "path", "status")
        )
        durations = HistogramMetricFamily(
            "gantry_gateway_request_seconds", "Time to answer an HTTP request.", labels=("method", "path")
        )
        for (method, path), stats in self._routes.items():
            for status, count in stats.statuses.items():
                requests.add_metric((method, path, str(status)), count)
            durations.add_metric((method, path), *_histogram(stats))
        yield requests
        yield durations
        sent = CounterMetricFamily("gantry_gateway_sent_messages", "Messages sent, by outcome.", labels=("outcome",))
        for outcome, count in self.sent.items():
            sent.add_metric((outcome,), count)
        yield sent
        refused = CounterMetricFamily(
            "gantry_gateway_refused_connections", "Connections closed without a request.", labels=("reason",)
        )
        for reason, count in self.refused_connections.items():
            refused.add_metric((reason,), count)
        yield refused
        yield from self._single_values()

    def _single_values(self) -> Iterator[Metric]:
        counters = {
            "sent_bytes": (self.sent_bytes, "Bytes of message bodies sent to brokers."),
            "read_messages": (self.read_messages, "Messages returned to readers of queues."),
            "damaged_records": (self.damaged_records, "Records with a wrong checksum that readers found."),
            "faults": (self.faults, "Requests that ended in an internal error of the gateway."),
            **{name: (count, f"Count of {name.replace('_', ' ')}.") for name, count in self.counters.items()},
        }
        for name, (count, about) in counters.items():
            yield CounterMetricFamily(f"gantry_gateway_{name}", about, value=count)
        if self.limits is not None:
            yield from _limit_families(self.limits)
        for name, value in self.gauges.items():
            yield GaugeMetricFamily(f"gantry_gateway_{name}", f"Number of {name.replace('_', ' ')}.", value=value)


def _limit_families(limits: Limits) -> Iterator[Metric]:
    used = GaugeMetricFamily(
        "gantry_gateway_limit_used",
        "Amount of a limited resource that all keys or addresses use.",
        labels=("limit", "of"),
    )
    holders = GaugeMetricFamily(
        "gantry_gateway_limit_holders", "Keys or addresses that use the resource.", labels=("limit", "of")
    )
    refused = CounterMetricFamily(
        "gantry_gateway_limit_refused",
        "Rejections, by the limit that was reached: the share of one key or address, or the total.",
        labels=("limit", "of", "reached"),
    )
    for quota in limits.quotas:
        labels = (quota.name, quota.scope)
        used.add_metric(labels, quota.used)
        holders.add_metric(labels, quota.holders)
        refused.add_metric((*labels, "share"), quota.refused_each)
        refused.add_metric((*labels, "total"), quota.refused_total)
    for rate in limits.rates.values():
        holders.add_metric((rate.name, rate.scope), rate.holders)
        refused.add_metric((rate.name, rate.scope, "share"), rate.refused)
    yield used
    yield holders
    yield refused


def _histogram(stats: _RouteStats) -> tuple[list[tuple[str, float]], float]:
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip([*BUCKETS_MS, None], stats.buckets, strict=True):
        total += count
        buckets.append(("+Inf" if bound is None else repr(bound / 1_000), total))
    return buckets, stats.sum_ms / 1_000
