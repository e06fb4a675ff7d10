"""The calls of objectives, alerts and webhooks as values."""

from collections.abc import Mapping
from typing import Any

import msgspec

from gantry.http.alertresults import Alert, AlertEvent, Delivery, Objective, Webhook
from gantry.http.call import (
    JSON,
    Call,
    Page,
    if_match,
    json_decoder,
    json_of,
    page_of,
    params_of,
    path_of,
    read_nothing,
)


def list_objectives(*, group: str | None, cursor: str | None) -> Call[Page[Objective]]:
    """List objectives."""
    return Call("GET", "/v1/objectives", json_of(Page[Objective]), page_of(cursor, group=group))


def get_objective(group: str, *, topic: str | None) -> Call[Objective]:
    """Show an objective."""
    return Call("GET", path_of("groups", group, "objective"), _objective, params_of(topic=topic))


def put_objective(group: str, change: Mapping[str, Any], *, topic: str | None, etag: str | None) -> Call[Objective]:
    """Create or change an objective."""
    return Call(
        "PUT",
        path_of("groups", group, "objective"),
        _objective,
        params_of(topic=topic),
        content=msgspec.json.encode(change),
        headers={"content-type": JSON, **if_match(etag)},
    )


def delete_objective(group: str, *, topic: str | None, etag: str | None) -> Call[None]:
    """Delete an objective."""
    path = path_of("groups", group, "objective")
    return Call("DELETE", path, read_nothing, params_of(topic=topic), headers=if_match(etag))


def list_alerts(*, group: str | None, cursor: str | None) -> Call[Page[Alert]]:
    """List open alerts."""
    return Call("GET", "/v1/alerts", json_of(Page[Alert]), page_of(cursor, group=group))


def list_alert_events(*, group: str | None, topic: str | None, limit: int) -> Call[Page[AlertEvent]]:
    """List events of alerts."""
    params = params_of(group=group, topic=topic, limit=str(limit))
    return Call("GET", "/v1/alerts/events", json_of(Page[AlertEvent]), params)


def list_webhooks(*, cursor: str | None) -> Call[Page[Webhook]]:
    """List webhooks."""
    return Call("GET", "/v1/webhooks", json_of(Page[Webhook]), page_of(cursor))


def create_webhook(config: Mapping[str, Any]) -> Call[Webhook]:
    """Create a webhook."""
    content, headers = msgspec.json.encode(config), {"content-type": JSON}
    return Call("POST", "/v1/webhooks", json_of(Webhook), content=content, headers=headers)


def put_webhook(webhook: str, change: Mapping[str, Any]) -> Call[Webhook]:
    """Change a webhook."""
    content, headers = msgspec.json.encode(change), {"content-type": JSON}
    return Call("PUT", path_of("webhooks", webhook), json_of(Webhook), content=content, headers=headers)


def delete_webhook(webhook: str) -> Call[None]:
    """Delete a webhook."""
    return Call("DELETE", path_of("webhooks", webhook), read_nothing)


def test_webhook(webhook: str) -> Call[Delivery]:
    """Send a test to a webhook."""
    return Call("POST", path_of("webhooks", webhook, "deliveries"), json_of(Delivery))


def list_deliveries(webhook: str, *, status: str | None, limit: int) -> Call[Page[Delivery]]:
    """List a webhook's deliveries."""
    params = params_of(status=status, limit=str(limit))
    return Call("GET", path_of("webhooks", webhook, "deliveries"), json_of(Page[Delivery]), params)


def _objective(content: bytes, headers: Mapping[str, str]) -> Objective:
    found: Objective = json_decoder(Objective).decode(content)
    return msgspec.structs.replace(found, etag=headers.get("etag"))
