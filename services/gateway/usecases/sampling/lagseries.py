"""Consumer lag as Prometheus series, from the sampler's last round, for each group and topic.

The names are those of RocketMQ 5. There each broker exports series of its own; here a series is the sum over all
brokers, and only the gateway that samples exports it. An unknown lag has no series, because 0 would be wrong. The text
is rendered once a round and not for each scrape: thousands of series take a tenth of a second.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gantry.model.names import is_retry_topic
from services.gateway.usecases.sampling.rounds import Sample

_LABELS: Final = ("cluster", "consumer_group", "topic", "is_retry", "is_system")

Key = tuple[str, str]
"""Group and topic."""


class LagFigure(NamedTuple):
    """The lag of a group on a topic; `age_ms` is the age of its oldest unconsumed message, None if unknown."""

    cluster: str
    group: str
    topic: str
    messages: int
    age_ms: int | None


class LagFigures(NamedTuple):
    """The lag of all groups.

    Attributes:
        exported: Figures that get a series.
        unknown: Number of pairs of group and topic without a series, because their lag is unknown.
        left_out: Number of pairs of group and topic without a series, because the limit is reached.
    """

    exported: Sequence[LagFigure] = ()
    unknown: int = 0
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
        for figure in self._figures.exported:
            is_retry = "true" if is_retry_topic(figure.topic) else "false"
            labels = (figure.cluster, figure.group, figure.topic, is_retry, "false")
            messages.add_metric(labels, figure.messages)
            if figure.age_ms is not None:
                ages.add_metric(labels, figure.age_ms)
        yield messages
        yield ages
        for name, value, about in (
            ("unknown", self._figures.unknown, "Groups and topics without a series, because their lag is unknown."),
            (
                "left_out",
                self._figures.left_out,
                "Groups and topics without a series, because the limit of series is reached.",
            ),
        ):
            yield GaugeMetricFamily(f"gantry_gateway_lag_{name}", about, value=value)


@dataclass(slots=True)
class _Sum:
    """The sum so far for one group and topic."""

    brokers: set[str] = field(default_factory=set)
    messages: int = 0
    oldest_ms: int | None = None
    is_known: bool = True
    has_ages: bool = True


class LagSeries:
    """Adds up the samples of each round.

    Concurrency: called by one task; `add_up` may run in a thread.
    """

    def __init__(self, *, series_max: int) -> None:
        self._series_max = series_max
        # The brokers of each pair, from the last round in which they answered.
        self._brokers: dict[Key, frozenset[str]] = {}

    def add_up(
        self, samples: Iterable[Sample], missing: Iterable[str], clusters: Mapping[str, str], now_ms: int
    ) -> LagFigures:
        """Return the figures of a round.

        Args:
            samples: Samples of all brokers that answered.
            missing: Names of the brokers that did not answer.
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
                known = sums.setdefault(key, _Sum())
                known.is_known = False
                known.brokers |= gone
        self._brokers = {key: frozenset(found.brokers) for key, found in sums.items()}
        figures = [
            LagFigure(clusters.get(min(found.brokers), ""), group, topic, found.messages, _age_ms(found, now_ms))
            for (group, topic), found in sums.items()
            if found.is_known
        ]
        exported = _furthest_behind(figures, self._series_max)
        return LagFigures(exported, unknown=len(sums) - len(figures), left_out=len(figures) - len(exported))

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
        elif behind:
            found.has_ages = False


def _age_ms(found: _Sum, now_ms: int) -> int | None:
    if not found.messages:
        return 0
    if not found.has_ages or found.oldest_ms is None:
        return None
    return max(0, now_ms - found.oldest_ms)


def _furthest_behind(figures: list[LagFigure], count: int) -> Sequence[LagFigure]:
    if len(figures) <= count:
        return figures
    return sorted(figures, key=lambda figure: (-figure.messages, figure.group, figure.topic))[:count]
