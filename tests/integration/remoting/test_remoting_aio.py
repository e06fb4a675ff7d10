"""Server and client over loopback sockets, plain and with TLS."""

import asyncio
import contextlib
import errno
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from gantry.remoting.aio import (
    Channel,
    ClientLimits,
    ClientTlsSettings,
    Handler,
    RemotingClient,
    RemotingServer,
    Reply,
    ServerLimits,
    TlsMode,
    TlsSettings,
)
from gantry.remoting.aio.listener import ACCEPTED_AT_ONCE_MAX, Listener
from gantry.remoting.aio.tls import ClientAuth
from gantry.remoting.command import RemotingCommand
from gantry.remoting.errors import ConnectError, ConnectionLostError, RequestTimeoutError
from gantry.runtime.clock import SystemClock
from gantry.runtime.errors import StartupError
from tests.support.channelsuite import ChannelSuite, Link, Linker

ECHO = 1
TIMEOUT_MS = 5_000


def echo(channel: Channel, request: RemotingCommand) -> Reply:
    return RemotingCommand.response_to(request, 0, body=request.body)


@contextlib.asynccontextmanager
async def serving(
    handlers: Mapping[int, Handler] | None = None, *, limits: ServerLimits | None = None, tls: TlsSettings | None = None
) -> AsyncIterator[tuple[RemotingServer, str]]:
    server = RemotingServer(
        name="server", handlers=handlers or {ECHO: echo}, clock=SystemClock(), limits=limits, tls=tls
    )
    address = await server.start("127.0.0.1", 0)
    try:
        yield server, str(address)
    finally:
        await server.stop(drain_ms=0)


@contextlib.asynccontextmanager
async def client_of(
    *,
    handlers: Mapping[int, Handler] | None = None,
    limits: ClientLimits | None = None,
    tls: ClientTlsSettings | None = None,
    is_bulk: Callable[[RemotingCommand], bool] | None = None,
) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=SystemClock(), handlers=handlers, limits=limits, tls=tls, is_bulk=is_bulk)
    try:
        yield client
    finally:
        await client.close()


def request(body: bytes | None = None) -> RemotingCommand:
    return RemotingCommand.request(ECHO, body=body)


async def send_raw(address: str, data: bytes) -> bytes:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        writer.write_eof()
        return await reader.read()
    except OSError:  # A reset: the server closed the connection without reading all bytes.
        return b""
    finally:
        writer.close()


class Certificates:
    """An authority, a server's certificate and a client's, made by the openssl command."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test authority",
                      "-keyout", "ca.key", "-out", "ca.pem")  # fmt: skip
        for name in ("server", "client"):
            self._openssl(
                "req",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-subj",
                f"/CN={name}",
                "-keyout",
                f"{name}.key",
                "-out",
                f"{name}.csr",
            )
            self._openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                          "-days", "2", "-out", f"{name}.pem")  # fmt: skip

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()

    def server(self, mode: TlsMode = TlsMode.PERMISSIVE, client_auth: ClientAuth = ClientAuth.NONE) -> TlsSettings:
        return TlsSettings(self.path("server.pem"), self.path("server.key"), mode, client_auth, self.path("ca.pem"))

    def client(self, *, shows: str | None = None) -> ClientTlsSettings:
        cert = None if shows is None else self.path(f"{shows}.pem")
        return ClientTlsSettings(
            ca_file=self.path("ca.pem"), cert_file=cert, key_file=None if shows is None else self.path(f"{shows}.key")
        )

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


class TestOverLoopback(ChannelSuite):
    """The suite that the memory transport of the unit tests passes too."""

    @pytest.fixture(params=["plain", "tls"])
    async def link(self, request: pytest.FixtureRequest, certificates: Certificates) -> AsyncIterator[Linker]:
        with_tls = request.param == "tls"
        async with contextlib.AsyncExitStack() as stack:

            async def make(
                handlers: Mapping[int, Handler], client_handlers: Mapping[int, Handler] | None = None
            ) -> Link:
                tls = certificates.server() if with_tls else None
                server, address = await stack.enter_async_context(serving(handlers, tls=tls))
                client_tls = certificates.client() if with_tls else None
                client = await stack.enter_async_context(client_of(handlers=client_handlers, tls=client_tls))
                return Link(server, await client.connect(address), lambda data: send_raw(address, data))

            yield make


async def test_the_client_dials_once_for_concurrent_callers():
    async with serving() as (server, address), client_of() as client:
        responses = await asyncio.gather(
            *[client.invoke(address, request(b"%d" % i), timeout_ms=TIMEOUT_MS) for i in range(20)]
        )

        assert [response.body for response in responses] == [b"%d" % i for i in range(20)]
        assert server.counters.connections_opened == 1


async def test_the_client_dials_again_when_its_connection_was_lost():
    async with serving() as (server, address), client_of() as client:
        lost: asyncio.Queue[tuple[str, Channel]] = asyncio.Queue()
        client._on_channel_closed = lambda *what: lost.put_nowait(what)
        await client.invoke(address, request(), timeout_ms=TIMEOUT_MS)
        first = client.connected(address)
        server.channels[0].abort("test")
        assert await lost.get() == (address, first)

        assert (await client.invoke(address, request(b"again"), timeout_ms=TIMEOUT_MS)).body == b"again"
        assert server.counters.connections_opened == 2


async def test_bulk_requests_have_a_connection_of_their_own():
    came_over: dict[bytes | None, set[Channel]] = {}

    def take(channel: Channel, asked: RemotingCommand) -> Reply:
        came_over.setdefault(asked.body, set()).add(channel)
        return echo(channel, asked)

    async with serving({ECHO: take}) as (server, address), client_of(is_bulk=lambda one: one.body == b"bulk") as client:
        for body in (b"bulk", None) * 3:
            await client.invoke(address, request(body), timeout_ms=TIMEOUT_MS)
        await client.invoke_one_way(address, request(b"bulk"))
        await client.invoke(address, request(b"bulk"), timeout_ms=TIMEOUT_MS)

        assert {body: len(channels) for body, channels in came_over.items()} == {b"bulk": 1, None: 1}
        assert not came_over[b"bulk"] & came_over[None]
        assert server.counters.connections_opened == 2


async def test_a_bulk_connection_is_dialled_again_and_only_the_loss_of_the_main_one_is_reported():
    async with serving() as (server, address), client_of(is_bulk=lambda one: one.body == b"bulk") as client:
        lost: asyncio.Queue[tuple[str, Channel]] = asyncio.Queue()
        client._on_channel_closed = lambda *what: lost.put_nowait(what)
        await client.invoke(address, request(b"bulk"), timeout_ms=TIMEOUT_MS)
        server.channels[0].abort("test")
        await until(lambda: not client._bulk.channels)
        assert (await client.invoke(address, request(b"bulk"), timeout_ms=TIMEOUT_MS)).body == b"bulk"
        await client.invoke(address, request(), timeout_ms=TIMEOUT_MS)
        main = client.connected(address)
        for channel in server.channels:
            channel.abort("test")

        assert await lost.get() == (address, main)
        await until(lambda: not client._bulk.channels)
        assert lost.empty()
        assert server.counters.connections_opened == 3


async def test_one_way_requests_of_the_client_arrive():
    arrived = asyncio.Event()

    def take(channel: Channel, asked: RemotingCommand) -> Reply:
        arrived.set()
        return None

    async with serving({ECHO: take}) as (_, address), client_of() as client:
        await client.invoke_one_way(address, request())
        await asyncio.wait_for(arrived.wait(), 5)
        arrived.clear()
        await client.invoke_one_way(address, request())
        await asyncio.wait_for(arrived.wait(), 5)


@pytest.mark.parametrize(
    "address", ["", "localhost", "localhost:", ":1", "localhost:0", "localhost:65536", "localhost:x"]
)
async def test_an_invalid_address_is_refused(address: str):
    async with client_of() as client:
        with pytest.raises(ConnectError, match="is not host:port") as caught:
            await client.invoke(address, request(), timeout_ms=TIMEOUT_MS)
        assert not caught.value.sent


async def test_a_refused_connection_is_a_connect_error_for_every_caller():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        async with client_of() as client:
            calls = [client.invoke(address, request(), timeout_ms=TIMEOUT_MS) for _ in range(3)]
            errors = await asyncio.gather(*calls, return_exceptions=True)

    assert [type(error) for error in errors] == [ConnectError] * 3
    assert len({id(error) for error in errors}) == 3


@contextlib.contextmanager
def deaf() -> AsyncIterator[str]:
    """Listen with a full backlog, so that no connection is ever accepted."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def test_connecting_times_out_for_each_caller_separately():
    with deaf() as address:
        async with client_of(limits=ClientLimits(connect_timeout_ms=400)) as client:
            patient = asyncio.ensure_future(client.invoke(address, request(), timeout_ms=TIMEOUT_MS))
            with pytest.raises(ConnectError, match="no connection within 50 ms"):
                await client.invoke(address, request(), timeout_ms=50)
            with pytest.raises(ConnectError, match="no connection within 400 ms"):
                await patient


async def test_a_closed_client_sends_nothing():
    async with serving() as (_, address):
        async with client_of() as client:
            waiting = [asyncio.ensure_future(client.invoke(address, request(), timeout_ms=TIMEOUT_MS))]
            await waiting[0]
        with pytest.raises(ConnectError, match="the client is closed"):
            await client.invoke(address, request(), timeout_ms=TIMEOUT_MS)


async def test_closing_the_client_ends_attempts_to_connect():
    with deaf() as address:
        async with client_of() as client:
            attempt = asyncio.ensure_future(client.invoke(address, request(), timeout_ms=TIMEOUT_MS))
            await asyncio.sleep(0.05)
        with pytest.raises(ConnectError, match="the client is closed"):
            await attempt


@pytest.mark.parametrize("is_dialling", [False, True])
async def test_a_cancelled_close_ends_the_connections(is_dialling: bool):
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        with contextlib.suppress(ConnectionError):
            while await reader.read(100):
                pass  # It never ends the connection by itself.
        ended.set()
        writer.close()

    peer = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with peer:
        address = f"127.0.0.1:{peer.sockets[0].getsockname()[1]}"
        with deaf() as silent:
            client = RemotingClient(clock=SystemClock())
            waiting = [asyncio.ensure_future(client.invoke(address, request(), timeout_ms=TIMEOUT_MS))]
            if is_dialling:
                waiting.append(asyncio.ensure_future(client.invoke(silent, request(), timeout_ms=TIMEOUT_MS)))
            await asyncio.sleep(0.2)
            closing = asyncio.ensure_future(client.close())
            await asyncio.sleep(0)
            closing.cancel()
            results = await asyncio.gather(closing, return_exceptions=True)
            assert isinstance(results[0], asyncio.CancelledError)
            errors = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 1)
            assert all("the client is closed" in str(error) for error in errors)
            await asyncio.wait_for(ended.wait(), 1)


async def test_requests_fail_when_the_client_is_closed():
    asked = asyncio.Event()

    def never(channel: Channel, command: RemotingCommand) -> Reply:
        asked.set()

    async with serving({ECHO: never}) as (_, address):
        async with client_of() as client:
            waiting = asyncio.ensure_future(client.invoke(address, request(), timeout_ms=TIMEOUT_MS))
            await asked.wait()
        with pytest.raises(ConnectionLostError, match="the client is closed") as caught:
            await waiting
        assert caught.value.sent


async def test_a_request_to_a_silent_server_times_out():
    def never(channel: Channel, asked: RemotingCommand) -> Reply:
        return None

    async with serving({ECHO: never}) as (_, address), client_of() as client:
        with pytest.raises(RequestTimeoutError, match=address):
            await client.invoke(address, request(), timeout_ms=100)


async def test_a_port_in_use_is_reported_in_one_line():
    async with serving() as (_, address):
        host, _, port = address.rpartition(":")
        other = RemotingServer(name="broker-b", handlers={}, clock=SystemClock())
        with pytest.raises(StartupError, match=f"broker-b can't listen on {address}: .*choose another") as caught:
            await other.start(host, int(port))
        assert "\n" not in str(caught.value)


async def test_a_connection_beyond_the_limit_is_closed():
    async with serving(limits=ServerLimits(connections_max=1)) as (server, address), client_of() as client:
        await client.invoke(address, request(), timeout_ms=TIMEOUT_MS)

        assert await send_raw(address, b"\0") == b""
        assert server.counters.connections_refused == 1
        assert (await client.invoke(address, request(), timeout_ms=TIMEOUT_MS)).code == 0


async def until(is_so: Callable[[], bool]) -> None:
    """Let the loop turn until a condition holds."""
    async with asyncio.timeout(TIMEOUT_MS / 1000):
        for _ in iter(is_so, True):
            await asyncio.sleep(0)


async def test_a_burst_above_the_limit_is_closed_before_it_takes_resources():
    """All of them wait in the backlog before the server accepts the first one."""
    async with serving(limits=ServerLimits(connections_max=3)) as (server, address):
        host, _, port = address.rpartition(":")
        burst = [socket.create_connection((host, int(port))) for _ in range(ACCEPTED_AT_ONCE_MAX + 20)]
        await until(lambda: server.counters.connections_refused == len(burst) - 3)
        await until(lambda: server.counters.connections_opened == 3)
        for each in burst:
            each.close()
        await until(lambda: not server.channels)
        async with client_of() as client:
            assert (await client.invoke(address, request(), timeout_ms=TIMEOUT_MS)).code == 0


async def test_a_connection_that_arrives_while_the_server_stops_is_closed():
    async with serving() as (server, address):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as arriving:
            server._accepted(server._listeners[0]._socket.accept()[0])
            await server.stop(drain_ms=0)
            assert arriving.recv(1) == b""
    assert server.channels == []


class FullListener(socket.socket):
    """Fails to accept once for each given error."""

    errors: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.errors:
            raise OSError(self.errors.pop(0), "refused")
        return super().accept()


async def test_a_listener_outlives_errors_and_waits_for_descriptors():
    listening = FullListener()
    listening.errors = [errno.ECONNABORTED, errno.EMFILE]
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    listening.setblocking(False)
    accepted: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()
    listener = Listener(listening, accepted.set_result)
    with socket.create_connection(listening.getsockname()), await asyncio.wait_for(accepted, TIMEOUT_MS / 1000):
        assert listening.errors == []
    listening.errors = [errno.ENFILE]
    with socket.create_connection(listening.getsockname()):
        await until(lambda: not listening.errors)
        listener.close()
    listener.close()


async def test_permissive_takes_plain_and_tls_on_one_port(certificates: Certificates):
    async with serving(tls=certificates.server()) as (server, address):
        async with client_of() as plain, client_of(tls=certificates.client()) as secure:
            for client in (plain, secure):
                assert (await client.invoke(address, request(b"x"), timeout_ms=TIMEOUT_MS)).body == b"x"
        assert server.counters.protocol_errors == 0


async def test_enforcing_refuses_plain_and_disabled_refuses_tls(certificates: Certificates):
    async with serving(tls=certificates.server(TlsMode.ENFORCING)) as (server, address):
        async with client_of() as plain, client_of(tls=certificates.client()) as secure:
            with pytest.raises(ConnectionLostError):
                await plain.invoke(address, request(), timeout_ms=TIMEOUT_MS)
            assert (await secure.invoke(address, request(), timeout_ms=TIMEOUT_MS)).code == 0
        assert server.counters.protocol_errors == 1
    async with serving(tls=certificates.server(TlsMode.DISABLED)) as (server, address):
        async with client_of(tls=certificates.client()) as secure:
            with pytest.raises(ConnectError):
                await secure.invoke(address, request(), timeout_ms=TIMEOUT_MS)
        assert server.counters.frames_too_large == 1


async def test_a_client_checks_the_servers_certificate(certificates: Certificates):
    async with serving(tls=certificates.server()) as (_, address):
        async with client_of(tls=ClientTlsSettings()) as trusting_others:
            with pytest.raises(ConnectError, match=r"(?i)certificate"):
                await trusting_others.invoke(address, request(), timeout_ms=TIMEOUT_MS)
        async with client_of(tls=ClientTlsSettings(verify=False)) as careless:
            assert (await careless.invoke(address, request(), timeout_ms=TIMEOUT_MS)).code == 0


async def test_a_server_may_ask_for_certificates(certificates: Certificates):
    async with serving(tls=certificates.server(client_auth=ClientAuth.REQUIRE)) as (server, address):
        async with client_of(tls=certificates.client()) as stranger:
            with pytest.raises((ConnectError, ConnectionLostError)):
                await stranger.invoke(address, request(), timeout_ms=TIMEOUT_MS)
        async with client_of(tls=certificates.client(shows="client")) as known:
            assert (await known.invoke(address, request(), timeout_ms=TIMEOUT_MS)).code == 0
        assert server.counters.tls_errors == 1


async def test_a_tls_handshake_that_goes_wrong_ends_its_connection_only(certificates: Certificates):
    limits = ServerLimits(handshake_timeout_ms=200, sweep_interval_ms=20)
    async with serving(tls=certificates.server(), limits=limits) as (server, address):
        await send_raw(address, b"\x16\x03\x01garbage that is no handshake")
        assert server.counters.tls_errors == 1
        host, _, port = address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"\x16")
        with contextlib.suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        assert server.counters.closed_handshake == 1
        async with client_of(tls=certificates.client()) as client:
            assert (await client.invoke(address, request(), timeout_ms=TIMEOUT_MS)).code == 0


async def test_certificates_are_read_again(certificates: Certificates, tmp_path: Path):
    def install(name: str) -> None:
        for ending in ("pem", "key"):
            (tmp_path / f"server.{ending}").write_bytes((certificates.folder / f"{name}.{ending}").read_bytes())

    install("server")
    settings = TlsSettings(str(tmp_path / "server.pem"), str(tmp_path / "server.key"))
    async with serving(tls=settings) as (server, address):
        (tmp_path / "server.pem").write_text("nonsense")
        with pytest.raises(StartupError, match=r"server\.pem.*PEM files are expected"):
            server.reload_tls()
        async with client_of(tls=certificates.client()) as client:
            assert (await client.invoke(address, request(), timeout_ms=TIMEOUT_MS)).code == 0
        install("client")
        server.reload_tls()
        host, _, port = address.rpartition(":")
        pem = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
        assert ssl.PEM_cert_to_DER_cert(pem) == ssl.PEM_cert_to_DER_cert(certificates.text("client.pem"))


async def test_a_request_of_the_server_waits_for_the_handlers_of_the_client(certificates: Certificates):
    def take(channel: Channel, asked: RemotingCommand) -> Reply:
        heard.put_nowait(asked.body)

    for tls in (None, certificates.client()):
        heard: asyncio.Queue[object] = asyncio.Queue()
        async with (
            serving(tls=certificates.server()) as (server, address),
            client_of(handlers={2: take}, tls=tls) as client,
        ):
            server._owner.on_connect = lambda channel: channel.send_one_way(RemotingCommand.request(2, body=b"welcome"))
            await client.invoke(address, request(), timeout_ms=TIMEOUT_MS)
            assert await asyncio.wait_for(heard.get(), 5) == b"welcome"


async def test_dialling_may_use_up_the_whole_timeout():
    class Jumping(SystemClock):
        def monotonic_ms(self) -> int:
            self.now_ms_shown = getattr(self, "now_ms_shown", 0) + 1000
            return self.now_ms_shown

    async with serving() as (_, address):
        client = RemotingClient(clock=Jumping())
        with pytest.raises(RequestTimeoutError, match="connecting used up the time-out") as caught:
            await client.invoke(address, request(), timeout_ms=500)
        assert not caught.value.sent
        assert (await client.connect(address)) is client.connected(address)
        assert client.counters.connections_opened == 1
        await client.close()
