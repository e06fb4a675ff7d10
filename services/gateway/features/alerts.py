"""`/v1/alerts` and `/v1/webhooks`: alerts of groups, and the webhooks that receive them."""

from collections.abc import Mapping
from typing import Final

import msgspec

from gantry.model.names import RETRY_TOPIC_LENGTH_MAX, check_group, check_topic
from services.gateway.asgi.answer import Answer, json_answer
from services.gateway.asgi.call import Call
from services.gateway.asgi.operation import Operation
from services.gateway.asgi.query import limit_of
from services.gateway.core import Core, Feature
from services.gateway.errors import invalid
from services.gateway.features.actor import actor_of
from services.gateway.schemas.webhooks import NewWebhook, WebhookChange
from services.gateway.usecases.alerts.delivery import LEASE_SPARE_MS, SendPolicy
from services.gateway.usecases.alerts.listing import Alerts
from services.gateway.usecases.alerts.sender import WebhookSender
from services.gateway.usecases.alerts.webhooks import Webhooks
from services.gateway.views.alerts import alert_view, event_view
from services.gateway.views.page import page_view
from services.gateway.views.webhooks import delivery_body, delivery_view, new_webhook_view, webhook_view

STATUSES: Final = ("pending", "delivered", "failed")
_PAGE: Final = frozenset({"cursor", "limit"})

_new = msgspec.json.Decoder(NewWebhook)
_change = msgspec.json.Decoder(WebhookChange)


def alert_feature(core: Core) -> Feature:
    """Return the routes of alerts and webhooks, and the sender of webhooks."""
    settings, networks = core.settings, core.settings.private_networks
    sender = WebhookSender(
        core.metadata,
        core.metrics,
        clock=core.clock,
        rng=core.rng,
        networks=networks,
        policy=SendPolicy(
            timeout_ms=settings.webhook_timeout_ms,
            give_up_ms=settings.webhook_give_up_ms,
            lease_ms=settings.webhook_timeout_ms + LEASE_SPARE_MS,
        ),
        render=delivery_body,
        due=core.due_work.webhooks,
    )
    webhooks = Webhooks(core.metadata, clock=core.clock, networks=networks, render=delivery_body)
    routes = [*alert_routes(Alerts(core.metadata)), *webhook_routes(webhooks)]
    return Feature(routes, background={"webhooks": sender.run})


def alert_routes(alerts: Alerts) -> list[Operation]:
    """Return the routes of alerts."""

    async def open_page(call: Call) -> Answer:
        _require_reading(call)
        group, cursor = _group(call.query), call.query.get("cursor")
        found = await alerts.open_page(group=group, cursor=cursor, limit=limit_of(call.query))
        return json_answer(page_view(found, alert_view))

    async def events_page(call: Call) -> Answer:
        _require_reading(call)
        group, topic, cursor = _group(call.query), call.query.get("topic"), call.query.get("cursor")
        if topic is not None:
            check_topic(topic, length_max=RETRY_TOPIC_LENGTH_MAX)
        limit = limit_of(call.query)
        found = await alerts.events_page(group=group, topic=topic, cursor=cursor, limit=limit)
        return json_answer(page_view(found, event_view))

    return [
        Operation("GET", "/v1/alerts", open_page, _PAGE | {"group"}),
        Operation("GET", "/v1/alerts/events", events_page, _PAGE | {"group", "topic"}),
    ]


def webhook_routes(webhooks: Webhooks) -> list[Operation]:
    """Return the routes of webhooks."""

    async def create(call: Call) -> Answer:
        call.principal.require_admin()
        made = await webhooks.create(await call.read_json(_new), actor_of(call))
        return json_answer(new_webhook_view(made), 201)

    async def page(call: Call) -> Answer:
        call.principal.require_admin()
        found = await webhooks.page(cursor=call.query.get("cursor"), limit=limit_of(call.query))
        return json_answer(page_view(found, webhook_view))

    async def show(call: Call) -> Answer:
        call.principal.require_admin()
        return json_answer(webhook_view(await webhooks.get(call.path_params["id"])))

    async def change(call: Call) -> Answer:
        call.principal.require_admin()
        wanted = await call.read_json(_change)
        changed = await webhooks.change(call.path_params["id"], wanted, actor_of(call))
        return json_answer(webhook_view(changed))

    async def delete(call: Call) -> Answer:
        call.principal.require_admin()
        await webhooks.delete(call.path_params["id"], actor_of(call))
        return Answer(204)

    async def test(call: Call) -> Answer:
        call.principal.require_admin()
        return json_answer(delivery_view(await webhooks.test(call.path_params["id"])), 202)

    async def deliveries(call: Call) -> Answer:
        call.principal.require_admin()
        status, cursor = call.query.get("status"), call.query.get("cursor")
        if status is not None and status not in STATUSES:
            raise invalid("status", status, f"is not one of {', '.join(STATUSES)}")
        limit = limit_of(call.query)
        found = await webhooks.deliveries(call.path_params["id"], status=status, cursor=cursor, limit=limit)
        return json_answer(page_view(found, delivery_view))

    return [
        Operation("POST", "/v1/webhooks", create),
        Operation("GET", "/v1/webhooks", page, _PAGE),
        Operation("GET", "/v1/webhooks/{id}", show),
        Operation("PUT", "/v1/webhooks/{id}", change),
        Operation("DELETE", "/v1/webhooks/{id}", delete),
        Operation("POST", "/v1/webhooks/{id}/deliveries", test, is_empty=True),
        Operation("GET", "/v1/webhooks/{id}/deliveries", deliveries, _PAGE | {"status"}),
    ]


def _require_reading(call: Call) -> None:
    rights = call.principal.rights
    call.principal.require(rights.metrics or rights.admin, "metrics")


def _group(query: Mapping[str, str]) -> str | None:
    group = query.get("group")
    if group is not None:
        check_group(group)
    return group
