"""The sampler: keeps the offsets of all groups and topics in Postgres, as the history of growth and drain.

One gateway at a time samples (Postgres advisory lock). A round surveys all brokers (survey.py) and writes for each one
the differences to the survey before (blocks.py). The round names the brokers that did not answer; no numbers are
written for them, because their offsets are unknown.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from gantry.model.sampleblock import SampleBlockError
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from gantry.runtime.workers import Worker
from services.gateway.db.leadership import Leadership
from services.gateway.db.repositories import TopicRepository
from services.gateway.db.sampleevents import SampleEventRepository
from services.gateway.db.samples import SampleRepository, StoredBlock
from services.gateway.db.subscriptions import SubscriptionRepository
from services.gateway.errors import ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.cluster.brokers import Brokers, no_broker
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.sampling.blocks import BlockWriter, Plan
from services.gateway.usecases.sampling.lagseries import LagSeries
from services.gateway.usecases.sampling.retention import SampleRetention
from services.gateway.usecases.sampling.rounds import EVERYTHING, Filter, Sample, filter_of
from services.gateway.usecases.sampling.survey import SampleSurvey, Subscribed

log = logger("gateway.samples")

LEADERSHIP: Final = "samples"
EPOCHS_SINCE_MS: Final = 3_600_000
R = TypeVar("R")


class Sampler:
    """Runs the rounds while this gateway is the leader.

    Concurrency: one task runs it. The worker's thread encodes the blocks, because tens of thousands of queues take
    long.
    """

    def __init__(
        self,
        survey: SampleSurvey,
        brokers: Brokers,
        metadata: Metadata,
        metrics: GatewayMetrics,
        *,
        retention: SampleRetention,
        worker: Worker,
        series: LagSeries,
        clock: Clock,
        interval_ms: int,
    ) -> None:
        self._survey = survey
        self._brokers = brokers
        self._metadata = metadata
        self._metrics = metrics
        self._retention = retention
        self._worker = worker
        self._series = series
        self._clock = clock
        self._interval_ms = interval_ms
        database = metadata.database
        self._leadership = None if database is None or interval_ms == 0 else Leadership(database, LEADERSHIP)
        self._writers: dict[str, BlockWriter] = {}
        self._knows_epochs = False
        self._away: frozenset[str] = frozenset()

    async def run(self) -> None:
        """Sample until cancelled."""
        if self._leadership is None:
            return
        try:
            while True:
                began_ms = self._clock.monotonic_ms()
                await self._run_round(self._leadership)
                took_ms = self._clock.monotonic_ms() - began_ms
                # A round that takes longer than the interval is still followed by a pause, so that brokers recover.
                await asyncio.sleep(max(self._interval_ms - took_ms, took_ms // 4) / 1_000)
        finally:
            self._worker.close()
            await self._leadership.release()

    async def _run_round(self, leadership: Leadership) -> None:
        try:
            if await leadership.hold():
                await self.round()
            else:
                # The current leader has written other blocks, so the state kept here is useless when this gateway leads
                # again.
                self._forget()
        except ProblemError as error:
            # Postgres or all brokers are unavailable; the next round tries again.
            self._failed(error.detail)
        except Exception as error:  # noqa: BLE001 # boundary: of a background loop; samples must not end the gateway.
            self._forget()
            self._failed("internal error", error)
        self._metrics.gauges["is_sampler"] = float(leadership.is_leader)

    async def round(self) -> None:
        """Sample all brokers once. Raises ProblemError (503)."""
        now_ms, began_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        subscribed, homes = await self._subscribed()
        sets = await self._brokers.sets()
        if not sets:
            raise no_broker()
        self._writers = {broker: self._writers.get(broker) or BlockWriter() for broker in sets}
        thorough = {broker for broker, writer in self._writers.items() if writer.is_whole_due(began_ms)}
        samples, missing = await self._survey.survey(sets, subscribed, thorough=thorough)
        # A broker that is down is no longer registered after two minutes, but its queues still belong to their topics.
        missing = sorted({*missing, *homes - sets.keys()})
        clusters = {broker: data.cluster for broker, data in sets.items()}
        away = await self._held_by(missing)
        self._metrics.lag = await self._in_thread(lambda: self._series.add_up(samples, away, clusters, now_ms).render())
        seen: dict[str, list[Sample]] = {broker: [] for broker in sets if broker not in missing}
        for sample in samples:
            seen[sample.broker].append(sample)
        for broker, found in seen.items():
            await self._note_resets(broker)
            if not await self._write(broker, found, began_ms):
                missing.append(broker)
        took_ms = self._clock.monotonic_ms() - began_ms
        async with self._metadata.transaction() as session:
            # The round is written last: if it exists, all its blocks exist.
            await SampleEventRepository(session).note_outages(moment_of(now_ms), missing, continued=self._away)
            await SampleRepository(session).end_round(moment_of(now_ms), took_ms=took_ms, missing=sorted(missing))
        self._away = frozenset(missing)
        self._metrics.count("sample_rounds")
        self._metrics.gauges["sample_round_seconds"] = took_ms / 1_000
        self._metrics.gauges["sample_brokers_missing"] = float(len(missing))
        await self._retention.round()

    async def _held_by(self, missing: Sequence[str]) -> Mapping[str, Collection[str]]:
        """Return the brokers that did not answer, each with the topics that it has, as far as Postgres knows."""
        if not missing:
            return {}
        async with self._metadata.transaction() as session:
            return await TopicRepository(session).held_by(missing)

    async def _note_resets(self, broker: str) -> None:
        """Write the resets that the last survey of a broker found.

        They are written before the block, so that no sample shows the effect of a reset that is not known.
        """
        if resets := self._survey.resets.get(broker):
            async with self._metadata.transaction() as session:
                await SampleEventRepository(session).add_resets(
                    broker,
                    moment_of(self._survey.read_at_ms[broker]),
                    resets,
                    settled_epoch=self._survey.reset_epochs[broker],
                )

    async def _subscribed(self) -> tuple[Subscribed, set[str]]:
        """Return the subscriptions, and the names of the brokers that have topics."""
        async with self._metadata.transaction() as session:
            rows = await SubscriptionRepository(session).filters()
            homes = await TopicRepository(session).homes()
            if not self._knows_epochs:
                since = moment_of(self._clock.now_ms() - EPOCHS_SINCE_MS)
                self._survey.reset_epochs = dict(await SampleEventRepository(session).settled_epochs(since=since))
                self._knows_epochs = True
        filters: dict[tuple[str, str], Filter] = {}
        for group, topic, kind, expression, _, _ in rows:
            known = filter_of(kind, expression)
            if known is not EVERYTHING:
                filters[group, topic] = known
        active = frozenset((row[0], row[1]) for row in rows if row[4])
        return Subscribed(filters, active, active.union((row[0], row[1]) for row in rows if row[5])), homes

    async def _write(self, broker: str, samples: Sequence[Sample], began_ms: int) -> bool:
        """Write a broker's block if there is one to write; return whether its numbers could be encoded.

        The block carries the time at which the broker gave the numbers, between the begin of the round and its end.
        """
        writer = self._writers[broker]
        at_ms = self._survey.read_at_ms[broker]
        try:
            plan = await self._in_thread(lambda: writer.plan(samples, at_ms=at_ms, now_ms=began_ms))
        except (OverflowError, SampleBlockError) as error:
            self._metrics.count("sample_broker_failures")
            log.warning("a broker was not sampled", broker=broker, reason=str(error))
            return False
        if plan is None:
            return True
        # If the answer of Postgres is lost, it is unknown whether the block was written; the next block is then a full
        # one.
        del self._writers[broker]
        async with self._metadata.transaction() as session:
            await SampleRepository(session).add(stored_block(broker, plan))
        writer.keep(plan, now_ms=began_ms)
        self._writers[broker] = writer
        self._metrics.count("sample_rows")
        self._metrics.count("sample_block_bytes", len(plan.data))
        return True

    async def _in_thread(self, work: Callable[[], R]) -> R:
        return await asyncio.wrap_future(self._worker.submit(work))

    def _forget(self) -> None:
        self._knows_epochs = False
        self._away = frozenset()
        self._survey.forget()
        self._series.forget()
        self._writers.clear()
        self._metrics.lag = b""

    def _failed(self, reason: str, error: Exception | None = None) -> None:
        self._metrics.lag = b""  # The lag is unknown now.
        self._metrics.count("sample_failures")
        log.warning("sampling failed", reason=reason, exc_info=error)


def stored_block(broker: str, plan: Plan) -> StoredBlock:
    """Return the row that stores a plan's block."""
    based_at = None if plan.based_at_ms is None else moment_of(plan.based_at_ms)
    return StoredBlock(moment_of(plan.at_ms), broker, plan.kind, based_at, plan.queues, plan.data)


def moment_of(wall_ms: int) -> datetime:
    """Return wall milliseconds as a UTC datetime."""
    return datetime.fromtimestamp(wall_ms // 1_000, UTC).replace(microsecond=wall_ms % 1_000 * 1_000)
