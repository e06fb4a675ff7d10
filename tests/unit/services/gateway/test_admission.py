"""Connections at the limit: idle connections make room, and one address leaves room to others."""

import asyncio
import gc
import json
import weakref

import pytest

from services.gateway.addresses import address_group
from services.gateway.admission import SCAN_INTERVAL_S, TURNED_AWAY_MAX
from tests.unit.services.gateway.wires import GET, House, Wire, echo, settle


async def test_a_new_connection_replaces_the_oldest_without_a_request():
    house = House(echo, connections_max=3)
    (asked, asked_wire), (_, first), (_, second) = [house.connect() for _ in range(3)]
    asked.data_received(GET)
    await settle()
    connection, wire = house.connect()
    connection.data_received(GET)
    await settle()
    assert (first.is_closing(), second.is_closing(), asked_wire.is_closing()) == (True, False, False)
    assert wire.writes[0].startswith(b"HTTP/1.1 200")
    assert house.metrics.refused_connections == {"made_room": 1}


async def test_idle_connections_are_closed_next_and_busy_ones_stay():
    async def wait(scope, receive, send):
        await receive()
        await receive()

    house = House(wait, connections_max=2)
    connections = [house.connect() for _ in range(2)]
    for connection, _ in connections:
        connection.data_received(GET)
    await settle()
    _, wire = house.connect()
    assert wire.writes[0].startswith(b"HTTP/1.1 503")
    assert wire.is_ended
    problem = json.loads(wire.writes[0].partition(b"\r\n\r\n")[2])
    assert (problem["outcome"], problem["retryable"]) == ("not_stored", True)
    assert not any(busy.is_closing() for _, busy in connections)
    assert house.metrics.refused_connections == {"connections": 1}
    for connection, _ in connections:
        connection.connection_lost(None)
    await settle()
    assert not house.connect()[1].writes


async def test_one_address_leaves_connections_to_others():
    house = House(echo, connections_max=10, connections_per_address_max=3)
    crowd: list[Wire] = []
    for _ in range(3):
        connection, wire = house.connect("10.0.0.1")
        connection.data_received(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n")
        crowd.append(wire)
    await settle()
    _, refused = house.connect("10.0.0.1")
    assert refused.writes[0].startswith(b"HTTP/1.1 503")
    assert not house.connect("10.0.0.2")[1].writes
    assert not any(wire.is_closing() for wire in crowd)
    assert house.metrics.refused_connections == {"address": 1}
    quota = house.limits.connections
    assert (quota.held_by("10.0.0.1"), quota.used, quota.refused_each) == (3, 4, 1)


async def test_connections_that_ended_are_not_kept():
    """The list of idle connections once held thousands of closed ones until a new connection needed a place."""
    house = House(echo, connections_max=20)
    connections = [house.connect()[0] for _ in range(20)]
    gone = [weakref.ref(connection) for connection in connections]
    house.connect()
    for connection in connections:
        connection.connection_lost(None)
    del connection, connections
    await settle()
    gc.collect()  # A wire and its connection refer to each other.
    assert any(reference() is not None for reference in gone), "the list serves for a second"
    house.sweeper.sweep(asyncio.get_running_loop().time() + SCAN_INTERVAL_S)
    gc.collect()
    assert not any(reference() is not None for reference in gone)


async def test_refused_callers_are_bounded_too():
    house = House(echo, connections_max=1)
    busy, _ = house.connect()
    busy.data_received(b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n")
    wires = [house.connect()[1] for _ in range(TURNED_AWAY_MAX + 1)]
    assert [wire.is_aborted for wire in wires] == [False] * TURNED_AWAY_MAX + [True]


@pytest.mark.parametrize(
    ("host", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("somewhere", "somewhere"),
    ],
)
def test_hosts_are_grouped_into_addresses(host, group):
    assert address_group(host) == group
