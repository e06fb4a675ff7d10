"""Sample blocks in a test's Postgres: written as the gateway writes them, and read back."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg

from gantry.model.sampleblock import (
    SERVED,
    Block,
    Kind,
    Pair,
    Section,
    age_code,
    behind_code,
    decode_block,
    empty_section,
    encode_block,
    words,
    zigzag,
)
from services.gateway.usecases.sampling.rounds import Sample
from spark.lagblocks import NO_MESSAGE, UNKNOWN, BlockContent, block_content

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BASE_BEFORE = timedelta(hours=1)


def millis(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


def sample_of_one(group: str | None, topic: str, broker: str, *queues: Sequence[int | None]) -> Sample:
    """Make a sample: for each queue min, max, committed and the store time of the first unconsumed message."""
    low, high, committed, first = zip(*queues, strict=True) if queues else [()] * 4
    is_age_known = any(at is not None for at in first)
    ids = tuple(range(len(queues)))
    return Sample(group, topic, broker, ids, low, high, committed, first, is_age_known=is_age_known)


def whole_block(samples: Iterable[Sample], at_ms: int) -> Block:
    """Make a block that stores all numbers without a base."""
    given = list(samples)
    stored = [min((at for at in one.first_stored_at_ms if at is not None), default=None) for one in given]
    section = Section(
        words(len(one.queue_ids) for one in given),
        zigzag(age_code(at_ms, first) for first in stored),
        (
            words(number for one in given for number in one.queue_ids),
            zigzag(number for one in given for number in one.max_offsets),
            zigzag(end - begin for one in given for begin, end in zip(one.min_offsets, one.max_offsets, strict=True)),
            zigzag(
                behind_code(end, committed)
                for one in given
                for end, committed in zip(one.max_offsets, one.committed_offsets, strict=True)
            ),
        ),
        words(SERVED.index(one.is_served) for one in given),
    )
    return Block([(one.group, one.topic) for one in given], section, words(), empty_section(is_whole=False), words())


class SampleTable:
    """Puts samples into a table one at a time; a block holds all pairs of its broker and moment."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._written: dict[tuple[str, datetime], list[Sample]] = {}

    def put(self, sample: Sample, at: datetime) -> None:
        """Add a sample to the block of its moment; the block is based on an empty one."""
        written = self._written.setdefault((sample.broker, at), [])
        written.append(sample)
        base = at - BASE_BEFORE
        for moment, kind, based_at, samples in ((base, Kind.FULL, None, []), (at, Kind.STATE, base, written)):
            queues = sum(len(one.queue_ids) for one in samples)
            data = encode_block(whole_block(samples, millis(moment)))
            self._connection.execute(
                "INSERT INTO lag_sample_blocks VALUES (%s, %s, %s, %s, %s, %s)"
                " ON CONFLICT (sampled_at, broker) DO UPDATE SET data = excluded.data, queues = excluded.queues",
                (moment, sample.broker, int(kind), based_at, queues, data),
            )


def stored_blocks(connection: psycopg.Connection[Any]) -> list[tuple[str, Kind, BlockContent]]:
    """Return all blocks, combined with their bases, by time."""
    rows = connection.execute(
        "SELECT sampled_at, broker, kind, based_at, data FROM lag_sample_blocks ORDER BY sampled_at"
    ).fetchall()
    bases = {
        (at, broker): block_content(decode_block(data), Kind(kind), at_ms=millis(at))
        for at, broker, kind, based_at, data in rows
        if based_at is None
    }
    return [
        (
            broker,
            Kind(kind),
            block_content(decode_block(data), Kind(kind), at_ms=millis(at), base=bases.get((based_at, broker))),
        )
        for at, broker, kind, based_at, data in rows
    ]


def figures(
    content: BlockContent,
) -> dict[Pair, tuple[list[int], list[int], list[int], list[int | None], int | str | None]]:
    """Return for each pair: queue ids, min, max and committed offsets, and the store time of its oldest message."""
    found = {}
    at = 0
    for place, count, first_ms in zip(content.places, content.counts, content.first_ms, strict=True):
        part = slice(at, at + count)
        at += count
        committed = [None if number == UNKNOWN else number for number in content.committed[part].tolist()]
        columns = [column[part].tolist() for column in (content.queue_ids, content.min_offsets, content.max_offsets)]
        found[content.pairs[place]] = (*columns, committed, _first(int(first_ms)))
    return found


def _first(first_ms: int) -> int | str | None:
    if first_ms == NO_MESSAGE:
        return "none"
    return None if first_ms == UNKNOWN else first_ms


def served(content: BlockContent) -> dict[Pair, bool | None]:
    """Return for each pair whether a consumer was connected."""
    return {content.pairs[place]: SERVED[code] for place, code in zip(content.places, content.served, strict=True)}


def newest(connection: psycopg.Connection[Any], group: str | None, topic: str) -> dict[str, tuple[Any, ...]]:
    """Return by broker the last known figures of a group and topic, and their time."""
    found = {}
    for broker, _, content in stored_blocks(connection):
        if (one := figures(content).get((group, topic))) is not None:
            found[broker] = (*one, EPOCH + timedelta(milliseconds=content.at_ms))
    return found
