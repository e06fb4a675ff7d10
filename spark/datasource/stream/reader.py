"""`readStream`: reads messages as they arrive, each exactly once per checkpoint.

Spark writes the end of a batch to the checkpoint before it reads the batch (offsets.py). The end says what the
batch reads, so a batch that is read again returns the same rows.

Queues come and go. A queue that is not in the start of a batch begins at 0, before everything that it can hold. Unread
messages that are gone are a loss (dataloss.py): the query fails or, with `failOnDataLoss=false`, the log has a warning.
The queues of a broker that does not answer keep their positions: a missing answer does not mean a loss.

A position in a queue has the identity of the last message read. For each batch, and whenever the queue has changed, the
reader asks the master which message is there (positionchecks.py). If it is another message, the queue is not the one that
was read.

Concurrency: Spark calls one method after the other. All methods except `read` run in one process, which lives as long
as the query.
"""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
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
from spark.datasource.brokers import live
from spark.datasource.brokers.topicqueues import TopicBroker, TopicQueues, find_queues
from spark.datasource.dataloss import report_losses
from spark.datasource.kinds.messages import read_regions, row_filter, starts_of
from spark.datasource.options import Options, PositionKind
from spark.datasource.partitions import RegionsPartition, plan_regions
from spark.datasource.pushdown import Pushed
from spark.datasource.stream.offsets import (
    StreamOffsets,
    StreamPosition,
    decode_offset,
    encode_offset,
    planned_regions,
    without_batch,
)
from spark.datasource.stream.plan import Evidence, Plan, plan_batch
from spark.datasource.stream.positionchecks import (
    CheckedPositions,
    MessageAnswers,
    ask_messages,
    explain_all,
    find_hidden,
    find_suspects,
    queried_positions,
)

log = logger("spark.stream")

SURVEYS_MAX: Final = 5
SURVEY_PAUSE_S: Final = 0.2
"""The pause between two surveys. If there is nothing to read, Spark itself asks again after 10 ms, and each survey
connects to all brokers."""
EXPLANATIONS_MAX: Final = 3
"""The limit for surveys in a row that show queues made again since the survey before."""


class MessageStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the messages of topics."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._target: dict[MessageQueue, int] | None = None
        """The ends at which a query with Trigger.AvailableNow stops; None for other queries."""
        self._latest: dict[MessageQueue, int] = {}
        self._turn = 0
        self._unknown: set[TopicBroker] = set()
        self._checked: CheckedPositions = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        """Return the start of a new query: option `from`, or the min offset of each queue.

        Raises:
            MissingMessagesError: Not all queues can be asked about, so some would begin at the wrong offset.
            DataLossError: A queue no longer has its start offset.
            ClientError, TimeoutError: No server answers.
        """
        return encode_offset(live.run(self._options, self._begin))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name.
        """Return the limit that option `maxMessagesPerTrigger` sets."""
        limit = self._options.max_messages_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        """Return the end of the next batch. Wait a little if there is nothing new.

        Raises:
            ValueError: The start can't be decoded, or the kind of limit is not supported.
            DataLossError: Unread messages are gone.
            ClientError, TimeoutError: No server answers, and the query has Trigger.AvailableNow.
        """
        starts, rows_max = without_batch(decode_offset(start)), _rows_max(limit)
        ends = live.run(self._options, lambda engine: self._next(engine, starts, rows_max))
        self._turn += 1
        # Spark compares the texts of offsets: only the same text means that there is nothing new.
        return start if ends == starts else encode_offset(ends)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name.
        """Return the ends of the queues at the last survey."""
        return (
            encode_offset({queue: StreamPosition(end) for queue, end in self._latest.items()}) if self._latest else None
        )

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name.
        """Store the present ends of the queues. The query stops there."""
        found = live.run(self._options, lambda engine: self._find_queues(engine, {}))
        self._log_unknown(found.unknown)
        self._target = {queue: held.end for queue, held in found.ends.items()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of a batch. The same offsets always give the same tasks."""
        return list(plan_regions(planned_regions(start, end), self._options.max_rows_per_partition))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a task. Raises DataLossError, ClientError, TimeoutError."""
        if isinstance(partition, RegionsPartition):
            wanted = row_filter(self._options, Pushed())
            yield from read_regions(self._options, self._schema, partition.regions, wanted)

    async def _begin(self, engine: ClientEngine) -> StreamOffsets:
        found, starts = await starts_of(engine, self._options, Pushed())
        answers = await ask_messages(
            engine, [(queue, at - 1) for queue, at in starts.items() if found.ends[queue].first < at]
        )
        given = self._options.start
        first = given.value if given is not None and given.where is PositionKind.OFFSET else 0
        return {
            queue: StreamPosition(
                at, last=answers.identity(queue, at - 1), wanted_from=first if first > found.ends[queue].end else None
            )
            for queue, at in starts.items()
        }

    async def _next(self, engine: ClientEngine, starts: StreamOffsets, rows_max: int | None) -> StreamOffsets:
        """Survey the queues until there is something to read, SURVEYS_MAX times at most. Spark asks again at once."""
        for _ in range(SURVEYS_MAX):
            try:
                plan = await self._plan(engine, starts, rows_max)
            except ClientError as error:
                if self._target is not None:
                    raise
                self._log_unknown({("", ""): str(error)})
            else:
                report_losses(plan.losses, is_failure=self._options.fail_on_data_loss)
                if plan.ends != starts or self._target is not None:
                    return plan.ends
            await asyncio.sleep(SURVEY_PAUSE_S)
        return starts

    async def _plan(self, engine: ClientEngine, starts: StreamOffsets, rows_max: int | None) -> Plan:
        """Decide where the next batch ends, and make sure that the queues are the ones that were read.

        Raises:
            ClientError: No server answers, or queues are deleted and made again repeatedly.
        """
        evidence = Evidence()
        for _ in range(EXPLANATIONS_MAX):
            found = await self._find_queues(engine, starts)
            while True:
                evidence.hidden = {}
                plan = plan_batch(starts, found, evidence, self._target, rows_max=rows_max, turn=self._turn)
                answers = await ask_messages(engine, queried_positions(starts, found, plan.ends, self._checked))
                if not answers.unreachable:
                    break
                for broker, reason in answers.unreachable.items():
                    found.discard(broker, reason)
            self._log_unknown(found.unknown)
            suspects = find_suspects(starts, found, answers) - evidence.restarts.keys()
            if not suspects:
                evidence.hidden = find_hidden(starts, found, answers)
                plan = plan_batch(starts, found, evidence, self._target, rows_max=rows_max, turn=self._turn)
                return self._settled(starts, found, plan, answers)
            # Survey the queues again: they may have changed meanwhile.
            evidence.restarts |= await explain_all(engine, suspects, starts, found, answers)
        raise ClientError("queues are deleted and made again repeatedly")

    def _settled(self, starts: StreamOffsets, found: TopicQueues, plan: Plan, answers: MessageAnswers) -> Plan:
        """Return a plan with the identities of its last messages, and note the positions that were checked."""
        self._checked = {queue: (at, found.ends[queue]) for queue, at in starts.items() if queue in found.ends}
        ends = {
            queue: at if at.first is None else replace(at, last=answers.identity(queue, at.next - 1))
            for queue, at in plan.ends.items()
        }
        return Plan(ends, plan.losses)

    async def _find_queues(self, engine: ClientEngine, known: Mapping[MessageQueue, StreamPosition]) -> TopicQueues:
        topics = self._options.topics
        # The queues of topics that are no longer requested keep their positions.
        known_pairs = {(queue.topic, queue.broker_name) for queue in known if topics is None or queue.topic in topics}
        found = await find_queues(engine, self._options, Pushed(), also=known_pairs)
        self._latest = {queue: held.end for queue, held in found.ends.items()}
        return found

    def _log_unknown(self, unknown: Mapping[TopicBroker, str]) -> None:
        """Log the queues that can't be asked about, once for as long as that lasts."""
        for (topic, broker), reason in sorted(unknown.items()):
            if (topic, broker) not in self._unknown:
                log.warning(
                    "queues keep their position, because their broker can't be asked",
                    topic=topic,
                    broker=broker,
                    reason=reason,
                )
        self._unknown = set(unknown)


def _rows_max(limit: ReadLimit) -> int | None:
    if isinstance(limit, ReadAllAvailable):
        return None
    if isinstance(limit, ReadMaxRows):
        return limit.max_rows
    raise ValueError(f"limit: {limit!r} can't be kept; only rows can be counted beforehand")
