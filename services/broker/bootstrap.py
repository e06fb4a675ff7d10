"""Runs a broker process: addresses, store, listening, timers, and their order at start and stop.

Start: settings → store (lock, recovery) → tables → listen → register → ready.
Stop: unregister → refuse new requests, answer those in flight → offsets and tables → store (flush, checkpoint, no
abort file). After a bug nothing of this is done: recovery at the next start is what brings back a known state.
"""

import asyncio
import ipaddress
import os
import socket
from collections.abc import Collection
from typing import Any

from prometheus_client import REGISTRY

from gantry.model.address import Address, pack_host
from gantry.model.uniqkey import UniqueKeyMaker
from gantry.remoting.aio import Channel, Handler, RemotingClient, RemotingServer, ServerLimits
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.clock import Clock, SystemClock
from gantry.runtime.errors import StartupError
from gantry.runtime.files import FileSystem, OsFileSystem
from gantry.runtime.lifecycle import Lifecycle
from gantry.runtime.metrics import MetricsServer, choose_metrics_port, start_metrics_server
from gantry.runtime.rng import Rng
from gantry.runtime.telemetry import logger
from services.broker.assembly import Broker, Core, Doors
from services.broker.identity import BrokerIdentity
from services.broker.liveconfig import apply_kept
from services.broker.processors.send import TYPED_HEADERS, note_peer
from services.broker.registry.documents import load_kept_settings
from services.broker.settings import BrokerSettings
from services.broker.store.messagestore import MessageStore
from services.broker.timers import every, timers

log = logger("broker")

_ALL_ADDRESSES = frozenset({"", "0.0.0.0", "::"})


async def run(settings: BrokerSettings, given: Collection[str], lifecycle: Lifecycle) -> None:
    """Run a broker until it is told to stop.

    Args:
        settings: From file, environment and command line.
        given: The names that the command line gave; kept settings don't change these.
        lifecycle: The process's life.

    Raises:
        StartupError: A port or the store is taken, the disk refuses, a file can't be read.
    """
    files, clock = OsFileSystem(), SystemClock()
    kept = load_kept_settings(files, settings.store_path_root_dir)
    settings = apply_kept(settings, kept.settings, above=given)
    store_ip = await _store_ip(settings)
    scope = lifecycle.scope
    doors = Doors(
        files=files,
        clock=clock,
        rng=Rng(),
        loop=asyncio.get_running_loop(),
        run_in_thread=lambda work: scope.in_thread("config-files", work),
    )
    core = Core(settings, doors, lambda: store)
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    store = MessageStore(
        settings.store(),
        files=files,
        clock=clock,
        on_arrival=core.long_polling.arrived,
        on_flushed=core.commit.flushed_from_thread,
        on_flush_failed=core.commit.flush_failed_from_thread,
        physical_memory_bytes=memory_bytes,
        process_id=os.getpid(),
    )
    store.start()
    process = _Process(settings, lifecycle, clock)
    try:
        _refuse_hopeless(settings, store, files)
        # The number of the port has to be known before the first message: records and ids carry it.
        port = (await process.server.start(settings.bind_address, settings.listen_port)).port
        identity = _identity(settings, store_ip, port)
        store.store_host = pack_host(identity.store_host)
        broker = Broker(
            settings,
            identity,
            doors,
            core,
            store,
            client=process.client,
            unique_keys=UniqueKeyMaker(clock, store_ip, os.getpid(), doors.rng.below(1 << 32)),
            physical_memory_bytes=memory_bytes,
        )
        await process.open(broker)
    except StartupError:
        await process.close()
        store.stop()
        raise
    await lifecycle.wait_for_stop()
    await process.drain()
    broker.save_offsets()
    try:
        broker.persistence.write_all()
    except OSError as error:
        log.warning("the latest topics, groups or offsets could not be saved", error=str(error))
    if not store.stop():
        log.warning("the store could not be closed in order; the next start recovers it")


class _Process:
    """The broker's sockets and tasks."""

    def __init__(self, settings: BrokerSettings, lifecycle: Lifecycle, clock: Clock) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._broker: Broker | None = None
        self._handlers: dict[int, Handler] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._metrics: MetricsServer | None = None
        self.client = RemotingClient(clock=clock, name="broker", on_channel_closed=self._namesrv_lost)
        self.server = RemotingServer(
            name=f"broker {settings.broker_name}",
            handlers=self._handlers,
            headers=TYPED_HEADERS,
            clock=clock,
            fallback=self._no_handler,
            limits=ServerLimits(
                idle_timeout_ms=settings.server_channel_max_idle_time_seconds * 1000,
                connections_max=settings.server_connections_max,
            ),
            tls=settings.tls(),
            on_connect=note_peer,
            on_close=self._disconnected,
            on_bug=self._bug,
        )

    async def open(self, broker: Broker) -> None:
        """Answer requests, register, say that the broker is ready. Raises StartupError."""
        settings = self._settings
        self._broker = broker
        self._handlers.update(broker.handlers)
        facts: dict[str, Any] = {"address": broker.identity.address, "broker": broker.identity.name}
        fast_port = settings.fast_port()
        if fast_port is not None:
            facts["fast_address"] = str(await self.server.start(settings.bind_address, fast_port))
        metrics_port = choose_metrics_port(settings.metrics_port, listen_port=settings.listen_port)
        if metrics_port is not None:
            REGISTRY.register(broker.collector(self.server.counters))
            self._metrics = start_metrics_server(settings.metrics_host, metrics_port)
            facts["metrics"] = f"{self._metrics.host}:{self._metrics.port}"
        _warn_if_open(settings)
        spawn = self._lifecycle.scope.spawn
        self._tasks += [spawn(name, every(interval_ms, work)) for name, interval_ms, work in timers(broker)]
        self._tasks.append(spawn("config-files", broker.persistence.run()))
        for number, address in enumerate(broker.registration.addresses):
            self._tasks.append(spawn(f"registration-{number}", broker.registration.keep(address)))
        await broker.registration.first_round()
        self._lifecycle.ready(facts)

    async def drain(self) -> None:
        """Stop in order: no new clients, no new requests, an answer to everybody, no timers."""
        broker = self._broker
        assert broker is not None, "opened first"
        await broker.registration.unregister_all()

        async def answer_held() -> None:
            # By now new requests are refused, so what is answered here does not come back.
            broker.core.long_polling.resume_all()

        await asyncio.gather(self.server.stop(drain_ms=self._settings.drain_timeout_ms), answer_held())
        await self.close()

    async def close(self) -> None:
        """Close sockets and end the tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.server.stop(drain_ms=0)
        await self.client.close()
        if self._metrics is not None:
            await self._lifecycle.scope.in_thread("metrics", self._metrics.stop)

    def _disconnected(self, channel: Channel) -> None:
        if self._broker is not None:
            self._broker.disconnected(channel)

    def _namesrv_lost(self, address: str, channel: Channel) -> None:
        if self._broker is not None:
            self._broker.registration.connection_lost(address)

    def _no_handler(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        if self._broker is None:
            return RemotingCommand.response_to(
                request, ResponseCode.SERVICE_NOT_AVAILABLE, remark="the broker is starting"
            )
        self.server.counters.unsupported_requests += 1
        return RemotingCommand.response_to(
            request,
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            remark=f" request type {request.code} not supported",
        )

    def _bug(self, error: AssertionError) -> None:
        """End the process: state that contradicts itself must not go on answering, and recovery knows a way back."""

        async def fail() -> None:
            raise error

        self._lifecycle.scope.spawn("bug", fail())


def _identity(settings: BrokerSettings, store_ip: str, port: int) -> BrokerIdentity:
    host = _told_host(settings)
    return BrokerIdentity(
        cluster=settings.broker_cluster_name,
        name=settings.broker_name,
        broker_id=settings.broker_id,
        address=str(Address(host, port)),
        ha_address=str(Address(host, settings.ha_listen_port or port + 1)),
        store_host=Address(store_ip, port),
        region_id=settings.region_id,
        trace_on=settings.trace_on,
    )


def _told_host(settings: BrokerSettings) -> str:
    return (settings.broker_ip1 or settings.bind_address).removeprefix("[").removesuffix("]")


async def _store_ip(settings: BrokerSettings) -> str:
    """Return the IP address of what others are told, as records carry it.

    An IPv4 one where there is one: RocketMQ's clients before 4.6 can't read records with any other.

    Raises:
        StartupError: There is none, or nobody said what to tell others.
    """
    host = _told_host(settings)
    if host in _ALL_ADDRESSES:
        raise StartupError(
            f"listening on {host or 'all addresses'}: say with --advertise which address clients reach this broker at"
        )
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise StartupError(
            f"the advertised host {host} has no address ({error.strerror or error}); give another with --advertise"
        ) from None
    v4 = [address for family, _, _, _, address in found if family == socket.AF_INET]
    return str((v4 or [found[0][4]])[0][0]).partition("%")[0]


def _refuse_hopeless(settings: BrokerSettings, store: MessageStore, files: FileSystem) -> None:
    """Refuse to start a new store that could not take a message.

    A store that holds messages starts on a full disk too: they can still be read, and reading them is how the disk
    gets room again. Sends are refused until then, with the reason.

    Raises:
        StartupError: The disk has no room for the first file, or is above the watermark.
    """
    state, root = store.state(), settings.store_path_root_dir
    if state.max_physical_offset > state.min_physical_offset:
        if not state.writable:
            log.warning("the store takes no messages now", reason=state.reason)
        return
    usable, needed = files.disk_usage(root).usable, settings.mapped_file_size_commit_log
    reason = state.reason
    if state.writable and usable < needed:
        reason = f"its first file takes {needed} bytes and the disk has {usable} left"
    if reason:
        raise StartupError(f"the store {root} can't take a message: {reason}; free space or choose another folder")


def _warn_if_open(settings: BrokerSettings) -> None:
    host = settings.bind_address
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if not is_loopback and settings.tls() is None:
        log.warning("listening beyond this machine without TLS: whoever reaches the port may send and read", host=host)
