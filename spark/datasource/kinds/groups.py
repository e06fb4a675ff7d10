"""Kind `groups`: the number of clients of each group at each broker, and whether the group may consume.

As in kind `offsets`, planning surveys the brokers once.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from gantry.remoting.bodies.connections import ConsumerConnection
from spark.datasource.brokers import live
from spark.datasource.brokers.survey import BrokerView, Survey, survey_brokers
from spark.datasource.columns.batches import plan_rows, unpack_rows
from spark.datasource.partitions import RowsPartition
from spark.datasource.pushdown import NarrowedReader

EXACT = ("group", "broker")


class GroupsReader(NarrowedReader):
    """Reads kind `groups`."""

    exact = EXACT

    def partitions(self) -> list[InputPartition]:
        """Survey the brokers and return the tasks. Raises SurveyError, ClientError, TimeoutError."""
        survey = live.run(self._options, lambda engine: survey_brokers(engine, self._options, self._pushed))
        rows = [
            groups_row(survey, view, group)
            for view in survey.views.values()
            if self._pushed.passes("broker", view.name)
            for group in survey.groups
        ]
        return plan_rows(self._schema, rows, self._options.max_rows_per_partition)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows that planning found."""
        if isinstance(partition, RowsPartition):
            yield from unpack_rows(partition.data)


def groups_row(survey: Survey, view: BrokerView, group: str) -> tuple[Any, ...]:
    """Return the data that a broker has about a group as a row, in the order of the schema."""
    here = view.instances.get(group)
    config = view.groups.get(group)
    error = view.error or (here if isinstance(here, str) else None)
    ever_seen = _has_had_clients(survey, group)
    if ever_seen is None and survey.metadata.error is not None:
        error = "; ".join(part for part in (error, survey.metadata.error) if part is not None)
    return (
        group,
        view.name,
        # A gateway that pulls for the group over HTTP is a client, too.
        len(here.connections) + (group in survey.metadata.pulling) if isinstance(here, ConsumerConnection) else None,
        None if config is None else config.consume_enable,
        ever_seen,
        error,
    )


def _has_had_clients(survey: Survey, group: str) -> bool | None:
    answers = [view.instances.get(group) for view in survey.views.values()]
    if any(isinstance(answer, ConsumerConnection) and answer.connections for answer in answers):
        return True
    seen = survey.metadata.has_seen(group)
    # A broker that did not answer may have the first client that the group ever had.
    is_sure = all(isinstance(answer, ConsumerConnection) for answer in answers)
    return seen if seen or is_sure else None
