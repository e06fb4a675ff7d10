"""`python -m services.namesrv`: run one name server."""

import argparse
import os
import sys
from collections.abc import Sequence

from gantry.runtime.errors import StartupError
from gantry.runtime.lifecycle import run_service
from gantry.runtime.settings import load_settings
from gantry.runtime.telemetry import configure_logging
from services.namesrv.bootstrap import run
from services.namesrv.settings import NamesrvSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a name server; return the process's exit code."""
    parser = argparse.ArgumentParser(prog="gantry namesrv", description="Run a name server.")
    parser.add_argument("--listen", metavar="HOST:PORT", help="default 127.0.0.1:9876; port 0 takes any")
    parser.add_argument("--data", metavar="DIR", help="folder of kvConfig.json and of settings changed by request")
    parser.add_argument(
        "--metrics-port", metavar="PORT", help="`auto` (listen port + 7), `off`, or a port; 0 takes any"
    )
    parser.add_argument("--config", metavar="FILE", help="a TOML file of settings")
    parser.add_argument("--ready-file", metavar="FILE", help="written once the name server answers")
    options = parser.parse_args(arguments)
    configure_logging(service="namesrv")
    try:
        settings = load_settings(
            NamesrvSettings,
            service="namesrv",
            environment=os.environ,
            file=options.config or os.environ.get("GANTRY_CONFIG"),
            overrides={"listen": options.listen, "data": options.data, "metrics_port": options.metrics_port},
        )
    except StartupError as error:
        print(f"namesrv: {error}", file=sys.stderr)  # noqa: T201 - one line for the person at the terminal.
        return 1
    return run_service("namesrv", lambda lifecycle: run(settings, lifecycle), ready_file=options.ready_file)


if __name__ == "__main__":
    sys.exit(main())
