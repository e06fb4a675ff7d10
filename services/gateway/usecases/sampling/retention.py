"""Samples as they age: fewer of them, then none.

| older than | stays, for each broker |
|---|---|
| `raw_hours` | of the changes of each minute one block |
| MINUTES_KEPT | all pairs, every quarter of an hour |
| QUARTERS_KEPT | all pairs, every hour |
| `keep_days` | nothing |

Of several samples in a step the last one stays: offsets only grow, so nothing that moved is lost, only when. Blocks of all pairs need
no other one but their base, so that a step of a quarter or more is made by deleting; only changes are merged.

The work is done in pieces, each in a short transaction of its own that leaves samples whole: a gateway that ends between
two pieces, or loses the duty, leaves the rest to the next one.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from gantry.model.sampleblock import Kind, SampleBlockError, decode_block, encode_block, merge_changes
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from gantry.runtime.workers import Worker
from services.gateway.db.samples import SampleRepository, StoredBlock
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.metadata import Metadata

log = logger("gateway.samples")

MINUTES_KEPT: Final = timedelta(days=7)
QUARTERS_KEPT: Final = timedelta(days=30)
INTERVAL_MS: Final = 60_000
TURN_MS_MAX: Final = 2_000
"""Rounds wait for it."""
DELETED_AT_ONCE: Final = 500

_MINUTE: Final = timedelta(minutes=1)
_QUARTER: Final = timedelta(minutes=15)
_HOUR: Final = timedelta(hours=1)
# A full block is the base of blocks that are up to an hour younger.
_BASE_SLACK: Final = timedelta(hours=2)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

R = TypeVar("R")


class SampleTidy:
    """Makes samples fewer.

    Concurrency: called by the sampler's task, by the gateway that has its duty.
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
        """Do some pieces, if it is time. Raises ProblemError (503)."""
        began_ms = self._clock.monotonic_ms()
        if began_ms < self._next_ms:
            return
        self._next_ms = began_ms + INTERVAL_MS
        while await self.piece():
            if self._clock.monotonic_ms() - began_ms >= TURN_MS_MAX:
                # There is more: go on behind the next round.
                self._next_ms = 0
                return

    async def piece(self) -> bool:
        """Do one piece; say whether there was something to do. Raises ProblemError (503)."""
        now = _EPOCH + timedelta(milliseconds=self._clock.now_ms())
        return (
            await self._delete(now)
            or await self._merge(_floor(now - self._raw, _MINUTE))
            or await self._thin(Kind.STATE, Kind.QUARTER, _QUARTER, now - MINUTES_KEPT)
            # Their bases stay as long as they do.
            or await self._thin(Kind.FULL, Kind.HOUR, _HOUR, now - QUARTERS_KEPT - _BASE_SLACK)
        )

    async def _delete(self, now: datetime) -> bool:
        keep = now - self._keep
        async with self._metadata.transaction() as session:
            samples = SampleRepository(session)
            # Rounds say between which looks nothing moved, which nobody knows any more of what is merged.
            rounds = await samples.delete_rounds(before=now - self._raw, limit=DELETED_AT_ONCE)
            blocks = 0
            for kinds, before in (
                ((Kind.CHANGES, Kind.MINUTE), max(keep, now - MINUTES_KEPT)),
                ((Kind.STATE, Kind.QUARTER), max(keep, now - QUARTERS_KEPT)),
                ((Kind.FULL, Kind.HOUR), keep - _BASE_SLACK),
            ):
                blocks += await samples.delete_blocks(kinds, before=before, limit=DELETED_AT_ONCE)
            dropped, _ = await samples.drop_before(keep.date())
        if dropped:
            log.info("old samples", partitions_dropped=dropped)
        return rounds + blocks + dropped > 0

    async def _merge(self, before: datetime) -> bool:
        """Merge the changes of the oldest minute that has some, of one broker."""
        async with self._metadata.transaction() as session:
            samples = SampleRepository(session)
            oldest = await samples.find_oldest(Kind.CHANGES, before=before)
            if oldest is None:
                return False
            at, broker = oldest
            minute = _floor(at, _MINUTE)
            stretch = await samples.stretch(broker, minute, minute + _MINUTE)
            merged = await self._in_thread(lambda: merged_minute(stretch))
            await samples.replace([block for block in stretch if block.kind is Kind.CHANGES], merged)
        self._metrics.count("sample_minutes_merged")
        return True

    async def _thin(self, kind: Kind, kept: Kind, step: timedelta, before: datetime) -> bool:
        """Keep one block a step, of an hour of all brokers."""
        async with self._metadata.transaction() as session:
            samples = SampleRepository(session)
            oldest = await samples.find_oldest(kind, before=_floor(before, _HOUR))
            if oldest is None:
                return False
            hour = _floor(oldest[0], _HOUR)
            await samples.thin(kind, kept, step, hour, hour + _HOUR)
        return True

    async def _in_thread(self, work: Callable[[], R]) -> R:
        return await asyncio.wrap_future(self._worker.submit(work))


def merged_minute(stretch: Sequence[StoredBlock]) -> list[StoredBlock]:
    """Return what stays of a broker's changes of one minute.

    Args:
        stretch: All of its blocks of the minute, by time.
    """
    of_bases: dict[datetime, list[StoredBlock]] = {}
    for block in stretch:
        if block.kind >= Kind.STATE:
            # It says how all pairs stood, later than what changed before it.
            of_bases.clear()
        elif block.kind is Kind.CHANGES and block.based_at is not None:
            of_bases.setdefault(block.based_at, []).append(block)
    return [merged for blocks in of_bases.values() if (merged := _merged(blocks)) is not None]


def _merged(blocks: Sequence[StoredBlock]) -> StoredBlock | None:
    """Return changes to one base as one block; None where all of them are damaged."""
    sound = []
    for block in blocks:
        try:
            sound.append((round((block.sampled_at - _EPOCH) / timedelta(milliseconds=1)), decode_block(block.data)))
        except SampleBlockError as error:
            log.warning("a damaged sample", broker=block.broker, sampled_at=str(block.sampled_at), reason=str(error))
    if not sound:
        return None
    merged = merge_changes(sound)
    queues = len(merged.whole.columns[0]) + len(merged.changed.columns[0])
    at = _EPOCH + timedelta(milliseconds=sound[-1][0])
    return StoredBlock(at, blocks[-1].broker, Kind.MINUTE, blocks[-1].based_at, queues, encode_block(merged))


def _floor(moment: datetime, step: timedelta) -> datetime:
    return _EPOCH + (moment - _EPOCH) // step * step
