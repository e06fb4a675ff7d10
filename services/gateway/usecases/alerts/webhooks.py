"""Webhooks: URLs that receive alerts. sender.py sends them."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gantry.model.errors import InvalidValueError
from gantry.runtime.clock import Clock
from services.gateway.db.repositories import Actor
from services.gateway.db.webhooks import Delivery, DeliveryRepository, Webhook, WebhookRepository
from services.gateway.errors import CONFLICT, UNKNOWN_WEBHOOK, ProblemError
from services.gateway.schemas.cursors import decode_cursor, decode_moment_cursor, encode_cursor, encode_moment_cursor
from services.gateway.schemas.webhooks import Network, NewWebhook, WebhookChange, wanted_columns
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.page import Page

LISTING: Final = "webhooks"
DELIVERIES_LISTING: Final = "webhook-deliveries"
WEBHOOKS_MAX: Final = 100
"""Limit of webhooks, because each event is matched with all of them."""


@dataclass(frozen=True, slots=True)
class WebhookTest:
    """A test of a webhook, which is delivered as an event would be, and the time of its request."""

    webhook_id: uuid.UUID
    at: datetime


class Webhooks:
    """Use cases of webhooks. The caller has checked the right `admin`.

    Args:
        metadata: Connection to Postgres.
        clock: Clock.
        networks: Networks that are allowed although they are not public.
        render: Returns the body of the delivery for a test.
    """

    def __init__(
        self,
        metadata: Metadata,
        *,
        clock: Clock,
        networks: Sequence[Network],
        render: Callable[[WebhookTest], str],
    ) -> None:
        self._metadata = metadata
        self._clock = clock
        self._networks = networks
        self._render = render

    async def create(self, new: NewWebhook, actor: Actor) -> Webhook:
        """Create a webhook.

        Raises:
            InvalidValueError: A value is not valid.
            ProblemError: 409: there are WEBHOOKS_MAX already.
        """
        columns = wanted_columns(new, self._networks)
        async with self._metadata.transaction() as session:
            made = await WebhookRepository(session).create(columns, actor=actor, count_max=WEBHOOKS_MAX)
        if made is None:
            raise ProblemError(CONFLICT, f"url: there are {WEBHOOKS_MAX} webhooks already, which is the limit")
        return made

    async def page(self, *, cursor: str | None, limit: int) -> Page[Webhook]:
        """List webhooks by id. Raises InvalidValueError if the cursor is not valid."""
        after = None if cursor is None else _cursor_id(cursor)
        async with self._metadata.transaction() as session:
            found = await WebhookRepository(session).page(after=after, limit=limit)
        # A full page may be the last one. The next page is then empty, which is cheaper than reading one more row each
        # time.
        return Page(found, encode_cursor(LISTING, str(found[-1].id)) if len(found) == limit else None)

    async def get(self, webhook: str) -> Webhook:
        """Return a webhook. Raises InvalidValueError, ProblemError (404)."""
        async with self._metadata.transaction() as session:
            found = await WebhookRepository(session).get(_read_id(webhook))
        if found is None:
            raise _unknown(webhook)
        return found

    async def change(self, webhook: str, change: WebhookChange, actor: Actor) -> Webhook:
        """Change a webhook; fields that are not given stay. Raises InvalidValueError, ProblemError (404)."""
        columns = wanted_columns(change, self._networks)
        async with self._metadata.transaction() as session:
            changed = await WebhookRepository(session).change(_read_id(webhook), columns, actor=actor)
        if changed is None:
            raise _unknown(webhook)
        return changed

    async def delete(self, webhook: str, actor: Actor) -> None:
        """Delete a webhook and its deliveries. Raises InvalidValueError, ProblemError (404)."""
        async with self._metadata.transaction() as session:
            is_gone = await WebhookRepository(session).delete(_read_id(webhook), actor=actor)
        if not is_gone:
            raise _unknown(webhook)

    async def test(self, webhook: str) -> Delivery:
        """Queue a test delivery; return it.

        Raises:
            InvalidValueError: The id is not valid.
            ProblemError: 404: the webhook does not exist; 409: it is not enabled.
        """
        webhook_id = _read_id(webhook)
        body = self._render(WebhookTest(webhook_id, datetime.fromtimestamp(self._clock.now_ms() / 1_000, UTC)))
        async with self._metadata.transaction() as session:
            found = await WebhookRepository(session).get(webhook_id, lock=True)
            if found is None:
                raise _unknown(webhook)
            if not found.enabled:
                raise ProblemError(CONFLICT, f"id: the webhook {webhook} is not enabled", field="id")
            return await DeliveryRepository(session).add_test(webhook_id, body)

    async def deliveries(self, webhook: str, *, status: str | None, cursor: str | None, limit: int) -> Page[Delivery]:
        """List a webhook's deliveries, newest first. Raises InvalidValueError, ProblemError (404)."""
        webhook_id = _read_id(webhook)
        before = None if cursor is None else decode_moment_cursor(cursor, DELIVERIES_LISTING)
        async with self._metadata.transaction() as session:
            if await WebhookRepository(session).get(webhook_id) is None:
                raise _unknown(webhook)
            found = await DeliveryRepository(session).page(webhook_id, status=status, before=before, limit=limit)
        if len(found) < limit:
            return Page(found)
        return Page(found, encode_moment_cursor(DELIVERIES_LISTING, found[-1].created_at, found[-1].id))


def _read_id(text: str) -> uuid.UUID:
    found = _find_id(text)
    if found is None:
        raise InvalidValueError("id", text, "is not a webhook's id")
    return found


def _find_id(text: str) -> uuid.UUID | None:
    try:
        found = uuid.UUID(text)
    except ValueError:
        return None
    # UUID() also accepts braces, `urn:uuid:`, missing hyphens and capitals; these are rejected here.
    return found if str(found) == text else None


def _cursor_id(cursor: str) -> uuid.UUID:
    found = _find_id(decode_cursor(cursor, LISTING))
    if found is None:
        raise InvalidValueError("cursor", cursor, "is not a cursor of this list")
    return found


def _unknown(webhook: str) -> ProblemError:
    return ProblemError(UNKNOWN_WEBHOOK, f"id: there is no webhook {webhook}", field="id")
