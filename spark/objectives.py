"""Objectives of groups: reads them from Postgres, and adds them as columns to the survey of a lag report."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa

from spark.postgres import Connection

ALL_TOPICS: Final = ""
SCHEMA: Final = pa.schema(
    [
        ("max_lag_seconds", pa.float64()),
        ("max_lag_messages", pa.int64()),
        ("is_ignored", pa.bool_()),
        ("ignore_reason", pa.string()),
        ("ignore_until", pa.timestamp("us", tz="UTC")),
    ]
)


@dataclass(frozen=True, slots=True)
class Objective:
    """The limits for the lag of a group. If a limit is None, the report's own thresholds apply."""

    max_lag_seconds: float | None = None
    max_lag_messages: int | None = None
    ignore: bool = False
    reason: str | None = None
    ignore_until: datetime | None = None

    def row(self, now: datetime) -> dict[str, Any]:
        """Return the objective as a row of SCHEMA. After `ignore_until`, the group is no longer ignored."""
        is_ignored = self.ignore and (self.ignore_until is None or self.ignore_until > now)
        return {
            "max_lag_seconds": self.max_lag_seconds,
            "max_lag_messages": self.max_lag_messages,
            "is_ignored": is_ignored,
            "ignore_reason": self.reason if is_ignored else None,
            "ignore_until": self.ignore_until if is_ignored else None,
        }


Objectives = Mapping[tuple[str, str], Objective]
"""(group, topic) → objective. The topic is ALL_TOPICS for an objective of the whole group."""


def read_objectives(connection: Connection) -> Objectives:
    """Return all objectives. Raises psycopg.Error."""
    rows = connection.execute(
        "SELECT group_name, topic, max_lag_seconds, max_lag_messages, ignore, reason, ignore_until FROM lag_objectives"
    ).fetchall()
    return {(row[0], row[1]): Objective(*row[2:]) for row in rows}


def with_objectives(survey: pa.Table, objectives: Objectives, now: datetime) -> pa.Table:
    """Add the columns of SCHEMA to rows with `group` and `topic`. A topic's own objective replaces its group's."""
    rows: list[dict[str, Any]] = [Objective().row(now)] * survey.num_rows
    if objectives:
        by_group = {group for group, _ in objectives}
        topics = survey["topic"].to_pylist()
        for at, group in enumerate(survey["group"].to_pylist()):
            if group in by_group:
                found = objectives.get((group, topics[at])) or objectives.get((group, ALL_TOPICS)) or Objective()
                rows[at] = found.row(now)
    columns = pa.Table.from_pylist(rows, schema=SCHEMA)
    for name in SCHEMA.names:
        survey = survey.append_column(SCHEMA.field(name), columns[name])
    return survey
