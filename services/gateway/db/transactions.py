"""Transactions: states, decisions, and their delivery to brokers by any gateway.

A decision is written before anybody is told. `due_at` is then the time at which a gateway delivers it: the gateway that
wrote it moves `due_at` ahead, which is its lease. If it dies, another gateway delivers. To deliver twice does no harm,
because the broker carries out a decision once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import case, delete, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.records import find_one, read_all
from services.gateway.db.repositories import Actor, AuditRepository
from services.gateway.db.transactiontables import TRANSACTIONS

OPEN: Final = "open"
COMMITTED: Final = "committed"
ROLLED_BACK: Final = "rolled_back"
EXPIRED: Final = "expired"
STATES: Final = (OPEN, COMMITTED, ROLLED_BACK, EXPIRED)
HTTP: Final = "http"
REMOTING: Final = "remoting"

_ROW: Final = TRANSACTIONS.c
_PLACE: Final = (_ROW.created_at, _ROW.id)
_RESOURCE: Final = "transaction"


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction.

    Attributes:
        id: Unique key of its message.
        origin: `http` or `remoting`.
        group_name: Producer group.
        topic: Topic of the message.
        state: `open`, `committed`, `rolled_back` or `expired`.
        created_by: Id of the key that began it; None for a remoting client.
        created_at: Time of its begin.
        decided_at: Time at which a gateway wrote the decision; None if it is open, or was decided elsewhere.
        delivered_at: Time at which the broker confirmed the decision; None if not yet, or if it was decided elsewhere.
        broker: Broker set of the half message; None until it is known.
        half_queue_offset, half_physical_offset: Place of the half message; None until it is known.
        checks: Number of times that the broker has asked the producers.
        next_check_at: Earliest time of the next check; None if it is not known.
        attempts: Number of deliveries that were tried.
        error: Reason why the last delivery failed.
    """

    id: str
    origin: str
    group_name: str
    topic: str
    state: str
    created_by: str | None
    created_at: datetime
    decided_at: datetime | None
    delivered_at: datetime | None
    broker: str | None
    half_queue_offset: int | None
    half_physical_offset: int | None
    checks: int
    next_check_at: datetime | None
    attempts: int
    error: str | None


@dataclass(frozen=True, slots=True)
class SeenHalf:
    """An open half message as a broker lists it."""

    id: str
    group_name: str
    topic: str
    created_at: datetime
    half_queue_offset: int
    half_physical_offset: int
    checks: int
    next_check_at: datetime


class TransactionRepository:
    """Begin, decision, delivery and listing of transactions."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._audit = AuditRepository(session)

    async def begin(self, transaction: str, group: str, topic: str, *, created_by: str) -> bool:
        """Add an open transaction; return False if there is a row with this id already."""
        values = {"id": transaction, "group_name": group, "topic": topic, "created_by": created_by}
        statement = insert(TRANSACTIONS).values(**values).on_conflict_do_nothing().returning(_ROW.id)
        return await self._session.scalar(statement) is not None

    async def get(self, transaction: str, *, lock: bool = False) -> Transaction | None:
        """Return a transaction; with `lock`, others cannot change it until the database transaction ends."""
        query = select(TRANSACTIONS).where(_ROW.id == transaction)
        return find_one(Transaction, await self._session.execute(query.with_for_update() if lock else query))

    async def set_place(
        self,
        transaction: str,
        broker: str,
        *,
        queue_offset: int,
        physical_offset: int,
        next_check_at: datetime | None = None,
    ) -> Transaction | None:
        """Write the place of a half message; None if there is no such transaction."""
        values: dict[str, Any] = {
            "broker": broker,
            "half_queue_offset": queue_offset,
            "half_physical_offset": physical_offset,
            "seen_at": func.now(),
        }
        if next_check_at is not None:
            values["next_check_at"] = next_check_at
        statement = update(TRANSACTIONS).where(_ROW.id == transaction).values(**values).returning(TRANSACTIONS)
        return find_one(Transaction, await self._session.execute(statement))

    async def note_check(self, transaction: str, checks: int) -> None:
        """Write how often the broker has asked. The mirror sees open transactions only, and may come later."""
        mine = (_ROW.id == transaction, _ROW.checks < checks)
        await self._session.execute(update(TRANSACTIONS).where(*mine).values(checks=checks))

    async def forget(self, transaction: str) -> None:
        """Delete an open transaction whose half message is certainly not stored."""
        mine = (_ROW.id == transaction, _ROW.state == OPEN, _ROW.broker.is_(None))
        await self._session.execute(delete(TRANSACTIONS).where(*mine))

    async def decide(self, before: Transaction, state: str, *, lease: timedelta, actor: Actor) -> Transaction:
        """Write the decision on a locked open transaction; its delivery is due after the lease."""
        assert before.state == OPEN, f"{before.id} is {before.state}"
        values = {
            "state": state,
            "decided_at": func.now(),
            "ended_at": func.now(),
            "due_at": func.now() + lease,
            "next_check_at": None,
        }
        statement = update(TRANSACTIONS).where(_ROW.id == before.id).values(**values).returning(TRANSACTIONS)
        [after] = read_all(Transaction, await self._session.execute(statement))
        self._record(before, after, actor)
        return after

    async def note_end(self, before: Transaction, state: str, *, is_delivered: bool, actor: Actor | None) -> None:
        """Write the end of an open transaction as the broker tells it; `actor` is None if nobody here asked for it."""
        values: dict[str, Any] = {"state": state, "ended_at": func.now(), "next_check_at": None}
        if is_delivered:
            values |= {"decided_at": func.now(), "delivered_at": func.now()}
        mine = (_ROW.id == before.id, _ROW.state == OPEN)
        statement = update(TRANSACTIONS).where(*mine).values(**values).returning(TRANSACTIONS)
        after = find_one(Transaction, await self._session.execute(statement))
        if after is not None and actor is not None:
            self._record(before, after, actor)

    def _record(self, before: Transaction, after: Transaction, actor: Actor) -> None:
        action = "transaction.commit" if after.state == COMMITTED else "transaction.rollback"
        self._audit.record(
            actor,
            action,
            _RESOURCE,
            after.id,
            before={"state": before.state},
            after={"state": after.state, "group": after.group_name, "topic": after.topic},
        )

    async def claim(self, *, lease: timedelta, count_max: int) -> Sequence[Transaction]:
        """Take decisions that are to be delivered, the longest due first; the lease begins now."""
        due = (
            select(_ROW.id)
            .where(_ROW.due_at <= func.now())
            .order_by(_ROW.due_at)
            .limit(count_max)
            .with_for_update(skip_locked=True)
        )
        statement = update(TRANSACTIONS).where(_ROW.id.in_(due)).values(due_at=func.now() + lease)
        return read_all(Transaction, await self._session.execute(statement.returning(TRANSACTIONS)))

    async def delivered(self, transaction: str) -> Transaction | None:
        """Write that the broker has the decision."""
        values = {
            "delivered_at": func.coalesce(_ROW.delivered_at, func.now()),
            "due_at": None,
            "error": None,
            "attempts": _ROW.attempts + 1,
        }
        statement = update(TRANSACTIONS).where(_ROW.id == transaction, _ROW.decided_at.is_not(None))
        return find_one(Transaction, await self._session.execute(statement.values(**values).returning(TRANSACTIONS)))

    async def postpone(self, transaction: str, *, pause: timedelta | None, error: str) -> None:
        """Write why a delivery failed; it is due again after the pause, or never if it is None."""
        due_at = None if pause is None else func.now() + pause
        mine = (_ROW.id == transaction, _ROW.delivered_at.is_(None), _ROW.decided_at.is_not(None))
        values = {"attempts": _ROW.attempts + 1, "error": error, "due_at": due_at}
        await self._session.execute(update(TRANSACTIONS).where(*mine).values(**values))

    async def page(
        self,
        *,
        state: str | None,
        group: str | None,
        topic: str | None,
        before: tuple[datetime, str] | None,
        limit: int,
    ) -> Sequence[Transaction]:
        """Return transactions, newest first; `before` is the place of the previous page's last one."""
        query = select(TRANSACTIONS)
        for column, value in ((_ROW.state, state), (_ROW.group_name, group), (_ROW.topic, topic)):
            if value is not None:
                query = query.where(column == value)
        if before is not None:
            query = query.where(tuple_(*_PLACE) < before)
        query = query.order_by(*(column.desc() for column in _PLACE)).limit(limit)
        return read_all(Transaction, await self._session.execute(query))

    async def unfinished_groups(self, *, limit: int) -> Collection[str]:
        """Return producer groups of HTTP that have open or undelivered transactions."""
        unfinished = (_ROW.state == OPEN) | _ROW.due_at.is_not(None)
        query = select(_ROW.group_name).where(_ROW.origin == HTTP, unfinished).distinct().limit(limit)
        return set(await self._session.scalars(query))

    async def find_open(self) -> tuple[datetime, bool]:
        """Return the time of Postgres, and whether a transaction is open."""
        is_open = select(_ROW.id).where(_ROW.state == OPEN).exists()
        now, has_open = (await self._session.execute(select(func.now(), is_open))).one()
        return now, has_open

    async def see(self, broker: str, halves: Sequence[SeenHalf]) -> None:
        """Write what a broker lists. A transaction without a row is that of a remoting client."""
        rows = [
            {name: getattr(half, name) for name in SeenHalf.__slots__}
            | {"origin": REMOTING, "broker": broker, "seen_at": func.now()}
            for half in {half.id: half for half in halves}.values()
        ]
        statement = insert(TRANSACTIONS).values(rows)
        new = statement.excluded
        # The broker checks an expired transaction again after request 323.
        reopened = _ROW.state == EXPIRED
        values = {
            "broker": new.broker,
            "half_queue_offset": new.half_queue_offset,
            "half_physical_offset": new.half_physical_offset,
            "checks": case((reopened, new.checks), else_=func.greatest(_ROW.checks, new.checks)),
            "next_check_at": case((_ROW.state.in_((OPEN, EXPIRED)), new.next_check_at), else_=None),
            "seen_at": func.now(),
            "state": case((reopened, OPEN), else_=_ROW.state),
            "ended_at": case((reopened, None), else_=_ROW.ended_at),
        }
        same = (_ROW.group_name == new.group_name) & (_ROW.topic == new.topic)
        await self._session.execute(statement.on_conflict_do_update(index_elements=[_ROW.id], set_=values, where=same))

    async def unseen(self, broker: str | None, *, before: datetime, limit: int) -> Sequence[Transaction]:
        """Return open transactions of a broker that it has not listed since a moment.

        None selects the transactions whose half message was never found, by the time of their begin.
        """
        query = select(TRANSACTIONS).where(_ROW.state == OPEN)
        if broker is None:
            query = query.where(_ROW.broker.is_(None), _ROW.created_at < before).order_by(_ROW.created_at)
        else:
            query = query.where(_ROW.broker == broker, _ROW.seen_at < before).order_by(_ROW.seen_at)
        return read_all(Transaction, await self._session.execute(query.limit(limit)))

    async def touch(self, transaction: str) -> None:
        """Note that an open transaction was looked at, so that others come first in the next round."""
        await self._session.execute(update(TRANSACTIONS).where(_ROW.id == transaction).values(seen_at=func.now()))

    async def drop_mirrored(self, transaction: str, *, unseen_for: timedelta) -> None:
        """Delete an open transaction of a remoting client whose end stays unknown."""
        mine = (
            _ROW.id == transaction,
            _ROW.state == OPEN,
            _ROW.origin == REMOTING,
            _ROW.seen_at < func.now() - unseen_for,
        )
        await self._session.execute(delete(TRANSACTIONS).where(*mine))

    async def delete_ended(self, *, before: datetime, limit: int) -> int:
        """Delete transactions that ended before a moment and are delivered; return their number, at most `limit`."""
        old = select(_ROW.id).where(_ROW.ended_at < before, _ROW.due_at.is_(None)).limit(limit)
        deleted = await self._session.execute(delete(TRANSACTIONS).where(_ROW.id.in_(old)).returning(_ROW.id))
        return len(deleted.all())
