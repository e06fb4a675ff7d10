"""The JSON form of webhooks and deliveries in answers, and the bodies that webhooks receive."""

from typing import Any

import msgspec

from services.gateway.db.alerts import AlertEvent
from services.gateway.db.webhooks import Delivery, Webhook
from services.gateway.schemas.times import format_moment
from services.gateway.usecases.alerts.webhooks import WebhookTest
from services.gateway.views.alerts import event_view


def webhook_view(webhook: Webhook) -> dict[str, Any]:
    """Return a webhook in the contract's form, without its secret."""
    return {
        "id": str(webhook.id),
        "url": webhook.url,
        "groups": webhook.groups,
        "verdicts": webhook.verdicts,
        "enabled": webhook.enabled,
        "created_at": format_moment(webhook.created_at),
        "updated_at": format_moment(webhook.updated_at),
    }


def new_webhook_view(webhook: Webhook) -> dict[str, Any]:
    """Return a new webhook in the contract's form; only this answer ever contains the secret."""
    return {**webhook_view(webhook), "secret": webhook.secret}


def delivery_view(delivery: Delivery) -> dict[str, Any]:
    """Return a delivery in the contract's form."""
    is_pending = delivery.status == "pending"
    return {
        "id": str(delivery.id),
        "webhook": str(delivery.webhook_id),
        "event": None if delivery.event_id is None else str(delivery.event_id),
        "status": delivery.status,
        "attempts": delivery.attempts,
        "created_at": format_moment(delivery.created_at),
        "next_attempt_at": format_moment(delivery.next_attempt_at) if is_pending else None,
        "finished_at": None if delivery.finished_at is None else format_moment(delivery.finished_at),
        "last_status": delivery.last_status,
        "last_error": delivery.last_error,
    }


def delivery_body(occasion: AlertEvent | WebhookTest) -> str:
    """Return the body of a delivery.

    It is a view and not a part of the sender, because receivers read it as callers read answers: its `data` is the
    event as `/v1/alerts/events` shows it. The features give this function to the use cases, which store the body.
    """
    if isinstance(occasion, AlertEvent):
        kind, at, data = f"alert.{occasion.kind}", occasion.at, event_view(occasion)
    else:
        kind, at, data = "test", occasion.at, {"webhook": str(occasion.webhook_id)}
    return msgspec.json.encode({"type": kind, "timestamp": format_moment(at), "data": data}).decode()
