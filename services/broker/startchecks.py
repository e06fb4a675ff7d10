"""Checks that decide whether a start succeeds, beside the settings' own: addresses, ports, certificates, disk space.

A start runs each check where it needs the result. Request 25 runs all of them on the settings of the next start, so
that the broker keeps no value that would prevent its start.
"""

import asyncio
import dataclasses
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from gantry.remoting.aio.tls import server_context
from gantry.runtime.errors import SettingsError, StartupError
from gantry.runtime.files import FileSystem
from gantry.runtime.metrics import choose_metrics_port
from services.broker.liveconfig import apply_kept
from services.broker.settings import BrokerSettings
from services.broker.store.results import StoreState

_ALL_ADDRESSES: Final = frozenset({"", "0.0.0.0", "::"})
# These are the sizes of the store's existing files. They can't change, because a running broker makes more files.
_FILE_SIZES: Final = (
    "mapped_file_size_commit_log",
    "mapped_file_size_consume_queue",
    "max_hash_slot_num",
    "max_index_num",
)


def advertised_host(settings: BrokerSettings) -> str:
    """Return the host that the broker advertises to other processes."""
    return (settings.broker_ip1 or settings.bind_address).removeprefix("[").removesuffix("]")


async def store_ip(settings: BrokerSettings) -> str:
    """Return the IP address of the advertised host, as records contain it.

    An IPv4 address is preferred: RocketMQ's clients before 4.6 can't read records that contain an IPv6 address.

    Raises:
        StartupError: The host has no address, or the broker listens on all addresses and no setting says which one to
            advertise.
    """
    host = advertised_host(settings)
    if host in _ALL_ADDRESSES:
        raise StartupError(
            f"listening on {host or 'all addresses'}: say with --advertise which address clients reach this broker at"
        )
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise StartupError(
            f"the advertised host {host[:255]} has no address ({_reason(error)}); give another with --advertise"
        ) from None
    v4 = [address for family, _, _, _, address in found if family == socket.AF_INET]
    return str((v4 or [found[0][4]])[0][0]).partition("%")[0]


def no_room_reason(settings: BrokerSettings, state: StoreState, files: FileSystem) -> str | None:
    """Return why a new store can't take a message, or None.

    A store that holds messages may start on a full disk: consumers can still read the messages. After that, the disk
    can get room again.
    """
    if state.max_physical_offset > state.min_physical_offset:
        return None
    if not state.writable:
        return state.reason
    usage, needed = files.disk_usage(settings.store_path_root_dir), settings.mapped_file_size_commit_log
    if usage.percent > settings.disk_space_warning_level_ratio:
        return f"the disk is {usage.percent} % full, the limit is {settings.disk_space_warning_level_ratio} %"
    if state.full_reason:
        return f"its first file takes {needed} bytes and the disk has {usage.usable} left ({state.full_reason})"
    return None


@dataclass(slots=True)
class NextStart:
    """The next start of a running broker, as far as the settings decide whether it succeeds.

    Attributes:
        base: Settings from the file, the environment and the command line, without those kept in the store.
        given: Names of the settings that the command line gave.
        files: File system of the store.
        state: Function that returns the state of the store.
        bound: Function that returns the hosts and ports on which this process listens; the next start finds them free.
    """

    base: BrokerSettings
    given: Collection[str]
    files: FileSystem
    state: Callable[[], StoreState]
    bound: Callable[[], Collection[tuple[str, int]]]

    async def check(self, current: BrokerSettings, kept: Mapping[str, str]) -> None:
        """Check that the next start would accept the kept settings.

        Args:
            current: Settings in force.
            kept: Texts of all settings that would be kept, by name.

        Raises:
            SettingsError: The next start would reject a value; the error names the setting.
        """
        try:
            settings = apply_kept(self.base, kept, above=self.given)
        except StartupError as error:
            raise SettingsError(str(error)) from None
        for name in _FILE_SIZES:
            value, size = getattr(settings, name), getattr(current, name)
            if value != size:
                raise SettingsError(f"{name}: {value}: the store's files are made with {size}, which can't be changed")
        await _check_host(current, settings)
        await _check_ports(settings, self.bound())
        tls = settings.tls()
        try:
            if tls is not None:
                server_context(tls)
        except StartupError as error:
            raise SettingsError(f"tls_server_mode: {tls.mode if tls else ''}: {error}") from None
        reason = no_room_reason(settings, self.state(), self.files)
        if reason is not None and no_room_reason(current, self.state(), self.files) is None:
            value = settings.disk_space_warning_level_ratio
            raise SettingsError(f"disk_space_warning_level_ratio: {value}: the store can't take a message: {reason}")


async def _check_host(current: BrokerSettings, settings: BrokerSettings) -> None:
    names = [name for name in ("broker_ip1", "bind_address") if getattr(settings, name) != getattr(current, name)]
    if not names:
        return
    try:
        await store_ip(settings)
    except StartupError as error:
        raise SettingsError(f"{names[0]}: {getattr(settings, names[0])[:255]!r}: {error}") from None


async def _check_ports(settings: BrokerSettings, bound: Collection[tuple[str, int]]) -> None:
    """Listen for a moment on each address that the next start needs and this process does not have yet."""
    wanted = (
        ("listen_port", "bind_address", settings.listen_port),
        ("fast_listen_port", "bind_address", settings.fast_port()),
        ("metrics_port", "metrics_host", choose_metrics_port(settings.metrics_port, listen_port=settings.listen_port)),
    )
    taken: dict[int, tuple[str, str]] = {}
    for name, host_name, port in wanted:
        host: str = getattr(settings, host_name)
        if port is None:
            continue
        other, other_host = taken.get(port, ("", ""))
        if port and other and (host == other_host or {host, other_host} & _ALL_ADDRESSES):
            raise SettingsError(f"{name}: {port}: {other} is the same port")
        taken[port] = (name, host)
        if (host, port) in bound:
            continue
        try:
            # This process has the port on another host, so only the host can be tried.
            await _listen(host, 0 if port in {own for _, own in bound} else port)
        except (OSError, UnicodeError) as error:
            text = f"can't listen on {host[:255]}:{port}: {_reason(error)}"
            raise SettingsError(f"{name}: {port} ({host_name}: {host[:255]!r}): {text}") from None


async def _listen(host: str, port: int) -> None:
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, host or None, port)
    server.close()
    await server.wait_closed()


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


assert {field.name for field in dataclasses.fields(BrokerSettings)} >= set(_FILE_SIZES)
