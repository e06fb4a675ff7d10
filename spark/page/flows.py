"""Reads rows of the throughput rollup for the page: messages, rates and peaks of a topic by the start of a bucket."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from spark.page.formatting import moment, number
from spark.page.series import POINTS_MAX

UNITS: Final = {"minute": timedelta(minutes=1), "hour": timedelta(hours=1), "day": timedelta(days=1)}
_WHOLE: Final = 0.99
"""The share of a bucket's length that counts as all of it, because samples do not fall on the bucket's borders."""


@dataclass(frozen=True, slots=True)
class BucketFigures:
    """The values of one bucket. None means unknown. If the bucket is not whole, the values are lower bounds.

    Attributes:
        messages: The number of messages in the bucket.
        seconds: The length of the known part of the bucket, of the queue for which it is shortest.
        rate: Messages per second in the known part; at most `peak`.
        peak: The highest rate at any moment. It is also None if several rows are added up, because their peaks may be
            of different moments.
        is_whole: Whether all of the bucket is known.
    """

    messages: float | None
    seconds: float
    rate: float | None
    peak: float | None
    is_whole: bool


Series: TypeAlias = dict[datetime, BucketFigures]


@dataclass(slots=True)
class Flow:
    """The messages that came into a topic, and the messages that each group consumed from it."""

    into: Series = field(default_factory=dict)
    by_group: dict[str, Series] = field(default_factory=dict)

    def out(self) -> Series:
        """Return the messages that all groups together consumed."""
        return total(self.by_group.values())


@dataclass(frozen=True, slots=True)
class Peak:
    """The highest rate of a series, in messages/s, and the start of its bucket."""

    rate: float
    bucket_at: datetime
    is_whole: bool


def read_flows(rows: Iterable[Mapping[str, Any]]) -> tuple[str, dict[str, Flow]]:
    """Return the finest unit that a chart can show, and its flows by topic."""
    by_unit: dict[str, dict[str, Flow]] = {}
    for row in rows:
        bucket_at, unit = moment(row.get("bucket_at")), str(row.get("unit"))
        if bucket_at is None or unit not in UNITS:
            continue
        flow = by_unit.setdefault(unit, {}).setdefault(str(row.get("topic") or ""), Flow())
        group = row.get("group") or row.get("group_name")
        series = flow.into if group is None else flow.by_group.setdefault(str(group), {})
        series[bucket_at] = _bucket_figures(row, UNITS[unit])
    there = [unit for unit in UNITS if unit in by_unit]
    if not there:
        return "hour", {}
    fitting = [unit for unit in there if _buckets(by_unit[unit]) <= 2 * POINTS_MAX]
    unit = fitting[0] if fitting else there[-1]
    return unit, by_unit[unit]


def _bucket_figures(row: Mapping[str, Any], step: timedelta) -> BucketFigures:
    messages, covered = number(row.get("messages")), number(row.get("covered_s"))
    seconds = step.total_seconds() if covered is None else covered
    rate, peak = None if messages is None or not seconds else messages / seconds, number(row.get("rate_max"))
    if rate is not None and peak is not None:
        # The known part is that of one queue. The messages of the others are of a longer time.
        rate = min(rate, peak)
    return BucketFigures(messages, seconds, rate, peak, seconds >= _WHOLE * step.total_seconds())


def _buckets(flows: Mapping[str, Flow]) -> int:
    return len({at for flow in flows.values() for series in (flow.into, *flow.by_group.values()) for at in series})


def total(series: Iterable[Series]) -> Series:
    """Add series up. A sum is unknown if one of its parts is unknown, and whole if all of its parts are whole."""
    there = [one for one in series if one]
    if len(there) == 1:
        return there[0]
    added: Series = {}
    for one in there:
        for bucket_at, reading in one.items():
            before = added.get(bucket_at)
            added[bucket_at] = replace(reading, peak=None) if before is None else _add(before, reading)
    return added


def _add(one: BucketFigures, other: BucketFigures) -> BucketFigures:
    messages = None if one.messages is None or other.messages is None else one.messages + other.messages
    rate = None if one.rate is None or other.rate is None else one.rate + other.rate
    return BucketFigures(messages, min(one.seconds, other.seconds), rate, None, one.is_whole and other.is_whole)


def sum_of(series: Series) -> float:
    """Return the number of known messages."""
    return sum(reading.messages or 0 for reading in series.values())


def mean_rate(series: Series) -> float | None:
    """Return messages per second over all known buckets; None if no bucket is known."""
    known = [(reading.rate, reading.seconds) for reading in series.values() if reading.rate is not None]
    seconds = sum(length for _, length in known)
    return sum(rate * length for rate, length in known) / seconds if seconds else None


def peak_of(series: Series) -> Peak | None:
    """Return the highest rate; None if no rate is known."""
    known = [(reading.peak, at) for at, reading in series.items() if reading.peak is not None]
    if not known:
        return None
    rate, bucket_at = max(known)
    return Peak(rate, bucket_at, all(one.is_whole and one.peak is not None for one in series.values()))


def is_whole(series: Iterable[Series], step: timedelta) -> bool:
    """Return whether sums are complete: no bucket between the first and the last is missing, and all are whole."""
    return all(
        len(one) == round((max(one) - min(one)) / step) + 1
        and all(reading.is_whole and reading.messages is not None for reading in one.values())
        for one in series
        if one
    )


def span_of(series: Sequence[Series]) -> tuple[datetime, datetime]:
    """Return the starts of the first and of the last bucket of all series."""
    moments = [at for one in series for at in one]
    return min(moments), max(moments)
