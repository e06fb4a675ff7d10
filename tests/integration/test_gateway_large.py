"""Large bodies and large answers against a real stack: the resources of one key, and the effect on its neighbours."""

import asyncio
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.gateway.asgi.writing import ANSWER_BYTES_MAX
from tests.support.stack import Stack

MIB = 1024 * 1024
LARGE, NEIGHBOUR = "LARGE", "NEIGHBOUR"
# Each character takes six bytes in JSON.
BODY = b"\x01" * (4 * MIB)
MEMORY_MIB_MAX = 300
BROKER_CUTS_OFF = b"peer does not read its answers"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with Stack(brokers=1) as running:
        with running.http() as http:
            for topic in (LARGE, NEIGHBOUR):
                assert http.put(f"/v1/topics/{topic}", json={"read_queues": 1, "write_queues": 1}).status_code == 201
        yield running


@pytest.fixture(scope="module")
def keys(stack: Stack) -> dict[str, str]:
    rights = {
        LARGE: {"publish": [LARGE], "consume": {"topics": [LARGE], "groups": []}},
        NEIGHBOUR: {"publish": [NEIGHBOUR]},
    }
    with stack.http() as http:
        return {
            name: http.post("/v1/keys", json={"name": name, "rights": mine}).json()["key"]
            for name, mine in rights.items()
        }


@pytest.fixture(scope="module")
def stored(stack: Stack, keys: dict[str, str]) -> dict[str, Any]:
    """Return the last of some large messages with the same key."""
    answer = httpx.Response(0)
    with httpx.Client(base_url=stack.facts["http"], headers=bearer(keys[LARGE]), timeout=30) as http:
        for _ in range(5):
            headers = {"content-type": "text/plain", "gantry-keys": "large"}
            answer = http.post(f"/v1/topics/{LARGE}/messages", content=BODY, headers=headers)
            assert answer.status_code == 201
    told: dict[str, Any] = answer.json()
    return told


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def resident_mib(stack: Stack) -> float:
    status = Path(f"/proc/{stack.pid_of('gateway-0')}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def open_connection(stack: Stack) -> socket.socket:
    host, _, port = stack.facts["http"].removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)))
    connection.settimeout(30)
    return connection


def test_bodies_that_stop_one_byte_short_block_no_other_key(stack, keys):
    size = 8 * MIB
    head = (
        f"POST /v1/topics/{LARGE}/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {keys[LARGE]}\r\n"
        f"Content-Type: text/plain\r\nContent-Length: {size}\r\n\r\n"
    )
    with ExitStack() as connections:
        for _ in range(33):
            connection = connections.enter_context(open_connection(stack))
            connection.sendall(head.encode() + bytes(size - 1))
        with httpx.Client(base_url=stack.facts["http"], headers=bearer(keys[NEIGHBOUR]), timeout=30) as http:
            for count in (100, 70_000, 1_000_000, 4 * MIB):
                headers = {"content-type": "text/plain"}
                answer = http.post(f"/v1/topics/{NEIGHBOUR}/messages", content=b"y" * count, headers=headers)
                assert answer.status_code == 201, answer.text
        assert resident_mib(stack) <= MEMORY_MIB_MAX


async def test_readers_of_large_messages_do_not_cut_others_off(stack, keys, stored):
    said_before = logged(stack).count(BROKER_CUTS_OFF)
    paths = (f"/v1/messages/{stored['stored_id']}", f"/v1/topics/{LARGE}/messages?key=large&limit=1000")
    told: Counter[int] = Counter()

    async def leave_again(path: str) -> None:
        host, _, port = stack.facts["http"].removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {keys[LARGE]}\r\n\r\n".encode())
        await writer.drain()
        await asyncio.sleep(0.5)
        writer.transport.abort()

    async def read() -> None:
        for _ in range(2):
            await asyncio.gather(*(leave_again(path) for path in paths * 40))

    async with httpx.AsyncClient(
        base_url=stack.facts["http"], headers=bearer(keys[NEIGHBOUR]), timeout=30, trust_env=False
    ) as http:
        reading = asyncio.ensure_future(read())
        while not reading.done():
            answer = await http.post(f"/v1/topics/{NEIGHBOUR}/messages", json={"body": "x"})
            told[answer.status_code] += 1
        await reading
    assert told.keys() == {201}
    assert logged(stack).count(BROKER_CUTS_OFF) == said_before
    assert resident_mib(stack) <= MEMORY_MIB_MAX


def test_a_search_returns_as_many_large_messages_as_fit(stack, keys, stored):
    with httpx.Client(base_url=stack.facts["http"], headers=bearer(keys[LARGE]), timeout=60) as http:
        found = http.get(f"/v1/topics/{LARGE}/messages", params={"key": "large", "limit": 1000})
        assert found.status_code == 200
        [shown] = found.json()["items"]
        assert found.json()["truncated"] is True
        assert (shown["stored_id"], shown["body"]) == (stored["stored_id"], BODY.decode())
        assert len(found.content) > ANSWER_BYTES_MAX, "one message is shown whatever its size"
        by_id = http.get(f"/v1/messages/{stored['stored_id']}").json()
        assert by_id == shown


def logged(stack: Stack) -> bytes:
    return b"".join(path.read_bytes() for path in stack.directory.rglob("*.log")) + stack.output.read_bytes()
