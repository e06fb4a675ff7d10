"""The reconciler: brings brokers to the desired state, and imports names that were created directly on brokers.

One gateway at a time reconciles (Postgres advisory lock). A round reads all brokers and all rows, decides
(reconciling.py) and applies the decisions, one name after the other. Each name is handled under the lock of its row,
and only if the row still has the version that the decision was made for. So the reconciler never undoes a change that a
user makes at the same time.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic

import msgspec

from gantry.client.errors import ClientError
from gantry.remoting.errors import BodyError, HeaderError
from gantry.runtime.telemetry import logger
from services.gateway.db.leadership import Leadership
from services.gateway.db.models import ConfigState
from services.gateway.db.repositories import LIST_LIMIT_MAX
from services.gateway.errors import ProblemError
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.configs.kinds import ConfigRow, DesiredSettings, Kind, ObservedState
from services.gateway.usecases.configs.reconciling import DesiredState, Plan, decide_all, homes_of, merge_observed
from services.gateway.usecases.metadata import Metadata, is_metadata_unavailable

log = logger("gateway.reconcile")

LEADERSHIP = "reconcile"


@dataclass(slots=True)
class RoundCounts:
    """Counts of a round's actions."""

    put: int = 0
    dropped: int = 0
    adopted: int = 0
    forgotten: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class _NameAction(Generic[ObservedState]):
    """One name that needs an action."""

    name: str
    plan: Plan
    row: ConfigRow | None
    present: Mapping[str, ObservedState]
    waiting: list[str]
    """Reasons why brokers that should have it (or lose it) could not be reached."""


class KindReconciler(Generic[ObservedState]):
    """One round for topics, or for groups."""

    def __init__(self, kind: Kind[ObservedState], metadata: Metadata, brokers: Brokers) -> None:
        self._kind = kind
        self._metadata = metadata
        self._brokers = brokers

    async def round(self) -> RoundCounts:
        """Compare all names once and repair the differences. Raises ProblemError."""
        asked = await self._brokers.ask(self._kind.table, fresh=True)
        asked.require_any()
        sets = await self._brokers.sets()
        present: dict[str, dict[str, ObservedState]] = {}
        for broker, table in asked.answers.items():
            for name, config in table.items():
                if not self._kind.is_system(name, sets):
                    present.setdefault(name, {})[broker] = config
        rows = await self._all_rows()
        desired = {name: self._desired_state(row) for name, row in rows.items()}
        plans = decide_all(desired, present, answered=list(asked.answers), silent=sorted(asked.failures))
        done = RoundCounts()
        for name, plan in plans.items():
            waiting = [asked.failures[broker] for broker in plan.waiting]
            await self._apply_plan(_NameAction(name, plan, rows.get(name), present.get(name, {}), waiting), done)
        await self._observe(rows, present, asked.answers)
        await self._kind.after_round(dict(self._settings_and_homes(rows, sets)))
        return done

    async def declare(self) -> None:
        """Set the queues for ordering keys of all topics in this gateway's routes. Raises ProblemError."""
        rows, sets = await self._all_rows(), await self._brokers.sets()
        for name, (settings, homes) in self._settings_and_homes(rows, sets):
            self._kind.declare(name, settings, homes)

    def _settings_and_homes(
        self, rows: Mapping[str, ConfigRow], sets: Collection[str]
    ) -> Iterator[tuple[str, tuple[DesiredSettings[ObservedState], list[str]]]]:
        """Yield name, settings and homes of each row that is not being deleted."""
        for name, row in rows.items():
            if row.state != ConfigState.DELETING:
                settings = self._kind.read_settings(row.config)
                yield name, (settings, homes_of(settings, sets, row.observed))

    def _desired_state(self, row: ConfigRow) -> DesiredState[ObservedState]:
        return DesiredState(
            row.version,
            self._kind.read_settings(row.config),
            is_deleting=row.state == ConfigState.DELETING,
            is_applied=row.state == ConfigState.APPLIED,
        )

    async def _all_rows(self) -> dict[str, ConfigRow]:
        rows: dict[str, ConfigRow] = {}
        async with self._metadata.transaction() as session:
            repository = self._kind.repository(session)
            after = ""
            while True:
                page = await repository.page(after=after, limit=LIST_LIMIT_MAX)
                rows.update({row.name: row for row in page})
                if len(page) < LIST_LIMIT_MAX:
                    break
                after = page[-1].name
            rows.update({row.name: row for row in await repository.unsettled()})
        return rows

    async def _apply_plan(self, action: "_NameAction[ObservedState]", done: RoundCounts) -> None:
        row = action.row
        if row is None:
            await self._adopt(action, done)
            return
        async with self._metadata.transaction() as session:
            repository = self._kind.repository(session)
            # This locks the row, and checks that the row still has the version of the decision.
            if not await repository.settle(row.name, row.version, detail=row.state_detail):
                return
            failures = [*action.waiting, *await self._repair(action, row, done)]
            if row.state != ConfigState.DELETING:
                await repository.settle(row.name, row.version, detail="; ".join(failures) or None)
            elif not failures:
                done.forgotten += await repository.forget(row.name, row.version)
        # This comes after the transaction, because name servers may take longer than a transaction may.
        if row.state == ConfigState.DELETING and action.plan.drop:
            await self._kind.after_drop(action.name)
        elif action.plan.put:
            settings = self._kind.read_settings(row.config)
            homes = homes_of(settings, await self._brokers.sets(), row.observed)
            await self._kind.after_put(action.name, settings, homes)

    async def _adopt(self, action: "_NameAction[ObservedState]", done: RoundCounts) -> None:
        observed = self._kind.observed_column(action.present)
        config = msgspec.to_builtins(self._kind.adopted(action.present, frozenset(await self._brokers.sets())))
        async with self._metadata.transaction() as session:
            row = await self._kind.repository(session).adopt(action.name, config, observed=observed)
        if row is not None:
            done.adopted += 1
            log.info("imported from brokers", kind=self._kind.name, name=action.name, brokers=sorted(observed))

    async def _repair(self, action: "_NameAction[ObservedState]", row: ConfigRow, done: RoundCounts) -> list[str]:
        """Write to and delete from all brokers concurrently, as the row is locked meanwhile; return the failures."""
        settings = self._kind.read_settings(row.config)
        failures: list[str] = []

        async def repair_broker(broker: str) -> None:
            try:
                address = await self._brokers.master(broker)
                if broker in action.plan.put:
                    present = action.present.get(broker)
                    if present is None or settings.is_for(broker):
                        await self._kind.put(address, settings.applied_to(action.name, present))
                    else:
                        await self._kind.put(address, settings.kept_as(present))
                    done.put += 1
                else:
                    await self._kind.drop(address, action.name)
                    done.dropped += 1
            except (ClientError, BodyError, HeaderError, ProblemError) as error:
                failures.append(f"broker {broker}: {error}")
                done.failed += 1

        await asyncio.gather(*(repair_broker(broker) for broker in (*action.plan.put, *action.plan.drop)))
        if action.plan.put or action.plan.drop:
            log.info("repaired", kind=self._kind.name, name=action.name, put=action.plan.put, drop=action.plan.drop)
        return failures

    async def _observe(
        self,
        rows: Mapping[str, ConfigRow],
        present: Mapping[str, Mapping[str, ObservedState]],
        answered: Collection[str],
    ) -> None:
        changed: dict[str, dict[str, Any]] = {}
        for name, row in rows.items():
            observed = merge_observed(row.observed, self._kind.observed_column(present.get(name, {})), answered)
            if observed != row.observed:
                changed[name] = observed
        if changed:
            async with self._metadata.transaction() as session:
                await self._kind.repository(session).observe(changed)


class Reconciler:
    """Runs the rounds while this gateway is the leader.

    Concurrency: one task runs it.
    """

    def __init__(
        self,
        kinds: list[KindReconciler[Any]],
        metadata: Metadata,
        metrics: GatewayMetrics,
        *,
        interval_ms: int,
    ) -> None:
        self._kinds = kinds
        self._metrics = metrics
        self._interval_ms = interval_ms
        self._leadership = None if metadata.database is None else Leadership(metadata.database, LEADERSHIP)

    async def declare(self) -> None:
        """Set the queues for ordering keys of all topics: before the first message is accepted, and after each round.

        Without Postgres, the queues follow the brokers that were seen up since the start.
        """
        try:
            for kind in self._kinds:
                await kind.declare()
        except ProblemError as error:
            log.warning("the brokers of ordering keys are unknown", reason=error.detail)

    async def run(self) -> None:
        """Reconcile until cancelled."""
        if self._leadership is None:
            return
        try:
            while True:
                await self._run_round()
                await self.declare()
                await asyncio.sleep(self._interval_ms / 1_000)
        finally:
            await self._leadership.release()

    async def _run_round(self) -> None:
        assert self._leadership is not None
        try:
            if await self._leadership.hold():
                for kind in self._kinds:
                    self._count(await kind.round())
        except ProblemError as error:
            # Postgres or all brokers are unavailable; the next round tries again.
            log.warning("reconciling failed", reason=error.detail, metadata_away=is_metadata_unavailable(error))
        self._metrics.gauges["is_reconciler"] = float(self._leadership.is_leader)

    def _count(self, done: RoundCounts) -> None:
        for name in ("put", "dropped", "adopted", "forgotten", "failed"):
            self._metrics.count(f"reconcile_{name}", getattr(done, name))
