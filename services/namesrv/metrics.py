"""The name server's metrics for Prometheus, read from its tables on each request."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gantry.remoting.aio import RemotingServer
from services.namesrv.processor import Processor


class NamesrvCollector(Collector):
    """Reads counters and the sizes of tables.

    Concurrency: the metrics server's threads call `collect`. It only reads numbers. It copies the one table that grows
    before it iterates over it.
    """

    def __init__(self, processor: Processor, server: RemotingServer) -> None:
        self._processor = processor
        self._server = server

    def collect(self) -> Iterator[Metric]:
        """Yield the current metrics."""
        table = self._processor.table
        yield GaugeMetricFamily("gantry_namesrv_broker_sets", "Registered broker sets.", value=len(table.brokers))
        yield GaugeMetricFamily("gantry_namesrv_brokers", "Live members of broker sets.", value=len(table.live))
        yield GaugeMetricFamily("gantry_namesrv_topics", "Topics with a route.", value=len(table.topics))
        yield CounterMetricFamily(
            "gantry_namesrv_brokers_expired",
            "Brokers removed because they sent no heartbeat in time.",
            value=self._processor.expired_count,
        )
        requests = CounterMetricFamily("gantry_namesrv_requests", "Requests answered.", labels=["code", "response"])
        for (code, response), count in list(self._processor.counts.items()):
            requests.add_metric([str(code), str(response)], count)
        yield requests
        events = CounterMetricFamily(
            "gantry_namesrv_remoting_events", "Events on connections, by kind.", labels=["event"]
        )
        for name, count in self._server.counters.snapshot().items():
            events.add_metric([name], count)
        yield events
