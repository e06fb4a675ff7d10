"""docs/limits.md lists every limit with its setting and its default."""

from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path

from typer.testing import CliRunner

from gantry.cli.main import app
from gantry.client import transactionchecks
from gantry.model.alert import GONE_AFTER, AlertSettings
from gantry.model.group import SubscriptionGroup
from gantry.model.retrypolicy import DELAY_MS_MAX
from services.broker.delay import delivery as levels
from services.broker.delay.levels import AHEAD_MS_MAX
from services.broker.registry.dismissed import DISMISSED_MAX
from services.broker.registry.queuelocks import LOCK_EXPIRY_MS, LOCKS_MAX
from services.broker.settings import BrokerSettings
from services.broker.timer.engine import CHANGED_SLOTS_MAX
from services.broker.timer.recalls import RECALLS_MAX
from services.broker.transaction import decisions, foundhalf, listing, openhalves
from services.broker.transaction.processor import WAITING_MAX
from services.gateway.limits import Limits
from services.gateway.schemas import deadletters as redrives
from services.gateway.schemas.receiving import INVISIBLE_MS_MAX, INVISIBLE_MS_MIN
from services.gateway.schemas.transactions import IMMUNITY_S_MAX
from services.gateway.schemas.webhooks import PATTERNS_MAX, URL_LENGTH_MAX
from services.gateway.settings import GatewaySettings
from services.gateway.usecases.alerts.delivery import SendPolicy
from services.gateway.usecases.alerts.sender import EACH_MAX, SENDING_MAX, SLOW_MAX
from services.gateway.usecases.alerts.webhooks import WEBHOOKS_MAX
from services.gateway.usecases.deadletters import letters, redrive
from services.gateway.usecases.jobs import jobs, runner
from services.gateway.usecases.reading import search
from services.gateway.usecases.reports.objectives import OBJECTIVES_MAX
from services.gateway.usecases.transactions import callbacks, mirror, transactions
from services.gateway.ws import nacking, producers, producing, returning
from services.gateway.ws.limits import StreamLimits
from spark.scheduler.settings import SchedulerSettings

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs" / "limits.md").read_text()
FIXED = "fixed"


def rows(heading: str) -> Iterator[list[str]]:
    """Yield the cells of each row of a section's table."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    assert len(lines) > 2, heading
    for line in lines[2:]:
        yield [cell.strip().strip("`") for cell in line.strip("|").split("|")]


def number(cell: str) -> int:
    return int(cell.split(maxsplit=1)[0].replace(",", ""))


def test_every_share_is_listed_with_its_settings() -> None:
    told = {(name, scope): cells for name, scope, *cells in rows("Shares")}
    quotas = {(quota.name, quota.scope): quota for quota in Limits(GatewaySettings()).quotas}
    assert told.keys() == quotas.keys()
    for place, (share, default, total, total_default, *_) in told.items():
        quota = quotas[place]
        assert (number(default), number(total_default)) == (quota.each_max, quota.total_max), place
        changes = {share: 7} if total == FIXED else {share: 7, total: 9}
        [changed] = [each for each in Limits(GatewaySettings(**changes)).quotas if (each.name, each.scope) == place]
        assert changed.each_max == 7, place
        assert changed.total_max == (quota.total_max if total == FIXED else 9), place


def test_every_rate_is_listed() -> None:
    told = {(name, scope): setting for name, scope, setting, *_ in rows("Rates")}
    limits = Limits(GatewaySettings(**dict.fromkeys(told.values(), 7)))
    assert told.keys() == {(rate.name, rate.scope) for rate in limits.rates.values()}
    assert {rate.per_s for rate in limits.rates.values()} == {7}


def test_every_numeric_setting_is_listed_with_its_default() -> None:
    numbers = {
        field.name: field.default
        for field in fields(GatewaySettings)
        if isinstance(field.default, int) and not isinstance(field.default, bool)
    }
    told = {name: number(default) for name, default, *_ in rows("Sizes and times")}
    for _, _, setting, default, *_ in rows("Rates"):
        told[setting] = number(default)
    for _, _, share, default, total, total_default, *_ in rows("Shares"):
        told[share] = number(default)
        if total != FIXED:
            told[total] = number(total_default)
    assert told == numbers


def test_every_limit_of_a_stream_is_listed_and_in_the_contract() -> None:
    assert {name: number(default) for name, default, *_ in rows("One stream")} == asdict(StreamLimits())
    contract = (ROOT / "openapi" / "websocket.md").read_text()
    for name in asdict(StreamLimits()):
        assert f"`{name}`" in contract, name


def test_every_limit_of_alerts_and_webhooks_is_listed() -> None:
    scheduler, policy, alerts = SchedulerSettings(), SendPolicy(), AlertSettings()
    told = {name: number(default) for name, default, *_ in rows("Objectives, alerts and webhooks")}
    assert told == {
        "objectives": OBJECTIVES_MAX,
        "raise_after_ms": scheduler.alert_raise_after_ms,
        "clear_after_ms": scheduler.alert_clear_after_ms,
        "gone_after_ms": GONE_AFTER.total_seconds() * 1_000,
        "alert_keep_days": scheduler.alert_keep_days,
        "delivery_keep_days": scheduler.delivery_keep_days,
        "webhooks": WEBHOOKS_MAX,
        "webhook_patterns": PATTERNS_MAX,
        "webhook_url_characters": URL_LENGTH_MAX,
        "webhook_attempts_at_once": SENDING_MAX,
        "webhook_attempts_at_once_each": EACH_MAX,
        "webhook_attempts_at_once_slow": SLOW_MAX,
        "webhook_pause_ms": policy.pause_ms,
        "webhook_pause_ms_max": policy.pause_ms_max,
        "webhook_lease_ms": policy.lease_ms,
    }
    # A report that is made without a scheduler judges by the same limits.
    assert alerts.raise_after.total_seconds() * 1_000 == scheduler.alert_raise_after_ms
    assert alerts.clear_after.total_seconds() * 1_000 == scheduler.alert_clear_after_ms
    assert (policy.timeout_ms, policy.give_up_ms) == (
        GatewaySettings().webhook_timeout_ms,
        GatewaySettings().webhook_give_up_ms,
    )


def test_every_limit_of_returns_checks_and_call_backs_is_listed() -> None:
    told = {name: number(default) for name, default, *_ in rows("Returns, checks and call-backs")}
    assert told == {
        "returns_pending_max": returning.PENDING_MAX,
        "suspend_ms": nacking.SUSPEND_MS,
        "suspend_ms_max": nacking.SUSPEND_MS_MAX,
        "hello_producer_groups_max": producing.GROUPS_MAX,
        "checks_pending_max": producing.PENDING_MAX,
        "check_answer_ms": producers.ANSWER_TIMEOUT_S * 1_000,
        "checks_at_once_each": transactionchecks.CHECKS_AT_ONCE,
        "checks_waiting_max": transactionchecks.CHECKS_MAX,
        "check_streams_asked_max": producers.ASKED_MAX,
        "callback_groups": callbacks.GROUPS_MAX,
        "callback_attempts_max": callbacks.ATTEMPTS_MAX,
        "callback_pause_ms": callbacks.PAUSE_MS,
        "callbacks_at_once_each": callbacks.EACH_MAX,
        "callbacks_at_once": callbacks.ALL_MAX,
        "callback_answer_bytes_max": callbacks.ANSWER_BYTES_MAX,
    }


def test_every_limit_of_dead_letters_jobs_and_decisions_is_listed() -> None:
    told = {name: number(default) for name, default, *_ in rows("Dead letters, jobs and decisions")}
    assert told == {
        "redrive_message_ids": redrives.MESSAGE_IDS_MAX,
        "redrive_rate_per_s": redrives.RATE_DEFAULT,
        "redrive_rate_per_s_max": redrives.RATE_MAX,
        "dry_run_letters": redrive.DRY_RUN_SCANNED_MAX,
        "dry_run_sample": redrive.SAMPLE_MAX,
        "page_letters": letters.SCANNED_MAX,
        "page_letters_bytes": letters.PAGE_BYTES_MAX,
        "jobs_active": jobs.ACTIVE_MAX,
        "jobs_running": runner.RUNNING_MAX,
        "job_lease_ms": runner.LEASE.total_seconds() * 1_000,
        "job_pause_ms_max": runner.PAUSE_MAX_S * 1_000,
        "delay_ms_max": DELAY_MS_MAX,
        "check_immunity_s_max": IMMUNITY_S_MAX,
        "decision_lease_ms": transactions.LEASE.total_seconds() * 1_000,
        "decision_pause_ms_max": transactions.PAUSE_MAX_S * 1_000,
        "mirrored_pages": mirror.PAGES_MAX,
        "mirrored_ends": mirror.ENDED_MAX,
    }


def test_every_limit_of_waiting_messages_is_listed_with_its_setting() -> None:
    cells = {name: (number(default), setting) for name, default, setting, *_ in rows("Waiting messages on a broker")}
    settings = BrokerSettings()
    for name, (default, setting) in cells.items():
        if hasattr(settings, setting):
            assert default == getattr(settings, setting), name
        else:
            assert setting in (FIXED, "retry_max_times` of the group"), name
    assert {name: default for name, (default, setting) in cells.items() if not hasattr(settings, setting)} == {
        "retries": SubscriptionGroup("g").retry_max_times,
        "retry_delay_ms_max": DELAY_MS_MAX,
        "dismissed_members": DISMISSED_MAX,
        "queue_locks": LOCKS_MAX,
        "queue_lock_ms": LOCK_EXPIRY_MS,
        "level_unflushed": levels.IN_FLIGHT_MAX,
        "level_ahead_ms": AHEAD_MS_MAX,
        "timer_changed_slots": CHANGED_SLOTS_MAX,
        "recalls": RECALLS_MAX,
        "halves_in_memory": foundhalf.RECENT_MAX,
        "halves_in_memory_bytes": foundhalf.RECENT_BYTES_MAX,
        "half_copies": openhalves.COPIES_MAX,
        "decisions_remembered": openhalves.RECENT_MAX,
        "decisions_waiting": WAITING_MAX,
        "decisions_unmarked": decisions.PENDING_MAX,
        "transaction_listed": listing.READ_MAX,
    }


def test_who_pulls_learns_the_bounds_of_the_invisible_time_before_a_refusal() -> None:
    least, most = f"{INVISIBLE_MS_MIN // 1_000} s", f"{INVISIBLE_MS_MAX // 3_600_000} h"
    assert f"is invisible for {least} to {most}" in PAGE
    assert f"at least {least}" in (ROOT / "README.md").read_text()
    consuming = (ROOT / "docs" / "consuming.md").read_text().partition("\n### ")[0]
    assert f"below {least} or above {most}" in consuming.replace("\n", " ")
    for command in (["consume"], ["message", "pull"]):
        told = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).stdout
        assert f"at least {least.replace(' ', '')}, at most {most.replace(' ', '')}" in told, command


def test_the_limits_of_searches_are_those_of_the_code() -> None:
    told = [number(value) for _, value, _ in rows("Searches")]
    page_mib, effort_s = search.PAGE_BYTES_MAX >> 20, search.EFFORT_MS // 1_000
    assert told == [search.QUEUES_MAX, search.SCANNED_MAX, effort_s, page_mib, search.SEARCHES_AT_ONCE]
