"""Retention of samples: older samples are thinned out, then deleted.

| older than | kept, for each broker |
|---|---|
| `raw_hours` | one block of the changes of each minute |
| MINUTES_KEPT | all pairs, every quarter of an hour |
| QUARTERS_KEPT | all pairs, every hour |
| `keep_days` | nothing |

The last sample of each step stays: offsets only grow, so no progress is lost, only its exact time. Blocks of all pairs
need no other block but their base, so steps of a quarter of an hour or more are made by deletion; only changes are
merged.

The work is done in pieces, each in a short transaction that leaves the samples consistent. A gateway that stops between
two pieces, or loses the leadership, leaves the rest to the next leader.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from gantry.model.sampleblock import Kind, SampleBlockError, decode_block, encode_block, merge_changes
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from gantry.runtime.workers import Worker
from services.gateway.db.sampleevents import SampleEventRepository
from services.gateway.db.samples import SampleRepository, StoredBlock
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.metadata import Metadata

log = logger("gateway.samples")

MINUTES_KEPT: Final = timedelta(days=7)
QUARTERS_KEPT: Final = timedelta(days=30)
INTERVAL_MS: Final = 60_000
TURN_MS_MAX: Final = 2_000
"""Longest time for one call of `round`, since rounds of samples wait for it."""
DELETED_AT_ONCE: Final = 500

_MINUTE: Final = timedelta(minutes=1)
_QUARTER: Final = timedelta(minutes=15)
_HOUR: Final = timedelta(hours=1)
# A full block is the base of blocks that are up to an hour younger.
_BASE_SLACK: Final = timedelta(hours=2)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

R = TypeVar("R")


class SampleRetention:
    """Thins out and deletes samples.

    Concurrency: called by the sampler's task, on the gateway that leads.
    """

    def __init__(
        self,
        metadata: Metadata,
        metrics: GatewayMetrics,
        *,
        worker: Worker,
        clock: Clock,
        raw_hours: int,
        keep_days: int,
    ) -> None:
        self._metadata = metadata
        self._metrics = metrics
        self._worker = worker
        self._clock = clock
        self._raw = timedelta(hours=raw_hours)
        self._keep = timedelta(days=keep_days)
        self._next_ms = 0

    async def round(self) -> None:
        """Do some pieces if the interval has passed. Raises ProblemError (503)."""
        began_ms = self._clock.monotonic_ms()
        if began_ms < self._next_ms:
            return
        self._next_ms = began_ms + INTERVAL_MS
        while await self.piece():
            if self._clock.monotonic_ms() - began_ms >= TURN_MS_MAX:
                # There is more to do: continue after the next round.
                self._next_ms = 0
                return

    async def piece(self) -> bool:
        """Do one piece; return whether there was something to do. Raises ProblemError (503)."""
        now = _EPOCH + timedelta(milliseconds=self._clock.now_ms())
        return (
            await self._delete(now)
            or await self._merge(_floor(now - self._raw, _MINUTE))
            or await self._downsample(Kind.STATE, Kind.QUARTER, _QUARTER, now - MINUTES_KEPT)
            # A base must stay as long as the blocks that refer to it.
            or await self._downsample(Kind.FULL, Kind.HOUR, _HOUR, now - QUARTERS_KEPT - _BASE_SLACK)
        )

    async def _delete(self, now: datetime) -> bool:
        keep = now - self._keep
        async with self._metadata.transaction() as session:
            samples = SampleRepository(session)
            # A round shows that nothing changed between two surveys. Merged blocks no longer carry this fact.
            rounds = await samples.delete_rounds(before=now - self._raw, limit=DELETED_AT_ONCE)
            blocks = 0
            for kinds, before in (
                ((Kind.CHANGES, Kind.MINUTE), max(keep, now - MINUTES_KEPT)),
                ((Kind.STATE, Kind.QUARTER), max(keep, now - QUARTERS_KEPT)),
                ((Kind.FULL, Kind.HOUR), keep - _BASE_SLACK),
            ):
                blocks += await samples.delete_blocks(kinds, before=before, limit=DELETED_AT_ONCE)
            blocks += await SampleEventRepository(session).delete(before=keep, limit=DELETED_AT_ONCE)
            dropped, _ = await samples.drop_before(keep.date())
        if dropped:
            log.info("dropped old samples", partitions_dropped=dropped)
        return rounds + blocks + dropped > 0

    async def _merge(self, before: datetime) -> bool:
        """Merge the changes of one broker in the oldest minute that has changes."""
        async with self._metadata.transaction() as session:
            samples = SampleRepository(session)
            oldest = await samples.find_oldest(Kind.CHANGES, before=before)
            if oldest is None:
                return False
            at, broker = oldest
            minute = _floor(at, _MINUTE)
            stretch = await samples.stretch(broker, minute, minute + _MINUTE)
            merged = await self._in_thread(lambda: merge_minute(stretch))
            await samples.replace([block for block in stretch if block.kind is Kind.CHANGES], merged)
        self._metrics.count("sample_minutes_merged")
        return True

    async def _downsample(self, kind: Kind, kept: Kind, step: timedelta, before: datetime) -> bool:
        """Keep one block for each step, in one hour of all brokers."""
        async with self._metadata.transaction() as session:
            samples = SampleRepository(session)
            oldest = await samples.find_oldest(kind, before=_floor(before, _HOUR))
            if oldest is None:
                return False
            hour = _floor(oldest[0], _HOUR)
            await samples.downsample(kind, kept, step, hour, hour + _HOUR)
        return True

    async def _in_thread(self, work: Callable[[], R]) -> R:
        return await asyncio.wrap_future(self._worker.submit(work))


def merge_minute(stretch: Sequence[StoredBlock]) -> list[StoredBlock]:
    """Return the blocks that replace a broker's changes of one minute.

    Args:
        stretch: All blocks of the broker in this minute, by time.
    """
    of_bases: dict[datetime, list[StoredBlock]] = {}
    for block in stretch:
        if block.kind >= Kind.STATE:
            # A block of all pairs makes the changes before it unnecessary.
            of_bases.clear()
        elif block.kind is Kind.CHANGES and block.based_at is not None:
            of_bases.setdefault(block.based_at, []).append(block)
    return [merged for blocks in of_bases.values() if (merged := _merged(blocks)) is not None]


def _merged(blocks: Sequence[StoredBlock]) -> StoredBlock | None:
    """Return changes to one base as one block; None if all of them are damaged."""
    sound = []
    for block in blocks:
        try:
            sound.append((round((block.sampled_at - _EPOCH) / timedelta(milliseconds=1)), decode_block(block.data)))
        except SampleBlockError as error:
            log.warning(
                "skipped a damaged sample", broker=block.broker, sampled_at=str(block.sampled_at), reason=str(error)
            )
    if not sound:
        return None
    merged = merge_changes(sound)
    queues = len(merged.whole.columns[0]) + len(merged.changed.columns[0])
    at = _EPOCH + timedelta(milliseconds=sound[-1][0])
    return StoredBlock(at, blocks[-1].broker, Kind.MINUTE, blocks[-1].based_at, queues, encode_block(merged))


def _floor(moment: datetime, step: timedelta) -> datetime:
    return _EPOCH + (moment - _EPOCH) // step * step
