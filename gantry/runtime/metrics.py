"""The small HTTP server that shows a service's metrics to Prometheus.

It runs in threads of its own, so that a loop that hangs can still be seen hanging; what it reads is counters and the
length of tables, never more. Needs the `server` extra (prometheus-client).
"""

import errno
import socket
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app

from gantry.runtime.errors import StartupError

# Metrics of a service that listens on P are on P + 7, unless told otherwise.
PORT_STEP = 7
_PORT_MAX = 65_535

CONNECTIONS_MAX: Final = 8
"""Connections at a time; one more is closed. Each costs a thread and a descriptor."""
IDLE_TIMEOUT_S: Final = 10.0


class _Handler(WSGIRequestHandler):
    timeout = IDLE_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class calls it so.
        """Log no request."""


class _Server(ThreadingMixIn, WSGIServer):
    """A thread for each connection, and few connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._free = BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread, or close it."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # There are no more threads.
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a connection that was silent for too long, or broke."""


class MetricsServer:
    """A running server; calling it stops it, and so does `stop`."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        server_class = type("Server", (_Server,), {"address_family": family})
        self._server: WSGIServer = make_server(host, port, make_wsgi_app(registry), server_class, _Handler)
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
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
