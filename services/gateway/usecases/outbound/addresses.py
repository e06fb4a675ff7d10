"""The addresses that requests of the gateway may go to: public ones, and those that a setting allows.

The host name is looked up for each request, and the connection goes to exactly the address that was checked.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
import httpx

from services.gateway.schemas.webhooks import Network, is_allowed

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""Host and port → addresses; raises OSError."""

NAMES_CACHED_MAX: Final = 100
"""Limit of remembered host names, which is the limit of webhooks; the oldest are evicted."""


class AddressRefusedError(Exception):
    """No address of the host name is allowed; the message lists the addresses."""


async def checked_address(url: httpx.URL, resolve: Resolve, networks: Sequence[Network]) -> str:
    """Return an address of the URL's host that is allowed. Raises OSError, AddressRefusedError."""
    addresses = await resolve(url.host, url.port or (443 if url.scheme == "https" else 80))
    for address in addresses:
        if is_allowed(ipaddress.ip_address(address.partition("%")[0]), networks):
            return address
    raise AddressRefusedError(f"{url.host} is {', '.join(addresses)}, and only public addresses are allowed")


class Resolver:
    """The system's lookup of host names, at most three at a time.

    uvloop looks names up in four threads, and other connections need one, too. A lookup cannot be cancelled: its thread
    stays busy until the name servers time out, even if the caller gives up earlier. So there are three lanes with one
    lookup at a time each: for names that were found the last time, for names that were not found, and for new names.
    Name servers that do not answer block only their own lane.

    Concurrency: one event loop, any number of tasks.
    """

    def __init__(self) -> None:
        self._lanes = {was_found: asyncio.Semaphore(1) for was_found in (True, False, None)}
        self._was_found: dict[str, bool] = {}

    async def resolve(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host. Raises OSError."""
        with suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        lane = self._lanes[self._was_found.get(host)]
        await lane.acquire()
        loop = asyncio.get_running_loop()
        looking = asyncio.ensure_future(loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        # The lane stays taken until the thread is free, which may be long after the caller gave up.
        looking.add_done_callback(lambda done: _release_lane(done, lane))
        found: list[Any] = []
        try:
            found = await asyncio.shield(looking)
        finally:
            self._remember(host, was_found=bool(found))
        return [str(entry[4][0]) for entry in found]

    def _remember(self, host: str, *, was_found: bool) -> None:
        self._was_found.pop(host, None)
        self._was_found[host] = was_found
        if len(self._was_found) > NAMES_CACHED_MAX:
            del self._was_found[next(iter(self._was_found))]


def _release_lane(looking: "asyncio.Future[Any]", lane: asyncio.Semaphore) -> None:
    lane.release()
    if not looking.cancelled():
        # If the caller has given up, the exception is retrieved here; otherwise asyncio would log it.
        looking.exception()


async def open_transport() -> httpx.AsyncHTTPTransport:
    """Return a new transport.

    It keeps no connections: each was verified for one host name, and others may share its address.
    """
    return await asyncio.to_thread(_make_transport)


def _make_transport() -> httpx.AsyncHTTPTransport:
    # Loading the certificates of all authorities and the modules of the first connection takes too long for the event
    # loop. Any use of anyio loads these modules.
    anyio.run(anyio.sleep, 0)
    return httpx.AsyncHTTPTransport(
        verify=httpx.create_ssl_context(), trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)
    )
