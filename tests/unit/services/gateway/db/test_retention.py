"""Bounded tables: rows are deleted by age, or belong to things that users or the cluster have created."""

import importlib
import pkgutil
from pathlib import Path

import pytest

from services.gateway import db
from services.gateway.db.models import Metadata

ROOT = Path(__file__).resolve().parents[5]
AGES = {
    "audit": (
        "tests/integration/test_audit_retention.py",
        "test_old_rows_are_deleted_in_small_transactions_and_young_ones_stay",
    ),
    "subscriptions": (
        "tests/integration/test_database.py",
        "test_old_subscriptions_are_forgotten_except_the_last_of_a_group",
    ),
    "lag_samples": ("tests/integration/test_samples_database.py", "test_days_of_older_gateways_are_dropped"),
    "lag_sample_blocks": (
        "tests/integration/test_samples_database.py",
        "test_samples_kept_for_a_day_are_deleted_after_it",
    ),
    "lag_sample_rounds": ("tests/integration/test_samples_database.py", "test_samples_are_thinned_as_they_age"),
    "lag_offset_resets": (
        "tests/integration/test_samples_database.py",
        "test_resets_are_written_with_the_survey_that_shows_them",
    ),
    "lag_sample_outages": ("tests/integration/test_samples_database.py", "test_rounds_without_a_broker_are_one_outage"),
    "report_runs": ("tests/integration/spark/test_runs.py", "test_old_runs_go"),
    "report_lag_rows": ("tests/integration/spark/test_runs.py", "test_old_runs_go"),
    "report_backlog_rows": ("tests/integration/spark/test_runs.py", "test_old_runs_go"),
    "report_pages": ("tests/integration/spark/test_runs.py", "test_old_runs_go"),
    "report_throughput": ("tests/integration/spark/test_runs.py", "test_old_buckets_of_the_throughput_go"),
    "alert_events": ("tests/integration/spark/test_alerts.py", "test_old_events_and_deliveries_are_deleted"),
    "jobs": ("tests/integration/test_jobs.py", "test_jobs_are_deleted_a_while_after_their_end"),
    "dead_letter_redrives": (
        "tests/integration/test_dead_letters.py",
        "test_rows_of_redrives_are_deleted_after_a_year",
    ),
    "transactions": (
        "tests/integration/test_transactions_database.py",
        "test_transactions_are_deleted_a_while_after_their_end",
    ),
    "earlier_secrets": (
        "tests/integration/test_gateway_keys.py",
        "test_of_many_rotations_only_the_newest_secrets_are_kept_and_fewer_are_valid",
    ),
    "sessions": ("tests/integration/test_gateway_users.py", "test_sessions_that_have_ended_are_deleted"),
    "webhook_deliveries": ("tests/integration/spark/test_alerts.py", "test_old_events_and_deliveries_are_deleted"),
}
"""Table → module and name of the test that its old rows are deleted."""
MADE = {
    "topics",
    "groups",
    "api_keys",
    "gateway_secrets",
    "producer_groups",
    "users",
    "report_schedules",
    "report_schedules_set",
    "lag_objectives",
    "webhooks",
    "alert_states",
}
"""Tables with one row for each existing thing; the row is deleted with it."""


def tables() -> set[str]:
    for module in pkgutil.iter_modules(db.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{db.__name__}.{module.name}")
    return set(Metadata.metadata.tables)


def test_every_table_is_bounded() -> None:
    assert tables() == set(AGES) | MADE


@pytest.mark.parametrize("table", AGES)
def test_each_removal_has_a_test(table: str) -> None:
    file, test = AGES[table]
    assert f"def {test}" in (ROOT / file).read_text()
