"""An engine on virtual time over a scripted cluster."""

from collections.abc import AsyncIterator

import pytest

from gantry.client.engine import ClientEngine
from gantry.client.settings import ClientSettings
from gantry.runtime.rng import Rng
from tests.support.scriptedpeer import ScriptedCluster, ScriptedTransport
from tests.support.virtualtime import VirtualClock


@pytest.fixture
def transport() -> ScriptedTransport:
    return ScriptedTransport()


@pytest.fixture
def cluster(transport: ScriptedTransport) -> ScriptedCluster:
    return ScriptedCluster(transport)


@pytest.fixture
async def engine(transport: ScriptedTransport) -> AsyncIterator[ClientEngine]:
    settings = ClientSettings(namesrv=("ns:1",))
    engine = ClientEngine(settings, clock=VirtualClock(), rng=Rng(7), make_transport=transport.make)
    await engine.start()
    yield engine
    await engine.stop()
