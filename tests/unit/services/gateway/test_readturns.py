"""Connections with much input are read in turn; all others are read whenever bytes arrive."""

import asyncio

from services.gateway.readturns import LARGE_READ_BYTES
from tests.unit.services.gateway.wires import House, connect, echo, settle

MANY = 20
BODY_BYTES = 64 * LARGE_READ_BYTES
HEAD = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % BODY_BYTES


async def take_all(scope, receive, send):
    """Read the whole body."""
    while (await receive())["more_body"]:
        pass


async def wait_for_ever(scope, receive, send):
    """Read nothing."""
    await asyncio.Event().wait()


async def test_only_a_few_of_many_busy_connections_are_read_in_each_turn():
    house = House(take_all)
    wires = []
    for _ in range(MANY):
        connection, wire = house.connect()
        connection.data_received(HEAD + bytes(LARGE_READ_BYTES))
        wires.append(wire)
    assert all(wire.is_paused for wire in wires)
    counts = []
    for _ in range(MANY):
        await asyncio.sleep(0)
        counts.append(sum(not wire.is_paused for wire in wires))
    assert counts[-1] == MANY
    assert max(after - before for before, after in zip([0, *counts], counts, strict=False)) <= 4
    assert [wire.is_paused for wire in wires] == sorted(wire.is_paused for wire in wires), "first come, first served"


async def test_small_requests_are_always_read():
    connection, wire = connect(echo)
    connection.data_received(HEAD + bytes(LARGE_READ_BYTES - len(HEAD) - 1))
    assert not wire.is_paused


async def test_a_connection_that_is_paused_for_another_reason_stays_so():
    connection, wire = connect(wait_for_ever)
    connection.data_received(HEAD + bytes(LARGE_READ_BYTES))
    connection.flow.pause_reading()
    await settle()
    assert wire.is_paused
    connection.flow.resume_reading()
    assert not wire.is_paused


async def test_resuming_a_connection_gives_it_no_extra_turn():
    connection, wire = connect(wait_for_ever)
    connection.data_received(HEAD + bytes(LARGE_READ_BYTES))
    connection.flow.pause_reading()
    connection.flow.resume_reading()
    assert wire.is_paused
    await settle()
    assert not wire.is_paused


async def test_a_closed_connection_is_skipped():
    connection, wire = connect(take_all)
    connection.data_received(HEAD + bytes(LARGE_READ_BYTES))
    wire.close()
    connection.connection_lost(None)
    await settle()
    assert wire.is_paused, "a closed transport is not used"


async def test_bytes_dropped_after_a_refusal_are_read_in_turn_too():
    connection, wire = connect(take_all)
    connection.data_received(b"CONNECT a:1 HTTP/1.1\r\nhost: x\r\n\r\n")
    assert not wire.is_paused
    connection.data_received(bytes(LARGE_READ_BYTES))
    assert wire.is_paused
    await settle()
    assert not wire.is_paused
