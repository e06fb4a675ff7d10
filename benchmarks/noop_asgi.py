"""The baseline for HTTP: uvicorn with the gateway's settings and an application that reads the body and answers 201.

`python -m benchmarks.noop_asgi READY_FILE`
"""

import socket
import sys
from typing import Any

import uvicorn

from gantry.runtime.lifecycle import Lifecycle, run_service

ANSWER = b'{"outcome":"stored","status":"SEND_OK"}'
START = {
    "type": "http.response.start",
    "status": 201,
    "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())],
}
BODY = {"type": "http.response.body", "body": ANSWER}


async def application(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Read the whole body, then answer."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send(START)
    await send(BODY)


async def serve(lifecycle: Lifecycle) -> None:
    """Run until a signal stops the process."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(
        application, loop="none", http="httptools", ws="none", lifespan="off", access_log=False, log_level="warning",
        server_header=False, date_header=False,
    )  # fmt: skip
    server = uvicorn.Server(config)
    server.capture_signals = _no_signals  # type: ignore[method-assign]
    lifecycle.scope.spawn("uvicorn", server.serve(sockets=[listener]))
    host, port = listener.getsockname()
    lifecycle.ready({"address": f"{host}:{port}"})
    await lifecycle.wait_for_stop()
    server.should_exit = True


def _no_signals() -> Any:
    import contextlib  # noqa: PLC0415

    return contextlib.nullcontext()


if __name__ == "__main__":
    sys.exit(run_service("noop", serve, ready_file=sys.argv[1]))
