"""Webhooks and deliveries in answers, and the bodies that receivers check the signatures of."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import pytest

from services.gateway.db.alerts import AlertEvent
from services.gateway.db.webhooks import Delivery, Webhook
from services.gateway.usecases.alerts.webhooks import WebhookTest
from services.gateway.views.alerts import event_view
from services.gateway.views.webhooks import delivery_body, delivery_view, new_webhook_view, webhook_view

AT = datetime(2026, 11, 21, 9, 30, 0, 123_000, tzinfo=UTC)
TEXT = "2026-11-21T09:30:00.123Z"
ID = uuid.UUID(int=7)
WEBHOOK = Webhook(ID, "https://hooks.example/a", ["A*"], ["STALLED"], True, "whsec_secret", AT, AT)
DELIVERY = Delivery(ID, uuid.UUID(int=8), 12, "pending", 1, AT, AT, None, 500, "the webhook answered 500")


def json(value):
    return msgspec.json.encode(value).decode()


def test_only_a_new_webhook_shows_its_secret():
    shown = (
        '"id":"00000000-0000-0000-0000-000000000007","url":"https://hooks.example/a","groups":["A*"],'
        f'"verdicts":["STALLED"],"enabled":true,"created_at":"{TEXT}","updated_at":"{TEXT}"'
    )
    assert json(webhook_view(WEBHOOK)) == f"{{{shown}}}"
    assert json(new_webhook_view(WEBHOOK)) == f'{{{shown},"secret":"whsec_secret"}}'
    assert "whsec_secret" not in repr(WEBHOOK)


def test_a_pending_delivery_has_a_next_attempt():
    assert json(delivery_view(DELIVERY)) == (
        '{"id":"00000000-0000-0000-0000-000000000007","webhook":"00000000-0000-0000-0000-000000000008","event":"12",'
        f'"status":"pending","attempts":1,"created_at":"{TEXT}","next_attempt_at":"{TEXT}","finished_at":null,'
        '"last_status":500,"last_error":"the webhook answered 500"}'
    )


@pytest.mark.parametrize("status", ["delivered", "failed"])
def test_a_finished_delivery_has_no_next_attempt(status):
    shown = delivery_view(replace(DELIVERY, status=status, finished_at=AT, event_id=None))
    assert (shown["next_attempt_at"], shown["finished_at"], shown["event"]) == (None, TEXT, None)


def test_the_body_for_an_event_contains_it_as_answers_show_it():
    event = AlertEvent(12, AT, ID, "changed", "G", "T", "LAGGING", "STALLED", AT, 7, 1.5, "Rückstand", ID)
    assert delivery_body(event) == (f'{{"type":"alert.changed","timestamp":"{TEXT}","data":{json(event_view(event))}}}')


def test_the_body_for_a_test_names_the_webhook():
    assert delivery_body(WebhookTest(ID, AT)) == (
        f'{{"type":"test","timestamp":"{TEXT}","data":{{"webhook":"00000000-0000-0000-0000-000000000007"}}}}'
    )
