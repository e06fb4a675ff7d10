"""Runs a broker process: creates its parts, listens, starts the timers, and stops all of it in order.

Start: settings → store (lock, recovery) → tables → listen → register → ready.
Stop: unregister → refuse new requests and reply to those in flight → save offsets and tables → close the store (flush,
write the checkpoint, remove the abort file). After a bug the process skips all of this: recovery at the next start
restores a known state. A broker that has lost its store (store/ownership.py) replies to the requests in flight, writes
nothing, and ends with exit code 3.
"""

import asyncio
import dataclasses
import os
from collections.abc import Collection
from typing import Any, Final

from prometheus_client import REGISTRY

from gantry.model.address import Address, pack_host
from gantry.model.uniqkey import UniqueKeyGenerator
from gantry.remoting.aio import Channel, Handler, RemotingClient, RemotingServer, ServerLimits
from gantry.remoting.codes import ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.clock import Clock, SystemClock
from gantry.runtime.descriptors import PROCESS_DESCRIPTORS, DescriptorBudget, share_descriptors
from gantry.runtime.environment import raise_descriptor_limit
from gantry.runtime.errors import ResourceLostError, StartupError, describe_os_error
from gantry.runtime.files import FileSystem
from gantry.runtime.hostport import is_loopback
from gantry.runtime.lifecycle import Lifecycle
from gantry.runtime.metrics import MetricsServer, choose_metrics_port, start_metrics_server
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.runtime.rng import Rng
from gantry.runtime.telemetry import logger
from gantry.runtime.workers import ThreadWorker
from services.broker.assembly import Broker
from services.broker.coldreader import READERS_MAX
from services.broker.core import Core, Runtime
from services.broker.features import build_handlers
from services.broker.identity import BrokerIdentity
from services.broker.liveconfig import apply_kept
from services.broker.processors.send import TYPED_HEADERS
from services.broker.processors.sendparts import note_peer
from services.broker.registry.documents import load_kept_settings
from services.broker.settings import BrokerSettings
from services.broker.startchecks import NextStart, advertised_host, no_room_reason, store_ip
from services.broker.store.log.commitlog import log_descriptors
from services.broker.store.messagestore import MessageStore
from services.broker.store.results import StoreState
from services.broker.timers import every, timers

log = logger("broker")

CLIENT_DESCRIPTORS_EACH: Final = 2
"""Descriptors for each name server: one for the connection and one for the connection that replaces it."""


async def run(settings: BrokerSettings, given: Collection[str], lifecycle: Lifecycle) -> None:
    """Run a broker until the process is told to stop.

    Args:
        settings: Settings from the file, the environment and the command line.
        given: Names of the settings that the command line gave; kept settings do not override them.
        lifecycle: Lifecycle of the process.

    Raises:
        StartupError: A port or the store is already in use, the disk refuses a write, or a file can't be read.
        ResourceLostError: Another broker has taken the store, or the store's folder is gone.
    """
    files, clock = OsFileSystem(), SystemClock()
    kept = load_kept_settings(files, settings.store_path_root_dir)
    base, settings = settings, apply_kept(settings, kept.settings, above=given)
    shares = _descriptors(settings)
    settings = dataclasses.replace(settings, server_connections_max=shares.connections)
    record_ip = await store_ip(settings)
    runtime = _runtime(clock, lifecycle)
    core = Core(settings, runtime, lambda: store)
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    store = MessageStore(
        settings,
        files=files,
        clock=clock,
        on_arrival=core.long_polling.arrived,
        on_flushed=core.waiters.flushed_from_thread,
        on_flush_failed=core.waiters.flush_failed_from_thread,
        on_lost=lambda reason: _stop_from_thread(runtime.loop, lifecycle),
        physical_memory_bytes=memory_bytes,
        process_id=os.getpid(),
        open_files_max=shares.files,
    )
    store.start()
    process = _Process(settings, lifecycle, clock)
    try:
        _refuse_full_store(settings, store.state(), files)
        # The port must be known before the first message: records and message ids contain it.
        port = (await process.listen(settings.listen_port)).port
        identity = _identity(settings, record_ip, port)
        store.store_host = pack_host(identity.store_host)
        broker = Broker(
            settings,
            identity,
            runtime,
            core,
            store,
            client=process.client,
            build_handlers=build_handlers,
            unique_keys=UniqueKeyGenerator(clock, record_ip, os.getpid(), runtime.rng.below(1 << 32)),
            physical_memory_bytes=memory_bytes,
            next_start=NextStart(base, given, files, store.state, lambda: process.bound),
        )
        await process.open(broker)
    except StartupError:
        await process.close()
        await core.cold.close()
        store.stop()
        raise
    await lifecycle.wait_for_stop()
    await process.drain()
    await core.cold.close()
    _save_and_close(broker, store)


def _runtime(clock: Clock, lifecycle: Lifecycle) -> Runtime:
    return Runtime(
        clock=clock,
        rng=Rng(),
        loop=asyncio.get_running_loop(),
        run_in_thread=lambda work: lifecycle.scope.in_thread("config-files", work),
        readers=[ThreadWorker(f"store-read-{number}") for number in range(READERS_MAX)],
    )


def _stop_from_thread(loop: asyncio.AbstractEventLoop, lifecycle: Lifecycle) -> None:
    try:
        loop.call_soon_threadsafe(lifecycle.stopping.set)
    except RuntimeError:
        return  # The loop is closed, so the process is already ending.


def _save_and_close(broker: Broker, store: MessageStore) -> None:
    if store.lost_reason() is None:
        broker.finish()
        try:
            broker.save_all()
        except OSError as error:
            log.warning(
                "the latest topics, groups or offsets can't be saved; the next start has older ones",
                reason=describe_os_error(error),
            )
    is_clean = store.stop()
    lost_reason = store.lost_reason()
    if lost_reason is not None:
        raise ResourceLostError(f"{lost_reason}; this broker has written nothing since it noticed, and ends")
    if not is_clean:
        log.warning("the store could not be closed in order; the next start recovers it")


class _Process:
    """The sockets and tasks of the broker process."""

    def __init__(self, settings: BrokerSettings, lifecycle: Lifecycle, clock: Clock) -> None:
        self._settings = settings
        self._lifecycle = lifecycle
        self._broker: Broker | None = None
        self._handlers: dict[int, Handler] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._metrics: MetricsServer | None = None
        self.bound: set[tuple[str, int]] = set()
        """The hosts (as written in the settings) and ports that the process listens on."""
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
            on_bug=self._end_process,
        )

    async def listen(self, port: int) -> Address:
        """Listen on one more port (0 means any free port) and return the address. Raises StartupError."""
        host = self._settings.bind_address
        address = await self.server.start(host, port)
        self.bound.add((host, address.port))
        return address

    async def open(self, broker: Broker) -> None:
        """Start to answer requests, register with the name servers, and report ready. Raises StartupError."""
        settings = self._settings
        self._broker = broker
        self._handlers.update(broker.handlers)
        facts: dict[str, Any] = {"address": broker.identity.address, "broker": broker.identity.name}
        fast_port = settings.fast_port()
        if fast_port is not None:
            facts["fast_address"] = str(await self.listen(fast_port))
        metrics_port = choose_metrics_port(settings.metrics_port, listen_port=settings.listen_port)
        if metrics_port is not None:
            REGISTRY.register(broker.collector(self.server.counters))
            self._metrics = start_metrics_server(settings.metrics_host, metrics_port)
            facts["metrics"] = f"{self._metrics.host}:{self._metrics.port}"
            self.bound.add((self._metrics.host, self._metrics.port))
        _warn_if_open(settings)
        spawn = self._lifecycle.scope.spawn
        self._tasks += [spawn(name, every(interval_ms, work)) for name, interval_ms, work in timers(broker)]
        self._tasks.append(spawn("config-files", broker.persistence.run()))
        for number, address in enumerate(broker.registration.addresses):
            self._tasks.append(spawn(f"registration-{number}", broker.registration.maintain(address)))
        await broker.registration.first_round()
        self._lifecycle.ready(facts)

    async def drain(self) -> None:
        """Stop in order: unregister, refuse new requests, reply to all that wait, end the timers."""
        broker = self._broker
        assert broker is not None, "opened first"
        if broker.store.lost_reason() is None:
            # A broker that has lost its store does not unregister: another broker may be registered under its name.
            # Name servers remove this one when its connection closes.
            await broker.registration.unregister_all()

        async def answer_held() -> None:
            # The server refuses new requests by now, so a client that gets this reply can't start another long poll.
            broker.core.long_polling.resume_all()

        await asyncio.gather(self.server.stop(drain_ms=self._settings.drain_timeout_ms), answer_held())
        await self.close()

    async def close(self) -> None:
        """Close the sockets and end the tasks."""
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

    def _end_process(self, error: AssertionError) -> None:
        """End the process: a broker whose state contradicts itself must not go on. Recovery restores a known state."""

        async def fail() -> None:
            raise error

        self._lifecycle.scope.spawn("bug", fail())


def _descriptors(settings: BrokerSettings) -> DescriptorBudget:
    """Divide the file descriptors of this process among their uses. Raises StartupError if there are too few."""
    clients = CLIENT_DESCRIPTORS_EACH * len(settings.name_servers())
    shares = share_descriptors(
        raise_descriptor_limit(),
        process=PROCESS_DESCRIPTORS + clients + log_descriptors(settings.mapped_file_size_commit_log) + READERS_MAX,
        connections_max=settings.server_connections_max,
        has_files=True,
    )
    log.info("file descriptors", **shares._asdict())
    if shares.connections < settings.server_connections_max:
        log.warning(
            "the limit of open files (ulimit -n) allows fewer connections than the settings",
            limit=shares.limit,
            server_connections_max=settings.server_connections_max,
            connections=shares.connections,
        )
    return shares


def _identity(settings: BrokerSettings, record_ip: str, port: int) -> BrokerIdentity:
    host = advertised_host(settings)
    return BrokerIdentity(
        cluster=settings.broker_cluster_name,
        name=settings.broker_name,
        broker_id=settings.broker_id,
        address=str(Address(host, port)),
        ha_address=str(Address(host, settings.ha_listen_port or port + 1)),
        store_host=Address(record_ip, port),
        region_id=settings.region_id,
        trace_on=settings.trace_on,
    )


def _refuse_full_store(settings: BrokerSettings, state: StoreState, files: FileSystem) -> None:
    """Refuse to start on a new store that can't take a message. Raises StartupError."""
    reason = no_room_reason(settings, state, files)
    if reason is not None:
        root = settings.store_path_root_dir
        raise StartupError(f"the store {root} can't take a message: {reason}; free space or choose another folder")
    if not state.writable:
        log.warning("the store takes no messages now", reason=state.reason)


def _warn_if_open(settings: BrokerSettings) -> None:
    host = settings.bind_address
    if not is_loopback(host) and settings.tls() is None:
        log.warning(
            "listening beyond this machine without TLS: every host that reaches the port can send and read", host=host
        )
