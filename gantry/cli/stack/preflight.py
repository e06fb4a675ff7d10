"""Checks before the start of a stack, so that an expected failure is reported in one line."""

import errno
import socket
from collections.abc import Callable, Iterable

from gantry.cli.stack.layout import Layout, Service
from gantry.runtime.errors import StartupError
from gantry.runtime.files import FileSystem

# The broker's disk_space_warning_level_ratio: above it a broker refuses to store.
WATERMARK_PERCENT = 90


def check_ports(services: Iterable[Service], host: str) -> None:
    """Raise StartupError if another process listens on a port, or if this machine does not have the address."""
    for service in services:
        for port in service.ports:
            try:
                _listen_once(host, port)
            except OSError as error:
                raise StartupError(_why(service.name, host, port, error)) from None


def check_disk(layout: Layout, files: FileSystem, warn: Callable[[str], None]) -> None:
    """Report the disk space that a new stack needs, and warn if the disk is too full for brokers.

    Raises:
        StartupError: The disk lacks the space that the first start allocates.
    """
    usage = files.disk_usage(str(layout.data))
    is_new = not files.exists(str(layout.brokers[0].store))
    if is_new:
        needed = layout.disk_bytes()
        if usage.usable < needed:
            raise StartupError(
                f"{layout.data} needs {megabytes(needed)} of disk at the first start, but "
                f"{megabytes(usage.usable)} are free: free some, choose --data on another disk, or use fewer --brokers"
            )
        warn(f"{layout.data} is new: about {megabytes(needed)} of disk are allocated for it")
    if usage.percent > WATERMARK_PERCENT:
        warn(
            f"the disk of {layout.data} is {usage.percent} % full, above the watermark of {WATERMARK_PERCENT} %: "
            "brokers reject messages until space is freed; free some, or choose --data on another disk"
        )


def megabytes(count: int) -> str:
    """Return a number of bytes as text in MiB."""
    return f"{count / (1 << 20):,.0f} MiB"


def _listen_once(host: str, port: int) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As the services do: a port in TIME_WAIT is not in use.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen(1)


def _why(name: str, host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} of {name} is in use: stop the process that listens there, or choose other ports with --port-base "
            "(such as --port-base 1000)"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host}: this machine has no such address"
    return f"{name} can't listen on {host}:{port}: {error.strerror or error}"
