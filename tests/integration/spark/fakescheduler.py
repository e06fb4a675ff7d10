"""The scheduler as it is, except that fakejob.py stands for every job: `fakescheduler.py URL OUTPUT READY [name=value …]`."""

import sys
from pathlib import Path

from gantry.runtime.lifecycle import run_service
from gantry.runtime.settings import load_settings
from gantry.runtime.telemetry import configure_logging
from spark.scheduler.bootstrap import run
from spark.scheduler.settings import SchedulerSettings

FAKE_JOB = Path(__file__).with_name("fakejob.py")
# Nothing comes by itself, and nobody waits long.
QUICK = {
    "lag_report_cron": "",
    "throughput_rollup_cron": "",
    "backlog_profile_cron": "",
    "class_archive": "off",
    "poll_interval_ms": "100",
    "retry_pause_ms": "200",
    "stop_timeout_ms": "300",
}


def main(url: str, output: str, ready_file: str, *changes: str) -> int:
    configure_logging(service="scheduler", as_json=True)
    environment = {
        f"GANTRY_SCHEDULER_{name.upper()}": value
        for name, value in (QUICK | dict(change.split("=", 1) for change in changes)).items()
    }
    settings = load_settings(
        SchedulerSettings,
        service="scheduler",
        environment=environment,
        overrides={"database_url": url, "output": output},
    )

    worker = (sys.executable, str(FAKE_JOB), url, output)
    return run_service("scheduler", lambda lifecycle: run(settings, lifecycle, command=worker), ready_file=ready_file)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
