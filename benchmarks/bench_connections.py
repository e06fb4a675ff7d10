"""Benchmarks idle connections: their cost in memory and CPU for the broker, and the effect of their end on others.

There are two kinds: bare connections, and connections of clients. Each client has sent one heart-beat, as a producer
and as a consumer that subscribes to a topic of its group; ten consumers form one group. Then all connections are closed
at once, as when a machine with many clients dies. Requests on one more connection show how long the broker does not
answer meanwhile.
"""

import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from benchmarks import frames
from benchmarks.report import Row
from benchmarks.stack import SMALL_FILES, Service, address_of, anonymous_mib, broker_alone, cpu_s, descriptors, scratch
from gantry.model.group import SubscriptionData
from gantry.remoting.bodies.heartbeat import ConsumerData, HeartbeatData
from gantry.remoting.codes import RequestCode

CONNECTIONS = 10_000
MEMORY_MIB_MAX = 100.0
GROUP_MEMBERS = 10
IDLE_S = 10.0
TIMEOUT_S = 60.0
_LENGTH = struct.Struct(">I")


def bare(number: int) -> bytes:
    """Return the first request of a bare connection, which sends nothing."""
    return b""


def heart_beat(number: int) -> bytes:
    """Return the first request of a client."""
    group = number // GROUP_MEMBERS
    subscriptions = tuple(
        SubscriptionData(topic=topic, sub_version=1_795_255_510_791)
        for topic in (f"Topic{group}", f"%RETRY%GID_idle_{group}")
    )
    data = HeartbeatData(
        client_id=f"10.0.{number >> 8}.{number & 255}@{number}#1795255510791000",
        producer_groups=(f"PID_idle_{group}",),
        consumers=(ConsumerData(f"GID_idle_{group}", subscriptions=subscriptions),),
    )
    return frames.frame(RequestCode.HEART_BEAT, {}, number, data.encode())


KINDS: dict[str, Callable[[int], bytes]] = {"bare": bare, "clients'": heart_beat}


def run(*, tiny: bool = False) -> Iterator[Row]:
    """Run the benchmark."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        for name, make_hello in KINDS.items():
            yield from measure(name, make_hello, 50 if tiny else CONNECTIONS, idle_s=0.2 if tiny else IDLE_S)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def measure(name: str, make_hello: Callable[[int], bytes], count: int, *, idle_s: float) -> Iterator[Row]:
    """Measure one kind of connections, with a new broker."""
    with scratch(f"connections-{len(name)}") as folder:
        # The probe needs one more connection.
        environment = SMALL_FILES | {"GANTRY_BROKER_SERVER_CONNECTIONS_MAX": str(count + 1)}
        broker = broker_alone(folder, environment)
        try:
            broker.start()
            with ExitStack() as stack:
                yield from _measure(name, broker, make_hello, count, stack, idle_s=idle_s)
        finally:
            broker.kill()


def _measure(
    name: str, broker: Service, make_hello: Callable[[int], bytes], count: int, stack: ExitStack, *, idle_s: float
) -> Iterator[Row]:
    address, kind = address_of(broker.facts), f"{count:,} connections, {name}"
    probe = stack.enter_context(_connected(address))
    alone = _longest_answer_ms(probe, 50)
    before_mib, before_ms = anonymous_mib(broker.pid), _cpu_ms_per_s(broker.pid, idle_s)
    before_fds = descriptors(broker.pid)
    opened = []
    for number in range(count):
        connection = stack.enter_context(_connected(address))
        opened.append(connection)
        if hello := make_hello(number):
            _request(connection, hello)
    _wait_for_descriptors(broker.pid, before_fds + count)
    grown_mib = anonymous_mib(broker.pid) - before_mib
    reached = grown_mib <= MEMORY_MIB_MAX
    yield Row(f"{kind}: memory", grown_mib, "MiB", "", None, f"≤ {MEMORY_MIB_MAX:.0f} MiB", reached)
    busy_ms = _cpu_ms_per_s(broker.pid, idle_s)
    yield Row(f"{kind}: CPU while idle", busy_ms, "ms/s", "no connections", before_ms)
    for connection in opened:
        connection.close()
    longest = 0.0
    while descriptors(broker.pid) > before_fds:
        longest = max(longest, _longest_answer_ms(probe, 1))
    yield Row(f"{kind}: longest answer while they close", max(longest, alone), "ms", "before", alone)


def _connected(address: tuple[str, int]) -> socket.socket:
    return socket.create_connection(address, TIMEOUT_S)


def _request(connection: socket.socket, request: bytes) -> None:
    """Send a request and wait for a complete answer; other frames from the broker may come before it."""
    connection.sendall(request)
    data = connection.recv(65_536)
    while len(data) < 4 or len(data) < 4 + _LENGTH.unpack_from(data)[0]:
        more = connection.recv(65_536)
        if not more:
            raise ConnectionError("the broker closed the connection")
        data += more


def _longest_answer_ms(probe: socket.socket, count: int) -> float:
    request = frames.frame(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {}, 1)
    longest = 0.0
    for _ in range(count):
        began = time.perf_counter()
        _request(probe, request)
        longest = max(longest, time.perf_counter() - began)
    return longest * 1000


def _cpu_ms_per_s(pid: int, seconds: float) -> float:
    before, began = cpu_s(pid), time.perf_counter()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.perf_counter() - began) * 1000


def _wait_for_descriptors(pid: int, count: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while descriptors(pid) < count:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the broker has {descriptors(pid)} of {count} descriptors open")
        time.sleep(0.02)
