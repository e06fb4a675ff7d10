"""Ports for programs that can't be told to take any free one.

They lie below those that the kernel gives to outgoing connections, and each process of a test run looks among ports of
its own: one that is free while its program starts again is not taken by another test meanwhile.
"""

import os
import random
import socket
from collections.abc import Callable, Iterable, Sequence


def free_base(bases: Sequence[int], ports: Callable[[int], Iterable[int]]) -> int:
    """Return one of this process' share of `bases`, of whose `ports` nobody uses any now."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = list(bases[worker::count])
    random.shuffle(share)
    for base in share:
        if all(_is_free(port) for port in ports(base)):
            return base
    raise AssertionError(f"no ports are free from {bases[0]} to {bases[-1]}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
