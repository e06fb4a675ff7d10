"""A Kubernetes API server that runs nothing: it records the objects that it is asked to create, and confirms them."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


class ApiServer:
    """Listens on loopback until the block ends.

    Attributes:
        url: The server's address.
        made: Kind and content of each object, in the order of the requests.
    """

    def __init__(self) -> None:
        self.made: list[tuple[str, dict[str, Any]]] = []
        made = self.made

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._answer(200, {"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []})

            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                made.append((content["kind"], content))
                # Kubernetes gives each object a uid; Spark makes the pod the owner of the other objects by that uid.
                content["metadata"] |= {"uid": f"uid-{len(made)}", "resourceVersion": "1"}
                self._answer(201, content)

            do_PATCH = do_POST  # noqa: N815 - a name of http.server's.

            def _answer(self, status: int, content: dict[str, Any]) -> None:
                data = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                """Print nothing: requests in a test's output would hide its assertions."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()
