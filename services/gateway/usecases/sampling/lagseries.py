"""How far groups are behind, as Prometheus' series: of the sampler's last round, for each group and topic.

The names are those of RocketMQ 5, whose brokers give such series each for itself; here they are sums over all brokers, and only the
gateway that samples gives them. A lag that is not known has no series: silence is no number. The text is made once a round
and not whenever somebody asks: thousands of series take a tenth of a second.
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
    """How far a group is behind on a topic; `age_ms` is of its oldest unconsumed message, None where it is not known."""

    cluster: str
    group: str
    topic: str
    messages: int
    age_ms: int | None


class LagFigures(NamedTuple):
    """How far groups are behind.

    Attributes:
        shown: Those that have series.
        unknown: How many groups and topics have none since their lag is not known.
        left_out: How many have none since there would be too many.
    """

    shown: Sequence[LagFigure] = ()
    unknown: int = 0
    left_out: int = 0

    def render(self) -> bytes:
        """Return them in Prometheus' text format."""
        registry = CollectorRegistry()
        registry.register(_Families(self))
        return generate_latest(registry)


class _Families(Collector):
    def __init__(self, figures: LagFigures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """Yield the families, by the names and in the units of RocketMQ 5."""
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
        for figure in self._figures.shown:
            is_retry = "true" if is_retry_topic(figure.topic) else "false"
            labels = (figure.cluster, figure.group, figure.topic, is_retry, "false")
            messages.add_metric(labels, figure.messages)
            if figure.age_ms is not None:
                ages.add_metric(labels, figure.age_ms)
        yield messages
        yield ages
        for name, value, about in (
            ("unknown", self._figures.unknown, "Groups and topics without a series, as their lag is not known."),
            ("left_out", self._figures.left_out, "Groups and topics without a series, as there would be too many."),
        ):
            yield GaugeMetricFamily(f"gantry_gateway_lag_{name}", about, value=value)


@dataclass(slots=True)
class _Sum:
    """What is known of one group and topic so far."""

    brokers: set[str] = field(default_factory=set)
    messages: int = 0
    oldest_ms: int | None = None
    is_known: bool = True
    has_ages: bool = True


class LagSeries:
    """Adds up rounds.

    Concurrency: called by one task; `add_up` may run in a thread.
    """

    def __init__(self, *, series_max: int) -> None:
        self._series_max = series_max
        # On which brokers each pair was, in the last round in which they answered.
        self._brokers: dict[Key, frozenset[str]] = {}

    def add_up(
        self, samples: Iterable[Sample], missing: Iterable[str], clusters: Mapping[str, str], now_ms: int
    ) -> LagFigures:
        """Return the figures of a round.

        Args:
            samples: Of all brokers that answered.
            missing: Names of those that did not.
            clusters: Broker → cluster.
            now_ms: Wall time of the round.
        """
        sums: dict[Key, _Sum] = {}
        for sample in samples:
            if sample.group is not None:
                _add(sums.setdefault((sample.group, sample.topic), _Sum()), sample)
        away = frozenset(missing)
        for key, brokers in self._brokers.items():
            if gone := brokers & away:
                # What it had there is not known now; where it was nowhere else, it is still to be counted as unknown.
                known = sums.setdefault(key, _Sum())
                known.is_known = False
                known.brokers |= gone
        self._brokers = {key: frozenset(found.brokers) for key, found in sums.items()}
        figures = [
            LagFigure(clusters.get(min(found.brokers), ""), group, topic, found.messages, _age_ms(found, now_ms))
            for (group, topic), found in sums.items()
            if found.is_known
        ]
        shown = _furthest_behind(figures, self._series_max)
        return LagFigures(shown, unknown=len(sums) - len(figures), left_out=len(figures) - len(shown))

    def forget(self) -> None:
        """Forget where pairs were: another gateway samples."""
        self._brokers = {}


def _add(found: _Sum, sample: Sample) -> None:
    found.brokers.add(sample.broker)
    for low, high, committed, stored_at_ms in zip(
        sample.min_offsets, sample.max_offsets, sample.committed_offsets, sample.first_stored_at_ms, strict=True
    ):
        if committed is None or committed > high:
            # Where the group would begin is the consumer's choice; and beyond the end, the topic was made anew.
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
