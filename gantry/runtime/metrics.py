"""The small HTTP server that exposes the metrics of a service to Prometheus.

The server runs in its own threads, so that it answers even if the event loop hangs. These threads read only counters
and the lengths of tables. The module needs the `server` extra (prometheus-client).
"""

import errno
import socket
from socketserver import ThreadingMixIn
from threading import BoundedSemaphore, Thread
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app

from gantry.runtime.digits import parse_digits
from gantry.runtime.errors import StartupError

# By default, the metrics of a service that listens on port P are on port P + 7.
PORT_STEP = 7
_PORT_MAX = 65_535

CONNECTIONS_MAX: Final = 8
"""The maximum number of open connections. Each needs a thread and a descriptor. Further connections are closed."""
IDLE_TIMEOUT_S: Final = 10.0


class _Handler(WSGIRequestHandler):
    timeout = IDLE_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name comes from the base class.
        """Do not log requests."""


class _Server(ThreadingMixIn, WSGIServer):
    """A server with one thread for each connection and a limit of connections."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._free = BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(*args, **kwargs)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a new thread, or close it if the limit is reached."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # The system can't start another thread.
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, then release its place in the limit."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do not report connections that were idle for too long or were lost."""


class MetricsServer:
    """A running metrics server. A call of the object stops the server, as `stop` does."""

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        server_class = type("Server", (_Server,), {"address_family": family})
        self._server: WSGIServer = make_server(host, port, make_wsgi_app(registry), server_class, _Handler)
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        self.host = host
        self.port: int = self._server.server_port

    def stop(self) -> None:
        """Stop the server and close its port. The call waits only for the thread that accepts connections."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    __call__ = stop


def start_metrics_server(host: str, port: int, *, registry: CollectorRegistry = REGISTRY) -> MetricsServer:
    """Serve the metrics of a registry under `/metrics`. Port 0 means any free port.

    Raises:
        StartupError: The port is in use, or the host is not an address of this machine.
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
        text: The setting. `auto` means the listen port + 7, or any free port if the listen port is 0.
        listen_port: The port in the settings of the service; 0 means any free port.

    Returns:
        The port, 0 for any free port, or None for no metrics.

    Raises:
        ValueError: The text is invalid, or the port would be above 65535.
    """
    if text == "off":
        return None
    if text == "auto":
        if listen_port == 0:
            return 0
        if listen_port + PORT_STEP > _PORT_MAX:
            raise ValueError(f"metrics_port: {listen_port} + {PORT_STEP} is no port; give one, or `off`")
        return listen_port + PORT_STEP
    port = parse_digits(text, _PORT_MAX)
    if port is None:
        raise ValueError(f"metrics_port: {text!r} is not `auto`, `off` or a port")
    return port
