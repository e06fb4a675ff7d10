"""Settings of the scheduler: from a file and the environment; invalid ones are rejected by name."""

from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from gantry.runtime.errors import SettingsError, StartupError
from gantry.runtime.settings import load_settings
from spark.runs import PrunedRun
from spark.scheduler import bootstrap
from spark.scheduler.children import job_arguments
from spark.scheduler.jobs import JOBS
from spark.scheduler.settings import SchedulerSettings
from tests.unit.spark.scheduler.test_decide import run


def load(file: str | None = None, **environment: str) -> SchedulerSettings:
    prefixed = {f"GANTRY_SCHEDULER_{name.upper()}": value for name, value in environment.items()}
    return load_settings(SchedulerSettings, service="scheduler", environment=prefixed, file=file)


def test_the_defaults_are_valid() -> None:
    settings = load()
    settings.check()
    assert all(settings.cron_of(job) and settings.timeout_ms_of(job) for job in JOBS)


def test_a_file_and_the_environment_over_it(tmp_path: Path) -> None:
    file = tmp_path / "scheduler.toml"
    file.write_text('lag_report_cron = "0 * * * *"\nkeep_days = 7\nnamesrv = ["a:9876", "b:9876"]\n')
    settings = load(str(file), keep_days="3")
    assert (settings.cron_of("lag_report"), settings.keep_days, settings.namesrv) == (
        "0 * * * *",
        3,
        ("a:9876", "b:9876"),
    )


def test_an_empty_cron_is_on_demand_only() -> None:
    assert load(lag_report_cron="").cron_of("lag_report") is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lag_report_cron", "every day"),
        ("backlog_profile_timeout_ms", "0"),
        ("attempts_max", "0"),
        ("runs_max", "-1"),
        ("stale_after_ms", "19999"),
        ("stop_timeout_ms", "-1"),
        ("worker_idle_ms", "-1"),
        ("worker_lead_ms", "-1"),
        ("timezone", "Mars/Base"),
        ("namesrv", ","),
        ("keep_days", "some"),
    ],
)
def test_invalid_settings_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"(?i){name}"):
        load(**{name: value})


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(SettingsError, match="NO_SUCH"):
        load(no_such="1")


def test_a_job_gets_the_paths_of_credentials() -> None:
    told = job_arguments(load(access_file="/run/secrets/access"), run(5, "lag_report"))
    assert told[-2:] == ("--access-file", "/run/secrets/access")
    assert "--access-file" not in job_arguments(load(), run(5, "lag_report"))


async def test_a_scheduler_does_not_start_with_invalid_credentials(tmp_path: Path) -> None:
    file = tmp_path / "access"
    file.write_text("HIDDEN")
    settings = SchedulerSettings(database_url="postgresql://nowhere/g", access_file=str(file))
    lifecycle: Any = None  # The scheduler never gets that far.
    with pytest.raises(
        StartupError, match=rf"^access_file: {file}: its content is not ACCESS_KEY:SECRET_KEY"
    ) as caught:
        await bootstrap.run(settings, lifecycle)
    assert "HIDDEN" not in str(caught.value)


def test_a_job_gets_its_addresses_but_no_secret() -> None:
    settings = SchedulerSettings(
        namesrv=("a:1", "b:2"), database_url="postgresql://u:secret@db/g", output="/out", master="spark://m:7077"
    )
    command = job_arguments(settings, run(5, "lag_report", attempt=2))
    assert command == (
        *("--run", str(UUID(int=5)), "--attempt", "2"),
        *("--namesrv", "a:1;b:2", "--master", "spark://m:7077", "--output", "/out", "--class-archive", "auto"),
        *("--alert-raise-after-ms", "300000", "--alert-clear-after-ms", "300000"),
    )
    assert "secret" not in " ".join(command)
    # Only a lag report judges groups.
    assert "--alert-raise-after-ms" not in job_arguments(settings, run(5, "backlog_profile"))


def test_logs_are_on_this_machine_wherever_results_are_stored() -> None:
    assert load(output="/var/reports").log_folder == "/var/reports"
    assert load(output="s3a://bucket/reports").log_folder == ".gantry/reports"
    assert load(output="s3a://bucket/reports", logs="/var/log/reports").log_folder == "/var/log/reports"


def test_a_run_is_told_the_runs_whose_files_it_removes() -> None:
    old = PrunedRun(UUID(int=7), "backlog_profile")
    arguments = job_arguments(load(output="s3a://bucket/reports"), run(1), [old])
    assert arguments[-2:] == ("--remove", "backlog_profile/00000000-0000-0000-0000-000000000007")
