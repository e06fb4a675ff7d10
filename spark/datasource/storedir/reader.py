"""Reads kinds `messages`, `backlog` and `offsets` from a store's folder or an archive of one, without a broker.

No broker may run on the store. It may be Gantry's or Apache RocketMQ's, after an orderly stop or a crash. Damaged
records are left out and logged, as in reads from brokers. Data that only brokers have is missing: subscriptions, and
connected clients.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from gantry.model.javahash import java_hash
from gantry.model.message import MessageQueue
from gantry.model.names import SCHEDULE_TOPIC, is_system_group, is_system_topic
from gantry.runtime.telemetry import logger
from gantry.storeformat.scan import StoreReader
from spark.datasource.brokers.positions import GroupPosition
from spark.datasource.brokers.topicqueues import CLOCK_SLACK_MS, QueueBounds
from spark.datasource.columns.acceptance import TopicFilters
from spark.datasource.columns.batches import ROWS_PER_BATCH, arrow_schema, plan_rows, unpack_rows
from spark.datasource.columns.recordbounds import Bounds, Damage
from spark.datasource.columns.records import RecordDecoder
from spark.datasource.dataloss import Loss, report_losses
from spark.datasource.kinds import backlog, offsets
from spark.datasource.kinds.backlog import region_of, units_batch
from spark.datasource.kinds.messages import EXACT, NARROWING, merged, missing_starts, offset_bounds, row_filter
from spark.datasource.kinds.offsets import offsets_row
from spark.datasource.options import BACKLOG, MESSAGES, OFFSETS, OptionError, Options, Position, PositionKind
from spark.datasource.partitions import Region, RegionsPartition, RowsPartition, plan_regions
from spark.datasource.pushdown import ColumnFilter, NarrowedReader, Pushed
from spark.datasource.storedir.files import open_store, store_name
from spark.datasource.storedir.queues import (
    UNIT,
    StoreQueue,
    StoreQueues,
    Units,
    broker_name,
    committed_offsets,
    find_time,
    read_units,
    topic_queues,
)

log = logger("spark.store")

_PUSHED: Final = {
    MESSAGES: (EXACT, NARROWING),
    BACKLOG: (backlog.EXACT, ()),
    OFFSETS: (offsets.EXACT, ()),
}
BLOCK_BYTES: Final = 16 << 20
"""The limit for the bytes of records that are decoded at once."""
# The form in which brokers return a unit that stands for no message.
_UNKNOWN: Final = np.array((0, -1, 0, -1), backlog.UNIT)


@dataclass(frozen=True, repr=False)
class UnitsPartition(RegionsPartition):
    """Regions with their units, for a store whose files lack some units."""

    units: tuple[bytes, ...] = ()


class StoreDirReader(NarrowedReader):
    """Reads a store that no broker runs on."""

    def __init__(self, options: Options, schema: StructType) -> None:
        """Make a reader. Raises OptionError if only brokers can answer the kind."""
        super().__init__(options, schema)
        kind = options.kind
        if kind not in _PUSHED:
            raise OptionError("path", options.path, f"can't be used with kind {kind}: only brokers have its data")
        assert options.path is not None
        self._kind, self._path = kind, options.path
        self.exact, self.narrowing = _PUSHED[kind]
        if kind == BACKLOG:
            self._pushed = _option_limits(options)

    def partitions(self) -> list[InputPartition]:
        """Read the store's queues and return the tasks. Raises StoreFileError, OptionError, DataLossError."""
        with open_store(self._path) as reader:
            queues = StoreQueues(reader)
            if self._kind == MESSAGES:
                return self._tasks(queues, self._message_regions(reader, queues))
            positions = list(self._positions(reader, queues))
            if self._kind == OFFSETS:
                rows = [offsets_row(position) for position in positions]
                return plan_rows(self._schema, rows, self._options.max_rows_per_partition)
            found = [region_of(position, self._options, self._pushed) for position in positions]
            return self._tasks(queues, [region for region in found if region is not None])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a task's rows. Raises StoreFileError."""
        if isinstance(partition, RowsPartition):
            yield from unpack_rows(partition.data)
        elif isinstance(partition, RegionsPartition):
            with open_store(self._path) as reader:
                packed = partition.units if isinstance(partition, UnitsPartition) else ()
                batches = self._messages if self._kind == MESSAGES else self._backlog
                yield from merged(batches(reader, partition.regions, packed))

    def _tasks(self, queues: StoreQueues, regions: Iterable[Region]) -> list[InputPartition]:
        planned = plan_regions(regions, self._options.max_rows_per_partition)
        if not queues.is_from_log:
            return list(planned)
        return [
            UnitsPartition(
                one.regions,
                tuple(
                    queues.queue(region.topic, region.queue_id).slice(region.start, region.end).tobytes()
                    for region in one.regions
                ),
            )
            for one in planned
        ]

    def _message_regions(self, reader: StoreReader, queues: StoreQueues) -> list[Region]:
        configured = topic_queues(reader) or {}
        broker = broker_name(configured, store_name(self._path))
        known = {topic for topic, _ in queues.places} | configured.keys()
        for topic in self._options.topics or ():
            if topic not in known:
                raise OptionError("topics", topic, f"is no topic of the store {self._path}")
        first, end = offset_bounds(self._pushed)
        regions: list[Region] = []
        losses: list[Loss] = []
        for topic, queue_id in queues.places:
            if not self._is_wanted_topic(topic, broker) or not self._pushed.passes("queue_id", queue_id):
                continue
            if not self._pushed.passes("broker", broker):
                continue
            queue = queues.queue(topic, queue_id)
            losses += missing_starts(
                self._options,
                {MessageQueue(topic, broker, queue_id): QueueBounds(queue.min_offset, queue.max_offset)},
            )
            start, stop = self._bounds(reader, queue)
            start = start if first is None else max(start, first)
            stop = stop if end is None else min(stop, end)
            if start < stop:
                regions.append(Region(topic, broker, queue_id, start, stop))
        report_losses(losses, is_failure=self._options.fail_on_data_loss)
        return regions

    def _bounds(self, reader: StoreReader, queue: StoreQueue) -> tuple[int, int]:
        """Return the offsets at which the read of a queue starts and ends, by options and store times."""
        wanted = row_filter(self._options, self._pushed)

        def position(given: Position | None, at_ms: int | None, otherwise: int) -> int:
            if given is not None and given.where is not PositionKind.TIME:
                words = {PositionKind.EARLIEST: queue.min_offset, PositionKind.LATEST: queue.max_offset}
                return min(max(words.get(given.where, given.value), queue.min_offset), queue.max_offset)
            return otherwise if at_ms is None else find_time(reader, queue, at_ms)

        from_ms, to_ms = wanted.stored_from_ms, wanted.stored_to_ms
        start = position(self._options.start, None if from_ms is None else from_ms - CLOCK_SLACK_MS, queue.min_offset)
        return start, position(self._options.end, None if to_ms is None else to_ms + CLOCK_SLACK_MS, queue.max_offset)

    def _positions(self, reader: StoreReader, queues: StoreQueues) -> Iterator[GroupPosition]:
        """Yield a place for each group and each queue of the topics that it has committed to."""
        configured = topic_queues(reader)
        broker = broker_name(configured or (), store_name(self._path))
        options, pushed = self._options, self._pushed
        if not pushed.passes("broker", broker):
            return
        for group, topics in sorted(committed_offsets(reader).items()):
            is_named = group in (options.groups or ())
            if (options.groups is not None and not is_named) or not pushed.passes("group", group):
                continue
            if is_system_group(group) and not (options.include_system or is_named):
                continue
            for topic, committed in sorted(topics.items()):
                if not self._is_wanted_topic(topic, broker):
                    continue
                count = None if configured is None else configured.get(topic)
                ids = committed.keys() | set(range(count or 0))
                error = f"the store has no topic {topic}" if configured is not None and count is None else None
                for queue_id in sorted(ids):
                    if not pushed.passes("queue_id", queue_id):
                        continue
                    queue = queues.queue(topic, queue_id)
                    first = queue.min_offset if error is None else None
                    end = queue.max_offset if error is None else None
                    yield GroupPosition(group, topic, broker, queue_id, first, end, committed.get(queue_id), error)

    def _is_wanted_topic(self, topic: str, broker: str) -> bool:
        if not self._pushed.passes("topic", topic):
            return False
        if self._options.topics is not None:
            return topic in self._options.topics
        return self._options.include_system or not is_system_topic(topic, None, broker)

    def _messages(
        self, reader: StoreReader, regions: Sequence[Region], packed: Sequence[bytes]
    ) -> Iterator[pa.RecordBatch]:
        arrow = arrow_schema(self._schema)
        wanted = row_filter(self._options, self._pushed)
        codes, filters = self._tags_codes(), TopicFilters(self._options.sql_filters)
        for number, region in enumerate(regions):
            decoder = RecordDecoder(
                region.topic,
                region.broker,
                region.queue_id,
                arrow,
                manifest=reader.manifest,
                filters=filters.of_topic(region.topic),
            )
            damaged: list[Damage] = []
            units = _units_of(reader, region, packed[number] if packed else None)
            rows = np.flatnonzero(StoreQueue.is_message(units))
            if codes is not None and region.topic != SCHEDULE_TOPIC:
                rows = rows[np.isin(units["tags_code"][rows], codes)]
            for path, bounds, _ in _blocks(reader, region, units, rows):
                for batch, damages in decoder.decode(reader.memory(path), bounds, wanted):
                    damaged += damages
                    if batch is not None:
                        yield batch
            _log_damaged(region, damaged)

    def _backlog(
        self, reader: StoreReader, regions: Sequence[Region], packed: Sequence[bytes]
    ) -> Iterator[pa.RecordBatch]:
        arrow = arrow_schema(self._schema)
        for number, region in enumerate(regions):
            decoder = RecordDecoder(region.topic, region.broker, region.queue_id, arrow, manifest=reader.manifest)
            units = _units_of(reader, region, packed[number] if packed else None)
            is_message = StoreQueue.is_message(units)
            given = np.full(len(units), _UNKNOWN, backlog.UNIT)
            for name in UNIT.names or ():
                given[name][is_message] = units[name][is_message]
            for path, bounds, rows in _blocks(reader, region, units, np.flatnonzero(is_message)):
                given["stored_at_ms"][rows] = decoder.stored_at(reader.memory(path), bounds)
            for at in range(0, len(units), ROWS_PER_BATCH):
                piece = given[at : at + ROWS_PER_BATCH]
                part = Region(
                    region.topic,
                    region.broker,
                    region.queue_id,
                    region.start + at,
                    region.start + at + len(piece),
                    region.group,
                )
                batch = units_batch(self._schema, [(part, piece)], self._pushed)
                if batch.num_rows:
                    yield batch

    def _tags_codes(self) -> npt.NDArray[np.int64] | None:
        """Return the hashes of the requested tags; None for all tags."""
        values = self._pushed.filter_of("tag").values
        if values is None:
            return None
        return np.array([java_hash(tag) for tag in values if isinstance(tag, str)], np.int64)


def _option_limits(options: Options) -> Pushed:
    """Return the limits of store times that `from` and `to` set."""
    limits, pushed = row_filter(options, Pushed()), Pushed()
    if limits.stored_from_ms is not None:
        pushed = pushed.also("stored_at", ColumnFilter(at_least=limits.stored_from_ms * 1_000))
    if limits.stored_to_ms is not None:
        pushed = pushed.also("stored_at", ColumnFilter(at_most=limits.stored_to_ms * 1_000 - 1))
    return pushed


def _units_of(reader: StoreReader, region: Region, packed: bytes | None) -> Units:
    """Return the units of a region, one for each offset, from the task if it carries them, else from the files."""
    if packed is not None:
        return np.frombuffer(packed, UNIT)
    first, units = read_units(reader, region.topic, region.queue_id, start=region.start, end=region.end)
    if first != region.start or len(units) != region.rows:
        # The store has changed since planning. Units that no longer exist stay blank.
        whole = np.zeros(region.rows, UNIT)
        whole[first - region.start : first - region.start + len(units)] = units
        return whole
    return units


def _blocks(
    reader: StoreReader, region: Region, units: Units, rows: npt.NDArray[np.intp]
) -> Iterator[tuple[str, Bounds, npt.NDArray[np.intp]]]:
    """Yield the records of units, some thousands of one file at a time, as the file, their bounds and their rows."""
    physical = units["physical_offset"][rows].astype(np.int64)
    sizes = units["size"][rows].astype(np.int64)
    starts = np.array([file.start for file in reader.log_files], np.int64)
    number = np.searchsorted(starts, physical, side="right") - 1
    there = (physical >= reader.log_start) & (number >= 0)
    rows, physical, sizes, number = rows[there], physical[there], sizes[there], number[there]
    bytes_before = np.cumsum(sizes) - sizes
    at = 0
    while at < len(rows):
        same_file = int(np.searchsorted(number[at:], number[at], side="right")) if _is_sorted(number[at:]) else 1
        full = int(np.searchsorted(bytes_before[at:], bytes_before[at] + BLOCK_BYTES, side="left"))
        end = at + max(1, min(same_file, full, ROWS_PER_BATCH))
        file = reader.log_files[int(number[at])]
        chosen = slice(at, end)
        bounds = Bounds(
            physical[chosen] - file.start, sizes[chosen], region.start + rows[chosen].astype(np.int64), physical[chosen]
        )
        yield file.path, bounds, rows[chosen]
        at = end


def _is_sorted(numbers: npt.NDArray[np.intp]) -> bool:
    return bool((np.diff(numbers) >= 0).all())


def _log_damaged(region: Region, damaged: Sequence[Damage]) -> None:
    if damaged:
        log.warning(
            "damaged records are left out",
            topic=region.topic, queue_id=region.queue_id, records=len(damaged),
            offsets=[damage.queue_offset for damage in damaged[:20]],
            reasons=dict(Counter(damage.reason for damage in damaged).most_common(5)),
        )  # fmt: skip
