"""Connects to the brokers for one piece of work, in the Python process in which Spark runs it.

Spark plans and reads in worker processes without an event loop, and calls these functions synchronously. Each request
has its own time-out (ClientSettings). This module adds a time-out for all requests together, so that a task ends even
if brokers hang.
"""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Final, TypeVar

import uvloop

from gantry.client.engine import ClientEngine, Transport
from gantry.client.settings import ClientSettings
from gantry.remoting.aio import Handler, RemotingClient
from gantry.remoting.command import RemotingCommand
from gantry.runtime.clock import SystemClock
from gantry.runtime.rng import Rng
from spark.datasource.options import Credentials, Options

PLAN_TIMEOUT_MS: Final = 300_000
"""The time limit for all requests of planning: thousands on a large cluster."""
STEP_TIMEOUT_MS: Final = 120_000
"""The time limit for one batch of a task."""
REQUEST_TIMEOUT_MS: Final = 15_000
"""The time limit for one request: a table of all committed offsets has megabytes."""

T = TypeVar("T")


@asynccontextmanager
async def connected(options: Options) -> AsyncIterator[ClientEngine]:
    """Start an engine for the name servers of the options, and stop it at the end of the `async with` block."""
    settings = ClientSettings(
        namesrv=options.namesrv, admin_timeout_ms=REQUEST_TIMEOUT_MS, instance_name=f"spark-{Rng().below(1 << 48):x}"
    )
    engine = ClientEngine(settings, clock=SystemClock(), rng=Rng(), make_transport=_transport_maker(options, settings))
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def run(options: Options, work: Callable[[ClientEngine], Awaitable[T]], *, timeout_ms: int = PLAN_TIMEOUT_MS) -> T:
    """Run work that needs an engine, and return its result.

    Args:
        options: The options with the addresses of the name servers.
        work: A function that is called with a running engine.
        timeout_ms: The time limit for all of it.

    Raises:
        TimeoutError: The work took too long.
        ClientError: `work` raised it.
    """

    async def main() -> T:
        async with asyncio.timeout(timeout_ms / 1_000), connected(options) as engine:
            return await work(engine)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main())


def stream(
    options: Options,
    work: Callable[[ClientEngine], AsyncGenerator[T, None]],
    *,
    step_timeout_ms: int = STEP_TIMEOUT_MS,
) -> Iterator[T]:
    """Yield the items of an asynchronous generator that needs an engine.

    The event loop only runs while the caller waits for an item. A generator that sends its next requests before it
    yields loses no time: the brokers answer meanwhile, and the answers wait in the sockets.

    Args:
        options: The options with the addresses of the name servers.
        work: A function that is called with a running engine and returns the generator.
        step_timeout_ms: The time limit for each item.

    Raises:
        TimeoutError: An item took too long.
        ClientError: `work` raised it.
    """

    async def items() -> AsyncGenerator[T, None]:
        async with connected(options) as engine, aclosing(work(engine)) as generator:
            async for item in generator:
                yield item

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        generator = items()
        try:
            while True:
                try:
                    item = runner.run(_next(generator, step_timeout_ms))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            runner.run(generator.aclose())


async def _next(generator: AsyncGenerator[T, None], timeout_ms: int) -> T:
    async with asyncio.timeout(timeout_ms / 1_000):
        return await anext(generator)


class SigningTransport:
    """A transport that signs each request, as brokers with RocketMQ's ACL require.

    Source: RocketMQ 5.3 AclClientRPCHook. It signs the values of all ext fields, ordered by name, and then the body,
    with HMAC-SHA1 in base64.
    """

    def __init__(self, inner: Transport, credentials: Credentials) -> None:
        self._inner = inner
        self._credentials = credentials

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        """Send a request and return its response. Raises RequestFailedError."""
        sign(command, self._credentials)
        return await self._inner.invoke(address, command, timeout_ms=timeout_ms)

    async def invoke_one_way(self, address: str, command: RemotingCommand, *, timeout_ms: int = 3_000) -> None:
        """Send a request that gets no response. Raises RequestFailedError."""
        sign(command, self._credentials)
        await self._inner.invoke_one_way(address, command, timeout_ms=timeout_ms)

    async def connect(self, address: str, *, timeout_ms: int) -> object:
        """Return the open connection to an address; connect if there is none. Raises RequestFailedError."""
        return await self._inner.connect(address, timeout_ms=timeout_ms)

    async def close(self) -> None:
        """Close all connections."""
        await self._inner.close()


def sign(command: RemotingCommand, credentials: Credentials) -> None:
    """Put AccessKey, SecurityToken and Signature into a request's ext fields."""
    fields = {name: value for name, value in command.ext_fields.items() if name != "Signature"}
    fields["AccessKey"] = credentials.access_key
    if credentials.security_token is not None:
        fields["SecurityToken"] = credentials.security_token
    content = "".join(fields[name] for name in sorted(fields)).encode() + command.body_bytes
    digest = hmac.new(credentials.secret_key.encode(), content, hashlib.sha1).digest()
    command.ext_fields = {**fields, "Signature": base64.b64encode(digest).decode()}


def _transport_maker(
    options: Options, settings: ClientSettings
) -> Callable[[Mapping[int, Handler], Callable[[str], None]], Transport] | None:
    credentials = options.access
    if credentials is None:
        return None

    def make(handlers: Mapping[int, Handler], lost: Callable[[str], None]) -> Transport:
        client = RemotingClient(
            clock=SystemClock(),
            limits=settings.limits,
            tls=settings.tls,
            handlers=handlers,
            on_channel_closed=lambda address, _: lost(address),
        )
        return SigningTransport(client, credentials)

    return make
