"""Rows of reports, in an order that pages can continue in. Jobs write the rows."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import BigInteger, Result, Select, and_, cast, func, select, tuple_
from sqlalchemy.dialects.postgresql import aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.records import read_all
from services.gateway.db.reporttables import REPORT_BACKLOG_ROWS, REPORT_LAG_ROWS, REPORT_THROUGHPUT
from services.gateway.db.repositories import LIST_LIMIT_MAX

_LAG: Final = REPORT_LAG_ROWS.c
# A topic's own row comes before those of its queues; nulls are replaced, so that they have a place in the order.
_LAG_PLACE: Final = (
    _LAG.group_name,
    _LAG.topic,
    _LAG.level == "queue",
    func.coalesce(_LAG.broker, ""),
    func.coalesce(_LAG.queue_id, -1),
)
_BACKLOG: Final = REPORT_BACKLOG_ROWS.c
# Buckets of ages and sizes by lower bound; buckets without bounds by name.
_BACKLOG_PLACE: Final = (
    _BACKLOG.group_name,
    _BACKLOG.topic,
    _BACKLOG.section,
    func.coalesce(_BACKLOG.lower_bound, -1.0),
    _BACKLOG.bucket,
)
_FLOW: Final = REPORT_THROUGHPUT.c


@dataclass(frozen=True, slots=True)
class LagRow:
    """The lag of a group on a topic, or on one of its queues; docs/internals/lag.md defines the numbers.

    Attributes:
        level: `queue` or `topic`.
        group_name, topic: Group and topic.
        broker, queue_id: Queue; None at the level `topic`.
        as_of: Time at which the broker gave the numbers.
        lag_messages, lag_seconds: Unconsumed messages, and the age (s) of the oldest of them.
        oldest_unconsumed_at: Time at which the broker stored that message.
        in_rate, out_rate: Messages stored and consumed each second.
        drain_eta_s, drain_eta_low_s, drain_eta_high_s: Time (s) until the lag is gone, and the range of the forecast.
        retention_left_s: Time (s) until the broker deletes the first unconsumed message.
        skew: Lag of the queue divided by the mean over the topic's queues; of a topic, that of its largest queue.
        top_tags: Most frequent tags of the first unconsumed messages.
        clients: Number of connected consumers.
        owners: Clients that report the queue, or the topic's queues, as their own.
        verdict, cause, next_step: State of the group, its cause, and the next step to take.
        evidence: Numbers that led to the verdict.
        behind_since: Time from which the group has been behind.
    """

    level: str
    group_name: str
    topic: str
    broker: str | None
    queue_id: int | None
    as_of: datetime
    lag_messages: int | None
    lag_seconds: float | None
    oldest_unconsumed_at: datetime | None
    in_rate: float | None
    out_rate: float | None
    drain_eta_s: float | None
    drain_eta_low_s: float | None
    drain_eta_high_s: float | None
    retention_left_s: float | None
    skew: float | None
    top_tags: Sequence[Any] | Mapping[str, Any] | None
    clients: int | None
    owners: Sequence[Mapping[str, Any]] | None
    verdict: str
    cause: str | None
    next_step: str | None
    evidence: Mapping[str, Any] | None
    behind_since: datetime | None


@dataclass(frozen=True, slots=True)
class BacklogRow:
    """A bucket of the unconsumed messages of a group on a topic.

    Attributes:
        group_name, topic: Group and topic.
        section: `age`, `filter`, `key`, `queue`, `size` or `tag`: the property that the messages are grouped by.
        bucket: Name of the bucket.
        lower_bound, upper_bound: Range of the bucket in s or bytes, without its end; None if there is no bound.
        messages: Number of its messages.
        bytes: Size of their uncompressed bodies; None if no body was read.
    """

    group_name: str
    topic: str
    section: str
    bucket: str
    lower_bound: float | None
    upper_bound: float | None
    messages: int | None
    bytes: int | None


@dataclass(frozen=True, slots=True)
class ThroughputBucket:
    """The messages of a topic in a time range: those stored, or those that a group consumed.

    Attributes:
        bucket_at: Begin of the time range.
        topic: Topic.
        group_name: Group; None for stored messages.
        messages: Number of messages.
        rate_max: Highest rate, in messages a second.
        lag_messages: Unconsumed messages of the group at the end; None without a group.
        covered_s: Part of the time range (s) that samples cover.
    """

    bucket_at: datetime
    topic: str
    group_name: str | None
    messages: int | None
    rate_max: float | None
    lag_messages: int | None
    covered_s: float | None


@dataclass(frozen=True, slots=True)
class LagPlace:
    """The position of a row of a lag report."""

    group: str
    topic: str
    is_queue: bool
    broker: str = ""
    queue_id: int = -1


class BacklogPlace(NamedTuple):
    """The position of a row of a backlog profile; `lower_bound` is -1 if there is none."""

    group: str
    topic: str
    section: str
    lower_bound: float
    bucket: str


class FlowPlace(NamedTuple):
    """The position of a throughput bucket; `group` is empty in a bucket of the topic itself."""

    bucket_at: datetime
    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class Buckets:
    """The selection of throughput buckets.

    Attributes:
        unit: `minute`, `hour` or `day`: unit of the stored buckets.
        start: Earliest begin of a bucket.
        end: Exclusive limit for the begin of a bucket.
        zone: Name of the time zone whose days the buckets are added up to; None: the buckets as they are stored.
    """

    unit: str
    start: datetime
    end: datetime
    zone: str | None = None


class ReportRowRepository:
    """Reads rows of reports."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def lag_rows(
        self,
        run_id: uuid.UUID,
        *,
        group: str | None = None,
        topic: str | None = None,
        level: str | None = None,
        after: LagPlace | None = None,
        limit: int = 100,
    ) -> Sequence[LagRow]:
        """Return rows of a lag report by group, topic, level, broker and queue, after `after`."""
        query = select(REPORT_LAG_ROWS).where(_LAG.run_id == run_id)
        query = _where(query, (_LAG.group_name, group), (_LAG.topic, topic), (_LAG.level, level))
        if after is not None:
            place = (after.group, after.topic, after.is_queue, after.broker, after.queue_id)
            query = query.where(tuple_(*_LAG_PLACE) > place)
        return read_all(LagRow, await self._page(query.order_by(*_LAG_PLACE), limit))

    async def lag_as_of(self, run_id: uuid.UUID) -> datetime | None:
        """Return the latest time at which a broker gave a lag report its numbers, or None if it has no rows."""
        query = select(func.max(_LAG.as_of)).where(_LAG.run_id == run_id)
        moment: datetime | None = (await self._session.execute(query)).scalar_one_or_none()
        return moment

    async def backlog_rows(
        self,
        run_id: uuid.UUID,
        *,
        group: str | None = None,
        topic: str | None = None,
        section: str | None = None,
        after: BacklogPlace | None = None,
        limit: int = 100,
    ) -> Sequence[BacklogRow]:
        """Return rows of a backlog profile by group, topic, section, lower bound and bucket, after `after`."""
        query = select(REPORT_BACKLOG_ROWS).where(_BACKLOG.run_id == run_id)
        query = _where(query, (_BACKLOG.group_name, group), (_BACKLOG.topic, topic), (_BACKLOG.section, section))
        if after is not None:
            query = query.where(tuple_(*_BACKLOG_PLACE) > tuple(after))
        return read_all(BacklogRow, await self._page(query.order_by(*_BACKLOG_PLACE), limit))

    async def throughput(
        self,
        wanted: Buckets,
        *,
        group: str | None = None,
        topic: str | None = None,
        after: FlowPlace | None = None,
        limit: int = 100,
    ) -> Sequence[ThroughputBucket]:
        """Return throughput buckets by time, topic and group, after `after`; a topic's own bucket comes first."""
        buckets = and_(_FLOW.unit == wanted.unit, _FLOW.bucket_at >= wanted.start, _FLOW.bucket_at < wanted.end)
        query: Select[Any]
        source: Any = _FLOW
        if wanted.zone is None:
            query = select(REPORT_THROUGHPUT).where(buckets)
            query = _where(query, (_FLOW.group_name, group), (_FLOW.topic, topic))
        else:
            days = _where(_days(wanted.zone).where(buckets), (_FLOW.group_name, group), (_FLOW.topic, topic)).subquery()
            query, source = select(days), days.c
        place = (source.bucket_at, source.topic, func.coalesce(source.group_name, ""))
        if after is not None:
            query = query.where(tuple_(*place) > tuple(after))
        return read_all(ThroughputBucket, await self._page(query.order_by(*place), limit))

    async def _page(self, query: Select[Any], limit: int) -> Result[Any]:
        assert 1 <= limit <= LIST_LIMIT_MAX, f"a page of {limit}"
        result: Result[Any] = await self._session.execute(query.limit(limit))
        return result


def _where(query: Select[Any], *wanted: tuple[Any, str | None]) -> Select[Any]:
    for column, value in wanted:
        if value is not None:
            query = query.where(column == value)
    return query


def _days(zone: str) -> Select[Any]:
    """Return the days of a time zone, added up from smaller buckets; the lag of a day is that of its last bucket."""
    day = func.date_trunc("day", _FLOW.bucket_at, zone)
    lags = func.array_agg(aggregate_order_by(_FLOW.lag_messages, _FLOW.bucket_at.desc()))
    return select(
        day.label("bucket_at"),
        _FLOW.topic,
        _FLOW.group_name,
        cast(func.sum(_FLOW.messages), BigInteger).label("messages"),
        func.max(_FLOW.rate_max).label("rate_max"),
        lags[1].label("lag_messages"),
        func.sum(_FLOW.covered_s).label("covered_s"),
    ).group_by(day, _FLOW.topic, _FLOW.group_name)
