"""Objectives: limits for the lag of groups. Reports read them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import delete, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.alerttables import LAG_OBJECTIVES
from services.gateway.db.errors import AlreadyExistsError, VersionConflictError
from services.gateway.db.leadership import lock_key
from services.gateway.db.models import Json
from services.gateway.db.records import find_one, read_all
from services.gateway.db.repositories import ANYTHING, Actor, AuditRepository, Expectation
from services.gateway.schemas.objectives import NOTHING, objective_facts

KIND: Final = "objective"

_OBJECTIVE: Final = LAG_OBJECTIVES.c
_PLACE: Final = (_OBJECTIVE.group_name, _OBJECTIVE.topic)


@dataclass(frozen=True, slots=True)
class Objective:
    """An objective of a group.

    Attributes:
        group_name: Group.
        topic: Topic; '' for all topics of the group.
        max_lag_seconds: Highest age (s) that an unconsumed message may have.
        max_lag_messages: Highest number of unconsumed messages.
        ignore: Whether reports ignore the group.
        ignore_until: Time at which `ignore` ends; None: never.
        reason: Reason for which reports ignore the group.
        version: Version of the objective.
        updated_at: Time of the last change.
    """

    group_name: str
    topic: str
    max_lag_seconds: float | None
    max_lag_messages: int | None
    ignore: bool
    ignore_until: datetime | None
    reason: str | None
    version: int
    updated_at: datetime


class ObjectiveRepository:
    """Objectives; topic '' means all topics of the group.

    A version is the id of the audit row of the last change, so no version is ever reused.
    """

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._audit = AuditRepository(session)

    async def get(self, group: str, topic: str) -> Objective | None:
        """Return an objective."""
        query = select(LAG_OBJECTIVES).where(_OBJECTIVE.group_name == group, _OBJECTIVE.topic == topic)
        return find_one(Objective, await self._session.execute(query))

    async def page(self, *, group: str | None, after: tuple[str, str] | None, limit: int) -> Sequence[Objective]:
        """Return objectives by group and topic, after `after`."""
        query = select(LAG_OBJECTIVES).order_by(*_PLACE).limit(limit)
        if group is not None:
            query = query.where(_OBJECTIVE.group_name == group)
        if after is not None:
            query = query.where(tuple_(*_PLACE) > after)
        return read_all(Objective, await self._session.execute(query))

    async def put(
        self,
        group: str,
        topic: str,
        change: Callable[[dict[str, Any]], dict[str, Any]],
        *,
        actor: Actor,
        expect: Expectation = ANYTHING,
        count_max: int,
    ) -> tuple[Objective, bool] | None:
        """Create or change an objective; return it, and whether it is new. None: there are `count_max` already.

        Args:
            group: Group of the objective.
            topic: Topic; '' for all topics.
            change: Returns the desired columns for the present ones.
            actor: The caller.
            expect: The caller's condition on the present row.
            count_max: Limit of objectives.

        Raises:
            VersionConflictError: The row does not match `expect`.
            AlreadyExistsError: The row must not exist, but does.
        """
        before = await self._locked(group, topic, expect)
        present = NOTHING if before is None else _columns(before)
        wanted = change(present)
        if before is not None and wanted == present:
            return before, False
        if before is None and await self._count() >= count_max:
            return None
        facts = None if before is None else objective_facts(present)
        action = "create" if before is None else "change"
        version = await self._record(actor, action, group, topic, before=facts, after=objective_facts(wanted))
        values = {**wanted, "version": version, "updated_at": func.now()}
        made = insert(LAG_OBJECTIVES).values(group_name=group, topic=topic, **values)
        statement = made.on_conflict_do_update(index_elements=_PLACE, set_=values).returning(LAG_OBJECTIVES)
        [objective] = read_all(Objective, await self._session.execute(statement))
        return objective, before is None

    async def delete(self, group: str, topic: str, *, actor: Actor, expect: Expectation = ANYTHING) -> bool:
        """Delete an objective; return False if it does not exist. Raises VersionConflictError."""
        before = await self._locked(group, topic, expect)
        if before is None:
            return False
        mine = (_OBJECTIVE.group_name == group, _OBJECTIVE.topic == topic)
        await self._session.execute(delete(LAG_OBJECTIVES).where(*mine))
        await self._record(actor, "delete", group, topic, before=objective_facts(_columns(before)), after=None)
        return True

    async def delete_all(self, group: str, *, actor: Actor) -> None:
        """Delete all objectives of a group, as the group is deleted: a later one of the same name starts without."""
        await self._session.execute(select(func.pg_advisory_xact_lock(lock_key("objectives"))))
        statement = delete(LAG_OBJECTIVES).where(_OBJECTIVE.group_name == group).returning(LAG_OBJECTIVES)
        for before in read_all(Objective, await self._session.execute(statement)):
            facts = objective_facts(_columns(before))
            await self._record(actor, "delete", group, before.topic, before=facts, after=None)

    async def _count(self) -> int:
        return (await self._session.scalar(select(func.count()).select_from(LAG_OBJECTIVES))) or 0

    async def _locked(self, group: str, topic: str, expect: Expectation) -> Objective | None:
        # Changes are rare, so they run one after the other; this also keeps their count exact.
        await self._session.execute(select(func.pg_advisory_xact_lock(lock_key("objectives"))))
        present = await self.get(group, topic)
        name = _name(group, topic)
        if expect.exists is False and present is not None:
            raise AlreadyExistsError(KIND, name)
        found = None if present is None else present.version
        if (expect.version is not None and expect.version != found) or (expect.exists is True and present is None):
            raise VersionConflictError(KIND, name, expected=expect.version, found=found)
        return present

    async def _record(
        self, actor: Actor, action: str, group: str, topic: str, *, before: Json | None, after: Json | None
    ) -> int:
        name = _name(group, topic)
        entry = self._audit.record(actor, f"{KIND}.{action}", KIND, name, before=before, after=after)
        await self._session.flush()
        return entry.id


def _columns(objective: Objective) -> dict[str, Any]:
    """Return the columns that a change may set."""
    return {name: getattr(objective, name) for name in NOTHING}


def _name(group: str, topic: str) -> str:
    """Return the name in the audit trail; names of groups contain no slash."""
    return f"{group}/{topic}" if topic else group
