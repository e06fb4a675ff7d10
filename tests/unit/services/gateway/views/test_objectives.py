"""Objectives in answers."""

from dataclasses import replace
from datetime import UTC, datetime

import msgspec

from services.gateway.db.objectives import Objective
from services.gateway.views.objectives import objective_view

AT = datetime(2026, 11, 21, 9, 30, 0, 123_000, tzinfo=UTC)
OBJECTIVE = Objective("G", "", 60.0, None, True, AT, "moves", 3, AT)


def test_an_objective_of_a_group():
    assert msgspec.json.encode(objective_view(OBJECTIVE)).decode() == (
        '{"group":"G","topic":null,"max_lag_seconds":60.0,"max_lag_messages":null,"ignore":true,'
        '"ignore_until":"2026-11-21T09:30:00.123Z","reason":"moves","updated_at":"2026-11-21T09:30:00.123Z"}'
    )


def test_an_objective_of_a_topic_without_an_end_of_ignoring():
    shown = objective_view(replace(OBJECTIVE, topic="T", ignore_until=None))
    assert (shown["topic"], shown["ignore_until"]) == ("T", None)
