"""`python -m services.gateway`: one gateway process."""

import argparse
import asyncio
import dataclasses
import os
import sys

from gantry.model.address import Address
from gantry.runtime.errors import SettingsError
from gantry.runtime.heap import configure_heap, trim_after_floods
from gantry.runtime.hostport import is_loopback
from gantry.runtime.lifecycle import Lifecycle, run_service
from gantry.runtime.settings import load_settings
from gantry.runtime.telemetry import configure_logging, logger
from services.gateway.settings import GatewaySettings

log = logger("gateway")


def read_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="gantry gateway", description="Gantry over HTTP and WebSocket.")
    parser.add_argument("--listen", metavar="HOST:PORT", help="default 127.0.0.1:8080; port 0 takes any")
    parser.add_argument("--namesrv", metavar="A;B", help="addresses of the name servers")
    parser.add_argument("--database", metavar="URL", help="postgresql://…; or GANTRY_DATABASE_URL")
    parser.add_argument("--data", metavar="DIR", help="folder for the cache of API keys")
    parser.add_argument("--first-key-file", metavar="FILE", help="where the first API key is written")
    parser.add_argument("--name", help="what this gateway is called in logs and the ready file")
    parser.add_argument("--config", metavar="FILE", help="a TOML file of settings")
    parser.add_argument("--ready-file", metavar="FILE", help="is written once the gateway answers")
    return parser.parse_args(arguments)


def settings_of(options: argparse.Namespace) -> GatewaySettings:
    """Return the settings: defaults, file, environment, command line. Raises SettingsError."""
    environment = dict(os.environ)
    return load_settings(
        GatewaySettings,
        service="gateway",
        environment=environment,
        file=options.config or environment.get("GANTRY_CONFIG"),
        overrides={
            "listen": options.listen,
            "namesrv": options.namesrv,
            "database_url": options.database or environment.get("GANTRY_DATABASE_URL"),
            "data_dir": options.data or environment.get("GANTRY_DATA"),
            "first_key_file": options.first_key_file,
            "name": options.name,
        },
    )


async def serve(settings: GatewaySettings, lifecycle: Lifecycle) -> None:
    """Run the gateway until it is told to stop."""
    # These imports are most of the start. Here they come after `run_service`, under which Python looks for garbage less
    # often, and `--help` and a wrong setting don't wait for them.
    from services.gateway.bootstrap import build  # noqa: PLC0415
    from services.gateway.server import Sweeper, allowed_connections, bind, make_server  # noqa: PLC0415

    settings = dataclasses.replace(settings, connections_max=allowed_connections(settings))
    host, port = settings.address
    listener = bind(host, port)
    gateway = build(settings)
    app, core = gateway.application(), gateway.core
    # Not uvicorn's lifespan: it would log an error at start and lose it.
    async with app.router.lifespan_context(app):
        for name, work in gateway.background().items():
            lifecycle.scope.spawn(name, work)
        server = make_server(app, settings, core.limits, core.metrics, core.keys)
        sweeper = Sweeper(server, settings, core.metrics)
        serving = lifecycle.scope.spawn("http", server.serve(sockets=[listener]))
        lifecycle.scope.spawn("sweeper", sweeper.run())
        lifecycle.scope.spawn("heap", trim_after_floods())
        await server.is_up.wait()
        address = str(Address(*listener.getsockname()[:2]))
        if not is_loopback(host):
            log.warning("listening beyond this machine without TLS", address=address)
        lifecycle.ready({"address": address, "url": f"http://{address}", "instance": settings.name})
        await lifecycle.wait_for_stop()
        core.health.is_draining = True
        server.drain()
        await asyncio.sleep(settings.drain_ms / 1_000)
        core.health.is_stopping = True
        await gateway.close_open(timeout_ms=settings.stop_timeout_ms)
        server.stop()
        await serving


def main() -> int:
    """Run the command line; return the exit code."""
    options = read_arguments()
    configure_heap()
    configure_logging(service="gateway")
    try:
        settings = settings_of(options)
    except SettingsError as error:
        print(f"gateway: {error}", file=sys.stderr)  # noqa: T201 - one line for the person who starts it.
        return 1
    return run_service(settings.name, lambda lifecycle: serve(settings, lifecycle), ready_file=options.ready_file)


if __name__ == "__main__":
    sys.exit(main())
