"""Checks before `gantry up` starts any process, so that an expected failure is reported in one line."""

import errno
import socket
from collections.abc import Callable, Iterable

from gantry.cli.stack.layout import Layout, Service
from gantry.runtime.errors import StartupError
from gantry.runtime.files import FileSystem

# The default of the broker's disk_space_warning_level_ratio: a broker refuses messages while its disk is fuller than
# this. A stack's broker.toml may set another value, which the check does not read.
WATERMARK_PERCENT = 90


def check_ports(services: Iterable[Service], host: str) -> None:
    """Try to listen on each port of the services.

    Args:
        services: The services to be started.
        host: The address or name that the services will listen on.

    Raises:
        StartupError: Another process listens on a port, this machine does not have the address, or the operating system
            does not allow it.
    """
    for service in services:
        for port in service.ports:
            try:
                _listen_once(host, port)
            except OSError as error:
                raise StartupError(_describe_bind_error(service.name, host, port, error)) from None


def check_disk(layout: Layout, files: FileSystem, say: Callable[[str], None]) -> None:
    """Report the disk space that a new stack needs, and warn if the disk is too full for brokers.

    A stack is new if its first broker has no store folder yet.

    Args:
        layout: The folders of the stack.
        files: The file system that contains them.
        say: Called with each line for the user: the notice of a new stack, the warning of a full disk.

    Raises:
        StartupError: The disk lacks the space that the first start allocates.
    """
    usage = files.disk_usage(str(layout.data))
    is_new = not files.exists(str(layout.brokers[0].store))
    if is_new:
        needed = layout.disk_bytes()
        if usage.usable < needed:
            raise StartupError(
                f"{layout.data} needs {format_mebibytes(needed)} of disk at the first start, but "
                f"{format_mebibytes(usage.usable)} are free: free some, choose --data on another disk, or use fewer --brokers"
            )
        say(f"{layout.data} is new: about {format_mebibytes(needed)} of disk are allocated for it")
    if usage.percent > WATERMARK_PERCENT:
        say(
            f"the disk of {layout.data} is {usage.percent} % full, above the watermark of {WATERMARK_PERCENT} %: "
            "brokers reject messages until space is freed; free some, or choose --data on another disk"
        )


def format_mebibytes(size_bytes: int) -> str:
    """Return a size as text in whole MiB, such as `1,532 MiB`."""
    return f"{size_bytes / (1 << 20):,.0f} MiB"


def _listen_once(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # The services set the same option: with it, a port whose old connections are in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen(1)


def _describe_bind_error(name: str, host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {name} is in use: stop the process that listens there, or choose other ports with --port-base "
            "(such as --port-base 1000)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host}: this machine has no such address"
    return f"{name} can't listen on {host}:{port}: {error.strerror or error}"
