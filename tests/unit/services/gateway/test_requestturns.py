"""Simultaneous requests start in turn: one of each caller, then the next of each."""

import asyncio

import pytest

from services.gateway.auth.keyring import KeyRecord, digest_of
from services.gateway.schemas.rights import ALL_RIGHTS
from services.gateway.turns import PIECES_MAX
from tests.unit.services.gateway.wires import House, settle

MANY = 10 * PIECES_MAX


class Counted:
    """A server whose application records the caller and the turn of the loop for each request."""

    def __init__(self) -> None:
        self.turn = 0
        self.begun: list[tuple[int, str]] = []
        self.house = House(self.app)
        self.house.keys.replace([KeyRecord(f"key-{name}", digest_of(name), name, ALL_RIGHTS) for name in "ab"])
        self.connections = []

    async def app(self, scope, receive, send):
        self.begun.append((self.turn, scope["path"]))
        await receive()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    def ask(self, path, key=None, host="127.0.0.1"):
        connection, wire = self.house.connect(host)
        lines = "" if key is None else f"authorization: Bearer {key}\r\n"
        connection.data_received(f"GET {path} HTTP/1.1\r\nhost: x\r\n{lines}\r\n".encode())
        self.connections.append(connection)
        return connection, wire

    async def run(self):
        while self.house.limits.turns.waiting or self.turn == 0:
            await asyncio.sleep(0)
            self.turn += 1
        await settle()

    def turn_of(self, path):
        [turn] = [turn for turn, begun in self.begun if begun == path]
        return turn


@pytest.mark.parametrize(
    "neighbour",
    [{"key": "b"}, {"host": "127.0.0.2"}, {"key": "wrong", "host": "127.0.0.2"}],
    ids=["another key", "no key, another address", "a wrong key, another address"],
)
async def test_a_neighbour_starts_in_the_next_turn_whatever_came_before(neighbour):
    counted = Counted()
    for number in range(MANY):
        counted.ask(f"/{number}", key="a")
    counted.ask("/neighbour", **neighbour)
    await counted.run()
    assert counted.turn_of("/neighbour") <= 2
    assert len(counted.begun) == MANY + 1
    assert max(turn for turn, _ in counted.begun) >= MANY // PIECES_MAX - 1


async def test_wrong_keys_of_one_address_are_one_caller():
    counted = Counted()
    for number in range(MANY):
        counted.ask(f"/{number}", key=f"wrong-{number}")
    counted.ask("/neighbour", key="b")
    await counted.run()
    assert counted.turn_of("/neighbour") <= 2


@pytest.mark.parametrize("probe", ["/livez", "/readyz"])
async def test_probes_do_not_wait_for_requests_of_their_own_address(probe):
    counted = Counted()
    for number in range(MANY):
        counted.ask(f"/{number}")
    counted.ask(probe)
    await counted.run()
    assert counted.turn_of(probe) <= 2


async def test_a_caller_that_disconnects_while_waiting_takes_no_turn():
    counted = Counted()
    for number in range(MANY):
        counted.ask(f"/{number}", key="a")
    for connection in counted.connections[2 * PIECES_MAX :]:
        connection.connection_lost(None)
    counted.ask("/late", key="a")
    await counted.run()
    assert len(counted.begun) == 2 * PIECES_MAX + 1
    assert counted.turn_of("/late") <= 3


async def test_requests_of_one_connection_keep_their_order():
    counted = Counted()
    for number in range(2 * PIECES_MAX):
        counted.ask(f"/{number}", key="a")
    connection, wire = counted.house.connect()
    connection.data_received(b"".join(b"GET /own/%d HTTP/1.1\r\nhost: x\r\n\r\n" % number for number in range(9)))
    await counted.run()
    await settle()
    own = [path for _, path in counted.begun if path.startswith("/own/")]
    assert own == [f"/own/{number}" for number in range(9)]
    assert b"".join(wire.writes).count(b"HTTP/1.1 204") == 9


def shake_hands(counted, host="127.0.0.1"):
    connection, wire = counted.house.connect(host)
    connection.data_received(b"GET /x HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
    return connection, wire


async def test_handshakes_of_one_address_leave_turns_to_others():
    counted = Counted()
    handshakes = [shake_hands(counted) for _ in range(MANY)]
    assert sum(bool(wire.writes) for _, wire in handshakes) < PIECES_MAX
    _, other = shake_hands(counted, "127.0.0.2")
    counted.ask("/neighbour", key="b")
    for _ in range(2):
        await asyncio.sleep(0)
        counted.turn += 1
    assert other.writes
    assert not all(wire.writes for _, wire in handshakes)
    await counted.run()
    assert counted.turn_of("/neighbour") <= 2
    assert all(wire.writes[0].startswith(b"HTTP/1.1 400") for _, wire in handshakes)


async def test_a_queued_handshake_is_not_read_and_may_be_cancelled():
    counted = Counted()
    handshakes = [shake_hands(counted) for _ in range(MANY)]
    waiting = [(connection, wire) for connection, wire in handshakes if not wire.writes]
    assert all(wire.is_paused for _, wire in waiting)
    connection, gone = waiting.pop()
    gone.close()
    connection.connection_lost(None)
    await counted.run()
    assert not gone.writes
    assert all(wire.writes and not wire.is_paused for _, wire in waiting)
