"""Kind `backlog`: one row for each ConsumeQueue unit that a group has not consumed.

Planning fixes the region of each position. It begins at the committed offset, or at the queue's min offset if that is
greater, and it ends at the max offset of that moment. Reading always returns one row for each offset of the region. If
a unit was deleted meanwhile or can't be read, its columns are null. So a count of rows is always right, and a task that
runs again returns the same number of rows.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from gantry.client.backlog import UNIT_ROW, UNITS_MAX, Backlog
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, BrokerUnavailableError, ClientError, NoAnswerError, NotServedError
from gantry.model.message import MessageQueue
from gantry.runtime.telemetry import logger
from spark.datasource.brokers import live
from spark.datasource.brokers.positions import GroupPosition, find_positions
from spark.datasource.brokers.survey import Survey
from spark.datasource.columns.batches import ROWS_PER_BATCH, arrow_schema
from spark.datasource.options import Options, Position, PositionKind
from spark.datasource.partitions import Region, RegionsPartition, plan_regions, split
from spark.datasource.pushdown import ColumnFilter, NarrowedReader, Pushed

log = logger("spark.backlog")

EXACT = ("group", "topic", "broker", "queue_id", "queue_offset", "tag_hash", "stored_at")

REQUESTS_MAX: Final = 8
"""The limit for requests in flight of one task; each asks for up to 4,096 units."""
ATTEMPTS_MAX: Final = 3
RETRY_AFTER_S: Final = 0.5

_INT64 = np.iinfo(np.int64)
UNIT = np.dtype([("physical_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8"), ("stored_at_ms", ">i8")])
assert UNIT.itemsize == UNIT_ROW.size
# The form in which a broker returns a unit that stands for no message.
_UNKNOWN = np.array((0, -1, 0, -1), dtype=UNIT)

Units = npt.NDArray[Any]
"""An array of UNIT."""


@dataclass(frozen=True, slots=True)
class SurveyFacts:
    """Facts from the survey about a group, topic and broker. Without facts, all units count as wanted."""

    codes: tuple[int, ...] | None = None
    """Hashes of the tags that the group's filter accepts; None if the filter accepts everything or is unknown."""
    tags: tuple[str, ...] | None = None
    read_at_ms: int | None = None
    filter_error: str | None = None
    """The filter that units can't decide, and why; None if they can, or if the group's filter is unknown."""
    sql: str | None = None
    """The group's filter if it is an SQL92 expression."""


SurveyFactsByPair = Mapping[tuple[str, str, str], SurveyFacts]
"""Survey facts by group, topic and broker."""
NO_FACTS: Final = SurveyFacts()


@dataclass(frozen=True, repr=False)
class BacklogPartition(RegionsPartition):
    """Regions, with the survey's facts about them."""

    survey_facts: SurveyFactsByPair


class BacklogReader(NarrowedReader):
    """Reads kind `backlog`."""

    exact = EXACT

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._pushed = _option_limits(options)

    def partitions(self) -> list[InputPartition]:
        """Find the positions of the groups and return the tasks. Raises SurveyError, ClientError, TimeoutError."""
        found = live.run(self._options, lambda engine: find_positions(engine, self._options, self._pushed))
        regions = [
            region
            for position in found.positions
            if (region := region_of(position, self._options, self._pushed)) is not None
        ]
        # Sorting brings groups that wait at the same message together. A task reads the units once for all its groups.
        return [
            BacklogPartition(planned.regions, survey_facts_of(found.survey, planned.regions))
            for planned in plan_regions(sorted(regions), self._options.max_rows_per_partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the units of a task's regions. Raises TimeoutError."""
        if not isinstance(partition, BacklogPartition):
            return
        for parts in live.stream(self._options, lambda engine: _read(engine, partition.regions)):
            batch = units_batch(self._schema, parts, self._pushed, partition.survey_facts)
            if batch.num_rows:
                yield batch


def region_of(position: GroupPosition, options: Options, pushed: Pushed) -> Region | None:
    """Return the requested and unconsumed offsets of a position; None if there are none."""
    start, end = position.start, position.max_offset
    if start is None or end is None:
        return None
    limits = [pushed.filter_of("queue_offset")]
    if options.start is not None and options.start.where is PositionKind.OFFSET:
        limits.append(ColumnFilter(at_least=options.start.value))
    if options.end is not None and options.end.where is PositionKind.OFFSET:
        limits.append(ColumnFilter(at_most=options.end.value - 1))
    for limit in limits:
        if limit.values is not None:
            offsets = [value for value in limit.values if isinstance(value, int)]
            start, end = max([start, min(offsets, default=end)]), min([end, max(offsets, default=start - 1) + 1])
        start = start if limit.at_least is None else max(start, limit.at_least)
        end = end if limit.at_most is None else min(end, limit.at_most + 1)
    if start >= end or _is_nothing(options.start, options.end):
        return None
    return Region(position.topic, position.broker, position.queue_id, start, end, position.group)


def survey_facts_of(survey: Survey, regions: Sequence[Region]) -> SurveyFactsByPair:
    """Return the survey's facts about regions, one for each group, topic and broker."""
    survey_facts: dict[tuple[str, str, str], SurveyFacts] = {}
    for region in regions:
        key = region.group, region.topic, region.broker
        if key not in survey_facts:
            known = survey.filter(region.group, region.topic)
            # Only a filter by tags can be applied to units. With another filter, all units count as wanted.
            is_known = known is not None and known.error is None and known.codes is not None
            codes, tags = (known.codes, tuple(sorted(known.tags))) if known is not None and is_known else (None, None)
            error, sql = (None, None) if known is None else (known.units_error, known.sql)
            survey_facts[key] = SurveyFacts(codes, tags, survey.views[region.broker].read_at_ms, error, sql)
    return survey_facts


def units_batch(
    schema: StructType,
    parts: Sequence[tuple[Region, Units]],
    pushed: Pushed,
    survey_facts: SurveyFactsByPair | None = None,
) -> pa.RecordBatch:
    """Make a batch of the units of regions, one for each offset. Leave out the units that pushed filters exclude."""
    of_parts = [(survey_facts or {}).get((region.group, region.topic, region.broker), NO_FACTS) for region, _ in parts]
    arrow = arrow_schema(schema)
    units = np.concatenate([units for _, units in parts])
    offsets = np.concatenate([np.arange(region.start, region.end, dtype=np.int64) for region, _ in parts])
    is_message = units["size"] >= 0
    is_timed = is_message & (units["stored_at_ms"] >= 0)
    stored_at_us = units["stored_at_ms"].astype(np.int64) * 1_000
    tags_codes = units["tags_code"].astype(np.int64)
    kept = (
        _passes(pushed, "queue_offset", offsets, np.ones(len(units), dtype=bool))
        & _passes(pushed, "tag_hash", tags_codes, is_message)
        & _passes(pushed, "stored_at", stored_at_us, is_timed)
    )

    def texts(name: str) -> pa.Array:
        return pa.concat_arrays(
            [pa.repeat(pa.scalar(getattr(region, name), pa.string()), len(u)) for region, u in parts]
        )

    def repeated(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        return pa.concat_arrays(
            [pa.repeat(pa.scalar(value, kind), len(u)) for value, (_, u) in zip(values, parts, strict=True)]
        )

    wanted = np.concatenate(
        [
            np.ones(len(u), dtype=bool)
            if facts.codes is None
            else np.isin(u["tags_code"].astype(np.int64), facts.codes)
            for facts, (_, u) in zip(of_parts, parts, strict=True)
        ]
    )
    read_at_us = [None if facts.read_at_ms is None else facts.read_at_ms * 1_000 for facts in of_parts]
    queue_ids = np.concatenate([np.full(len(units), region.queue_id, dtype=np.int32) for region, units in parts])
    columns = {
        "group": texts("group"),
        "topic": texts("topic"),
        "broker": texts("broker"),
        "queue_id": pa.array(queue_ids),
        "queue_offset": pa.array(offsets),
        "physical_offset": pa.array(units["physical_offset"].astype(np.int64), mask=~is_message),
        "size": pa.array(units["size"].astype(np.int32), mask=~is_message),
        "tag_hash": pa.array(tags_codes, mask=~is_message),
        "stored_at": pa.array(stored_at_us, mask=~is_timed).cast(pa.timestamp("us", tz="UTC")),
        "is_wanted": pa.array(wanted, mask=~is_message),
        "wanted_tags": repeated([facts.tags for facts in of_parts], arrow.field("wanted_tags").type),
        "read_at": repeated(read_at_us, pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        "filter_error": repeated([facts.filter_error for facts in of_parts], pa.string()),
        "sql_filter": repeated([facts.sql for facts in of_parts], pa.string()),
    }
    batch = pa.RecordBatch.from_arrays([columns[name] for name in schema.fieldNames()], schema=arrow)
    return batch if kept.all() else batch.filter(pa.array(kept))


def _option_limits(options: Options) -> Pushed:
    """Return the limits of store times that `from` and `to` set. Messages without a store time are then left out."""
    pushed = Pushed()
    if options.start is not None and options.start.where is PositionKind.TIME:
        pushed = pushed.also("stored_at", ColumnFilter(at_least=options.start.value * 1_000))
    if options.end is not None and options.end.where is PositionKind.TIME:
        pushed = pushed.also("stored_at", ColumnFilter(at_most=options.end.value * 1_000 - 1))
    return pushed


def _is_nothing(start: Position | None, end: Position | None) -> bool:
    return (start is not None and start.where is PositionKind.LATEST) or (
        end is not None and end.where is PositionKind.EARLIEST
    )


def _passes(
    pushed: Pushed, column: str, values: npt.NDArray[np.int64], is_known: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    if column not in pushed.columns:
        return np.ones(len(values), dtype=bool)
    wanted = pushed.filter_of(column)
    passing = is_known.copy()
    if wanted.values is not None:
        among = [value for value in wanted.values if isinstance(value, int) and _INT64.min <= value <= _INT64.max]
        passing &= np.isin(values, np.array(among, dtype=np.int64))
    if wanted.at_least is not None:
        passing &= values >= max(wanted.at_least, _INT64.min) if wanted.at_least <= _INT64.max else False
    if wanted.at_most is not None:
        passing &= values <= min(wanted.at_most, _INT64.max) if wanted.at_most >= _INT64.min else False
    return passing


async def _read(engine: ClientEngine, regions: Sequence[Region]) -> AsyncGenerator[list[tuple[Region, Units]], None]:
    """Yield the units of regions in order, some thousands at a time. The next requests are already sent."""
    fetcher = _Fetcher(engine)
    pieces = split(regions, UNITS_MAX)
    under_way: deque[tuple[Region, asyncio.Task[Units]]] = deque()
    gathered: list[tuple[Region, Units]] = []
    count = 0
    while True:
        while len(under_way) < REQUESTS_MAX and (piece := next(pieces, None)) is not None:
            last = under_way[-1] if under_way else None
            is_same = last is not None and replace(last[0], group="") == replace(piece, group="")
            task = last[1] if last is not None and is_same else engine.tasks.spawn(fetcher.fetch(piece))
            under_way.append((piece, task))
        if not under_way:
            break
        region, task = under_way.popleft()
        gathered.append((region, await task))
        count += region.rows
        if count >= ROWS_PER_BATCH:
            yield gathered
            gathered, count = [], 0
    if gathered:
        yield gathered


class _Fetcher:
    """Reads regions. Units that can't be read stay unknown. A broker that does not answer is not asked again."""

    def __init__(self, engine: ClientEngine) -> None:
        self._backlog = Backlog(engine)
        self._lost: dict[str, str] = {}

    async def fetch(self, region: Region) -> Units:
        """Return a unit for every offset of a region."""
        units = np.full(region.rows, _UNKNOWN, dtype=UNIT)
        queue = MessageQueue(region.topic, region.broker, region.queue_id)
        at = region.start
        try:
            while at < region.end:
                found = await self._fetch_units(queue, at, region.end - at)
                if found.next_offset <= at:
                    break
                first, end = min(found.first_offset, region.end), min(found.next_offset, region.end)
                rows = np.frombuffer(found.rows, dtype=UNIT)[: max(0, end - first)]
                units[first - region.start : first - region.start + len(rows)] = rows
                at = found.next_offset
        except ClientError as error:
            log.warning("units not read", queue=str(queue), offset=at, end=region.end, error=str(error))
        return units

    async def _fetch_units(self, queue: MessageQueue, offset: int, count: int) -> Any:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            if queue.broker_name in self._lost:
                raise BrokerUnavailableError(queue.broker_name)
            try:
                return await self._backlog.units(queue, offset, count=min(count, UNITS_MAX))
            except NotServedError:
                self._lost[queue.broker_name] = "not served"
                raise
            except (NoAnswerError, BrokerUnavailableError) as error:
                if attempt == ATTEMPTS_MAX:
                    self._lost[queue.broker_name] = str(error)
                    raise
            except BrokerError as error:
                if attempt == ATTEMPTS_MAX or not error.disposition.is_transient:
                    raise
            await asyncio.sleep(RETRY_AFTER_S * attempt)
        raise AssertionError("the last attempt returned or raised")
