"""Ports for programs that can't listen on port 0.

The ports lie below the kernel's range for outgoing connections. Each process of a test run has its own share of them,
so that no other test takes a port while its program restarts.
"""

import os
import random
import socket
from collections.abc import Callable, Iterable, Sequence

# Above the ports of stacks (tests/support/stack.py).
_SINGLE = range(21_000, 32_000)


def free_base(bases: Sequence[int], ports: Callable[[int], Iterable[int]]) -> int:
    """Return one of this process' share of `bases` such that all of its `ports` are free."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    share = list(bases[worker::count])
    random.shuffle(share)
    for base in share:
        if all(_is_free(port) for port in ports(base)):
            return base
    raise AssertionError(f"no ports are free from {bases[0]} to {bases[-1]}")


def free_port() -> int:
    """Return a free port of this process' share."""
    return free_base(_SINGLE, lambda base: [base])


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
