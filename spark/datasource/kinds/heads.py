"""Kind `heads`: the first unconsumed message in each queue that the group's filter accepts, called the head.

Planning finds the positions, as kind `offsets` does. A task asks for the heads of some positions, hundreds in a
request, and counts the tags of each position's first unconsumed units. A message that arrived after planning is not a
head, so a task that runs again finds the same heads.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from gantry.client.answers import read_body
from gantry.client.backlog import SQL_BYTES_MAX, UNIT_ROW, Backlog, FirstUnconsumed, FirstUnconsumedQuery
from gantry.client.engine import ClientEngine
from gantry.client.errors import BrokerError, ClientError, NoAnswerError, NotServedError
from gantry.model.errors import RecordError
from gantry.model.javahash import tags_code
from gantry.model.message import MessageQueue
from gantry.model.record import decode_record
from gantry.remoting.bodies.backlog import HEAD_QUERIES_MAX, TAGS_CODES_MAX
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.headers.query import ViewMessageHeader
from spark.datasource.brokers import live
from spark.datasource.brokers.positions import GroupPosition, SurveyedPositions, find_positions
from spark.datasource.brokers.survey import REQUESTS_MAX
from spark.datasource.columns.batches import plan_rows, record_batch, rows_to_columns, unpack_rows
from spark.datasource.filters import ALL, GroupFilter
from spark.datasource.partitions import Region, RowsPartition, chunks
from spark.datasource.pushdown import NarrowedReader

EXACT = ("group", "topic", "broker", "queue_id")

HEADS_PER_TASK: Final = 1_024
HEADS_TIMEOUT_MS: Final = 120_000
"""The time limit for all heads of a task."""
SQL_WITHIN_MS: Final = 20_000
"""The time after which a task sends no more searches for SQL filters: about two million messages of a broker."""
assert HEADS_TIMEOUT_MS < live.PLAN_TIMEOUT_MS
UNITS_EXAMINED_MAX: Final = 256
"""The limit for the units of a queue whose tags are counted. One request returns this many rows, 7 kB."""
NAMES_LOOKED_UP_MAX: Final = 256
"""The limit for the messages that a task reads to find the tags of hashes. Further tags are shown as their hashes."""


@dataclass(frozen=True, slots=True)
class HeadQuery:
    """A position with unconsumed messages, and the filter of its group."""

    position: GroupPosition
    wanted: GroupFilter
    is_filter_known: bool

    @property
    def error(self) -> str | None:
        """The reason why the broker can't be asked for the head; None if it can."""
        count = len(self.wanted.codes or ())
        if count > TAGS_CODES_MAX:
            return f"the group's filter has {count} tags, at most {TAGS_CODES_MAX} can be asked for"
        if len((self.wanted.sql or "").encode()) > SQL_BYTES_MAX:
            return f"the group's filter has more than {SQL_BYTES_MAX} bytes"
        return self.wanted.error

    def query(self) -> FirstUnconsumedQuery:
        """Return the query for the broker."""
        assert self.position.start is not None, self.position
        topic, queue_id, wanted = self.position.topic, self.position.queue_id, self.wanted
        return FirstUnconsumedQuery(topic, queue_id, self.position.start, wanted.codes, wanted.sql)


@dataclass(frozen=True, repr=False)
class HeadsPartition(InputPartition):
    """The questions of one task to one broker."""

    broker: str
    queries: tuple[HeadQuery, ...]


@dataclass(slots=True)
class Tags:
    """The counts of the tags of a position's first unconsumed units. A null name stands for messages without a tag."""

    counts: list[tuple[str | None, int]] = field(default_factory=list)
    examined: int = 0


NO_TAGS: Final = Tags()


class HeadsReader(NarrowedReader):
    """Reads kind `heads`."""

    exact = EXACT

    def partitions(self) -> list[InputPartition]:
        """Find the positions of the groups and return the tasks. Raises SurveyError, ClientError, TimeoutError."""
        found = live.run(self._options, lambda engine: find_positions(engine, self._options, self._pushed))
        rows, queries = sort_positions(found)
        partitions = plan_rows(self._schema, rows, self._options.max_rows_per_partition)
        size = min(HEADS_PER_TASK, self._options.max_rows_per_partition)
        for broker, broker_queries in queries.items():
            # Sorting brings groups that wait at the same message together. A task asks once for all of its groups.
            broker_queries.sort(key=lambda query: query.position.region)
            partitions += [HeadsPartition(broker, tuple(part)) for part in chunks(broker_queries, size)]
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Ask the broker and yield the answers. Raises TimeoutError."""
        if isinstance(partition, RowsPartition):
            yield from unpack_rows(partition.data)
        elif isinstance(partition, HeadsPartition):
            broker, queries = partition.broker, partition.queries
            rows = live.run(self._options, lambda engine: ask(engine, broker, queries))
            yield record_batch(self._schema, rows_to_columns(self._schema, rows))


def sort_positions(found: SurveyedPositions) -> tuple[list[tuple[Any, ...]], dict[str, list[HeadQuery]]]:
    """Return the rows of positions that need no query, and broker → the queries about the other positions."""
    rows: list[tuple[Any, ...]] = []
    queries: dict[str, list[HeadQuery]] = {}
    for position in found.positions:
        known = found.survey.filter(position.group, position.topic)
        query = HeadQuery(position, known or ALL, known is not None)
        error, is_done = _outcome_without_query(position)
        if error is not None:
            rows.append(head_row(query, error=error))
        elif is_done:
            rows.append(head_row(query, tags=NO_TAGS))
        else:
            queries.setdefault(position.broker, []).append(query)
    return rows, queries


def _outcome_without_query(position: GroupPosition) -> tuple[str | None, bool]:
    """Return why a position can't have a head, and whether it certainly has none."""
    if position.min_offset is None or position.max_offset is None:
        return position.error or "the queue's ends are not known", False
    if position.committed is None:
        if position.min_offset == position.max_offset:
            return None, True
        return "the group has never committed an offset of this queue", False
    if position.start is None:
        return position.remark, False
    return None, position.start >= position.max_offset


async def ask(engine: ClientEngine, broker: str, queries: Sequence[HeadQuery]) -> list[tuple[Any, ...]]:
    """Return the rows of queries to one broker, in their order. If a query has no answer, `error` says why."""
    backlog = Backlog(engine)
    lookups = list(dict.fromkeys(query.query() for query in queries if query.error is None))
    heads, failure = await _query_first_unconsumed(backlog, broker, lookups)
    tags = {} if failure is not None else await _count_tags(engine, backlog, queries)
    return [_answered_row(query, heads, failure, tags) for query in queries]


def _answered_row(
    query: HeadQuery,
    heads: Mapping[FirstUnconsumedQuery, FirstUnconsumed],
    failure: str | None,
    tags: Mapping[Region, Tags],
) -> tuple[Any, ...]:
    head = None if query.error is not None else heads.get(query.query())
    error = query.error or (failure if head is None else None)
    return head_row(query, head, error=error, tags=tags.get(query.position.region))


async def _query_first_unconsumed(
    backlog: Backlog, broker: str, queries: Sequence[FirstUnconsumedQuery]
) -> tuple[dict[FirstUnconsumedQuery, FirstUnconsumed], str | None]:
    """Return the answers, and the reason why other answers are missing.

    Searches for SQL filters come last, because they take longest.
    """
    heads: dict[FirstUnconsumedQuery, FirstUnconsumed] = {}
    of_sql = [query for query in queries if query.sql is not None]
    try:
        async with asyncio.timeout(HEADS_TIMEOUT_MS / 1_000):
            for part in chunks([query for query in queries if query.sql is None], HEAD_QUERIES_MAX):
                heads.update(zip(part, await backlog.first_unconsumed(broker, part), strict=True))
            found = await backlog.first_unconsumed(broker, of_sql, within_ms=SQL_WITHIN_MS)
            heads.update(zip(of_sql, found, strict=True))
    except NotServedError:
        return (
            heads,
            f"broker {broker} does not know request {int(RequestCode.GANTRY_FIRST_UNCONSUMED)}, so it can't say",
        )
    except ClientError as error:
        return heads, f"broker {broker}: {error}"
    except TimeoutError:
        # If a filter accepts no message, the broker examines millions of units.
        return heads, f"broker {broker}: no answer within {HEADS_TIMEOUT_MS} ms"
    return heads, None


def head_row(
    query: HeadQuery, head: FirstUnconsumed | None = None, *, error: str | None = None, tags: Tags | None = None
) -> tuple[Any, ...]:
    """Return a row in the order of the schema."""
    position = query.position
    error = error or (None if head is None else head.error)
    offset = None if head is None or error is not None else head.queue_offset
    if offset is not None and position.max_offset is not None and offset >= position.max_offset:
        offset = None  # The message arrived after planning.
    is_found = head is not None and offset is not None
    return (
        position.group,
        position.topic,
        position.broker,
        position.queue_id,
        query.wanted.expression or None if query.is_filter_known else None,
        offset,
        head.physical_offset if is_found and head is not None else None,
        head.stored_at_ms if is_found and head is not None else None,
        head.expires_at_ms if is_found and head is not None else None,
        head.expires_at_is_earliest if is_found and head is not None else None,
        None if head is None else head.now_ms,
        None if tags is None else [{"tag": name, "messages": count} for name, count in tags.counts],
        None if tags is None else tags.examined,
        error,
    )


async def _count_tags(engine: ClientEngine, backlog: Backlog, queries: Sequence[HeadQuery]) -> Mapping[Region, Tags]:
    """Return the counts of the tags of regions' first units. Regions whose units can't be read are left out."""
    codes: dict[Region, Counter[int]] = {}
    samples: dict[tuple[str, int], tuple[MessageQueue, int]] = {}
    regions = dict.fromkeys(query.position.region for query in queries)
    waiting = iter(regions)

    async def work() -> None:
        for region in waiting:
            queue = MessageQueue(region.topic, region.broker, region.queue_id)
            try:
                units = await backlog.units(queue, region.start, count=min(UNITS_EXAMINED_MAX, region.rows))
            except (NotServedError, NoAnswerError):
                for _ in waiting:  # Skip the other regions: each of them would fail the same way.
                    pass
                return
            except ClientError:
                continue
            counter = codes[region] = Counter()
            room = max(0, region.end - units.first_offset)
            for physical_offset, size, code, _ in list(UNIT_ROW.iter_unpack(units.rows))[:room]:
                if size >= 0:
                    counter[code] += 1
                    samples.setdefault((region.topic, code), (queue, physical_offset))

    await asyncio.gather(*(work() for _ in range(min(REQUESTS_MAX, len(regions)))))
    names = await _name_tags(engine, samples, {tag for query in queries for tag in query.wanted.tags})
    return {
        region: Tags(
            [(names.get((region.topic, code), f"#{code}"), count) for code, count in counter.most_common()],
            counter.total(),
        )
        for region, counter in codes.items()
    }


async def _name_tags(
    engine: ClientEngine, samples: Mapping[tuple[str, int], tuple[MessageQueue, int]], known: Iterable[str]
) -> dict[tuple[str, int], str | None]:
    """Return (topic, hash) → tag, from the filters or by viewing one message. Tags that are not found are missing."""
    by_code = {tags_code(tag): tag for tag in known}
    names: dict[tuple[str, int], str | None] = {}
    unknown: list[tuple[str, int]] = []
    for topic, code in samples:
        if code == 0:
            names[topic, code] = None
        elif code in by_code:
            names[topic, code] = by_code[code]
        else:
            unknown.append((topic, code))
    waiting = iter(unknown[:NAMES_LOOKED_UP_MAX])

    async def work() -> None:
        for key in waiting:
            queue, physical_offset = samples[key]
            try:
                tag = await _view_tag(engine, queue, physical_offset)
            except NoAnswerError:
                return
            except (ClientError, RecordError):
                continue
            if tags_code(tag) == key[1]:
                names[key] = tag

    await asyncio.gather(*(work() for _ in range(min(REQUESTS_MAX, len(unknown)))))
    return names


async def _view_tag(engine: ClientEngine, queue: MessageQueue, physical_offset: int) -> str | None:
    address = await engine.queue_address(queue)
    response = await engine.call(address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(offset=physical_offset))
    message = read_body(decode_record, response, address)
    if (message.topic, message.queue_id) != (queue.topic, queue.queue_id):
        raise BrokerError(ResponseCode.SYSTEM_ERROR, f"it gave a message of {message.topic}", address)
    return message.tag
