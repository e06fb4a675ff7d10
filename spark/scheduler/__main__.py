"""`python -m spark.scheduler`: runs the scheduler of reports (`gantry scheduler`)."""

import argparse
import os
import sys
from collections.abc import Sequence

from gantry.runtime.errors import StartupError
from gantry.runtime.lifecycle import run_service
from gantry.runtime.settings import load_settings
from gantry.runtime.telemetry import configure_logging
from spark.scheduler.bootstrap import run
from spark.scheduler.settings import SchedulerSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a scheduler; return the process's exit code."""
    parser = argparse.ArgumentParser(
        prog="gantry scheduler",
        description="Run reports on backlog and lag, by their schedules and on request.",
    )
    parser.add_argument("--namesrv", metavar="A;B", help="addresses of the name servers; default 127.0.0.1:9876")
    parser.add_argument("--database", metavar="URL", help="postgresql://…; or GANTRY_DATABASE_URL")
    parser.add_argument(
        "--output", metavar="DIR", help="folder of pages, Parquet files and logs, or a URI that Spark can write to"
    )
    parser.add_argument("--logs", metavar="DIR", help="folder of logs, if it is not the output")
    parser.add_argument(
        "--master", metavar="MASTER", help="Spark master: local[*] (default), spark://HOST:7077, yarn, …"
    )
    parser.add_argument(
        "--access-file", metavar="FILE", help="credentials for brokers that require them, KEY:SECRET[:TOKEN]"
    )
    parser.add_argument("--config", metavar="FILE", help="a TOML file of settings")
    parser.add_argument("--ready-file", metavar="FILE", help="written once the scheduler runs")
    options = parser.parse_args(arguments)
    configure_logging(service="scheduler")
    data = os.environ.get("GANTRY_DATA")
    try:
        settings = load_settings(
            SchedulerSettings,
            service="scheduler",
            environment=os.environ,
            file=options.config or os.environ.get("GANTRY_CONFIG"),
            overrides={
                "namesrv": options.namesrv,
                "database_url": options.database or os.environ.get("GANTRY_DATABASE_URL"),
                "output": options.output or (f"{data}/reports" if data else None),
                "logs": options.logs,
                "master": options.master,
                "access_file": options.access_file,
            },
        )
    except StartupError as error:
        print(f"scheduler: {error}", file=sys.stderr)  # noqa: T201 - one line for the user's terminal.
        return 1
    return run_service("scheduler", lambda lifecycle: run(settings, lifecycle), ready_file=options.ready_file)


if __name__ == "__main__":
    sys.exit(main())
