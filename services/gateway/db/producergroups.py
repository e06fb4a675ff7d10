"""Producer groups with a URL that is asked about their open transactions."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.leadership import lock_key
from services.gateway.db.records import find_one, read_all
from services.gateway.db.repositories import Actor, AuditRepository
from services.gateway.db.transactiontables import PRODUCER_GROUPS

_ROW: Final = PRODUCER_GROUPS.c
_KIND: Final = "producer_group"


@dataclass(frozen=True, slots=True)
class ProducerGroup:
    """A producer group. Its secret signs the requests to its URL."""

    name: str
    check_url: str
    check_secret: str
    updated_at: datetime


class ProducerGroupRepository:
    """Reading and changing producer groups."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._audit = AuditRepository(session)

    async def get(self, name: str) -> ProducerGroup | None:
        """Return a group, or None if it has no URL."""
        return find_one(ProducerGroup, await self._session.execute(select(PRODUCER_GROUPS).where(_ROW.name == name)))

    async def lock(self) -> None:
        """Let nobody else change groups until the transaction ends."""
        await self._session.execute(select(func.pg_advisory_xact_lock(lock_key("producer_groups"))))

    async def count(self) -> int:
        """Return the number of groups."""
        return await self._session.scalar(select(func.count()).select_from(PRODUCER_GROUPS)) or 0

    async def put(self, before: ProducerGroup | None, name: str, url: str, secret: str, actor: Actor) -> ProducerGroup:
        """Write a group."""
        values: dict[str, Any] = {"check_url": url, "check_secret": secret, "updated_at": func.now()}
        statement = insert(PRODUCER_GROUPS).values(name=name, **values)
        statement = statement.on_conflict_do_update(index_elements=[_ROW.name], set_=values)
        [after] = read_all(ProducerGroup, await self._session.execute(statement.returning(PRODUCER_GROUPS)))
        changed = {"check_url": url}
        if before is not None and before.check_secret != secret:
            changed |= {"check_secret": "changed"}
        action = "producer_group.create" if before is None else "producer_group.change"
        self._audit.record(actor, action, _KIND, name, before=_facts(before), after=changed)
        return after

    async def delete(self, before: ProducerGroup, actor: Actor) -> None:
        """Delete a group."""
        await self._session.execute(delete(PRODUCER_GROUPS).where(_ROW.name == before.name))
        self._audit.record(actor, "producer_group.delete", _KIND, before.name, before=_facts(before), after=None)


def _facts(group: ProducerGroup | None) -> dict[str, Any] | None:
    return None if group is None else {"check_url": group.check_url}
