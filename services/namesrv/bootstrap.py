"""Creates the parts of a name server from its settings, connects them, and runs the name server."""

import asyncio
from typing import Final

import msgspec
from prometheus_client import REGISTRY

from gantry.remoting.aio import RemotingClient, RemotingServer, ServerLimits
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import RemotingError
from gantry.runtime.clock import Clock, SystemClock
from gantry.runtime.descriptors import PROCESS_DESCRIPTORS, share_descriptors
from gantry.runtime.environment import raise_descriptor_limit
from gantry.runtime.errors import AlreadyLockedError, StartupError, describe_os_error
from gantry.runtime.files import FileLock, FileSystem, write_atomically
from gantry.runtime.hostport import is_loopback
from gantry.runtime.lifecycle import Lifecycle
from gantry.runtime.metrics import MetricsServer, choose_metrics_port, start_metrics_server
from gantry.runtime.osfilesystem import OsFileSystem
from gantry.runtime.tasks import TaskSet
from gantry.runtime.telemetry import logger
from services.namesrv.errors import RefusedError
from services.namesrv.kvconfig import KvConfig, load_table
from services.namesrv.metrics import NamesrvCollector
from services.namesrv.processor import Processor, Save
from services.namesrv.routetable import RouteTable
from services.namesrv.settings import CHANGEABLE, NamesrvSettings, apply_changes

log = logger("namesrv")

_NOTIFY_TIMEOUT_MS = 3_000
_CONNECTIONS_MAX: Final = 10_000
_NOTIFY_DESCRIPTORS: Final = 64
"""Number of descriptors for connections to brokers that are notified of a change."""


async def run(settings: NamesrvSettings, lifecycle: Lifecycle) -> None:
    """Run a name server until the process is told to stop.

    Raises:
        StartupError: A port is in use, or a file or folder can't be used.
    """
    files = OsFileSystem()
    _make_folder(files, settings.data)
    _make_folder(files, settings.kv_config_file.rpartition("/")[0] or ".")
    lock = _lock_folder(files, settings.data)
    try:
        await _run(settings, lifecycle, files)
    finally:
        lock.release()


async def _run(settings: NamesrvSettings, lifecycle: Lifecycle, files: FileSystem) -> None:
    shares = share_descriptors(
        raise_descriptor_limit(),
        process=PROCESS_DESCRIPTORS + _NOTIFY_DESCRIPTORS,
        connections_max=_CONNECTIONS_MAX,
    )
    log.info("file descriptors", **shares._asdict())
    clock = SystemClock()
    changes = _load_changes(files, settings.changes_file)
    try:
        settings = apply_changes(settings, changes)
    except RefusedError as error:
        raise StartupError(f"{settings.changes_file}: {error}; correct or remove the file") from None

    client = RemotingClient(clock=clock, name="namesrv")
    tasks = TaskSet("namesrv.notify", lambda error: log.error("a notification task failed", exc_info=error))
    processor = Processor(
        settings,
        RouteTable(brokers_max=settings.brokers_max, topics_max=settings.topics_max),
        KvConfig(load_table(files, settings.kv_config_file), _saver(lifecycle, files, settings.kv_config_file)),
        clock=clock,
        notify=lambda address, command: _notify(tasks, client, address, command),
        save_changes=_saver(lifecycle, files, settings.changes_file),
        changes=changes,
    )
    server = _server(settings, processor, clock, lifecycle, connections_max=shares.connections)
    host, port = settings.listen_address
    address = await server.start(host, port)
    metrics: MetricsServer | None = None
    try:
        metrics = _start_metrics(settings, processor, server)
        _warn_if_open(settings, host)
        lifecycle.scope.spawn("scan", _scan(processor))
        facts: dict[str, object] = {"address": str(address)}
        if metrics is not None:
            facts["metrics"] = f"{metrics.host}:{metrics.port}"
        lifecycle.ready(facts)
        await lifecycle.wait_for_stop()
    finally:
        await server.stop(drain_ms=settings.drain_timeout_ms)
        await tasks.cancel()
        await client.close()
        if metrics is not None:
            await lifecycle.scope.in_thread("metrics", metrics.stop)


def _server(
    settings: NamesrvSettings, processor: Processor, clock: Clock, lifecycle: Lifecycle, *, connections_max: int
) -> RemotingServer:
    async def fail(error: AssertionError) -> None:
        raise error

    def on_bug(error: AssertionError) -> None:
        # A server whose tables contradict themselves must not go on: the process ends, and brokers register again.
        lifecycle.scope.spawn("bug", fail(error))

    return RemotingServer(
        name="namesrv",
        handlers=processor.handlers(),
        clock=clock,
        limits=ServerLimits(
            idle_timeout_ms=settings.server_channel_max_idle_time_seconds * 1000, connections_max=connections_max
        ),
        tls=settings.tls,
        on_close=processor.connection_closed,
        on_bug=on_bug,
    )


def _start_metrics(settings: NamesrvSettings, processor: Processor, server: RemotingServer) -> MetricsServer | None:
    port = choose_metrics_port(settings.metrics_port, listen_port=settings.listen_address[1])
    if port is None:
        return None
    REGISTRY.register(NamesrvCollector(processor, server))
    return start_metrics_server(settings.metrics_host, port)


async def _scan(processor: Processor) -> None:
    while True:
        await asyncio.sleep(processor.settings.scan_not_active_broker_interval / 1000)
        processor.expire()


def _notify(tasks: TaskSet, client: RemotingClient, address: str, command: RemotingCommand) -> None:
    async def send() -> None:
        try:
            await client.invoke_one_way(address, command, timeout_ms=_NOTIFY_TIMEOUT_MS)
        except RemotingError as error:
            log.warning("a broker could not be notified", address=address, code=command.code, error=str(error))

    tasks.spawn(send())


def _saver(lifecycle: Lifecycle, files: FileSystem, path: str) -> Save:
    async def save(data: bytes) -> None:
        await lifecycle.scope.in_thread("files", write_atomically, files, path, data)

    return save


def _load_changes(files: FileSystem, path: str) -> dict[str, str]:
    try:
        changes = msgspec.json.decode(files.read(path), type=dict[str, str])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StartupError(f"{path}: can't be read ({error}); repair or remove it") from None
    unknown = changes.keys() - CHANGEABLE
    if unknown:
        raise StartupError(f"{path}: {', '.join(sorted(unknown))}: no such setting; correct or remove the file")
    return changes


def _make_folder(files: FileSystem, path: str) -> None:
    try:
        files.make_dirs(path)
    except OSError as error:
        raise StartupError(f"{path}: can't be created ({error.strerror}); choose another folder with --data") from None


def _lock_folder(files: FileSystem, path: str) -> FileLock:
    """Lock the folder, because two name servers in one folder would overwrite each other's files."""
    try:
        return files.lock_dir(path)
    except AlreadyLockedError:
        raise StartupError(f"{path}: another name server uses this folder; choose another one with --data") from None
    except OSError as error:
        raise StartupError(f"{path}: can't be locked ({describe_os_error(error)})") from None


def _warn_if_open(settings: NamesrvSettings, host: str) -> None:
    if not is_loopback(host) and settings.tls is None:
        log.warning(
            "listening beyond this machine without TLS: every host that reaches the port can register brokers",
            host=host,
        )
