"""Kind `messages`: the messages of topics, read from running brokers.

Planning fixes `[start, end)` of each queue: the requested part of the offsets that the queue holds at that moment.
Reading returns the existing and undamaged messages of that region, in the order of their offsets. A task that runs
again returns the same messages, unless retention has removed some meanwhile. That is a data loss. An explicit start
offset that a queue no longer has is a data loss, too.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from gantry.client.engine import ClientEngine
from gantry.model.group import SubscriptionData
from gantry.model.javahash import java_hash
from gantry.model.message import MessageQueue
from spark.datasource.brokers import live
from spark.datasource.brokers.metadata import read_metadata
from spark.datasource.brokers.queuepull import Block, RegionPuller, log_damage, removed_of
from spark.datasource.brokers.topicqueues import (
    CLOCK_SLACK_MS,
    MissingMessagesError,
    QueueBounds,
    TopicBroker,
    TopicQueues,
    find_queues,
    positions,
)
from spark.datasource.columns.acceptance import TopicFilters
from spark.datasource.columns.batches import ROWS_PER_BATCH, arrow_schema
from spark.datasource.columns.recordbounds import RowFilter
from spark.datasource.columns.records import RecordDecoder
from spark.datasource.dataloss import Loss, report_losses
from spark.datasource.options import Options, Position, PositionKind
from spark.datasource.partitions import Region, RegionsPartition, plan_regions
from spark.datasource.pushdown import NarrowedReader, Pushed

EXACT: Final = ("topic", "broker", "queue_id")
NARROWING: Final = ("queue_offset", "stored_at", "tag")
TAGS_MAX: Final = 64
"""The limit for the tags that brokers filter by: a broker compares each unit with all of them."""
MERGED_BYTES_MAX: Final = 64 << 20
"""Size above which small batches are not merged."""


class MessagesReader(NarrowedReader):
    """Reads kind `messages`."""

    exact = EXACT
    narrowing = NARROWING

    def partitions(self) -> list[InputPartition]:
        """Find the queues and return the tasks.

        Raises:
            MissingMessagesError: A requested topic or broker can't be read, so messages would be missing.
            ClientError, TimeoutError: No server answers.
        """
        regions = live.run(self._options, lambda engine: _plan(engine, self._options, self._pushed))
        return list(plan_regions(regions, self._options.max_rows_per_partition))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a task's regions. Raises ClientError, TimeoutError."""
        if isinstance(partition, RegionsPartition):
            wanted = row_filter(self._options, self._pushed)
            yield from read_regions(self._options, self._schema, partition.regions, wanted, tags_of(self._pushed))


def read_regions(
    options: Options,
    schema: StructType,
    regions: Sequence[Region],
    wanted: RowFilter,
    subscription: SubscriptionData | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of regions.

    Raises:
        DataLossError: Messages are gone. It is raised after the last batch; with `failOnDataLoss=false`, the log has a
            warning instead.
        ClientError, TimeoutError: A broker does not answer.
    """
    arrow, filters = arrow_schema(schema), TopicFilters(options.sql_filters)
    pullers: list[RegionPuller] = []

    async def blocks(engine: ClientEngine) -> AsyncGenerator[Block, None]:
        puller = RegionPuller(engine, subscription)
        pullers.append(puller)
        async for block in puller.blocks(regions):
            yield block

    def batches() -> Iterator[pa.RecordBatch]:
        # Decode outside of the event loop, while the answers to the next requests arrive.
        for block in live.stream(options, blocks):
            region = block.region
            decoder = RecordDecoder(
                region.topic, region.broker, region.queue_id, arrow, filters=filters.of_topic(region.topic)
            )
            for batch, damages in decoder.decode(block.data, block.bounds, wanted):
                pullers[0].note(region).damaged.extend(damages)
                if batch is not None:
                    yield batch

    yield from merged(batches())
    for puller in pullers:
        log_damage(puller.losses)
        report_losses(removed_of(puller.losses), is_failure=options.fail_on_data_loss)


def merged(batches: Iterable[pa.RecordBatch], rows: int = ROWS_PER_BATCH // 2) -> Iterator[pa.RecordBatch]:
    """Merge small batches: each batch costs Spark as much as some hundred rows."""
    gathered: list[pa.RecordBatch] = []
    count = size_bytes = 0
    for batch in batches:
        if gathered and (count + batch.num_rows > 2 * rows or size_bytes + batch.nbytes > MERGED_BYTES_MAX):
            yield _one(gathered)
            gathered, count, size_bytes = [], 0, 0
        gathered.append(batch)
        count += batch.num_rows
        size_bytes += batch.nbytes
        if count >= rows:
            yield _one(gathered)
            gathered, count, size_bytes = [], 0, 0
    if gathered:
        yield _one(gathered)


def row_filter(options: Options, pushed: Pushed) -> RowFilter:
    """Return the filter by store time that the options and the pushed filters set."""
    limits = pushed.filter_of("stored_at")
    values = [value for value in limits.values or () if isinstance(value, int)]
    starts = [value for value in (limits.at_least, min(values, default=None)) if value is not None]
    ends = [value for value in (limits.at_most, max(values, default=None)) if value is not None]
    # Store times are in whole ms, and the end of a range is exclusive.
    from_ms = [-(-start // 1_000) for start in starts]
    to_ms = [end // 1_000 + 1 for end in ends]
    if options.start is not None and options.start.where is PositionKind.TIME:
        from_ms.append(options.start.value)
    if options.end is not None and options.end.where is PositionKind.TIME:
        to_ms.append(options.end.value)
    return RowFilter(stored_from_ms=max(from_ms, default=None), stored_to_ms=min(to_ms, default=None))


def tags_of(pushed: Pushed) -> SubscriptionData | None:
    """Return the subscription by which brokers leave out other tags, compared by hash; None if they filter nothing."""
    values = pushed.filter_of("tag").values
    tags = sorted(value for value in values or () if isinstance(value, str))
    if not tags or len(tags) > TAGS_MAX or any("|" in tag or tag != tag.strip() or tag in ("", "*") for tag in tags):
        return None
    return SubscriptionData(
        topic="",
        sub_string=" || ".join(tags),
        tags_set=frozenset(tags),
        code_set=frozenset(java_hash(tag) for tag in tags),
    )


def offset_bounds(pushed: Pushed) -> tuple[int | None, int | None]:
    """Return the queue offsets `[first, end)` that the pushed filters ask for; None means no bound."""
    limits = pushed.filter_of("queue_offset")
    values = [value for value in limits.values or () if isinstance(value, int)]
    firsts = [value for value in (limits.at_least, min(values, default=None)) if value is not None]
    lasts = [value for value in (limits.at_most, max(values, default=None)) if value is not None]
    return max(firsts, default=None), (min(lasts) + 1 if lasts else None)


def refuse_unknown(found: TopicQueues) -> None:
    """Raise MissingMessagesError if a broker could not be asked: messages would be missing, and no row could report that."""
    if found.unknown:
        reasons = sorted({f"topic {topic}: {reason}" for (topic, _), reason in found.unknown.items()})
        raise MissingMessagesError(f"not all messages that were asked for can be read: {'; '.join(reasons[:8])}")


def missing_starts(options: Options, ends: Mapping[MessageQueue, QueueBounds]) -> list[Loss]:
    """Return the losses of queues that no longer have the offset that `from` gives.

    The one offset applies to all queues. So a queue that ends before it has lost nothing.
    """
    if options.start is None or options.start.where is not PositionKind.OFFSET:
        return []
    start = options.start.value
    return [
        Loss(queue, start, f"offset {held.first} as the first", held.first, "removed", held.first)
        for queue, held in sorted(ends.items())
        if start < held.first
    ]


async def starts_of(
    engine: ClientEngine, options: Options, pushed: Pushed
) -> tuple[TopicQueues, dict[MessageQueue, int]]:
    """Return the requested queues, and the start offset in each.

    Raises:
        DataLossError: A queue no longer has its start offset.
        MissingMessagesError, ClientError: Not all queues can be asked about.
    """
    expected = () if options.database is None else await _expected_places(engine, options, options.database)
    found = await find_queues(engine, options, pushed, expected=expected)
    losses = missing_starts(options, found.ends)
    for queue in [loss.queue for loss in losses if (loss.queue.topic, loss.queue.broker_name) in found.stand_ins]:
        found.unknown[queue.topic, queue.broker_name] = f"broker {queue.broker_name}: only a slave answers for {queue}"
    refuse_unknown(found)
    report_losses(losses, is_failure=options.fail_on_data_loss)
    from_ms = row_filter(options, pushed).stored_from_ms
    starts = await _bounds(engine, found.ends, options.start, from_ms, -CLOCK_SLACK_MS)
    return found, {queue: starts.get(queue, held.first) for queue, held in found.ends.items()}


async def _expected_places(engine: ClientEngine, options: Options, database: str) -> Sequence[TopicBroker]:
    """Return the requested topics, each with the brokers that should have it. Raises MissingMessagesError."""
    metadata = await engine.in_thread(read_metadata, database)
    if metadata.error is not None:
        raise MissingMessagesError(f"not all brokers may be known to name servers: {metadata.error}")
    topics = metadata.queues if options.topics is None else options.topics
    return [(topic, broker) for topic in topics for broker in metadata.queues.get(topic, ())]


async def _plan(engine: ClientEngine, options: Options, pushed: Pushed) -> list[Region]:
    found, starts = await starts_of(engine, options, pushed)
    wanted = row_filter(options, pushed)
    ends = await _bounds(engine, found.ends, options.end, wanted.stored_to_ms, CLOCK_SLACK_MS)
    first, end = offset_bounds(pushed)
    regions = []
    for queue, held in sorted(found.ends.items()):
        start = starts[queue] if first is None else max(starts[queue], first)
        stop = min(ends.get(queue, held.end), held.end if end is None else end)
        regions.append(Region(queue.topic, queue.broker_name, queue.queue_id, start, stop))
    return regions


async def _bounds(
    engine: ClientEngine,
    ends: Mapping[MessageQueue, QueueBounds],
    given: Position | None,
    at_ms: int | None,
    slack_ms: int,
) -> dict[MessageQueue, int]:
    """Return the starts or ends of queues that an option or a store time sets; empty if neither is given."""
    if given is not None and given.where is not PositionKind.TIME:
        return await positions(engine, ends, given, slack_ms=0)
    if at_ms is None:
        return {}
    return await positions(engine, ends, Position(PositionKind.TIME, at_ms), slack_ms=slack_ms)


def _one(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
