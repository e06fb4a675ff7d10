"""Resets of committed offsets: the gateway stores them, and samples and surveys get a column that marks them.

`reset_messages` of a row is null if there was no reset of its queue since the row before. Otherwise it is the number of
messages by which resets moved the commit (negative: backward), 0 if that is unknown. The consumption in such an
interval is unknown, so nothing of it counts as consumed.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.postgres import Connection

RESETS_MAX: Final = 100_000
"""The limit for the resets of a period. A broker keeps no more rows for a day."""
COLUMN: Final = "reset_messages"
_EXISTS: Final = "SELECT to_regclass('lag_offset_resets') IS NOT NULL"
_RESETS: Final = (
    "SELECT broker, seen_at, epoch, is_settled, group_name, topic, queue_ids, from_offsets, to_offsets"
    " FROM lag_offset_resets WHERE seen_at BETWEEN %s AND %s ORDER BY seen_at, broker, epoch LIMIT %s"
)

Key = tuple[str | None, str, str, int]
"""Group, topic, broker and queue id."""


class OffsetReset(NamedTuple):
    """A reset of a group on a topic of one broker. The lists have an item for each queue.

    Attributes:
        broker: The broker.
        seen_at: The time of the first sample that may show it.
        epoch: Its epoch on the broker.
        is_settled: Whether that sample shows it for certain. If not, a row of the next sample marks it, too.
        group, topic: The group and the topic.
        queue_ids: The queues.
        from_offsets: The committed offsets before; None if there was none.
        to_offsets: The committed offsets after; None if the offset was removed.
    """

    broker: str
    seen_at: datetime
    epoch: int
    is_settled: bool
    group: str
    topic: str
    queue_ids: Sequence[int]
    from_offsets: Sequence[int | None]
    to_offsets: Sequence[int | None]

    def moves(self) -> Iterable[tuple[Key, int]]:
        """Yield each queue, and by how many messages its commit was moved; 0 if that is unknown."""
        for queue_id, before, after in zip(self.queue_ids, self.from_offsets, self.to_offsets, strict=True):
            moved = 0 if before is None or after is None else after - before
            yield (self.group, self.topic, self.broker, queue_id), moved


def read_resets(connection: Connection, since: datetime, until: datetime) -> list[OffsetReset]:
    """Return the resets that samples of a period show, by time; none if the gateway is older than their table.

    Raises:
        psycopg.Error: The database can't be reached.
    """
    exists = connection.execute(_EXISTS).fetchone()
    if exists is None or not exists[0]:
        return []
    rows = connection.execute(_RESETS, (since, until, RESETS_MAX)).fetchall()
    return [OffsetReset(*row) for row in rows]


def mark_samples(table: pa.Table, resets: Sequence[OffsetReset]) -> pa.Table:
    """Set `reset_messages` in samples: a reset belongs to the first row of its queue at `seen_at` or later.

    Args:
        table: Samples, with the columns group, topic, broker, queue_id, sampled_at and reset_messages.
        resets: The resets.
    """
    if not resets or table.num_rows == 0:
        return table
    groups = pa.array(sorted({one.group for one in resets}), pa.string())
    places = np.flatnonzero(pc.fill_null(pc.is_in(table["group"], groups), False).to_numpy(zero_copy_only=False))
    some = table.take(pa.array(places)).select(["group", "topic", "broker", "queue_id", "sampled_at"])
    rows: dict[Key, list[tuple[datetime, int]]] = {}
    for place, group, topic, broker, queue_id, at in zip(
        places.tolist(), *(column.to_pylist() for column in some.columns), strict=True
    ):
        rows.setdefault((group, topic, broker, queue_id), []).append((at, place))
    for found in rows.values():
        found.sort()
    marks: dict[int, int] = {}
    for reset in resets:
        for key, moved in reset.moves():
            of_queue = rows.get(key, [])
            first = bisect_left(of_queue, (reset.seen_at, -1))
            if first < len(of_queue):
                place = of_queue[first][1]
                marks[place] = marks.get(place, 0) + moved
    return _with_marks(table, marks)


def mark_survey(table: pa.Table, resets: Sequence[OffsetReset]) -> pa.Table:
    """Keep `reset_messages` of a survey only for resets that no sample shows.

    Args:
        table: Rows of kind `survey`, with the epoch of each queue's latest reset within the last hour.
        resets: The resets that samples show.
    """
    known = {(key, reset.epoch) for reset in resets if reset.is_settled for key, _ in reset.moves()}
    columns = [table[name].to_pylist() for name in ("group", "topic", "broker", "queue_id", "reset_epoch", COLUMN)]
    marks = {
        place: moved or 0
        for place, (group, topic, broker, queue_id, epoch, moved) in enumerate(zip(*columns, strict=True))
        if epoch is not None and ((group, topic, broker, queue_id), epoch) not in known
    }
    return _with_marks(table, marks)


def _with_marks(table: pa.Table, marks: Mapping[int, int]) -> pa.Table:
    values = np.zeros(table.num_rows, dtype=np.int64)
    is_null = np.ones(table.num_rows, dtype=np.bool_)
    for place, moved in marks.items():
        values[place], is_null[place] = moved, False
    index = table.schema.get_field_index(COLUMN)
    return table.set_column(index, table.schema.field(index), [pa.array(values, pa.int64(), mask=is_null)])
