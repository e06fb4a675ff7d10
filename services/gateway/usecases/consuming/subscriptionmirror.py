"""The mirror: copies the subscriptions that brokers see to Postgres, with the time they were last seen.

One gateway at a time mirrors. A round asks every broker about every group. The rows of a group stay unchanged if a
broker does not answer, because its instances may still be connected.
"""

import asyncio
from datetime import timedelta
from typing import Final

from gantry.runtime.telemetry import logger
from services.gateway.db.leadership import Leadership
from services.gateway.db.subscriptions import SubscriptionRepository
from services.gateway.errors import ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.configs.kinds import GroupKind
from services.gateway.usecases.consuming.consumers import Consumers, sightings_of
from services.gateway.usecases.metadata import Metadata

log = logger("gateway.mirror")

LEADERSHIP: Final = "subscriptions"
# Groups for each transaction, so that it meets its deadline.
_GROUPS_AT_ONCE: Final = 50


class Mirror:
    """Runs the rounds while this gateway is the leader.

    Concurrency: one task runs it.
    """

    def __init__(
        self,
        consumers: Consumers,
        groups: GroupKind,
        brokers: Brokers,
        metadata: Metadata,
        metrics: GatewayMetrics,
        *,
        interval_ms: int,
        keep_days: int,
    ) -> None:
        """Create a mirror; with `keep_days` 0 it deletes no subscriptions."""
        self._consumers = consumers
        self._groups = groups
        self._brokers = brokers
        self._metadata = metadata
        self._metrics = metrics
        self._interval_ms = interval_ms
        self._keep = timedelta(days=keep_days)
        self._leadership = None if metadata.database is None else Leadership(metadata.database, LEADERSHIP)

    async def run(self) -> None:
        """Mirror until cancelled."""
        if self._leadership is None:
            return
        try:
            while True:
                try:
                    if await self._leadership.hold():
                        await self.round()
                except ProblemError as error:
                    log.warning("subscriptions were not mirrored", reason=error.detail)
                self._metrics.gauges["is_mirror"] = float(self._leadership.is_leader)
                await asyncio.sleep(self._interval_ms / 1_000)
        finally:
            await self._leadership.release()

    async def round(self) -> None:
        """Mirror all groups once. Raises ProblemError."""
        asked = await self._brokers.ask(self._groups.table, fresh=True)
        asked.require_any()
        groups = sorted({group for table in asked.answers.values() for group in table})
        for start in range(0, len(groups), _GROUPS_AT_ONCE):
            await self._mirror(groups[start : start + _GROUPS_AT_ONCE])
        if asked.is_complete:
            async with self._metadata.transaction() as session:
                repository = SubscriptionRepository(session)
                await repository.deactivate_others(groups)
                if self._keep:
                    await repository.forget(groups, older_than=self._keep)

    async def _mirror(self, groups: list[str]) -> None:
        found = [(group, await self._consumers.connections(group)) for group in groups]
        async with self._metadata.transaction() as session:
            repository = SubscriptionRepository(session)
            for group, asked in found:
                if asked.is_complete:
                    await repository.mirror(group, sightings_of(asked.answers.values()))
