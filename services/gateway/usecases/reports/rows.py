"""Rows of reports, page by page.

Rows of lag reports and backlog profiles belong to one run. Throughput buckets belong to no run: each run replaces the
buckets of its window, and buckets are kept longer than runs.
"""

import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from gantry.model.errors import InvalidValueError
from gantry.runtime.clock import Clock
from services.gateway.db.reportrows import (
    BacklogPlace,
    BacklogRow,
    Buckets,
    FlowPlace,
    LagPlace,
    LagRow,
    ReportRowRepository,
    ThroughputBucket,
)
from services.gateway.db.reports import SUCCEEDED, ReportRepository, Run
from services.gateway.db.repositories import LIST_LIMIT_MAX
from services.gateway.errors import CONFLICT, ProblemError
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.schemas.reports import read_period, read_run_id
from services.gateway.schemas.times import format_moment
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.page import Page
from services.gateway.usecases.reports.runs import BACKLOG_PROFILE, LAG_REPORT, require_run

SECTIONS: Final = ("age", "filter", "key", "queue", "size", "tag")
SPANS: Final = {"minute": timedelta(hours=6), "hour": timedelta(days=7), "day": timedelta(days=90)}
"""Time range of the buckets of a unit if the request gives no start."""

_LAG_LISTING: Final = "lag-rows"
_BACKLOG_LISTING: Final = "backlog-rows"
_FLOW_LISTING: Final = "throughput"
# Names of groups, topics and brokers contain no slash.
_LAG_PLACE: Final = re.compile(r"([^/]+)/([^/]+)/(?:topic|queue/([^/]*)/(-1|[0-9]{1,10}))", re.ASCII)
_QUEUE_ID_MAX: Final = 2**31 - 1
_UTC: Final = "UTC"
_ZONE_CHARACTERS_MAX: Final = 64
_NO_ZONES: Final = ("localtime", "posixrules", "Factory", "posix/", "right/")
"""Files beside the time zones of a machine, by how their names begin. Postgres does not know them."""
_HOUR_S: Final = 3_600
_DAY: Final = timedelta(days=1)
_ZONE_DAYS_MAX: Final = 3_660
"""Limit on days, because the zone's offset is looked up for each day on the event loop."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

_backlog_place = msgspec.json.Decoder(BacklogPlace)
_flow_place = msgspec.json.Decoder(tuple[int, str, str])


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RunRows(Generic[T]):
    """Rows of a run.

    Attributes:
        run_id: Id of the run.
        as_of: Time that the rows describe.
        page: One page of rows.
    """

    run_id: uuid.UUID
    as_of: datetime
    page: Page[T]


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput buckets.

    Attributes:
        unit: `minute`, `hour` or `day`.
        start: Earliest begin of a bucket.
        end: Exclusive limit for the begin of a bucket.
        zone: Name of the time zone that days are counted in.
        page: One page of buckets.
    """

    unit: str
    start: datetime
    end: datetime
    zone: str
    page: Page[ThroughputBucket]


class ReportRows:
    """Rows of reports. The caller has checked the rights."""

    def __init__(self, metadata: Metadata, *, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock

    async def lag(
        self, *, run: str, group: str | None, topic: str | None, level: str | None, cursor: str | None, limit: int
    ) -> RunRows[LagRow]:
        """Return rows of a lag report.

        Raises:
            InvalidValueError: The run's id or the cursor is not valid.
            ProblemError: 404: the run does not exist; 409: it has not succeeded; 503: Postgres is unavailable.
        """
        run_id = read_run_id(run, "run")
        after = None if cursor is None else _read_lag_place(cursor)
        async with self._metadata.transaction() as session:
            found = await _require_success(ReportRepository(session), LAG_REPORT, run_id)
            repository = ReportRowRepository(session)
            as_of = await repository.lag_as_of(found.id)
            rows = await repository.lag_rows(
                found.id, group=group, topic=topic, level=level, after=after, limit=min(limit + 1, LIST_LIMIT_MAX)
            )
            await _require_all_rows(session, LAG_REPORT, found)
        return RunRows(found.id, as_of or found.window_end, _page(rows, limit, _lag_cursor))

    async def backlog(
        self, *, run: str, group: str | None, topic: str | None, section: str | None, cursor: str | None, limit: int
    ) -> RunRows[BacklogRow]:
        """Return rows of a backlog profile. Raises as `lag`."""
        run_id = read_run_id(run, "run")
        after = None if cursor is None else _read_backlog_place(cursor)
        async with self._metadata.transaction() as session:
            found = await _require_success(ReportRepository(session), BACKLOG_PROFILE, run_id)
            rows = await ReportRowRepository(session).backlog_rows(
                found.id, group=group, topic=topic, section=section, after=after, limit=min(limit + 1, LIST_LIMIT_MAX)
            )
            await _require_all_rows(session, BACKLOG_PROFILE, found)
        return RunRows(found.id, found.window_end, _page(rows, limit, _backlog_cursor))

    async def throughput(
        self,
        *,
        unit: str,
        start_ms: int | None,
        end_ms: int | None,
        zone: str | None,
        group: str | None,
        topic: str | None,
        cursor: str | None,
        limit: int,
    ) -> Throughput:
        """Return throughput buckets that begin in [start, end).

        Args:
            unit: `minute`, `hour` or `day`.
            start_ms: Wall time in ms; None: a default range before the end (SPANS).
            end_ms: Wall time in ms; None: now.
            zone: Name of the time zone that days are counted in; None: UTC.
            group: Only messages that this group consumed.
            topic: Only messages of this topic.
            cursor: Cursor from the page before.
            limit: Maximum number of buckets.

        Raises:
            InvalidValueError: The zone does not exist, the times are not valid, or the cursor is not valid.
            ProblemError: 503: Postgres is unavailable.
        """
        after = None if cursor is None else _read_flow_place(cursor)
        start, end = read_period(start_ms, end_ms, now_ms=self._clock.now_ms(), span=SPANS[unit])
        # Days of UTC are stored, and kept longer than the smaller buckets.
        known_zone = None if zone is None or zone == _UTC else _zone(zone)
        # Only days depend on the time zone.
        wanted = Buckets(unit, start, end) if known_zone is None or unit != "day" else _days_of(known_zone, start, end)
        async with self._metadata.transaction() as session:
            rows = await ReportRowRepository(session).throughput(
                wanted, group=group, topic=topic, after=after, limit=min(limit + 1, LIST_LIMIT_MAX)
            )
        return Throughput(unit, wanted.start, wanted.end, zone or _UTC, _page(rows, limit, _flow_cursor))


async def _require_success(repository: ReportRepository, job: str, run_id: uuid.UUID | None) -> Run:
    found = await require_run(repository, job, run_id)
    if found.status != SUCCEEDED:
        detail = f"run: {found.id} is {found.status}; only runs that succeeded have rows"
        raise ProblemError(CONFLICT, detail, field="run")
    return found


async def _require_all_rows(session: AsyncSession, job: str, run: Run) -> None:
    """Raise ProblemError (404) if rows of a run may have been deleted before this."""
    # The scheduler deletes the rows of an old run in pieces, after it has hidden the run.
    await _require_success(ReportRepository(session), job, run.id)


def _page(rows: Sequence[T], limit: int, cursor_of: Callable[[T], str]) -> Page[T]:
    more = len(rows) > limit or limit == LIST_LIMIT_MAX == len(rows)
    rows = rows[:limit]
    return Page(rows, cursor_of(rows[-1]) if more else None)


def _zone(name: str) -> ZoneInfo:
    try:
        is_name = 0 < len(name) <= _ZONE_CHARACTERS_MAX and not name.startswith(_NO_ZONES)
        zone = ZoneInfo(name) if is_name else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        zone = None
    if zone is None:
        raise InvalidValueError("time_zone", name, "is not the name of a time zone, such as Europe/Berlin")
    return zone


def _days_of(zone: ZoneInfo, start: datetime, end: datetime) -> Buckets:
    """Return the smaller buckets that add up to whole days of a zone. Raises InvalidValueError."""
    start = start.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
    days = (end - start) // _DAY + 1
    if days > _ZONE_DAYS_MAX:
        reason = f"is more than {_ZONE_DAYS_MAX:,} days before `to`, the limit for days of a time zone"
        raise InvalidValueError("from", format_moment(start), reason)
    offsets = [(start.astimezone(UTC) + number * _DAY).astimezone(zone).utcoffset() for number in range(days + 1)]
    is_of_hours = all(offset is not None and offset.total_seconds() % _HOUR_S == 0 for offset in offsets)
    return Buckets("hour" if is_of_hours else "minute", start.astimezone(UTC), end, zone=zone.key)


def _lag_cursor(row: LagRow) -> str:
    queue_id = -1 if row.queue_id is None else row.queue_id
    end = "topic" if row.level == "topic" else f"queue/{row.broker or ''}/{queue_id}"
    return encode_cursor(_LAG_LISTING, f"{row.group_name}/{row.topic}/{end}")


def _read_lag_place(cursor: str) -> LagPlace:
    place = _LAG_PLACE.fullmatch(decode_cursor(cursor, _LAG_LISTING))
    if place is None or int(place[4] or 0) > _QUEUE_ID_MAX:
        raise _no_cursor(cursor)
    if place[4] is None:
        return LagPlace(place[1], place[2], is_queue=False)
    return LagPlace(place[1], place[2], is_queue=True, broker=place[3], queue_id=int(place[4]))


def _backlog_cursor(row: BacklogRow) -> str:
    lower_bound = -1.0 if row.lower_bound is None else row.lower_bound
    place = (row.group_name, row.topic, row.section, lower_bound, row.bucket)
    return encode_cursor(_BACKLOG_LISTING, msgspec.json.encode(place).decode())


def _read_backlog_place(cursor: str) -> BacklogPlace:
    try:
        return _backlog_place.decode(decode_cursor(cursor, _BACKLOG_LISTING))
    except msgspec.DecodeError:
        raise _no_cursor(cursor) from None


def _flow_cursor(row: ThroughputBucket) -> str:
    place = ((row.bucket_at - _EPOCH) // _MICROSECOND, row.topic, row.group_name or "")
    return encode_cursor(_FLOW_LISTING, msgspec.json.encode(place).decode())


def _read_flow_place(cursor: str) -> FlowPlace:
    try:
        micros, topic, group = _flow_place.decode(decode_cursor(cursor, _FLOW_LISTING))
        return FlowPlace(_EPOCH + micros * _MICROSECOND, topic, group)
    except (msgspec.DecodeError, OverflowError):
        raise _no_cursor(cursor) from None


def _no_cursor(cursor: str) -> InvalidValueError:
    return InvalidValueError("cursor", cursor, "is not a cursor of this list")
