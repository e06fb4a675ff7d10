"""An engine on virtual time over a scripted cluster."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from gantry.client.engine import ClientEngine
from gantry.client.settings import ClientSettings
from gantry.runtime.rng import Rng
from tests.support.scriptedpeer import ScriptedCluster, ScriptedTransport
from tests.support.virtualtime import VirtualClock

StartEngine = Callable[..., Awaitable[ClientEngine]]


@pytest.fixture
def transport() -> ScriptedTransport:
    return ScriptedTransport()


@pytest.fixture
def cluster(transport: ScriptedTransport) -> ScriptedCluster:
    return ScriptedCluster(transport)


@pytest.fixture
async def start_engine(transport: ScriptedTransport) -> AsyncIterator[StartEngine]:
    """Starts engines with the settings that a test gives; stops them at the end."""
    engines: list[ClientEngine] = []

    async def start(**settings: Any) -> ClientEngine:
        settings.setdefault("namesrv", ("ns:1",))
        engine = ClientEngine(
            ClientSettings(**settings), clock=VirtualClock(), rng=Rng(7), make_transport=transport.make
        )
        await engine.start()
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        await engine.stop()


@pytest.fixture
async def engine(start_engine: StartEngine) -> ClientEngine:
    return await start_engine()
