"""A client engine over a broker in memory: virtual time, real parts on both sides, and no socket between them."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from gantry.client.engine import ClientEngine
from gantry.client.settings import ClientSettings
from gantry.model.route import BrokerData, QueueData, TopicRoute
from gantry.remoting.aio import Channel, Handler
from gantry.remoting.bodies import TopicRouteData
from gantry.remoting.codes import RequestCode, ResponseCode
from gantry.remoting.command import RemotingCommand
from gantry.runtime.rng import Rng
from tests.support.brokerunit import IDENTITY, BrokerUnit
from tests.support.connectionpair import ConnectionPair

NAMESRV = "ns:9876"


class UnitTransport:
    """The engine's transport: one connection to the broker, and a name server that knows the broker's topics."""

    def __init__(self, unit: BrokerUnit) -> None:
        self._unit = unit
        self._handlers: Mapping[int, Handler] = {}
        self._connection: ConnectionPair | None = None

    def make(self, handlers: Mapping[int, Handler], lost: Callable[[str], None]) -> "UnitTransport":
        """Act as the transport of an engine: pass this method as its `make_transport`."""
        self._handlers = handlers
        return self

    async def invoke(self, address: str, command: RemotingCommand, *, timeout_ms: int) -> RemotingCommand:
        """Send a request to the broker or the name server, and return its answer."""
        if address == NAMESRV:
            return self._route(command)
        return await self._channel().request(command, timeout_ms)

    async def invoke_one_way(self, address: str, command: RemotingCommand, *, timeout_ms: int = 3_000) -> None:
        """Send a request that gets no answer."""
        self._channel().send_one_way(command)

    async def connect(self, address: str, *, timeout_ms: int) -> object:
        """Return the connection to the broker."""
        return self._channel()

    async def close(self) -> None:
        """End the connection."""
        if self._connection is not None:
            self._connection.client.abort("the engine is closed")

    def _channel(self) -> Channel:
        if self._connection is None or self._connection.client.closed:
            self._connection = self._unit.connect(self._handlers)
        return self._connection.client

    def _route(self, request: RemotingCommand) -> RemotingCommand:
        assert request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC, request.code
        config = self._unit.broker.tables.topics.find(request.ext_fields["topic"])
        if config is None:
            return RemotingCommand.response_to(request, ResponseCode.TOPIC_NOT_EXIST, remark="no such topic")
        queues = QueueData(IDENTITY.name, config.read_queue_nums, config.write_queue_nums, config.perm)
        broker = BrokerData(IDENTITY.cluster, IDENTITY.name, {0: IDENTITY.host})
        body = TopicRouteData(TopicRoute((queues,), (broker,))).encode()
        return RemotingCommand.response_to(request, ResponseCode.SUCCESS, body=body)


@asynccontextmanager
async def engine_on(unit: BrokerUnit, seed: int = 7) -> AsyncIterator[ClientEngine]:
    """A running client engine on a broker in memory. Engines with different seeds are different clients."""
    settings = ClientSettings(namesrv=(NAMESRV,))
    engine = ClientEngine(settings, clock=unit.clock, rng=Rng(seed), make_transport=UnitTransport(unit).make)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()
