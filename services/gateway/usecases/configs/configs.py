"""Topics and groups as the HTTP API shows and changes them.

A change is first written to Postgres, together with its audit row, and then to the brokers. The row in Postgres is the
desired state from that moment on, so the reconciler repairs every broker that the change did not reach. A
`Configuration` has both states: the desired state, and the state that brokers have now.

While Postgres is unavailable, only the brokers' state is known; the `Configuration` says so.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic

import msgspec

from gantry.client.engine import ClientEngine
from gantry.client.errors import ClientError
from gantry.model.route import BrokerData
from gantry.runtime.clock import Clock
from gantry.runtime.telemetry import logger
from services.gateway.db.errors import ConcurrentChangeError
from services.gateway.db.models import ConfigState
from services.gateway.db.repositories import LIST_LIMIT_MAX, Actor, Expectation, PutResult
from services.gateway.errors import (
    BROKER_UNAVAILABLE,
    CONFLICT,
    UNKNOWN_BROKER,
    ProblemError,
    reserved_name,
)
from services.gateway.schemas.cursors import decode_cursor, encode_cursor
from services.gateway.usecases.cluster.brokers import BrokerAnswers, Brokers, no_broker
from services.gateway.usecases.configs.configuration import Configuration, configuration_of
from services.gateway.usecases.configs.kinds import Change, ConfigRow, DesiredSettings, Kind, ObservedState
from services.gateway.usecases.configs.presence import Presence, RowState
from services.gateway.usecases.configs.reconciling import homes_of, merge_observed
from services.gateway.usecases.metadata import Metadata, is_metadata_unavailable
from services.gateway.usecases.page import MetadataPage

log = logger("gateway.configs")

ROUTE_TIMEOUT_MS: Final = 3_000
_ROUTE_POLL_S: Final = 0.02
TABLES_CACHED_MS: Final = 2_000

CONSUME_TIMEOUT_MINUTES: Final = 15

# Attempts to write a change; an attempt fails when another writer changes the same row first.
WRITES_MAX: Final = 5

NameFilter = Callable[[str], bool]


class Configs(Generic[ObservedState]):
    """The operations on topics, or on groups. The caller checks the rights."""

    def __init__(
        self,
        kind: Kind[ObservedState],
        metadata: Metadata,
        brokers: Brokers,
        engine: ClientEngine,
        *,
        presence: Presence[ObservedState],
        clock: Clock,
    ) -> None:
        self._kind = kind
        self._metadata = metadata
        self._brokers = brokers
        self._engine = engine
        self._presence = presence
        self._clock = clock
        self._tables: tuple[int, BrokerAnswers[Mapping[str, ObservedState]]] | None = None
        self._tables_lock = asyncio.Lock()

    async def put(
        self, name: str, change: Change[ObservedState], expect: Expectation, actor: Actor
    ) -> Configuration[ObservedState]:
        """Create a topic or group, or change the settings that `change` names.

        Raises:
            InvalidValueError: The name or a value is not valid.
            ProblemError: 403: the name is reserved for the system; 404: a named broker does not exist; 409: the change
                would hide messages; 412: the row does not match `expect`; 503: Postgres or all brokers are unavailable.
        """
        sets = await self._check_name(name)
        if not sets:
            # Without brokers, neither the reserved names (brokers' own topics) nor the existing brokers are known.
            raise no_broker()
        desired, result = await self._write(name, change, sets, expect, actor)
        self._tables = None
        asked = await self._apply(name, desired)
        await self._note(name, result.row, asked)
        if not asked.answers:
            raise ProblemError(
                BROKER_UNAVAILABLE,
                f"{self._kind.name}: {name!r} is saved, and written to brokers as soon as they can be reached: "
                + asked.problem().detail,
            )
        homes = homes_of(desired, await self._brokers.sets(), result.row.observed)
        await self._kind.after_put(name, desired, homes)
        await self._await_route(name, asked)
        return configuration_of(self._kind, name, result.row, asked, is_new=result.created)

    async def get(self, name: str) -> Configuration[ObservedState]:
        """Return one topic or group. Raises ProblemError (404, 503)."""
        self._kind.check_name(name)
        state, row = await self._presence.find_row(name)
        asked = await self._find(name)
        if row is None and (state is RowState.DELETING or not asked.answers):
            raise self._presence.problem_of(name, state, asked)
        return configuration_of(self._kind, name, row, asked, is_metadata_available=state is not RowState.UNAVAILABLE)

    async def require(self, name: str) -> None:
        """Raise ProblemError unless a broker that answers has it: 404, or 503 if it exists or may exist."""
        asked = await self._find(name)
        if not asked.answers:
            raise self._presence.problem_of(name, (await self._presence.find_row(name))[0], asked)

    async def consume_timeout_ms(self, name: str) -> int | None:
        """Return the time a consumer of the group has for one message, in ms; None if no broker has the group.

        Raises:
            ProblemError: 503: no broker answers.
        """
        asked = await self._find(name)
        asked.require_answer()
        minutes = [
            getattr(there, "consume_timeout_minute", CONSUME_TIMEOUT_MINUTES) for there in asked.answers.values()
        ]
        return min(minutes) * 60_000 if minutes else None

    async def delete(self, name: str, expect: Expectation, actor: Actor) -> None:
        """Delete a topic or group from all brokers that can be reached now, and from the others once they are back.

        Raises:
            ProblemError: 403, 404, 412, 503 as `put`.
        """
        await self._check_name(name)
        present = await self._find(name)
        async with self._metadata.transaction() as session:
            repository = self._kind.repository(session)
            if present.answers and await repository.find(name) is None:
                # It was created directly on a broker, and the reconciler has not imported it yet.
                sets = frozenset(await self._brokers.sets())
                config = msgspec.to_builtins(self._kind.adopted(present.answers, sets))
                await repository.adopt(name, config, observed=self._kind.observed_column(present.answers))
            row = await repository.mark_deleting(name, actor=actor, expect=expect)
            if row is not None:
                await self._kind.delete_parts(session, name, actor)
        if row is None:
            raise self._presence.problem_of(name, (await self._presence.find_row(name))[0], present)
        self._tables = None
        dropped = await self._brokers.ask(lambda address: self._drop(address, name), fresh=True)
        await self._kind.after_drop(name)
        if not dropped.is_complete:
            log.warning("deletion incomplete", kind=self._kind.name, name=name, failures=dict(dropped.failures))
            return
        try:
            async with self._metadata.transaction() as session:
                await self._kind.repository(session).forget(name, row.version)
        except ProblemError as error:
            log.warning("deleted on all brokers; its row is removed later", name=name, reason=error.detail)

    async def page(
        self, *, cursor: str | None, limit: int, system: bool, sees: NameFilter
    ) -> MetadataPage[Configuration[ObservedState]]:
        """List those that `sees` accepts, by name. Raises InvalidValueError if the cursor is not valid."""
        after = "" if cursor is None else decode_cursor(cursor, self._kind.name)
        asked = await self._all_tables()
        sets = await self._brokers.sets()

        def is_visible(name: str) -> bool:
            return sees(name) and (system or not self._kind.is_system(name, sets))

        rows, is_available = await self._rows_after(after, limit + 1, is_visible)
        if not is_available:
            asked.require_answer()
        deleting = {name for name, row in rows.items() if row.state == ConfigState.DELETING}
        there = {name for table in asked.answers.values() for name in table if name > after and is_visible(name)}
        names = sorted((rows.keys() | there) - deleting)
        items = [
            configuration_of(
                self._kind, name, rows.get(name), _of_name(asked, name), is_metadata_available=is_available
            )
            for name in names[:limit]
        ]
        next_cursor = encode_cursor(self._kind.name, names[limit - 1]) if len(names) > limit else None
        return MetadataPage(items, next_cursor, is_metadata_available=is_available)

    async def _write(
        self,
        name: str,
        change: Change[ObservedState],
        sets: Mapping[str, BrokerData],
        expect: Expectation,
        actor: Actor,
    ) -> tuple[DesiredSettings[ObservedState], PutResult[Any]]:
        """Apply a change to the current settings and write the result; start again if another writer was first."""
        for _ in range(WRITES_MAX):
            row = await self._row(name)
            asked = await self._find(name)
            base: Any = None
            if row is not None:
                base = self._kind.read_settings(row.config)
            elif (await self._presence.find_row(name))[0] is RowState.DELETING:
                asked = BrokerAnswers({}, asked.failures, asked.answered)
            elif asked.answers:
                # It was created directly on a broker, and the reconciler has not imported it yet.
                base = self._kind.adopted(asked.answers, frozenset(sets))
            desired = change.over(base)
            desired.check()
            unknown = [broker for broker in _named_brokers(desired) if broker not in sets]
            known_before = {} if row is None else row.observed
            if any(broker not in known_before for broker in unknown):
                detail = f"/brokers: not registered: {', '.join(unknown)}"
                raise ProblemError(UNKNOWN_BROKER, detail, field="/brokers")
            await self._kind.check_hidden_messages(name, change, base, asked, held=known_before)
            try:
                async with self._metadata.transaction() as session:
                    over = None if row is None else row.config
                    config = msgspec.to_builtins(desired)
                    repository = self._kind.repository(session)
                    return desired, await repository.put(name, config, actor=actor, expect=expect, over=over)
            except ConcurrentChangeError:
                continue
        detail = f"{self._kind.name}: {name!r} was changed by others during each of {WRITES_MAX} attempts"
        raise ProblemError(CONFLICT, detail, field=self._kind.name, retryable=True)

    async def _check_name(self, name: str) -> Mapping[str, BrokerData]:
        self._kind.check_name(name)
        sets = await self._brokers.sets()
        if self._kind.is_system(name, sets):
            raise reserved_name(self._kind.name, name)
        return sets

    async def _row(self, name: str) -> ConfigRow | None:
        async with self._metadata.transaction() as session:
            row: ConfigRow | None = await self._kind.repository(session).get(name)
            return row

    async def _rows_after(
        self, after: str, count: int, is_visible: Callable[[str], bool]
    ) -> tuple[dict[str, ConfigRow], bool]:
        """Return at least `count` visible rows if there are as many, and the rows that are being deleted."""
        found: dict[str, ConfigRow] = {}
        try:
            async with self._metadata.transaction() as session:
                repository = self._kind.repository(session)
                while len(found) < count:
                    rows = await repository.page(after=after, limit=LIST_LIMIT_MAX)
                    found.update({row.name: row for row in rows if is_visible(row.name)})
                    if len(rows) < LIST_LIMIT_MAX:
                        break
                    after = rows[-1].name
                unsettled = await repository.unsettled()
        except ProblemError as error:
            if not is_metadata_unavailable(error):
                raise
            return {}, False
        found.update({row.name: row for row in unsettled if row.state == ConfigState.DELETING})
        return found, True

    async def _all_tables(self) -> BrokerAnswers[Mapping[str, ObservedState]]:
        async with self._tables_lock:
            now_ms = self._clock.monotonic_ms()
            if self._tables is None or now_ms - self._tables[0] > TABLES_CACHED_MS:
                asked = await self._brokers.ask(self._kind.table)
                self._tables = (now_ms, asked) if asked.answered else None
                return asked
            return self._tables[1]

    async def _find(self, name: str) -> BrokerAnswers[ObservedState]:
        return await self._brokers.find(lambda address: self._kind.find(address, name))

    async def _apply(self, name: str, desired: DesiredSettings[ObservedState]) -> BrokerAnswers[ObservedState]:
        async def apply(address: str) -> ObservedState:
            present = await self._kind.find(address, name)
            if present is None or not desired.is_met_by(present):
                present = desired.applied_to(name, present)
                await self._kind.put(address, present)
            return present

        async def keep(address: str) -> None:
            present = await self._kind.find(address, name)
            if present is not None and not desired.is_kept_by(present):
                await self._kind.put(address, desired.kept_as(present))

        sets = await self._brokers.sets(fresh=True)
        meant = {*(broker for broker in sets if desired.is_for(broker)), *_named_brokers(desired)}
        applied, kept = await asyncio.gather(
            self._brokers.ask(apply, meant), self._brokers.ask(keep, sets.keys() - meant)
        )
        if kept.failures:
            # The reconciler repairs these brokers once they are back.
            log.warning("brokers not checked", kind=self._kind.name, name=name, failures=dict(kept.failures))
        return applied

    async def _drop(self, address: str, name: str) -> bool:
        if await self._kind.find(address, name) is None:
            return False
        await self._kind.drop(address, name)
        return True

    async def _note(self, name: str, row: ConfigRow, asked: BrokerAnswers[ObservedState]) -> None:
        """Record the result of the change; if that fails, the reconciler finds it out."""
        detail = "; ".join(asked.failures.values()) or None
        try:
            async with self._metadata.transaction() as session:
                repository = self._kind.repository(session)
                observed = self._kind.observed_column(asked.answers)
                await repository.observe({name: merge_observed(row.observed, observed, asked.answers)})
                await repository.settle(name, row.version, detail=detail)
        except ProblemError as error:
            log.warning("applied, but not recorded", kind=self._kind.name, name=name, reason=error.detail)

    async def _await_route(self, name: str, asked: BrokerAnswers[ObservedState]) -> None:
        """Wait until producers can find a route: brokers register a new topic with name servers after they answer."""
        if self._kind.name != "topic":
            return
        try:
            async with asyncio.timeout(ROUTE_TIMEOUT_MS / 1_000):
                while True:
                    try:
                        route = await self._engine.route(name, refresh=True)
                        if asked.answers.keys() <= {queue.broker_name for queue in route.queue_datas}:
                            return
                    except ClientError:
                        pass  # The route is not there yet, or no name server answers. The time-out decides.
                    await asyncio.sleep(_ROUTE_POLL_S)
        except TimeoutError:
            log.warning("name servers do not know the topic yet", topic=name)


def _named_brokers(desired: object) -> list[str]:
    return getattr(desired, "brokers", None) or []


def _of_name(asked: BrokerAnswers[Mapping[str, ObservedState]], name: str) -> BrokerAnswers[ObservedState]:
    there = {broker: table[name] for broker, table in asked.answers.items() if name in table}
    return BrokerAnswers(there, asked.failures, asked.answered)
