"""Hand-built input of the lag report: many groups, each a case of its own, so that one Spark job answers all of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructField, StructType, TimestampType

from spark.datasource.schema import SURVEY
from spark.transforms.lag import OBJECTIVE, lag_report
from spark.transforms.lagsettings import LagSettings

AS_OF = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)
SAMPLES = (
    "sampled_at timestamp, group string, topic string, broker string, queue_id int,"
    " min_offset long, max_offset long, committed_offset long, looked_at timestamp, is_served boolean,"
    " reset_messages long"
)
LOOKED_AT = StructField("looked_at", TimestampType())
NOT_LOOKED_UP = "the first unconsumed message was not looked up"
HOUR = 3_600.0
DAY = 24 * HOUR

# A sample: how long before the report, max offset, committed offset; and the min offset where it is not 0.
Sample = tuple[float, int, int | None] | tuple[float, int, int | None, int]


def ago(seconds: float) -> datetime:
    """Return a moment before the report."""
    return AS_OF - timedelta(seconds=seconds)


class World:
    """The survey and the samples, row by row."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, str, str, int], tuple[Any, ...]] = {}
        self.heads: dict[tuple[str, str, str, int], tuple[Any, ...]] = {}
        self.groups: dict[tuple[str, str], tuple[Any, ...]] = {}
        self.read_after: dict[str, float] = {}
        """Broker → how many seconds after the report was begun it gave its numbers."""
        self.looked: dict[str, float] = {}
        """Broker → how long before the report it was sampled last, and whatever had moved was written."""
        self.samples: list[tuple[Any, ...]] = []
        self.objectives: dict[str, tuple[Any, ...]] = {}
        self.resets: dict[tuple[str, str, str, int], int | None] = {}

    def topic(self, topic: str, samples: Iterable[Sample], *, broker: str = "b0", queue_id: int = 0) -> "World":
        """Add samples of a topic's own, which are no group's."""
        for at, top, _, *bottom in samples:
            self.samples.append(
                (ago(at), None, topic, broker, queue_id, bottom[0] if bottom else 0, top, None, None, None, None)
            )
        return self

    def queue(
        self,
        group: str,
        queue_id: int = 0,
        *,
        topic: str = "t",
        broker: str = "b0",
        low: int | None = 0,
        high: int | None = 100,
        committed: int | None = 100,
        error: str | None = None,
        head: Mapping[str, Any] | None = None,
        samples: Iterable[Sample] = (),
        looked: Mapping[float, float] | None = None,
        served: Mapping[float, bool] | None = None,
        resets: Mapping[float, int] | None = None,
    ) -> "World":
        """Add a queue of a group. `head` None: it was not looked up; an empty mapping: nothing is unconsumed.

        `looked`: of a sample, by how long ago it was, how long ago the look before it was. `served`: the same, whether somebody was
        connected. `resets`: the same, by how many messages resets since the sample before moved the commit; 0 s ago is the survey.
        """
        self.resets[group, topic, broker, queue_id] = (resets or {}).get(0)
        key = (group, topic, broker, queue_id)
        self.offsets[key] = (low, high, committed, error)
        self.heads[key] = head_columns({"error": NOT_LOOKED_UP} if head is None else head)
        for at, top, consumed, *bottom in samples:
            look = (looked or {}).get(at)
            looked_at = None if look is None else ago(look)
            self.samples.append(
                (
                    *(ago(at), *key, bottom[0] if bottom else 0, top, consumed),
                    *(looked_at, (served or {}).get(at), (resets or {}).get(at)),
                )
            )
        return self

    def group(
        self,
        group: str,
        *,
        clients: int | None = 2,
        enabled: bool | None = True,
        seen: bool | None = True,
        broker: str = "b0",
        error: str | None = None,
    ) -> "World":
        """Say what a broker knows of a group."""
        self.groups[group, broker] = (clients, enabled, seen, error)
        return self

    def objective(
        self,
        group: str,
        *,
        seconds: float | None = None,
        messages: int | None = None,
        ignored: bool = False,
        reason: str | None = None,
        until: datetime | None = None,
    ) -> "World":
        """Say how far behind a group may be."""
        self.objectives[group] = (None if seconds is None else float(seconds), messages, ignored, reason, until)
        return self

    def report(
        self, spark: SparkSession, settings: LagSettings | None = None, *, since: datetime | None = None
    ) -> "Report":
        """Compute the report."""
        frame = lag_report(
            self.survey_frame(spark),
            spark.createDataFrame(self.samples, SAMPLES),
            as_of=AS_OF,
            since=since,
            settings=settings,
        )
        return Report(frame.toArrow().to_pylist(), frame.columns)

    def survey_frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows of kind `survey`."""
        schema = StructType([*SURVEY.fields, LOOKED_AT])
        if not self.objectives:
            return spark.createDataFrame(self._survey(), schema)
        columns = ", ".join(f"{name} {kind}" for name, kind in OBJECTIVE.items())
        rows = [(*row, *self.objectives.get(row[0], (None,) * len(OBJECTIVE))) for row in self._survey()]
        objectives = spark.createDataFrame([], columns).schema
        return spark.createDataFrame(rows, StructType([*schema.fields, *objectives.fields]))

    def _survey(self) -> list[tuple[Any, ...]]:
        rows = []
        for key, offsets in self.offsets.items():
            (group, _, broker, _), (skew_ms, *head) = key, self.heads[key]
            answered = None not in offsets[:2]
            read_at = ago(-self.read_after.get(broker, 0.0)) if answered else None
            rows.append(
                (
                    *(*key, *offsets, read_at, skew_ms, *head),
                    *self.groups.get((group, broker), (None, None, None, None)),
                    *(None if self.resets[key] is None else 1, self.resets[key]),
                    ago(self.looked[broker]) if broker in self.looked else None,
                )
            )
        return rows


class Report:
    """The rows of a report, by group."""

    def __init__(self, rows: Sequence[dict[str, Any]], columns: list[str]) -> None:
        self.columns = columns
        self.rows = [{**row, "evidence": json.loads(row["evidence"])} for row in rows]

    def topic(self, group: str, topic: str = "t") -> dict[str, Any]:
        """Return a group's row of a topic."""
        return self._one(level="topic", group=group, topic=topic)

    def queue(self, group: str, queue_id: int = 0, *, topic: str = "t", broker: str = "b0") -> dict[str, Any]:
        """Return a group's row of a queue."""
        return self._one(level="queue", group=group, topic=topic, broker=broker, queue_id=queue_id)

    def _one(self, **wanted: Any) -> dict[str, Any]:
        found = [row for row in self.rows if all(row[name] == value for name, value in wanted.items())]
        assert len(found) == 1, (wanted, len(found))
        return found[0]


def head_columns(head: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return how far the broker's clock is ahead in ms, and what a survey says of a first message.

    Args:
        head: age (s, of the first message), offset, left (s until it expires), earliest, clock (by how much the broker's
            differs, s), tags ({tag: messages}), filter, error.
    """
    found = "age" in head
    left = head.get("left", 3 * DAY)
    tags = head.get("tags")
    skew_s = head.get("clock", 0)
    return (
        None if skew_s is None else round(skew_s * 1_000),
        head.get("filter"),
        head.get("offset", 0) if found else None,
        ago(head["age"]) if found and head["age"] is not None else None,
        None if not found or left is None else AS_OF + timedelta(seconds=left),
        head.get("earliest", False) if found else None,
        None if tags is None else [{"tag": tag, "messages": count} for tag, count in tags.items()],
        None if tags is None else sum(tags.values()),
        head.get("error"),
    )


def steady(
    *, high: int, committed: int, rate_in: float, rate_out: float, every: float = 60, count: int = 10
) -> list[Sample]:
    """Return samples of an even flow that ends at the given offsets now: the oldest first, none at `as_of` itself."""
    moments = [every * index for index in range(count, 0, -1)]
    return [(at, round(high - rate_in * at), round(committed - rate_out * at)) for at in moments]
