"""Peers that answer by script: in memory for unit tests, on a real port for integration tests.

Both take the same script: for each request code, a function from the request to the outcome. So the assumptions of a
unit test about a peer can be tried on a socket, too (tests/integration/test_scriptedpeer.py).
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from gantry.model.route import BrokerData, QueueData, TopicRoute
from gantry.remoting.aio import Channel, Handler, RemotingServer
from gantry.remoting.bodies import ClusterInfo, TopicRouteData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand, decode_frame, encode_frame
from gantry.remoting.errors import ConnectError, ConnectionLostError, RequestFailedError, RequestTimeoutError
from gantry.runtime.clock import SystemClock

# The outcome of a request: a response, an error of the transport, or None for no answer at all.
ScriptedOutcome = RemotingCommand | RequestFailedError | None
Script = Callable[[RemotingCommand], ScriptedOutcome]


def ok(request: RemotingCommand, *, ext: Mapping[str, str] | None = None, body: bytes | None = None) -> RemotingCommand:
    """Answer SUCCESS."""
    return RemotingCommand.response_to(request, ResponseCode.SUCCESS, ext=dict(ext or {}), body=body)


def refuse(code: int, remark: str = "refused by the script") -> Script:
    """Return a script that answers a code."""
    return lambda request: RemotingCommand.response_to(request, code, remark=remark)


def in_turn(*scripts: Script) -> Script:
    """Return a script that takes one step per request, and repeats the last step."""
    left = list(scripts)

    def answer(request: RemotingCommand) -> ScriptedOutcome:
        script = left.pop(0) if len(left) > 1 else left[0]
        return script(request)

    return answer


class ScriptedTransport:
    """The engine's transport in memory: each address has a script; all other addresses refuse connections.

    Frames are encoded and decoded on the way, so that a frame that can't be sent fails here, too.
    """

    def __init__(self) -> None:
        self.scripts: dict[str, dict[int, Script]] = {}
        self.requests: list[tuple[str, RemotingCommand]] = []
        self.latency_s: dict[str, float] = defaultdict(lambda: 0.001)
        self.handlers: Mapping[int, Handler] = {}
        self.connection_lost: Callable[[str], None] = lambda address: None
        self.is_closed = False
        self.connected: set[str] = set()
        self.dials: list[str] = []

    def make(self, handlers: Mapping[int, Handler], lost: Callable[[str], None]) -> "ScriptedTransport":
        """Act as the transport of an engine: pass this method as its `make_transport`."""
        self.handlers = handlers
        self.connection_lost = lost
        return self

    def at(self, address: str, scripts: Mapping[int, Script]) -> None:
        """Add scripts to an address."""
        self.scripts.setdefault(address, {}).update(scripts)

    def down(self, address: str) -> None:
        """Make an address refuse connections, and break its open connection."""
        self.scripts.pop(address, None)
        self.connected.discard(address)
        self.connection_lost(address)

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        """Run the script for a request."""
        request = decode_frame(encode_frame(command)[4:])
        self.requests.append((address, request))
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.sleep(self.latency_s[address])
                if address not in self.scripts:
                    raise ConnectError(address, "connection refused")
                script = self.scripts[address].get(command.code, refuse(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))
                outcome = script(request)
                if outcome is None:
                    await asyncio.sleep(timeout_ms)
                if isinstance(outcome, RequestFailedError):
                    raise outcome
                assert isinstance(outcome, RemotingCommand)
                return decode_frame(encode_frame(outcome)[4:])
        except TimeoutError:
            raise RequestTimeoutError(address, "no answer in time", sent=True) from None

    async def invoke_one_way(self, address: str, command: RemotingCommand, *, timeout_ms: int = 3_000) -> None:
        """Take a one-way request; the script sees it, and its answer is dropped."""
        request = decode_frame(encode_frame(command)[4:])
        assert request.is_one_way
        self.requests.append((address, request))
        if address not in self.scripts:
            raise ConnectError(address, "connection refused")
        script = self.scripts[address].get(command.code)
        if script is not None:
            script(request)

    async def connect(self, address: str, *, timeout_ms: int) -> object:
        """Connect if the address has a script; the first attempt takes the address's latency."""
        if address in self.connected:
            return self
        self.dials.append(address)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await asyncio.sleep(self.latency_s[address])
        except TimeoutError:
            raise ConnectError(address, f"no connection within {timeout_ms} ms") from None
        if address not in self.scripts:
            raise ConnectError(address, "connection refused")
        self.connected.add(address)
        return self

    async def close(self) -> None:
        """Record the call."""
        self.is_closed = True

    def sent(self, code: int, address: str | None = None) -> list[RemotingCommand]:
        """Return the requests of a code so far, to one address or to all."""
        return [request for at, request in self.requests if request.code == code and address in (None, at)]

    def push(self, command: RemotingCommand) -> Any:
        """Send a request to the client, as a broker does."""
        return self.handlers[command.code](Channel.__new__(Channel), command)


class ScriptedCluster:
    """A name server and brokers over a ScriptedTransport, with the topics and offsets that a test gives them."""

    def __init__(self, transport: ScriptedTransport, *, namesrv: tuple[str, ...] = ("ns:1",)) -> None:
        self.transport = transport
        self.routes: dict[str, TopicRoute] = {}
        self.registered: dict[str, BrokerData] = {}
        for address in namesrv:
            transport.at(
                address,
                {RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route, RequestCode.GET_BROKER_CLUSTER_INFO: self._cluster},
            )

    def topic(self, name: str, *brokers: str, queues: int = 2, perm: int = 6) -> None:
        """Put a topic on broker sets, each with a master at `NAME:10911`."""
        for broker in brokers:
            data = BrokerData("C", broker, {0: f"{broker}:10911"})
            self.registered[broker] = data
            self.transport.at(f"{broker}:10911", {RequestCode.HEART_BEAT: ok, RequestCode.UNREGISTER_CLIENT: ok})
        self.routes[name] = TopicRoute(
            tuple(QueueData(broker, queues, queues, perm) for broker in brokers),
            tuple(self.registered[broker] for broker in brokers),
        )

    def _route(self, request: RemotingCommand) -> ScriptedOutcome:
        topic = request.ext_fields["topic"]
        route = self.routes.get(topic)
        if route is None:
            return refuse(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {topic}")(
                request
            )
        return ok(request, body=TopicRouteData(route).encode())

    def _cluster(self, request: RemotingCommand) -> ScriptedOutcome:
        return ok(request, body=ClusterInfo(self.registered, {"C": tuple(self.registered)}).encode())


class ScriptedPeer:
    """A peer on a real port, for integration tests: the same scripts behind a RemotingServer."""

    def __init__(self, scripts: Mapping[int, Script]) -> None:
        self.requests: list[RemotingCommand] = []
        self._scripts = scripts
        self._server = RemotingServer(name="scripted", handlers={}, fallback=self._handle, clock=SystemClock())
        self.address = ""

    async def start(self) -> str:
        """Listen on any free port of loopback; return the address."""
        self.address = str(await self._server.start("127.0.0.1", 0))
        return self.address

    async def stop(self) -> None:
        """Close the port and all connections."""
        await self._server.stop(drain_ms=100)

    def _handle(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        self.requests.append(request)
        outcome = self._scripts.get(request.code, refuse(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))(request)
        if isinstance(outcome, ConnectionLostError):
            channel.abort("the script breaks the connection")
            return None
        assert not isinstance(outcome, RequestFailedError), "a socket can't do that"
        return outcome
