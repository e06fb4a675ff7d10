"""`python -m services.broker`: run one broker."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

from gantry.runtime.errors import SettingsError, StartupError
from gantry.runtime.failpoints import arm_from_environment
from gantry.runtime.lifecycle import run_service
from gantry.runtime.settings import load_settings
from gantry.runtime.telemetry import configure_logging
from services.broker.bootstrap import run
from services.broker.settings import BrokerSettings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker; return the process's exit code."""
    parser = argparse.ArgumentParser(prog="gantry broker", description="Run a broker.")
    parser.add_argument("--namesrv", metavar="A;B", help="addresses of the name servers, host:port, separated by ;")
    parser.add_argument("--name", help="name of the broker set; default broker-a")
    parser.add_argument("--cluster", help="default DefaultCluster")
    parser.add_argument("--listen", metavar="HOST:PORT", help="default 127.0.0.1:10911; port 0 takes any")
    parser.add_argument(
        "--advertise",
        metavar="HOST",
        help="address that name servers and clients are told; default: the one of --listen",
    )
    parser.add_argument(
        "--fast-port", metavar="PORT", help="second port: default listen port - 2; 0 takes any; `off` for none"
    )
    parser.add_argument(
        "--metrics-port", metavar="PORT", help="`auto` (listen port + 7), `off`, or a port; 0 takes any"
    )
    parser.add_argument("--store", metavar="DIR", help="folder of the messages; default ./store")
    parser.add_argument("--config", metavar="FILE", help="TOML file of settings")
    parser.add_argument("--ready-file", metavar="FILE", help="written once the broker answers")
    options = parser.parse_args(arguments)
    configure_logging(service="broker")
    arm_from_environment()
    try:
        overrides = _overrides(options)
        settings = load_settings(
            BrokerSettings,
            service="broker",
            environment=os.environ,
            file=options.config or os.environ.get("GANTRY_CONFIG"),
            overrides=overrides,
        )
    except StartupError as error:
        print(f"broker: {error}", file=sys.stderr)  # noqa: T201 - one line for the person at the terminal.
        return 1
    return run_service(
        "broker", lambda lifecycle: run(settings, overrides.keys(), lifecycle), ready_file=options.ready_file
    )


def _overrides(options: argparse.Namespace) -> dict[str, Any]:
    values = {
        "namesrv_addr": options.namesrv,
        "broker_name": options.name,
        "broker_cluster_name": options.cluster,
        "broker_ip1": options.advertise,
        "fast_listen_port": options.fast_port,
        "metrics_port": options.metrics_port,
        "store_path_root_dir": options.store,
    }
    if options.listen is not None:
        host, separator, port = options.listen.rpartition(":")
        if not separator or not port.isascii() or not port.isdigit():
            raise SettingsError(f"--listen: {options.listen!r} is not HOST:PORT")
        values |= {"bind_address": host.removeprefix("[").removesuffix("]"), "listen_port": int(port)}
    return {name: value for name, value in values.items() if value is not None}


if __name__ == "__main__":
    sys.exit(main())
