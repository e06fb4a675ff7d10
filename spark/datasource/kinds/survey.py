"""Kind `survey`: offsets, first unconsumed messages and groups from one survey, one row for each group and queue.

A query that reads the three kinds one after the other asks the brokers three times and gets numbers of three moments.
Kind `survey` reads offsets, ends of queues and groups once, while planning (brokers/survey.py). Its tasks only look up
the first messages after the offsets that planning found, as kind `heads` does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from spark.datasource.brokers import live
from spark.datasource.brokers.positions import GroupPosition, SurveyedPositions, find_positions
from spark.datasource.brokers.survey import BrokerView
from spark.datasource.columns.batches import plan_rows, record_batch, rows_to_columns, unpack_rows
from spark.datasource.kinds.groups import groups_row
from spark.datasource.kinds.heads import EXACT, HEADS_PER_TASK, HeadQuery, ask, sort_positions
from spark.datasource.partitions import RowsPartition, chunks
from spark.datasource.pushdown import NarrowedReader
from spark.datasource.schema import GROUPS, HEADS, SURVEY

_HEAD_NAMES: Final = tuple("head_error" if name == "error" else name for name in HEADS.fieldNames())
_GROUP_NAMES: Final = tuple("group_error" if name == "error" else name for name in GROUPS.fieldNames())

_RESET_NAMES: Final = ("reset_epoch", "reset_messages")

Key = tuple[str, str, str, int]
"""Group, topic, broker and queue id."""
Facts = dict[str, Any]
"""The known columns of a row, by name."""


@dataclass(frozen=True, repr=False)
class SurveyPartition(InputPartition):
    """The questions of one task to one broker, and the known columns of each question's position."""

    broker: str
    queries: tuple[HeadQuery, ...]
    known: tuple[Facts, ...]


class SurveyReader(NarrowedReader):
    """Reads kind `survey`."""

    exact = EXACT

    def partitions(self) -> list[InputPartition]:
        """Survey the brokers and return the tasks. Raises SurveyError, ClientError, TimeoutError."""
        found = live.run(self._options, lambda engine: find_positions(engine, self._options, self._pushed))
        known = facts_of(found)
        rows, queries = sort_positions(found)
        partitions = plan_rows(
            self._schema, [survey_row(known[row[:4]], row) for row in rows], self._options.max_rows_per_partition
        )
        size = min(HEADS_PER_TASK, self._options.max_rows_per_partition)
        for broker, broker_queries in queries.items():
            # Sorting brings groups that wait at the same message together. A task asks once for all of its groups.
            broker_queries.sort(key=lambda query: query.position.region)
            partitions += [
                SurveyPartition(broker, tuple(part), tuple(known[key_of(query.position)] for query in part))
                for part in chunks(broker_queries, size)
            ]
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Look up the first messages and yield the rows. Raises TimeoutError."""
        if isinstance(partition, RowsPartition):
            yield from unpack_rows(partition.data)
        elif isinstance(partition, SurveyPartition):
            broker, queries = partition.broker, partition.queries
            heads = live.run(self._options, lambda engine: ask(engine, broker, queries))
            rows = [survey_row(facts, head) for facts, head in zip(partition.known, heads, strict=True)]
            yield record_batch(self._schema, rows_to_columns(self._schema, rows))


def key_of(position: GroupPosition) -> Key:
    """Return the key of a position."""
    return position.group, position.topic, position.broker, position.queue_id


def facts_of(found: SurveyedPositions) -> Mapping[Key, Facts]:
    """Return the columns of each position that the survey found: all but those of the first message."""
    groups: dict[tuple[str, str], Facts] = {}
    known: dict[Key, Facts] = {}
    for position in found.positions:
        view = found.survey.views[position.broker]
        if (of_group := groups.get((position.group, position.broker))) is None:
            row = groups_row(found.survey, view, position.group)
            of_group = groups[position.group, position.broker] = dict(zip(_GROUP_NAMES, row, strict=True))
        known[key_of(position)] = {
            **of_group,
            "min_offset": position.min_offset,
            "max_offset": position.max_offset,
            "committed_offset": position.committed,
            "offsets_error": position.remark,
            "read_at": view.read_at_ms if position.error is None else None,
            "clock_skew_ms": view.clock_skew_ms,
            **dict(zip(_RESET_NAMES, _reset_of(view, position), strict=True)),
        }
    return known


def _reset_of(view: BrokerView, position: GroupPosition) -> tuple[int | None, int | None]:
    return view.resets.get((position.group, position.topic, position.queue_id), (None, None))


def survey_row(facts: Facts, head: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row in the order of the schema. `head` is a row of kind `heads`."""
    whole = {**facts, **dict(zip(_HEAD_NAMES, head, strict=True))}
    return tuple(whole[name] for name in SURVEY.fieldNames())
