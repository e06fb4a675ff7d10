"""A client engine on virtual time over a scripted cluster, for the use cases that talk to brokers."""

from collections.abc import AsyncIterator

import pytest

from gantry.client.engine import ClientEngine
from gantry.client.producer import Producer
from gantry.client.settings import ClientSettings
from gantry.runtime.rng import Rng
from services.gateway.metrics import GatewayMetrics
from services.gateway.usecases.brokers import Brokers
from services.gateway.usecases.read import QueueReader
from services.gateway.usecases.send import SendMessages
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
def sending(engine: ClientEngine, metrics: GatewayMetrics, reader: QueueReader) -> SendMessages:
    producer, ids = Producer(engine, "GW"), engine.unique_keys
    return SendMessages(producer, engine, ids, metrics, require_all_registered=reader.require_all_registered)


@pytest.fixture
def reader(engine: ClientEngine, brokers: Brokers, metrics: GatewayMetrics, clock: VirtualClock) -> QueueReader:
    return QueueReader(engine, brokers, metrics, clock=clock, is_stopping=lambda: False)
