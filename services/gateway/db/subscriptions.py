"""Subscriptions, mirrored from the brokers' consumer tables by one gateway at a time.

`judge` decides whether the instances of a group agree; it is pure. `SubscriptionRepository.mirror` updates one group's
rows to the current sightings, and keeps rows of instances that have disconnected with the time they were last seen.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import Row, and_, delete, exists, func, not_, or_, select, tuple_, update
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from gantry.model.group import SubscriptionData
from services.gateway.db.models import Subscription, Verdict
from services.gateway.db.repositories import LIST_LIMIT_MAX

RECENT: Final = timedelta(minutes=1)
"""Age of a sighting that still counts as recent.

Such a client may have made a commit that a sample sees now. It spans several surveys of offsets, and two rounds of the
mirror.
"""
HTTP_PULL: Final = "HTTP_PULL"
"""Kind of the rows of groups that pull over HTTP. Gateways write these, because brokers know no such client.

`spark/datasource/brokers/metadata.py` reads them.
"""
# A group of thousands of instances must not make a row of megabytes.
CLIENTS_NAMED_MAX = 100
FORGOTTEN_AT_ONCE = 500
# Kinds and types are words of a fixed vocabulary, but other clients may send anything.
WORD_CHARACTERS_MAX = 64


@dataclass(frozen=True, slots=True)
class Sighting:
    """One subscription of a group's instances to a topic, identical for all of `clients`."""

    topic: str
    client_kind: str  # The language that a broker reports: JAVA, PYTHON, ….
    message_model: str  # CLUSTERING or BROADCASTING.
    expression_type: str  # TAG or SQL92.
    expression: str
    sub_version: int
    clients: tuple[str, ...]


def judge(sightings: Iterable[Sighting]) -> dict[str, Verdict]:
    """Return for each topic whether the subscriptions of one group agree."""
    filters: dict[str, set[tuple[str, str]]] = {}
    models: dict[str, set[str]] = {}
    for seen in sightings:
        filters.setdefault(seen.topic, set()).add((seen.expression_type, seen.expression))
        models.setdefault(seen.topic, set()).add(seen.message_model)
    return {
        topic: Verdict.MODELS_DIFFER
        if len(models[topic]) > 1
        else Verdict.FILTERS_DIFFER
        if len(asked) > 1
        else Verdict.CONSISTENT
        for topic, asked in filters.items()
    }


def storable(text: str, characters_max: int | None = None) -> str:
    """Return a client's text in a form that Postgres can store: no zero characters, no lone surrogates."""
    return text[:characters_max].encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


class SubscriptionRepository:
    """The mirror; the caller holds the leadership `subscriptions` (leadership.py)."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def mirror(self, group: str, sightings: Sequence[Sighting]) -> None:
        """Update a group's rows to the instances connected now; an empty list means that none is."""
        verdicts = judge(sightings)
        kept = [await self._upsert(group, seen, verdicts[seen.topic]) for seen in sightings]
        is_pulling = and_(Subscription.client_kind == HTTP_PULL, Subscription.last_seen_at > func.now() - RECENT)
        gone = update(Subscription).where(Subscription.group_name == group, Subscription.active, not_(is_pulling))
        await self._session.execute(gone.where(Subscription.id.not_in(kept)).values(active=False))

    async def note_pulls(self, pulls: Iterable[tuple[str, SubscriptionData]]) -> None:
        """Note that groups have just pulled over HTTP. The rows are active until RECENT has passed."""
        for group, asked in pulls:
            kind, expression = asked.expression_type, asked.sub_string
            seen = Sighting(asked.topic, HTTP_PULL, "CLUSTERING", kind, expression, asked.sub_version, ())
            await self._upsert(group, seen, Verdict.CONSISTENT)

    async def deactivate_others(self, groups: Sequence[str]) -> None:
        """Mark the rows of groups that no broker reports any more as inactive."""
        gone = update(Subscription).where(Subscription.active, Subscription.group_name.not_in(groups))
        await self._session.execute(gone.values(active=False))

    async def forget(self, groups: Sequence[str], *, older_than: timedelta, rows: int = FORGOTTEN_AT_ONCE) -> int:
        """Delete subscriptions that ended long ago; return the number of deleted rows, at most `rows`.

        Args:
            groups: All groups that brokers know. The last row of such a group and a topic stays, whatever its age: it
                has the group's filter, and proves that the group existed.
            older_than: Time since the subscription was last seen.
            rows: Limit of one call; the next call deletes the rest.
        """
        later = aliased(Subscription)
        of_same = (later.group_name == Subscription.group_name, later.topic == Subscription.topic)
        is_later = tuple_(later.last_seen_at, later.id) > tuple_(Subscription.last_seen_at, Subscription.id)
        old = (
            select(Subscription.id)
            .where(
                Subscription.active.is_(False),
                Subscription.last_seen_at < func.now() - older_than,
                or_(Subscription.group_name.not_in(groups), exists().where(*of_same, is_later)),
            )
            .limit(rows)
        )
        forgotten = await self._session.execute(
            delete(Subscription).where(Subscription.id.in_(old)).returning(Subscription.id)
        )
        return len(forgotten.all())

    async def page(
        self,
        *,
        group: str | None = None,
        topic: str | None = None,
        active: bool | None = None,
        after_id: int = 0,
        limit: int = 100,
    ) -> Sequence[Subscription]:
        """Return subscriptions in the order in which they were first seen, after `after_id`."""
        assert 1 <= limit <= LIST_LIMIT_MAX, f"a page of {limit}"
        query = select(Subscription).where(Subscription.id > after_id).order_by(Subscription.id).limit(limit)
        if group is not None:
            query = query.where(Subscription.group_name == group)
        if topic is not None:
            query = query.where(Subscription.topic == topic)
        if active is not None:
            query = query.where(Subscription.active == active)
        return (await self._session.scalars(query)).all()

    async def filters(self) -> Sequence[Row[str, str, str, str, bool, bool]]:
        """Return rows of (group, topic, type, expression, is connected, was connected within RECENT).

        If instances disagree, the row is the subscription that brokers use: the newest of the connected instances, else
        of those that were seen last.
        """
        columns = (Subscription.group_name, Subscription.topic)
        newest = (Subscription.active.desc(), Subscription.last_seen_at.desc(), Subscription.sub_version.desc())
        is_recent = Subscription.last_seen_at > func.now() - RECENT
        query = select(*columns, Subscription.expression_type, Subscription.expression, Subscription.active, is_recent)
        return (await self._session.execute(query.ext(distinct_on(*columns)).order_by(*columns, *newest))).all()

    async def _upsert(self, group: str, seen: Sighting, verdict: Verdict) -> int:
        expression = storable(seen.expression)
        state = {
            "message_model": storable(seen.message_model, WORD_CHARACTERS_MAX),
            "sub_version": seen.sub_version,
            "clients": [storable(client) for client in seen.clients[:CLIENTS_NAMED_MAX]],
            "clients_count": len(seen.clients),
            "active": True,
            "verdict": verdict.value,
        }
        statement = insert(Subscription).values(
            group_name=group,
            topic=storable(seen.topic),
            client_kind=storable(seen.client_kind, WORD_CHARACTERS_MAX),
            expression_type=storable(seen.expression_type, WORD_CHARACTERS_MAX),
            expression=expression,
            expression_sha256=hashlib.sha256(expression.encode()).digest(),
            **state,
        )
        statement = statement.on_conflict_do_update(
            index_elements=["group_name", "topic", "client_kind", "expression_type", "expression_sha256"],
            set_={**state, "last_seen_at": func.now()},
        )
        return (await self._session.execute(statement.returning(Subscription.id))).scalar_one()
