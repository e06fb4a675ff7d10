"""Alerts and their events in answers, with their fields in the order of the contract."""

import uuid
from datetime import UTC, datetime, timedelta

import msgspec

from services.gateway.db.alerts import AlertEvent, OpenAlert
from services.gateway.views.alerts import alert_view, event_view

AT = datetime(2026, 11, 21, 9, 30, 0, 123_000, tzinfo=UTC)
SINCE = AT - timedelta(minutes=5)
ALERT_ID, RUN_ID = uuid.UUID(int=7), uuid.UUID(int=8)


def test_an_open_alert():
    alert = OpenAlert(ALERT_ID, "G", "T", "STALLED", AT, SINCE, AT, "OK", 7, None, RUN_ID)
    assert msgspec.json.encode(alert_view(alert)).decode() == (
        '{"id":"00000000-0000-0000-0000-000000000007","group":"G","topic":"T","verdict":"STALLED",'
        '"opened_at":"2026-11-21T09:30:00.123Z","since":"2026-11-21T09:25:00.123Z",'
        '"seen_at":"2026-11-21T09:30:00.123Z","seen_verdict":"OK","lag_messages":7,"lag_seconds":null,'
        '"run":"00000000-0000-0000-0000-000000000008"}'
    )


def test_an_event():
    event = AlertEvent(12, AT, ALERT_ID, "opened", "G", "T", None, "STALLED", SINCE, 7, 1.5, "cause", RUN_ID)
    assert msgspec.json.encode(event_view(event)).decode() == (
        '{"id":"12","at":"2026-11-21T09:30:00.123Z","alert":"00000000-0000-0000-0000-000000000007","kind":"opened",'
        '"group":"G","topic":"T","old_verdict":null,"new_verdict":"STALLED","since":"2026-11-21T09:25:00.123Z",'
        '"lag_messages":7,"lag_seconds":1.5,"cause":"cause","run":"00000000-0000-0000-0000-000000000008"}'
    )
