"""The lag of a group on a topic over time, in messages and seconds, from samples.

The step between points follows from the time range, with at most POINTS_MAX points. A block holds all groups of a
broker, so the bytes that are read are limited; in a large cluster, the step is longer.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from gantry.model.errors import InvalidValueError
from gantry.model.laghistory import (
    POINTS_MAX,
    STEPS,
    WRITTEN_EVERY,
    LagPoint,
    LagSample,
    Looks,
    Outage,
    add_up,
    choose_step,
)
from gantry.model.sampleblock import Block, Kind, Pair, SampleBlockError, decode_block
from gantry.model.samplepair import PairQueues, read_full, read_pair
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.gateway.db.lagblocks import LagBlockRepository
from services.gateway.db.repositories import TopicRepository
from services.gateway.db.sampleevents import SampleEventRepository
from services.gateway.db.samples import StoredBlock
from services.gateway.schemas.reports import read_period
from services.gateway.schemas.times import format_moment
from services.gateway.usecases.metadata import Metadata

log = logger("gateway.samples")

SPAN: Final = timedelta(hours=24)
SPAN_MAX: Final = STEPS[-1] * POINTS_MAX
BYTES_MAX: Final = 32 * 1024 * 1024
"""Limit of the blocks that are read for one answer; 2,000 groups that move for a day need less."""
READ_WITHIN_MS: Final = 10_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)

Bases = Mapping[tuple[str, datetime], bytes]


@dataclass(frozen=True, slots=True)
class PairHistory:
    """The lag of a group on a topic over time.

    Attributes:
        group, topic: Group and topic.
        start, end: Time range, both ends included.
        step: Distance between points.
        points: Points, by time.
    """

    group: str
    topic: str
    start: datetime
    end: datetime
    step: timedelta
    points: Sequence[LagPoint]


class LagHistory:
    """Lag histories. The caller has checked the rights."""

    def __init__(
        self, metadata: Metadata, *, clock: Clock, in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._in_thread = in_thread

    async def read(self, group: str, topic: str, *, start_ms: int | None, end_ms: int | None) -> PairHistory:
        """Return the history of [start, end].

        Args:
            group: Consumer group.
            topic: Topic.
            start_ms: Wall time in ms; None: SPAN before the end.
            end_ms: Wall time in ms; None: now.

        Raises:
            InvalidValueError: The times are not valid, or too far apart.
            ProblemError: 503: Postgres is unavailable.
        """
        start, end = read_period(start_ms, end_ms, now_ms=self._clock.now_ms(), span=SPAN)
        if end - start > SPAN_MAX:
            raise InvalidValueError("from", format_moment(start), f"is more than {SPAN_MAX.days} days before `to`")
        step = choose_step(end - start)
        async with self._metadata.transaction(within_ms=READ_WITHIN_MS) as session:
            step, blocks, bases = await _read(LagBlockRepository(session), start, end, step)
            since = start - WRITTEN_EVERY
            homes = await TopicRepository(session).homes_of(topic)
            events = SampleEventRepository(session)
            outages = [Outage(*one) for one in await events.outages(since, end)]
            looks = Looks(await events.rounds(since, end), outages, homes)
        points: list[LagPoint] = await self._in_thread(
            lambda: _points(blocks, bases, (group, topic), step, end, looks=looks)
        )
        return PairHistory(group, topic, start, end, step, [point for point in points if point.at >= start])


async def _read(
    repository: LagBlockRepository, start: datetime, end: datetime, step: timedelta
) -> tuple[timedelta, Sequence[StoredBlock], Bases]:
    """Return the step that the byte limit allows, its blocks, and the full blocks that these refer to."""
    # A pair that did not change for a while is in an earlier block of all pairs.
    since = start - WRITTEN_EVERY
    if step < WRITTEN_EVERY and await repository.size(Kind.CHANGES, since, end) <= BYTES_MAX:
        blocks = await repository.blocks(Kind.CHANGES, since, end, step=None)
    else:
        size = await repository.size(Kind.STATE, since, end)
        steps = [one for one in STEPS if one >= max(step, WRITTEN_EVERY)]
        step = next((one for one in steps if size * (WRITTEN_EVERY / one) <= BYTES_MAX), steps[-1])
        blocks = await repository.blocks(Kind.STATE, since, end, step=step)
        # The last block of all pairs is up to five minutes old, so the latest changes are added.
        recent = end - WRITTEN_EVERY
        size = await repository.size(Kind.CHANGES, recent, end) + sum(len(block.data) for block in blocks)
        if size <= BYTES_MAX:
            blocks = [block for block in blocks if block.sampled_at < recent]
            blocks += await repository.blocks(Kind.CHANGES, recent, end, step=None)
    wanted = {(block.broker, block.based_at) for block in blocks if block.based_at is not None}
    bases = {place: data for place in sorted(wanted) if (data := await repository.base(*place)) is not None}
    return step, blocks, bases


def _points(
    blocks: Sequence[StoredBlock], bases: Bases, pair: Pair, step: timedelta, end: datetime, *, looks: Looks
) -> list[LagPoint]:
    samples: list[LagSample] = []
    place: tuple[str, datetime] | None = None
    base: Block | None = None
    for stored in blocks:
        wanted = None if stored.based_at is None else (stored.broker, stored.based_at)
        try:
            if wanted is not None and wanted != place:
                place, base = wanted, None
                base = _decode(bases.get(wanted))
            found = _find(stored, pair, base)
        except SampleBlockError as error:
            log.warning(
                "cannot decode a sample",
                broker=stored.broker,
                sampled_at=stored.sampled_at.isoformat(),
                reason=str(error),
            )
            continue
        if found is None and stored.kind >= Kind.STATE:
            samples.append(LagSample(stored.sampled_at, stored.broker, None, is_gone=True))
        elif found is not None:
            first_at = None if found.first_ms is None else _EPOCH + timedelta(milliseconds=found.first_ms)
            facts = found.lag, first_at, found.is_none_waiting, found.is_gone
            samples.append(LagSample(stored.sampled_at, stored.broker, *facts))
    return list(add_up(sorted(samples, key=lambda one: one.sampled_at), step=step, until=end, looks=looks))


def _decode(data: bytes | None) -> Block:
    if data is None:
        raise SampleBlockError("its base block is missing")
    return decode_block(data)


def _find(stored: StoredBlock, pair: Pair, base: Block | None) -> PairQueues | None:
    block, at_ms = decode_block(stored.data), _millis(stored.sampled_at)
    if stored.based_at is None:
        return read_full(block, pair, at_ms=at_ms)
    if base is None:
        raise SampleBlockError("its base block cannot be decoded")
    return read_pair(block, stored.kind, pair, at_ms=at_ms, base=base, base_ms=_millis(stored.based_at))


def _millis(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND
