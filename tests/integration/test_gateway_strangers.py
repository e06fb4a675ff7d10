"""A gateway's process and strangers: attackers and careless clients, over real sockets and without any key."""

import json
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.integration.test_gateway_server import start, talk

CONNECTIONS_MAX = 40
LIMITS = {
    "GANTRY_GATEWAY_HEADER_TIMEOUT_MS": "2000",
    "GANTRY_GATEWAY_BODY_TIMEOUT_MS": "2000",
    "GANTRY_GATEWAY_WRITE_TIMEOUT_MS": "1000",
    "GANTRY_GATEWAY_CONNECTIONS_MAX": str(CONNECTIONS_MAX),
    "GANTRY_GATEWAY_CONNECTIONS_PER_ADDRESS_MAX": str(CONNECTIONS_MAX - 10),
}
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
SEND = b"POST /v1/topics/T/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HANDSHAKE = (
    b"GET /v1/stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@contextmanager
def gateway_process(folder: Path, **variables: str) -> Iterator[tuple[tuple[str, int], subprocess.Popen[str]]]:
    process = start(folder, variables={**LIMITS, **variables})
    try:
        host, _, port = json.loads((folder / "ready.json").read_text())["address"].partition(":")
        yield (host, int(port)), process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    with gateway_process(tmp_path_factory.mktemp("gateway")) as (address, _):
        yield address


def statuses(answer: bytes) -> list[bytes]:
    return re.findall(rb"HTTP/1.1 (\d{3}) ", answer)


def problem_in(answer: bytes) -> dict[str, str]:
    """Return the problem of the last answer; its header has the same id."""
    head, _, body = answer.rpartition(b"\r\n\r\n")
    problem: dict[str, str] = json.loads(body)
    assert f"x-request-id: {problem['request_id']}".encode() in head.rpartition(b"\r\n\r\n")[2]
    assert problem["request_id"] != "none"
    return problem


@pytest.mark.parametrize("in_pieces", [False, True])
@pytest.mark.parametrize("upgrade", [b"foo", b"h2c"])
@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 32\r\n\r\n" + GET, b"Transfer-Encoding: chunked\r\n\r\n20\r\n" + GET + b"\r\n0\r\n\r\n"],
)
def test_a_body_behind_an_unknown_upgrade_is_not_run_as_a_request(gateway, upgrade, framing, in_pieces):
    assert len(GET) == 32
    smuggled = SEND + b"Connection: Upgrade\r\nUpgrade: " + upgrade + b"\r\n" + framing + LAST
    parts = [bytes([byte]) for byte in smuggled] if in_pieces else [smuggled]
    assert statuses(talk(gateway, *parts)) == [b"401", b"200"]


def test_connect_opens_no_second_request(gateway):
    answer = talk(gateway, b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n" + GET)
    assert statuses(answer) == [b"405"]
    assert problem_in(answer)["type"].endswith("/method-not-allowed")


@pytest.mark.parametrize(
    ("more", "status"),
    [
        (b"Content-Length: 5\r\n\r\nhello", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"X: " + b"a" * 9_000 + b"\r\n\r\n", 431),
        (b"X: y\r\n" * 200 + b"\r\n", 431),
        (b"Sec-WebSocket-Version: 13\r\n\r\n", 400),
        (b"\r\n", 400),
    ],
)
def test_every_handshake_is_answered_with_a_problem(gateway, more, status):
    answer = talk(gateway, HANDSHAKE + more)
    assert statuses(answer) == [str(status).encode()]
    assert problem_in(answer)["status"] == status


def test_a_handshake_at_another_path_is_a_problem_with_an_id(gateway):
    answer = talk(gateway, HANDSHAKE.replace(b"/v1/stream", b"/elsewhere") + b"X-Request-Id: mine\r\n\r\n")
    assert (statuses(answer), problem_in(answer)["request_id"]) == ([b"404"], "mine")


def test_silent_connections_do_not_block_others(tmp_path):
    with gateway_process(tmp_path, GANTRY_GATEWAY_HEADER_TIMEOUT_MS="60000") as (address, _), ExitStack() as crowd:
        for number in range(2 * CONNECTIONS_MAX):
            silent = crowd.enter_context(socket.create_connection(address))
            silent.sendall(b"GET /" if number % 2 else b"")
        began = time.monotonic()
        while statuses(talk(address, LAST)) != [b"200"]:
            # Connections of the last second are kept.
            assert time.monotonic() - began < 5
            time.sleep(0.1)


@pytest.mark.parametrize("length", [8 << 20, 60 << 20])
def test_an_early_answer_reaches_a_client_that_continues_to_send(gateway, length):
    """urllib and many others send `Connection: close` and all of their body, and read only then."""
    head = SEND + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % length
    with socket.create_connection(gateway, timeout=20) as connection:
        connection.sendall(head)
        for _ in range(length >> 20):
            connection.sendall(bytes(1 << 20))
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert statuses(answer) == [b"401"]


@pytest.mark.parametrize(
    ("rest", "status"), [(b"\x00\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431)]
)
def test_a_refusal_comes_after_the_answers_before_it(gateway, rest, status):
    answer = talk(gateway, GET * 3 + rest)
    assert statuses(answer) == [b"200", b"200", b"200", str(status).encode()]
    assert problem_in(answer)["status"] == status


def test_a_client_that_reads_no_answers_is_disconnected(gateway):
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.settimeout(20)
        connection.connect(gateway)
        # The gateway stops reading when its answers are not read; then nothing moves until it gives up.
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            connection.sendall(GET * 1_000_000)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /livez HTTP/1.1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
        (b"GET /livez\r\n\r\n", 400),
        (b"GET /livez HTTP/0.9\r\nHost: x\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (b"GET /livez HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 70_000 + b"\r\n\r\n", 431),
    ],
)
def test_heads_that_are_refused(gateway, request_bytes, status):
    answer = talk(gateway, request_bytes)
    assert statuses(answer) == [str(status).encode()]
    assert problem_in(answer)["status"] == status


def test_a_stopping_gateway_reports_it_while_it_still_serves(tmp_path):
    with gateway_process(tmp_path, GANTRY_GATEWAY_DRAIN_MS="3000") as (address, process):
        with socket.create_connection(address, timeout=20) as kept:
            kept.sendall(GET)
            assert b"connection: close" not in kept.recv(65536)
            process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 2
            while b"it is stopping" not in (ready := talk(address, LAST.replace(b"livez", b"readyz"))):
                assert time.monotonic() < deadline
            assert ready.startswith(b"HTTP/1.1 503")
            kept.sendall(GET)
            answer = kept.recv(65536)
            assert answer.startswith(b"HTTP/1.1 200")
            assert b"connection: close" in answer
            assert talk(address, GET).startswith(b"HTTP/1.1 200")
        assert process.wait(20) == 0
