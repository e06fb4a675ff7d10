"""The gateway's process by itself: limits on connections, start, stop, and its messages when it can't start."""

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.stack import Stack, environment

NO_DRAIN = {"GANTRY_GATEWAY_DRAIN_MS": "0"}
SHORT = {"GANTRY_GATEWAY_HEADER_TIMEOUT_MS": "500", "GANTRY_GATEWAY_BODY_TIMEOUT_MS": "500"}


def command(folder: Path, *options: str) -> list[str]:
    # No name server runs at this address: these tests end before one is needed.
    fixed = ["--namesrv", "127.0.0.1:1", "--data", str(folder), "--ready-file", str(folder / "ready.json")]
    return [sys.executable, "-m", "services.gateway", *fixed, *options]


def start(folder: Path, *options: str, variables: dict[str, str] | None = None) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command(folder, "--listen", "127.0.0.1:0", *options),
        env=environment({**NO_DRAIN, **(variables or {})}),
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 30
    while not (folder / "ready.json").exists():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """A gateway without brokers and without Postgres; yields its address."""
    folder = tmp_path_factory.mktemp("gateway")
    process = start(folder, variables=SHORT)
    try:
        host, _, port = json.loads((folder / "ready.json").read_text())["address"].partition(":")
        yield host, int(port)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode == 0


def talk(address: tuple[str, int], *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Send the parts with pauses between them, and return all received bytes until the end."""
    with socket.create_connection(address, timeout=20) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause_s)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


@pytest.mark.parametrize(
    "parts",
    [
        (b"",),
        (b"GET /livez HTTP/1.1\r\n",),
        (b"\r\n\r\n",),
        (b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n", b"\r\n\r\n"),
        (b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\nGET /livez HTTP/1.1\r\nhost",),
    ],
)
def test_a_missing_head_is_not_waited_for(gateway, parts):
    began = time.monotonic()
    answer = talk(gateway, *parts, pause_s=0.3)
    assert time.monotonic() - began < 6
    assert answer.rpartition(b"HTTP/1.1 ")[2].startswith(b"408")


def test_a_missing_body_is_not_waited_for(gateway):
    head = b"POST /v1/topics/T/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"
    answer = talk(gateway, head + b"abc")
    # Without a key the body is not read; the answer does not wait for it, and is the only one.
    assert answer.startswith(b"HTTP/1.1 401")
    assert answer.count(b"HTTP/1.1") == 1


def test_one_byte_at_a_time_is_too_slow(gateway):
    with pytest.raises((ConnectionResetError, BrokenPipeError, AssertionError)):
        assert talk(gateway, *[bytes([byte]) for byte in b"GET /livez HTTP/1.1\r\n" * 3], pause_s=0.1).startswith(
            b"HTTP/1.1 200"
        )


def test_a_gateway_without_brokers_and_database_is_unready(gateway):
    with httpx.Client(base_url="http://{}:{}".format(*gateway), trust_env=False) as client:
        assert client.get("/livez").json() == {"status": "alive"}
        ready = client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (503, "unready")
        assert {reason["part"] for reason in ready.json()["reasons"]} == {"namesrv", "metadata"}
        refused = client.get("/v1/topics", headers={"Authorization": "Bearer gk_x"})
        assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")
        assert client.get("/v1/topics").status_code == 401


def test_a_port_in_use_is_named_in_one_line(gateway, tmp_path):
    address = "{}:{}".format(*gateway)
    ended = subprocess.run(
        command(tmp_path, "--listen", address),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert ended.returncode == 1
    [line] = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
    assert address in line
    assert "in use" in line
    assert "--listen" in line


@pytest.mark.parametrize(
    ("options", "variables", "said"),
    [
        ((), {"GANTRY_GATEWAY_COLOUR": "red"}, "GANTRY_GATEWAY_COLOUR"),
        ((), {"GANTRY_GATEWAY_IN_FLIGHT_MAX": "0"}, "in_flight_max"),
        ((), {"GANTRY_GATEWAY_KEY_POLL_INTERVAL_MS": "60000"}, "key_poll_interval_ms"),
        (("--listen", "8080"), {}, "listen"),
        (("--listen", "203.0.113.1:0"), {}, "203.0.113.1"),
        (("--database", "mysql://x", "--listen", "127.0.0.1:0"), {}, "mysql"),
        (("--config", "/nowhere.toml"), {}, "/nowhere.toml"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(tmp_path, options, variables, said):
    ended = subprocess.run(
        command(tmp_path, *options), env=environment(variables), capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 1
    [line] = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
    assert said in line
    assert "Traceback" not in ended.stderr


def test_a_stop_answers_requests_in_flight():
    """A read that waits ends early, well within ten seconds, with an answer."""
    with Stack(brokers=1) as stack, stack.http() as http:
        assert http.put("/v1/topics/T", json={"read_queues": 1, "write_queues": 1}).status_code == 201
        pid = stack.pid_of("gateway-0")
        host, _, port = stack.facts["http"].removeprefix("http://").partition(":")
        head = f"host: x\r\nauthorization: Bearer {stack.facts['api_key']}\r\n\r\n"
        path = "/v1/topics/T/queues/broker-a/0/messages?wait=30s"
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\n{head}".encode())
            time.sleep(0.5)
            began = time.monotonic()
            subprocess.run(["kill", "-TERM", str(pid)], check=True)
            answer = b""
            while part := connection.recv(65536):
                answer += part
        assert time.monotonic() - began < 10
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"NO_NEW_MSG" in answer
