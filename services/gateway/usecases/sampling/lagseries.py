"""Consumer lag as Prometheus series, from the sampler's last round, for each group and topic.

The names are those of RocketMQ 5. There each broker exports series of its own; here a series is the sum over all
brokers, and only the gateway that samples exports it. An unknown lag or age has no such series, because 0 would be
wrong; `gantry_gateway_lag_unknown` names the group and topic instead. The text is rendered once a round and not for
each scrape: thousands of series take a tenth of a second.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gantry.model.names import is_retry_topic
from services.gateway.usecases.sampling.rounds import Sample

_LABELS: Final = ("cluster", "consumer_group", "topic", "is_retry", "is_system")
_UNKNOWN_LABELS: Final = (*_LABELS, "missing")

Key = tuple[str, str]
"""Group and topic."""


class LagFigure(NamedTuple):
    """The lag of a group on a topic; `age_ms` is the age of its oldest unconsumed message. None: unknown."""

    cluster: str
    group: str
    topic: str
    messages: int | None
    age_ms: int | None

    def labels(self) -> tuple[str, ...]:
        """Return the values of the labels of its series."""
        return (self.cluster, self.group, self.topic, "true" if is_retry_topic(self.topic) else "false", "false")


class LagFigures(NamedTuple):
    """The lag of all groups.

    Attributes:
        exported: Figures with a known number of messages that get series.
        unknown: Figures with an unknown number of messages or an unknown age that get a series.
        left_out: Number of series that are missing because the limit is reached.
    """

    exported: Sequence[LagFigure] = ()
    unknown: Sequence[LagFigure] = ()
    left_out: int = 0

    def render(self) -> bytes:
        """Return the figures in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(_Families(self))
        return generate_latest(registry)


class _Families(Collector):
    def __init__(self, figures: LagFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield the metric families, with the names and units of RocketMQ 5."""
        messages = GaugeMetricFamily(
            "rocketmq_consumer_lag_messages",
            "Messages that the group has not consumed, on all brokers.",
            labels=_LABELS,
        )
        ages = GaugeMetricFamily(
            "rocketmq_consumer_lag_latency",
            "Age of the oldest message that the group has not consumed, in ms.",
            labels=_LABELS,
        )
        unknown = GaugeMetricFamily(
            "gantry_gateway_lag_unknown",
            "1 for each group and topic whose lag in messages, or only its age (latency), is unknown.",
            labels=_UNKNOWN_LABELS,
        )
        for figure in self._figures.exported:
            labels = figure.labels()
            if figure.messages is not None:
                messages.add_metric(labels, figure.messages)
            if figure.age_ms is not None:
                ages.add_metric(labels, figure.age_ms)
        for figure in self._figures.unknown:
            unknown.add_metric((*figure.labels(), "messages" if figure.messages is None else "latency"), 1)
        yield messages
        yield ages
        yield unknown
        yield GaugeMetricFamily(
            "gantry_gateway_lag_left_out",
            "Groups and topics without a series, because the limit of series is reached.",
            value=self._figures.left_out,
        )


@dataclass(slots=True)
class _Sum:
    """The sum so far for one group and topic."""

    brokers: set[str] = field(default_factory=set)
    messages: int = 0
    oldest_ms: int | None = None
    is_known: bool = True
    has_ages: bool = True

    def add_unknown(self, brokers: Iterable[str]) -> None:
        """Add brokers whose numbers are unknown."""
        self.is_known = False
        self.brokers.update(brokers)


class LagSeries:
    """Adds up the samples of each round.

    Concurrency: called by one task; `add_up` may run in a thread.
    """

    def __init__(self, *, series_max: int) -> None:
        self._series_max = series_max
        # The brokers of each pair, from the last round in which they answered.
        self._brokers: dict[Key, frozenset[str]] = {}

    def add_up(
        self,
        samples: Iterable[Sample],
        missing: Mapping[str, Collection[str]],
        clusters: Mapping[str, str],
        now_ms: int,
    ) -> LagFigures:
        """Return the figures of a round.

        Args:
            samples: Samples of all brokers that answered.
            missing: Names of the brokers that did not answer, each with the topics that it is known to have.
            clusters: Broker → cluster.
            now_ms: Wall time of the round, in ms.
        """
        sums: dict[Key, _Sum] = {}
        for sample in samples:
            if sample.group is not None:
                _add(sums.setdefault((sample.group, sample.topic), _Sum()), sample)
        away = frozenset(missing)
        for key, brokers in self._brokers.items():
            if gone := brokers & away:
                # The lag on this broker is unknown. A pair that is on no other broker still counts as unknown.
                sums.setdefault(key, _Sum()).add_unknown(gone)
        # There is no earlier round with the broker if the gateway or the group is newer than its silence.
        for broker, held in missing.items():
            topics = frozenset(held)
            groups = {group for group, topic in sums if topic in topics}
            for (group, topic), found in sums.items():
                # Postgres does not know retry topics. A broker has those of the groups that consume from it.
                if topic in topics or (is_retry_topic(topic) and group in groups):
                    found.add_unknown((broker,))
        self._brokers = {key: frozenset(found.brokers) for key, found in sums.items()}
        figures = [_figure(key, found, clusters, now_ms) for key, found in sums.items()]
        counted = [figure for figure in figures if figure.messages is not None]
        unknown = [figure for figure in figures if figure.age_ms is None]
        exported = _furthest_behind(counted, self._series_max)
        named = unknown[: self._series_max]
        return LagFigures(exported, named, left_out=len(counted) - len(exported) + len(unknown) - len(named))

    def forget(self) -> None:
        """Forget the brokers of all pairs, because another gateway samples now."""
        self._brokers = {}


def _add(found: _Sum, sample: Sample) -> None:
    found.brokers.add(sample.broker)
    for low, high, committed, stored_at_ms in zip(
        sample.min_offsets, sample.max_offsets, sample.committed_offsets, sample.first_stored_at_ms, strict=True
    ):
        if committed is None or committed > high:
            # Without a commit, the consumer chooses where to start. A commit beyond the end belongs to a deleted topic
            # of the same name.
            found.is_known &= high == low
            continue
        behind = high - max(committed, low)
        found.messages += behind
        if stored_at_ms is not None:
            found.oldest_ms = stored_at_ms if found.oldest_ms is None else min(found.oldest_ms, stored_at_ms)
    found.has_ages &= sample.is_age_known


def _figure(key: Key, found: _Sum, clusters: Mapping[str, str], now_ms: int) -> LagFigure:
    cluster = clusters.get(min(found.brokers), "")
    if not found.is_known:
        return LagFigure(cluster, *key, None, None)
    age_ms: int | None = 0
    if found.messages and not found.has_ages:
        age_ms = None
    elif found.messages and found.oldest_ms is not None:
        age_ms = max(0, now_ms - found.oldest_ms)
    return LagFigure(cluster, *key, found.messages, age_ms)


def _furthest_behind(figures: list[LagFigure], count: int) -> Sequence[LagFigure]:
    if len(figures) <= count:
        return figures
    return sorted(figures, key=lambda figure: (-(figure.messages or 0), figure.group, figure.topic))[:count]
