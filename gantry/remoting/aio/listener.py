"""Listening sockets, which hand each accepted connection over before the next one is accepted.

asyncio's own server accepts everything that waits, up to the whole backlog, before a protocol hears of the first
connection. So a burst can take all descriptors of the process, whatever number of connections the protocol allows.

Concurrency: used from the event loop's thread only.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

from gantry.runtime.telemetry import logger

ACCEPTED_AT_ONCE_MAX: Final = 100
"""In one turn of the event loop, so that nobody else waits longer than a few milliseconds."""
PAUSE_S: Final = 1.0
"""After which a listener that finds no descriptor tries again; until then it would only turn in circles."""
# Of the process or the machine. All other errors are those of the connection that was to be accepted.
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

log = logger("remoting")


async def bind(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host; of all addresses if the host is empty.

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
    """Accepts connections from a listening socket until it is closed.

    Args:
        listening: Bound, listening and non-blocking; belongs to the listener.
        on_accepted: Takes each connection over, or closes it.
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
        """Accept no more. May be called twice."""
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()
