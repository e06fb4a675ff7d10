"""The small HTTP server that shows a service's metrics to Prometheus.

It runs in threads of its own, so that a loop that hangs can still be seen hanging; what it reads is counters and the
length of tables, never more. Needs the `server` extra (prometheus-client).
"""

import errno

from prometheus_client import REGISTRY, CollectorRegistry, start_http_server

from gantry.runtime.errors import StartupError

# Metrics of a service that listens on P are on P + 7, unless told otherwise.
PORT_STEP = 7
_PORT_MAX = 65_535


class MetricsServer:
    """A running server; calling it stops it, and so does `stop`."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self._server, self._thread = start_http_server(port, host, registry)
        self.host = host
        self.port: int = self._server.server_port

    def stop(self) -> None:
        """Stop answering and give the port back; waits for nothing but its own thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    __call__ = stop


def start_metrics_server(host: str, port: int, *, registry: CollectorRegistry = REGISTRY) -> MetricsServer:
    """Serve the registry's metrics under `/metrics`; port 0 takes any that is free.

    Raises:
        StartupError: The port is taken, or the host is none of this machine's.
    """
    try:
        return MetricsServer(host, port, registry)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "another process has this port; choose one with --metrics-port, or `off`"
        else:
            reason = f"can't listen there ({error.strerror or error}); choose another address, or `off`"
        raise StartupError(f"metrics on {host}:{port}: {reason}") from None


def choose_metrics_port(text: str, *, listen_port: int) -> int | None:
    """Return the port that `--metrics-port` asks for: `auto`, `off` or a number.

    Args:
        text: `auto` is the listen port + 7, or any free one where the listen port is any, too.
        listen_port: The service's own port as it was asked for.

    Returns:
        The port, 0 for any, or None for no metrics.

    Raises:
        ValueError: The text is none of these, or the port would be above 65535.
    """
    if text == "off":
        return None
    if text == "auto":
        if listen_port == 0:
            return 0
        if listen_port + PORT_STEP > _PORT_MAX:
            raise ValueError(f"metrics_port: {listen_port} + {PORT_STEP} is no port; give one, or `off`")
        return listen_port + PORT_STEP
    if text.isascii() and text.isdigit() and int(text) <= _PORT_MAX:
        return int(text)
    raise ValueError(f"metrics_port: {text!r} is not `auto`, `off` or a port")
