"""Samples of lag from Postgres, as a Spark frame with a row for each queue.

Table lag_sample_blocks has a row for each look at a broker that found movement. One binary value of the row holds all
groups (docs/formats/samples.md). A block of changes has the groups that moved since the previous block. A block of all
groups is written every five minutes. So each group has rows for the times at which something moved, and every five
minutes. Between two rows of a group, nothing moved until the last round before the second row. A topic without a
sampled group has rows without a group.

The samples of a day have millions of numbers. So bytes are decoded directly into numpy's columns, without a Python
object for each number.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from psycopg import sql
from pyarrow import parquet
from pyspark import SparkFiles
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from gantry.model.laghistory import WRITTEN_EVERY
from gantry.model.sampleblock import SERVED, Kind, Pair, SampleBlockError, decode_block
from gantry.runtime.telemetry import logger
from spark.lagblocks import UNKNOWN, BlockContent, block_content
from spark.master import is_local_master
from spark.offsetresets import mark_samples, read_resets
from spark.oldsamples import count_old_rows, read_old_samples
from spark.postgres import Connection

log = logger("spark.samples")

ROWS_MAX: Final = 2_000_000
"""The limit for the rows in one frame, one row for each queue. If there are more, only some samples are read."""
STEPS: Final = tuple(timedelta(seconds=seconds) for seconds in (30, 60, 120, 300, 900, 3_600))
ROW_GROUP_ROWS: Final = 128 * 1_024
"""The number of rows that one task reads from a file of samples."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MOMENT: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        ("sampled_at", _MOMENT),
        ("group", pa.string()),
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue_id", pa.int32()),
        ("min_offset", pa.int64()),
        ("max_offset", pa.int64()),
        ("committed_offset", pa.int64()),
        ("looked_at", _MOMENT),
        ("is_served", pa.bool_()),
        ("reset_messages", pa.int64()),
    ]
)
_SERVED: Final = pa.array(SERVED, pa.bool_())
_FULL_WITHIN: Final = timedelta(hours=2)
"""A full block is written every hour."""
_BLOCKS_AT_ONCE: Final = 20
_BLOCKS: Final = (
    "SELECT sampled_at, broker, kind, based_at, data FROM lag_sample_blocks"
    " WHERE sampled_at BETWEEN {} AND {} AND kind >= {} ORDER BY broker, sampled_at"
)
# The last block of all pairs in a step has the state at the end of the step, so it includes the changes before it.
_LAST_BLOCKS: Final = (
    "SELECT DISTINCT ON (broker, date_bin({step}, sampled_at, 'epoch')) sampled_at, broker, kind, based_at, data"
    " FROM lag_sample_blocks WHERE sampled_at BETWEEN {} AND {} AND kind >= {}"
    " ORDER BY broker, date_bin({step}, sampled_at, 'epoch'), sampled_at DESC"
)
_BASE: Final = "SELECT data FROM lag_sample_blocks WHERE sampled_at = %s AND broker = %s AND based_at IS NULL"
_ROUNDS: Final = "SELECT sampled_at, took_ms, missing FROM lag_sample_rounds WHERE {} ORDER BY sampled_at"
_SLACK: Final = timedelta(seconds=1)
"""The tolerance for the length of a round, which was measured with another clock. The pause between rounds is much
longer."""


class SamplingRound(NamedTuple):
    """A look of the sampler at all brokers: its start, its length, and the brokers that did not answer."""

    began_at: datetime
    took_ms: int
    missing: Sequence[str]


class BrokerBlock(NamedTuple):
    """The content of a block, combined with its base."""

    broker: str
    kind: Kind
    content: BlockContent


def read_samples(
    connection: Connection,
    *,
    since: datetime,
    until: datetime,
    groups: Sequence[str] | None = None,
    with_topics: bool = False,
) -> pa.Table:
    """Return the samples of a period, a row for each queue, and the state at the beginning of the period.

    Args:
        connection: A connection to the database.
        since: The start of the period. Samples since WRITTEN_EVERY before it are returned, too, because a group that
            did not change has its last row there.
        until: The end of the period, inclusive.
        groups: The groups; None for all.
        with_topics: Whether to include samples of topics without a group. It has no effect if groups are named.

    Returns:
        A table of SCHEMA. `group` is null in a row of a topic without a group. `looked_at` is the start of the round
        before the row's round: nothing moved between the previous row and that time. It is null if that is unknown,
        because the broker did not answer in that round, or because rows are left out. `is_served` is whether a client
        of the group was connected when the group's commits on the broker last moved; null if that is unknown.
        `reset_messages`: see spark/offsetresets.py.

    Raises:
        psycopg.Error: The database can't be reached, or its tables do not exist.
    """
    begin = since - WRITTEN_EVERY
    chosen = None if groups is None else frozenset(groups)

    def is_wanted(pair: Pair) -> bool:
        return (pair[0] is not None or with_topics) if chosen is None else pair[0] in chosen

    rows = _count_rows(connection, begin, until) + count_old_rows(connection, begin, until)
    if chosen is not None and rows > ROWS_MAX:
        rows = round(rows * _share(connection, begin, until, is_wanted))
    step = choose_step(rows, until - begin)
    with read_blocks(connection, since=begin, until=until, step=step, is_wanted=is_wanted) as blocks:
        new = to_table(blocks if step is None else _last_of_steps(blocks, step))
    old = read_old_samples(connection, since=begin, until=until, groups=groups, with_topics=with_topics, step=step)
    for name in ("is_served", "reset_messages"):
        old = old.append_column(SCHEMA.field(name), pa.nulls(old.num_rows, SCHEMA.field(name).type))
    table = pa.concat_tables([old, new]) if old.num_rows else new
    table = mark_samples(table, read_resets(connection, begin, until))
    if step is not None:
        return table  # Rows are left out, and something may have moved in them. So `looked_at` stays null.
    stretch = sql.SQL("sampled_at BETWEEN {} AND {}").format(sql.Literal(begin), sql.Literal(until))
    rounds = connection.execute(sql.SQL(_ROUNDS).format(stretch)).fetchall()
    return with_looked_at(table, [SamplingRound(*found) for found in rounds])


@contextmanager
def read_blocks(
    connection: Connection,
    *,
    since: datetime,
    until: datetime,
    step: timedelta | None = None,
    kind: Kind = Kind.CHANGES,
    is_wanted: Callable[[Pair], bool],
) -> Iterator[Iterator[BrokerBlock]]:
    """Yield the samples of brokers in a period, by broker and then by time.

    A block that is damaged or has no base is left out, and logged.

    Args:
        connection: A connection to the database.
        since: The start of the period, inclusive.
        until: The end of the period, inclusive.
        step: The length of a step. If it is five minutes or more, only the last block of all pairs in each step is
            read.
        kind: The lowest kind of the blocks to read, such as STATE for the blocks of all pairs.
        is_wanted: Returns whether to list a pair.
    """
    kind = Kind.STATE if step is not None and step >= WRITTEN_EVERY else kind
    query = sql.SQL(_LAST_BLOCKS if step is not None and kind is Kind.STATE else _BLOCKS).format(
        sql.Literal(since), sql.Literal(until), sql.Literal(int(kind)), step=sql.Literal(step)
    )
    bases = _BlockReader(connection, is_wanted)
    # A cursor on the server, because the blocks of a large cluster have megabytes.
    with connection.transaction(), connection.cursor("samples", binary=True) as cursor:
        cursor.itersize = _BLOCKS_AT_ONCE
        cursor.execute(query)
        yield (block for row in cursor if (block := bases.read(*row)) is not None)


class _BlockReader:
    """Combines blocks with their full blocks. Blocks come by broker and time, so only the last full block is kept."""

    def __init__(self, connection: Connection, is_wanted: Callable[[Pair], bool]) -> None:
        self._connection = connection
        self._is_wanted = is_wanted
        self._base_key: tuple[datetime, str] | None = None
        self._base: BlockContent | None = None
        self._wanted: NDArray[np.bool_] = np.empty(0, dtype=np.bool_)

    def read(
        self, sampled_at: datetime, broker: str, kind: int, based_at: datetime | None, data: bytes
    ) -> BrokerBlock | None:
        at_ms = _millis(sampled_at)
        try:
            base = None if based_at is None else self._find_base(based_at, broker)
            content = block_content(decode_block(data), Kind(kind), at_ms=at_ms, base=base)
        except SampleBlockError as error:
            log.warning("a sample can't be read", broker=broker, sampled_at=sampled_at.isoformat(), reason=str(error))
            return None
        if based_at is None:
            self._set_base(sampled_at, broker, content)
        wanted = np.concatenate([self._wanted, self._selected(content.pairs[len(self._wanted) :])])
        return BrokerBlock(broker, Kind(kind), content.only(wanted[content.places]))

    def _find_base(self, based_at: datetime, broker: str) -> BlockContent:
        if self._base_key != (based_at, broker) or self._base is None:
            row = self._connection.execute(_BASE, (based_at, broker), binary=True).fetchone()
            if row is None:
                raise SampleBlockError(f"its base of {based_at.isoformat()} is missing")
            base = block_content(decode_block(row[0]), Kind.FULL, at_ms=_millis(based_at))
            self._set_base(based_at, broker, base)
            return base
        return self._base

    def _set_base(self, sampled_at: datetime, broker: str, base: BlockContent) -> None:
        self._base_key, self._base = (sampled_at, broker), base
        self._wanted = self._selected(base.pairs)

    def _selected(self, pairs: Sequence[Pair]) -> NDArray[np.bool_]:
        return np.fromiter(map(self._is_wanted, pairs), dtype=np.bool_, count=len(pairs))


def _count_rows(connection: Connection, since: datetime, until: datetime) -> int:
    row = connection.execute(
        "SELECT coalesce(sum(queues), 0) FROM lag_sample_blocks WHERE sampled_at BETWEEN %s AND %s", (since, until)
    ).fetchone()
    assert row is not None
    return int(row[0])


def _share(connection: Connection, since: datetime, until: datetime, is_wanted: Callable[[Pair], bool]) -> float:
    """Return the wanted part of all queues, from 0 to 1, by the full blocks of the last two hours or more."""
    total = wanted = 0
    with read_blocks(
        connection, since=min(since, until - _FULL_WITHIN), until=until, kind=Kind.FULL, is_wanted=lambda _: True
    ) as blocks:
        for _, _, content in blocks:
            chosen = np.fromiter(map(is_wanted, content.pairs), dtype=np.bool_, count=len(content.pairs))
            total += len(content.queue_ids)
            wanted += int(content.counts[chosen].sum())
    return wanted / total if total else 1.0


def _last_of_steps(blocks: Iterable[BrokerBlock], step: timedelta) -> Iterator[BrokerBlock]:
    """Yield the last sample of each pair in each step. Offsets only grow, so only exact times are lost."""
    step_ms = step // _MILLISECOND
    for _, found in groupby(blocks, key=lambda block: (block.broker, block.content.at_ms // step_ms)):
        seen: set[Pair] = set()
        for block in reversed(list(found)):
            pairs = block.content.pairs
            listed = [pairs[place] for place in block.content.places]
            new = np.fromiter((pair not in seen for pair in listed), dtype=np.bool_, count=len(listed))
            seen.update(listed)
            if new.any():
                yield block._replace(content=block.content.only(new))


def to_table(blocks: Iterable[BrokerBlock]) -> pa.Table:
    """Return looks as a table of SCHEMA, without `looked_at`."""
    batches = []
    for broker, _, content in blocks:
        queues = len(content.queue_ids)
        if queues == 0:
            continue
        places = np.repeat(content.places, content.counts)
        groups = pa.array([group for group, _ in content.pairs], pa.string())
        topics = pa.array([topic for _, topic in content.pairs], pa.string())
        columns = [
            pa.array(np.full(queues, content.at_ms * 1_000), _MOMENT),
            groups.take(pa.array(places)),
            topics.take(pa.array(places)),
            pa.repeat(pa.scalar(broker, pa.string()), queues),
            pa.array(content.queue_ids.astype(np.int32)),
            pa.array(content.min_offsets),
            pa.array(content.max_offsets),
            pa.array(content.committed, mask=content.committed == UNKNOWN),
            pa.nulls(queues, _MOMENT),
            _SERVED.take(pa.array(np.repeat(content.served, content.counts))),
            pa.nulls(queues, pa.int64()),
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=SCHEMA))
    return pa.Table.from_batches(batches, schema=SCHEMA)


def with_looked_at(table: pa.Table, rounds: Sequence[SamplingRound]) -> pa.Table:
    """Set `looked_at`: the start of the round before a row's round, if the row's broker answered in that round.

    Args:
        table: A table of SCHEMA.
        rounds: The rounds by time. A row belongs to the last round that began before it, if that round had not ended.
    """
    if not rounds or table.num_rows == 0:
        return table
    began = np.array([_micros(one.began_at) for one in rounds], dtype=np.int64)
    until = began + np.array([one.took_ms * 1_000 for one in rounds], dtype=np.int64) + _SLACK // _MICROSECOND
    at = table.column("sampled_at").cast(pa.int64()).to_numpy()
    own = np.searchsorted(began, at, side="right") - 1
    known: NDArray[np.bool_] = (own >= 1) & (at <= until[own])
    for index, before in enumerate(rounds):
        if before.missing:
            away = pc.is_in(table.column("broker"), pa.array(before.missing, pa.string())).to_numpy()
            known &= ~((own == index + 1) & away)
    content = pa.array(began[np.maximum(own - 1, 0)], mask=~known, type=pa.int64())
    index = SCHEMA.get_field_index("looked_at")
    field = SCHEMA.field(index)
    return table.set_column(index, field, content.cast(pa.timestamp("us")).cast(field.type))


def last_looked_at(
    connection: Connection, read_at: Mapping[str, datetime], *, samples: pa.Table, gap: timedelta
) -> dict[str, datetime]:
    """Return the time up to which samples include all movements on a broker, by broker.

    Brokers for which this time is unknown are missing.

    Args:
        connection: A connection to the database.
        read_at: The time at which the report read each broker.
        samples: The result of `read_samples`.
        gap: The shortest time between the start of the round and the time in `read_at`.

    Raises:
        psycopg.Error: The database can't be reached, or its tables do not exist.
    """
    # If rows are left out, something may have moved in them.
    if not read_at or samples["looked_at"].null_count == samples.num_rows:
        return {}
    stretch = sql.SQL("sampled_at BETWEEN {} AND {}").format(
        sql.Literal(min(read_at.values()) - WRITTEN_EVERY), sql.Literal(max(read_at.values()) - gap)
    )
    rounds = [SamplingRound(*found) for found in connection.execute(sql.SQL(_ROUNDS).format(stretch)).fetchall()]
    found: dict[str, datetime] = {}
    for broker, at in read_at.items():
        seen = (one.began_at for one in rounds if one.began_at <= at - gap and broker not in one.missing)
        if (last := max(seen, default=None)) is not None:
            found[broker] = last
    return found


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def _millis(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


def choose_step(rows: int, span: timedelta) -> timedelta | None:
    """Return the time between samples at which at most ROWS_MAX rows remain; None if all samples can be read.

    Args:
        rows: The number of rows of queues if all samples are read.
        span: The length of the period. It has at most one sample every 15 s.
    """
    if rows <= ROWS_MAX:
        return None
    samples = max(1.0, span.total_seconds() / 15)
    for step in STEPS:
        if rows * (span / step) / samples <= ROWS_MAX:
            return step
    return STEPS[-1]


def samples_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Return a table of samples as a Spark frame with the columns of SCHEMA.

    In local mode, the rows are in a file in Spark's own folder, which Spark removes with the session. Rows that are part
    of a plan are in the heap once for each use of the frame, and a rollup uses it many times.

    Raises:
        OSError: The file can't be written.
    """
    if not is_local_master(spark.sparkContext.master or ""):
        return spark.createDataFrame(table)
    file = _folder() / f"{uuid4()}.parquet"
    file.parent.mkdir(exist_ok=True)
    parquet.write_table(table, file, row_group_size=ROW_GROUP_ROWS)
    return spark.read.schema(from_arrow_schema(table.schema)).parquet(str(file))


def remove_samples() -> None:
    """Remove the files of all frames that `samples_frame` has made in this session. They can't be used any more."""
    for file in _folder().glob("*.parquet"):
        with suppress(OSError):
            file.unlink()


def _folder() -> Path:
    return Path(SparkFiles.getRootDirectory()) / "samples"
