"""Request bodies: the share of the memory that one key or address may fill with them, complete or not."""

import asyncio
import contextlib
import json

import pytest

from services.gateway.app import make_application
from services.gateway.asgi.answer import json_answer
from services.gateway.asgi.operation import Operation
from services.gateway.auth.keyring import KeyRecord, KeyRing, digest_of
from services.gateway.bodies import PROGRESS_BYTES, PROGRESS_MS, SMALL_BYTES
from services.gateway.errors import ProblemError
from services.gateway.limits import Limits
from services.gateway.metrics import GatewayMetrics
from services.gateway.schemas.rights import ALL_RIGHTS
from services.gateway.settings import REQUEST_BYTES_MAX, GatewaySettings
from tests.support.callers import callers_of
from tests.support.virtualtime import FakeClock
from tests.unit.services.gateway.test_unsent import status_of
from tests.unit.services.gateway.wires import House, settle

LARGE = REQUEST_BYTES_MAX


async def take(call):
    return json_answer({"bytes": len(await call.read_body())})


class Gateway:
    """A gateway's HTTP application behind connections without sockets, with the default limits."""

    def __init__(self, **settings):
        settings = GatewaySettings(**settings)
        settings.check()
        self.clock = FakeClock()
        self.limits = Limits(settings, self.clock)
        keys = KeyRing()
        keys.replace([KeyRecord(f"key-{name}", digest_of(name), name, ALL_RIGHTS) for name in "abcdefg"])
        self.may_end = asyncio.Event()

        async def wait(call):
            await self.may_end.wait()
            return json_answer({})

        front = make_application(
            [Operation("POST", "/take", take, is_send=True), Operation("GET", "/wait", wait)],
            callers_of(keys, self.clock),
            GatewayMetrics(),
            clock=self.clock,
            limits=self.limits,
            access_log=False,
            is_stopping=lambda: False,
        )
        self.house = House(front)
        self.house.admission.bodies = self.limits.bodies

    @property
    def quota(self):
        return self.limits.bodies.by_key

    async def send(self, key, size, *, of=None, before=b""):
        """Send `size` bytes of a body of `of` bytes, in pieces as they arrive from sockets."""
        connection, wire = self.house.connect()
        of = size if of is None else of
        head = f"POST /take HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: {of}\r\n\r\n"
        connection.data_received(before + head.encode())
        await settle()
        while size and not wire.writes:
            piece = min(size, 256_000)
            connection.data_received(bytes(piece))
            await settle()
            size -= piece
        return connection, wire

    async def stall(self, key, size=LARGE - 1, of=LARGE):
        return await self.send(key, size, of=of)

    async def status(self, key, size):
        _, wire = await self.send(key, size)
        return status_of(wire)


def problem_in(wire):
    return json.loads(wire.writes[0].partition(b"\r\n\r\n")[2])


async def test_endless_bodies_fill_the_share_of_their_key_only():
    gateway = Gateway()
    wires = [wire for _, wire in [await gateway.stall("a") for _ in range(33)]]
    refused = [wire for wire in wires if wire.writes]
    assert gateway.quota.held_by("key-a") <= gateway.quota.each_max == gateway.quota.total_max // 4
    assert len(refused) == 31
    problem = problem_in(refused[0])
    assert (problem["status"], problem["outcome"], problem["retryable"]) == (429, "not_stored", True)
    assert b"\r\nretry-after: " in refused[0].writes[0].lower()
    for size in (100, 70_000, 1_000_000, LARGE):
        assert await gateway.status("b", size) == 200
    assert gateway.quota.held_by("key-b") == 0


async def test_keys_that_use_the_whole_budget_leave_room_for_small_bodies():
    gateway = Gateway()
    for key in "abcd":
        await gateway.stall(key)
        await gateway.stall(key, size=6 << 20)
    assert await gateway.status("e", LARGE) == 503
    pieces = [await gateway.stall("e", size=SMALL_BYTES - 1, of=SMALL_BYTES) for _ in range(20)]
    for connection, wire in pieces:
        assert not wire.writes
        connection.data_received(b"x")
        await settle()
        assert status_of(wire) == 200


async def test_bodies_without_progress_are_ended_for_others():
    gateway = Gateway()
    stalled = [await gateway.stall(key) for key in "aabbccdd"]
    assert await gateway.status("e", LARGE) == 503, "they have just come"
    gateway.clock.advance(PROGRESS_MS)
    assert await gateway.status("e", LARGE) == 200
    ended = [wire for _, wire in stalled if wire.writes]
    assert ended
    assert len(ended) <= 2
    problem = problem_in(ended[0])
    assert (problem["status"], problem["outcome"], problem["retryable"]) == (408, "not_stored", True)
    assert ended[0].is_ended


async def test_a_body_that_makes_progress_is_not_ended():
    gateway = Gateway()
    lively = [await gateway.stall(key, size=13 << 19) for key in "aabbccdd"]
    gateway.clock.advance(PROGRESS_MS - 1)
    for connection, _ in lively:
        connection.data_received(bytes(PROGRESS_BYTES))
    await settle()
    gateway.clock.advance(PROGRESS_MS - 1)
    assert await gateway.status("e", LARGE) == 503
    assert not any(wire.writes for _, wire in lively)


async def test_a_trickle_of_bytes_is_no_progress():
    gateway = Gateway()
    trickling = [await gateway.stall(key, size=13 << 19) for key in "aabbccdd"]
    for _ in range(4):
        gateway.clock.advance(PROGRESS_MS // 4)
        for connection, _ in trickling:
            connection.data_received(b"x" * 100)
        await settle()
    assert await gateway.status("e", LARGE) == 200


async def test_a_key_with_many_bodies_does_not_displace_a_key_with_few():
    gateway = Gateway()
    _, small = await gateway.stall("e", size=SMALL_BYTES * 2)
    gateway.clock.advance(PROGRESS_MS)
    for key in "abcd":
        for _ in range(3):
            await gateway.stall(key)
    assert not small.writes


async def test_a_key_with_hanging_bodies_can_continue():
    gateway = Gateway()
    for _ in range(2):
        await gateway.stall("a")
    assert await gateway.status("a", 70_000) == 429
    gateway.clock.advance(PROGRESS_MS)
    assert await gateway.status("a", 70_000) == 200


async def test_a_complete_body_is_not_ended():
    gateway = Gateway()
    connection, wire = await gateway.stall("a")
    for key in "abbccdd":
        await gateway.stall(key)
    gateway.clock.advance(PROGRESS_MS)
    connection.data_received(b"x")  # The body is complete for the connection; its task does not know yet.
    assert connection.body_since is None
    for key in ("key-e", "key-e", "key-f", "key-f", "key-g", "key-g"):
        with contextlib.suppress(ProblemError):
            gateway.limits.bodies.of_key(key).grow(LARGE)
    await settle()
    assert status_of(wire) == 200


async def test_disconnected_callers_leave_nothing_behind():
    gateway = Gateway()
    for connection, _ in [await gateway.stall("a") for _ in range(5)]:
        connection.connection_lost(None)
    await settle()
    assert gateway.quota.used == gateway.quota.holders == 0


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1"])
async def test_bodies_of_pipelined_requests_count_with_the_address(host):
    gateway = Gateway()
    quota = gateway.limits.bodies.by_address
    wait = b"GET /wait HTTP/1.1\r\nhost: x\r\nauthorization: Bearer a\r\n\r\n"
    body = b"POST /take HTTP/1.1\r\nhost: x\r\nauthorization: Bearer a\r\ncontent-length: 200000\r\n\r\n" + bytes(
        200_000
    )
    wires = []
    for _ in range(20):
        connection, wire = gateway.house.connect(host)
        connection.data_received(wait + body)
        wires.append(wire)
    await settle()
    assert 0 < quota.used <= quota.each_max
    gateway.may_end.set()
    for _ in range(10):
        await settle()
    told = [[status_of(wire, number) for number in range(len(wire.writes))] for wire in wires]
    assert told == [[200, 200]] * 10 + [[200, 429]] * 10
    assert quota.used == quota.holders == 0
