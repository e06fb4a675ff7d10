"""Listening sockets that pass each accepted connection to the owner before they accept the next one.

asyncio's server accepts all waiting connections, up to the whole backlog, before it calls a protocol for the first
one. So a burst can use up all descriptors of the process, even if the protocol allows fewer connections.

Concurrency: only the thread of the event loop uses a listener.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

from gantry.runtime.telemetry import logger

ACCEPTED_AT_ONCE_MAX: Final = 100
"""The maximum per turn of the event loop, so that other work waits only a few milliseconds."""
PAUSE_S: Final = 1.0
"""The pause of a listener after it found no free descriptor. Without the pause it would retry in a busy loop."""
# These errors concern the process or the machine. All other errors concern only the connection to be accepted.
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logger("remoting")


async def bind(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host. An empty host means all addresses of the machine.

    Raises:
        OSError: An address can't be bound, or the host has none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(address)
            listening.listen(backlog)
            listening.setblocking(False)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets


class Listener:
    """A listener: it accepts connections from a socket until it is closed.

    Args:
        listening: A bound, listening and non-blocking socket. The listener owns it and closes it.
        on_accepted: A callback that takes over each connection, or closes it.
    """

    def __init__(self, listening: socket.socket, on_accepted: Callable[[socket.socket], None]) -> None:
        self._socket = listening
        self._on_accepted = on_accepted
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._socket, self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE_MAX):
            try:
                accepted, _ = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    log.warning("no connection can be accepted", error=error.strerror, pause_s=PAUSE_S)
                    self._loop.remove_reader(self._socket)
                    self._pause = self._loop.call_later(PAUSE_S, self._resume)
                    return
                continue
            accepted.setblocking(False)
            self._on_accepted(accepted)

    def close(self) -> None:
        """Stop accepting connections. May be called more than once."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
