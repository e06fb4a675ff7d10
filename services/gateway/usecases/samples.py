"""The sampler: the offsets of all groups and topics, kept in Postgres, so that growth and drain have a history.

One gateway at a time does it (Postgres advisory lock). A round looks at all brokers (samplelook.py) and writes what differs
from the row before (sampling.py). A broker that does not answer is named with the round; nothing is written of it, since
silence is no number.
"""

import asyncio
from datetime import UTC, date, datetime, timedelta
from typing import Final

from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.gateway.db.leadership import Leadership
from services.gateway.db.samples import SampleRepository
from services.gateway.db.subscriptions import SubscriptionRepository
from services.gateway.errors import ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.brokers import Brokers, no_broker
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.samplelook import SampleLook, Subscribed
from services.gateway.usecases.sampling import EVERYTHING, Filter, Sample, due_of, filter_of

log = logger("gateway.samples")

DUTY: Final = "samples"
_ROWS_AT_ONCE: Final = 500
_TIDY_INTERVAL_MS: Final = 600_000


class Sampler:
    """Does the rounds for as long as this gateway has the duty.

    Concurrency: one task runs it.
    """

    def __init__(
        self,
        look: SampleLook,
        brokers: Brokers,
        metadata: Metadata,
        metrics: GatewayMetrics,
        *,
        clock: Clock,
        interval_ms: int,
        keep_days: int,
    ) -> None:
        self._look = look
        self._brokers = brokers
        self._metadata = metadata
        self._metrics = metrics
        self._clock = clock
        self._interval_ms = interval_ms
        self._keep_days = keep_days
        database = metadata.database
        self._leadership = None if database is None or interval_ms == 0 else Leadership(database, DUTY)
        self._made_for: date | None = None
        self._tidied_ms: int | None = None

    async def run(self) -> None:
        """Sample for ever."""
        if self._leadership is None:
            return
        try:
            while True:
                began_ms = self._clock.monotonic_ms()
                await self._turn(self._leadership)
                took_ms = self._clock.monotonic_ms() - began_ms
                # One that takes longer than the interval still leaves brokers a while to themselves.
                await asyncio.sleep(max(self._interval_ms - took_ms, took_ms // 4) / 1_000)
        finally:
            await self._leadership.release()

    async def _turn(self, leadership: Leadership) -> None:
        try:
            if await leadership.hold():
                await self.round()
            else:
                # Whoever leads now has written other rows; what we have seen is worth nothing when we lead again.
                self._forget()
        except ProblemError as error:
            # Postgres or all brokers are away; the next round finds out whether they are back.
            self._failed(error.detail)
        except Exception as error:  # noqa: BLE001 # boundary: samples are never worth a gateway that ends.
            self._forget()
            self._failed("a fault of the gateway's own", error)
        self._metrics.gauges["is_sampler"] = float(leadership.is_leader)

    async def round(self) -> None:
        """Sample everything once. Raises ProblemError (503)."""
        now_ms, began_ms = self._clock.now_ms(), self._clock.monotonic_ms()
        sampled_at = _moment(now_ms)
        await self._make_partitions(sampled_at.date())
        subscribed = await self._subscribed()
        sets = await self._brokers.sets()
        if not sets:
            raise no_broker()
        samples, missing = await self._look.look(sets, subscribed)
        due = due_of(samples, self._look.states, began_ms)
        took_ms = self._clock.monotonic_ms() - began_ms
        await self._write(sampled_at, [sample for sample, _ in due], took_ms, missing)
        for sample, digest in due:
            state = self._look.states[sample.group, sample.topic, sample.broker]
            state.digest, state.written_ms = digest, began_ms
        self._metrics.count("sample_rounds")
        self._metrics.count("sample_rows", len(due))
        self._metrics.gauges["sample_round_seconds"] = took_ms / 1_000
        self._metrics.gauges["sample_brokers_missing"] = float(len(missing))
        await self._tidy(sampled_at.date())

    async def _subscribed(self) -> Subscribed:
        async with self._metadata.transaction() as session:
            rows = await SubscriptionRepository(session).filters()
        filters: dict[tuple[str, str], Filter] = {}
        for group, topic, kind, expression, _ in rows:
            known = filter_of(kind, expression)
            if known is not EVERYTHING:
                filters[group, topic] = known
        return Subscribed(filters, frozenset((row[0], row[1]) for row in rows if row[4]))

    # Writing

    async def _make_partitions(self, today: date) -> None:
        if self._made_for != today:
            async with self._metadata.transaction() as session:
                await SampleRepository(session).make_partitions((today, today + timedelta(days=1)))
            self._made_for = today

    async def _write(self, sampled_at: datetime, due: list[Sample], took_ms: int, missing: list[str]) -> None:
        """Write the samples in short transactions, and the round last: where it is, they are all there.

        A row has the moment at which its broker gave the numbers, between the round's beginning and its end.
        """
        for start in range(0, len(due), _ROWS_AT_ONCE):
            rows = [
                {"sampled_at": _moment(self._look.read_at_ms[sample.broker]), **sample.to_row()}
                for sample in due[start : start + _ROWS_AT_ONCE]
            ]
            async with self._metadata.transaction() as session:
                await SampleRepository(session).add(rows)
        async with self._metadata.transaction() as session:
            await SampleRepository(session).end_round(sampled_at, took_ms=took_ms, missing=missing)

    async def _tidy(self, today: date) -> None:
        now_ms = self._clock.monotonic_ms()
        if self._tidied_ms is not None and now_ms - self._tidied_ms < _TIDY_INTERVAL_MS:
            return
        self._tidied_ms = now_ms
        async with self._metadata.transaction() as session:
            dropped, kept = await SampleRepository(session).drop_before(today - timedelta(days=self._keep_days))
        if dropped or kept:
            log.info("old samples", partitions_dropped=dropped, partitions_in_use=kept, keep_days=self._keep_days)

    def _forget(self) -> None:
        self._look.forget()
        self._made_for = None

    def _failed(self, reason: str, error: Exception | None = None) -> None:
        self._metrics.count("sample_failures")
        log.warning("not sampled", reason=reason, exc_info=error)


def _moment(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms // 1_000, UTC).replace(microsecond=wall_ms % 1_000 * 1_000)
