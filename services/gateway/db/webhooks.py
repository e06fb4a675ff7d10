"""Webhooks and their deliveries: an outbox that any number of gateways may send from.

A gateway takes due deliveries with a lease: it moves `next_attempt_at` ahead and increments `attempts`. If the gateway
dies, the delivery is due again after that time. Only the gateway that made the last attempt writes its outcome.
"""

import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Uuid, bindparam, delete, func, insert, select, text, tuple_, update
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncSession

from services.gateway.db.alerts import AlertEvent
from services.gateway.db.alerttables import ALERT_EVENTS, WEBHOOK_DELIVERIES, WEBHOOKS
from services.gateway.db.leadership import lock_key
from services.gateway.db.records import find_one, read_all
from services.gateway.db.repositories import Actor, AuditRepository

KIND: Final = "webhook"
EVENTS_AT_ONCE: Final = 50

_WEBHOOK: Final = WEBHOOKS.c
_DELIVERY: Final = WEBHOOK_DELIVERIES.c
_FACTS: Final = ("url", "groups", "verdicts", "enabled")

_GIVE_UP: Final = text("""
    UPDATE webhook_deliveries SET status = 'failed', finished_at = now(),
        last_error = coalesce(last_error, 'the webhook was not enabled, or no gateway sent')
    WHERE status = 'pending' AND next_attempt_at <= now() AND created_at < now() - :give_up
""")
_CLAIM: Final = text("""
    WITH due AS (
        SELECT found.id FROM webhooks CROSS JOIN LATERAL (
            SELECT id FROM webhook_deliveries
            WHERE webhook_id = webhooks.id AND status = 'pending' AND next_attempt_at <= now()
            ORDER BY next_attempt_at LIMIT :each FOR UPDATE SKIP LOCKED
        ) AS found
        WHERE webhooks.enabled AND webhooks.id <> ALL(:busy)
            AND (CAST(:only AS uuid[]) IS NULL OR webhooks.id = ANY(:only))
        ORDER BY array_position(:only, webhooks.id) LIMIT :rows
    )
    UPDATE webhook_deliveries AS delivery SET attempts = attempts + 1, next_attempt_at = now() + :lease
    FROM due, webhooks WHERE delivery.id = due.id AND webhooks.id = delivery.webhook_id
    RETURNING delivery.id, delivery.webhook_id, delivery.attempts, delivery.body, webhooks.url, webhooks.secret
""").bindparams(bindparam("busy", type_=ARRAY(Uuid)), bindparam("only", type_=ARRAY(Uuid)))
_FAIL: Final = text("""
    UPDATE webhook_deliveries SET last_status = :status, last_error = :error, next_attempt_at = now() + :pause,
        status = CASE WHEN now() + :pause > created_at + :give_up THEN 'failed' ELSE status END,
        finished_at = CASE WHEN now() + :pause > created_at + :give_up THEN now() END
    WHERE id = :id AND attempts = :attempts AND status = 'pending'
""")


@dataclass(frozen=True, slots=True)
class Webhook:
    """A receiver of events.

    Attributes:
        id: Id of the webhook.
        url: URL that receives the deliveries.
        groups: Patterns of the groups whose events it receives.
        verdicts: Verdicts whose events it receives; empty: all.
        enabled: Whether it receives events.
        secret: Secret that signs each delivery.
        created_at, updated_at: Time of the creation and of the last change.
    """

    id: uuid.UUID
    url: str
    groups: list[str]
    verdicts: list[str]
    enabled: bool
    secret: str = field(repr=False)
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery to a webhook, without its body.

    Attributes:
        id: Id of the delivery, which all its attempts have.
        webhook_id: Id of the webhook.
        event_id: Id of the event; None for a test.
        status: `pending`, `delivered` or `failed`.
        attempts: Number of attempts so far.
        created_at: Time of the creation.
        next_attempt_at: While it is pending, time of the next attempt or end of the lease of the present one.
        finished_at: Time at which it was delivered or abandoned.
        last_status: HTTP status of the last answer.
        last_error: Error of the last failed attempt.
    """

    id: uuid.UUID
    webhook_id: uuid.UUID
    event_id: int | None
    status: str
    attempts: int
    created_at: datetime
    next_attempt_at: datetime
    finished_at: datetime | None
    last_status: int | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class ClaimedDelivery:
    """A delivery that this gateway may send now, once."""

    id: uuid.UUID
    webhook_id: uuid.UUID
    attempts: int
    body: str
    url: str
    secret: str


class WebhookRepository:
    """Webhooks: creation, changes and lists."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._audit = AuditRepository(session)

    async def create(self, columns: dict[str, Any], *, actor: Actor, count_max: int) -> Webhook | None:
        """Add a webhook; None: there are `count_max` already."""
        await self._session.execute(select(func.pg_advisory_xact_lock(lock_key("webhooks"))))
        if (await self._session.scalar(select(func.count()).select_from(WEBHOOKS)) or 0) >= count_max:
            return None
        statement = insert(WEBHOOKS).values(**columns).returning(WEBHOOKS)
        [webhook] = read_all(Webhook, await self._session.execute(statement))
        self._audit.record(actor, "webhook.create", KIND, str(webhook.id), before=None, after=_facts(webhook))
        return webhook

    async def get(self, webhook_id: uuid.UUID, *, lock: bool = False) -> Webhook | None:
        """Return a webhook; with `lock`, others cannot change it until the transaction ends."""
        query = select(WEBHOOKS).where(_WEBHOOK.id == webhook_id)
        return find_one(Webhook, await self._session.execute(query.with_for_update() if lock else query))

    async def page(self, *, after: uuid.UUID | None, limit: int) -> Sequence[Webhook]:
        """Return webhooks by id, after `after`."""
        query = select(WEBHOOKS).order_by(_WEBHOOK.id).limit(limit)
        if after is not None:
            query = query.where(_WEBHOOK.id > after)
        return read_all(Webhook, await self._session.execute(query))

    async def enabled(self) -> Sequence[Webhook]:
        """Return the webhooks that receive events."""
        return read_all(Webhook, await self._session.execute(select(WEBHOOKS).where(_WEBHOOK.enabled)))

    async def change(self, webhook_id: uuid.UUID, columns: dict[str, Any], *, actor: Actor) -> Webhook | None:
        """Change a webhook; None if it does not exist."""
        before = await self.get(webhook_id, lock=True)
        if before is None:
            return None
        if all(getattr(before, name) == value for name, value in columns.items()):
            return before
        statement = update(WEBHOOKS).where(_WEBHOOK.id == webhook_id).values(**columns, updated_at=func.now())
        [webhook] = read_all(Webhook, await self._session.execute(statement.returning(WEBHOOKS)))
        after = _facts(webhook) | ({"secret": "changed"} if webhook.secret != before.secret else {})
        self._audit.record(actor, "webhook.change", KIND, str(webhook_id), before=_facts(before), after=after)
        return webhook

    async def delete(self, webhook_id: uuid.UUID, *, actor: Actor) -> bool:
        """Delete a webhook with its deliveries; False if it does not exist."""
        before = await self.get(webhook_id, lock=True)
        if before is None:
            return False
        await self._session.execute(delete(WEBHOOKS).where(_WEBHOOK.id == webhook_id))
        self._audit.record(actor, "webhook.delete", KIND, str(webhook_id), before=_facts(before), after=None)
        return True


class DeliveryRepository:
    """Deliveries and their outcomes."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def add(self, webhook_ids: Collection[uuid.UUID], body: str, *, event_id: int | None) -> None:
        """Queue a delivery of the same body to each of some webhooks."""
        chosen = select(_WEBHOOK.id, bindparam("event", event_id), bindparam("said", body)).where(
            _WEBHOOK.id.in_(webhook_ids)
        )
        columns = ["webhook_id", "event_id", "body"]
        await self._session.execute(insert(WEBHOOK_DELIVERIES).from_select(columns, chosen))

    async def add_test(self, webhook_id: uuid.UUID, body: str) -> Delivery:
        """Queue a test delivery to a webhook."""
        statement = insert(WEBHOOK_DELIVERIES).values(webhook_id=webhook_id, body=body)
        [delivery] = read_all(Delivery, await self._session.execute(statement.returning(WEBHOOK_DELIVERIES)))
        return delivery

    async def page(
        self, webhook_id: uuid.UUID, *, status: str | None, before: tuple[datetime, uuid.UUID] | None, limit: int
    ) -> Sequence[Delivery]:
        """Return a webhook's deliveries, newest first."""
        place = (_DELIVERY.created_at, _DELIVERY.id)
        query = select(WEBHOOK_DELIVERIES).where(_DELIVERY.webhook_id == webhook_id)
        if status is not None:
            query = query.where(_DELIVERY.status == status)
        if before is not None:
            query = query.where(tuple_(*place) < before)
        query = query.order_by(*(column.desc() for column in place)).limit(limit)
        return read_all(Delivery, await self._session.execute(query))

    async def take_events(self) -> Sequence[AlertEvent]:
        """Return events that have no deliveries yet, and mark them; the lock keeps other gateways from taking them."""
        mine = (
            select(ALERT_EVENTS.c.id)
            .where(~ALERT_EVENTS.c.is_handed_out)
            .order_by(ALERT_EVENTS.c.id)
            .limit(EVENTS_AT_ONCE)
            .with_for_update(skip_locked=True)
        )
        statement = update(ALERT_EVENTS).where(ALERT_EVENTS.c.id.in_(mine)).values(is_handed_out=True)
        events = read_all(AlertEvent, await self._session.execute(statement.returning(ALERT_EVENTS)))
        return sorted(events, key=lambda event: event.id)

    async def claim(
        self,
        *,
        busy: Collection[uuid.UUID],
        only: Sequence[uuid.UUID] | None = None,
        each: int,
        rows: int,
        lease: timedelta,
        give_up: timedelta,
    ) -> list[ClaimedDelivery]:
        """Take due deliveries for as long as the lease.

        Args:
            busy: Webhooks to leave out.
            only: Webhooks to take deliveries of, in this order; None: all.
            each: Limit for each webhook.
            rows: Limit in total.
            lease: Time until they are due again, unless their outcome is written before.
            give_up: Age at which a delivery is failed.
        """
        await self._session.execute(_GIVE_UP, {"give_up": give_up})
        values = {"busy": list(busy), "only": only, "each": each, "rows": rows, "lease": lease}
        found = await self._session.execute(_CLAIM, values)
        return [ClaimedDelivery(*row) for row in found]

    async def delivered(self, claimed: ClaimedDelivery, status: int) -> None:
        """Record that a delivery succeeded."""
        mine = (_DELIVERY.id == claimed.id, _DELIVERY.attempts == claimed.attempts, _DELIVERY.status == "pending")
        statement = update(WEBHOOK_DELIVERIES).where(*mine)
        await self._session.execute(
            statement.values(status="delivered", finished_at=func.now(), last_status=status, last_error=None)
        )

    async def failed(
        self, claimed: ClaimedDelivery, status: int | None, error: str, *, pause: timedelta, give_up: timedelta
    ) -> None:
        """Record a failed attempt: it is repeated after the pause, unless the delivery would be too old then."""
        values = {"id": claimed.id, "attempts": claimed.attempts, "status": status, "error": error}
        await self._session.execute(_FAIL, {**values, "pause": pause, "give_up": give_up})


def _facts(webhook: Webhook) -> dict[str, Any]:
    return {name: getattr(webhook, name) for name in _FACTS}
