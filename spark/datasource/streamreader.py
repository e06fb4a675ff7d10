"""`readStream`: messages as they come, each exactly once per checkpoint.

An offset is a JSON object: `{"version": 1, "topics": {topic: {broker: {queue id: next queue offset}}}}`, with sorted
keys, since Spark compares offsets as texts. Spark writes the end of a batch down before it reads it, and `[start, end)`
of a queue always means the same messages: so a batch that is read again gives the same rows.

Queues come and go. One that is not in the start of a batch begins at 0, which is before everything it can hold. A
topic that its own broker says it does not have leaves the offset, so that one made anew under its name begins at its
beginning; a broker that does not answer keeps its place. What retention removes before it was read is said in the log.

Concurrency: Spark calls one method after the other, all but `read` in one process that lives as long as the query.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.message import MessageQueue
from gantry.runtime.telemetry import logger
from spark.datasource import live
from spark.datasource.messages import read_regions, row_filter, starts_of
from spark.datasource.options import Options
from spark.datasource.partitions import Region, RegionsPartition, plan_regions
from spark.datasource.pushdown import Pushed
from spark.datasource.topicqueues import Ends, Place, TopicQueues, look

log = logger("spark.stream")

VERSION: Final = 1
FIRST: Final = 0
"""Where a queue begins that is new."""
LOOKS_MAX: Final = 5
LOOK_AGAIN_S: Final = 0.2
"""Spark asks again 10 ms after it was told that there is nothing, and each time means connections to all brokers."""

QueueOffsets = dict[MessageQueue, int]


class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the messages of topics."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: QueueOffsets | None = None
        """Where a query that reads what is there ends; None for one that goes on."""
        self._latest: QueueOffsets = {}
        self._turn = 0
        self._unknown: set[Place] = set()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        """Return where a new query begins: option `from`, or what each queue holds first.

        Raises:
            MessagesError: Not all queues can be asked, so that some would begin at the wrong place.
            ClientError, TimeoutError: Nobody answers.
        """
        _, starts = live.run(self._options, lambda engine: starts_of(engine, self._options, Pushed()))
        return encode_offset(starts)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name.
        """Return option `maxMessagesPerTrigger`."""
        limit = self._options.max_messages_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        """Return where the next batch ends; waits a little where there is nothing new.

        Raises:
            ValueError: The start or the limit can't be understood.
            ClientError, TimeoutError: Nobody answers a query that is to end.
        """
        starts, rows_max = decode_offset(start), _rows_max(limit)
        ends = live.run(self._options, lambda engine: self._next(engine, starts, rows_max))
        self._turn += 1
        return encode_offset(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name.
        """Return what the queues held at the last look."""
        return encode_offset(self._latest) if self._latest else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name.
        """Take note of what there is: the query ends there."""
        found = live.run(self._options, lambda engine: self._look(engine, {}))
        self._target = {queue: held.end for queue, held in found.ends.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch: the same for the same offsets."""
        regions = regions_between(decode_offset(start), decode_offset(end))
        return list(plan_regions(regions, self._options.max_rows_per_partition))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a task. Raises ClientError, TimeoutError."""
        if isinstance(partition, RegionsPartition):
            wanted = row_filter(self._options, Pushed())
            yield from read_regions(self._options, self._schema, partition.regions, wanted)

    async def _next(self, engine: ClientEngine, starts: QueueOffsets, rows_max: int | None) -> QueueOffsets:
        """Look until there is something to read, or for a while; Spark asks again at once."""
        for _ in range(LOOKS_MAX):
            try:
                found = await self._look(engine, starts)
            except ClientError as error:
                if self._target is not None:
                    raise
                self._say({("", ""): str(error)})
            else:
                ends = next_ends(starts, found, self._target, rows_max=rows_max, turn=self._turn)
                if ends != starts or self._target is not None:
                    return ends
            await asyncio.sleep(LOOK_AGAIN_S)
        return starts

    async def _look(self, engine: ClientEngine, known: Mapping[MessageQueue, int]) -> TopicQueues:
        topics = self._options.topics
        # What is no longer asked for keeps its place.
        places = {(queue.topic, queue.broker_name) for queue in known if topics is None or queue.topic in topics}
        found = await look(engine, self._options, Pushed(), also=places)
        self._say(found.unknown)
        self._latest = {queue: held.end for queue, held in found.ends.items()}
        return found

    def _say(self, unknown: Mapping[Place, str]) -> None:
        """Say what can't be asked, once as long as it stays so."""
        for (topic, broker), reason in sorted(unknown.items()):
            if (topic, broker) not in self._unknown:
                log.warning("queues keep their place, nobody can be asked", topic=topic, broker=broker, reason=reason)
        self._unknown = set(unknown)


def encode_offset(offsets: Mapping[MessageQueue, int]) -> dict[str, Any]:
    """Return queue offsets as Spark writes them down."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    for queue in sorted(offsets):
        topics.setdefault(queue.topic, {}).setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return {"version": VERSION, "topics": topics}


def decode_offset(offset: Mapping[str, Any]) -> QueueOffsets:
    """Read what `encode_offset` wrote.

    Raises:
        ValueError: Another release wrote it, or somebody else.
    """
    if offset.get("version") != VERSION or not isinstance(offset.get("topics"), dict):
        raise ValueError(f"checkpoint: version {offset.get('version')!r} of the offsets is not {VERSION}")
    return {
        MessageQueue(topic, broker, int(queue_id)): int(at)
        for topic, brokers in offset["topics"].items()
        for broker, queues in brokers.items()
        for queue_id, at in queues.items()
    }


def next_ends(
    starts: Mapping[MessageQueue, int],
    found: TopicQueues,
    target: Mapping[MessageQueue, int] | None,
    *,
    rows_max: int | None,
    turn: int = 0,
) -> QueueOffsets:
    """Return where the next batch ends in each queue.

    Args:
        starts: Where it begins; queues that are missing are new.
        found: What the brokers say just now.
        target: Beyond which nothing is read, and queues that are not in it not at all; None: no such end.
        rows_max: How many messages the batch may have; None: all there are.
        turn: Counts the batches, so that each queue is the first one once.
    """
    ends = {queue: at for queue, at in starts.items() if (queue.topic, queue.broker_name) not in found.gone}
    for place in sorted({(queue.topic, queue.broker_name) for queue in starts} & found.gone):
        log.warning("the topic is gone from its broker", topic=place[0], broker=place[1])
    available: dict[MessageQueue, Ends] = {}
    for queue, held in sorted(found.ends.items()):
        limit = held.end if target is None else min(held.end, target.get(queue, -1))
        if limit < 0:
            continue
        start = starts.get(queue, FIRST)
        if start > held.end:
            _log_behind(queue, start, held)
            ends[queue] = held.end if target is None else start
            continue
        first = max(start, held.first)
        if queue in starts and first > start:
            _log_removed(queue, start, held)
        # Even where there is nothing to read: the place is then known, and what comes is not taken for old.
        ends[queue] = start
        if first < limit:
            available[queue] = Ends(first, limit)
        else:
            # What was removed is gone over.
            ends[queue] = max(start, min(first, limit))
    shares = fair_shares({queue: held.end - held.first for queue, held in available.items()}, rows_max, turn=turn)
    for queue, held in available.items():
        if shares[queue]:
            ends[queue] = held.first + shares[queue]
    return ends


def fair_shares(available: Mapping[MessageQueue, int], rows_max: int | None, *, turn: int = 0) -> QueueOffsets:
    """Split a limit over queues: everyone gets the same, and what some don't need the others get.

    What can't be split evenly goes to some of them, to others at the next turn, so that with more queues than messages
    allowed none waits for ever.
    """
    if rows_max is None or sum(available.values()) <= rows_max:
        return dict(available)
    shares: QueueOffsets = {}
    left, waiting = rows_max, sorted(available, key=lambda queue: (available[queue], queue))
    while waiting:
        share = left // len(waiting)
        if available[waiting[0]] > share:
            break
        shares[waiting[0]] = available[waiting[0]]
        left -= available[waiting.pop(0)]
    share, rest = divmod(left, len(waiting)) if waiting else (0, 0)
    waiting.sort()
    for place, queue in enumerate(waiting):
        shares[queue] = share + ((place - turn * max(rest, 1)) % len(waiting) < rest)
    return shares


def regions_between(starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]) -> list[Region]:
    """Return what a batch reads of each queue; one that ends before it begins has nothing to read."""
    return [
        Region(queue.topic, queue.broker_name, queue.queue_id, start, end)
        for queue, end in sorted(ends.items())
        if (start := starts.get(queue, FIRST)) < end
    ]


def _rows_max(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadAllAvailable):
        return None
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    raise ValueError(f"limit: {limit!r} can't be kept; only rows can be counted beforehand")


def _log_removed(queue: MessageQueue, start: int, held: Ends) -> None:
    log.warning(
        "messages were removed before they were read",
        topic=queue.topic, broker=queue.broker_name, queue_id=queue.queue_id,
        first=start, end=held.first, messages=min(held.first, held.end) - start,
    )  # fmt: skip


def _log_behind(queue: MessageQueue, start: int, held: Ends) -> None:
    log.error(
        "the queue ends before what was read of it: made anew, or its broker lost messages; reading goes on at its end",
        topic=queue.topic, broker=queue.broker_name, queue_id=queue.queue_id, read_to=start, end=held.end,
    )  # fmt: skip
