"""Repositories: the queries and changes of the use cases, one small class a table.

Each works on the session of an open transaction (engine.py) and never commits. A change takes its `Actor` and adds its
audit row in the same transaction, so that neither exists without the other. Returned rows are for reading; only the
repository changes them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, bindparam, func, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.errors import AlreadyExistsError, ConcurrentChangeError, VersionConflictError
from services.gateway.db.models import AuditEntry, ConfigOrigin, ConfigState, Group, Json, Topic

Row = TypeVar("Row", Topic, Group)

LIST_LIMIT_MAX = 1_000
OBSERVED_AGAIN = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Actor:
    """The origin of a change: an API key's id, or a part of the gateway such as `reconciler`."""

    id: str
    request_id: str | None = None


RECONCILER = Actor("reconciler")


@dataclass(frozen=True, slots=True)
class Expectation:
    """The condition of If-Match and If-None-Match; the default has no condition.

    `version` is the version that the row must have; `exists` True is `If-Match: *`, False is `If-None-Match: *`.
    """

    version: int | None = None
    exists: bool | None = None


ANYTHING = Expectation()


@dataclass(frozen=True, slots=True)
class PutResult(Generic[Row]):
    """The result of a put; `created` and `changed` are both False if nothing had to change."""

    row: Row
    created: bool
    changed: bool


class AuditRepository:
    """The trail of changes."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    def record(
        self, actor: Actor, action: str, kind: str, name: str, *, before: Json | None, after: Json | None
    ) -> AuditEntry:
        """Add a row to the transaction; it has its id after a flush. `action` is `topic.create`, `key.revoke`, …."""
        entry = AuditEntry(
            actor=actor.id,
            action=action,
            resource_kind=kind,
            resource_name=name,
            before=before,
            after=after,
            request_id=actor.request_id,
        )
        self._session.add(entry)
        return entry

    async def page(
        self,
        *,
        kind: str | None = None,
        name: str | None = None,
        actor: str | None = None,
        action: str | None = None,
        begin: datetime | None = None,
        end: datetime | None = None,
        before_id: int | None = None,
        limit: int = 100,
    ) -> Sequence[AuditEntry]:
        """Return rows from `begin` to before `end`, newest first; `before_id` is the id of the last row before them."""
        query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(bounded(limit))
        equal = {"resource_kind": kind, "resource_name": name, "actor": actor, "action": action}
        query = query.filter_by(**{column: value for column, value in equal.items() if value is not None})
        if begin is not None:
            query = query.where(AuditEntry.at >= begin)
        if end is not None:
            query = query.where(AuditEntry.at < end)
        if before_id is not None:
            query = query.where(AuditEntry.id < before_id)
        return (await self._session.scalars(query)).all()


class ConfigRepository(Generic[Row]):
    """Desired and observed configuration; the shared part of topics and groups."""

    _model: type[Row]
    _kind: str

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._audit = AuditRepository(session)

    async def get(self, name: str, *, lock: bool = False) -> Row | None:
        """Return the visible row of a name: None also for one that is being deleted.

        Args:
            name: Name of the topic or group.
            lock: Whether to block changes by others until the transaction ends.
        """
        row = await self.find(name, lock=lock)
        return None if row is None or row.state == ConfigState.DELETING else row

    async def find(self, name: str, *, lock: bool = False) -> Row | None:
        """Return the row of a name, even if it is being deleted; `lock` as for `get`."""
        query: Select[Row] = select(self._model).where(self._model.name == name)
        if lock:
            query = query.with_for_update()
        return (await self._session.scalars(query.execution_options(populate_existing=True))).one_or_none()

    async def homes_of(self, name: str) -> set[str]:
        """Return the brokers that were seen to hold a name; empty if it is unknown or being deleted."""
        row = await self.get(name)
        return set() if row is None else set(row.observed)

    async def homes(self) -> set[str]:
        """Return the brokers that hold any of these names and should; other brokers are out of service."""
        held = self._held().subquery()
        return set((await self._session.scalars(select(held.c.broker).distinct())).all())

    async def held_by(self, brokers: Collection[str]) -> dict[str, list[str]]:
        """Return the names that each of some brokers holds and should, in no order."""
        found: dict[str, list[str]] = {broker: [] for broker in brokers}
        if found:
            held = self._held().subquery()
            # One value for each broker: a hundred thousand rows would hold the event loop for a tenth of a second.
            names = func.jsonb_agg(held.c.name).label("names")
            query = select(held.c.broker, names).where(held.c.broker.in_(found)).group_by(held.c.broker)
            found |= {row.broker: row.names for row in await self._session.execute(query)}
        return found

    def _held(self) -> Select[Any]:
        """Return the names with the brokers that hold them and should."""
        model = self._model
        broker = func.jsonb_object_keys(model.observed).label("broker")
        held = select(model.name, broker, model.config).where(model.state != ConfigState.DELETING).subquery()
        named = held.c.config["brokers"]
        is_meant = or_(named.is_(None), func.jsonb_typeof(named) == "null", named.has_key(held.c.broker))
        return select(held.c.name, held.c.broker).where(is_meant)

    async def page(self, *, after: str = "", limit: int = 100, prefix: str = "") -> Sequence[Row]:
        """Return the visible rows, by name in byte order, after `after`."""
        model = self._model
        query: Select[Row] = select(model).where(model.name > after, model.state != ConfigState.DELETING)
        if prefix:
            query = query.where(model.name.startswith(prefix, autoescape=True))
        return (await self._session.scalars(query.order_by(model.name).limit(bounded(limit)))).all()

    async def unsettled(self, *, limit: int = LIST_LIMIT_MAX) -> Sequence[Row]:
        """Return the rows that brokers may not have yet (PENDING and DELETING), the longest waiting first."""
        model = self._model
        query = select(model).where(model.state != ConfigState.APPLIED).order_by(model.updated_at, model.name)
        return (await self._session.scalars(query.limit(bounded(limit)))).all()

    async def put(
        self,
        name: str,
        config: Json,
        *,
        actor: Actor,
        expect: Expectation = ANYTHING,
        over: object = ANYTHING,
    ) -> PutResult[Row]:
        """Make `config` the desired state; it is PENDING until `settle` is called.

        Args:
            name: Name of the topic or group.
            config: All of its settings.
            actor: Origin of the change.
            expect: The caller's condition.
            over: Settings that `config` was derived from (None: there were none); omitted if it was derived from none.

        Raises:
            VersionConflictError: The row does not match `expect`.
            AlreadyExistsError: `expect.exists` is False, and the row exists.
            ConcurrentChangeError: The settings are no longer those of `over`.
        """
        row = await self.find(name, lock=True)
        seen = None if row is None or row.state == ConfigState.DELETING else row
        self._check(name, seen, expect)
        if over is not ANYTHING and over != (None if seen is None else seen.config):
            raise ConcurrentChangeError(self._kind, name)
        if row is None:
            row = await self._insert(name, config, ConfigOrigin.API, ConfigState.PENDING)
            if row is None:  # Another writer created the row between the read and the insert.
                return await self.put(name, config, actor=actor, expect=expect, over=over)
            self._audit.record(actor, f"{self._kind}.create", self._kind, name, before=None, after=config)
            return PutResult(row, created=True, changed=True)
        if seen is not None and row.config == config:
            return PutResult(row, created=False, changed=False)
        action = "create" if seen is None else "change"
        before = None if seen is None else row.config
        self._audit.record(actor, f"{self._kind}.{action}", self._kind, name, before=before, after=config)
        row.config, row.version, row.origin = config, row.version + 1, ConfigOrigin.API
        row.state, row.state_detail = ConfigState.PENDING, None
        await self._touch(row)
        return PutResult(row, created=seen is None, changed=True)

    async def mark_deleting(self, name: str, *, actor: Actor, expect: Expectation = ANYTHING) -> Row | None:
        """Mark the row for deletion; None if it does not exist. `forget` removes it once no broker has it.

        Raises:
            VersionConflictError: The row does not match `expect`.
        """
        row = await self.get(name, lock=True)
        self._check(name, row, expect)
        if row is None:
            return None
        self._audit.record(actor, f"{self._kind}.delete", self._kind, name, before=row.config, after=None)
        row.state, row.state_detail, row.version = ConfigState.DELETING, None, row.version + 1
        await self._touch(row)
        return row

    async def settle(self, name: str, version: int, *, detail: str | None = None) -> bool:
        """Record the result of applying `version`: APPLIED, or still PENDING with the reason as `detail`.

        Returns:
            False if the row has another version now; then nothing is recorded.
        """
        row = await self.find(name, lock=True)
        if row is None or row.version != version:
            return False
        if row.state != ConfigState.DELETING:
            row.state = ConfigState.APPLIED if detail is None else ConfigState.PENDING
        row.state_detail = detail
        await self._session.flush()
        return True

    async def forget(self, name: str, version: int) -> bool:
        """Remove a row that was being deleted, if it is still at `version`."""
        row = await self.find(name, lock=True)
        if row is None or row.version != version or row.state != ConfigState.DELETING:
            return False
        await self._session.delete(row)
        await self._session.flush()
        return True

    async def observe(self, observed: Mapping[str, Mapping[str, Json]]) -> None:
        """Record the configurations of brokers: {name: {broker name: config}}; unknown names are left out (`adopt`).

        An unchanged one is written again only after OBSERVED_AGAIN, so that a round every half minute over thousands of
        names does not write thousands of rows.
        """
        if not observed:
            return
        model = self._model
        seen = bindparam("seen", type_=JSONB)
        stale = or_(model.observed_at.is_(None), model.observed_at < func.now() - OBSERVED_AGAIN)
        change = (
            update(model.__table__)  # type: ignore[arg-type]
            .where(model.name == bindparam("whose"), or_(model.observed.is_distinct_from(seen), stale))
            .values(observed=seen, observed_at=func.now())
        )
        connection = await self._session.connection()
        await connection.execute(change, [{"whose": name, "seen": dict(held)} for name, held in observed.items()])

    async def adopt(self, name: str, config: Json, *, observed: Mapping[str, Json]) -> Row | None:
        """Import a name that was created directly on a broker; None if it is known already."""
        row = await self._insert(name, config, ConfigOrigin.BROKER, ConfigState.APPLIED)
        if row is None:
            return None
        row.observed, row.observed_at = dict(observed), func.now()
        self._audit.record(RECONCILER, f"{self._kind}.import", self._kind, name, before=None, after=config)
        await self._session.flush()
        await self._session.refresh(row)
        return row

    async def _insert(self, name: str, config: Json, origin: ConfigOrigin, state: ConfigState) -> Row | None:
        # A name that is created again must not reuse an earlier version. Each change has left an audit row, so no
        # earlier version is above the id of the last one.
        last = select(func.max(AuditEntry.id)).where(
            AuditEntry.resource_kind == self._kind, AuditEntry.resource_name == name
        )
        version = func.coalesce(last.scalar_subquery(), 0) + 1
        values = {"name": name, "config": config, "version": version, "state": state.value, "origin": origin.value}
        statement = insert(self._model).values(**values).on_conflict_do_nothing().returning(self._model)
        return (await self._session.scalars(statement)).one_or_none()

    async def _touch(self, row: Row) -> None:
        row.updated_at = func.now()
        await self._session.flush()
        await self._session.refresh(row)

    def _check(self, name: str, row: Row | None, expect: Expectation) -> None:
        if expect.exists is False and row is not None:
            raise AlreadyExistsError(self._kind, name)
        found = None if row is None else row.version
        if expect.version is not None and expect.version != found:
            raise VersionConflictError(self._kind, name, expected=expect.version, found=found)
        if expect.exists is True and row is None:
            raise VersionConflictError(self._kind, name, expected=None, found=None)


class TopicRepository(ConfigRepository[Topic]):
    """Topics."""

    _model = Topic
    _kind = "topic"


class GroupRepository(ConfigRepository[Group]):
    """Consumer groups."""

    _model = Group
    _kind = "group"


def bounded(limit: int) -> int:
    """Return a limit of rows, which must be within 1 and LIST_LIMIT_MAX."""
    assert 1 <= limit <= LIST_LIMIT_MAX, f"a page of {limit}"
    return limit
