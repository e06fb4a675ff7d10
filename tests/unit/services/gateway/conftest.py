"""A client engine on virtual time over a scripted cluster, for use cases that talk to brokers."""

from collections.abc import AsyncIterator

import pytest

from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.client.settings import ClientSettings
from gantry.model.topic import TopicConfig
from gantry.runtime.rng import Rng
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.cluster.brokers import Brokers
from services.gateway.usecases.configs.kinds import TopicKind
from services.gateway.usecases.configs.presence import Presence
from services.gateway.usecases.metadata import Metadata
from services.gateway.usecases.reading.read import QueueReader
from services.gateway.usecases.sending.send import SendMessages
from services.gateway.usecases.sending.windows import TopicWindows
from tests.support.scriptedpeer import ScriptedCluster, ScriptedTransport
from tests.support.virtualtime import VirtualClock


@pytest.fixture
def transport() -> ScriptedTransport:
    return ScriptedTransport()


@pytest.fixture
def cluster(transport: ScriptedTransport) -> ScriptedCluster:
    return ScriptedCluster(transport)


@pytest.fixture
async def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(transport: ScriptedTransport, clock: VirtualClock) -> AsyncIterator[ClientEngine]:
    settings = ClientSettings(namesrv=("ns:1",), compress_over_bytes=0)
    engine = ClientEngine(settings, clock=clock, rng=Rng(7), make_transport=transport.make)
    await engine.start()
    yield engine
    await engine.stop()


@pytest.fixture
def metrics() -> GatewayMetrics:
    return GatewayMetrics()


@pytest.fixture
def brokers(engine: ClientEngine, clock: VirtualClock) -> Brokers:
    return Brokers(engine, clock=clock)


@pytest.fixture
def topics(engine: ClientEngine, brokers: Brokers) -> Presence[TopicConfig]:
    return Presence(TopicKind(engine), Metadata(None), brokers, engine)


@pytest.fixture
def sending(engine: ClientEngine, metrics: GatewayMetrics, topics: Presence[TopicConfig]) -> SendMessages:
    return SendMessages(Producer(engine, "GW"), engine, metrics, topics=topics, windows=TopicWindows(engine))


@pytest.fixture
def reader(
    engine: ClientEngine,
    brokers: Brokers,
    metrics: GatewayMetrics,
    clock: VirtualClock,
    topics: Presence[TopicConfig],
) -> QueueReader:
    return QueueReader(engine, brokers, metrics, clock=clock, topics=topics, is_stopping=lambda: False)
